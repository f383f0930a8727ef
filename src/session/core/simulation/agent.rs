//! A simulated agent, reduced to what the session sees of an agent: its events, in order.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use serde_json::json;

use super::compactions::Underway;
use crate::actor::random::Rng;
use crate::{
    agent::{Config, Event, FirstMessageOfRun, Status},
    message::{
        Content, History, Message, RequestEnd, Role, Text, Timestamp, ToolResult, ToolUse, TurnId, Usage,
        UsageRow,
    },
    provider::StopReason,
    run::{Failure, Prompt, Response},
    subscription::EventId,
};

/// An event that the session has not processed yet, and the configuration at that time. If the event is a message, it
/// also has the settings of the prompt in flight.
pub(super) type AgentEvent = (EventId, Arc<Event>, Arc<Config>, Option<Arc<Prompt>>);

pub(super) struct Agent {
    pub(super) config: Arc<Config>,
    /// The committed messages.
    pub(super) history: History,
    /// The committed messages before the current run, if the run started on another history and has not committed
    /// anything yet.
    before: Option<History>,
    /// The messages of the turn in flight.
    pub(super) pending: Vec<Arc<Message>>,
    /// Whether the agent compacts its conversation.
    pub(super) compacts: bool,
    /// The compaction in progress.
    pub(super) compacting: Option<Underway>,
    /// The number of prompts that have joined the turn since the last answer.
    joined: usize,
    /// Whether the run gives another answer to a message of an earlier run.
    pub(super) is_again: bool,
    /// The settings of the prompt in flight.
    settings: Option<Arc<Prompt>>,
    pub(super) runs: bool,
    status: Status,
    last: EventId,
    pub(super) undelivered: VecDeque<AgentEvent>,
    pub(super) messages: u32,
    /// The id of the turn in flight.
    pub(super) turn: TurnId,
    /// The number of the last request of the turn in flight.
    pub(super) request: u32,
    turns: u32,
    /// The usage of the requests of the turn in flight.
    pub(super) spent: Usage,
}

fn message(role: Role, content: Vec<Content>) -> Arc<Message> {
    // The timestamp must not come from the clock, so that a seed always produces the same messages.
    Arc::new(Message { timestamp: Timestamp(0), ..Message::new(role, content) })
}

/// Returns a user message with a text and with results for the open tool uses of `history`.
fn prompt(number: u32, history: &History) -> Arc<Message> {
    let results = history.open_tool_uses().map(|open| ToolResult::ok(open, Text::new("done")).into());
    let text = Text::new("?".repeat(1 + number as usize % 200)).into();
    message(Role::User, results.chain([text]).collect())
}

fn answer(number: u32, rng: &mut Rng) -> Arc<Message> {
    let text = Text::new(format!("answer {number}")).into();
    let tool_use = ToolUse::new(format!("use {number}"), "search", json!({})).into();
    message(Role::Assistant, if rng.percent(30) { vec![text, tool_use] } else { vec![text] })
}

/// Returns random settings for a prompt, or `None` if they are all unset.
pub(super) fn random_settings(rng: &mut Rng) -> Option<Prompt> {
    let steps = rng.pick(&[None, None, Some(2), Some(7)]);
    let tokens = rng.pick(&[None, None, Some(10), Some(20)]);
    let key = rng.percent(20).then(|| "key".to_owned());
    let mut settings = Prompt { max_steps: steps, ..Prompt::default() };
    settings.options.set_max_tokens(tokens);
    settings.options.set_api_key(key.map(Into::into));
    Some(settings).filter(Prompt::has_settings)
}

/// Returns the messages of a complete turn that continues this history.
pub(super) fn random_turn(number: u32, history: &History, rng: &mut Rng) -> [Arc<Message>; 2] {
    [prompt(number, history), answer(number, rng)]
}

impl Agent {
    pub(super) fn new(config: Arc<Config>, history: History, life: u64) -> Self {
        Self {
            config,
            history,
            before: None,
            pending: Vec::new(),
            compacts: false,
            compacting: None,
            joined: 0,
            is_again: false,
            settings: None,
            runs: false,
            status: Status::Idle,
            last: EventId { life, number: 1 },
            undelivered: VecDeque::new(),
            messages: 0,
            turn: TurnId::default(),
            request: 0,
            turns: 0,
            spent: Usage::default(),
        }
    }

    pub(super) fn last(&self) -> EventId {
        self.last
    }

    pub(super) fn emit(&mut self, event: Event) -> EventId {
        self.last.number += 1;
        let settings = self.settings.clone().filter(|_| matches!(event, Event::Message { .. }));
        self.undelivered.push_back((self.last, Arc::new(event), Arc::clone(&self.config), settings));
        self.last
    }

