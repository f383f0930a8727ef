//! Notifications about a session. The manager receives them for each of its sessions.
//!
//! The session's own task calls them, so they need neither a channel nor a subscription. The end is reported when the
//! task is dropped, also after a panic. So the manager emits exactly one `Closed` for each session.

use std::{future::ready, sync::Arc};

use futures_util::future::BoxFuture;

use super::Session;
use crate::{
    agent::{Event, Status, SubAgentSessionOpener},
    message::TurnId,
    panics::contained,
    run::{Error, Response},
    session::SessionEvent,
    store::Labels,
    subscription::EndReason,
};

/// Receives notifications about a session. The session's task calls the watcher directly. This costs less than a
/// subscription, which needs a channel.
pub(crate) trait SessionWatcher: Send + Sync + 'static {
    /// Processes a notification. Notifications are sent in the order of the changes. The call must be quick and must
    /// not block.
    fn notice(&self, notice: SessionNotice<'_>);

    /// Called when messages were erased from the store. Returns when nothing is left that belongs to them.
    fn erased(self: Arc<Self>, session: Session) -> BoxFuture<'static, Result<(), Error>> {
        drop(session);
        Box::pin(ready(Ok(())))
    }

    /// Returns the labels with which the conversation is created, after the `init` of its agent. `own` are those that the
    /// session was given before.
    fn labels(self: Arc<Self>, own: Labels) -> BoxFuture<'static, Result<Labels, Error>> {
        Box::pin(ready(Ok(own)))
    }

    /// Returns the manager that runs the sub-agents of the session's agent as sessions, if there is one.
    fn sub_agents(self: Arc<Self>) -> Option<Arc<dyn SubAgentSessionOpener>> {
        None
    }
}

/// A notification to a [`SessionWatcher`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub(crate) enum SessionNotice<'a> {
    /// The agent's status changed.
    Status(Status),
    /// The conversation's title changed.
    Title(Option<&'a Arc<str>>),
    /// Messages were erased. A title that may quote them is removed, which is another notification.
    Erased,
    /// The conversation's labels changed.
    Labels(&'a Labels),
    /// A turn was discarded, whose messages contain tool uses.
    Discarded(TurnId),
    /// A turn was committed. The run may continue, or has failed with this turn.
    #[cfg_attr(not(test), expect(dead_code, reason = "the manager needs only the fact, tests the response"))]
    Finished(&'a Arc<Response>),
    /// The last controller was dropped.
    Left,
    /// The session has refused to [sleep](crate::session::Session::sleep), and the reason for the refusal may no longer
    /// apply: everything is saved, or the agent has processed its application events.
    Settled,
    /// The session has ended and its task is done. This is always the last notification, and it is sent exactly once.
    Ended(&'a EndReason),
}

/// Sends the notification about an event, if there is a notification for this kind of event.
pub(super) fn notify_event(watcher: &dyn SessionWatcher, event: &SessionEvent) {
    let notice = match event {
        SessionEvent::Title { title } => SessionNotice::Title(title.as_ref()),
        SessionEvent::Erased(_) => SessionNotice::Erased,
        SessionEvent::Labels { labels } => SessionNotice::Labels(labels),
        SessionEvent::Agent(event) => match &**event {
            Event::Status { status, .. } => SessionNotice::Status(*status),
            event => match (event.committed(), event) {
                (Some(response), _) => SessionNotice::Finished(response),
                (None, Event::Cancelled { response } | Event::Error { response, .. }) => {
                    match response.turn {
                        Some(turn)
                            if response.messages.iter().any(|own| own.tool_uses().next().is_some()) =>
                        {
                            SessionNotice::Discarded(turn)
                        }
                        _ => return,
                    }
                }
                _ => return,
            },
        },
        _ => return,
    };
    notify(watcher, notice);
}

/// Notifies the watcher. If the watcher panics, the panic is caught and logged.
pub(super) fn notify(watcher: &dyn SessionWatcher, notice: SessionNotice<'_>) {
    if contained(|| watcher.notice(notice)).is_err() {
        tracing::error!(?notice, "a session's watcher panicked");
    }
}
