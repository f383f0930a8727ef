//! Tests with schedules that once broke an invariant of the core.

use std::time::Duration;

use serde_json::json;

use super::{ends::some_usage, world};
use crate::{
    agent::{
        Config, Durable, ErrorDecision, Event, Prompt, Snapshot, ToolDecision, TurnDecision,
        core::{AgentCore, AgentEffect, CoreInputContext, ResumeDecisions},
        phase::{AgentPhase, AgentTurnStage, DecisionOrPause, OpNumber, OutputRequirement},
    },
    message::{
        Content, DecisionKind, Message, Role, Timestamp, ToolResult, ToolUse, TurnId, Usage, UseDecision,
    },
    provider::{BlockStart, Delta, MessageDelta, Part, StopReason},
    run::{Error, ErrorKind},
    subscription::EventId,
    tool::{Decision, Replay, ToolSet},
};

/// A core that a test drives step by step.
struct Bench {
    core: AgentCore,
    config: Config,
    tools: ToolSet,
    /// All emitted events.
    events: Vec<Event>,
    /// The operation number of the last callback that the core requested.
    call: OpNumber,
}

impl Bench {
    fn new() -> Self {
        let (config, tools) = (world::config(), world::tools());
        Self { core: AgentCore::default(), config, tools, events: Vec::new(), call: 0 }
    }

    fn feed<T>(&mut self, input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> T) -> T {
        let mut cx = CoreInputContext {
            now: &|| Timestamp(1),
            config: &self.config,
            tools: &self.tools,
            turn_id: &|| TurnId::new(u128::MAX),
            max_staged: 8,
            at_once: 32,
            records: Durable::Turns,
            replay: &|_| crate::tool::Replay::Safe,
            hold: &|| None,
            effects: Vec::new(),
        };
        let output = input(&mut self.core, &mut cx);
        for effect in cx.effects {
            match effect {
                AgentEffect::Emit(event) => self.events.push(event),
                AgentEffect::Call(op, _) => self.call = op,
                _ => {}
            }
        }
        self.core.check().unwrap();
        output
    }

    fn prompt(&mut self, prompt: impl Into<Prompt>) {
        let prompt = prompt.into();
        self.feed(|core, cx| core.prompt(prompt, false, cx)).unwrap();
    }

    /// Sends the request, and begins the response with these deltas.
    fn answer(&mut self, deltas: impl IntoIterator<Item = Delta>) {
        let call = self.call;
        let (output, model) = (OutputRequirement::default(), "model".into());
        self.feed(|core, cx| core.prepared(call, output, model, Replay::Safe, cx));
        for delta in deltas {
            let op = self.op();
            self.feed(|core, cx| core.delta(op, delta, cx));
        }
    }

    fn end(&mut self, reason: StopReason) {
        let op = self.op();
        self.feed(|core, cx| {
            core.delta(op, Delta::stop(reason), cx);
            core.stream_ended(op, cx);
        });
    }

    fn decide(&mut self, decision: ToolDecision) {
        let call = self.call;
        self.feed(|core, cx| core.tool_decided(call, decision, cx));
    }

    fn conclude(&mut self, decision: TurnDecision) {
        let call = self.call;
        self.feed(|core, cx| core.turn_decided(call, decision, cx));
    }

    fn pause(&mut self) {
        self.decide(ToolDecision::Pause(json!("ask a person")));
    }

    fn resume(&mut self, id: &str) -> Result<(), Error> {
        let decisions = vec![(id.into(), Decision::reject("no"))];
        let resume = ResumeDecisions { decisions, turn: None, by: None };
        self.feed(|core, cx| core.resume(resume, cx)).map(drop)
    }

    fn time_over(&mut self) {
        self.feed(|core, cx| core.time_over(Duration::from_secs(1), cx));
    }

    fn retry(&mut self) {
        let call = self.call;
        self.feed(|core, cx| core.error_decided(call, ErrorDecision::Retry, cx));
    }

    fn interrupt(&mut self) {
        self.feed(AgentCore::interrupt).unwrap();
    }

    /// Returns the operation that the phase waits for.
    fn op(&self) -> OpNumber {
        self.core.phase().op().unwrap()
    }

    fn waiting(&self) -> &str {
        self.core.phase().pauses().next().unwrap().tool_use.id.as_str()
    }

    fn snapshot(&self) -> Snapshot {
        let none = EventId { life: 0, number: 0 };
        self.core.snapshot(none, self.config.view(self.core.history().clone()))
    }
}

