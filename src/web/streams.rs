//! The number of open streams, in all and per principal.

use std::{
    collections::{HashMap, hash_map::Entry},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::http::StatusCode;
use tokio::time::{Sleep, sleep};

use super::{
    Principal, Problem, Web,
    gate::{Call, RETRY},
};

/// The open streams of all principals. An entry exists only while the principal has a stream.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of: HashMap<Arc<str>, usize>,
}

/// The maximum lifetime of a stream. When it is over, the stream ends, so that the client's access is checked again.
pub(super) type Lifetime = Pin<Box<Sleep>>;

/// The permit of an open stream. When the permit is dropped, the stream no longer counts.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    streams: Arc<Streams>,
    principal: Arc<str>,
}

impl Streams {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        crate::sync::lock(&self.0)
    }
}

impl Call {
    /// Counts a stream of the principal: see [`Web::open_stream`].
    pub(super) fn open_stream(&self) -> Result<StreamPermit, Problem> {
        self.web.open_stream(&self.principal)
    }
}

impl Web {
    /// Returns the lifetime of a stream that begins now. Lifetimes differ by up to 10 %, so that streams that began
    /// together do not end together.
    pub(super) fn lifetime(&self) -> Lifetime {
        let share = 0.9 + 0.2 * f64::from(rand::random::<u8>()) / 255.0;
        Box::pin(sleep(self.0.limits.stream_lifetime.mul_f64(share)))
    }

    /// Counts a stream of the principal.
    ///
    /// # Errors
    ///
    /// Fails if the server is about to stop, or if too many streams are open.
    pub(crate) fn open_stream(&self, principal: &Principal) -> Result<StreamPermit, Problem> {
        if self.is_draining() {
            return Err(Problem::draining());
        }
        let (streams, limits) = (&self.0.streams, &self.0.limits);
        let name = principal.shared_name();
        let mut counts = streams.counts();
        let own = counts.of.get(&name).copied().unwrap_or(0);
        if own >= limits.streams_per_principal || counts.all >= limits.streams {
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-streams",
                "Too many streams are open. Close one, or try again later.",
            );
            return Err(problem.with_retry_after(RETRY));
        }
        counts.all += 1;
        counts.of.insert(Arc::clone(&name), own + 1);
        drop(counts);
        Ok(StreamPermit { streams: Arc::clone(streams), principal: name })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.streams.counts();
        counts.all -= 1;
        if let Entry::Occupied(mut own) = counts.of.entry(Arc::clone(&self.principal)) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}
