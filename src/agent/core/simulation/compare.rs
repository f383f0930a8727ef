//! Compares snapshots with events, and the core with its serialised form.

use std::sync::Arc;

use super::{Check, ensure, model::Model, world::World};
use crate::{
    agent::{Config, Event, Snapshot, core::Core},
    message::History,
    subscription::EventId,
};

/// An earlier snapshot to which the later events are applied.
pub(super) struct Kept(Snapshot);

fn snapshot(core: &Core, config: &Config) -> Snapshot {
    let none = EventId { incarnation: 0, number: 0 };
    core.snapshot(none, config.view(core.history().clone()))
}

impl Kept {
    pub(super) fn new(core: &Core, config: &Config) -> Self {
        Self(snapshot(core, config))
    }

    /// Applies a callback's edit of the configuration. This edit emits no event.
    pub(super) fn configured(&mut self, config: &Config) {
        self.0.state.max_steps = config.max_steps;
        config.model.name().clone_into(&mut self.0.state.model);
    }

    pub(super) fn apply(&mut self, event: &Event) {
        self.0.take_in(event);
    }

    /// Compares this snapshot with the reference model after an event. The core itself can't be compared: while the
    /// core processes an input, its state is ahead of the events that it has emitted.
    pub(super) fn compare_after_event(&self, model: &Model) -> Check {
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
    pub(super) fn compare(&self, core: &Core, config: &Config) -> Check {
        let (kept, fresh) = (&self.0, snapshot(core, config));
        ensure!(kept.status == fresh.status, "status: {:?}, not {:?}", kept.status, fresh.status);
        ensure!(kept.pending == fresh.pending, "pending: {:?}, not {:?}", kept.pending, fresh.pending);
        ensure!(kept.answer == fresh.answer, "answer: {:?}, not {:?}", kept.answer, fresh.answer);
        ensure!(kept.pauses == fresh.pauses, "pauses: {:?}, not {:?}", kept.pauses, fresh.pauses);
        ensure!(kept.tools == fresh.tools, "tools: {:?}, not {:?}", kept.tools, fresh.tools);
        ensure!(kept.turn == fresh.turn, "turn: {:?}, not {:?}", kept.turn, fresh.turn);
        ensure!(kept.run == fresh.run, "run: {}, not {}", kept.run, fresh.run);
        ensure!(kept.state == fresh.state, "the state differs");
        ensure!(kept.step == fresh.step, "step: {}, not {}", kept.step, fresh.step);
        ensure!(kept.partial == fresh.partial, "partial: {:?}, not {:?}", kept.partial, fresh.partial);
        ensure!(kept.staged == fresh.staged, "staged: {:?}, not {:?}", kept.staged, fresh.staged);
        ensure!(kept.last_run == fresh.last_run, "last run: {:?}, not {:?}", kept.last_run, fresh.last_run);
        Ok(())
    }
}

fn read_again(history: &History) -> Check<History> {
    serde_json::from_str(&serde_json::to_string(history).expect("it is data")).map_err(|e| e.to_string())
}

impl World {
    /// Removes the language models of prompts, because they are never serialised.
    fn forget_models(&mut self) {
        self.core.set_model();
        self.model.named_for_run = None;
        let (core, model, kept) = (&mut self.core, &mut self.model, &mut self.kept.0);
        for prompt in core.staged.iter_mut().chain(&mut model.queue.staged).chain(&mut kept.staged) {
            Arc::make_mut(prompt).model = None;
        }
    }

    /// Serialises the core, and continues with the deserialised core.
    pub(super) fn write_down_and_take_up(&mut self) -> Check {
        self.note(|| "serialised and deserialised".to_owned());
        self.forget_models();
        let json = serde_json::to_string(&self.core).map_err(|error| error.to_string())?;
        let mut taken_up: Core = if self.rng.percent(50) {
            serde_json::from_str(&json).map_err(|error| error.to_string())?
        } else {
            // Deserialise from a JSON value, as a store that keeps JSON values does.
            let value: serde_json::Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
            serde_json::from_value(value).map_err(|error| error.to_string())?
        };
        let history = read_again(self.core.history())?;
        taken_up.phase.rebase(&history);
        taken_up.history = history;
        taken_up.fallback = self.core.fallback.as_deref().map(read_again).transpose()?.map(Box::new);
        ensure!(taken_up == self.core, "{:?} was serialised, but {taken_up:?} was read", self.core);
        let working = |core: &Core| core.phase().turn().map(|turn| turn.working.all().clone());
        ensure!(working(&taken_up) == working(&self.core), "the working history differs");
        if let Some(fold) = taken_up.phase().partial() {
            ensure!(self.core.phase().partial() == Some(fold), "the fold differs");
        }
        self.core = taken_up;
        Ok(())
    }
}
