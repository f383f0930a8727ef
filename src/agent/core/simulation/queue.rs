//! Checks the staged prompts, and the ids of prompts.

use std::sync::Arc;

use super::{Check, ensure};
use crate::agent::{KnownPrompt, Next, Prompt, PromptId, PromptState, RunOutcome, core::AgentCore};

/// The prompts that wait, and the prompts with known ids.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) staged: Vec<Arc<Prompt>>,
    /// An accepted prompt for which a `staged` event must follow at once.
    pub(super) staging: Option<Prompt>,
    /// The id of a prompt for which an `unstaged` event must follow at once, because the prompt is withdrawn.
    pub(super) withdrawing: Option<PromptId>,
    /// A prompt that was taken from the queue, so that a `message` event with its content must follow at once.
    pub(super) taken: Option<Arc<Prompt>>,
    /// The prompts with an id, as the events describe them.
    pub(super) known: Vec<KnownPrompt>,
    /// The outcomes of the prompts that end before the next event of a turn's end, or before the next turn begins.
    ended: Vec<RunOutcome>,
    /// The prompts that the run returns before its last event.
    returned: Vec<Arc<Prompt>>,
    /// Whether the current input has added the message with the results of a step's tools, and a request follows.
    pub(super) has_results: bool,
}

impl Queue {
    /// Checks the new state of a prompt. `prompt` is the prompt in the event.
    pub(super) fn change(
        &mut self,
        id: &PromptId,
        state: &PromptState,
        prompt: Option<&Arc<Prompt>>,
    ) -> Check {
        let before = self.known.iter().find(|known| known.id == *id).map(|known| &known.state);
        match (state, prompt) {
            (PromptState::Staged, Some(prompt)) => {
                let mut given = self.staging.take().ok_or("a prompt is staged without a command")?;
                ensure!(given.id.as_ref().is_none_or(|given| given == id), "{given:?} is staged as {id}");
                given.id = Some(id.clone());
                ensure!(given == **prompt, "{prompt:?} is staged, not {given:?}");
                self.staged.push(Arc::clone(prompt));
            }
            (PromptState::InFlight { .. }, None) => {}
            (PromptState::Ended { outcome }, None) => {
                ensure!(matches!(before, Some(PromptState::InFlight { .. })), "{id} ends as {before:?}");
                self.ended.push(outcome.clone());
            }
            (PromptState::Returned, None) => {
                ensure!(self.withdrawing.take().as_ref() == Some(id), "{id} is withdrawn");
                self.staged.retain(|prompt| prompt.id.as_ref() != Some(id));
            }
            (PromptState::Returned, Some(prompt)) => self.returned.push(Arc::clone(prompt)),
            other => return Err(format!("{id} changes to {other:?}")),
        }
        KnownPrompt::enter(&mut self.known, id, state.clone());
        Ok(())
    }

    /// Checks that a staged prompt may leave the queue. `joins` states whether a turn is in flight. If so, the prompt
    /// joins this turn.
    pub(super) fn take(&mut self, id: &PromptId, joins: bool) -> Check {
        let index = self.staged.iter().position(|prompt| !joins || prompt.next == Next::Step);
        let prompt = self.staged.remove(index.ok_or("a prompt is taken, but none is staged")?);
        ensure!(prompt.id.as_ref() == Some(id), "{id} is taken before {prompt:?}");
        self.taken = Some(prompt);
        Ok(())
    }

    /// Checks the prompts that have ended: with a turn, or before a staged prompt starts the next turn. If `all` is set,
    /// no prompt is in flight any more.
    pub(super) fn check_ended(&mut self, outcome: &RunOutcome, all: bool) -> Check {
        let ended = std::mem::take(&mut self.ended);
        ensure!(ended.iter().all(|own| own == outcome), "{ended:?} before {outcome:?}");
        ensure!(all || ended.is_empty(), "{ended:?} within a run");
        let mut known = self.known.iter();
        let left = known.find(|known| matches!(known.state, PromptState::InFlight { .. }));
        ensure!(!all || left.is_none(), "{left:?} does not end with {outcome:?}");
        Ok(())
    }

    /// Checks that a run has returned all prompts that were not used, before it ends.
    pub(super) fn check_returned(&mut self) -> Check {
        let lost = std::mem::take(&mut self.staged);
        let returned = std::mem::take(&mut self.returned);
        let same = |(lost, returned): (&Arc<Prompt>, &Arc<Prompt>)| {
            // A prompt that `handle_event` has returned gets an id only when the run returns it.
            let id = lost.id.clone().or_else(|| returned.id.clone());
            Prompt { id, ..Prompt::clone(lost) } == **returned
        };
        let is_same = lost.len() == returned.len() && lost.iter().zip(&returned).all(same);
        ensure!(is_same, "{lost:?} were staged, not {returned:?}");
        Ok(())
    }

    pub(super) fn check_rest(&mut self, core: &AgentCore) -> Check {
        self.has_results = false;
        ensure!(self.staged == *core.staged, "staged is {:?}, not {:?}", core.staged, self.staged);
        ensure!(self.staging.is_none(), "the prompt {:?} was not staged", self.staging);
        ensure!(self.withdrawing.is_none(), "the prompt {:?} was not withdrawn", self.withdrawing);
        ensure!(self.taken.is_none(), "the prompt {:?} was taken and not used", self.taken);
        ensure!(self.known == core.known, "the prompts are {:?}, not {:?}", core.known, self.known);
        ensure!(self.ended.is_empty() && self.returned.is_empty(), "a prompt ends without its run");
        Ok(())
    }
}
