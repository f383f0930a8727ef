//! Approvals, questions of a service, and tools that the client runs.

use serde_json::{Value, json};

use super::rig::{
    Client, LEVELS, ask, check, find, finish, fold, fold_onto, lasting, listed, listed_id, plan_all, session,
    session_of, submit, types, user,
};
use crate::{
    agent::{AgentCallbacks, State},
    message::{ToolResult, ToolUse, ToolUseId},
    session::{Session, SessionCommand},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, ToolContext, tool_fn},
    web::ui_messages::{AiSdkFrame, AiSdkRunToStream, AiSdkVersion},
};

/// Runs a step with three tool uses. Two of them wait for a decision, and the third does not.
async fn paused(level: AiSdkVersion) -> (Session, Vec<AiSdkFrame>) {
    let uses = Step::new()
        .then_text(["Shall I?"])
        .then_tool_use("d1", "delete", json!({ "zone": "a" }))
        .then_tool_use("c1", "clock", json!({ "zone": "UTC" }))
        .then_tool_use("d2", "delete", json!({ "zone": "b" }));
    let session = session([uses.stop(), Step::text("Done.")]).await;
    let frames = ask(&session, level, "u1").await;
    (session, frames)
}

fn respond(parts: &mut [Value], id: &str, approved: bool) {
    let part = parts.iter_mut().find(|part| part["toolCallId"] == id && part.get("state").is_some()).unwrap();
    part["state"] = "approval-responded".into();
    part["approval"]["approved"] = approved.into();
}

fn decisions(parts: &[Value]) -> Value {
    let message = json!({ "id": "a-u1", "role": "assistant", "parts": parts });
    json!({ "id": "1", "trigger": "submit-message", "messageId": "a-u1", "messages": [message] })
}

#[tokio::test]
async fn pause_with_two_approvals_asks_for_both_and_answers_the_third_use() {
    for level in LEVELS {
        let (session, frames) = paused(level).await;
        check(level, &frames);
        assert_eq!(finish(&frames)["finishReason"], "tool-calls");
        let requests: Vec<_> =
            frames.iter().filter(|frame| frame["type"] == "tool-approval-request").collect();
        let asked: Vec<_> = requests.iter().map(|frame| frame["approvalId"].as_str().unwrap()).collect();
        let expected: &[_] = if level == AiSdkVersion::Seven { &["d1", "d2", "c1"] } else { &["d1", "d2"] };
        let named: Vec<_> = asked.iter().map(|id| id.split('@').next().unwrap()).collect();
        assert_eq!(named, expected);
        let details = find(&frames, "data-omni-approval").unwrap();
        assert_eq!(details["data"]["commands"], "/c/1/commands");
        assert_eq!(details["data"]["input"], json!({ "zone": "a" }));
        assert_eq!(lasting(fold(&frames)), listed(&session, level).await);
    }
}

