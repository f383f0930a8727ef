//! The prompts that the agent knows by their ids. They ensure that a prompt that is sent twice runs once.

use std::sync::Arc;

use super::{AgentCore, CoreInputContext};
use crate::agent::{Event, KnownPrompt, Prompt, PromptId, PromptState, RunOutcome};

/// Restores the prompts from a record, or from the end of the last run.
pub(super) fn restored(prompts: &[KnownPrompt]) -> Vec<KnownPrompt> {
    let mut known = Vec::new();
    for KnownPrompt { id, state, .. } in prompts {
        KnownPrompt::enter(&mut known, id, state.clone());
    }
    known
}

impl AgentCore {
    /// Returns the state of the prompt with this id, unless the prompt was returned unused.
    pub(super) fn prompt_state(&self, id: Option<&PromptId>) -> Option<&PromptState> {
        let known = self.known.iter().find(|known| Some(&known.id) == id)?;
        Some(&known.state).filter(|state| **state != PromptState::Returned)
    }

    /// Changes the state of a prompt, and emits it. `prompt` is the prompt if it is staged, or returned by the run.
    pub(super) fn set_prompt(
        &mut self,
        id: &PromptId,
        state: PromptState,
        prompt: Option<Arc<Prompt>>,
        cx: &mut CoreInputContext<'_>,
    ) {
        KnownPrompt::enter(&mut self.known, id, state.clone());
        cx.emit(Event::Prompt { id: id.clone(), state, prompt });
    }

    /// Ends the prompts in flight, except those that are staged again.
    pub(super) fn end_prompts(&mut self, outcome: &RunOutcome, cx: &mut CoreInputContext<'_>) {
        let is_staged = |id: &PromptId| self.staged.iter().any(|prompt| prompt.id.as_ref() == Some(id));
        let in_flight = self.known.iter().filter(|known| matches!(known.state, PromptState::InFlight { .. }));
        let ended: Vec<_> = in_flight.map(|known| known.id.clone()).filter(|id| !is_staged(id)).collect();
        for id in ended {
            self.set_prompt(&id, PromptState::Ended { outcome: outcome.clone() }, None, cx);
        }
    }

    /// Returns all staged prompts, because the run ends without using them.
    pub(super) fn return_staged(&mut self, cx: &mut CoreInputContext<'_>) -> Vec<Arc<Prompt>> {
        let staged = std::mem::take(&mut self.staged);
        for prompt in &staged {
            if let Some(id) = &prompt.id {
                self.set_prompt(id, PromptState::Returned, Some(Arc::clone(prompt)), cx);
            }
        }
        staged
    }

    /// Replaces the texts that may quote messages, because these messages are erased.
    pub(super) fn erase_texts(&mut self) {
        self.known.iter_mut().for_each(KnownPrompt::erase_texts);
    }
}
