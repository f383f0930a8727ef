//! What a session tells without being asked, for whoever keeps many.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    agent::{Event, Response, Status},
    session::SessionEvent,
    subscription::EndReason,
};

/// Is told what becomes of a session, from within its task. Costs a session nothing but the call, where a subscription
/// costs a channel.
pub(crate) trait Watcher: Send + Sync + 'static {
    /// Something has happened. Called in order; what it does is to be quick, and is not to wait.
    fn notice(&self, notice: Notice<'_>);
}

/// What a [`Watcher`] is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub(crate) enum Notice<'a> {
    /// The agent does this now.
    Status(Status),
    /// The conversation has this title now.
    Title(Option<&'a Arc<str>>),
    /// A turn was finished: the conversation has it, whether or not the run goes on.
    #[cfg_attr(not(test), expect(dead_code, reason = "the manager needs only the fact, tests the response"))]
    Finished(&'a Arc<Response>),
    /// The last controller has left.
    Left,
    /// The session has refused to [sleep](crate::session::Session::sleep), and the reason may be gone: everything is saved, or
    /// the agent has handled its application events.
    Settled,
    /// The session has ended, and nothing of it is left. The last notice, and there is always one.
    Ended(&'a EndReason),
}

/// What of an event a watcher is told.
pub(super) fn tell(watcher: &dyn Watcher, event: &SessionEvent) {
    let notice = match event {
        SessionEvent::Title { title } => Notice::Title(title.as_ref()),
        SessionEvent::Agent(event) => match &**event {
            Event::Status { status } => Notice::Status(*status),
            Event::Turn(outcome) => Notice::Finished(outcome.response()),
            _ => return,
        },
        _ => return,
    };
    tell_of(watcher, notice);
}

/// Tells, and survives what the watcher makes of it.
pub(super) fn tell_of(watcher: &dyn Watcher, notice: Notice<'_>) {
    if catch_unwind(AssertUnwindSafe(|| watcher.notice(notice))).is_err() {
        tracing::error!(?notice, "a session's watcher panicked");
    }
}
