//! One process: the shell around the core, and its writes.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{Fault, Said, Verdict, World};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        ErrorDecision, Event, OnUncertain, Prompt, Recover, Recovery, RecoveryDecision, RunEnd, Snapshot,
        Status, ToolDecision, TurnDecision,
        core::{Call, Context, Core, Effect, Restored, Resume},
        durable::RecoveryFacts,
        phase::{Op, OutputRequirement, ToolCall, Turn},
        record::TurnRecord,
    },
    message::{History, Message, Text, Timestamp, ToolResult, ToolUse, TurnId},
    provider::{BlockStart, Delta, ErrorKind, Part, ProviderError, StopReason},
    subscription::EventId,
};

/// How the next write changes the stored turn.
#[derive(Default)]
enum Change {
    /// The stored turn stays, unless the write commits messages.
    #[default]
    None,
    Record(Box<TurnRecord>),
    End,
}

impl Change {
    fn then(self, later: Option<TurnRecord>) -> Self {
        match (self, later) {
            (Self::Record(earlier), Some(later)) => Self::Record(Box::new(earlier.then(later))),
            (_, Some(later)) => Self::Record(Box::new(later)),
            (_, None) => Self::End,
        }
    }
}

/// The changes that are not written yet.
#[derive(Default)]
struct Unsaved {
    messages: Vec<Arc<Message>>,
    turn: Change,
    returned: Vec<String>,
    number: u64,
    is_dirty: bool,
}

/// The state of the process.
#[derive(Clone, Copy, PartialEq)]
enum Process {
    Stable,
    MayCrash,
    Dead,
}

pub(super) struct Life<'a> {
    world: &'a mut World,
    core: Core,
    call: Option<(Op, Call)>,
    stream: Option<Op>,
    tasks: Option<(Op, Vec<ToolCall>)>,
    delay: Option<Op>,
    held: Option<(u64, Effect)>,
    soon: bool,
    /// The number of the last record.
    last: u64,
    /// The number of the last record that is reported as stored.
    written: u64,
    /// The record of the current input, until an event carries it.
    loose: Option<(u64, Option<TurnRecord>)>,
    is_recorded: bool,
    unsaved: Unsaved,
    /// The prompts whose acknowledgement waits for a record.
    replies: Vec<(u64, String)>,
    view: Snapshot,
    process: Process,
}

fn snapshot(core: &Core, world: &World) -> Snapshot {
    core.snapshot(EventId::new(0, 0), world.config.view(core.history().clone()))
}

impl<'a> Life<'a> {
    pub(super) fn begin(world: &'a mut World) -> Check<Self> {
        let history = world.disk.history.clone();
        let core = match world.disk.turn.clone() {
            None => Core::new(history),
            Some(turn) => {
                let json = serde_json::to_string(&turn).map_err(|error| error.to_string())?;
                let turn = serde_json::from_str(&json).map_err(|error| error.to_string())?;
                let restored = Core::restore(turn, history, None);
                let Restored { core, .. } = restored.map_err(|error| format!("{error:?}"))?;
                core
            }
        };
        Ok(Self {
            view: snapshot(&core, world),
            core,
            world,
            call: None,
            stream: None,
            tasks: None,
            delay: None,
            held: None,
            soon: false,
            last: 0,
            written: 0,
            loose: None,
            is_recorded: false,
            unsaved: Unsaved::default(),
            replies: Vec::new(),
            process: Process::Stable,
        })
    }

    /// Plays the life. Returns whether it ended because nothing is left to do.
    pub(super) fn run(mut self, is_last: bool) -> Check<bool> {
        if !is_last {
            self.process = Process::MayCrash;
        }
        if self.world.disk.turn.is_some() {
            let on_uncertain = self.world.rng.pick(&[OnUncertain::Report, OnUncertain::Ask]);
            let recover = Recover::default().with_on_uncertain(on_uncertain);
            let facts = RecoveryFacts { recover, ..RecoveryFacts::default() };
            self.input(|core, cx| core.take_up(&facts, cx))?;
        }
        for _ in 0..2_000 {
            if self.is_dead() {
                self.resend();
                return Ok(false);
            }
            if self.is_over() {
                return Ok(true);
            }
            self.act()?;
        }
        ensure!(!is_last, "the life does not become idle: {:?}", self.core.phase());
        self.resend();
        Ok(false)
    }