fn starts_tool_use(index: usize, id: &str) -> Delta {
    Delta::Start { index, block: BlockStart::ToolUse { id: id.into(), name: "search".to_owned() } }
}

fn uses_usage(usage: Usage) -> Delta {
    Delta::Message(Box::new(MessageDelta { usage: Some(usage), ..MessageDelta::default() }))
}

fn text(text: &str) -> [Delta; 2] {
    let part = Part::Text(text.to_owned());
    [Delta::Start { index: 0, block: BlockStart::Text }, Delta::Extend { index: 0, part }]
}

fn is_stale(resumed: &Result<(), Error>) -> bool {
    resumed.as_ref().is_err_and(|error| error.kind() == ErrorKind::StaleDecision)
}

#[test]
fn retry_after_time_limit_in_handle_event_keeps_the_prompt() {
    let mut bench = Bench::new();
    bench.feed(AgentCore::notify).unwrap();
    bench.prompt("hi");
    bench.time_over();
    bench.retry();
    let turn = bench.core.phase().turn().unwrap();
    assert_eq!(turn.working.all().iter().map(|message| message.text()).collect::<Vec<_>>(), ["hi"]);
}

#[test]
fn end_of_a_time_limit_for_a_pause_without_one_decides_nothing() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([starts_tool_use(0, "call_0")]);
    bench.end(StopReason::ToolUse);
    bench.pause();
    bench.feed(|core, cx| core.pause_expired(&"call_0".into(), cx));
    assert_eq!(bench.waiting(), "call_0");
}

#[test]
fn resume_late_for_a_call_of_an_earlier_turn_is_stale() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([starts_tool_use(0, "call_0")]);
    bench.end(StopReason::ToolUse);
    bench.pause();
    bench.feed(AgentCore::cancel).unwrap();

    bench.prompt("again");
    bench.answer([starts_tool_use(0, "call_0")]);
    bench.end(StopReason::ToolUse);
    bench.pause();
    assert!(is_stale(&bench.resume("call_0")));
    let waiting = bench.waiting().to_owned();
    bench.resume(&waiting).unwrap();
}

#[test]
fn resume_late_for_a_generated_id_is_stale() {
    // In both responses, the service sends a tool use with an empty id. The agent must generate a different id for each
    // of them.
    let mut bench = Bench::new();
    bench.prompt("hi");
    for _ in 0..2 {
        bench.answer([starts_tool_use(0, "")]);
        bench.end(StopReason::ToolUse);
        bench.pause();
        let waiting = bench.waiting().to_owned();
        bench.resume(&waiting).unwrap();
        assert_eq!(bench.resume(&waiting).unwrap_err().kind(), ErrorKind::NotPaused);
        let (call, tool_use) = (bench.call, ToolUse::new(waiting, "search", json!({})));
        let result = ToolResult::error(&tool_use, "no");
        bench.feed(|core, cx| core.result_reviewed(call, result, cx));
    }
    let waited = bench.events.iter().filter_map(|event| match event {
        Event::Status { pauses, .. } => pauses.first().map(|pause| pause.tool_use.id.as_str()),
        _ => None,
    });
    let [first, second] = waited.collect::<Vec<_>>()[..] else { panic!("expected two pauses") };
    assert_ne!(first, second);
}

#[test]
fn resume_late_for_a_question_of_the_provider_is_stale() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([]);
    let op = bench.op();
    for _ in 0..2 {
        let tool_use = ToolUse::new("a", "served", json!({}));
        bench.feed(|core, cx| core.asked(op, tool_use, cx));
        bench.pause();
        if bench.waiting() == "a" {
            bench.resume("a").unwrap();
        }
    }
    assert!(is_stale(&bench.resume("a")));
}

#[test]
fn tool_decided_late_for_a_paused_question_changes_nothing() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([]);
    let op = bench.op();
    bench.feed(|core, cx| core.asked(op, ToolUse::new("a", "served", json!({})), cx));
    bench.pause();
    bench.decide(ToolDecision::Execute);
    assert_eq!(bench.waiting(), "a");
}

