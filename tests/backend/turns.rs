//! The content and the events of a turn that a backend runs.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, Event},
    message::{Content, History, Message, ToolResult, ToolUse, Usage},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{BackendEvent, Capabilities, TurnResult},
    },
    subscription::Update,
    tool::{ToolContext, ToolError, tool_fn},
};
use serde_json::{Value, json};

use crate::scripted::{ScriptedBackend, Turn};

#[tokio::test(start_paused = true)]
async fn prompt_starts_the_session_once_and_sends_only_new_messages() {
    let backend = ScriptedBackend::new([]);
    let agent = backend.agent().start().await.unwrap();
    assert_eq!(backend.log(), Vec::<String>::new(), "an agent without a prompt starts nothing");
    assert_eq!(agent.ask("One").await.unwrap().text(), "One");
    assert_eq!(agent.ask("Two").await.unwrap().text(), "One | Two");
    let calls = ["start", "prompt s1: One", "update s1: stop", "prompt s1: Two", "update s1: stop"];
    assert_eq!(backend.log(), calls);
}

#[tokio::test(start_paused = true)]
async fn prompt_sends_model_and_system_and_a_later_change_is_a_warning() {
    let backend = ScriptedBackend::new([]);
    let agent = backend.agent().system("Be brief.").start().await.unwrap();
    assert_eq!(agent.ask("One").await.unwrap().warnings, Vec::<String>::new());
    let options = backend.options();
    assert_eq!((&*options[0].model, options[0].system.as_deref()), ("default", Some("Be brief.")));
    agent
        .set_state(|draft| {
            draft.config.settings.system = Some("Be long.".into());
            Ok(())
        })
        .await
        .unwrap();
    let warnings = agent.ask("Two").await.unwrap().warnings.clone();
    assert!(warnings[0].contains("the system prompt and the settings it was started with"), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn tool_activity_is_shown_and_kept_but_not_executed() {
    let shell = ToolUse::new("t1", "shell", json!({ "cmd": "ls" }));
    let turn = Turn::new()
        .event(BackendEvent::Thinking("Hm.".to_owned()))
        .text("Look: ")
        .event(BackendEvent::Plan(json!(["look"])))
        .event(BackendEvent::ToolUse(shell.clone()))
        .event(BackendEvent::ToolInput { id: "t1".into(), input: json!({ "cmd": "ls -l" }) })
        .event(BackendEvent::ToolUpdate { id: "t1".into(), data: json!("half") })
        .text("so ")
        .event(BackendEvent::Plan(json!(["look", "tell"])))
        .event(BackendEvent::ToolResult(ToolResult::ok(&shell, "a file")))
        .text("it is.")
        .event(BackendEvent::Usage(Usage::default().with_output(7)))
        .event(BackendEvent::Result(
            TurnResult::new(StopReason::ToolUse).with_model("m-1").with_warning("w"),
        ));
    let backend = ScriptedBackend::new([turn]);
    let tool = tool_fn("shell", "Runs.", |_: Value, _: ToolContext| async {
        panic!("the agent must not run tools") as Result<String, ToolError>
    });
    let agent = backend.agent().tool(tool).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let response = agent.ask("Go").await.unwrap();
    let answer = response.message.clone().unwrap();
    let kinds: Vec<String> = answer
        .content
        .iter()
        .map(|block| match block {
            Content::Text(text) => text.text.clone(),
            Content::Thinking(thinking) => format!("({})", thinking.text),
            Content::ProviderItem(item) => format!("{} {}", item.format, item.data["type"]),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = ["(Hm.)", "Look: ", r#"scripted "plan""#, r#"scripted "tool""#, "so it is."];
    assert_eq!(kinds, expected);
    let items: Vec<_> = answer
        .content
        .iter()
        .filter_map(|block| match block {
            Content::ProviderItem(item) => Some(item.data.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(items[0]["data"], json!(["look", "tell"]));
    let kept = json!({
        "type": "tool", "id": "t1", "name": "shell", "input": { "cmd": "ls -l" }, "status": "done",
        "update": "half", "result": [{ "type": "text", "text": "a file" }],
    });
    assert_eq!(items[1], kept);
    assert_eq!((response.stop_reason.clone(), response.model.as_str()), (StopReason::Stop, "m-1"));
    assert_eq!(response.usage.output, 7);
    assert!(response.warnings.contains(&"w".to_owned()), "{:?}", response.warnings);
    assert!(response.warnings.iter().any(|warning| warning.contains("the agent's tools are ignored")));

    let mut statuses = Vec::new();
    while let Some(Update::Event(event)) = events.next().await {
        match &*event.event {
            Event::ProviderItem { content, .. } if content.data["type"] == "tool" => {
                statuses.push(content.data["status"].as_str().unwrap().to_owned());
            }
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    assert_eq!(statuses, ["running", "running", "running", "done"]);
}

#[tokio::test(start_paused = true)]
async fn stop_reasons_of_the_backend_end_the_turn() {
    for reason in [StopReason::MaxSteps, StopReason::Refusal, StopReason::Cancelled, StopReason::Length] {
        let turn = Turn::new().text("So far.").event(BackendEvent::Result(TurnResult::new(reason.clone())));
        let backend = ScriptedBackend::new([turn]);
        let agent = backend.agent().start().await.unwrap();
        let response = agent.ask("Go").await.unwrap();
        assert_eq!((response.text().as_str(), &response.stop_reason), ("So far.", &reason));
    }
}

fn foreign() -> History {
    History::from_iter([Message::user("Before"), Message::assistant("From elsewhere")])
}

#[tokio::test(start_paused = true)]
async fn prompt_after_foreign_answers_is_rejected_before_anything_starts() {
    let backend = ScriptedBackend::new([]);
    let agent = backend.agent().history(foreign()).start().await.unwrap();
    let error = agent.ask("Go").await.unwrap_err();
    assert_eq!(crate::faults::provider_error(&error).kind, ProviderErrorKind::Unsupported);
    assert_eq!(backend.log(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn prompt_after_foreign_answers_sends_them_if_the_backend_supports_history() {
    let backend = ScriptedBackend::able(Capabilities::default().with_history(), []);
    let agent = backend.agent().history(foreign()).start().await.unwrap();
    assert_eq!(agent.ask("Go").await.unwrap().text(), "Before\n\nFrom elsewhere\n\nGo");
    assert_eq!(agent.ask("On").await.unwrap().text(), "Before\n\nFrom elsewhere\n\nGo | On");
}

#[tokio::test(start_paused = true)]
async fn prompt_cancelled_after_foreign_answers_sends_them_again_to_a_new_session() {
    let turn = Turn::new().step(crate::scripted::Step::Hang);
    let backend = ScriptedBackend::able(Capabilities::default().with_history(), [turn]);
    let agent = backend.agent().history(foreign()).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    backend.until("prompt s1: Before\n\nFrom elsewhere\n\nGo").await;
    agent.cancel().await.unwrap();
    agent.wait_until_idle().await.unwrap();
    // The cancelled session is replaced. The new session also receives the earlier texts, and receives them only once.
    assert_eq!(agent.ask("On").await.unwrap().text(), "Before\n\nFrom elsewhere\n\nOn");
    assert_eq!(agent.ask("And on").await.unwrap().text(), "Before\n\nFrom elsewhere\n\nOn | And on");
    assert_eq!((backend.count("start"), backend.count("terminate s1")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn request_outside_an_agent_uses_a_separate_session() {
    let backend = ScriptedBackend::new([]);
    let answer = backend.model().generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(answer.message.text(), "Hi");
    backend.until("terminate s1").await;
    assert_eq!(backend.log()[..3], ["start", "prompt s1: Hi", "update s1: stop"]);
    assert_eq!((backend.count("terminate s1"), backend.count("cancel s1")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn agents_at_the_same_time_use_separate_sessions() {
    let backend = ScriptedBackend::new([]);
    let model = backend.model();
    let agents = [
        Agent::builder().model(model.clone()).start().await.unwrap(),
        Agent::builder().model(model).start().await.unwrap(),
    ];
    let (first, second) = tokio::join!(agents[0].ask("A"), agents[1].ask("B"));
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("A".to_owned(), "B".to_owned()));
    let (first, second) = tokio::join!(agents[0].ask("C"), agents[1].ask("D"));
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("A | C".to_owned(), "B | D".to_owned()));
    assert_eq!(backend.count("start"), 2);
    for agent in agents {
        agent.stop(Duration::from_secs(1)).await.unwrap();
    }
    assert_eq!((backend.count("terminate s1"), backend.count("terminate s2")), (1, 1));
}

#[test]
fn provider_can_be_shared() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &Arc<T>) {}
    shared(&Arc::new(ScriptedBackend::new([]).provider()));
}