    /// Lets the prompts without an acknowledgement be sent again in the next life.
    fn resend(&mut self) {
        let sent = self.replies.iter().filter_map(|(_, text)| text.strip_prefix("prompt ")?.parse().ok());
        self.world.sent = sent.min().unwrap_or(self.world.sent);
    }

    fn is_over(&self) -> bool {
        self.core.is_settled()
            && !self.unsaved.is_dirty
            && self.replies.is_empty()
            && self.world.sent == self.world.script.prompts
    }

    fn act(&mut self) -> Check {
        let percent = |life: &mut Self, chance| life.world.rng.percent(chance);
        if self.unsaved.is_dirty && percent(self, 30) {
            return self.write();
        }
        if self.soon && percent(self, 30) {
            self.soon = false;
            return self.input(Core::record_now);
        }
        if self.world.sent < self.world.script.prompts && (self.core.is_settled() || self.may_disturb(5)) {
            return self.prompt();
        }
        if self.may_disturb(2) {
            let _ = self.command(Core::interrupt)?;
            return Ok(());
        }
        if self.may_disturb(2) {
            let _ = self.command(Core::cancel)?;
            return Ok(());
        }
        if self.core.status() == Status::Paused && percent(self, 30) {
            return self.decide();
        }
        self.outcome()
    }

    fn is_dead(&self) -> bool {
        self.process == Process::Dead
    }

    fn may_disturb(&mut self, chance: usize) -> bool {
        !self.world.script.is_plain && self.process == Process::MayCrash && self.world.rng.percent(chance)
    }

    fn prompt(&mut self) -> Check {
        let text = format!("prompt {}", self.world.sent);
        let disk = &self.world.disk;
        let in_history = disk.history.iter().any(|message| message.text() == text);
        let in_turn = disk.turn.as_ref().is_some_and(|turn| {
            turn.append.iter().any(|message| message.text() == text) || turn.core.contains(&text)
        });
        self.world.sent += 1;
        if in_history || in_turn {
            // An earlier life has accepted the prompt, and its reply was lost.
            return Ok(());
        }
        let prompt = Prompt::new(text.as_str());
        let sent = self.world.sent;
        let accepted = self.command(|core, cx| core.prompt(prompt, false, cx))?;
        if self.is_dead() {
            // Nobody got a reply, so the prompt is sent again.
            self.world.sent = sent - 1;
        } else if accepted.is_ok() {
            self.reply(text);
        }
        Ok(())
    }

    fn reply(&mut self, text: String) {
        if self.written >= self.last || self.world.fault == Some(Fault::RepliesEarly) {
            self.world.oracle.acknowledge(text);
        } else {
            self.replies.push((self.last, text));
        }
    }

    fn decide(&mut self) -> Check {
        let waiting: Vec<_> = self.core.phase().pauses().cloned().collect();
        let pause = self.world.rng.pick(&waiting);
        let decision = self.world.verdict(&pause.reason);
        let resume = Resume { tool_use: pause.tool_use.id, turn: Some(pause.turn), decision, by: None };
        let resumed = self.command(|core, cx| core.resume(resume, cx))?;
        ensure!(resumed.is_ok(), "{resumed:?}");
        Ok(())
    }

    // ---- outcomes ----