#[tokio::test]
async fn decisions_continue_the_same_message() {
    for level in LEVELS {
        let (session, frames) = paused(level).await;
        let mut parts = fold(&frames);
        respond(&mut parts, "d1", true);
        respond(&mut parts, "d2", false);
        let client = Client::post(&session, level, decisions(&parts)).await.unwrap();
        let frames = client.finish().await;
        assert_eq!(frames[0], json!({ "type": "start", "messageId": listed_id(&session).await }));
        assert_eq!(finish(&frames)["finishReason"], "stop");
        let all = fold_onto(parts, &frames);
        let tools: Vec<_> = all.iter().filter(|part| part.get("toolCallId").is_some()).collect();
        let states: Vec<_> = tools.iter().map(|part| part["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["output-available", "output-available", "output-denied"]);
        let text = all.iter().filter_map(|part| part["text"].as_str()).collect::<String>();
        assert_eq!(text, "Shall I?Done.");
    }
}

#[tokio::test]
async fn rejected_use_is_denied_live_and_in_a_resumed_stream_and_in_the_list() {
    for level in LEVELS {
        let gate = Gate::new();
        let zone = json!({ "zone": "a" });
        let uses =
            Step::new().then_tool_use("d1", "delete", zone.clone()).then_tool_use("d2", "delete", zone);
        let last = Step::new().then_text(["Done."]).gate(&gate).stop();
        let session = session([uses.stop(), last]).await;
        let parts = fold(&ask(&session, level, "u1").await);
        let live = Client::start(&session, level, |_| (AiSdkRunToStream::Decisions, None)).await;
        let turn = session.snapshot().await.unwrap().agent.pauses[0].turn;
        let decisions =
            vec![("d1".into(), Decision::reject("Not this one.")), ("d2".into(), Decision::Execute)];
        session.perform(SessionCommand::Decide { turn, decisions }, Some("ann")).await.unwrap();
        gate.reached().await;
        let resumed = Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await;
        gate.open();
        let (live, resumed) = (live.finish().await, resumed.finish().await);
        check(level, &resumed);
        let denied = |parts: &[Value]| {
            let part = parts.iter().find(|part| part["toolCallId"] == "d1" && part.get("state").is_some());
            let part = part.expect("the tool use");
            (part["state"].clone(), part["approval"]["id"].clone(), part["approval"]["approved"].clone())
        };
        let expected = (json!("output-denied"), json!(format!("d1@{turn}")), json!(false));
        for parts in [fold_onto(parts, &live), fold(&resumed), listed(&session, level).await] {
            assert_eq!(denied(&parts), expected);
        }
        let response = find(&resumed, "tool-approval-response").map(|frame| frame["reason"].clone());
        assert_eq!(response, (level == AiSdkVersion::Seven).then(|| json!("Not this one.")));
    }
}

#[tokio::test]
async fn decision_about_one_of_two_pauses_ends_the_response_at_the_pause() {
    let (session, frames) = paused(AiSdkVersion::Seven).await;
    let mut parts = fold(&frames);
    respond(&mut parts, "d1", true);
    let frames = Client::post(&session, AiSdkVersion::Seven, decisions(&parts)).await.unwrap().finish().await;
    assert_eq!(finish(&frames)["finishReason"], "tool-calls");
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(snapshot.agent.pauses.len(), 1, "the other use still waits");
}

#[tokio::test]
async fn open_client_tool_ends_the_response_and_its_result_continues_the_message() {
    for level in LEVELS {
        let session = session([
            Step::tool_use("l1", "locate", json!({ "zone": "UTC" })),
            Step::text("You are in Oslo."),
        ])
        .await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        assert_eq!(finish(&frames)["finishReason"], "tool-calls");
        let mut parts = fold(&frames);
        assert_eq!(parts.last().unwrap()["state"], "input-available");
        assert_eq!(parts, listed(&session, level).await);

        parts[1]["state"] = "output-available".into();
        parts[1]["output"] = json!({ "city": "Oslo" });
        let client = Client::post(&session, level, decisions(&parts)).await.unwrap();
        let frames = client.finish().await;
        assert_eq!(frames[0]["messageId"], listed_id(&session).await);
        let all = fold_onto(parts, &frames);
        assert_eq!(all[1]["output"], json!({ "city": "Oslo" }));
        assert_eq!(all.last().unwrap()["text"], "You are in Oslo.");
        assert_eq!(all, listed(&session, level).await, "the list shows one message");
    }
}

#[tokio::test]
async fn step_with_a_client_tool_runs_the_other_tools_and_leaves_only_the_clients_open() {
    for level in LEVELS {
        let uses = Step::new()
            .then_tool_use("d1", "delete", json!({ "zone": "a" }))
            .then_tool_use("l1", "locate", json!({ "zone": "UTC" }))
            .then_tool_use("c1", "clock", json!({ "zone": "UTC" }));
        let session = session([uses.stop(), Step::text("Done.")]).await;
        let mut parts = fold(&ask(&session, level, "u1").await);
        let state = |parts: &[Value], id: &str| {
            let part = parts.iter().find(|part| part["toolCallId"] == id && part.get("state").is_some());
            part.unwrap()["state"].as_str().unwrap().to_owned()
        };
        assert_eq!(state(&parts, "l1"), "input-available", "the client alone answers its tool");
        respond(&mut parts, "d1", true);
        let frames = Client::post(&session, level, decisions(&parts)).await.unwrap().finish().await;
        assert_eq!(finish(&frames)["finishReason"], "tool-calls");
        let mut parts = fold_onto(parts, &frames);
        let states = ["d1", "l1", "c1"].map(|id| state(&parts, id));
        assert_eq!(states, ["output-available", "input-available", "output-available"]);

        let own = parts.iter_mut().find(|part| part["toolCallId"] == "l1").unwrap();
        own["state"] = "output-available".into();
        own["output"] = "Oslo".into();
        let posted = parts.clone();
        let frames = Client::post(&session, level, decisions(&parts)).await.unwrap().finish().await;
        let all = fold_onto(parts, &frames);
        assert_eq!(all.last().unwrap()["text"], "Done.");
        let listed = listed(&session, level).await;
        let states = ["d1", "l1", "c1"].map(|id| state(&listed, id));
        assert_eq!(states, ["output-available"; 3]);
        let answer = json!({ "id": listed_id(&session).await, "role": "assistant", "parts": posted });
        let again = json!({ "id": "1", "trigger": "submit-message", "messages": [user("u1", "Hi"), answer] });
        let again = Client::post(&session, level, again).await;
        assert!(again.is_ok(), "the same results get the same answer");
    }
}

#[tokio::test]
async fn message_behind_a_result_of_a_client_tool_is_sent_with_the_result() {
    for level in LEVELS {
        let steps = [Step::tool_use("l1", "locate", json!({ "zone": "UTC" })), Step::text("Cold.")];
        let session = session(steps).await;
        let mut parts = fold(&ask(&session, level, "u1").await);
        let own = parts.iter_mut().find(|part| part["toolCallId"] == "l1").unwrap();
        own["state"] = "output-available".into();
        own["output"] = "Oslo".into();
        let answer = json!({ "id": listed_id(&session).await, "role": "assistant", "parts": parts });
        let body = submit(&[user("u1", "Hi"), answer], "u2", "And the weather?");
        let frames = Client::post(&session, level, body).await.unwrap().finish().await;
        assert_eq!(fold(&frames).last().unwrap()["text"], "Cold.");
        let history = session.tree().await.unwrap().history().clone();
        let prompt = history.get(2).unwrap();
        assert_eq!(prompt.tool_results().map(ToolResult::text).collect::<Vec<_>>(), ["Oslo"]);
        assert!(prompt.text().ends_with("And the weather?"), "{prompt:?}");
    }
}

#[tokio::test]
async fn message_in_place_of_a_decision_rejects_the_cancelled_calls_and_is_answered() {
    for level in LEVELS {
        let (session, frames) = paused(level).await;
        let mut parts = fold(&frames);
        for part in parts.iter_mut().filter(|part| part.get("toolCallId").is_some()) {
            let part = part.as_object_mut().unwrap();
            if part.remove("approval").is_some() && part["toolCallId"] != "c1" {
                part.insert("state".into(), "output-error".into());
                part.insert("errorText".into(), "Cancelled.".into());
            }
        }
        let body = |id: &str| {
            let answer = json!({ "id": id, "role": "assistant", "parts": parts });
            submit(&[user("u1", "Hi"), answer], "u2", "Something else")
        };
        let snapshot = session.snapshot().await.unwrap();
        let (commands, _) = plan_all(&snapshot, body("a-other")).unwrap();
        assert_eq!(commands.len(), 1, "only the newest answer can cancel its calls");
        let (commands, target) = plan_all(&snapshot, body(&listed_id(&session).await)).unwrap();
        let [SessionCommand::Decide { decisions, .. }, SessionCommand::Run(_)] = &commands[..] else {
            panic!("{commands:?}")
        };
        let reject = |id: &str| (ToolUseId::new(id), Decision::reject("Cancelled."));
        assert_eq!(*decisions, [reject("d1"), reject("d2")]);
        assert_eq!(target, AiSdkRunToStream::Prompt("u2".into()));
    }
}

#[tokio::test]
async fn question_of_the_service_continues_its_text_in_another_part() {
    for level in LEVELS {
        let question = ToolUse::new("q1", "shell", json!({ "command": "ls" }));
        let step = Step::new().then_text(["Be", "fore"]).decide(question);
        let step = step.more(crate::provider::Part::Text(" after".to_owned())).stop();
        let provider = ScriptedProvider::new([step]);
        let session = session_of(provider, |agent| agent.callbacks(Ask)).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        assert_eq!(finish(&frames)["finishReason"], "tool-calls");
        let mut parts = fold(&frames);
        respond(&mut parts, "q1", true);
        let frames = Client::post(&session, level, decisions(&parts)).await.unwrap().finish().await;
        let all = fold_onto(parts, &frames);
        let texts: String = all.iter().filter_map(|part| part["text"].as_str()).collect();
        assert_eq!(texts, "Before after");
        let question = all.iter().find(|part| part["type"] == "dynamic-tool").unwrap();
        assert_eq!(question["state"], "output-available");
        assert!(types(&frames).contains(&"text-end"));
    }
}

#[tokio::test]
async fn question_of_a_running_tool_belongs_to_its_call() {
    for (level, approved) in LEVELS.into_iter().flat_map(|level| [(level, true), (level, false)]) {
        let provider = ScriptedProvider::new([Step::tool_use("t1", "ask", json!({})), Step::text("Done.")]);
        let tool = tool_fn("ask", "Asks.", |_: Value, context: ToolContext| async move {
            Ok(format!("{:?}", context.ask(json!({ "message": "Which?" })).await))
        });
        let session = session_of(provider, |agent| agent.tool(tool)).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        assert_eq!(finish(&frames)["finishReason"], "tool-calls");
        let request = find(&frames, "tool-approval-request").unwrap();
        let details = &find(&frames, "data-omni-approval").unwrap()["data"];
        let approval = format!("t1?1@{}", details["turn"].as_str().unwrap());
        assert_eq!((&request["approvalId"], &request["toolCallId"]), (&json!(approval), &json!("t1")));
        assert_eq!((&details["toolCallId"], &details["approvalId"]), (&json!("t1"), &json!(approval)));
        assert_eq!(details["toolUse"], "t1?1");
        assert_eq!(details["reason"], json!({ "message": "Which?" }));
        assert_eq!(lasting(fold(&frames)), listed(&session, level).await);

        let mut parts = fold(&frames);
        respond(&mut parts, "t1", approved);
        let frames = Client::post(&session, level, decisions(&parts)).await.unwrap().finish().await;
        assert_eq!(finish(&frames)["finishReason"], "stop");
        let all = fold_onto(parts, &frames);
        let tools: Vec<_> = all.iter().filter(|part| part["toolCallId"] == "t1").collect();
        assert_eq!((tools.len(), &tools[0]["state"]), (1, &json!("output-available")), "{tools:?}");
        let output = tools[0]["output"].as_str().unwrap();
        assert_eq!(output == "Accepted(None)", approved, "{output}");
        assert_eq!(output.starts_with("Declined"), !approved, "{output}");
    }
}

struct Ask;

#[async_trait::async_trait]
impl AgentCallbacks for Ask {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> crate::agent::ToolDecision {
        crate::agent::ToolDecision::Pause("May I?".into())
    }
}

#[tokio::test]
async fn decision_from_elsewhere_shows_in_the_response_of_the_run() {
    let (session, _) = paused(AiSdkVersion::Seven).await;
    let client = Client::start(&session, AiSdkVersion::Seven, |_| (AiSdkRunToStream::Decisions, None)).await;
    for id in ["d1", "d2"] {
        session.resume(id, Decision::reject("No.")).await.unwrap();
    }
    let frames = client.finish().await;
    let responses: Vec<_> = frames.iter().filter(|frame| frame["type"] == "tool-approval-response").collect();
    assert_eq!(responses.len(), 2);
    assert_eq!(responses[0]["reason"], "No.");
    assert_eq!(frames.iter().filter(|frame| frame["type"] == "tool-output-denied").count(), 2);
}