#[test]
fn interrupt_after_time_limit_in_review_emits_each_result_once() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([starts_tool_use(0, "a"), starts_tool_use(1, "b")]);
    bench.end(StopReason::ToolUse);
    bench.decide(ToolDecision::Reject("no".to_owned()));
    bench.decide(ToolDecision::Execute);
    let (op, tool_use) = (bench.op(), ToolUse::new("b", "search", json!({})));
    let done = ToolResult::ok(&tool_use, crate::message::Text::new("done"));
    bench.feed(|core, cx| core.tool_done(op, 1, done, cx));
    let (call, first) = (bench.call, ToolResult::error(&tool_use, "reviewed"));
    bench.feed(|core, cx| core.result_reviewed(call, first, cx));
    bench.time_over();
    bench.interrupt();
    let told = bench.events.iter().filter_map(|event| match event {
        Event::ToolResult { result, .. } => Some((result.tool_use_id.as_str(), result.text())),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told[0], ("a", "reviewed".to_owned()));
    assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["a", "b"]);
    let results = bench.core.history().last().unwrap().tool_results().map(ToolResult::text);
    assert!(results.eq(told.into_iter().map(|(_, text)| text)));
}

#[test]
fn retry_after_time_limit_keeps_the_results_of_tools_that_have_ended() {
    for reviewed in [false, true] {
        let mut bench = Bench::new();
        bench.prompt("hi");
        bench.answer([starts_tool_use(0, "a"), starts_tool_use(1, "b")]);
        bench.end(StopReason::ToolUse);
        bench.decide(ToolDecision::Execute);
        bench.decide(ToolDecision::Execute);
        let done = |id: &str| {
            ToolResult::ok(&ToolUse::new(id, "search", json!({})), crate::message::Text::new("done"))
        };
        let op = bench.op();
        bench.feed(|core, cx| core.tool_done(op, 0, done("a"), cx));
        if reviewed {
            bench.feed(|core, cx| core.tool_done(op, 1, done("b"), cx));
            let call = bench.call;
            bench.feed(|core, cx| core.result_reviewed(call, done("a"), cx));
        }
        bench.time_over();
        bench.retry();
        let turn = bench.core.phase().turn().unwrap();
        let results: Vec<_> = turn
            .working
            .last()
            .unwrap()
            .tool_results()
            .map(|result| (result.text(), result.is_error))
            .collect();
        assert_eq!(results[0], ("done".to_owned(), false));
        assert_eq!((results.len(), results[1].1, turn.step), (2, !reviewed, 2));
        assert!(!bench.events.iter().any(|event| matches!(event, Event::Retry { .. })));
        bench.answer(text("hello"));
        bench.end(StopReason::Stop);
        bench.conclude(TurnDecision::Stop);
        assert_eq!(bench.core.history().last().unwrap().text(), "hello");
    }
}

#[test]
fn retry_of_a_broken_response_counts_its_usage() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer([uses_usage(some_usage(5))]);
    let op = bench.op();
    bench.feed(|core, cx| core.stream_ended(op, cx));
    bench.retry();
    bench.answer(text("hello").into_iter().chain([uses_usage(some_usage(7))]));
    bench.end(StopReason::Stop);
    bench.conclude(TurnDecision::Stop);
    let Some(Event::Turn { response, continues: false, .. }) = bench.events.last() else {
        panic!("expected the end of the run: {:?}", bench.events);
    };
    assert_eq!(response.usage, some_usage(5) + some_usage(7));
}

#[test]
fn step_after_a_paused_response_contains_the_user_message() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    for reason in [StopReason::Pause, StopReason::Stop] {
        bench.answer(text("hello"));
        bench.end(reason);
    }
    let steps: Vec<_> = bench
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Step(step) => Some(step.messages.iter().map(|message| message.role).collect::<Vec<_>>()),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [[Role::User, Role::Assistant], [Role::User, Role::Assistant]]);
}

#[test]
fn turn_without_tool_uses_ends_with_stop() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer(text("hello"));
    bench.end(StopReason::ToolUse);
    bench.conclude(TurnDecision::Stop);
    let Some(Event::Turn { response, .. }) = bench.events.last() else {
        panic!("expected the end of the turn")
    };
    assert_eq!(response.stop_reason, StopReason::Stop);
}

#[test]
fn turn_at_the_limit_keeps_its_reason_if_a_staged_prompt_follows() {
    let mut bench = Bench::new();
    bench.prompt(Prompt::new("hi").with_max_steps(1));
    bench.answer(text("hello"));
    bench.end(StopReason::Stop);
    bench.prompt("next");
    bench.conclude(TurnDecision::continue_with("more"));
    let turn = bench.events.iter().find_map(|event| match event {
        Event::Turn { response, continues: true, .. } => Some(&response.stop_reason),
        _ => None,
    });
    assert_eq!(turn, Some(&StopReason::Stop));
}

