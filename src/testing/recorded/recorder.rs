//! The recorder of one exchange.

use std::{mem, sync::Arc};

use tokio::time::Instant;

use super::{
    canonical::Rules,
    cassette::{Cassette, Line, TimedDelta},
};
use crate::provider::{Delta, ProviderError, ProviderErrorKind, Secret};

/// Records one exchange. If the recorder is dropped before the end, the answer is recorded as dropped, unless its stop
/// reason has already arrived.
pub(super) struct Recorder {
    cassette: Arc<Cassette>,
    rules: Arc<Rules>,
    /// The index of the exchange in the cassette.
    number: usize,
    secrets: Vec<Secret>,
    deltas: Vec<TimedDelta>,
    /// The time of the last delta. Before the first delta, the time of the request.
    last: Instant,
    has_stop_reason: bool,
    is_over: bool,
}

impl Recorder {
    pub(super) fn new(
        cassette: Arc<Cassette>,
        rules: Arc<Rules>,
        number: usize,
        secrets: Vec<Secret>,
    ) -> Self {
        let (deltas, last) = (Vec::new(), Instant::now());
        Self { cassette, rules, number, secrets, deltas, last, has_stop_reason: false, is_over: false }
    }

    pub(super) fn delta(&mut self, delta: &Delta) {
        let after = self.lap();
        self.has_stop_reason |= matches!(delta, Delta::Message(data) if data.stop_reason.is_some());
        self.deltas.push(TimedDelta { after, delta: delta.clone() });
    }

    /// Writes the exchange, which ended with this error, or successfully if `error` is `None`.
    pub(super) fn end(&mut self, error: Option<&ProviderError>) -> Result<(), ProviderError> {
        self.write(error.cloned(), false)
    }

    /// Returns the error of an exchange that can't be recorded, because its answer depends on a decision.
    pub(super) fn refuse(&mut self) -> ProviderError {
        self.is_over = true;
        let words = "this exchange can't be recorded, because the provider asks for a decision on a tool use; use a \
                     scripted provider for this test";
        ProviderError::new(ProviderErrorKind::Unsupported, words)
    }

    fn write(&mut self, error: Option<ProviderError>, dropped: bool) -> Result<(), ProviderError> {
        self.is_over = true;
        let (ended_after, deltas) = (self.lap(), mem::take(&mut self.deltas));
        let make = |request| Line { request, deltas, error, ended_after, dropped };
        self.cassette.add(&self.rules, self.number, &self.secrets, make)
    }

    /// Returns the milliseconds since the last call of this method.
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let millis = now.duration_since(mem::replace(&mut self.last, now)).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let dropped = !self.has_stop_reason;
        if let Err(error) = self.write(None, dropped) {
            tracing::error!(%error, "a dropped answer could not be recorded");
        }
    }
}
