//! The known prompts of the conversation: those with an id that the application has chosen. Their outcomes are stored
//! with the end of their run, so that they can be asked for after a restart.

use super::{Core, Effect, Effects, saving::Record};
use crate::{
    agent::{Event, UnstageReason},
    run::{KnownPrompt, PromptId, PromptState, RunEnd, RunOutcome, TurnRecord},
    store::erase_content,
    tree::{Erased, NodeId},
};

/// The known prompts of the conversation.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    /// The prompts as they were when the last turn ended, with the latest prompt at the end.
    list: Vec<KnownPrompt>,
    /// The prompts that the agent has delivered with the next event, which ends a turn.
    delivered: Vec<KnownPrompt>,
    /// The number of changes that must be stored before all outcomes in the list are.
    wanted: u64,
    /// Whether the outcomes are stored, even if the turn in flight is not recorded.
    are_stored: bool,
}

impl Core {
    /// Sets the prompts that are known from earlier lives. `are_stored` states whether the outcomes of all later prompts
    /// are stored.
    pub(in crate::session) fn set_prompts(&mut self, list: Vec<KnownPrompt>, are_stored: bool) {
        self.prompts = Prompts { list, are_stored, ..Prompts::default() };
    }

    /// Notes the states of the known prompts at the next event, which ends a turn.
    pub(in crate::session) fn prompts_delivered(&mut self, prompts: Vec<KnownPrompt>) {
        self.prompts.delivered = prompts;
    }

    /// Returns the prompt with this id as it was when the last turn ended.
    pub(in crate::session) fn known_prompt(&self, id: &PromptId) -> Option<&KnownPrompt> {
        self.prompts.list.iter().find(|known| known.id == *id)
    }

    /// Updates the known prompts after an event that ends a turn. `through` is the last node of the turn, if the turn
    /// was committed.
    pub(super) fn settle_prompts(&mut self, through: Option<NodeId>, effects: &mut Effects) {
        effects.push(Effect::PromptsSettled);
        let prompts = &mut self.prompts;
        let before = std::mem::replace(&mut prompts.list, std::mem::take(&mut prompts.delivered));
        for prompt in &mut prompts.list {
            let earlier = before.iter().find(|earlier| is_earlier(earlier, prompt));
            if let Some(ended) = earlier.filter(|earlier| has_ended(earlier)) {
                prompt.clone_from(ended);
                continue;
            }
            let of_turn = through.filter(|_| prompt.state != PromptState::Staged);
            prompt.through = of_turn.or(earlier.and_then(|earlier| earlier.through));
        }
    }

    /// Notes that a prompt with this id was staged. An earlier prompt with this id, which the agent has forgotten, is
    /// forgotten here too.
    pub(super) fn prompt_staged(&mut self, id: &PromptId) {
        self.prompts.list.retain(|known| known.id != *id);
    }

    /// Reports that a staged prompt was withdrawn, if this event states it.
    pub(super) fn prompt_unstaged(event: &Event, effects: &mut Effects) {
        if let Event::Unstaged { id, reason: UnstageReason::Withdrawn } = event {
            effects.push(Effect::PromptWithdrawn(id.clone()));
        }
    }

    /// Returns the end of a run as it is stored after this event, which ends a turn. Returns `None` if nothing but the
    /// nodes has to be stored. `continues` states whether a record of the run's next turn is stored with the event.
    pub(super) fn stored_end(
        &self,
        event: &Event,
        through: Option<NodeId>,
        continues: bool,
    ) -> Option<RunEnd> {
        let are_stored = self.prompts.are_stored || self.is_recorded();
        let prompts = if are_stored { &self.prompts.list[..] } else { &[] };
        let mut end = match event {
            // If the process dies before the next turn is committed, the run has ended with this turn.
            Event::Turn { response, continues: true, .. } if !continues && !prompts.is_empty() => {
                let stop_reason = response.stop_reason.clone();
                let end = RunEnd::new(RunOutcome::Stopped { stop_reason });
                RunEnd { turn: response.turn, ..end }
            }
            event => RunEnd::of(event)?,
        };
        if prompts.is_empty() {
            return Some(end).filter(|end| !end.is_complete());
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
        self.record(Record::of_end(end));
        self.outcomes_recorded();
    }

    /// Adds to the record of a turn what the agent does not know about the prompts.
    pub(super) fn complete_prompts(&self, record: &mut TurnRecord) {
        for prompt in &mut record.prompts {
            match self.prompts.list.iter().find(|known| is_earlier(known, prompt)) {
                Some(known) if has_ended(known) => prompt.clone_from(known),
                Some(known) => prompt.through = known.through,
                None => {}
            }
        }
    }

    /// Removes erased nodes, and the texts of failures, from the known prompts.
    pub(super) fn forget_nodes(&mut self, erased: &Erased) {
        for prompt in &mut self.prompts.list {
            erase_content(prompt, erased);
        }
    }
}

/// Returns whether `earlier` is the same prompt as `prompt`, in an earlier state or the same state. A prompt that has
/// ended does not run again, so a prompt with its id that has not ended is another one.
fn is_earlier(earlier: &KnownPrompt, prompt: &KnownPrompt) -> bool {
    earlier.id == prompt.id && (has_ended(prompt) || !has_ended(earlier))
}

fn has_ended(prompt: &KnownPrompt) -> bool {
    matches!(prompt.state, PromptState::Ended { .. })
}
