//! Permits for sending requests.

use std::{any::Any, future::Future, pin::Pin};

/// Decides how many agents may have a request in flight at once.
///
/// An agent waits for a permit before each attempt at a request to the model. While the agent waits, its status is busy,
/// the wait does not count towards the time limits of the turn and of the request, and the run can be cancelled.
///
/// Callbacks, tools and delays run without a permit, so they may wait for another agent. This includes the delay before
/// a rejected request is sent again. The exception is a call of
/// `handle_tool_use` for a question that the service asks while it streams: the request is still in flight, so the
/// agent still holds its permit. If the callback returns a pause, the permit is dropped, and the open stream continues
/// without a permit.
pub(crate) trait RequestConcurrencyLimiter: Send + Sync + 'static {
    /// Waits for a permit. The agent drops the permit when the attempt ends, or when the agent pauses for a decision.
    ///
    /// # Cancel safety
    ///
    /// If the run ends before the future is ready, the future is dropped. The dropped future must leave any queue in
    /// which it waits.
    fn admit(&self) -> Pin<Box<dyn Future<Output = RequestPermit> + Send>>;
}

/// A permit to send one request. Dropping the permit releases it.
pub(crate) type RequestPermit = Box<dyn Any + Send>;
