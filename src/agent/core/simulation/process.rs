//! A simulated process with an agent: the shell around the core, which may end between any two effects. It delivers
//! events and records as a real agent does, so that simulators of other layers can join it. The model, the callbacks and
//! the tools answer as a script says.

mod fault;
mod oracle;
mod outcomes;
mod phases;
mod script;
mod shell;
mod summaries;

use std::{collections::VecDeque, sync::Arc, time::Duration};

pub(crate) use fault::Fault;
pub(crate) use oracle::{Oracle, Reply};
pub(crate) use phases::PHASES;
pub(crate) use script::{Plot, Said, Script, Verdict, random_level};

use super::super::{AgentCore, AgentEffect, CallbackCall, CoreInputContext};
use crate::{
    actor::{
        random::Rng,
        simulation::{Check, ensure},
    },
    agent::{
        Accepted, AgentCommitItem, Config, Durable, FirstMessageOfRun, PendingUse, Prompt, RecordToStore,
        ResumeDecisions, RunEnd, Snapshot, Status, TurnInFlight,
        durable::RecoveryFacts,
        phase::{AgentPhase, AgentTurnStage, DispatchedToolCall, OpNumber},
    },
    message::{History, Timestamp, ToolUseId},
    run::{Error, ErrorKind},
    subscription::EventId,
    tool::{Decision, ToolSet},
};

/// Returns the snapshot of an idle agent with this history.
pub(crate) fn idle_snapshot(history: History) -> Snapshot {
    let view = script::shared_config().view(history.clone());
    AgentCore::new(history).snapshot(EventId { life: 0, number: 0 }, view)
}

/// Everything that all processes share: the randomness, the clock, the promises.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) rng: Rng,
    pub(crate) script: Script,
    pub(crate) oracle: Oracle,
    pub(crate) fault: Option<Fault>,
    /// How often a process ends between two effects, in percent.
    pub(crate) crash_chance: usize,
    pub(crate) config: Arc<Config>,
    /// The number of tools of a step that run at once.
    at_once: usize,
    tools: ToolSet,
    clock: u64,
    turns: u128,
    pub(crate) lines: Option<Vec<String>>,
}

impl Outside {
    pub(crate) fn new(seed: u64, fault: Option<Fault>, trace: bool) -> Self {
        Self {
            script: Script::new(&mut Rng::new(seed)),
            rng: Rng::new(seed ^ 0x5EED),
            oracle: Oracle::default(),
            fault,
            crash_chance: 2,
            at_once: super::world::random_bound(seed),
            config: script::shared_config(),
            tools: script::shared_tools(),
            clock: 0,
            turns: 0,
            lines: trace.then(Vec::new),
        }
    }

    pub(crate) fn note(&mut self, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(words());
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock)
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.clock = self.now().after(time).0;
    }
}

/// The state of the question that the provider or a tool asks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asking {
    No,
    Waits,
    Answered,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Condition {
    /// Nothing disturbs the process.
    Stable,
    MayCrash,
    /// The process has lost the conversation, so it does not know later decisions.
    Former,
    Dead,
}

/// A simulated process.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Process {
    pub(crate) condition: Condition,
    level: Durable,
    core: AgentCore,
    facts: Option<RecoveryFacts>,
    call: Option<(OpNumber, CallbackCall)>,
    permit: Option<OpNumber>,
    stream: Option<OpNumber>,
    tasks: Option<(OpNumber, Vec<DispatchedToolCall>)>,
    delay: Option<(OpNumber, Duration)>,
    /// The tool uses whose time limits run.
    timers: Vec<ToolUseId>,
    held: Option<(u64, AgentEffect)>,
    question: Asking,
    soon: bool,
    /// Whether a caller waits for the response of the run.
    is_asked: bool,
    /// Whether a caller waits for the end of a compaction.
    requests_compaction: bool,
    /// The number of the last record, and of the last record that is reported as stored.
    last: u64,
    written: u64,
    /// The record of the current input, until an event carries it.
    loose: Option<Arc<RecordToStore>>,
    is_recorded: bool,
    /// The replies that wait for a record.
    replies: Vec<(u64, Reply)>,
    outbox: VecDeque<AgentCommitItem>,
    view: Snapshot,
    last_event: EventId,
}

