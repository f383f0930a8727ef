use serde_json::{Value, json};

use super::{AgUiFrame, AgUiVersion, Client, Rig, kind_of, kinds, last, messages_of};
use crate::{
    agent::{Agent, AgentBuilder, AgentCallbacks, ErrorDecision, State, SubAgent, ToolDecision},
    message::{Attachment, ToolUse, Usage},
    provider::{BlockStart, Delta, Part, ProviderError, ProviderErrorKind},
    run::{Failure, RunEnd, RunOutcome},
    session::{Mode, SessionAnswer},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, tool_fn},
    web::testing::abandoned,
};

pub(super) const LEVELS: [AgUiVersion; 2] = [AgUiVersion::V0, AgUiVersion::V1];

/// Returns each value of the state's member `omni` that the frames set.
fn states(frames: &[AgUiFrame]) -> Vec<Value> {
    let frames = frames.iter().map(|frame| serde_json::to_value(frame).unwrap());
    let omni = |frame: Value| frame.pointer("/snapshot/omni").or(frame.pointer("/delta/0/value")).cloned();
    frames.filter_map(omni).collect()
}

#[tokio::test(start_paused = true)]
async fn text_as_one_message_in_a_step() {
    for level in LEVELS {
        let step = Step::new()
            .then_text(["Hel", "", "lo"])
            .usage(Usage::default().with_input(3).with_output(2))
            .stop();
        let mut rig = Rig::new(level, [step]).await;
        let frames = rig.say("Hi").await;
        assert_eq!(
            kinds(&frames),
            [
                "RUN_STARTED",
                "STATE_SNAPSHOT",
                "STATE_DELTA",
                "STATE_DELTA",
                "STEP_STARTED",
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "STATE_DELTA",
                "STEP_FINISHED",
                "STATE_DELTA",
                "RUN_FINISHED"
            ]
        );
        let end = last(&frames);
        assert_eq!(end["usage"][0]["totalTokens"], 5);
        let outcome = (level == AgUiVersion::V1).then(|| json!({ "type": "success" }));
        assert_eq!(end.get("outcome"), outcome.as_ref());
        let states = states(&frames);
        let members = |omni: &Value| json!([omni["status"], omni["step"], omni["tokens"]]);
        assert_eq!(
            states.iter().map(members).collect::<Value>(),
            json!([["idle", 0, 0], ["busy", 0, 0], ["busy", 1, 0], ["busy", 1, 5], ["idle", 1, 5]])
        );
        assert_eq!(rig.client.state, json!({ "mine": 1, "omni": states[4] }));
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reasoning_only_if_it_has_text() {
    for level in LEVELS {
        // A random id can't contain this signature.
        let signature = "the signature";
        let step = Step::new().then_redacted_thinking("x").then_thinking("Hm.", signature);
        let mut rig = Rig::new(level, [step.then_text(["Yes."]).stop()]).await;
        let frames = rig.say("Hi").await;
        let reasoning =
            kinds(&frames).into_iter().filter(|kind| kind.starts_with("REASONING")).collect::<Vec<_>>();
        let parts = ["START", "MESSAGE_START", "MESSAGE_CONTENT", "MESSAGE_END", "END"];
        assert_eq!(reasoning, parts.map(|part| format!("REASONING_{part}")));
        assert!(!format!("{frames:?}").contains(signature));
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn tools_with_progress_results_and_errors() {
    for level in LEVELS {
        let step = Step::new()
            .then_text(["Adding."])
            .then_tool_use("a", "add", json!({ "x": 1 }))
            .then_tool_use("b", "fail", json!({}))
            .then_text(["More."])
            .then_raw_tool_use("c", "add", &[])
            .stop();
        let mut rig = Rig::new(level, [step, Step::text("Done.")]).await;
        let frames = rig.say("Hi").await;
        let results: Vec<_> = frames
            .iter()
            .filter(|frame| kind_of(frame) == "TOOL_CALL_RESULT")
            .map(|f| serde_json::to_value(f).unwrap())
            .collect();
        assert_eq!(results.len(), 3);
        assert_eq!(
            (&results[0]["messageId"], &results[0]["content"]),
            (&json!("a-result"), &json!(r#"{"x":1}"#))
        );
        assert_eq!(results[1]["metadata"]["isError"], true);
        let view = rig.session.snapshot().await.unwrap();
        let mut tools = messages_of(&view, level);
        tools.retain(|message| message["role"] == "tool");
        assert_eq!((tools[0].get("error"), &tools[1]["error"]), (None, &tools[1]["content"]));
        assert!(tools[1]["error"].is_string(), "{tools:?}");
        assert!(kinds(&frames).contains(&"ACTIVITY_SNAPSHOT".to_owned()));
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn approvals_as_interrupts_and_their_answers_as_a_new_run() {
    for level in LEVELS {
        let step = Step::new()
            .then_tool_use("a", "ask", json!({ "n": 1 }))
            .then_tool_use("b", "add", json!({}))
            .then_tool_use("c", "ask", json!({ "n": 3 }))
            .then_tool_use("d", "ask", json!({ "n": 4 }))
            .stop();
        let mut rig = Rig::new(level, [step, Step::text("Done.")]).await;
        let frames = rig.say("Hi").await;
        let ends = kinds(&frames);
        assert_eq!(ends[ends.len() - 3..], ["STATE_DELTA", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
        assert_eq!(states(&frames).last().unwrap()["status"], "paused");
        let ids: Vec<_> =
            rig.client.interrupts.iter().map(|interrupt| interrupt["id"].as_str().unwrap()).collect();
        let turn = rig.session.snapshot().await.unwrap().agent.turn.unwrap();
        assert_eq!(ids, ["a", "c", "d"].map(|id| format!("{id}@{turn}")));
        let first = &rig.client.interrupts[0];
        assert_eq!((&first["reason"], &first["toolCallId"]), (&json!("tool_call"), &json!("a")));
        assert_eq!(first["responseSchema"]["properties"]["editedArgs"]["type"], "object");
        rig.check_messages().await;

        let frames = rig.say("Never mind").await;
        assert_eq!(last(&frames)["code"], "missing-answer");
        rig.client.messages.pop();
        let frames = rig
            .resume(json!([
                { "interruptId": "a", "status": "resolved", "payload": { "approved": true, "editedArgs": { "n": 2 } } },
                { "interruptId": "c", "status": "resolved", "payload": { "approved": false, "reason": "No." } },
                { "interruptId": "d", "status": "cancelled" },
            ]))
            .await;
        let sent: Vec<_> = kinds(&frames).into_iter().filter(|kind| kind.starts_with("TOOL_CALL")).collect();
        assert_eq!(sent, ["TOOL_CALL_RESULT"; 4]);
        let text = format!("{:?}", rig.client.messages);
        assert!(text.contains(r#"asked {\"n\":2}"#) && text.contains("No."), "{text}");
        rig.check_messages().await;
        let frames = rig.resume(json!([{ "interruptId": "a", "status": "cancelled" }])).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED", "the client has no open interrupt any more");
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_run_ends_with_an_error_and_can_be_sent_again() {
    for level in LEVELS {
        let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "bad");
        let mut rig = Rig::new(level, [Step::new().then_text(["Hal"]).fail(error), Step::text("Now.")]).await;
        let frames = rig.say("Hi").await;
        let end = last(&frames);
        assert_eq!((&end["type"], &end["code"]), (&json!("RUN_ERROR"), &json!("provider")));
        rig.client.messages.truncate(1);
        let frames = rig.run(json!({})).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED");
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_prompts_in_a_row_end_the_list_and_are_each_sent_again_once() {
    for level in LEVELS {
        let down = || Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "bad"));
        let mut rig =
            Rig::new(level, [Step::text("One."), down(), down(), Step::text("Three."), Step::text("Two.")])
                .await;
        rig.say("Hi").await;
        rig.say("Second").await;
        let frames = rig.say("Third").await;
        assert_eq!(last(&frames)["type"], "RUN_ERROR");
        let users = |client: &Client| -> Vec<Value> {
            let users = client.messages.iter().filter(|message| message["role"] == "user");
            users.map(|message| message["content"].clone()).collect()
        };
        // A client that loads the conversation again gets the newest one.
        let joined = async |rig: &mut Rig| {
            let view = rig.session.snapshot().await.unwrap();
            let input = rig.request(json!({ "messages": [] }));
            let (_, frames) =
                super::AgUiStream::begin(super::run_of(&input), view, super::AgUiRunToStream::Join);
            let mut client = Client::new(level);
            client.read(&frames);
            client
        };
        let mut other = joined(&mut rig).await;
        assert_eq!(users(&other), ["Hi", "Third"]);
        std::mem::swap(&mut rig.client, &mut other);
        let frames = rig.run(json!({})).await;
        assert_eq!(last(&frames)["type"], "RUN_FINISHED");
        rig.check_messages().await;
        assert_eq!(users(&rig.client), ["Hi", "Third"]);
        // The other window still has both, and sends the older one again.
        std::mem::swap(&mut rig.client, &mut other);
        rig.client.messages.pop_if(|message| message["content"] == "Third");
        rig.run(json!({})).await;
        rig.check_messages().await;
        assert_eq!(users(&joined(&mut rig).await), ["Hi", "Second"]);
        assert_eq!(rig.session.tree().await.unwrap().len(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn question_of_a_running_tool_is_an_interrupt_of_its_call() {
    for level in LEVELS {
        let steps = [Step::tool_use("t1", "confirm", json!({})), Step::text("Done.")];
        let mut rig = Rig::new(level, steps).await;
        rig.say("Go").await;
        let interrupt = &rig.client.interrupts[0];
        let turn = rig.session.snapshot().await.unwrap().agent.turn.unwrap();
        assert_eq!(interrupt["id"], format!("t1?1@{turn}"));
        assert_eq!(interrupt["toolCallId"], "t1");
        assert_eq!(interrupt["message"], "How many?");
        assert_eq!(interrupt["responseSchema"]["properties"]["editedArgs"], json!({ "type": "object" }));
        let answer = json!({ "approved": true, "editedArgs": { "n": 2 } });
        rig.resume(json!([{ "interruptId": "t1?1", "status": "resolved", "payload": answer }])).await;
        let result = rig.client.messages.iter().find(|message| message["role"] == "tool").unwrap();
        assert_eq!(result["content"], r#"Accepted(Some(Object {"n": Number(2)}))"#);
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn interrupted_run_keeps_its_text() {
    for level in LEVELS {
        let mut rig = Rig::new(level, [Step::new().then_text(["Hal"]).hang()]).await;
        rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Hi" }));
        let mut posted = rig.post(json!({})).await;
        posted.until("TEXT_MESSAGE_CONTENT").await;
        rig.session.interrupt().await.unwrap();
        let frames = posted.finish(&mut rig.client).await;
        let outcome = (level == AgUiVersion::V1).then(|| json!({ "type": "cancelled" }));
        assert_eq!(last(&frames).get("outcome"), outcome.as_ref());
        assert_eq!(rig.client.messages[1]["content"], "Hal");
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_run_keeps_its_work_and_a_join_shows_the_same() {
    for level in LEVELS {
        for (kind, is_replaced) in
            [(ProviderErrorKind::Auth, false), (ProviderErrorKind::InvalidRequest, true)]
        {
            let input = json!({ "n": "1".repeat(1000) });
            // A service that has begun to answer has accepted the results.
            let error = ProviderError::new(kind, "no more");
            let fails =
                if is_replaced { Step::error(error) } else { Step::new().then_text(["Hal"]).fail(error) };
            let mut rig = Rig::new(level, [Step::tool_use("t1", "add", input), fails]).await;
            let frames = rig.say("Hi").await;
            let end = last(&frames);
            assert_eq!((&end["type"], &end["code"]), (&json!("RUN_ERROR"), &json!("provider")));
            rig.check_messages().await;
            let texts = rig.client.messages.iter().filter(|message| message["content"] == "Hal");
            assert_eq!(texts.count(), usize::from(!is_replaced), "{:#?}", rig.client.messages);
            let result = rig.client.messages.iter().find(|message| message["role"] == "tool").unwrap();
            let text = result["content"].as_str().unwrap();
            assert_eq!(
                text.starts_with("[Removed after an error of the model service:"),
                is_replaced,
                "{text}"
            );
            assert_eq!(end_of_join(&mut rig, None).await["message"], end["message"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_takes_its_messages_back() {
    for level in LEVELS {
        let steps = [Step::text("One."), Step::new().then_thinking("Hm.", "").then_text(["Hal"]).hang()];
        let mut rig = Rig::new(level, steps).await;
        rig.say("Hi").await;
        rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Again" }));
        let mut posted = rig.post(json!({})).await;
        posted.until("TEXT_MESSAGE_CONTENT").await;
        rig.session.cancel().await.unwrap();
        posted.finish(&mut rig.client).await;
        rig.check_messages().await;
        let texts = rig.client.messages.iter().filter(|message| message["role"] != "reasoning");
        assert_eq!(texts.count(), 2);
    }
}

/// Joins a conversation whose last run has ended with `outcome`. Returns the last frame.
async fn end_of_join(rig: &mut Rig, outcome: Option<RunOutcome>) -> Value {
    let mut view = rig.session.snapshot().await.unwrap();
    if let Some(outcome) = outcome {
        view.agent.last_run = Some(std::sync::Arc::new(RunEnd::new(outcome)));
    }
    let input = rig.request(json!({ "messages": [] }));
    let (stream, frames) =
        super::AgUiStream::begin(super::run_of(&input), view, super::AgUiRunToStream::Join);
    assert!(stream.is_ended());
    let mut other = Client::new(rig.client.level);
    other.read(&frames);
    other.check_ended();
    super::check_messages(&other, &rig.session.snapshot().await.unwrap());
    last(&frames)
}

#[tokio::test(start_paused = true)]
async fn abandoned_run_is_the_same_error_live_and_discarded_and_after_a_return() {
    for level in LEVELS {
        for is_kept in [true, false] {
            let gate = Gate::new();
            let step = if is_kept { Step::new().then_text(["Hal"]) } else { Step::new() };
            let mut rig = Rig::new(level, [step.gate(&gate).stop()]).await;
            rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Hi" }));
            let mut posted = rig.post(json!({})).await;
            gate.reached().await;
            rig.session.interrupt().await.unwrap();
            while posted.next_with(abandoned).await {}
            rig.client.read(&posted.frames);
            rig.client.check_ended();
            let returned = end_of_join(&mut rig, Some(RunOutcome::Abandoned)).await;
            for end in [last(&posted.frames), returned] {
                assert_eq!((&end["type"], &end["code"]), (&json!("RUN_ERROR"), &json!("abandoned")));
                assert_eq!(end["message"], "The run was ended after too many restarts.");
            }
            assert_eq!(rig.session.snapshot().await.unwrap().tree.iter().len(), if is_kept { 2 } else { 0 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn join_of_an_idle_conversation_ends_as_its_last_run_has_ended() {
    for level in LEVELS {
        let steps = [
            Step::new().then_text(["Hal"]).hang(),
            Step::new().then_text(["Hal"]).hang(),
            Step::new().fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "bad")),
            Step::text("Good."),
        ];
        let mut rig = Rig::new(level, steps).await;
        for end in ["interrupt", "cancel", "fail", "stop"] {
            rig.client.messages.push(json!({ "id": end, "role": "user", "content": "Hi" }));
            let mut posted = rig.post(json!({})).await;
            if matches!(end, "interrupt" | "cancel") {
                posted.until("TEXT_MESSAGE_CONTENT").await;
            }
            match end {
                "interrupt" => rig.session.interrupt().await.unwrap(),
                "cancel" => rig.session.cancel().await.unwrap(),
                _ => {}
            }
            let live = last(&posted.finish(&mut rig.client).await);
            let joined = end_of_join(&mut rig, None).await;
            for name in ["type", "code", "message", "outcome"] {
                assert_eq!(joined.get(name), live.get(name), "{end}");
            }
            rig.client.messages.clear();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_of_an_earlier_cancelled_run_that_is_sent_again_is_not_a_success() {
    let mut rig =
        Rig::new(AgUiVersion::V1, [Step::new().then_text(["Hal"]).hang(), Step::text("Two.")]).await;
    let first = json!({ "id": "u1", "role": "user", "content": "First" });
    rig.client.messages.push(first.clone());
    let mut posted = rig.post(json!({})).await;
    posted.until("TEXT_MESSAGE_CONTENT").await;
    rig.session.cancel().await.unwrap();
    posted.finish(&mut rig.client).await;
    rig.say("Second").await;
    rig.client.messages.push(first);
    let frames = rig.run(json!({})).await;
    assert_eq!(last(&frames)["outcome"], json!({ "type": "cancelled" }));
    rig.check_messages().await;
}

#[tokio::test(start_paused = true)]
async fn repeated_step_removes_the_void_answer() {
    struct Again;
    #[async_trait::async_trait]
    impl AgentCallbacks for Again {
        async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
            ErrorDecision::Retry
        }
    }
    for level in LEVELS {
        let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "bad");
        let provider = crate::testing::ScriptedProvider::new([
            Step::new().then_text(["void"]).then_tool_use("v", "add", json!({})).fail(error),
            Step::new().then_text(["good"]).stop(),
        ]);
        let agent = super::agent(&provider).callbacks(Again);
        let session = crate::session::Session::builder(crate::store::MemoryStore::new())
            .agent(agent)
            .create()
            .await
            .unwrap();
        let mut rig = Rig { session, provider, client: Client::new(level), runs: 0 };
        let frames = rig.say("Hi").await;
        assert!(kinds(&frames).contains(&"MESSAGES_SNAPSHOT".to_owned()));
        assert!(!format!("{:?}", rig.client.messages).contains("void"));
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn backup_model_is_named_in_a_custom_event() {
    for level in LEVELS {
        let spent = ProviderError::new(ProviderErrorKind::Quota, "no credit");
        let provider = crate::testing::ScriptedProvider::new([Step::error(spent)]);
        let other = crate::testing::ScriptedProvider::new([Step::text("Good.")]).named("other");
        let agent = super::agent(&provider).backup_model(other.model());
        let builder = crate::session::Session::builder(crate::store::MemoryStore::new()).agent(agent);
        let session = builder.create().await.unwrap();
        let mut rig = Rig { session, provider, client: Client::new(level), runs: 0 };
        let frames = rig.say("Hi").await;
        let custom = frames.iter().find(|frame| matches!(frame, AgUiFrame::Custom { .. })).unwrap();
        let value = json!({ "failure": "quota spent: no credit", "model": "other:scripted" });
        assert_eq!(*custom, AgUiFrame::Custom { name: "omni.retry", value });
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn late_join_continues_open_blocks() {
    for level in LEVELS {
        let gate = Gate::new();
        let step = Step::new()
            .then_thinking("Hm.", "")
            .then_text(["Hel"])
            .gate(&gate)
            .more(crate::provider::Part::Text("lo".into()))
            .then_raw_tool_use("a", "add", &["{", "}"])
            .stop();
        let mut rig = Rig::new(level, [step, Step::text("Done.")]).await;
        rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Hi" }));
        let mut first = rig.post(json!({})).await;
        first.until("TEXT_MESSAGE_CONTENT").await;
        let mut late = rig.post(json!({})).await;
        let joined = kinds(&late.frames);
        assert_eq!(
            joined,
            ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "STEP_STARTED", "TEXT_MESSAGE_START"]
        );
        gate.open();
        let mut other = Client::new(level);
        late.finish(&mut other).await;
        first.finish(&mut rig.client).await;
        rig.check_messages().await;
        super::check_messages(&other, &rig.session.snapshot().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_has_a_stream_for_its_own_turn() {
    for level in LEVELS {
        let gate = Gate::new();
        let mut rig =
            Rig::new(level, [Step::new().then_text(["One"]).gate(&gate).stop(), Step::text("Two.")]).await;
        rig.client.messages.push(json!({ "id": "u1", "role": "user", "content": "First" }));
        let mut first = rig.post(json!({})).await;
        first.until("TEXT_MESSAGE_CONTENT").await;
        let mut second_client = Client::new(level);
        std::mem::swap(&mut rig.client, &mut second_client);
        rig.client.messages.push(json!({ "id": "u2", "role": "user", "content": "Second" }));
        let mut second = rig.post(json!({})).await;
        gate.open();
        let frames = first.finish(&mut second_client).await;
        assert!(!format!("{frames:?}").contains("Two."));
        let frames = second.finish(&mut rig.client).await;
        assert_eq!(kinds(&frames).iter().filter(|kind| *kind == "MESSAGES_SNAPSHOT").count(), 2);
        assert_eq!(rig.client.messages.len(), 4);
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_behind_a_run_that_has_just_ended_is_read_from_its_own_run_on() {
    for level in LEVELS {
        let gate = Gate::new();
        let steps = [Step::new().then_text(["One"]).gate(&gate).stop(), Step::text("Two")];
        let mut rig = Rig::new(level, steps).await;
        rig.client.messages.push(json!({ "id": "u1", "role": "user", "content": "First" }));
        let mut first = rig.post(json!({})).await;
        first.until("TEXT_MESSAGE_CONTENT").await;
        // The second request takes its snapshot while the first run is active. Its prompt arrives after the first run
        // has ended.
        let updates = rig.session.subscribe(Mode::Controller).await.unwrap();
        gate.open();
        first.finish(&mut rig.client).await;
        let mut client = Client::new(level);
        client.messages.push(json!({ "id": "u2", "role": "user", "content": "Second" }));
        std::mem::swap(&mut rig.client, &mut client);
        let run = super::run_of(&rig.request(json!({})));
        let prompt = crate::run::Prompt::new("Second").with_id("u2");
        let answer = SessionAnswer::Accepted(rig.session.prompt(prompt).await.unwrap());
        let view = (**updates.snapshot().unwrap()).clone();
        let start = super::AgUiRunToStream::of(&answer, Some("u2".into()), &view.agent);
        let (stream, frames) = super::AgUiStream::begin(run, view, start);
        let mut second = super::Posted { updates, stream: Some(stream), frames };
        second.finish(&mut rig.client).await;
        rig.check_messages().await;
        assert_eq!(rig.client.messages.len(), 4);
    }
}

struct Asks;

#[async_trait::async_trait]
impl AgentCallbacks for Asks {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause("May I?".into())
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::Retry
    }
}

#[tokio::test(start_paused = true)]
async fn answer_with_a_question_of_the_service_continues_or_is_void_in_the_next_run() {
    for (level, fails) in LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)]) {
        let question = ToolUse::new("q1", "shell", json!({}));
        let step = Step::new().then_text(["Be", "fore"]).decide(question);
        let step = if fails {
            step.fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))
        } else {
            step.more(Part::Text(" after".to_owned())).stop()
        };
        let steps = [step, Step::text("Again.")];
        let mut rig = Rig::with(level, steps, |agent| agent.callbacks(Asks)).await;
        rig.say("Hi").await;
        let interrupt = rig.client.interrupts[0]["id"].clone();
        let answer =
            json!({ "interruptId": interrupt, "status": "resolved", "payload": { "approved": true } });
        let frames = rig.resume(json!([answer])).await;
        rig.check_messages().await;
        assert_eq!(rig.client.messages[1]["content"], if fails { "Again." } else { "Before after" });
        let deltas = frames.iter().filter(|frame| kind_of(frame) == "TEXT_MESSAGE_CONTENT");
        let deltas: String = deltas
            .map(|frame| serde_json::to_value(frame).unwrap()["delta"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(deltas, if fails { "Again." } else { " after" });
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_about_two_sub_agents_are_asked_for_once_and_name_the_tools() {
    for level in LEVELS {
        let deletes = |name: &'static str| {
            let steps = [Step::tool_use("d", "delete", json!({})), Step::text("Gone.")];
            let model = ScriptedProvider::new(steps).model();
            SubAgent::new(name, "Deletes.", move |_| {
                let delete = tool_fn("delete", "Deletes.", |_: Value, _| async { Ok("ok") });
                Agent::builder().model(model.clone()).tool(delete.needs_approval())
            })
        };
        let both = Step::new().then_tool_use("a", "one", json!({ "task": "1" }));
        let both = both.then_tool_use("b", "two", json!({ "task": "2" })).stop();
        let set_up = |agent: AgentBuilder| agent.tool(deletes("one")).tool(deletes("two"));
        let mut rig = Rig::with(level, [both, Step::text("Done.")], set_up).await;
        rig.say("Go").await;
        let mut asked = Vec::new();
        while !rig.client.interrupts.is_empty() {
            let interrupts = std::mem::take(&mut rig.client.interrupts);
            let answer = |interrupt: &Value| {
                assert_eq!(interrupt["metadata"]["tool"], "delete", "{interrupt}");
                json!({ "interruptId": interrupt["id"], "status": "resolved", "payload": { "approved": true } })
            };
            let answers: Vec<_> = interrupts.iter().map(answer).collect();
            asked.extend(interrupts.iter().map(|interrupt| interrupt["id"].to_string()));
            rig.resume(json!(answers)).await;
        }
        asked.sort();
        assert!(asked.len() == 2 && asked[0] != asked[1], "{asked:?}");
        assert_eq!(rig.client.messages.last().unwrap()["content"], "Done.");
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reader_that_misses_the_start_of_the_next_prompt_ends_with_its_own_run() {
    for level in LEVELS {
        let gate = Gate::new();
        let steps = [Step::text("One."), Step::new().then_text(["Two."]).gate(&gate).stop()];
        let error = Step::error(ProviderError::new(ProviderErrorKind::Auth, "no"));
        let mut rig = Rig::new(level, steps.into_iter().chain([error])).await;
        rig.say("Hi").await;
        // The client asks for another answer. No prompt of this run has an id that the stream could follow.
        rig.client.messages.truncate(1);
        let mut posted = rig.post(json!({})).await;
        gate.reached().await;
        rig.session.prompt(crate::run::Prompt::new("Other").with_id("u2")).await.unwrap();
        gate.open();
        rig.session.wait_until_idle().await.unwrap();
        let snapshot = std::sync::Arc::new(rig.session.snapshot().await.unwrap());
        let frames = posted.stream.as_mut().unwrap().update(&Update::Resync(snapshot));
        posted.frames.extend(frames);
        let frames = posted.finish(&mut rig.client).await;
        assert_eq!(kind_of(frames.last().unwrap()), "RUN_FINISHED");
        assert_eq!(rig.client.messages[1]["content"], "Two.");
    }
}

#[tokio::test(start_paused = true)]
async fn withdrawn_prompt_ends_its_stream_with_an_error() {
    let mut rig = Rig::new(AgUiVersion::V1, [Step::new().then_text(["One"]).hang()]).await;
    rig.client.messages.push(json!({ "id": "u1", "role": "user", "content": "First" }));
    let mut first = rig.post(json!({})).await;
    first.until("TEXT_MESSAGE_CONTENT").await;
    rig.client.messages.push(json!({ "id": "u2", "role": "user", "content": "Second" }));
    let mut second = rig.post(json!({})).await;
    let mut again = rig.post(json!({})).await;
    rig.session.unstage("u2").await.unwrap();
    for posted in [&mut second, &mut again] {
        let frames = posted.finish(&mut Client::new(AgUiVersion::V1)).await;
        assert_eq!(last(&frames)["code"], "withdrawn");
    }
}

#[tokio::test(start_paused = true)]
async fn client_tools_are_open_calls_and_their_results_a_prompt() {
    for level in LEVELS {
        let mut rig =
            Rig::new(level, [Step::tool_use("s", "show", json!({ "page": 1 })), Step::text("Shown.")]).await;
        let frames = rig.say("Show it").await;
        if level == AgUiVersion::V1 {
            assert_eq!(last(&frames)["outcome"], json!({ "type": "success", "pendingToolCallIds": ["s"] }));
        }
        rig.client
            .messages
            .push(json!({ "id": "mine", "role": "tool", "toolCallId": "s", "content": "seen" }));
        rig.run(json!({})).await;
        rig.check_messages().await;
        assert_eq!(rig.client.messages[2]["content"], "seen");
    }
}

/// Asserts that each call has another id, that the inputs of the calls are these, and that each call has a result.
fn check_calls(rig: &Rig, inputs: &[&str]) {
    let messages = &rig.client.messages;
    let calls: Vec<_> =
        messages.iter().filter_map(|message| message["toolCalls"].as_array()).flatten().collect();
    let shown: Vec<_> = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(shown, inputs);
    for (number, call) in calls.iter().enumerate() {
        assert!(calls[..number].iter().all(|other| other["id"] != call["id"]), "{calls:?}");
        let results = messages.iter().filter(|message| message["toolCallId"] == call["id"]);
        let results: Vec<_> = results.filter(|message| message["role"] == "tool").collect();
        let [result] = results[..] else { panic!("{results:?}") };
        assert!(result["content"].as_str().unwrap().contains(inputs[number]), "{result}");
    }
}

/// Some services number their calls anew in each answer.
#[tokio::test(start_paused = true)]
async fn calls_with_the_same_id_in_several_answers_stay_apart() {
    for level in LEVELS {
        let step = |tool: &str, n: u8| Step::tool_use("a", tool, json!({ "n": n }));
        let steps = [
            step("add", 1),
            step("add", 2),
            Step::text("Done."),
            step("add", 3),
            step("ask", 4),
            step("show", 5),
            Step::text("Shown."),
        ];
        let mut rig = Rig::new(level, steps).await;
        rig.say("Hi").await;
        check_calls(&rig, &[r#"{"n":1}"#, r#"{"n":2}"#]);
        rig.check_messages().await;

        rig.say("More").await;
        rig.check_messages().await;
        let [interrupt] = &rig.client.interrupts[..] else { panic!("{:?}", rig.client.interrupts) };
        let calls = rig.client.messages.iter().filter_map(|message| message["toolCalls"].as_array());
        assert_eq!(interrupt["toolCallId"], calls.flatten().last().unwrap()["id"]);
        let answer =
            json!({ "interruptId": interrupt["id"], "status": "resolved", "payload": { "approved": true } });
        let frames = rig.resume(json!([answer])).await;
        let calls = rig.client.messages.iter().filter_map(|message| message["toolCalls"].as_array());
        let open = calls.flatten().last().unwrap()["id"].clone();
        if level == AgUiVersion::V1 {
            assert_eq!(last(&frames)["outcome"]["pendingToolCallIds"], json!([open]));
        }
        let result =
            json!({ "id": "mine", "role": "tool", "toolCallId": open, "content": r#"{"n":5} seen"# });
        rig.client.messages.push(result);
        rig.run(json!({})).await;
        rig.check_messages().await;
        let inputs = [1, 2, 3, 4, 5].map(|n| format!(r#"{{"n":{n}}}"#));
        check_calls(&rig, &inputs.each_ref().map(String::as_str));
    }
}

#[tokio::test(start_paused = true)]
async fn file_of_an_answer_is_an_activity() {
    for level in LEVELS {
        let file = Attachment::base64("image/png", "AAAA").named("x.png");
        let step = Step::new().delta(Delta::Start { index: 0, block: BlockStart::Attachment(file) }).stop();
        let mut rig = Rig::new(level, [step]).await;
        rig.say("Draw").await;
        let file = &rig.client.messages[1]["content"]["file"];
        assert_eq!((&file["type"], &file["source"]["value"]), (&json!("image"), &json!("AAAA")));
        rig.check_messages().await;
    }
}

#[tokio::test(start_paused = true)]
async fn title_that_changes_in_a_run_is_a_custom_event_and_a_change_of_the_state() {
    let gate = Gate::new();
    let mut rig = Rig::new(AgUiVersion::V1, [Step::new().then_text(["One"]).gate(&gate).stop()]).await;
    rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Hi" }));
    let mut posted = rig.post(json!({})).await;
    posted.until("TEXT_MESSAGE_CONTENT").await;
    rig.session.set_title(Some("New")).await.unwrap();
    gate.open();
    let frames = posted.finish(&mut rig.client).await;
    let custom = frames.iter().find(|frame| matches!(frame, AgUiFrame::Custom { .. })).unwrap();
    assert_eq!(serde_json::to_value(custom).unwrap()["value"], json!({ "title": "New" }));
    let states = states(&frames);
    assert_eq!((states[0].get("title"), &states[states.len() - 1]["title"]), (None, &json!("New")));
    rig.check_messages().await;
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_lost_session_fails_once() {
    let mut rig = Rig::new(AgUiVersion::V1, [Step::new().then_text(["One"]).hang()]).await;
    rig.client.messages.push(json!({ "id": "u", "role": "user", "content": "Hi" }));
    let mut posted = rig.post(json!({})).await;
    posted.until("TEXT_MESSAGE_CONTENT").await;
    let stream = posted.stream.as_mut().unwrap();
    posted.frames.extend(stream.fail("closed", "The conversation was closed."));
    assert!(stream.fail("closed", "again").is_empty() && stream.is_ended());
    rig.client.read(&posted.frames);
    rig.client.check_ended();
}

#[tokio::test(start_paused = true)]
async fn join_of_an_idle_conversation_brings_its_messages() {
    for level in LEVELS {
        let mut rig = Rig::new(level, [Step::tool_use("a", "add", json!({})), Step::text("One.")]).await;
        rig.say("Hi").await;
        let updates = rig.session.subscribe(Mode::Observer).await.unwrap();
        let input = rig.request(json!({ "messages": [] }));
        let view = (**updates.snapshot().unwrap()).clone();
        let (stream, frames) =
            super::AgUiStream::begin(super::run_of(&input), view, super::AgUiRunToStream::Join);
        assert!(stream.is_ended());
        let mut other = Client::new(level);
        other.read(&frames);
        assert_eq!(kinds(&frames), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]);
        super::check_messages(&other, &rig.session.snapshot().await.unwrap());
        let _: Value = last(&frames);
    }
}

#[tokio::test(start_paused = true)]
async fn questions_of_running_tools_can_be_answered_one_by_one() {
    for level in LEVELS {
        let step = Step::new()
            .then_tool_use("t1", "confirm", json!({}))
            .then_tool_use("t2", "confirm", json!({}))
            .stop();
        let mut rig = Rig::new(level, [step, Step::text("Done.")]).await;
        rig.say("Go").await;
        for (count, open) in [(1, "t1?1"), (2, "t2?1")] {
            let ids: Vec<_> =
                rig.client.interrupts.iter().map(|interrupt| interrupt["id"].as_str().unwrap()).collect();
            assert!(ids.len() == 1 && ids[0].starts_with(&format!("{open}@")), "{count}: {ids:?}");
            let answer = json!({ "approved": true, "editedArgs": { "n": count } });
            rig.resume(json!([{ "interruptId": open, "status": "resolved", "payload": answer }])).await;
        }
        assert!(rig.client.interrupts.is_empty());
        let results = rig.client.messages.iter().filter(|message| message["role"] == "tool");
        assert_eq!(results.count(), 2);
        rig.check_messages().await;
    }
}
