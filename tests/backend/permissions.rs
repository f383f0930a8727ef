//! Permission requests of a backend, which the agent receives as questions.

use std::time::Duration;

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentCallbacks, Event, State, Status, ToolDecision},
    message::{Content, ToolResult, ToolUse},
    provider::custom::{
        BackendError, BackendEvent, Breach, Capabilities, PermissionAnswer, PermissionKind, PermissionOption,
    },
    subscription::Update,
    testing::Gate,
    tool::Decision,
};
use serde_json::{Value, json};

use crate::{
    faults::cause,
    scripted::{ScriptedBackend, Step, Turn},
};

fn shell() -> ToolUse {
    ToolUse::new("t1", "shell", json!({ "cmd": "rm" }))
}

fn options() -> Vec<PermissionOption> {
    vec![
        PermissionOption::new("yes", "Allow", PermissionKind::AllowOnce),
        PermissionOption::new("ever", "Always allow", PermissionKind::AllowAlways),
        PermissionOption::new("no", "Reject", PermissionKind::RejectOnce),
    ]
}

fn asking() -> Turn {
    Turn::new().event(BackendEvent::ToolUse(shell())).step(Step::Ask(shell(), options())).text("Well.").stop()
}

/// Callbacks that return the same decision for every tool use.
struct Decides(ToolDecision);

#[async_trait]
impl AgentCallbacks for Decides {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        self.0.clone()
    }
}

async fn asked(decision: ToolDecision, able: Capabilities) -> (ScriptedBackend, Value) {
    let backend = ScriptedBackend::able(able, [asking()]);
    let agent = backend.agent().callbacks(Decides(decision)).start().await.unwrap();
    let response = agent.ask("Go").await.unwrap();
    assert_eq!(response.text(), "Well.");
    let item = response.message.as_ref().unwrap().content.iter().find_map(|block| match block {
        Content::ProviderItem(item) => Some(item.data.clone()),
        _ => None,
    });
    (backend, item.unwrap())
}

#[tokio::test(start_paused = true)]
async fn permission_request_receives_every_kind_of_decision() {
    let chosen = |id: &str| ToolDecision::Provide(ToolResult::ok(&shell(), id));
    let edit = json!({ "cmd": "ls" });
    let none = Capabilities::default();
    let cases = [
        (ToolDecision::Execute, none, PermissionAnswer::Allow, "allow"),
        (ToolDecision::Reject("No.".into()), none, PermissionAnswer::Reject("No.".into()), "reject"),
        (chosen("ever"), none, PermissionAnswer::Choose("ever".into()), "ever"),
        (chosen("else"), none, PermissionAnswer::Reject("else".into()), "reject"),
        (
            ToolDecision::ExecuteWith(edit.clone()),
            none.with_edits(),
            PermissionAnswer::AllowWith(edit.clone()),
            "allow",
        ),
    ];
    for (decision, able, answer, word) in cases {
        let (backend, item) = asked(decision, able).await;
        assert_eq!(backend.answers(), [Some(answer)]);
        assert_eq!(item["permission"]["answer"], word);
        assert_eq!(item["permission"]["options"][1]["kind"], "allow_always");
    }
}

#[tokio::test(start_paused = true)]
async fn permission_with_another_input_is_a_rejection_if_the_backend_does_not_support_edits() {
    let decision = ToolDecision::ExecuteWith(json!({ "cmd": "ls" }));
    let (backend, _) = asked(decision, Capabilities::default()).await;
    assert!(matches!(&backend.answers()[..], [Some(PermissionAnswer::Reject(_))]), "{:?}", backend.answers());
}

