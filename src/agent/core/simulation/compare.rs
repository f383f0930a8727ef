//! Compares snapshots with events, and the core with its recorded form.

use std::sync::Arc;

use super::{Check, ensure, model, world::World};
use crate::{
    agent::{
        Config, Event, Snapshot, TurnRecord,
        core::AgentCore,
        phase::{AfterEventCallback, AgentPhase, AgentTurnStage, HistoryWithPendingMessages},
    },
    message::History,
    provider::Model,
    subscription::EventId,
};

/// An earlier snapshot to which the later events are applied.
pub(super) struct Kept(Snapshot);

pub(super) fn snapshot(core: &AgentCore, config: &Config) -> Snapshot {
    let none = EventId { life: 0, number: 0 };
    core.snapshot(none, config.view(core.history().clone()))
}

impl Kept {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self(snapshot)
    }

    /// Applies a callback's edit of the configuration. This edit emits no event.
    pub(super) fn configured(&mut self, config: &Config) {
        self.0.state.settings.max_steps = config.settings.max_steps;
        config.model.name().clone_into(&mut self.0.state.model);
    }

    pub(super) fn apply(&mut self, event: &Event) {
        self.0.take_in(event);
    }

    /// Compares this snapshot with the reference model after an event. The core itself can't be compared: while the
    /// core processes an input, its state is ahead of the events that it has emitted.
    pub(super) fn compare_after_event(&self, model: &model::Model) -> Check {
        let kept = &self.0;
        let turn = model.turn.as_ref();
        ensure!(kept.status == model.status, "status: {:?}, not {:?}", kept.status, model.status);
        ensure!(kept.step == model.step, "step: {}, not {}", kept.step, model.step);
        ensure!(kept.answer == model.ids.answer, "answer: {:?}, not {:?}", kept.answer, model.ids.answer);
        let pending = turn.map(|turn| turn.pending.as_slice()).unwrap_or_default();
        ensure!(kept.pending == pending, "pending: {:?}, not {pending:?}", kept.pending);
        let pauses: Vec<_> = kept.pauses.iter().map(|pause| &pause.tool_use.id).collect();
        let waiting = &model.pauses.waiting;
        ensure!(waiting.iter().eq(pauses.iter().copied()), "pauses: {pauses:?}, not {waiting:?}");
        Ok(())
    }

    /// Compares this snapshot with a fresh one.
    pub(super) fn compare(&self, fresh: &Snapshot) -> Check {
        let kept = &self.0;
        ensure!(kept.budget == fresh.budget, "budget: {:?}, not {:?}", kept.budget, fresh.budget);
        ensure!(kept.status == fresh.status, "status: {:?}, not {:?}", kept.status, fresh.status);
        ensure!(kept.pending == fresh.pending, "pending: {:?}, not {:?}", kept.pending, fresh.pending);
        ensure!(kept.answer == fresh.answer, "answer: {:?}, not {:?}", kept.answer, fresh.answer);
        ensure!(
            kept.compacting == fresh.compacting,
            "compacting: {:?}, not {:?}",
            kept.compacting,
            fresh.compacting
        );
        ensure!(kept.pauses == fresh.pauses, "pauses: {:?}, not {:?}", kept.pauses, fresh.pauses);
        ensure!(
            kept.decisions == fresh.decisions,
            "decisions: {:?}, not {:?}",
            kept.decisions,
            fresh.decisions
        );
        ensure!(kept.tools == fresh.tools, "tools: {:?}, not {:?}", kept.tools, fresh.tools);
        ensure!(kept.turn == fresh.turn, "turn: {:?}, not {:?}", kept.turn, fresh.turn);
        ensure!(kept.run == fresh.run, "run: {}, not {}", kept.run, fresh.run);
        let (first, fresh_first) = (kept.first_turn, fresh.first_turn);
        ensure!(first == fresh_first, "first turn: {first:?}, not {fresh_first:?}");
        ensure!(kept.state == fresh.state, "the state differs");
        ensure!(kept.step == fresh.step, "step: {}, not {}", kept.step, fresh.step);
        ensure!(kept.partial == fresh.partial, "partial: {:?}, not {:?}", kept.partial, fresh.partial);
        ensure!(kept.prompts == fresh.prompts, "prompts: {:?}, not {:?}", kept.prompts, fresh.prompts);
        ensure!(kept.staged == fresh.staged, "staged: {:?}, not {:?}", kept.staged, fresh.staged);
        ensure!(kept.last_run == fresh.last_run, "last run: {:?}, not {:?}", kept.last_run, fresh.last_run);
        Ok(())
    }
}

fn read_again(history: &History) -> Check<History> {
    serde_json::from_str(&serde_json::to_string(history).expect("it is data")).map_err(|e| e.to_string())
}

