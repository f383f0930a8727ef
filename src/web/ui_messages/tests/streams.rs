//! The frames of responses.

use serde_json::{Value, json};

use super::rig::{
    Client, LEVELS, Stubborn, ask, begin, check, find, finish, fold, lasting, listed, listed_id, session,
    session_of, submit, types,
};
use crate::{
    agent::{AgentCallbacks, State, TurnDecision},
    message::ProviderItem,
    provider::{BlockStart, Delta, ProviderError, ProviderErrorKind},
    run::{Next, Prompt, Response, RunOutcome},
    session::Session,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, ToolContext, tool_fn},
    web::{
        testing::abandoned,
        ui_messages::{AiSdkFrame, AiSdkRunToStream, AiSdkVersion},
    },
};

fn zone() -> Value {
    json!({ "zone": "UTC" })
}

/// Checks the frames of a complete answer: they follow the rules, and the list shows the same answer.
async fn check_listed(session: &Session, level: AiSdkVersion, frames: &[AiSdkFrame]) {
    check(level, frames);
    assert_eq!(lasting(fold(frames)), listed(session, level).await, "{level:?}");
}

#[tokio::test]
async fn response_with_reasoning_and_text_is_one_step() {
    for level in LEVELS {
        let step =
            Step::new().then_thinking("Hmm.", "signed").then_redacted_thinking("x").then_text(["Hel", "lo"]);
        let session = session([step.stop()]).await;
        let frames = ask(&session, level, "u1").await;
        let expected = [
            "start",
            "start-step",
            "reasoning-start",
            "reasoning-delta",
            "reasoning-end",
            "text-start",
            "text-delta",
            "text-delta",
            "text-end",
            "finish-step",
            "message-metadata",
            "finish",
        ];
        assert_eq!(types(&frames), expected);
        assert_eq!(frames[0]["messageId"], listed_id(&session).await);
        assert_eq!(frames[5]["id"], "1-2");
        assert_eq!(finish(&frames)["finishReason"], "stop");
        assert_eq!(finish(&frames)["messageMetadata"]["nodes"], json!([1, 2]));
        check_listed(&session, level, &frames).await;
    }
}

#[tokio::test]
async fn tool_use_sends_input_progress_and_output() {
    for level in LEVELS {
        let session = session([Step::tool_use("t1", "clock", zone()), Step::text("Noon.")]).await;
        let frames = ask(&session, level, "u1").await;
        let expected = [
            "start",
            "start-step",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-available",
            "finish-step",
            "message-metadata",
            "tool-output-available",
            "tool-output-available",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "finish-step",
            "message-metadata",
            "finish",
        ];
        assert_eq!(types(&frames), expected);
        assert_eq!(frames[7]["preliminary"], true);
        assert_eq!(frames[8]["output"], json!({ "time": "12:00" }), "JSON text becomes a value");
        assert!(frames[2].get("dynamic").is_none());
        check_listed(&session, level, &frames).await;
    }
}

#[tokio::test]
async fn unknown_and_malformed_tool_uses_end_as_errors() {
    for level in LEVELS {
        let step =
            Step::new().then_tool_use("t1", "other", zone()).then_raw_tool_use("t2", "clock", &["{oops"]);
        let session = session([step.stop(), Step::text("Sorry.")]).await;
        let frames = ask(&session, level, "u1").await;
        assert_eq!(find(&frames, "tool-input-start").unwrap()["dynamic"], true);
        assert_eq!(find(&frames, "tool-input-error").unwrap()["input"], "{oops");
        check(level, &frames);
        let states: Vec<_> = fold(&frames).iter().filter_map(|part| part.get("state").cloned()).collect();
        assert_eq!(states, ["output-error", "output-error", "done"]);
    }
}

#[tokio::test]
async fn error_of_the_run_ends_the_stream_with_an_error_frame() {
    for level in LEVELS {
        let failed =
            Step::new().then_text(["Well"]).fail(ProviderError::new(ProviderErrorKind::Auth, "no key"));
        let session = session([failed]).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        assert!(find(&frames, "error").unwrap()["errorText"].as_str().unwrap().contains("no key"));
        assert!(find(&frames, "finish").is_none());
    }
}

