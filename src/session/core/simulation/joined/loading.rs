//! The start of a life: a new conversation, or a stored one with its turn in flight.

use std::sync::Arc;

use super::{Common, life::Life, writes::Storing};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        Durable, OnUncertain, RecordedStage, Recover,
        process::{Condition, Process, random_level},
    },
    message::{History, Timestamp},
    run::TurnRecord,
    session::{
        SessionSnapshot,
        core::{SessionCore, StoredTurnFingerprint, simulation::vault},
        loading::{LoadedTurn, RecordedTurnTreatment, closed},
    },
    store::{Change, Commit, Labels, Stored, StoredTurn, Version, Write},
    tree::Tree,
};

impl Life {
    /// Starts a process that owns the conversation. Returns `None` if the process ends before the session runs.
    pub(super) fn begin(common: &mut Common, condition: Condition) -> Check<Option<Self>> {
        let epoch = common.place.acquire();
        let level = match common.outside.script.level {
            Durable::InFlight => Durable::InFlight,
            _ => random_level(&mut common.outside.rng),
        };
        let mut life = match common.place.stored().cloned() {
            None => Self::create(common, epoch, level, condition),
            Some(stored) => match Self::load(common, stored, epoch, level, condition)? {
                Some(life) => life,
                None => return Ok(None),
            },
        };
        if !life.is_saved() {
            life.step(common, SessionCore::save)?;
        }
        life.process.take_up(&mut common.outside)?;
        Ok(Some(life))
    }

    fn create(common: &mut Common, epoch: u64, level: Durable, condition: Condition) -> Self {
        let process = Process::start(&common.outside, epoch, level, History::new(), None, None);
        let config = Arc::clone(&common.outside.config);
        let mut core = SessionCore::new(None, Labels::default(), true, config, process.last_event());
        core.set_prompts(Vec::new(), level > Durable::Turns);
        if common.outside.rng.percent(50) {
            let version = common.place.vault.put(core.state());
            core.created(version);
        }
        Self::new(common, process, core, epoch, condition)
    }

    fn load(
        common: &mut Common,
        stored: Stored,
        epoch: u64,
        level: Durable,
        condition: Condition,
    ) -> Check<Option<Self>> {
        let Stored { version, state, nodes, head, cursors, next, used, last_run, turn, .. } = stored;
        let tree = Tree::restored(nodes, head, cursors, next).map_err(|error| error.to_string())?;
        let has_turn = turn.is_some();
        let turn = turn.map(|turn| reread(&turn)).transpose()?;
        let flight = StoredTurnFingerprint::of_stored(turn.as_ref(), head);
        let random = common.outside.rng.pick(&[OnUncertain::Report, OnUncertain::Ask]);
        let on_uncertain = common.on_uncertain.unwrap_or(random);
        let recover = Recover::default().with_on_uncertain(on_uncertain);
        let now = common.outside.now();
        let recovered =
            RecordedTurnTreatment::of(&vault::id(), turn.clone().map(Box::new), &tree, recover, now)
                .map_err(|error| error.to_string())?;
        let (history, loaded) = match recovered {
            RecordedTurnTreatment::None => (tree.history().clone(), None),
            RecordedTurnTreatment::Turn(turn) => (turn.history.clone(), Some(*turn)),
            RecordedTurnTreatment::Discarded(end) => {
                return Err(format!("a readable turn is discarded: {end:?}"));
            }
        };
        ensure!(has_turn == loaded.is_some(), "the turn in flight is void");
        let (in_flight, counted) = match loaded {
            None => (None, None),
            Some(LoadedTurn { in_flight, record, lives, .. }) => (Some(in_flight), Some((record, lives))),
        };
        let is_attempt =
            in_flight.as_ref().zip(turn.as_ref()).is_some_and(|(in_flight, turn)| match in_flight.stage() {
                RecordedStage::Paused => false,
                RecordedStage::Delaying => end_of_delay(&turn.record) <= now,
                _ => true,
            });
        let last_run = last_run.map(closed);
        let prompts = match (&counted, &last_run) {
            (Some((record, _)), _) => record.prompts.clone(),
            (None, Some(end)) => end.prompts.clone(),
            (None, None) => Vec::new(),
        };
        let process = Process::start(&common.outside, epoch, level, history, in_flight, last_run);
        let config = Arc::clone(&common.outside.config);
        let mut core = SessionCore::loaded(tree, state.clone(), version, true, config, process.last_event());
        core.loaded_usage(used.usage);
        core.loaded_flight(flight);
        core.set_prompts(prompts, level > Durable::Turns);
        let mut counting = None;
        let attempted = turn
            .filter(|turn| is_attempt && !turn.record.orderly)
            .zip(counted.as_ref().map(|(_, lives)| *lives));
        if let Some((record, lives)) = counted {
            core.take_up(&record, process.status());
            counting = core.restart(lives);
        }
        let mut life = Self::new(common, process, core, epoch, condition);
        if let Some((write, commit)) = counting
            && life.writes_at_once(common, write, commit)?.is_none()
        {
            return Ok(None);
        }
        if let Some((turn, lives)) = attempted {
            common.place.restarts_are_counted(turn.record.turn, lives)?;
        }
        Ok(Some(life))
    }

    fn new(
        common: &Common,
        mut process: Process,
        core: SessionCore,
        epoch: u64,
        condition: Condition,
    ) -> Self {
        process.condition = condition;
        let view = SessionSnapshot {
            last: process.last_event(),
            id: vault::id(),
            title: core.title().cloned(),
            labels: core.labels().clone(),
            used: core.used(),
            tree: core.tree().clone(),
            from: None,
            agent: process.snapshot(&common.outside.config),
            unsaved: core.unsaved(),
            store: None,
        };
        Self { process, core, epoch, storing: Storing::default(), begun: Vec::new(), asked: None, view }
    }

    /// Performs a write outside of the saver. Returns `None` if it fails or the process ends.
    pub(super) fn writes_at_once(
        &mut self,
        common: &mut Common,
        write: Write,
        commit: Commit,
    ) -> Check<Option<Version>> {
        let write = write.with_id(common.write_id());
        self.process.crash_perhaps(&mut common.outside);
        let fails =
            self.process.condition == Condition::MayCrash && common.outside.rng.percent(common.trouble / 5);
        if self.process.is_dead() || fails {
            return Ok(None);
        }
        let written = common.place.write(&(write, Change::Commit(commit)), self.epoch)?;
        self.process.crash_perhaps(&mut common.outside);
        let Ok(version) = written else { return Ok(None) };
        self.core.rewritten(version);
        Ok((!self.process.is_dead()).then_some(version))
    }
}

/// Returns the time at which the recorded delay ends.
fn end_of_delay(record: &TurnRecord) -> Timestamp {
    let core: serde_json::Value = serde_json::from_str(&record.core).expect("a record contains JSON");
    Timestamp(core["stage"]["until"].as_u64().unwrap_or_default())
}

/// Returns the turn as another process reads it.
fn reread(turn: &StoredTurn) -> Check<StoredTurn> {
    let json = serde_json::to_string(turn).map_err(|error| error.to_string())?;
    serde_json::from_str(&json).map_err(|error| error.to_string())
}
