//! Leave to send requests.

use std::{any::Any, future::Future, pin::Pin};

/// Decides how many agents may have a request in flight at once.
///
/// An agent asks before each request to the model. While it waits, it is busy and sends nothing. It can be cancelled, and the
/// turn's clock stands still.
///
/// Callbacks, tools and delays run without a permit, so that they may wait for another agent. The one exception is
/// `handle_tool_use` for a question that the service asks in mid-stream: its request is still in flight. If it answers with a
/// pause, the permit is dropped, and the open stream continues without one.
pub trait Admission: Send + Sync + 'static {
    /// Waits for leave. The permit is dropped when the request ends, or when it pauses for a decision.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the run ends meanwhile. A caller that waited in a queue leaves it then.
    fn admit(&self) -> Pin<Box<dyn Future<Output = Permit> + Send>>;
}

/// Leave to send one request. Dropping it gives it back.
pub type Permit = Box<dyn Any + Send>;