/// Returns an agent that paused on a permission request.
async fn paused(backend: &ScriptedBackend) -> Agent {
    let pause = Decides(ToolDecision::Pause(json!("sure?")));
    let agent = backend.agent().callbacks(pause).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Go").await.unwrap();
    loop {
        match events.next().await {
            Some(Update::Event(event)) if matches!(&*event.event, Event::Status { pauses, .. } if !pauses.is_empty()) =>
            {
                return agent;
            }
            Some(_) => {}
            None => panic!("the agent has ended"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permission_that_paused_waits_for_resume_without_a_limit() {
    let backend = ScriptedBackend::new([asking()]);
    let agent = paused(&backend).await;
    let pause = agent.snapshot().await.unwrap().pauses.remove(0);
    assert_eq!((&pause.tool_use, &pause.reason), (&shell(), &json!("sure?")));
    // Ten hours are longer than the time limit for a silent backend, but this limit does not apply during a pause.
    tokio::time::advance(Duration::from_hours(10)).await;
    assert_eq!(agent.status().await.unwrap(), Status::Paused);
    agent.resume("t1", Decision::Execute).await.unwrap();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(backend.answers(), [Some(PermissionAnswer::Allow)]);
    assert_eq!(agent.state().await.unwrap().history().last().unwrap().text(), "Well.");
}

#[tokio::test(start_paused = true)]
async fn permission_cancelled_while_asked_gets_no_answer_and_cancels_the_turn() {
    let backend = ScriptedBackend::new([asking()]);
    let agent = paused(&backend).await;
    agent.cancel().await.unwrap();
    backend.until("cancel s1").await;
    backend.until("answered").await;
    assert_eq!(backend.answers(), [None]);
    let late = agent.resume("t1", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (late.kind(), late.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{late:?}"
    );
    assert_eq!(agent.ask("On").await.unwrap().text(), "Go | On");
    assert_eq!((backend.count("start"), backend.count("terminate s1")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn permission_request_withdrawn_ends_the_pause() {
    let gate = Gate::new();
    let backend =
        ScriptedBackend::new([Turn::new().step(Step::AskUntil(shell(), gate)).text("Never mind.").stop()]);
    let agent = backend.agent().callbacks(Decides(ToolDecision::Pause(Value::Null))).start().await.unwrap();
    assert_eq!(agent.ask("Go").await.unwrap().text(), "Never mind.");
}

#[tokio::test(start_paused = true)]
async fn permission_before_its_tool_use_becomes_one_item() {
    let turn = Turn::new()
        .step(Step::Ask(shell(), Vec::new()))
        .event(BackendEvent::ToolUse(shell()))
        .event(BackendEvent::ToolResult(ToolResult::error(&shell(), "gone")))
        .stop();
    let backend = ScriptedBackend::new([turn]);
    let agent = backend.agent().start().await.unwrap();
    let answer = agent.ask("Go").await.unwrap().message.clone().unwrap();
    let [Content::ProviderItem(item)] = &answer.content[..] else { panic!("{answer:?}") };
    assert_eq!(
        (&item.data["status"], &item.data["permission"]["answer"]),
        (&json!("failed"), &json!("allow"))
    );
}

/// Requests these permissions one after another, without waiting for the answers. Returns the result of the turn.
async fn asked_at_once(ids: impl IntoIterator<Item = String>) -> Result<String, Breach> {
    let asking = ids.into_iter().map(|id| ToolUse::new(id, "shell", json!({})));
    let turn = asking.fold(Turn::new(), |turn, tool_use| turn.step(Step::AskOn(tool_use)));
    let backend = ScriptedBackend::new([turn.text("Done.").stop()]);
    let pauses = Decides(ToolDecision::Pause(Value::Null));
    let agent = backend.agent().callbacks(pauses).start().await.unwrap();
    match agent.ask("Go").await {
        Ok(response) => Ok(response.text()),
        Err(error) => match cause(&error) {
            BackendError::Contract(breach) => Err(breach),
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test(start_paused = true)]
async fn permission_requested_again_while_pending_is_a_breach() {
    let twice = ["t1", "t1"].map(str::to_owned);
    assert_eq!(asked_at_once(twice).await, Err(Breach::RepeatedPermission("t1".into())));
}

#[tokio::test(start_paused = true)]
async fn permissions_pending_at_the_same_time_are_limited() {
    let ids = |count: u32| (0..count).map(|number| format!("t{number}"));
    assert_eq!(asked_at_once(ids(64)).await, Ok("Done.".to_owned()));
    assert_eq!(asked_at_once(ids(65)).await, Err(Breach::TooManyPermissions(64)));
}

#[tokio::test(start_paused = true)]
async fn permission_withdrawn_can_be_requested_again() {
    let gate = Gate::new();
    let turn = Turn::new().step(Step::AskUntil(shell(), gate)).step(Step::Ask(shell(), Vec::new()));
    let backend = ScriptedBackend::new([turn.text("Well.").stop()]);
    let agent = backend.agent().start().await.unwrap();
    assert_eq!(agent.ask("Go").await.unwrap().text(), "Well.");
}

#[tokio::test(start_paused = true)]
async fn tool_without_a_result_is_closed_when_the_turn_ends() {
    let reject = ToolDecision::Reject("No.".into());
    let choose = ToolDecision::Provide(ToolResult::ok(&shell(), "no"));
    for (decision, status) in [(reject, "rejected"), (choose, "rejected"), (ToolDecision::Execute, "ended")] {
        let (_, item) = asked(decision, Capabilities::default()).await;
        assert_eq!(item["status"], status);
    }
}

#[tokio::test(start_paused = true)]
async fn tool_with_only_a_permission_request_is_closed_when_the_turn_ends() {
    let turn = Turn::new().step(Step::Ask(shell(), options())).text("Well.").stop();
    let backend = ScriptedBackend::new([turn]);
    let reject = Decides(ToolDecision::Reject("No.".into()));
    let agent = backend.agent().callbacks(reject).start().await.unwrap();
    let response = agent.ask("Go").await.unwrap();
    let Content::ProviderItem(item) = &response.message.as_ref().unwrap().content[0] else {
        panic!("{response:?}")
    };
    assert_eq!(item.data["status"], "rejected");
}