impl World {
    /// Records the turn in flight, and continues with the core that is read from the record.
    pub(super) fn write_down_and_take_up(&mut self) -> Check {
        let mut recorded = self.core.clone();
        match &mut recorded.phase {
            AgentPhase::InTurn { turn, .. } => {
                turn.recorded = true;
                let mut working = HistoryWithPendingMessages::new(&recorded.history);
                turn.working.pending().cloned().for_each(|message| working.push(message));
                turn.working = working;
            }
            AgentPhase::Noticing { then: AfterEventCallback::Continue(between), .. } => {
                between.recorded = true;
            }
            AgentPhase::Idle | AgentPhase::Noticing { .. } => return Ok(()),
        }
        self.note(|| "recorded and read".to_owned());
        let record = recorded.record().ok_or("a recorded turn has no record")?;
        let json = serde_json::to_string(&record).map_err(|error| error.to_string())?;
        let record: TurnRecord = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        let history = read_again(self.core.history())?;
        let fallback = self.core.fallback.as_ref().map(read_again).transpose()?;
        let (mut read, model) =
            AgentCore::restore(record, history, fallback).map_err(|error| format!("{error:?}"))?;
        let own = self.core.phase.origin_mut().and_then(|(origin, _)| origin.prompt.model.clone());
        ensure!(model.as_deref() == own.as_ref().map(Model::saved_name), "{model:?} is not {own:?}");
        if let Some(own) = own {
            read.set_prompt_model(own);
        }
        read.keep_lost(&self.core)?;
        for (prompt, own) in read.staged.iter_mut().zip(self.core.staged.iter()) {
            Arc::make_mut(prompt).model = own.model.clone();
        }
        // Whether tools may be withdrawn is not recorded, because a later process can't withdraw them.
        read.decided = self.core.decided;
        ensure!(read == self.core, "{:?} was recorded, but {read:?} was read", self.core);
        let working = |core: &AgentCore| core.phase().turn().map(|turn| turn.working.all().clone());
        ensure!(working(&read) == working(&self.core), "the working history differs");
        self.core = read;
        Ok(())
    }
}

impl AgentCore {
    /// Copies the parts of the state that a record does not contain from `lost`, the core before the restart.
    fn keep_lost(&mut self, lost: &Self) -> Check {
        (self.notices, self.emitted_status, self.step) = (lost.notices, lost.emitted_status, lost.step);
        self.lives = lost.lives;
        self.counted_by.clone_from(&lost.counted_by);
        self.last_run.clone_from(&lost.last_run);
        let count = lost.phase.turn().map_or(0, |turn| turn.waits);
        ensure!(self.waited.last(count) == lost.waited.last(count), "{:?} waited", self.waited);
        self.waited.clone_from(&lost.waited);
        match (&mut self.phase, &lost.phase) {
            (
                AgentPhase::Noticing { op, begun, then: AfterEventCallback::Continue(between) },
                AgentPhase::Noticing { op: own, begun: has_begun, then: AfterEventCallback::Continue(lost) },
            ) => {
                (*op, *begun, between.recorded) = (*own, *has_begun, lost.recorded);
                between.origin.asked.clone_from(&lost.origin.asked);
                between.origin.secrets_of.clone_from(&lost.origin.secrets_of);
                between.origin.first_turn = lost.origin.first_turn;
            }
            (
                AgentPhase::InTurn { op, turn, stage },
                AgentPhase::InTurn { op: own, turn: lost, stage: lost_stage },
            ) => {
                *op = *own;
                // A record has the failure that `handle_error` gets, but not the start of the response, and no failure
                // before a delay. So `refused` can differ after a restart.
                (turn.recorded, turn.refused) = (lost.recorded, lost.refused);
                turn.compacted = lost.compacted;
                turn.counted_by.clone_from(&lost.counted_by);
                turn.compaction.clone_from(&lost.compaction);
                turn.origin.asked.clone_from(&lost.origin.asked);
                turn.origin.secrets_of.clone_from(&lost.origin.secrets_of);
                (turn.origin.first_turn, turn.refused_by) = (lost.origin.first_turn, lost.refused_by);
                let AgentTurnStage::Recovering(recovering) =
                    std::mem::replace(stage, AgentTurnStage::Preparing)
                else {
                    return Err("the turn is not recovering".to_owned());
                };
                *stage = recovering.stage;
                stage.keep_lost(lost_stage);
            }
            (read, lost) => return Err(format!("{read:?} was read instead of {lost:?}")),
        }
        Ok(())
    }
}

impl AgentTurnStage {
    fn keep_lost(&mut self, lost: &Self) {
        match (self, lost) {
            (
                stage @ AgentTurnStage::Preparing,
                lost @ (AgentTurnStage::Noticing { .. } | AgentTurnStage::Compacting { .. }),
            )
            | (stage @ AgentTurnStage::Streaming { .. }, lost @ AgentTurnStage::Streaming { .. }) => {
                *stage = lost.clone();
            }
            (stage, AgentTurnStage::Paused { .. }) => {
                if let AgentTurnStage::Deciding { tools } = stage {
                    *stage = AgentTurnStage::Paused { tools: tools.clone() };
                }
            }
            (
                AgentTurnStage::Executing { questions, .. },
                AgentTurnStage::Executing { questions: asked, .. },
            ) => {
                questions.clone_from(asked);
            }
            (AgentTurnStage::Failing { remains, .. }, AgentTurnStage::Failing { remains: lost, .. }) => {
                remains.partial.clone_from(&lost.partial);
            }
            _ => {}
        }
    }
}
