//! Access to log messages for tests.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

/// A subscriber that keeps the fields of all log events.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<String>>);

impl Log {
    pub fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// Records the events of this thread until the guard is dropped.
    ///
    /// If another thread logs at a call site for the first time at the same moment, `tracing` may cache that call site
    /// as disabled. A default subscriber for all threads prevents this.
    pub fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // Another test may already have set the default subscriber.
        let _ = tracing::subscriber::set_global_default(Unsure);
        tracing::subscriber::set_default(self.clone())
    }
}

/// A subscriber that records nothing. `tracing` never caches its interest in a call site.
struct Unsure;

impl tracing::Subscriber for Unsure {
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