    pub(super) fn become_(&mut self, status: Status) {
        if self.status != status {
            self.status = status;
            self.emit(Event::Status { status, pauses: Vec::new() });
        }
    }

    fn emit_state(&mut self) -> EventId {
        self.emit(Event::State(Arc::new(self.config.view(self.history.clone()))))
    }

    /// Performs the agent's next step. Returns whether a run is active afterwards.
    pub(super) fn act(&mut self, rng: &mut Rng) -> bool {
        if self.runs {
            self.go_on(rng);
        } else if rng.percent(20) {
            // The configuration changes, as with `set_state`.
            self.config = super::start::random_config(&self.config, rng);
            self.emit_state();
        } else if self.compacts && rng.percent(20) {
            self.compact_on_request(rng);
        } else {
            self.settings = random_settings(rng).map(Arc::new);
            self.begin(None);
        }
        self.runs
    }

    fn go_on(&mut self, rng: &mut Rng) {
        if rng.percent(10) {
            // A callback changes the configuration.
            self.config = super::start::random_config(&self.config, rng);
        }
        if self.status == Status::Paused || rng.percent(4) {
            let paused = self.status == Status::Paused;
            return self.become_(if paused { Status::Busy } else { Status::Paused });
        }
        if rng.percent(8) {
            return self.fail(rng);
        }
        self.messages += 1;
        if let Some(underway) = self.compacting.take() {
            return self.end_compaction(underway, rng);
        }
        let Some(last) = self.pending.last().cloned() else {
            // The previous turn was continued. This turn belongs to the same prompt or to a staged prompt.
            if rng.percent(50) {
                self.settings = random_settings(rng).map(Arc::new);
            }
            let prompt = prompt(self.messages, &self.history);
            return self.add(prompt);
        };
        let uses: Vec<ToolUse> = last.tool_uses().cloned().collect();
        if self.may_end() && rng.percent(if uses.is_empty() { 85 } else { 30 }) {
            return self.end_turn(rng);
        }
        if last.role == Role::User {
            if self.compacts && last.compaction.is_none() && rng.percent(25) {
                return self.compact(rng);
            }
            if rng.percent(10) {
                // The request fails and is repeated.
                self.breaks_off(RequestEnd::Void, rng);
            }
            self.joined = 0;
            self.add(answer(self.messages, rng));
            return self.step(rng);
        }
        let content = if uses.is_empty() {
            vec![Text::new("go on").into()]
        } else {
            uses.iter().map(|open| ToolResult::ok(open, Text::new("done")).into()).collect()
        };
        self.add(message(Role::User, content));
        if !uses.is_empty() && rng.percent(25) {
            // A staged prompt joins the turn.
            self.messages += 1;
            let text = Text::new("!".repeat(1 + self.messages as usize % 200));
            self.add(message(Role::User, vec![text.into()]));
            self.joined = 1;
        }
    }

    /// Stages the prompt again that has joined the turn and is not answered, as before a commit. A compaction behind it is
    /// removed, too.
    fn leave_step(&mut self) {
        let left = std::mem::take(&mut self.joined);
        while left > 0 && self.pending.last().is_some_and(|last| last.compaction.is_some()) {
            self.pending.pop();
        }
        self.pending.truncate(self.pending.len() - left);
    }

    /// Ends a request. Its usage is sometimes unknown.
    fn step(&mut self, rng: &mut Rng) {
        let usage = Usage::default().with_input(rng.pick(&[0, 1, 5]));
        self.spent += usage;
        self.request += 1;
        let (message, turn) = (self.pending.last().cloned(), Some(self.turn));
        let name = rng.pick(&["model", "other"]);
        let response =
            Response { message, usage, turn, ..Response::empty(name, StopReason::Stop, self.request, 1) };
        self.emit(Event::Step(Arc::new(response)));
    }

    /// Ends a request without a complete response. Its usage is often unknown, and then no event is emitted.
    fn breaks_off(&mut self, end: RequestEnd, rng: &mut Rng) {
        let usage = Usage::default().with_output(rng.pick(&[0, 0, 3]));
        if usage.is_zero() {
            return;
        }
        self.spent += usage;
        self.request += 1;
        let row = UsageRow::new(end, usage).with_turn(self.turn).with_step(self.request);
        let name = rng.pick(&["model", "other"]).to_owned();
        self.emit(Event::Usage(Box::new(row.with_model(name))));
    }

