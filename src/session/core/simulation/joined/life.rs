//! One life: a process with the cores of an agent and a session, and what its task does.

use std::sync::Arc;

use super::{Common, people, place::Returned, writes::Storing};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        AgentCommitItem, Event, Status,
        process::{Condition, Process, Reply},
    },
    run::{PendingUse, RunEnd},
    session::{
        SessionSnapshot,
        core::{SessionCore, SessionCoreEnv, SessionEffect},
    },
    store::TitleBy,
};

pub(super) struct Life {
    pub(super) process: Process,
    pub(super) core: SessionCore,
    pub(super) epoch: u64,
    pub(super) storing: Storing,
    /// The runs on other histories whose start is acknowledged when changes up to this number are stored.
    pub(super) begun: Vec<(u64, Reply)>,
    /// The number of the request whose sender waits for the response.
    pub(super) asked: Option<usize>,
    /// The snapshot from the start of the life, with all events applied.
    pub(super) view: SessionSnapshot,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    /// Nothing is left to do.
    Settled,
    Crashed,
    /// The process stands still, and may wake up after the next process has started.
    Frozen,
    /// The session has ended in an orderly way.
    Closed,
}

impl Life {
    /// Plays the life. A `former` process may wake up meanwhile.
    pub(super) fn run(&mut self, common: &mut Common, mut former: Option<&mut Self>) -> Check<End> {
        let is_last = self.process.condition == Condition::Stable;
        for _ in 0..2_000 {
            if self.process.is_dead() {
                return Ok(End::Crashed);
            }
            if self.is_over(common) {
                return Ok(End::Settled);
            }
            if let Some(former) = former.as_deref_mut().filter(|former| !former.process.is_dead())
                && common.outside.rng.percent(20)
            {
                former.haunt(common)?;
            }
            if !is_last && common.place.stored().is_some() && common.outside.rng.percent(common.freezes) {
                common.outside.note(|| "freeze".to_owned());
                return Ok(End::Frozen);
            }
            if self.process.may_disturb(&mut common.outside, 1) {
                self.close(common)?;
                return Ok(if self.process.is_dead() { End::Crashed } else { End::Closed });
            }
            self.act(common)?;
        }
        ensure!(!is_last, "the life does not settle");
        Ok(End::Crashed)
    }

    /// Returns whether nothing is left to do.
    pub(super) fn is_over(&self, common: &Common) -> bool {
        self.process.is_settled()
            && self.is_saved()
            && self.begun.is_empty()
            && common.sent == common.starts.len()
    }

    pub(super) fn is_saved(&self) -> bool {
        self.core.is_safe(self.core.wanted())
    }

    /// Performs the next step of a process that has lost the conversation.
    fn haunt(&mut self, common: &mut Common) -> Check {
        common.outside.note(|| "the former process:".to_owned());
        self.process.condition = Condition::Former;
        match common.outside.rng.below(8) {
            0 => self.loses(common)?,
            1 => {
                let text = format!("late {}", common.outside.rng.next());
                self.process.prompt(&mut common.outside, text.as_str().into(), &text, false).map(drop)?;
            }
            _ => self.act(common)?,
        }
        if self.core.is_lost() {
            self.process.condition = Condition::Dead;
        }
        Ok(())
    }

    fn act(&mut self, common: &mut Common) -> Check {
        let (percent, owns) =
            (|common: &mut Common, chance| common.outside.rng.percent(chance), self.owns(common));
        if self.storing.attempt.is_some() && percent(common, 30) {
            return self.comes_back(common);
        }
        if self.storing.waits && percent(common, 30) {
            return self.retry(common);
        }
        if self.process.has_deliveries() && percent(common, 50) {
            return self.deliver(common).map(drop);
        }
        if percent(common, 10) {
            return self.process.record_soon(&mut common.outside);
        }
        if owns && common.sent < common.starts.len() && self.may_start(common) {
            return self.start(common);
        }
        if self.process.may_disturb(&mut common.outside, 2) {
            return self.process.interrupt(&mut common.outside);
        }
        if self.process.may_disturb(&mut common.outside, 2) {
            return self.process.time_over(&mut common.outside);
        }
        if self.process.may_disturb(&mut common.outside, 2) {
            return self.process.cancel(&mut common.outside);
        }
        if common.outside.compacts() && percent(common, if self.process.is_idle() { 8 } else { 1 }) {
            return self.process.compact(&mut common.outside);
        }
        let chance = if self.process.phase() == "concluding" { 50 } else { 2 };
        if self.process.may_disturb(&mut common.outside, chance) {
            return self.process.notify(&mut common.outside);
        }
        if self.process.may_disturb(&mut common.outside, 2) {
            let title = format!("title {}", common.outside.rng.below(3)).into();
            return self.step(common, |core, env, effects| {
                core.set_title(Some(title), TitleBy::Person, env, effects);
            });
        }
        if self.process.status() == Status::Paused && percent(common, 6) {
            return self.process.expire(&mut common.outside);
        }
        let undecided = self.process.undecided();
        if !undecided.is_empty() && percent(common, 25) {
            return self.decide(common, &undecided);
        }
        self.progress(common)
    }

