//! The ids of the most recent prompts. They ensure that a prompt that is sent twice runs once.

use std::collections::HashSet;

use super::{Context, Core, Effect};
use crate::agent::{KnownPrompt, PromptId, PromptState, RunOutcome};

/// The maximum number of prompts whose ids are remembered. If more prompts have not ended, all of these are remembered.
const MAX_KNOWN: usize = 32;

/// The most recent prompts that have an id from the application, with the latest prompt at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KnownPrompts(Vec<(PromptId, PromptState)>);

impl KnownPrompts {
    /// Returns the state of the prompt with this id.
    pub(super) fn state(&self, id: Option<&PromptId>) -> Option<&PromptState> {
        let id = id?;
        self.0.iter().find(|(other, _)| other == id).map(|(_, state)| state)
    }

    /// Returns the prompts in the form in which a record contains them.
    pub(super) fn record(&self) -> Vec<KnownPrompt> {
        self.0.iter().map(|(id, state)| KnownPrompt::new(id.clone(), state.clone())).collect()
    }

    /// Restores the prompts from a record.
    pub(super) fn restored(prompts: &[KnownPrompt]) -> Self {
        let mut seen = HashSet::new();
        let latest = prompts.iter().rev().filter(|prompt| seen.insert(&prompt.id));
        let mut known: Vec<_> = latest.map(|prompt| (prompt.id.clone(), prompt.state.clone())).collect();
        known.reverse();
        Self(known)
    }

    /// Records a prompt that was accepted. If too many are known, forgets the oldest prompts that have ended.
    pub(super) fn add(&mut self, id: &PromptId, state: PromptState) {
        let known = &mut self.0;
        known.retain(|(other, _)| other != id);
        let mut excess = (known.len() + 1).saturating_sub(MAX_KNOWN);
        known.retain(|(_, state)| {
            let is_forgotten = excess > 0 && matches!(state, PromptState::Ended { .. });
            excess -= usize::from(is_forgotten);
            !is_forgotten
        });
        known.push((id.clone(), state));
    }

    /// Records that a staged prompt has started a turn or has joined one.
    pub(super) fn taken(&mut self, id: &PromptId) {
        for (other, state) in &mut self.0 {
            if other == id {
                *state = PromptState::InFlight;
            }
        }
    }

    /// Replaces the texts that may quote messages, because these messages are erased.
    pub(super) fn erase_texts(&mut self) {
        for (_, state) in &mut self.0 {
            if let PromptState::Ended { outcome } = state {
                outcome.erase_texts();
            }
        }
    }

    /// Forgets a prompt that was never used.
    pub(super) fn forget(&mut self, id: Option<&PromptId>) {
        if let Some(index) = self.0.iter().position(|(other, _)| Some(other) == id) {
            self.0.remove(index);
        }
    }

    /// Records how the prompts in flight have ended.
    pub(super) fn ended(&mut self, outcome: &RunOutcome) {
        for (_, state) in &mut self.0 {
            if *state == PromptState::InFlight {
                *state = PromptState::Ended { outcome: outcome.clone() };
            }
        }
    }
}

impl Core {
    /// Returns the state of the prompt with this id, if the prompt is known.
    pub(in crate::agent) fn prompt_state(&self, id: &PromptId) -> Option<&PromptState> {
        self.known.state(Some(id))
    }

    /// Delivers the known prompts with the next event, which ends a turn.
    pub(super) fn deliver_known(&self, cx: &mut Context<'_>) {
        if !self.known.0.is_empty() {
            cx.push(Effect::Prompts(self.known.record()));
        }
    }
}
