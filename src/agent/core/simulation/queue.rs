//! Checks the staged prompts, and the ids of prompts.

use std::sync::Arc;

use super::{Check, ensure};
use crate::agent::{Next, Prompt, PromptId, PromptState, RunOutcome, UnstageReason, core::Core};

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
    /// The ids of prompts that the application has given, with their states.
    pub(super) known: Vec<(PromptId, PromptState)>,
    /// Whether the current input has added the message with the results of a step's tools, and a request follows.
    pub(super) has_results: bool,
}

impl Queue {
    pub(super) fn stage(&mut self, id: &PromptId, prompt: &Arc<Prompt>) -> Check {
        let mut given = self.staging.take().ok_or("a prompt is staged without a command")?;
        ensure!(given.id.as_ref().is_none_or(|given| given == id), "{given:?} is staged as {id}");
        if given.id.replace(id.clone()).is_some() {
            self.known.push((id.clone(), PromptState::Staged));
        }
        ensure!(given == **prompt, "{prompt:?} is staged, not {given:?}");
        self.staged.push(Arc::clone(prompt));
        Ok(())
    }

    /// Checks that a staged prompt may leave the queue for `reason`. `joins` states whether a turn is in flight. If so,
    /// a prompt that is taken from the queue joins this turn.
    pub(super) fn unstage(&mut self, id: &PromptId, reason: UnstageReason, joins: bool) -> Check {
        if reason == UnstageReason::Withdrawn {
            ensure!(self.withdrawing.take().as_ref() == Some(id), "{id} is withdrawn");
            self.known.retain(|(known, _)| known != id);
            self.staged.retain(|prompt| prompt.id.as_ref() != Some(id));
            return Ok(());
        }
        let index = self.staged.iter().position(|prompt| !joins || prompt.next == Next::Step);
        let prompt = self.staged.remove(index.ok_or("a prompt is taken, but none is staged")?);
        ensure!(prompt.id.as_ref() == Some(id), "{id} is taken before {prompt:?}");
        if let Some((_, state)) = self.known.iter_mut().find(|(known, _)| known == id) {
            *state = PromptState::InFlight;
        }
        self.taken = Some(prompt);
        Ok(())
    }

    /// Records the outcome of a run for the known prompts that were in flight.
    pub(super) fn end_prompts(&mut self, outcome: &RunOutcome) {
        for (_, state) in &mut self.known {
            if *state == PromptState::InFlight {
                *state = PromptState::Ended { outcome: outcome.clone() };
            }
        }
    }

    /// Checks that the run's end returns all prompts that were not used.
    pub(super) fn returned(&mut self, returned: &[Arc<Prompt>]) -> Check {
        let lost = std::mem::take(&mut self.staged);
        ensure!(returned == lost, "{lost:?} were staged, not {returned:?}");
        self.known.retain(|(id, _)| !lost.iter().any(|prompt| prompt.id.as_ref() == Some(id)));
        Ok(())
    }

    pub(super) fn check_rest(&mut self, core: &Core) -> Check {
        self.has_results = false;
        ensure!(self.staged == *core.staged, "staged is {:?}, not {:?}", core.staged, self.staged);
        ensure!(self.staging.is_none(), "the prompt {:?} was not staged", self.staging);
        ensure!(self.withdrawing.is_none(), "the prompt {:?} was not withdrawn", self.withdrawing);
        ensure!(self.taken.is_none(), "the prompt {:?} was taken and not used", self.taken);
        for (id, state) in &self.known {
            let given = core.known.state(Some(id));
            ensure!(given == Some(state), "prompt {id} is {given:?}, not {state:?}");
        }
        Ok(())
    }
}