    fn outcome(&mut self) -> Check {
        if let Some((op, call)) = self.call.take() {
            return self.returned(op, call);
        }
        if let Some(op) = self.stream {
            return self.answer(op);
        }
        if let Some((op, mut calls)) = self.tasks.take() {
            let index = self.world.rng.below(calls.len());
            let call = calls.swap_remove(index);
            self.tasks = (!calls.is_empty()).then_some((op, calls));
            let text = Text::new(format!("{} {}", call.tool_use.name, call.tool_use.input));
            let result = ToolResult::ok(&call.tool_use, text);
            return self.input(|core, cx| core.tool_done(op, call.slot, result, cx));
        }
        if let Some(op) = self.delay.take() {
            return self.input(|core, cx| core.delay_over(op, cx));
        }
        if self.unsaved.is_dirty {
            return self.write();
        }
        let waits = self.core.status() == Status::Paused || self.core.is_settled();
        ensure!(waits, "nothing is in progress at {:?}", self.core.phase());
        Ok(())
    }

    fn answer(&mut self, op: Op) -> Check {
        if self.may_disturb(5) {
            self.stream = None;
            let error = ProviderError::new(ErrorKind::Truncated, "gone");
            return self.input(|core, cx| core.stream_failed(op, error.into(), cx));
        }
        let conversation = self.core.phase().turn().map(Turn::conversation).unwrap_or_default();
        let responses =
            conversation.iter().filter(|message| message.role == crate::message::Role::Assistant).count();
        let mut deltas = Vec::new();
        let reason = match self.world.script.said(responses) {
            Said::Text => {
                deltas.push(Delta::Start { index: 0, block: BlockStart::Text });
                deltas.push(Delta::Extend { index: 0, part: Part::Text(format!("answer {responses}")) });
                StopReason::Stop
            }
            Said::Tools(uses) => {
                for (index, (name, _)) in uses.iter().enumerate() {
                    let (id, name) = (format!("{responses}-{index}").into(), (*name).to_owned());
                    deltas.push(Delta::Start { index, block: BlockStart::ToolUse { id, name } });
                }
                StopReason::ToolUse
            }
        };
        deltas.push(Delta::stop(reason));
        for delta in deltas {
            self.input(|core, cx| core.delta(op, delta, cx))?;
            if self.is_dead() {
                return Ok(());
            }
        }
        self.stream = None;
        self.input(|core, cx| core.stream_ended(op, cx))
    }

    fn returned(&mut self, op: Op, call: Call) -> Check {
        match call {
            Call::PrepareStep => {
                let (model, replay) = ("model".into(), self.world.script.provider);
                self.input(|core, cx| core.prepared(op, OutputRequirement::default(), model, replay, cx))
            }
            Call::HandleToolUse(tool_use) => {
                let decision = self.verdict(&tool_use);
                self.input(|core, cx| core.tool_decided(op, decision, cx))
            }
            Call::HandleToolResult(result) => self.input(|core, cx| core.result_reviewed(op, *result, cx)),
            Call::HandleTurn(_) => {
                let working = self.core.phase().turn().map(|turn| turn.working.all().clone());
                let texts = working.iter().flat_map(History::iter).map(|message| message.text());
                let count = texts.filter(|text| text.starts_with("continue")).count();
                let decision = if count < self.world.script.continuations {
                    TurnDecision::continue_with(format!("continue {count}").as_str())
                } else {
                    TurnDecision::Stop
                };
                self.input(|core, cx| core.turn_decided(op, decision, cx))
            }
            Call::HandleError(_) => {
                let decisions = [
                    ErrorDecision::Stop,
                    ErrorDecision::Retry,
                    ErrorDecision::RetryAfter(Duration::from_secs(1)),
                ];
                let decision = self.world.rng.pick(&decisions);
                self.input(|core, cx| core.error_decided(op, decision, cx))
            }
            Call::HandleRecovery(recovery) => self.recovered(op, &recovery),
            Call::HandleEvent => Err("an application event without a notice".to_owned()),
        }
    }

    fn recovered(&mut self, op: Op, recovery: &Recovery) -> Check {
        let decision = if self.may_disturb(10) {
            self.world.rng.pick(&[RecoveryDecision::Interrupt, RecoveryDecision::Discard])
        } else {
            RecoveryDecision::Resume
        };
        let replay = self.world.script.provider;
        self.input(|core, cx| core.recovered(op, decision, recovery, replay, cx))
    }