    /// Starts a turn. Each turn gets a unique id, because the simulation compares the ends of runs across restarts of the
    /// session.
    pub(super) fn begin_turn(&mut self) {
        (self.turns, self.request, self.joined) = (self.turns + 1, 0, 0);
        self.turn = TurnId::new(u128::from(self.last.life) << 32 | u128::from(self.turns));
    }

    fn add(&mut self, message: Arc<Message>) {
        if self.pending.is_empty() {
            self.begin_turn();
        }
        self.pending.push(Arc::clone(&message));
        self.emit(Event::Message { message, step: 0, turn: self.turn, run: 1 });
    }

    /// Starts a run with a new prompt, or with the given message, which then gets another response.
    fn begin(&mut self, anew: Option<Arc<Message>>) {
        self.messages += 1;
        (self.runs, self.is_again) = (true, anew.is_some());
        self.become_(Status::Busy);
        let message = anew.unwrap_or_else(|| prompt(self.messages, &self.history));
        self.add(message);
    }

    /// Replaces the history, as the agent's owner requests, and starts a run on the new history if `run` contains its
    /// first message.
    pub(super) fn move_to(&mut self, history: History, run: Option<FirstMessageOfRun>) -> EventId {
        let before = std::mem::replace(&mut self.history, history);
        let with = self.emit_state();
        if let Some(opening) = run {
            self.before = Some(before);
            let (anew, settings) = match opening {
                FirstMessageOfRun::Prompt(prompt) => (None, prompt),
                FirstMessageOfRun::Message(message, settings) => (Some(message), settings),
            };
            self.settings = Some(Arc::new(settings)).filter(|settings| settings.has_settings());
            self.begin(anew);
        }
        with
    }

    pub(super) fn response(&mut self, reason: StopReason) -> Arc<Response> {
        let messages = std::mem::take(&mut self.pending);
        let usage = std::mem::take(&mut self.spent);
        let message = messages.iter().rfind(|message| message.role == Role::Assistant).cloned();
        // If the run ends between two turns, no turn is in flight.
        let turn = (!messages.is_empty()).then_some(self.turn);
        Arc::new(Response { message, messages, usage, turn, ..Response::empty("model", reason, 0, 1) })
    }

    /// Returns whether the turn in flight can be committed.
    fn may_end(&self) -> bool {
        let is_end =
            |last: &Arc<Message>| last.role == Role::Assistant || last.tool_results().next().is_some();
        let own: Vec<_> = self.pending.iter().filter(|message| message.compaction.is_none()).collect();
        own.len() > 1 && own.last().is_some_and(|last| is_end(last))
    }

    fn end_turn(&mut self, rng: &mut Rng) {
        self.history.extend(self.pending.iter().cloned());
        (self.before, self.is_again) = (None, false);
        let is_interrupted = rng.percent(10);
        let reason = if is_interrupted { StopReason::Interrupted } else { StopReason::Stop };
        if is_interrupted {
            self.breaks_off(RequestEnd::Interrupted, rng);
        }
        let response = self.response(reason);
        if !is_interrupted && self.compact_after(&response, rng) {
            return;
        }
        if !is_interrupted && rng.percent(25) {
            self.emit(Event::Turn { response, continues: true });
            return;
        }
        self.runs = false;
        self.become_(Status::Idle);
        self.emit(Event::Turn { response, continues: false });
    }

    /// Cancels the run or makes it fail.
    pub(super) fn fail(&mut self, rng: &mut Rng) {
        if let Some(Underway::Alone(answered)) = self.compacting.take() {
            // Only the compaction is cancelled.
            return self.end_compaction_turn(answered, false);
        }
        (self.runs, self.is_again) = (false, false);
        let is_cancelled = rng.percent(50);
        if !self.pending.is_empty() {
            self.breaks_off(if is_cancelled { RequestEnd::Cancelled } else { RequestEnd::Failed }, rng);
        }
        self.become_(Status::Idle);
        let committed = !is_cancelled && (self.joined > 0 || self.may_end()) && rng.percent(50);
        if committed {
            self.leave_step();
            self.history.extend(self.pending.iter().cloned());
            self.before = None;
        }
        let response = self.response(StopReason::Cancelled);
        let failure = Failure::TimeLimit { limit: Duration::from_secs(1) };
        self.emit(if is_cancelled {
            Event::Cancelled { response }
        } else {
            Event::Error { failure, response, committed }
        });
        if let Some(before) = self.before.take() {
            self.history = before;
            self.emit_state();
        }
    }

    /// Kills the agent. Its last events may be lost.
    pub(super) fn die(&mut self, rng: &mut Rng) {
        let arrives = rng.below(self.undelivered.len() + 1);
        self.undelivered.truncate(arrives);
    }
}
