//! Permits to send requests.

use std::{any::Any, future::Future, pin::Pin};

/// Decides how many agents may have a request in flight at once.
///
/// An agent waits for a permit before each request to the model. While it waits, the agent is busy, and its turn's
/// clock is stopped. Nothing is sent, and the run can be cancelled.
///
/// Callbacks, tools and delays run without a permit, so that they may wait for another agent. The exception is
/// `handle_tool_use` for a question that the service asks while it streams, because its request is still in flight. If
/// the callback returns a pause, the permit is dropped, and the open stream continues without a permit.
pub(crate) trait Admission: Send + Sync + 'static {
    /// Waits for a permit. The agent drops the permit when the request ends, or when it pauses for a decision.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the run ends in the meantime. It must then leave any queue that it waits in.
    fn admit(&self) -> Pin<Box<dyn Future<Output = Permit> + Send>>;
}

/// A permit to send one request. Dropping it releases it.
pub(crate) type Permit = Box<dyn Any + Send>;
