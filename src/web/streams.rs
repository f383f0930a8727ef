//! The number of open streams, in all and per principal.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard},
};

use axum::http::StatusCode;

use super::{Principal, Problem, WebLimits, gate::RETRY};

/// The open streams of all principals. An entry exists only while the principal has a stream.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of: HashMap<Arc<str>, usize>,
}

/// A place for a stream. It becomes free when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    streams: Arc<Streams>,
    principal: Arc<str>,
}

impl Streams {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        crate::sync::lock(&self.0)
    }

    /// Takes a place for a stream of this principal.
    pub(super) fn enter(
        self: &Arc<Self>,
        principal: &Principal,
        limits: &WebLimits,
    ) -> Result<Place, Problem> {
        let name = principal.shared_name();
        let mut counts = self.counts();
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
        Ok(Place { streams: Arc::clone(self), principal: name })
    }
}

impl Drop for Place {
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