    /// Performs whatever is in progress.
    fn progress(&mut self, common: &mut Common) -> Check {
        if self.process.proceed(&mut common.outside)? || self.deliver(common)? {
            return self.approvals_are_listed(common);
        }
        if self.storing.attempt.is_some() {
            return self.comes_back(common);
        }
        if self.storing.waits {
            return self.retry(common);
        }
        self.process.record_soon(&mut common.outside)?;
        self.every_gate_opens(common)
    }

    /// When nothing is in progress, nothing waits for a record: each gate has opened or was dropped.
    pub(super) fn every_gate_opens(&self, common: &Common) -> Check {
        let is_quiet = !self.process.has_deliveries();
        let waits = self.process.status() == Status::Paused || self.process.is_settled();
        ensure!(!is_quiet || waits || self.process.is_dead(), "a gate does not open: nothing is in progress");
        let callers: Vec<_> = self.process.waiting_replies().collect();
        ensure!(
            !is_quiet || callers.is_empty() || !self.owns(common),
            "{callers:?} wait, but nothing is in progress"
        );
        Ok(())
    }

    fn owns(&self, common: &Common) -> bool {
        common.place.is_owned(self.epoch)
    }

    fn decide(&mut self, common: &mut Common, pauses: &[Arc<PendingUse>]) -> Check {
        let pause = common.outside.rng.pick(pauses);
        let decision = people::verdict(&mut common.outside, &pause.reason);
        self.process.decide(&mut common.outside, &pause, decision)
    }

    /// The approvals that a list of the store shows are the pauses of the agent.
    pub(super) fn approvals_are_listed(&self, common: &Common) -> Check {
        let is_current = self.process.is_recorded_now() && self.is_saved() && self.owns(common);
        if !is_current
            || self.process.is_dead()
            || self.process.is_recovering()
            || common.place.fault.is_some()
        {
            return Ok(());
        }
        let turn = common.place.turn();
        ensure!(self.process.records() == turn.is_some(), "the stored turn is {turn:?}");
        let listed = turn.map(|turn| turn.record.waiting.iter().map(|waiting| &waiting.tool_use));
        let listed: Vec<_> = listed.into_iter().flatten().collect();
        let pauses = self.process.pauses();
        let waiting: Vec<_> = pauses.iter().filter(|_| turn.is_some()).map(|pause| &pause.tool_use).collect();
        ensure!(listed == waiting, "{listed:?} are listed, but {waiting:?} wait");
        Ok(())
    }

    // ---- the session's task ----

    /// Processes the agent's next event or record. Returns whether there was one.
    pub(super) fn deliver(&mut self, common: &mut Common) -> Check<bool> {
        let Some(AgentCommitItem { event, config, record, .. }) = self.process.take_delivery() else {
            return Ok(false);
        };
        if let Some(Event::CompactionStart { turn, .. }) = event.as_ref().map(|event| &*event.event) {
            common.place.compacts(*turn);
        }
        if let Some(event) = event.as_ref().filter(|event| RunEnd::of(&event.event).is_some()) {
            let mut agent = self.view.agent.clone();
            agent.apply(event);
            self.storing.returned.extend(agent.last_run.as_deref().map(Returned::of));
        } else if event.as_ref().is_some_and(|event| event.event.committed().is_some()) {
            // If the process dies before the next turn is committed, the run has ended with this turn, and returns
            // nothing.
            self.storing.returned.push(Vec::new());
        }
        self.step(common, |core, env, effects| {
            core.delivered(event.as_ref(), record.as_deref(), &config, env, effects);
        })?;
        if !self.process.has_deliveries() && !self.process.is_dead() {
            let agent = self.process.snapshot(&common.outside.config);
            ensure!(self.view.agent == agent, "the events lead to {:?}, not {agent:?}", self.view.agent);
        }
        Ok(true)
    }

