//! Readers that were too slow: a snapshot replaces the events that they missed.

use serde_json::{Value, json};

use super::rig::{
    Client, LEVELS, Stubborn, ask, check, find, finish, fold, fold_onto, lasting, listed, session,
    session_of, submit,
};
use crate::{
    agent::Event,
    provider::{Part, ProviderError, ProviderErrorKind},
    run::Prompt,
    session::{Mode, Session},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, ToolContext, tool_fn},
    web::ui_messages::{AiSdkFrame, AiSdkRunToStream, AiSdkVersion},
};

/// More events than any of these runs has.
const ALL: usize = 1000;

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Stop,
    Interrupt,
    Cancel,
    Fail,
    Refuse,
}

const ENDINGS: [Ending; 5] = [Ending::Stop, Ending::Interrupt, Ending::Cancel, Ending::Fail, Ending::Refuse];

fn texts(frames: &[AiSdkFrame]) -> String {
    fold(frames).iter().filter_map(|part| part["text"].as_str()).collect()
}

/// A run with a tool that ends in this way.
async fn ending(ending: Ending, gate: &Gate) -> Session {
    let last = match ending {
        Ending::Refuse => {
            Step::new().gate(gate).fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "no more"))
        }
        Ending::Fail => {
            let half = Step::new().then_text(["Half"]).gate(gate);
            half.fail(ProviderError::new(ProviderErrorKind::Auth, "no key"))
        }
        _ => Step::new().then_text(["Half"]).gate(gate).more(Part::Text(", whole.".to_owned())).stop(),
    };
    let read = tool_fn("read", "Reads.", |_: Value, _: ToolContext| async { Ok("long ".repeat(200)) });
    let uses = Step::new().then_text(["First."]).then_tool_use("t1", "read", json!({})).stop();
    session_of(ScriptedProvider::new([uses, last]), |agent| agent.tool(read)).await
}