impl Process {
    pub(crate) fn start(
        outside: &Outside,
        life: u64,
        level: Durable,
        history: History,
        in_flight: Option<TurnInFlight>,
        last_run: Option<RunEnd>,
    ) -> Self {
        let (mut core, facts) = match in_flight {
            Some(turn) => {
                let (core, facts) = turn.start(&outside.config);
                (core, Some(facts))
            }
            None => (AgentCore::new(history), None),
        };
        if outside.fault == Some(Fault::PauseReported)
            && let AgentPhase::InTurn { stage, .. } = &mut core.phase
            && let Some(tools) = stage.unreported().cloned()
        {
            *stage = AgentTurnStage::Paused { tools: Box::new(tools) };
        }
        core.set_last_run(last_run);
        let last_event = EventId { life, number: 0 };
        Self {
            condition: Condition::Stable,
            level,
            view: core.snapshot(last_event, outside.config.view(core.history().clone())),
            core,
            facts,
            call: None,
            permit: None,
            stream: None,
            tasks: None,
            delay: None,
            timers: Vec::new(),
            held: None,
            question: Asking::No,
            soon: false,
            is_asked: false,
            requests_compaction: false,
            last: 0,
            written: 0,
            loose: None,
            is_recorded: false,
            replies: Vec::new(),
            outbox: VecDeque::new(),
            last_event,
        }
    }

    // ---- questions ----

    pub(crate) fn is_dead(&self) -> bool {
        self.condition == Condition::Dead
    }

    pub(crate) fn status(&self) -> Status {
        self.core.status()
    }

    pub(crate) fn last_event(&self) -> EventId {
        self.last_event
    }

    pub(crate) fn snapshot(&self, config: &Config) -> Snapshot {
        self.core.snapshot(self.last_event, config.view(self.core.history().clone()))
    }

    /// Returns whether nothing is in progress or queued, and no caller waits.
    pub(crate) fn is_settled(&self) -> bool {
        self.core.is_settled() && self.replies.is_empty() && self.outbox.is_empty()
    }

    /// Returns whether the agent is paused and its state is stored, so that it can end without a loss.
    pub(crate) fn is_parked(&self) -> bool {
        self.core.phase().is_recorded()
            && matches!(self.core.phase().stage(), Some(AgentTurnStage::Paused { .. }))
            && self.written >= self.last
            && self.outbox.is_empty()
    }

    pub(crate) fn pauses(&self) -> Vec<Arc<PendingUse>> {
        self.core.phase().pauses().cloned().collect()
    }

    /// Returns the pauses that can be decided on: those that wait, or those that are recorded but not reported yet.
    pub(crate) fn undecided(&self) -> Vec<Arc<PendingUse>> {
        let unreported = self.core.phase().stage().and_then(AgentTurnStage::unreported);
        unreported.map_or_else(|| self.pauses(), |tools| tools.undecided().cloned().collect())
    }

    /// Returns whether the last record shows the present state, so that a store that has the record shows it too.
    pub(crate) fn is_recorded_now(&self) -> bool {
        self.written >= self.last && !self.soon && self.held.is_none() && self.outbox.is_empty()
    }

    /// Returns whether a recorded turn is in flight.
    pub(crate) fn records(&self) -> bool {
        self.core.phase().is_recorded()
    }