/// A tool with a result that is too long to be kept if a service refuses the request with it.
fn read() -> impl Tool {
    tool_fn("read", "Reads.", |_: Value, _: ToolContext| async { Ok("long ".repeat(200)) })
}

#[tokio::test]
async fn failed_run_keeps_its_work_and_the_list_and_a_return_show_the_same() {
    for level in LEVELS {
        for (kind, is_replaced) in
            [(ProviderErrorKind::Auth, false), (ProviderErrorKind::InvalidRequest, true)]
        {
            let uses =
                Step::new().then_tool_use("t1", "clock", zone()).then_tool_use("t2", "read", json!({}));
            // A service that has begun to answer has accepted the results.
            let error = ProviderError::new(kind, "no more");
            let fails =
                if is_replaced { Step::error(error) } else { Step::new().then_text(["Half"]).fail(error) };
            let provider = ScriptedProvider::new([uses.stop(), fails]);
            let session = session_of(provider.clone(), |agent| agent.tool(read())).await;
            let frames = ask(&session, level, "u1").await;
            assert!(frames.last().unwrap()["errorText"].as_str().unwrap().contains("no more"), "{frames:?}");
            check_listed(&session, level, &frames).await;
            let parts = fold(&frames);
            assert_eq!(parts.iter().filter(|part| part["text"] == "Half").count(), usize::from(!is_replaced));
            let read = parts.iter().find(|part| part["toolCallId"] == "t2").unwrap();
            let output = read["output"].as_str().unwrap();
            assert_eq!(
                output.starts_with("[Removed after an error of the model service:"),
                is_replaced,
                "{output}"
            );
            let outputs = frames.iter().filter(|frame| frame["type"] == "tool-output-available");
            // The progress of the clock and the two results.
            assert_eq!(
                outputs.count(),
                3 + usize::from(is_replaced),
                "only a result that has changed is sent again"
            );
            // The prompt is part of the tree, so it is not sent to the model again.
            let again = ask(&session, level, "u1").await;
            check_listed(&session, level, &again).await;
            assert_eq!(again.last(), frames.last());
            assert_eq!(provider.requests().len(), 2);
        }
    }
}

#[tokio::test]
async fn interrupt_keeps_the_text_and_cancel_marks_the_message_as_discarded() {
    for level in LEVELS {
        for is_cancelled in [false, true] {
            let gate = Gate::new();
            let session = session([Step::new().then_text(["Half"]).gate(&gate).stop()]).await;
            let mut client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
            client.until("text-delta").await;
            gate.reached().await;
            if is_cancelled {
                session.cancel().await.unwrap();
            } else {
                session.interrupt().await.unwrap();
            }
            let frames = client.finish().await;
            check(level, &frames);
            let reason = match level {
                AiSdkVersion::Seven if !is_cancelled => "interrupted",
                _ => "other",
            };
            assert_eq!(finish(&frames)["finishReason"], reason);
            assert_eq!(finish(&frames)["messageMetadata"]["discarded"] == true, is_cancelled);
            assert_eq!(find(&frames, "abort").is_some(), is_cancelled);
        }
    }
}

#[tokio::test]
async fn abandoned_run_is_the_same_error_live_and_discarded_and_after_a_return() {
    for level in LEVELS {
        for is_kept in [true, false] {
            let gate = Gate::new();
            let step = if is_kept { Step::new().then_text(["Half"]) } else { Step::new() };
            let session = session([step.gate(&gate).stop()]).await;
            let post = || Client::post(&session, level, submit(&[], "u1", "Hi"));
            let mut client = post().await.unwrap();
            gate.reached().await;
            let mut staged = Client::post(&session, level, submit(&[], "u2", "And?")).await.unwrap();
            session.interrupt().await.unwrap();
            client.finish_with(abandoned).await;
            staged.finish_with(abandoned).await;
            let snapshot = session.snapshot().await.unwrap();
            let ended = AiSdkRunToStream::Ended("u1".into(), RunOutcome::Abandoned);
            let returned = begin(level, &snapshot, ended);
            for frames in [&client.frames, &staged.frames, &returned] {
                check(level, frames);
                let error =
                    json!({ "type": "error", "errorText": "The run was ended after too many restarts." });
                assert_eq!(frames.last(), Some(&error), "{frames:?}");
                assert!(find(frames, "abort").is_none());
            }
            let texts =
                |frames: &[AiSdkFrame]| fold(frames).iter().filter(|part| part["text"] == "Half").count();
            assert_eq!((texts(&client.frames), texts(&returned)), (is_kept.into(), is_kept.into()));
        }
    }
}