#[tokio::test(start_paused = true)]
async fn missed_end_of_a_run_is_the_same_end() {
    for level in LEVELS {
        for kind in ENDINGS {
            for seen in [0, 3, 6, 9, 12, 15] {
                let gate = Gate::new();
                let session = ending(kind, &gate).await;
                let mut slow = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
                gate.reached().await;
                let fast = Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await;
                for _ in 0..seen {
                    slow.step().await;
                }
                match kind {
                    Ending::Interrupt => session.interrupt().await.unwrap(),
                    Ending::Cancel => session.cancel().await.unwrap(),
                    _ => gate.open(),
                }
                session.wait_until_idle().await.unwrap();
                slow.miss(ALL).await;
                assert!(slow.stream.is_ended(), "{kind:?} after {seen}");
                let frames = slow.finish().await;
                check(level, &frames);
                if kind == Ending::Cancel {
                    assert_eq!(frames.last().unwrap()["messageMetadata"], json!({ "discarded": true }));
                    continue;
                }
                assert_eq!(frames.last(), fast.finish().await.last(), "{kind:?} after {seen}");
                assert_eq!(lasting(fold(&frames)), listed(&session, level).await, "{kind:?} after {seen}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missed_repetition_voids_the_parts_of_the_earlier_answer() {
    for level in LEVELS {
        let (failing, gate) = (Gate::new(), Gate::new());
        let failed = Step::new().then_text(["Void"]).then_raw_tool_use("t1", "clock", &["{\"zo"]);
        let failed = failed.gate(&failing).fail(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
        let good = Step::new().then_text(["Good"]).gate(&gate).more(Part::Text(".".to_owned())).stop();
        let provider = ScriptedProvider::new([failed, good]);
        let session = session_of(provider, |agent| agent.callbacks(Stubborn)).await;
        let mut client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        client.until("tool-input-delta").await;
        failing.open();
        gate.reached().await;
        client.miss(ALL).await;
        gate.open();
        let frames = client.finish().await;
        check(level, &frames);
        let parts = fold(&frames);
        if level == AiSdkVersion::Seven {
            assert_eq!(parts, listed(&session, level).await);
            assert!(find(&frames, "reset-step").is_some());
        } else {
            let place = |is_it: &dyn Fn(&Value) -> bool| parts.iter().position(is_it).unwrap();
            let mark = place(&|part| part["type"] == "data-omni-retry");
            assert!(place(&|part| part["text"] == "Void") < mark);
            assert!(mark < place(&|part| part["text"] == "Good."));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missed_repetition_of_a_run_that_was_interrupted_voids_the_answer() {
    for level in LEVELS {
        let failing = Gate::new();
        let failed = Step::new().then_text(["Void"]).gate(&failing);
        let failed = failed.fail(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
        let uses = Step::tool_use("t1", "clock", json!({ "zone": "UTC" }));
        let session =
            session_of(ScriptedProvider::new([uses, failed]), |agent| agent.callbacks(Stubborn)).await;
        let mut client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        client.until("text-delta").await;
        failing.open();
        let mut updates = session.subscribe(Mode::Observer).await.unwrap();
        while let Some(Update::Event(event)) = updates.next().await {
            if matches!(event.event.agent(), Some(Event::Retry { .. })) {
                break;
            }
        }
        session.interrupt().await.unwrap();
        session.wait_until_idle().await.unwrap();
        client.miss(ALL).await;
        let frames = client.finish().await;
        check(level, &frames);
        let parts = fold(&frames);
        let is_void = |part: &Value| part["type"] == "data-omni-retry";
        assert!(parts.iter().any(is_void) || find(&frames, "reset-step").is_some(), "{frames:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn missed_end_of_an_answer_on_another_branch_is_an_error() {
    for level in LEVELS {
        let gate = Gate::new();
        let one = Step::new().then_text(["One"]).gate(&gate).more(Part::Text(", whole.".to_owned())).stop();
        let session = session([one, Step::text("Two.")]).await;
        let mut client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        client.until("text-delta").await;
        gate.open();
        session.wait_until_idle().await.unwrap();
        let root = session.tree().await.unwrap().roots().next().unwrap().id();
        session.run("Edited").instead_of(root).response().await.unwrap();
        client.miss(ALL).await;
        let frames = client.finish().await;
        check(level, &frames);
        assert_eq!(frames.last().unwrap()["type"], "error", "{frames:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_ends_the_answer_before_it_also_if_its_start_was_missed() {
    for level in LEVELS {
        for is_missed in [false, true] {
            for is_again in [false, true] {
                let (gate, next) = (Gate::new(), Gate::new());
                let one = Step::new().then_text(["One"]).gate(&gate).more(Part::Text(".".to_owned()));
                let two = Step::new().then_text(["Two"]).gate(&next).stop();
                let mut steps = vec![one.stop(), two];
                if is_again {
                    steps.insert(0, Step::text("Zero."));
                }
                let session = session(steps).await;
                // No prompt of these runs has an id that the response could follow.
                let mut client = if is_again {
                    ask(&session, level, "u1").await;
                    let body = json!({ "id": "1", "trigger": "regenerate-message", "messages": [
                        { "id": "u1", "role": "user", "parts": [] },
                    ]});
                    let client = Client::post(&session, level, body).await.unwrap();
                    gate.reached().await;
                    client
                } else {
                    session.prompt("Hi").await.unwrap();
                    gate.reached().await;
                    Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await
                };
                session.prompt(Prompt::new("And?").with_id("u2")).await.unwrap();
                client.until("text-delta").await;
                gate.open();
                next.reached().await;
                if is_missed {
                    client.miss(ALL).await;
                    assert!(client.stream.is_ended());
                }
                let frames = client.finish().await;
                check(level, &frames);
                assert_eq!(texts(&frames), "One.");
                let end = finish(&frames);
                assert_eq!(
                    (&end["finishReason"], &end["messageMetadata"]["stopReason"]),
                    (&json!("stop"), &json!("stop"))
                );
                let nodes = &end["messageMetadata"]["nodes"];
                assert_eq!(nodes.as_array().unwrap().last(), Some(&json!(if is_again { 3 } else { 2 })));
                next.open();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missed_pause_asks_for_all_decisions_and_missed_decisions_show_their_results() {
    for level in LEVELS {
        let uses = || {
            Step::new()
                .then_text(["Shall I?"])
                .then_tool_use("d1", "delete", json!({ "zone": "a" }))
                .then_tool_use("c1", "clock", json!({ "zone": "UTC" }))
                .then_tool_use("d2", "delete", json!({ "zone": "b" }))
        };
        let steps = || [uses().stop(), Step::text("Done.")];
        let expected = ask(&session(steps()).await, level, "u1").await;
        let session = session(steps()).await;
        let mut slow = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
        slow.until("start-step").await;
        slow.miss(ALL).await;
        let frames = slow.finish().await;
        check(level, &frames);
        // The ids of approvals have the turn.
        let parts = |frames: &[AiSdkFrame]| {
            let mut parts = lasting(fold(frames));
            for id in parts.iter_mut().filter_map(|part| part.pointer_mut("/approval/id")) {
                *id = id.as_str().unwrap().split('@').next().unwrap().into();
            }
            parts
        };
        assert_eq!(parts(&frames), parts(&expected));
        assert_eq!(frames.last(), expected.last());

        let mut slow = Client::start(&session, level, |_| (AiSdkRunToStream::Decisions, None)).await;
        for (id, decision) in [("d1", Decision::Execute), ("d2", Decision::reject("No."))] {
            session.resume_as(id, decision, "ann").await.unwrap();
        }
        session.wait_until_idle().await.unwrap();
        slow.miss(ALL).await;
        let rest = slow.finish().await;
        assert_eq!(finish(&rest)["finishReason"], "stop");
        let all = lasting(fold_onto(fold(&frames), &rest));
        let of = |parts: &[Value]| {
            let tools = parts.iter().filter(|part| part.get("toolCallId").is_some());
            let tools: Vec<_> =
                tools.map(|part| (part["toolCallId"].clone(), part["state"].clone())).collect();
            let texts: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (tools, texts)
        };
        assert_eq!(of(&all), of(&listed(&session, level).await));
    }
}

#[tokio::test(start_paused = true)]
async fn missed_return_of_a_staged_prompt_is_discarded_for_the_same_reason() {
    for (index, reason) in [
        "The prompt was withdrawn.",
        "The run was interrupted before the prompt was used.",
        "The run was cancelled before the prompt was used.",
    ]
    .into_iter()
    .enumerate()
    {
        let gate = Gate::new();
        let session = session([Step::new().then_text(["One."]).gate(&gate).stop()]).await;
        let mut first = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
        gate.reached().await;
        let mut staged =
            Client::post(&session, AiSdkVersion::Seven, submit(&[], "u2", "And?")).await.unwrap();
        match index {
            0 => drop(session.unstage("u2").await.unwrap()),
            1 => session.interrupt().await.unwrap(),
            _ => session.cancel().await.unwrap(),
        }
        staged.miss(ALL).await;
        let frames = staged.finish().await;
        check(AiSdkVersion::Seven, &frames);
        assert_eq!(frames[0]["messageId"], "a-u2");
        assert_eq!(find(&frames, "abort").unwrap()["reason"], reason);
        assert_eq!(finish(&frames)["messageMetadata"], json!({ "discarded": true }));
        first.miss(ALL).await;
        assert_eq!(first.stream.is_ended(), index > 0);
        gate.open();
    }
}

#[tokio::test(start_paused = true)]
async fn missed_title_is_sent_and_a_reader_that_gets_only_snapshots_gets_the_whole_answer() {
    let gate = Gate::new();
    let session = session([Step::new().then_text(["One."]).gate(&gate).stop()]).await;
    let mut client = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    client.until("text-delta").await;
    session.set_title(Some("Mountains")).await.unwrap();
    client.miss(ALL).await;
    assert_eq!(find(&client.frames, "data-omni-title").unwrap()["data"]["title"], "Mountains");
    gate.open();
    while !client.stream.is_ended() {
        client.miss(1).await;
    }
    assert_eq!(finish(&client.frames)["messageMetadata"]["nodes"], json!([1, 2]));
    assert_eq!(lasting(fold(&client.frames)), listed(&session, AiSdkVersion::Seven).await);
}
