//! The writes of a life, and the ways in which a session ends in an orderly way.

use std::sync::Arc;

use super::{Common, life::Life, place::Returned};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{Durable, Status, process::Condition},
    session::core::{SessionCore, WriteJob, simulation::vault},
    store::{Change, StoreError, TurnChange, WriteId},
};

/// The write in flight.
#[derive(Default)]
pub(super) struct Storing {
    /// The attempt in flight.
    pub(super) attempt: Option<Arc<WriteJob>>,
    /// Whether a wait before the next attempt is in progress.
    pub(super) waits: bool,
    /// The prompts that the ends of runs have returned, and that are not written yet.
    pub(super) returned: Vec<Vec<Returned>>,
    /// The last write, and the prompts that it returns.
    last: Option<(WriteId, Vec<Returned>)>,
}

impl Storing {
    /// Starts an attempt at a write.
    pub(super) fn begin(&mut self, job: Arc<WriteJob>) -> Check {
        let id = vault::write_id(&job);
        if self.last.as_ref().is_none_or(|last| last.0 != id) {
            let mut prompts = Vec::new();
            if let (_, Change::Commit(commit)) = &*job {
                let ends = std::mem::take(&mut self.returned);
                if let Some(TurnChange::End(end)) = commit.turn.as_deref() {
                    let last = ends.last().cloned().unwrap_or_default();
                    ensure!(
                        Returned::of(end) == last,
                        "the stored end returns other prompts than {last:?}: {end:?}"
                    );
                }
                prompts = ends.concat();
            }
            self.last = Some((id, prompts));
        }
        (self.attempt, self.waits) = (Some(job), false);
        Ok(())
    }
}

impl Common {
    pub(super) fn write_id(&mut self) -> WriteId {
        self.writes += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.writes.to_be_bytes());
        WriteId::from_bytes(bytes)
    }
}

impl Life {
    /// Returns the outcome of the write in flight. The process may end before it, and after the store has performed it.
    pub(super) fn comes_back(&mut self, common: &mut Common) -> Check {
        self.process.crash_perhaps(&mut common.outside);
        let Some(job) = self.storing.attempt.take().filter(|_| !self.process.is_dead()) else {
            return Ok(());
        };
        let fails =
            self.process.condition == Condition::MayCrash && common.outside.rng.percent(common.trouble);
        let reaches = !fails || common.outside.rng.percent(50);
        let failure = || Err(StoreError::failed("writing", std::io::Error::other("the cause")));
        let mut outcome = if reaches { common.place.write(&job, self.epoch)? } else { failure() };
        if outcome.is_ok()
            && let Some((_, prompts)) = &self.storing.last
        {
            common.place.returns(prompts.iter().cloned());
        }
        if fails {
            outcome = failure();
        }
        common.outside.note(|| format!("write {job:?}: {outcome:?}"));
        self.process.crash_perhaps(&mut common.outside);
        if self.process.is_dead() {
            return Ok(());
        }
        let is_own = matches!(outcome, Ok(_) | Err(StoreError::LeaseLost { .. } | StoreError::Failed { .. }));
        ensure!(is_own, "the session conflicts with itself: {outcome:?}");
        self.step(common, |core, env, effects| core.written(outcome, env, effects))
    }

    /// Repeats a write that has failed.
    pub(super) fn retry(&mut self, common: &mut Common) -> Check {
        self.storing.waits = false;
        self.step(common, SessionCore::retry)
    }

    /// Reports that the conversation has another owner.
    pub(super) fn loses(&mut self, common: &mut Common) -> Check {
        let error = StoreError::LeaseLost { id: vault::id() };
        self.step(common, |core, _, effects| core.lost(&error, effects))
    }

    /// Saves everything. Returns whether this has succeeded.
    fn save_all(&mut self, common: &mut Common) -> Check<bool> {
        self.step(common, SessionCore::save)?;
        for _ in 0..20 {
            if self.process.is_dead() || self.is_saved() {
                break;
            }
            if self.storing.attempt.is_some() { self.comes_back(common)? } else { self.retry(common)? }
        }
        Ok(!self.process.is_dead() && self.is_saved())
    }

    /// Ends the session: it hands its turn over, sleeps, or stops.
    pub(super) fn close(&mut self, common: &mut Common) -> Check {
        let hands_over = common.outside.rng.percent(50);
        common.outside.note(|| format!("close, hand over: {hands_over}"));
        if hands_over && self.hand_over(common)? {
            return Ok(());
        }
        if self.process.is_dead() {
            return Ok(());
        }
        self.catch_up(common)?;
        if self.process.is_parked() && self.process.status() == Status::Paused {
            return Ok(());
        }
        self.process.interrupt(&mut common.outside)?;
        self.catch_up(common)?;
        if !self.process.is_dead() {
            self.step(common, |core, env, effects| {
                core.agent_ended(effects);
                core.save(env, effects);
            })?;
            self.save_all(common)?;
        }
        Ok(())
    }

    /// Leaves the turn in flight to the next process. If its state can't be stored, leaves an earlier state. Returns
    /// whether the store has a turn.
    fn hand_over(&mut self, common: &mut Common) -> Check<bool> {
        if !self.core.is_recorded() && self.process.level() == Durable::Turns {
            return Ok(false);
        }
        self.process.leave(&mut common.outside)?;
        self.catch_up(common)?;
        if self.process.is_dead() || !self.core.is_recorded() {
            return Ok(false);
        }
        let is_saved = self.save_all(common)?;
        if self.process.is_dead() || !is_saved && !self.core.has_stored_turn() {
            return Ok(false);
        }
        let is_known = self.core.has_stored_turn() == common.place.turn().is_some();
        ensure!(!is_saved || is_known || common.place.fault.is_some(), "the stored turn is not known");
        if is_saved && self.process.is_parked() {
            return Ok(true);
        }
        self.core.leave_turn();
        self.step(common, |core, _, effects| core.agent_ended(effects))?;
        if is_saved
            && !self.process.is_dead()
            && let Some((write, commit)) = self.core.handed_over()
            && self.writes_at_once(common, write, commit)?.is_some()
        {
            let is_marked = common.place.turn().is_some_and(|turn| turn.record.orderly);
            ensure!(is_marked || common.place.fault.is_some(), "the turn is not marked as handed over");
        }
        Ok(true)
    }
}
