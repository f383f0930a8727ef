//! Application events: the queue of events, and the calls of `handle_event` between turns.

use std::sync::Arc;

use super::{Call, Context, Core, Effect, queue::give_id};
use crate::agent::{
    Failure, Prompt,
    phase::{AfterEvent, Op, Phase},
};
use crate::run::{Error, ErrorKind};

/// The maximum number of queued application events.
const MAX_NOTICES: u32 = 1024;

impl Core {
    /// Counts a new application event. The shell stores the event itself until `handle_event` is called.
    pub(in crate::agent) fn notify(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        if self.notices >= MAX_NOTICES {
            let text = format!(
                "{MAX_NOTICES} application events are queued, which is the maximum; wait until some are handled"
            );
            return Err(Error::new(ErrorKind::Backlog, text).with_member("queued", MAX_NOTICES));
        }
        self.notices += 1;
        if matches!(self.phase, Phase::Idle) {
            self.notice(AfterEvent::Rest, cx);
        }
        Ok(())
    }

    /// Called when a run has ended, or when `handle_event` has ended without starting a run. Calls `handle_event` for
    /// the next queued application event, if there is one.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.notices > 0 {
            self.notice(AfterEvent::Rest, cx);
        }
    }

    /// Calls `handle_event` for the oldest queued application event.
    pub(super) fn notice(&mut self, then: AfterEvent, cx: &mut Context<'_>) {
        let op = self.next_op();
        self.phase = Phase::Noticing { op, begun: false, then };
        cx.push(Effect::Call(op, Call::HandleEvent));
    }

    /// Called when `handle_event` is about to be polled for the first time. From now on, if the call is dropped, its
    /// event is dropped too.
    pub(in crate::agent) fn event_begun(&mut self, op: Op) {
        if let Some(begun) = self.phase.event_begun(op)
            && !*begun
        {
            *begun = true;
            self.notices -= 1;
        }
    }

    /// Called when `handle_event` has returned, possibly with a prompt.
    pub(in crate::agent) fn event_handled(&mut self, op: Op, prompt: Option<Prompt>, cx: &mut Context<'_>) {
        if !self.phase.event_begun(op).is_some_and(|begun| *begun) {
            return;
        }
        // A known prompt is dropped, also while no prompt can be accepted.
        if let Some(prompt) = prompt.filter(|prompt| self.prompt_state(prompt.id.as_ref()).is_none()) {
            if let Some(reason) = (cx.hold)() {
                return self.hand_back(prompt, reason, cx);
            }
            if let Err(error) = self.prompt_from_event(prompt, cx) {
                return self.call_failed(op, Call::HandleEvent.name(), error.to_string(), cx);
            }
        }
        match std::mem::take(&mut self.phase) {
            Phase::Noticing { then: AfterEvent::Rest, .. } => self.settle(cx),
            Phase::Noticing { then: AfterEvent::Continue(between), .. } => self.continue_run(between, cx),
            Phase::InTurn { turn, .. } => self.prepare(turn, cx),
            Phase::Idle => {
                unreachable!("the phase waits for handle_event, and a prompt does not change that")
            }
        }
    }

    /// Returns a prompt of `handle_event` with an error event, because the prompt cannot be accepted now.
    fn hand_back(&mut self, mut prompt: Prompt, reason: String, cx: &mut Context<'_>) {
        give_id(&mut prompt, cx);
        self.staged.push(Arc::new(prompt));
        self.end_in_error(Failure::OnHold { reason }, cx);
    }
}
