//! The CPU time of an event that the router of `web` writes to a stream, compared with the same events written by plain
//! `axum` in the same run.
//!
//! One session streams answers of 1,000 deltas. Several readers read the bodies of their responses in the same thread,
//! without sockets. The plain handler subscribes to the session and turns each update into a server-sent event with the
//! same JSON. The router also checks the access, hides what a client may not see, writes the position of the stream,
//! and ends a stream at its lifetime or when the server drains. Every reader reads every event, so no reader gets a
//! resync. Both figures exclude the time of the session and of one reader without a stream.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{convert::Infallible, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{Request, request::Parts},
    response::{
        Sse,
        sse::{Event as Frame, KeepAlive},
    },
    routing::get,
};
use futures_util::{Stream, StreamExt, stream};
use omni_agent::{
    access::{Permissions, Principal, StartRequest},
    agent::Agent,
    manager::{Manager, OpenOptions, Titles},
    provider::{
        DeltaStream, Provider, ProviderError, Request as ModelRequest, StopReason,
        custom::{BlockStart, Delta, Part, RequestContext},
    },
    session::{Mode, Session, SessionEvent, SessionSnapshot, StoreReport},
    store::{Labels, MemoryStore},
    subscription::Update,
    web::{Access, Challenge, Web, WebLimits},
};
use serde::Serialize;
use support::{cpu, head, median, model, on_this_thread, row, size};
use tower::ServiceExt;

const DELTAS: usize = 1000;

/// A provider that streams `DELTAS` deltas. Before each delta, it yields, so that the readers receive the previous delta
/// first.
struct Words;

#[async_trait]
impl Provider for Words {
    fn name(&self) -> &'static str {
        "words"
    }

    async fn stream(&self, _: ModelRequest, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let start = Delta::Start { index: 0, block: BlockStart::Text };
        let words = (0..DELTAS).map(|_| Delta::Extend { index: 0, part: Part::Text("word ".to_owned()) });
        let deltas = [start].into_iter().chain(words).chain([Delta::stop(StopReason::Stop)]);
        Ok(Box::pin(stream::iter(deltas).then(|delta| async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(delta)
        })))
    }
}

struct OneUser;

impl Permissions for OneUser {}

#[async_trait]
impl Access for OneUser {
    async fn principal(&self, _: &Parts) -> Result<Principal, Challenge> {
        Ok(Principal::new("ann", labels()).unwrap())
    }
}

fn labels() -> Labels {
    Labels::new([("user", "ann")]).unwrap()
}

fn options() -> OpenOptions {
    OpenOptions::new(Agent::builder().model(model(Words))).labels(labels())
}

#[derive(Serialize)]
struct OfConversation<'a> {
    conversation: &'a str,
    update: &'a Update<SessionSnapshot, SessionEvent>,
}

/// Returns a router with a handler that an application could write without this crate's router.
fn plain(session: &Session) -> Router {
    async fn frames(session: Session) -> Sse<impl Stream<Item = Result<Frame, Infallible>>> {
        let id: Arc<str> = session.id().to_string().into();
        let subscription = session.subscribe(Mode::Observer).await.unwrap();
        let first = subscription.snapshot().map(|snapshot| Update::Resync(Arc::clone(snapshot)));
        let updates =
            stream::iter(first).chain(stream::unfold(subscription, |mut subscription| async move {
                let update = subscription.next().await?;
                Some((update, subscription))
            }));
        let frames = updates.map(move |update| {
            let data = OfConversation { conversation: &id, update: &update };
            Ok(Frame::default().event("conversation").json_data(data).unwrap())
        });
        Sse::new(frames).keep_alive(KeepAlive::default())
    }
    let session = session.clone();
    Router::new().route("/events", get(move || frames(session.clone())))
}

/// Runs a turn, and returns its CPU time in microseconds and the number of its events. The only reader takes the events
/// from its subscription and writes nothing.
async fn alone(session: &Session) -> (f64, usize) {
    let mut subscription = session.subscribe(Mode::Observer).await.expect("the session is open");
    let reader = tokio::spawn(async move {
        let mut events = 0;
        loop {
            let Some(Update::Event(event)) = subscription.next().await else {
                panic!("a reader fell behind")
            };
            events += 1;
            if let SessionEvent::Store(StoreReport::Saved { .. }) = &*event.event {
                return events;
            }
        }
    });
    let before = cpu();
    session.prompt("Go on.").await.expect("the session is idle");
    let events = reader.await.expect("the turn is stored");
    (cpu().saturating_sub(before).as_secs_f64() * 1e6, events)
}

/// Runs a turn with this many streams, and returns its CPU time in microseconds.
async fn with_streams(router: &Router, path: &str, session: &Session, events: usize, streams: usize) -> f64 {
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let request = Request::get(path).header("host", "localhost").body(Body::empty()).unwrap();
        let mut body = router.clone().oneshot(request).await.unwrap().into_body().into_data_stream();
        // The first event is the snapshot.
        body.next().await.expect("the stream begins").unwrap();
        readers.spawn(async move {
            let mut last = None;
            for _ in 0..events {
                last = Some(body.next().await.expect("the stream does not end").unwrap());
            }
            let last = String::from_utf8(last.unwrap().to_vec()).unwrap();
            assert!(last.contains("\"saved\""), "an event is missing, or a reader fell behind: {last}");
        });
    }
    let before = cpu();
    session.prompt("Go on.").await.expect("the session is idle");
    while let Some(done) = readers.join_next().await {
        done.expect("every reader reads all events");
    }
    cpu().saturating_sub(before).as_secs_f64() * 1e6
}

/// Returns the CPU time per event of the router and of the plain handler in microseconds.
async fn compare(streams: usize) -> (f64, f64) {
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let session = manager.create(options()).await.expect("the session starts").session;
    let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(options());
    let limits = WebLimits::default().with_streams_per_principal(streams);
    let web = Web::builder(manager, OneUser, agents).limits(limits).build();
    let (ours, plain) = (web.router(), plain(&session));
    let path = format!("/conversations/{}/events", session.id());
    let (base, events) = alone(&session).await;
    let each = |time: f64| (time - base) / (events * streams) as f64;
    let plain = each(with_streams(&plain, "/events", &session, events, streams).await);
    (each(with_streams(&ours, &path, &session, events, streams).await), plain)
}

fn main() {
    let rounds = size(15, 1);
    head(&format!("an event written to a stream, CPU, median of {rounds}"));
    for streams in [1, size(16, 2), size(100, 4)] {
        let figures: Vec<(f64, f64)> = (0..rounds).map(|_| on_this_thread(compare(streams))).collect();
        let (ours, plain): (Vec<f64>, Vec<f64>) = figures.iter().copied().unzip();
        let ratios = figures.iter().map(|(ours, plain)| ours / plain).collect();
        row(&format!("{streams} streams, plain axum"), format!("{:.2} µs", median(plain)), "—");
        row(&format!("{streams} streams, the router"), format!("{:.2} µs", median(ours)), "—");
        row("ratio", format!("{:.2}", median(ratios)), "≤ 1.5");
    }
}
