//! The open streams and the bytes of bodies in work, in all and per principal.
//!
//! A server polls the body of a response only while its connection has room. So a stream whose client has stopped reading
//! learns neither of its lifetime nor of its end. A task per stream watches this: a body that has given out bytes and is not
//! polled again within [`WebLimits::send_timeout`](super::WebLimits::send_timeout) is dropped, with its subscriptions and
//! its permit.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_core::Stream;
use futures_util::StreamExt;
use tokio::{
    task::JoinHandle,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Principal, Problem, Web,
    gate::{RETRY, WebRequest},
};
use crate::{
    sync::lock,
    time::{NEVER, SHORTEST_INTERVAL, scaled},
};

/// The load of all principals. An entry exists only while the principal has a permit.
#[derive(Debug, Default)]
pub(super) struct PrincipalLoads(Mutex<TotalAndPrincipalLoads>);

#[derive(Debug, Default)]
struct TotalAndPrincipalLoads {
    all: StreamAndBodyLoad,
    of: HashMap<Principal, StreamAndBodyLoad>,
}

/// The open streams, and the bytes of bodies that are being received or processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamAndBodyLoad {
    streams: usize,
    bytes: usize,
}

impl StreamAndBodyLoad {
    fn plus(self, more: Self) -> Self {
        Self { streams: self.streams + more.streams, bytes: self.bytes + more.bytes }
    }

    fn minus(self, less: Self) -> Self {
        Self { streams: self.streams - less.streams, bytes: self.bytes - less.bytes }
    }

    fn fits(self, limit: Self) -> bool {
        self.streams <= limit.streams && self.bytes <= limit.bytes
    }
}

/// The maximum lifetime of a stream. When it is over, the stream ends, so that the client's access is checked again.
pub(super) type StreamLifetime = Pin<Box<Sleep>>;

/// The permit of an open stream, or of a body in work. When the permit is dropped, its load no longer counts.
#[derive(Debug)]
pub(crate) struct LoadPermit {
    loads: Arc<PrincipalLoads>,
    principal: Principal,
    held: StreamAndBodyLoad,
}

impl LoadPermit {
    /// Adds this load, unless it exceeds the limit of the principal or of all. Returns whether it was added.
    fn add(&mut self, more: StreamAndBodyLoad, own: StreamAndBodyLoad, all: StreamAndBodyLoad) -> bool {
        let mut counts = lock(&self.loads.0);
        let of_all = counts.all.plus(more);
        let of_own = counts.of.get(&self.principal).copied().unwrap_or_default().plus(more);
        let fits = of_all.fits(all) && of_own.fits(own);
        if fits {
            counts.all = of_all;
            counts.of.insert(self.principal.clone(), of_own);
            self.held = self.held.plus(more);
        }
        fits
    }
}

impl Drop for LoadPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.loads.0);
        counts.all = counts.all.minus(self.held);
        if let Some(own) = counts.of.get_mut(&self.principal) {
            *own = own.minus(self.held);
            if *own == StreamAndBodyLoad::default() {
                counts.of.remove(&self.principal);
            }
        }
    }
}

/// The greatest number of bytes that are given to a server at once.
const LARGEST_PIECE: usize = 64 * 1024;

/// The part of a body that was not sent.
struct UnsentBody {
    /// `None` when the body has ended, or was dropped because its client has stopped reading.
    rest: Option<BodyDataStream>,
    /// The part of a large event that is given out next.
    piece: Bytes,
    /// The time since which the body waits for its connection. `None` while the body itself has nothing to send.
    waits_since: Option<Instant>,
}

/// A body whose client must take its bytes within a time.
struct BoundedBody {
    body: Arc<Mutex<UnsentBody>>,
    watch: JoinHandle<()>,
    has_ended: bool,
}

impl Stream for BoundedBody {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = {
            let mut body = lock(&self.body);
            let UnsentBody { rest, piece, waits_since } = &mut *body;
            let is_part = !piece.is_empty();
            let mut next = match rest {
                Some(_) if is_part => Poll::Ready(Some(Ok(std::mem::take(piece)))),
                Some(rest) => rest.poll_next_unpin(context),
                None => Poll::Ready(Some(Err(axum::Error::new("the client has not read the stream")))),
            };
            if let Poll::Ready(Some(Ok(bytes))) = &mut next
                && (is_part || bytes.len() > LARGEST_PIECE)
            {
                // A server asks for more only when all bytes are sent, and a client may be slow. The server gets a copy, so
                // that a connection that is not read keeps no more than that.
                *piece = bytes.split_off(bytes.len().min(LARGEST_PIECE));
                *bytes = Bytes::copy_from_slice(bytes);
            }
            *waits_since = next.is_ready().then(Instant::now);
            next
        };
        self.has_ended = matches!(next, Poll::Ready(None | Some(Err(_))));
        next
    }
}

