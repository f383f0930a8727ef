//! Events are serialized and deserialized without loss.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{Decided, Event, Failure, Next, PendingUse, Prompt, PromptState, RunOutcome, Snapshot, Status},
    message::{
        Attachment, Message, MessageId, ProviderItem, RequestEnd, Text, Thinking, Timestamp, ToolResult,
        ToolUse, TurnId, Usage, UsageRow,
    },
    provider::{Options, ProviderError, ProviderErrorKind},
    run::SubAgentUse,
    subscription::{EndReason, EventId, Numbered, Update},
    testing::Step,
    tool::Decision,
};
use serde_json::json;

use super::{
    rig::{echoing, tokens},
    support::{ends_run, run_events},
};

fn tool_use() -> ToolUse {
    let input = json!({ "z": 1, "a": [1.5, -0.0, u64::MAX, i64::MIN, null], "": { "type": "x" } });
    ToolUse::new("t1", "echo", input).with_malformed("{").with_signature("s")
}

fn turn() -> TurnId {
    TurnId::new(u128::MAX - 1)
}

/// Returns events with awkward values. These events are built without a run.
fn awkward_retries() -> [Event; 5] {
    let error = ProviderError::new(ProviderErrorKind::RateLimit, "slow \u{2028} \"down\"")
        .with_status(429)
        .with_body("{}")
        .with_retry_after(Some(Duration::new(1, 500_000_001)))
        .with_request_id(Some("r1".into()));
    [
        Event::Retry {
            failure: error.into(),
            delay: Duration::new(3, 7),
            pending: 2,
            complete: true,
            step: 4,
            model: None,
        },
        Event::Retry {
            failure: Failure::Refused,
            delay: Duration::ZERO,
            pending: 1,
            complete: false,
            step: 2,
            model: Some("other:small".into()),
        },
        Event::Retry {
            failure: Failure::TimeLimit { limit: Duration::MAX },
            delay: Duration::ZERO,
            pending: 0,
            complete: false,
            step: 1,
            model: None,
        },
        Event::Retry {
            failure: Failure::Callback { callback: "c".into(), message: "m".into() },
            delay: Duration::ZERO,
            pending: 0,
            complete: false,
            step: 1,
            model: None,
        },
        Event::Retry {
            failure: Failure::ProviderPanicked { message: "m".into() },
            delay: Duration::ZERO,
            pending: 0,
            complete: false,
            step: 1,
            model: None,
        },
    ]
}

fn awkward_events() -> Vec<Event> {
    let thinking = Thinking::new("t").with_signature("s").with_redacted("r");
    let attachment = Attachment::base64("image/png", "AAAA").named("a.png");
    vec![
        Event::TextStart { index: 0 },
        Event::TextDelta { index: usize::MAX, delta: "a\u{0}b".into() },
        Event::TextEnd { index: 1, content: Text::new("x").with_signature(String::new()) },
        Event::ThinkingStart { index: 2 },
        Event::ThinkingDelta { index: 2, delta: String::new() },
        Event::ThinkingEnd { index: 2, content: thinking },
        Event::ToolUseStart { index: 3, id: "t1".into(), name: "echo".into() },
        Event::ToolUseDelta { index: 3, delta: "{".into() },
        Event::ToolUseEnd { index: 3, content: Box::new(tool_use()) },
        Event::Attachment { index: 4, content: Box::new(attachment) },
        Event::ProviderItem {
            index: 5,
            content: Box::new(ProviderItem::new("f", json!({ "type": "step" }))),
        },
        Event::Message {
            message: Arc::new(Message::user("Hi")),
            step: u32::MAX,
            turn: turn(),
            run: u32::MAX,
        },
        Event::StepStart { step: 7, message_id: "a message".into() },
        Event::StepStart { step: u32::MAX, message_id: MessageId::made(turn(), u32::MAX) },
        Event::ToolProgress { tool_use_id: "t1".into(), data: json!(null) },
        Event::ToolResult { result: Box::new(ToolResult::error(&tool_use(), "no")), input: Some(json!({})) },
        Event::ToolResult { result: Box::new(ToolResult::ok(&tool_use(), Text::new("yes"))), input: None },
        Event::Status {
            status: Status::Paused,
            pauses: vec![Arc::new(PendingUse {
                turn: turn(),
                tool_use: tool_use(),
                input_replaced: true,
                reason: json!({ "type": "pause", "id": 1 }),
                asked_by: Some("t0".into()),
                sub_agent: Some(Box::new(SubAgentUse {
                    name: "search".into(),
                    conversation: Some("sub-1".into()),
                    turn: turn(),
                    tool_use: "t2".into(),
                    is_question: true,
                })),
                survives: false,
                since: Some(Timestamp(1)),
                limit: Some(Duration::MAX),
                expires: Some(Timestamp(u64::MAX)),
                on_expiry: Some(Decision::Execute),
            })],
        },
        Event::Prompt {
            id: "p1".into(),
            state: PromptState::Staged,
            prompt: Some(Prompt::new("x").with_id("p1").at(Next::Step).into()),
        },
        Event::Prompt { id: "p1".into(), state: PromptState::InFlight { turn: turn() }, prompt: None },
        Event::Prompt {
            id: "p1".into(),
            state: PromptState::Ended { outcome: RunOutcome::Failed { failure: Failure::Interrupted } },
            prompt: None,
        },
        Event::Prompt { id: "p1".into(), state: PromptState::Returned, prompt: None },
        Event::Decided(Box::new(Decided {
            turn: turn(),
            tool_use_id: "t1".into(),
            decision: Decision::reject("No."),
            by: Some("ann".into()),
            expired: true,
            at: Timestamp(1),
        })),
        Event::Usage(Box::new(
            UsageRow::new(RequestEnd::Void, Usage::default().with_input(3)).with_turn(turn()),
        )),
        Event::ToolStart { tool_use_id: "t1".into(), input: Some(json!({ "type": "start" })) },
        Event::ToolEnd { tool_use_id: "t1".into(), is_error: true },
        Event::Status { status: Status::Idle, pauses: Vec::new() },
    ]
}