    /// Processes all events and records that the agent has delivered.
    pub(super) fn catch_up(&mut self, common: &mut Common) -> Check {
        while !self.process.is_dead() && self.deliver(common)? {}
        Ok(())
    }

    /// Passes an input to the session's core and performs its effects.
    pub(super) fn step(
        &mut self,
        common: &mut Common,
        input: impl FnOnce(&mut SessionCore, &SessionCoreEnv<'_>, &mut Vec<SessionEffect>),
    ) -> Check {
        let was_lost = self.core.is_lost();
        let mut effects = Vec::new();
        let id = common.write_id();
        let env = SessionCoreEnv { write_id: &|| id, unsaved_limit: usize::MAX, left: None };
        input(&mut self.core, &env, &mut effects);
        for effect in effects {
            self.process.crash_perhaps(&mut common.outside);
            if self.process.is_dead() {
                return Ok(());
            }
            match effect {
                SessionEffect::Emit(event) => self.view.take_in(&event).map_err(|error| error.to_string())?,
                SessionEffect::Write(job) => {
                    nothing_follows_a_loss(was_lost)?;
                    self.storing.begin(job)?;
                }
                SessionEffect::RetryIn(_) => self.storing.waits = true,
                SessionEffect::Written(number) => {
                    nothing_follows_a_loss(was_lost)?;
                    self.process.written(&mut common.outside, number);
                }
                SessionEffect::Behind(_) | SessionEffect::AtRest | SessionEffect::PromptsSettled => {}
            }
        }
        let core = &self.core;
        for (_, reply) in self.begun.extract_if(.., |(wanted, _)| core.is_safe(*wanted)) {
            common.outside.oracle.acknowledge(reply);
        }
        core.check()?;
        self.events_lead_to_the_snapshot()
    }

    /// A snapshot with all later events applied equals a later snapshot.
    fn events_lead_to_the_snapshot(&self) -> Check {
        let (view, core) = (&self.view, &self.core);
        ensure!(view.tree == *core.tree(), "the events lead to\n{}\nnot\n{}", view.tree, core.tree());
        ensure!(view.unsaved == core.unsaved(), "with events applied, {:?} is unsaved", view.unsaved);
        ensure!(view.store.as_ref() == core.report(), "with events applied, the report is {:?}", view.store);
        ensure!(view.used == core.used(), "with events applied, {:?} was used", view.used);
        ensure!(view.title.as_ref() == core.title(), "with events applied, the title is {:?}", view.title);
        Ok(())
    }

    /// Lets the requests without a reply be sent again in the next life.
    pub(super) fn resend(&self, common: &mut Common) {
        let replies = self.process.waiting_replies().chain(self.begun.iter().map(|(_, reply)| reply));
        let numbers = replies.filter_map(|reply| match reply {
            Reply::Prompt(text) => text.split_once(' ')?.1.parse().ok(),
            _ => None,
        });
        let asked = self.asked.filter(|_| self.process.is_asked());
        common.sent = numbers.chain(asked).min().unwrap_or(common.sent).min(common.sent);
    }

    fn may_start(&self, common: &mut Common) -> bool {
        // Between two turns, `handle_event` returns soon.
        let chance = if self.process.phase() == "noticing between turns" { 50 } else { 5 };
        // A prompt that is sent during a compaction alone starts the next turn, and another one could join this turn.
        let is_free = self.process.compacts_alone() && !self.process.has_staged();
        let is_early = is_free && common.outside.rng.percent(30);
        self.process.is_idle() || is_early || self.process.may_disturb(&mut common.outside, chance)
    }
}

/// After the conversation is lost, nothing is written and nothing is reported as written.
fn nothing_follows_a_loss(was_lost: bool) -> Check {
    ensure!(!was_lost, "a write follows the loss of the conversation");
    Ok(())
}
