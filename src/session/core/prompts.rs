//! The known prompts of the conversation: those with an id. Their outcomes are stored with the end of their run, so that
//! they can be asked for after a restart.

use std::sync::Arc;

use super::{Effects, SessionCore, SessionEffect, saving::UnsavedRunRecords};
use crate::{
    agent::Event,
    run::{KnownPrompt, Prompt, PromptId, PromptState, RunEnd, RunOutcome, TurnRecord},
    store::erase_content,
    tree::{Erased, NodeId},
};

/// The known prompts of the conversation.
#[derive(Debug, Default)]
pub(super) struct PromptStateTracker {
    /// The prompts in their current states, with the latest prompt at the end.
    list: Vec<KnownPrompt>,
    /// The prompts that end with the next event, which ends a turn, or which starts one with another prompt.
    ending: Vec<PromptId>,
    /// The staged prompts that the next event returns, which ends a run.
    returned: Vec<Arc<Prompt>>,
    /// The number of changes that must be stored before all outcomes in the list are.
    wanted: u64,
    /// Whether the outcomes are stored, even if the turn in flight is not recorded.
    are_stored: bool,
}

impl SessionCore {
    /// Sets the prompts that are known from earlier lives. `are_stored` states whether the outcomes of all later prompts
    /// are stored.
    pub(in crate::session) fn set_prompts(&mut self, list: Vec<KnownPrompt>, are_stored: bool) {
        self.prompts = PromptStateTracker { list, are_stored, ..PromptStateTracker::default() };
    }

    /// Returns the prompt with this id.
    pub(in crate::session) fn known_prompt(&self, id: &PromptId) -> Option<&KnownPrompt> {
        self.prompts.list.iter().find(|known| known.id == *id)
    }

    /// Returns the known prompts, with the latest prompt at the end.
    pub(in crate::session) fn known_prompts(&self) -> &[KnownPrompt] {
        &self.prompts.list
    }

    /// Notes the new state of a prompt. `prompt` is the prompt if it is staged, or returned by its run.
    pub(super) fn prompt_changed(
        &mut self,
        id: &PromptId,
        state: &PromptState,
        prompt: Option<&Arc<Prompt>>,
        effects: &mut Effects,
    ) {
        let prompts = &mut self.prompts;
        KnownPrompt::enter(&mut prompts.list, id, state.clone());
        match (state, prompt) {
            (PromptState::Ended { .. }, _) => prompts.ending.push(id.clone()),
            (PromptState::Returned, Some(prompt)) => prompts.returned.push(prompt.as_serialised()),
            (PromptState::Returned, None) => effects.push(SessionEffect::PromptsSettled),
            _ => {}
        }
    }

    /// Notes the last node of a turn that has ended for the prompts in flight and those that end with the turn.
    /// `through` is `None` if the turn was discarded.
    pub(super) fn settle_prompts(&mut self, through: Option<NodeId>, effects: &mut Effects) {
        effects.push(SessionEffect::PromptsSettled);
        let ending = std::mem::take(&mut self.prompts.ending);
        if through.is_some() {
            let is_of_turn = |prompt: &&mut KnownPrompt| {
                matches!(prompt.state, PromptState::InFlight { .. }) || ending.contains(&prompt.id)
            };
            self.prompts.list.iter_mut().filter(is_of_turn).for_each(|prompt| prompt.through = through);
        }
    }

    /// Notes that another prompt has started a turn, after the event and the record of this start. The prompts that have
    /// ended since the end of the last turn keep the last node of that turn. `is_recorded` states whether a record
    /// contains their outcomes. Otherwise, the stored end of the last turn does.
    pub(super) fn settle_late(&mut self, is_recorded: bool, effects: &mut Effects) {
        if std::mem::take(&mut self.prompts.ending).is_empty() {
            return;
        }
        if is_recorded {
            self.outcomes_recorded();
        }
        effects.push(SessionEffect::PromptsSettled);
    }

    /// Returns the end of a run as it is stored after this event, which ends a turn. Returns `None` if nothing but the
    /// nodes has to be stored. `continues` states whether a record of the run's next turn is stored with the event.
    pub(super) fn stored_end(
        &mut self,
        event: &Event,
        through: Option<NodeId>,
        continues: bool,
    ) -> Option<RunEnd> {
        let are_stored = self.prompts.are_stored || self.is_recorded();
        let prompts = if are_stored { &self.prompts.list[..] } else { &[] };
        let mut end = match event {
            // If the process dies before the next turn is committed, the run has ended with this turn.
            Event::Turn { response, continues: true } if !continues && !prompts.is_empty() => {
                let stop_reason = response.stop_reason.clone();
                let end = RunEnd::new(RunOutcome::Stopped { stop_reason });
                RunEnd { turn: response.turn, ..end }
            }
            event => RunEnd::of(event)?.with_staged(std::mem::take(&mut self.prompts.returned)),
        };
        if prompts.is_empty() {
            return Some(end).filter(|end| !end.is_complete() || !event.adds_nodes());
        }
        (end.prompts, end.through) = (prompts.to_vec(), through);
        Some(end)
    }

    /// Notes that the outcomes of prompts have joined the changes that are to be stored.
    pub(super) fn outcomes_recorded(&mut self) {
        self.prompts.wanted = self.wanted();
    }

    /// Returns the number of changes that must be stored before all known outcomes of prompts are.
    pub(in crate::session) fn outcomes_wanted(&self) -> u64 {
        self.prompts.wanted
    }

    /// Stores the end of a run, with the outcomes of prompts.
    pub(super) fn store_end(&mut self, end: RunEnd) {
        self.record(UnsavedRunRecords::of_end(end));
        self.outcomes_recorded();
    }

    /// Adds to the record of a turn what the agent does not know about the prompts.
    pub(super) fn complete_prompts(&self, record: &mut TurnRecord) {
        for prompt in &mut record.prompts {
            let known = self.prompts.list.iter().find(|known| is_earlier(known, prompt));
            prompt.through = known.and_then(|known| known.through);
        }
    }

    /// Removes erased nodes, and the texts of failures, from the known prompts.
    pub(super) fn forget_nodes(&mut self, erased: &Erased) {
        for prompt in &mut self.prompts.list {
            erase_content(prompt, erased);
        }
    }
}

/// Returns whether `earlier` is the same prompt as `prompt`, in an earlier state or the same state. A prompt that is over
/// does not run again, so a prompt with its id that is not over is another one.
fn is_earlier(earlier: &KnownPrompt, prompt: &KnownPrompt) -> bool {
    earlier.id == prompt.id && (prompt.is_over() || !earlier.is_over())
}
