//! Closes processes, and lets the next ones continue.

use std::collections::BTreeSet;

use super::{
    super::{Common, Start, World, life::Life},
    Begun, Declared,
    rows::{Event, Row},
};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        OnUncertain, RecoveryDecision, Status,
        process::{Condition, Outside, Plot, Script},
    },
    message::Message,
    provider::StopReason,
    run::RunOutcome,
    tool::{Decision, Replay},
};

/// A row, and the circumstances in which it is played.
#[derive(Clone, Copy)]
pub(super) struct Scenario<'a> {
    pub(super) row: &'a Row,
    pub(super) begun: Begun,
    pub(super) declared: Declared,
}

/// The places in which processes are closed: everything outside of a process that is closed.
type Places = Vec<Common>;

impl Scenario<'_> {
    /// Plays the row without a disturbance, and again with a process that is closed at each step. Adds the phases of
    /// closed processes to `closed`.
    pub(super) fn play(self, closed: &mut BTreeSet<&'static str>) -> Check {
        let (mut common, mut life) = self.begin()?;
        let mut places = Places::new();
        self.run(&mut life, &mut common, self.row.event, |life, common, has_changed| {
            closed.insert(life.process.phase());
            places.extend(has_changed.then(|| close(life, common)));
        })?;
        let undisturbed = self.contents(common)?;
        places.into_iter().try_for_each(|common| self.reopen(common, &undisturbed, closed))
    }

    /// Creates the conversation. If the row is a request for another response, the first response exists already.
    fn begin(self) -> Check<(Common, Life)> {
        let Self { row, begun, declared } = self;
        let mut common = World::new(0, false, None, false).common;
        common.outside = Outside::new(0, None, false);
        if row.compacts {
            common.outside.compact_always();
        }
        (common.has_ids, common.on_uncertain) = (true, Some(declared.on_uncertain));
        common.joins = if begun == Begun::Joined { 100 } else { 0 };
        common.outside.script = Script::chosen(Vec::new(), 0, declared.provider, Plot::default());
        common.starts = Vec::new();
        let mut life = open(&mut common)?;
        if begun == Begun::Regenerated {
            common.starts.push(Start::Prompt);
            self.run(&mut life, &mut common, Event::Never, |_, _, _| {})?;
        }
        common.starts = begun.starts();
        let tool = match declared.tools {
            Replay::Safe => "read",
            Replay::Keyed => "put",
            Replay::Never => "send",
        };
        let (steps, plot) = (row.said(tool), row.plot.clone());
        common.outside.script = Script::chosen(steps, row.continuations, declared.provider, plot);
        Ok((common, life))
    }

    /// Continues in another process, and again with a process that is closed at each step of its recovery.
    fn reopen(
        self,
        mut common: Common,
        undisturbed: &[String],
        closed: &mut BTreeSet<&'static str>,
    ) -> Check {
        let before = writes(&common);
        let mut life = open(&mut common)?;
        let is_recovery = life.process.is_recovering();
        let mut places = Places::new();
        self.run(&mut life, &mut common, Event::Never, |life, common, has_changed| {
            // The first write counts the restart, and the second one is the first record of the next process.
            if is_recovery && writes(common) <= before + 2 {
                closed.insert(life.process.phase());
                places.extend(has_changed.then(|| close(life, common)));
            }
        })?;
        self.compare(common, is_recovery, undisturbed)?;
        for mut common in places {
            let mut life = open(&mut common)?;
            self.run(&mut life, &mut common, Event::Never, |_, _, _| {})?;
            self.compare(common, is_recovery, undisturbed)?;
        }
        Ok(())
    }

    /// Lets a process work until nothing is left to do. Calls `at` at the start and after each step, with whether
    /// something outside of the process has changed. If nothing has changed, it makes no difference whether the process
    /// is closed before or after the step.
    fn run(
        self,
        life: &mut Life,
        common: &mut Common,
        mut event: Event,
        mut at: impl FnMut(&Life, &Common, bool),
    ) -> Check {
        let mut last = None;
        for _ in 0..500 {
            let Outside { oracle, script, .. } = &common.outside;
            let promised = (oracle.acknowledged.len(), oracle.answered.len());
            let now = Some((writes(common), oracle.effects(), promised, script.plot.failures));
            at(life, common, last != now);
            last = now;
            if life.is_over(common) {
                return Ok(());
            }
            self.advance(life, common, &mut event)?;
        }
        Err("the process does not settle".to_owned())
    }

    /// Performs the next step. Every change is stored at once.
    fn advance(self, life: &mut Life, common: &mut Common, event: &mut Event) -> Check {
        let is_at_rest = life.process.status() == Status::Idle;
        let is_due = match *event {
            Event::Never => false,
            Event::BeforeTheRun => true,
            Event::DuringTheRun => !is_at_rest,
        };
        if is_due {
            *event = Event::Never;
            return life.process.notify(&mut common.outside);
        }
        if life.deliver(common)? {
            return Ok(());
        }
        if life.storing.attempt.is_some() {
            return life.comes_back(common);
        }
        let may_start = match common.starts.get(common.sent) {
            None => false,
            Some(Start::Prompt) if matches!(self.begun, Begun::Staged | Begun::Joined) => true,
            Some(Start::Prompt | Start::Ask) => is_at_rest,
            Some(Start::Regenerate | Start::Edit) => life.process.is_idle(),
        };
        if may_start {
            return life.start(common);
        }
        if life.process.records_soon() {
            return life.process.record_soon(&mut common.outside);
        }
        if life.process.proceed(&mut common.outside)? {
            return life.approvals_are_listed(common);
        }
        if life.process.status() == Status::Paused {
            return self.decide(life, common);
        }
        life.every_gate_opens(common)
    }

    /// Decides about the first pause. A call whose outcome is not known is repeated.
    fn decide(self, life: &mut Life, common: &mut Common) -> Check {
        let pause = life.process.pauses().into_iter().next().ok_or("nothing waits")?;
        let key = pause.reason.pointer("/uncertain/idempotency_key").and_then(serde_json::Value::as_str);
        let decision = match key {
            Some(key) => {
                common.outside.oracle.allow(key);
                Some(Decision::Execute)
            }
            None => self.row.decision.clone(),
        };
        match decision {
            Some(decision) => life.process.decide(&mut common.outside, &pause, decision),
            None => life.process.expire(&mut common.outside),
        }
    }

    /// Checks the promises, and compares the conversation with the undisturbed one.
    fn compare(self, common: Common, is_recovery: bool, undisturbed: &[String]) -> Check {
        if let Some(decision) = self.row.plot.on_recovery.filter(|_| is_recovery) {
            self.ends_as_decided(&common, decision)?;
        }
        let own = self.contents(common)?;
        let is_same = own == undisturbed || !self.is_determined();
        ensure!(is_same, "the conversation is {own:#?}, undisturbed {undisturbed:#?}");
        Ok(())
    }

    /// Returns whether the conversation does not depend on the moment at which a process is closed.
    fn is_determined(self) -> bool {
        let Row { plot, continuations, .. } = self.row;
        let is_plain = match self.begun {
            Begun::Fresh | Begun::Asked | Begun::Regenerated => true,
            // A staged prompt takes the place of a continuation, if it is staged in time.
            Begun::Staged => *continuations == 0,
            Begun::Joined => false,
        };
        // An application event is lost with its process.
        is_plain && plot.on_event.is_none() && plot.on_recovery.is_none()
    }

    fn ends_as_decided(self, common: &Common, decision: RecoveryDecision) -> Check {
        if matches!(self.begun, Begun::Staged | Begun::Joined) {
            // The run of the second prompt may follow.
            return Ok(());
        }
        let end = common.place.stored().and_then(|stored| stored.last_run.as_ref());
        let outcome = &end.ok_or("the end of the run is not stored")?.outcome;
        let is_interrupted = *outcome == RunOutcome::Stopped { stop_reason: StopReason::Interrupted };
        let is_decided = match decision {
            RecoveryDecision::Resume => true,
            RecoveryDecision::Interrupt => is_interrupted || *outcome == RunOutcome::Cancelled,
            RecoveryDecision::Discard => *outcome == RunOutcome::Cancelled,
        };
        ensure!(is_decided, "after {decision:?}, the run ends as {outcome:?}");
        Ok(())
    }

    /// Returns the contents of the tree. Results are left out if it may not be known whether their tools took effect.
    fn contents(self, common: Common) -> Check<Vec<String>> {
        let Declared { tools, on_uncertain, .. } = self.declared;
        let is_hidden = |message: &Message| {
            let may_differ = tools == Replay::Never && on_uncertain == OnUncertain::Report;
            may_differ && message.tool_results().next().is_some()
        };
        let mut world = World { seed: 0, common, former: None, crashes: 0 };
        world.check_end()?;
        Ok(world.contents(is_hidden))
    }
}

fn open(common: &mut Common) -> Check<Life> {
    Life::begin(common, Condition::Stable)?.ok_or_else(|| "the conversation is not opened".to_owned())
}

/// Closes a process without a warning. Returns everything outside of it.
fn close(life: &Life, common: &Common) -> Common {
    let mut common = common.clone();
    life.resend(&mut common);
    common
}

/// Returns a number that grows by one with each write.
fn writes(common: &Common) -> u64 {
    common.place.stored().map_or(0, |stored| stored.version.get())
}
