//! Leave to run.

use std::{any::Any, future::Future, pin::Pin};

/// Decides how many agents may be at work at once.
///
/// An agent asks before the first request of a run, and after each pause before the next one. Until it is admitted it is
/// busy, sends nothing, and can be cancelled; the turn's clock stands still.
pub trait Admission: Send + Sync + 'static {
    /// Waits for leave. The permit is dropped when the run ends, and while it is paused.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the run is cancelled meanwhile: whoever waited in a queue leaves it then.
    fn admit(&self) -> Pin<Box<dyn Future<Output = Permit> + Send>>;
}

/// Leave to run, given back by being dropped.
pub type Permit = Box<dyn Any + Send>;