#[test]
fn snapshot_apply_removes_a_staged_prompt_used_between_two_turns() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    bench.answer(text("hello"));
    bench.end(StopReason::Stop);
    bench.feed(AgentCore::notify).unwrap();
    bench.conclude(TurnDecision::continue_with("more"));
    bench.prompt("staged");
    let mut snapshot = bench.snapshot();
    assert_eq!(snapshot.staged.len(), 1);
    bench.events.clear();
    let call = bench.call;
    bench.feed(|core, _| core.event_begun(call));
    bench.feed(|core, cx| core.event_handled(call, None, cx));
    bench.events.iter().for_each(|event| snapshot.take_in(event));
    assert_eq!(snapshot, bench.snapshot());
}

#[test]
fn snapshot_apply_marks_a_file_as_ended() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    let mut snapshot = bench.snapshot();
    bench.events.clear();
    let file = crate::message::Attachment::base64("image/png", "iVBORw0KGgo=");
    bench.answer([Delta::Start { index: 0, block: BlockStart::Attachment(file) }]);
    bench.events.iter().for_each(|event| snapshot.take_in(event));
    assert_eq!(snapshot, bench.snapshot());
}

#[test]
fn staged_prompt_after_open_tool_uses_closes_them() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    let ask = BlockStart::ToolUse { id: "a".into(), name: "ask_user".to_owned() };
    bench.answer([Delta::Start { index: 0, block: ask }]);
    bench.end(StopReason::ToolUse);
    bench.decide(ToolDecision::Execute);
    bench.prompt("never mind");
    bench.conclude(TurnDecision::Stop);
    let turn = bench.core.phase().turn().unwrap();
    let first: &Message = turn.working.pending().next().unwrap();
    let [Content::ToolResult(result), Content::Text(text)] = &first.content[..] else {
        panic!("expected a result and the prompt: {first:?}");
    };
    assert!(result.is_error);
    assert_eq!(text.text, "never mind");
}

#[test]
fn decision_of_a_turn_that_is_left_stays_as_it_was_made() {
    for is_rejected in [true, false] {
        let mut bench = Bench::new();
        bench.prompt("hi");
        bench.answer([starts_tool_use(0, "a"), starts_tool_use(1, "b")]);
        bench.end(StopReason::ToolUse);
        bench.pause();
        bench.decide(ToolDecision::Execute);
        let input = json!({ "eur": 20 });
        let decision =
            if is_rejected { Decision::reject("no") } else { Decision::ExecuteWith(input.clone()) };
        let resume =
            ResumeDecisions { decisions: vec![("a".into(), decision)], turn: None, by: Some("ann".into()) };
        bench.feed(|core, cx| core.resume(resume, cx)).unwrap();
        let made = bench.events.iter().rev().find_map(|event| match event {
            Event::Decided(decided) => Some(decided.clone()),
            _ => None,
        });
        let effect = AgentEffect::RunTools(bench.op(), Vec::new());
        bench.feed(|core, cx| core.leave(Some(&effect), cx));
        let tools = bench.core.withdrawn().unwrap();
        assert_eq!(tools.early, [*made.unwrap()]);
        let answers = tools.into_answers();
        let DecisionOrPause::Decided(given, Some(own)) = &answers[0] else { panic!("{answers:?}") };
        assert_eq!(DecisionKind::from(given), own.decision.kind);
        assert_eq!((own.by_person, own.stands), (true, false));
    }
}

#[test]
fn interrupt_of_a_concluded_step_states_a_changed_input_once() {
    let mut bench = Bench::new();
    bench.prompt("hi");
    let declared = BlockStart::ToolUse { id: "b".into(), name: "ask_user".to_owned() };
    bench.answer([starts_tool_use(0, "a"), Delta::Start { index: 1, block: declared }]);
    bench.end(StopReason::ToolUse);
    bench.decide(ToolDecision::Reject("no".to_owned()));
    bench.decide(ToolDecision::Execute);
    let AgentPhase::InTurn { stage: AgentTurnStage::Concluding { end }, .. } = &mut bench.core.phase else {
        panic!("{:?}", bench.core.phase)
    };
    let result = &mut end.decided[0];
    let decision = result.decision.as_deref().cloned().unwrap();
    let decision = UseDecision { input: Some(json!({ "eur": 20 })), ..decision };
    *result = result.clone().decided(decision, true, true);
    let stated = result.clone();
    bench.interrupt();
    assert_eq!(bench.core.history().last().unwrap().tool_results().next(), Some(&stated));
}
