//! Application events: the queue of events, and the calls of `handle_event` between turns.

use std::sync::Arc;

use super::{AgentCore, AgentEffect, CallbackCall, CoreInputContext, queue::give_id};
use crate::agent::{
    Failure, Prompt,
    phase::{AfterEventCallback, AgentPhase, OpNumber},
};
use crate::run::{Error, ErrorKind};

/// The maximum number of queued application events.
const MAX_NOTICES: u32 = 1024;

impl AgentCore {
    /// Counts a new application event. The shell stores the event itself until `handle_event` is called.
    pub(in crate::agent) fn notify(&mut self, cx: &mut CoreInputContext<'_>) -> Result<(), Error> {
        if self.notices >= MAX_NOTICES {
            let text = format!(
                "{MAX_NOTICES} application events are queued, which is the maximum; wait until some are handled"
            );
            return Err(Error::new(ErrorKind::Backlog, text).with_member("queued", MAX_NOTICES));
        }
        self.notices += 1;
        if matches!(self.phase, AgentPhase::Idle) {
            self.notice(AfterEventCallback::Rest, cx);
        }
        Ok(())
    }

    /// Called when a run has ended, or when `handle_event` has ended without starting a run. Calls `handle_event` for
    /// the next queued application event, if there is one.
    pub(super) fn settle(&mut self, cx: &mut CoreInputContext<'_>) {
        if self.notices > 0 {
            self.notice(AfterEventCallback::Rest, cx);
        }
    }

    /// Calls `handle_event` for the oldest queued application event.
    pub(super) fn notice(&mut self, then: AfterEventCallback, cx: &mut CoreInputContext<'_>) {
        let op = self.next_op();
        self.phase = AgentPhase::Noticing { op, begun: false, then };
        cx.push(AgentEffect::Call(op, CallbackCall::HandleEvent));
    }

    /// Called when `handle_event` is about to be polled for the first time. From now on, if the call is dropped, its
    /// event is dropped too.
    pub(in crate::agent) fn event_begun(&mut self, op: OpNumber) {
        if let Some(begun) = self.phase.event_begun(op)
            && !*begun
        {
            *begun = true;
            self.notices -= 1;
        }
    }

    /// Called when `handle_event` has returned, possibly with a prompt.
    pub(in crate::agent) fn event_handled(
        &mut self,
        op: OpNumber,
        prompt: Option<Prompt>,
        cx: &mut CoreInputContext<'_>,
    ) {
        if !self.phase.event_begun(op).is_some_and(|begun| *begun) {
            return;
        }
        // A known prompt is dropped, also while no prompt can be accepted.
        if let Some(prompt) = prompt.filter(|prompt| self.prompt_state(prompt.id.as_ref()).is_none()) {
            if let Some(reason) = (cx.hold)() {
                return self.hand_back(prompt, reason, cx);
            }
            if let Err(error) = self.prompt_from_event(prompt, cx) {
                return self.call_failed(op, CallbackCall::HandleEvent.name(), error.to_string(), cx);
            }
        }
        match std::mem::take(&mut self.phase) {
            AgentPhase::Noticing { then: AfterEventCallback::Rest, .. } => self.settle(cx),
            AgentPhase::Noticing { then: AfterEventCallback::Continue(between), .. } => {
                self.continue_run(between, cx);
            }
            AgentPhase::InTurn { turn, .. } => self.prepare(turn, cx),
            AgentPhase::Idle => {
                unreachable!("the phase waits for handle_event, and a prompt does not change that")
            }
        }
    }

    /// Returns a prompt of `handle_event` with an error event, because the prompt cannot be accepted now.
    fn hand_back(&mut self, mut prompt: Prompt, reason: String, cx: &mut CoreInputContext<'_>) {
        give_id(&mut prompt, cx);
        self.staged.push(Arc::new(prompt));
        self.end_in_error(Failure::OnHold { reason }, cx);
    }
}
