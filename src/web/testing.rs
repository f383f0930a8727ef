//! Events that the tests of both translators use.

use std::sync::Arc;

use crate::{agent::Event, provider::StopReason, session::SessionEvent, subscription::Numbered};

/// Returns the end of an abandoned run if `event` is the end of an interrupted or cancelled run. Returns other events
/// as they are.
pub(super) fn abandoned(event: &Numbered<SessionEvent>) -> Numbered<SessionEvent> {
    let mut changed = SessionEvent::clone(&event.event);
    if let SessionEvent::Agent(event) = &mut changed
        && let Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. } =
            Arc::make_mut(event)
    {
        Arc::make_mut(response).stop_reason = StopReason::Abandoned;
    }
    Numbered::new(event.id, Arc::new(changed))
}
