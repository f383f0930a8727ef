//! Prompts: their acceptance, the queue of staged prompts, and prompts that join the turn in flight.
//!
//! A prompt with tool results can't be staged, because the tool uses that it answers are known only when the agent is
//! idle.

use std::sync::Arc;

use super::{AgentCore, AgentEffect, CoreInputContext, add_message, user_message};
use crate::{
    agent::{Accepted, Next, Prompt, PromptId, PromptState, phase::Turn},
    message::{Message, MessageId, share},
    run::{Error, ErrorKind},
};

impl AgentCore {
    /// Accepts a prompt. If no run is active, the prompt starts a run. Otherwise it is staged.
    pub(in crate::agent) fn prompt(
        &mut self,
        prompt: Prompt,
        ask: bool,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<Accepted, Error> {
        self.accept(prompt, ask, cx.max_staged, cx)
    }

    /// Accepts a prompt that `handle_event` returned. Such a prompt has no sender that could get an error. Therefore,
    /// the queue has room for one such prompt beyond its limit. One is enough, because the next application event is
    /// handled only after the queue is empty.
    pub(super) fn prompt_from_event(
        &mut self,
        prompt: Prompt,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<(), Error> {
        self.accept(prompt, false, cx.max_staged.saturating_add(1), cx).map(|_| ())
    }

    fn accept(
        &mut self,
        mut prompt: Prompt,
        ask: bool,
        limit: usize,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<Accepted, Error> {
        if let Some(state) = self.prompt_state(prompt.id.as_ref()).cloned() {
            return if ask { Err(Error::known_prompt(&state)) } else { Ok(Accepted::Known { state }) };
        }
        prompt.check()?;
        if prompt.content.is_blank() {
            return Err(Error::empty_prompt());
        }
        share(&mut prompt.content.0, self.history.iter().map(|message| &message.content[..]));
        if self.is_at_rest() {
            return self.begin_run(prompt, ask, false, cx).map(|turn| Accepted::Started { turn });
        }
        if ask {
            return Err(Error::busy("agent", self.emitted_status));
        }
        prompt.check_staged()?;
        if self.staged.len() >= limit {
            let staged = self.staged.len();
            let text = format!(
                "{staged} prompts are staged, which is the maximum; wait for the next turn, or unstage one"
            );
            return Err(Error::new(ErrorKind::QueueFull, text).with_member("limit", staged));
        }
        let id = give_id(&mut prompt, cx);
        let ahead = self.staged.len();
        let prompt = Arc::new(prompt);
        self.staged.push(Arc::clone(&prompt));
        self.record_queue(cx);
        self.set_prompt(&id, PromptState::Staged, Some(prompt), cx);
        Ok(Accepted::Staged { id, ahead })
    }

    /// Returns an error if a prompt with this id was accepted before.
    pub(super) fn ensure_new(&self, id: Option<&PromptId>) -> Result<(), Error> {
        match self.prompt_state(id) {
            Some(state) => Err(Error::known_prompt(state)),
            None => Ok(()),
        }
    }

    /// Withdraws a staged prompt.
    pub(in crate::agent) fn unstage(
        &mut self,
        id: &PromptId,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<Arc<Prompt>, Error> {
        let found = self.staged.iter().position(|prompt| prompt.id.as_ref() == Some(id));
        let Some(index) = found else {
            let text = format!("no prompt with the id {id} is staged; it may have been used");
            return Err(Error::new(ErrorKind::NotStaged, text).with_member("prompt", id));
        };
        let prompt = self.staged.remove(index);
        self.record_queue(cx);
        self.set_prompt(id, PromptState::Returned, None, cx);
        Ok(prompt)
    }

    /// Records a change of the staged prompts, if the run is recorded.
    fn record_queue(&self, cx: &mut CoreInputContext<'_>) {
        if self.phase.is_recorded() {
            cx.push(AgentEffect::Record);
        }
    }

    /// Adds the staged prompts for the next step to the turn, after the results of its tools.
    pub(super) fn join_step(&mut self, turn: &mut Turn, cx: &mut CoreInputContext<'_>) {
        turn.joined.clear();
        while let Some(index) = self.staged.iter().position(|prompt| prompt.next == Next::Step) {
            let prompt = self.staged.remove(index);
            if let Some(id) = &prompt.id {
                self.set_prompt(id, PromptState::InFlight { turn: turn.id }, None, cx);
            }
            let id = prompt.id.clone().map_or_else(|| turn.message_id(), MessageId::from);
            let message = user_message(id, prompt.content.0.clone(), cx);
            add_message(turn, Message { app_data: prompt.app_data.clone(), ..message }, cx);
            turn.joined.push(prompt);
        }
    }

    /// Removes the prompts that joined the turn but were not answered, and a compaction behind them. These prompts become
    /// staged prompts again, because a committed history must not end with a prompt.
    pub(super) fn leave_step(&mut self, turn: &mut Turn) {
        if turn.joined.is_empty() || turn.working.pending_len() > turn.step_start {
            return;
        }
        while turn.working.all().last().is_some_and(|last| last.compaction.is_some()) {
            turn.working.rebase(&self.history, turn.working.pending_len() - 1);
        }
        let joined = std::mem::take(&mut turn.joined);
        let keep = turn.working.pending_len().saturating_sub(joined.len());
        turn.working.rebase(&self.history, keep);
        self.staged.splice(0..0, joined);
    }
}

/// Returns the id of a prompt that is about to be staged. If the prompt has none, gives it one.
pub(super) fn give_id(prompt: &mut Prompt, cx: &CoreInputContext<'_>) -> PromptId {
    prompt.id.get_or_insert_with(|| PromptId::new((cx.turn_id)().to_string())).clone()
}