impl Drop for BoundedBody {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Drops the rest of the body if its connection takes nothing for this time.
async fn watch(body: Weak<Mutex<UnsentBody>>, timeout: Duration, cut: CancellationToken) {
    loop {
        let now = Instant::now();
        let due = {
            let Some(body) = body.upgrade() else { return };
            let mut body = lock(&body);
            let due = body.waits_since.unwrap_or(now) + timeout;
            (due > now).then_some(due).ok_or_else(|| (body.rest.take(), std::mem::take(&mut body.piece)))
        };
        match due {
            Ok(due) => sleep_until(due).await,
            Err(rest) => {
                cut.cancel();
                drop(rest);
                return;
            }
        }
    }
}

impl WebRequest {
    /// Counts a stream of the principal: see [`Web::open_stream`].
    pub(super) fn open_stream(&self) -> Result<LoadPermit, Problem> {
        self.web.open_stream(&self.client.principal)
    }
}

impl Web {
    /// Returns the lifetime of a stream that begins now. Lifetimes differ by up to 10 %, so that streams that began
    /// together do not end together.
    pub(super) fn lifetime(&self) -> StreamLifetime {
        let share = 0.9 + 0.2 * f64::from(rand::random::<u8>()) / 255.0;
        Box::pin(sleep(scaled(self.0.limits.stream_lifetime, share)))
    }

    /// Returns the response with a stream of events. If the client stops reading, cancels `cut` and drops the events.
    pub(super) fn respond<S, E>(&self, events: S, cut: CancellationToken) -> Response
    where
        S: Stream<Item = Result<Event, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let keep_alive = self.0.limits.keep_alive.clamp(SHORTEST_INTERVAL, NEVER);
        let events = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive));
        let mut response = events.into_response().map(|body| self.bounded(body, cut));
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// Bounds the time in which the client takes the next bytes of this body. After it, cancels `cut` and drops the body.
    pub(crate) fn bounded(&self, body: Body, cut: CancellationToken) -> Body {
        let (rest, waits_since) = (Some(body.into_data_stream()), Some(Instant::now()));
        let body = Arc::new(Mutex::new(UnsentBody { rest, piece: Bytes::new(), waits_since }));
        let watch =
            watch(Arc::downgrade(&body), self.0.limits.send_timeout.clamp(SHORTEST_INTERVAL, NEVER), cut);
        let watch = tokio::spawn(watch.in_current_span());
        Body::from_stream(BoundedBody { body, watch, has_ended: false })
    }

    /// Adds a load to a permit of this web.
    fn load(&self, permit: &mut LoadPermit, more: StreamAndBodyLoad) -> bool {
        let limits = &self.0.limits;
        // A body of the greatest size must be possible while there is no other.
        let bytes = |limit: usize| limit.max(limits.command_body).max(limits.body);
        let own = StreamAndBodyLoad {
            streams: limits.streams_per_principal,
            bytes: bytes(limits.bodies_per_principal),
        };
        permit.add(more, own, StreamAndBodyLoad { streams: limits.streams, bytes: bytes(limits.bodies) })
    }

    fn permit(&self, principal: &Principal) -> LoadPermit {
        let (loads, principal) = (Arc::clone(&self.0.loads), principal.clone());
        LoadPermit { loads, principal, held: StreamAndBodyLoad::default() }
    }

    /// Counts a stream of the principal.
    ///
    /// # Errors
    ///
    /// Fails if the server is about to stop, or if too many streams are open.
    pub(crate) fn open_stream(&self, principal: &Principal) -> Result<LoadPermit, Problem> {
        if self.is_draining() {
            return Err(Problem::draining());
        }
        let mut permit = self.permit(principal);
        if !self.load(&mut permit, StreamAndBodyLoad { streams: 1, bytes: 0 }) {
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-streams",
                "Too many streams are open. Close one, or try again later.",
            );
            return Err(problem.with_retry_after(RETRY));
        }
        Ok(permit)
    }

    /// Reads the body of a request of this principal. The permit counts the bytes as long as they are in work.
    ///
    /// # Errors
    ///
    /// Fails if the body is larger than `limit`, or if the bodies in work have too many bytes.
    pub(crate) async fn receive(
        &self,
        principal: &Principal,
        body: Body,
        limit: usize,
    ) -> Result<(Vec<u8>, LoadPermit), Problem> {
        let (mut permit, mut bytes) = (self.permit(principal), Vec::new());
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Problem::too_large(limit))?;
            if bytes.len() + piece.len() > limit {
                return Err(Problem::too_large(limit));
            }
            if !self.load(&mut permit, StreamAndBodyLoad { streams: 0, bytes: piece.len() }) {
                let title = "Too many large requests are being processed. Try again later.";
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-bodies", title);
                return Err(problem.with_retry_after(RETRY));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, permit))
    }
}