#[tokio::test]
async fn prompt_that_is_sent_again_ends_as_its_run_has_ended() {
    for level in LEVELS {
        let gate = Gate::new();
        let session = session([Step::new().then_text(["Half"]).gate(&gate).stop()]).await;
        let client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        gate.reached().await;
        session.interrupt().await.unwrap();
        let first = client.finish().await;
        let again = ask(&session, level, "u1").await;
        assert_eq!(finish(&again)["finishReason"], finish(&first)["finishReason"]);
        assert_eq!(finish(&again)["messageMetadata"]["stopReason"], "interrupted");
    }
}

#[tokio::test]
async fn interrupted_tools_are_sealed_so_that_no_client_sends_their_results() {
    for level in LEVELS {
        let session = session_of(ScriptedProvider::new([Step::tool_use("t1", "clock", zone())]), |agent| {
            agent.max_steps(1)
        });
        let session = session.await;
        let frames = ask(&session, level, "u1").await;
        let parts = fold(&frames);
        assert_eq!(parts.last().unwrap()["type"], "step-start", "the last step has no tools");
        check_listed(&session, level, &frames).await;
    }
}

#[tokio::test(start_paused = true)]
async fn retry_removes_the_void_parts_at_level_seven_and_marks_them_at_level_six() {
    for level in LEVELS {
        let failed = Step::new()
            .then_text(["Void"])
            .then_raw_tool_use("t1", "clock", &["{\"zo"])
            .fail(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
        let provider =
            ScriptedProvider::new([Step::tool_use("t0", "clock", zone()), failed, Step::text("Good.")]);
        let session = session_of(provider, |agent| agent.callbacks(Stubborn)).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        let parts = fold(&frames);
        if level == AiSdkVersion::Seven {
            assert_eq!(parts, listed(&session, level).await);
            assert_eq!(find(&frames, "data-omni-retry").unwrap()["transient"], true);
            assert_eq!(find(&frames, "data-omni-retry").unwrap()["data"]["model"], Value::Null);
        } else {
            let mark = parts.iter().position(|part| part["type"] == "data-omni-retry").expect("a mark");
            let good = parts.iter().position(|part| part["text"] == "Good.").unwrap();
            let void = parts.iter().position(|part| part["text"] == "Void").unwrap();
            assert!(void < mark && mark < good);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retry_names_the_backup_model() {
    for level in LEVELS {
        let spent = Step::error(ProviderError::new(ProviderErrorKind::Quota, "no credit"));
        let other = ScriptedProvider::new([Step::text("Good.")]).named("other").model();
        let session = session_of(ScriptedProvider::new([spent]), |agent| agent.backup_model(other)).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        assert_eq!(find(&frames, "data-omni-retry").unwrap()["data"]["model"], "other:scripted");
    }
}

#[tokio::test]
async fn resumed_stream_replays_the_answer_in_flight() {
    for level in LEVELS {
        let gate = Gate::new();
        let last = Step::new().then_thinking("Hm.", "").then_text(["One ", "two "]).gate(&gate);
        let last = last.more(crate::provider::Part::Text("three.".to_owned())).stop();
        let session = session([Step::tool_use("t1", "clock", zone()), last]).await;
        let first = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        gate.reached().await;
        let second = Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await;
        assert!(!second.frames.is_empty());
        gate.open();
        let (first, second) = (first.finish().await, second.finish().await);
        check(level, &second);
        assert_eq!(fold(&first), fold(&second));
        check_listed(&session, level, &second).await;
    }
}

#[tokio::test]
async fn replayed_input_of_an_answered_tool_use_tells_the_client_not_to_run_the_tool_again() {
    for level in LEVELS {
        let gate = Gate::new();
        let rest = || Step::new().then_text(["Done."]).gate(&gate).stop();
        // The second use has the id of the first one, and no result yet.
        let again = Step::tool_use("l1", "locate", zone());
        let session = session([Step::tool_use("l1", "locate", zone()), again, rest()]).await;
        let live = ask(&session, level, "u1").await;
        assert_eq!(find(&live, "tool-input-available").unwrap().get("providerExecuted"), None);
        let answered = |id: String| {
            let part = json!({ "type": "tool-locate", "toolCallId": "l1", "state": "output-available",
                               "output": "Oslo" });
            let answer = json!({ "id": id, "role": "assistant", "parts": [{ "type": "step-start" }, part] });
            json!({ "id": "1", "trigger": "submit-message", "messageId": id, "messages": [answer] })
        };
        let marks = |frames: &[AiSdkFrame]| {
            let inputs = frames.iter().filter(|frame| frame["type"] == "tool-input-available");
            inputs.map(|frame| frame["providerExecuted"] == true).collect::<Vec<_>>()
        };
        let post = Client::post(&session, level, answered(listed_id(&session).await)).await.unwrap();
        assert_eq!(marks(&post.finish().await), [false]);
        assert_eq!(marks(&ask(&session, level, "u1").await), [true, false]);

        let post = Client::post(&session, level, answered(listed_id(&session).await)).await.unwrap();
        gate.reached().await;
        let resumed = Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await;
        assert_eq!(marks(&resumed.frames), [true, true]);
        gate.open();
        post.finish().await;
        check_listed(&session, level, &resumed.finish().await).await;
    }
}

#[tokio::test]
async fn staged_prompt_waits_for_its_turn_and_ends_the_response_before() {
    for level in LEVELS {
        let gate = Gate::new();
        let session = session([Step::new().then_text(["One."]).gate(&gate).stop(), Step::text("Two.")]).await;
        let first = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        gate.reached().await;
        let second = Client::post(&session, level, submit(&[], "u2", "And?")).await.unwrap();
        assert!(second.frames.is_empty(), "the prompt is staged");
        gate.open();
        let (first, second) = (first.finish().await, second.finish().await);
        check(level, &first);
        check(level, &second);
        assert_eq!(fold(&first)[1]["text"], "One.");
        assert_eq!(finish(&first)["messageMetadata"]["nodes"], json!([1, 2]));
        assert_eq!(second[0]["messageId"], listed_id(&session).await);
        assert_eq!(fold(&second)[1]["text"], "Two.");
        assert_eq!(finish(&second)["messageMetadata"]["nodes"], json!([3, 4]));
    }
}

#[tokio::test]
async fn staged_prompt_of_a_cancelled_run_is_discarded() {
    let gate = Gate::new();
    let session = session([Step::text("Zero."), Step::new().then_text(["One."]).gate(&gate).stop()]).await;
    ask(&session, AiSdkVersion::Seven, "u0").await;
    let _first = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    let second = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u2", "And?")).await.unwrap();
    session.cancel().await.unwrap();
    let frames = second.finish().await;
    check(AiSdkVersion::Seven, &frames);
    assert_eq!(finish(&frames)["messageMetadata"]["discarded"], true);
    assert_eq!(frames[0]["messageId"], "a-u2", "no two messages have one id");
}

#[tokio::test]
async fn prompt_of_a_failed_run_that_is_sent_again_has_its_own_answer() {
    for level in LEVELS {
        let failed = Step::new().fail(ProviderError::new(ProviderErrorKind::Auth, "no key"));
        let session = session([Step::text("Zero."), failed]).await;
        ask(&session, level, "u0").await;
        let first = ask(&session, level, "u1").await;
        let snapshot = session.snapshot().await.unwrap();
        let mut client =
            Client::start(&session, level, |_| (AiSdkRunToStream::Prompt("u1".into()), None)).await;
        client.miss(0).await;
        let again = client.finish().await;
        check(level, &again);
        assert_eq!((&again[0], again.last()), (&first[0], first.last()));
        let turn = snapshot.agent.last_run.as_ref().unwrap().turn.unwrap();
        assert_eq!(again[0]["messageId"], format!("a-{turn}"));
    }
}

#[tokio::test]
async fn message_in_place_of_a_clients_result_starts_an_answer_without_the_result() {
    for level in LEVELS {
        let session = session([Step::tool_use("t1", "locate", zone()), Step::text("Then not.")]).await;
        ask(&session, level, "u1").await;
        let frames = ask(&session, level, "u2").await;
        check(level, &frames);
        assert_eq!(frames[0]["messageId"], listed_id(&session).await);
        assert!(frames.iter().all(|frame| frame["toolCallId"] != "t1"), "{frames:?}");
        check_listed(&session, level, &frames).await;
    }
}

#[tokio::test]
async fn prompt_that_joins_the_turn_is_a_steering_part() {
    for level in LEVELS {
        let gate = Gate::new();
        let step = Step::new().then_tool_use("t1", "clock", zone()).gate(&gate).stop();
        let session = session([step, Step::text("Both.")]).await;
        let client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        gate.reached().await;
        session.prompt(Prompt::new("Also this.").with_id("u2").at(Next::Step)).await.unwrap();
        gate.open();
        let frames = client.finish().await;
        check(level, &frames);
        let kind = if level == AiSdkVersion::Seven { "steering-message" } else { "data-omni-steering" };
        assert_eq!(find(&frames, kind).unwrap()["id"], "u2");
        assert_eq!(lasting(fold(&frames)), listed(&session, level).await);
    }
}

struct Again(u32);

#[async_trait::async_trait]
impl AgentCallbacks for Again {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.0 -= 1;
        if self.0 == 0 { TurnDecision::Stop } else { TurnDecision::continue_with("Go on.") }
    }
}

#[tokio::test]
async fn continuation_of_the_application_stays_in_the_response() {
    for level in LEVELS {
        let provider = ScriptedProvider::new([Step::text("One."), Step::text("Two.")]);
        let session = session_of(provider, |agent| agent.callbacks(Again(2))).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        let texts: Vec<_> =
            fold(&frames).iter().filter_map(|part| part["text"].as_str().map(str::to_owned)).collect();
        assert_eq!(texts, ["One.", "Two."]);
        assert_eq!(finish(&frames)["messageMetadata"]["nodes"], json!([1, 2, 3, 4]));
    }
}

#[tokio::test]
async fn provider_items_are_shown_by_kind_at_level_seven_only() {
    for level in LEVELS {
        let item = ProviderItem::new("test", json!({ "type": "search", "secret": 1 }));
        let step = Step::new().delta(Delta::Start { index: 0, block: BlockStart::ProviderItem(item) }).stop();
        let session = session([step]).await;
        let frames = ask(&session, level, "u1").await;
        check(level, &frames);
        let shown = find(&frames, "custom");
        assert_eq!(shown.is_some(), level == AiSdkVersion::Seven);
        assert!(!format!("{frames:?}").contains("secret"));
    }
}

#[tokio::test]
async fn known_prompt_replays_its_run_and_runs_nothing() {
    for level in LEVELS {
        let session = session([Step::text("Once.")]).await;
        let first = ask(&session, level, "u1").await;
        let again = ask(&session, level, "u1").await;
        check(level, &again);
        assert_eq!(fold(&first), fold(&again));
        assert_eq!(session.tree().await.unwrap().iter().len(), 2);
    }
}

#[tokio::test]
async fn title_is_transient_data() {
    let gate = Gate::new();
    let session = session([Step::new().then_text(["One."]).gate(&gate).stop()]).await;
    let client = Client::post(&session, AiSdkVersion::Six, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    session.set_title(Some("Mountains")).await.unwrap();
    gate.open();
    let frames = client.finish().await;
    let title = find(&frames, "data-omni-title").unwrap();
    assert_eq!((&title["data"]["title"], &title["transient"]), (&json!("Mountains"), &json!(true)));
}