    /// Returns whether the agent is idle, and nothing is queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.core.is_settled()
    }

    /// Returns whether a recorded turn is about to continue.
    pub(crate) fn is_recovering(&self) -> bool {
        let is_between = matches!(self.call, Some((_, CallbackCall::HandleRecovery(_))));
        is_between || matches!(self.core.phase().stage(), Some(AgentTurnStage::Recovering(_)))
    }

    pub(crate) fn level(&self) -> Durable {
        self.level
    }

    /// Returns whether the caller of `ask` still waits.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked || self.waiting_replies().any(|reply| matches!(reply, Reply::Answer(_)))
    }

    /// Returns whether a change is to be recorded for which nothing waits.
    pub(crate) fn records_soon(&self) -> bool {
        self.soon
    }

    /// Returns the name of the current phase, which is one of [`PHASES`].
    pub(crate) fn phase(&self) -> &'static str {
        phases::name(self.core.phase())
    }

    /// Returns the replies to callers that still wait.
    pub(crate) fn waiting_replies(&self) -> impl Iterator<Item = &Reply> {
        self.replies.iter().map(|(_, reply)| reply)
    }

    pub(crate) fn take_delivery(&mut self) -> Option<AgentCommitItem> {
        self.outbox.pop_front()
    }

    pub(crate) fn has_deliveries(&self) -> bool {
        !self.outbox.is_empty()
    }

    // ---- commands ----

    /// Continues the turn in flight with which the agent has started.
    pub(crate) fn take_up(&mut self, outside: &mut Outside) -> Check {
        match self.facts.take() {
            Some(facts) => self.input(outside, |core, cx| core.take_up(&facts, cx)),
            None => Ok(()),
        }
    }

    /// Sends a prompt. Returns whether it is accepted.
    pub(crate) fn prompt(
        &mut self,
        outside: &mut Outside,
        prompt: Prompt,
        text: &str,
        ask: bool,
    ) -> Check<bool> {
        let accepted = self.input(outside, |core, cx| core.prompt(prompt, ask, cx))?;
        let is_accepted = accepted.is_ok();
        if accepted.as_ref().is_err_and(|error| error.kind() == ErrorKind::KnownPrompt) {
            // An earlier process has accepted the prompt, so only its response is missing.
            return Ok(true);
        }
        if ask && is_accepted {
            self.is_asked = true;
        } else if is_accepted {
            self.reply(outside, Reply::Prompt(text.to_owned()));
        }
        Ok(is_accepted)
    }

    /// Starts a run on another history, for the owner of the history. Returns the id of the event with the history.
    pub(crate) fn begin(
        &mut self,
        outside: &mut Outside,
        base: History,
        opening: FirstMessageOfRun,
    ) -> Check<Result<EventId, Error>> {
        let with = EventId { number: self.last_event.number + 1, ..self.last_event };
        let begun = self.input(outside, |core, cx| match opening {
            FirstMessageOfRun::Prompt(prompt) => core.prompt_on(base, prompt, false, cx),
            FirstMessageOfRun::Message(message, settings) => core.answer(base, message, settings, false, cx),
        })?;
        Ok(begun.map(|_| with))
    }

    /// Returns whether the owner of the history has the reply to its last command. Such a reply waits for nothing,
    /// because the owner performs no write until it has the reply.
    pub(crate) fn has_replied_to_owner(&self, outside: &Outside) -> bool {
        outside.fault != Some(Fault::OwnerHeld) || self.written >= self.last
    }

    /// Sends a prompt again.
    pub(crate) fn repeat(&mut self, outside: &mut Outside, prompt: Prompt) -> Check<Accepted> {
        let accepted = self.input(outside, |core, cx| core.prompt(prompt, false, cx))?;
        accepted.map_err(|error| error.to_string())
    }

    pub(crate) fn decide(&mut self, outside: &mut Outside, pause: &PendingUse, decision: Decision) -> Check {
        let reply = Reply::Decision(pause.turn, pause.tool_use.id.clone());
        let resume = ResumeDecisions {
            decisions: vec![(pause.tool_use.id.clone(), decision)],
            turn: Some(pause.turn),
            by: Some("ben".into()),
        };
        let resumed = self.input(outside, |core, cx| core.resume(resume, cx))?;
        ensure!(resumed.is_ok(), "{resumed:?}");
        self.reply(outside, reply);
        Ok(())
    }

    /// Lets the time limit of a tool use end.
    pub(crate) fn expire(&mut self, outside: &mut Outside) -> Check {
        if self.timers.is_empty() {
            return Ok(());
        }
        let place = outside.rng.below(self.timers.len());
        let id = self.timers.swap_remove(place);
        self.input(outside, |core, cx| core.pause_expired(&id, cx))
    }

    /// Sends an application event.
    pub(crate) fn notify(&mut self, outside: &mut Outside) -> Check {
        self.input(outside, AgentCore::notify)?.map_err(|error| error.to_string())
    }

    pub(crate) fn cancel(&mut self, outside: &mut Outside) -> Check {
        self.end(outside, AgentCore::cancel)
    }

    pub(crate) fn interrupt(&mut self, outside: &mut Outside) -> Check {
        self.end(outside, AgentCore::interrupt)
    }

    fn end(
        &mut self,
        outside: &mut Outside,
        end: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> Result<(), Error>,
    ) -> Check {
        let turn = self.core.phase().turn().map(|turn| turn.id);
        if self.input(outside, end)?.is_ok()
            && let Some(turn) = turn
        {
            self.reply(outside, Reply::Ended(turn));
        }
        Ok(())
    }

    /// Ends the time limit of the turn in flight, if there is one. The limit does not run during a pause.
    pub(crate) fn time_over(&mut self, outside: &mut Outside) -> Check {
        if self.is_recovering() || self.status() != Status::Busy {
            return Ok(());
        }
        self.input(outside, |core, cx| core.time_over(Duration::from_secs(1), cx))
    }

    /// Leaves the turn in flight to the next process.
    pub(crate) fn leave(&mut self, outside: &mut Outside) -> Check {
        let withheld = self.held.take().map(|(_, effect)| effect);
        self.input(outside, |core, cx| core.leave(withheld.as_ref(), cx))
    }

    /// Records a change for which nothing waits, if there is one.
    pub(crate) fn record_soon(&mut self, outside: &mut Outside) -> Check {
        if std::mem::take(&mut self.soon) {
            return self.input(outside, AgentCore::record_now);
        }
        Ok(())
    }

    /// Takes note that all records up to this number are stored.
    pub(crate) fn written(&mut self, outside: &mut Outside, number: u64) {
        self.written = self.written.max(number);
        let written = self.written;
        for (_, reply) in self.replies.extract_if(.., |(waits_for, _)| *waits_for <= written) {
            outside.oracle.acknowledge(reply);
        }
    }

    fn reply(&mut self, outside: &mut Outside, reply: Reply) {
        if self.is_dead() {
            return;
        }
        if self.written >= self.last || outside.fault == Some(Fault::RepliesEarly) {
            outside.oracle.acknowledge(reply);
        } else {
            self.replies.push((self.last, reply));
        }
    }
}
