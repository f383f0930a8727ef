//! Events that the tests of both translators use.

use std::sync::Arc;

use crate::{
    agent::Event,
    provider::StopReason,
    run::{PromptState, RunOutcome},
    session::SessionEvent,
    subscription::Numbered,
};

/// Returns the end of an abandoned run, or of its prompt, if `event` is the end of an interrupted or cancelled run or of
/// its prompt. Returns other events as they are.
pub(super) fn abandoned(event: &Numbered<SessionEvent>) -> Numbered<SessionEvent> {
    let mut changed = SessionEvent::clone(&event.event);
    if let SessionEvent::Agent(event) = &mut changed {
        match Arc::make_mut(event) {
            Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. } => {
                Arc::make_mut(response).stop_reason = StopReason::Abandoned;
            }
            Event::Prompt { state: PromptState::Ended { outcome }, .. } => *outcome = RunOutcome::Abandoned,
            _ => {}
        }
    }
    Numbered::new(event.id, Arc::new(changed))
}