    /// Returns the decision of `handle_tool_use`. It depends only on the tool use and on the script.
    fn verdict(&self, tool_use: &ToolUse) -> ToolDecision {
        let place = tool_use.id.as_str().split_once('-');
        let place = place.and_then(|(step, index)| Some((step.parse().ok()?, index.parse::<usize>().ok()?)));
        let verdict = place.and_then(|(step, index)| match self.world.script.said(step) {
            Said::Tools(uses) => uses.get(index).map(|(_, verdict)| *verdict),
            Said::Text => None,
        });
        match verdict.unwrap_or(Verdict::Execute) {
            Verdict::Execute => ToolDecision::Execute,
            Verdict::Replace => ToolDecision::ExecuteWith(json!({ "n": 1 })),
            Verdict::Reject => ToolDecision::Reject("no".to_owned()),
            Verdict::Pause => ToolDecision::Pause(json!("ask")),
        }
    }

    // ---- the shell ----

    fn input(&mut self, input: impl FnOnce(&mut Core, &mut Context<'_>)) -> Check {
        self.command(input)
    }

    fn command<T>(&mut self, input: impl FnOnce(&mut Core, &mut Context<'_>) -> T) -> Check<T> {
        let (output, effects) = self.feed(input);
        self.perform_all(effects)?;
        Ok(output)
    }

    fn feed<T>(&mut self, input: impl FnOnce(&mut Core, &mut Context<'_>) -> T) -> (T, Vec<Effect>) {
        let world = &mut *self.world;
        world.clock += 1;
        world.turns += 1;
        let (now, id) = (Timestamp(world.clock), TurnId::new(world.turns));
        let mut cx = Context {
            now: &move || now,
            config: &world.config,
            tools: &world.tools,
            turn_id: &move || id,
            max_staged: 8,
            records: world.script.level,
            hold: &|| None,
            effects: Vec::new(),
        };
        let output = input(&mut self.core, &mut cx);
        let effects = cx.effects;
        self.world.note(|| format!("{effects:?}"));
        (output, effects)
    }

    fn perform_all(&mut self, effects: Vec<Effect>) -> Check {
        for effect in effects {
            self.crash_perhaps();
            if self.is_dead() {
                return Ok(());
            }
            self.perform(effect)?;
        }
        if self.is_dead() {
            return Ok(());
        }
        self.is_recorded = false;
        self.deliver_record();
        self.core.check()?;
        let fresh = snapshot(&self.core, self.world);
        ensure!(self.view == fresh, "the events lead to {:?}, not {fresh:?}", self.view);
        Ok(())
    }

    fn crash_perhaps(&mut self) {
        if self.process == Process::MayCrash && self.world.rng.percent(2) {
            self.world.note(|| "crash".to_owned());
            self.process = Process::Dead;
        }
    }

    fn deliver_record(&mut self) {
        if let Some((number, turn)) = self.loose.take() {
            self.unsaved.turn = std::mem::take(&mut self.unsaved.turn).then(turn);
            (self.unsaved.number, self.unsaved.is_dirty) = (number, true);
        }
    }

    fn perform(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::Emit(event) => self.emit(&event),
            Effect::Call(op, call) => self.call = Some((op, call)),
            Effect::Abort => {
                (self.call, self.stream, self.tasks, self.delay, self.held) = (None, None, None, None, None);
            }
            Effect::DropCall => self.call = None,
            Effect::Open(op) => {
                let ((), effects) = self.feed(|core, cx| core.admitted(op, cx));
                return self.perform_all(effects);
            }
            Effect::Connect(op) => {
                let turn = self.core.phase().turn().ok_or("a request without a turn")?;
                let (id, step, replay) = (turn.id, turn.step, self.world.script.provider);
                if turn.recorded {
                    self.world.oracle.requests(id, step, replay)?;
                }
                self.stream = Some(op);
            }
            Effect::RunTools(op, mut calls) => {
                if self.world.fault == Some(Fault::KeyChanged) {
                    let life = self.world.clock;
                    for call in &mut calls {
                        call.idempotency_key = format!("{life}").into();
                    }
                }
                let recorded = self.core.phase().is_recorded();
                for call in calls.iter().filter(|_| recorded) {
                    let replay = self.world.tools.replay(&call.tool_use.name);
                    self.world.oracle.starts(call, replay)?;
                }
                self.tasks = Some((op, calls));
            }
            Effect::Delay(op, _) => self.delay = Some(op),
            Effect::Record => self.record(),
            Effect::RecordSoon => self.soon = true,
            Effect::Held(effect) => {
                if self.written >= self.last || self.world.fault == Some(Fault::GatesRemoved) {
                    return self.perform(*effect);
                }
                ensure!(self.held.is_none(), "{effect:?} overlaps {:?}", self.held);
                self.held = Some((self.last, *effect));
            }
            Effect::Return(op) => {
                let ((), effects) = self.feed(|core, cx| core.paused(op, cx));
                return self.perform_all(effects);
            }
            Effect::Prompts(_)
            | Effect::Watch(_)
            | Effect::WatchOn { .. }
            | Effect::FreezeWatch(_)
            | Effect::Expire(..)
            | Effect::Answer(_)
            | Effect::AnswerTool(..)
            | Effect::EndTool(_)
            | Effect::Resolve(_) => {}
        }
        Ok(())
    }

    fn emit(&mut self, event: &Event) {
        self.view.take_in(event);
        if let Event::Turn(outcome) = event {
            self.unsaved.messages.extend(outcome.response().messages.iter().cloned());
            self.unsaved.is_dirty = true;
            if self.loose.is_none() {
                self.unsaved.turn = Change::None;
            }
        }
        if let Some(end) = RunEnd::of(event) {
            let unanswered = end.unanswered.iter().map(|message| message.text());
            let staged = end.staged.iter().map(|prompt| Message::user(prompt.content.clone()).text());
            self.unsaved.returned.extend(unanswered.chain(staged));
            self.unsaved.is_dirty = true;
        }
        self.deliver_record();
    }

    fn record(&mut self) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        let mut turn = self.core.record();
        if let (Some(turn), Some(Fault::KeepIgnored)) = (&mut turn, self.world.fault) {
            turn.keep = 0;
        }
        self.last += 1;
        self.soon = false;
        self.loose = Some((self.last, turn));
    }

    /// Writes all changes at once. The process may crash before or after the write.
    fn write(&mut self) -> Check {
        self.crash_perhaps();
        if self.is_dead() {
            return Ok(());
        }
        let Unsaved { messages, turn, returned, number, .. } = std::mem::take(&mut self.unsaved);
        let disk = &mut self.world.disk;
        let has_committed = !messages.is_empty();
        disk.history.extend(messages);
        disk.turn = match (disk.turn.take(), turn, self.world.fault) {
            (Some(stored), Change::Record(turn), Some(Fault::OlderTurnKept)) if stored.turn != turn.turn => {
                Some(stored)
            }
            (Some(stored), Change::Record(turn), _) => Some(stored.then(*turn)),
            (None, Change::Record(turn), _) => Some(*turn),
            (stored, _, Some(Fault::RecordKept)) => stored,
            (_, Change::End, _) => None,
            (stored, Change::None, _) => stored.filter(|_| !has_committed),
        };
        self.world.oracle.returns(returned);
        self.crash_perhaps();
        if self.is_dead() {
            return Ok(());
        }
        self.written = self.written.max(number);
        let written = self.written;
        for (_, text) in self.replies.extract_if(.., |(waits_for, _)| *waits_for <= written) {
            self.world.oracle.acknowledge(text);
        }
        if let Some((_, effect)) = self.held.take_if(|(waits_for, _)| *waits_for <= written) {
            return self.perform_all(vec![effect]);
        }
        Ok(())
    }
}