fn assert_lossless(event: &Event) {
    let json = serde_json::to_string(event).unwrap();
    let read: Event = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(read, *event);
    assert_eq!(serde_json::to_string(&read).unwrap(), json, "serializing again gives the same bytes");
    let value: Event = serde_json::from_value(serde_json::to_value(event).unwrap()).unwrap();
    assert_eq!(value, *event);
    let id = EventId { life: u64::MAX, number: 1 };
    let numbered = Numbered { id, event: Arc::new(event.clone()) };
    let json = serde_json::to_string(&numbered).unwrap();
    assert_eq!(serde_json::from_str::<Numbered<Event>>(&json).unwrap(), numbered);
}

#[test]
fn every_kind_of_event_is_serialized_without_loss() {
    awkward_events().iter().chain(&awkward_retries()).for_each(assert_lossless);
}

#[tokio::test(start_paused = true)]
async fn events_and_snapshots_of_runs_are_serialized_without_loss() {
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
    let gate = crate::testing::Gate::new();
    let script = [
        Step::new().usage(tokens(3)).then_tool_use("t1", "echo", json!({ "a": 1 })).stop(),
        Step::text("{\"answer\": 42}"),
        Step::new().then_text(["Half"]).fail(error),
        Step::new().then_text(["Half"]).then_raw_tool_use("t9", "echo", &["{\"a"]).gate(&gate),
    ];
    let agent = echoing(script).max_steps(20).system("s").start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let mut kinds = Vec::new();
    for n in 0..3 {
        agent.prompt("Hi").await.unwrap();
        if n == 2 {
            gate.reached().await;
            let options = Options::default().with_temperature(0.1).with_max_tokens(5);
            agent.prompt(Prompt::new("staged").with_options(options).with_max_steps(3)).await.unwrap();
            let snapshot = agent.snapshot().await.unwrap();
            let json = serde_json::to_string(&snapshot).unwrap();
            assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
            agent.cancel().await.unwrap();
        }
        let run = run_events(&mut events).await;
        assert_eq!(super::support::returned(&run).len(), usize::from(n == 2));
        for event in run {
            assert_lossless(&event);
            if ends_run(&event) {
                kinds.push(super::support::name(&event));
            }
        }
    }
    assert_eq!(kinds, ["turn(stop)", "error", "cancelled"]);
    agent
        .set_state(|draft| {
            draft.config.settings.turn_timeout = Some(Duration::from_millis(1500));
            Ok(())
        })
        .await
        .unwrap();
    let Some(Update::Event(state)) = events.next().await else { panic!() };
    assert!(matches!(&*state.event, Event::State(_)));
    assert_lossless(&state.event);
    let response = odd_response();
    assert_lossless(&Event::Turn { response, continues: true });
}

/// A response whose fields hold values that runs rarely produce.
fn odd_response() -> Arc<crate::agent::Response> {
    let json = json!({
        "model": "m", "messages": [], "stop_reason": { "other": "odd" },
        "usage": { "cost": 0.1 }, "step": 1, "output": { "type": "x" }, "output_error": "e",
        "open_tool_uses": [tool_use()], "warnings": ["w"]
    });
    Arc::new(serde_json::from_value(json).unwrap())
}

#[test]
fn end_reason_is_written_by_name_and_read_again() {
    let reasons = [
        (EndReason::Stopped, "stopped"),
        (EndReason::HandlesDropped, "handles_dropped"),
        (EndReason::Idle, "idle"),
        (EndReason::AgentEnded, "agent_ended"),
        (EndReason::LostPlace, "lost_place"),
        (EndReason::Killed, "killed"),
    ];
    for (reason, name) in reasons {
        assert_eq!(serde_json::to_value(&reason).unwrap(), json!(name));
        assert_eq!(serde_json::from_value::<EndReason>(json!(name)).unwrap(), reason);
    }
}
