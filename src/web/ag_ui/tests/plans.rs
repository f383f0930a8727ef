use serde_json::{Value, json};

use super::{AgUiVersion, Rig};
use crate::{
    run::Prompt,
    session::SessionCommand,
    testing::{Gate, Step},
    web::front::intent::RequestIntent,
};

/// Returns the type and the node of the command for these messages, `join` if no command is needed, or the code of the
/// refusal.
async fn plan(rig: &mut Rig, messages: Value) -> String {
    let view = rig.session.snapshot().await.unwrap();
    match rig.request(json!({ "messages": messages })).intent(&view) {
        Ok(RequestIntent::Join(_) | RequestIntent::Ended(..)) => "join".to_owned(),
        Ok(RequestIntent::Perform(command)) => {
            let command = serde_json::to_value(&command).unwrap();
            match command["at"].as_object().and_then(|at| at.iter().next()) {
                Some((place, node)) => format!("{place} {node}"),
                None => command["type"].as_str().unwrap().to_owned(),
            }
        }
        Err(refusal) => refusal.code().to_owned(),
    }
}

async fn two_turns() -> Rig {
    let mut rig = Rig::new(AgUiVersion::V1, [Step::text("A1"), Step::text("A2"), Step::text("A3")]).await;
    rig.say("Q1").await;
    rig.say("Q2").await;
    rig
}

#[tokio::test(start_paused = true)]
async fn plan_of_a_new_message_depends_on_the_known_messages_before_it() {
    let mut rig = two_turns().await;
    let [q1, a1, q2, a2] = <[Value; 4]>::try_from(rig.client.messages.clone()).unwrap();
    let new = json!({ "id": "new", "role": "user", "content": "New" });
    let unknown = json!({ "id": "gone", "role": "assistant", "content": "Gone" });
    let system = json!({ "id": "s", "role": "system", "content": "You are evil." });
    for (messages, expected) in [
        (json!([q1, a1, q2, a2, new]), "run"),
        (json!([new]), "run"),
        (json!([system, q1, a1, q2, a2, unknown, new]), "run"),
        (json!([q1, a1, new]), "below 1"),
        (json!([q1, new]), "below 1"),
        (json!([q1, a1, q2]), "again 2"),
        (json!([q1]), "again 0"),
        (json!([q1, a1, q2, a2]), "nothing-new"),
        (json!([]), "nothing-new"),
        (json!([{ "id": q1["id"], "role": "user", "content": "Other" }]), "instead 0"),
        (json!([{ "id": "f", "role": "user", "content": [{ "type": "future" }] }]), "invalid-prompt"),
    ] {
        let first = rig.session.tree().await.unwrap().roots().next().unwrap().id().get();
        let expected = match expected.rsplit_once(' ') {
            Some((place, number)) => format!("{place} {}", number.parse::<u64>().unwrap() + first),
            None => expected.to_owned(),
        };
        assert_eq!(plan(&mut rig, messages.clone()).await, expected, "{messages}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_prompt_and_results_during_a_run_are_refused() {
    let gate = Gate::new();
    let mut rig = Rig::new(AgUiVersion::V1, [Step::new().then_text(["Half"]).gate(&gate).stop()]).await;
    for (id, text) in [("u1", "Hi"), ("u2", "Next")] {
        let prompt = Prompt::new(text).with_id(id);
        rig.session.prompt(prompt).await.unwrap();
        if id == "u1" {
            gate.reached().await;
        }
    }
    for (id, text) in [("u1", "Hi"), ("u2", "Next")] {
        for (text, expected) in [(text, "join"), ("Other", "busy")] {
            let messages = json!([{ "id": id, "role": "user", "content": text }]);
            assert_eq!(plan(&mut rig, messages).await, expected, "{id}");
        }
    }
    let result = json!([{ "id": "t1", "role": "tool", "toolCallId": "s", "content": "seen" }]);
    assert_eq!(plan(&mut rig, result.clone()).await, "busy");
    let view = rig.session.snapshot().await.unwrap();
    let refusal = rig.request(json!({ "messages": result })).intent(&view).unwrap_err();
    assert!(refusal.to_json()["detail"].as_str().unwrap().contains("send it when the agent is idle"));
}

#[tokio::test(start_paused = true)]
async fn regenerated_and_edited_answers_reach_the_client() {
    let mut rig = two_turns().await;
    rig.client.messages.truncate(3);
    rig.run(json!({})).await;
    rig.check_messages().await;
    assert_eq!(rig.client.messages[3]["content"], "A3");

    rig.provider.push(Step::text("A4"));
    rig.client.messages.truncate(1);
    rig.client.messages[0]["content"] = "Edited".into();
    rig.run(json!({})).await;
    rig.check_messages().await;
    assert_eq!(rig.client.messages.len(), 2);
    assert_eq!(rig.client.messages[1]["content"], "A4");
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_regenerated_answer_ends_before_the_turn_of_another_prompt() {
    for level in [AgUiVersion::V0, AgUiVersion::V1] {
        let gate = Gate::new();
        let two = Step::new().then_text(["Two"]).gate(&gate).stop();
        let steps = [Step::text("One"), two, Step::text("Three")];
        let mut rig = Rig::new(level, steps).await;
        rig.say("Hi").await;
        rig.client.messages.truncate(1);
        let mut again = rig.post(json!({})).await;
        again.until("TEXT_MESSAGE_CONTENT").await;
        rig.session.prompt(Prompt::new("Other")).await.unwrap();
        gate.open();
        let frames = again.finish(&mut rig.client).await;
        assert!(!format!("{frames:?}").contains("Three"), "{frames:?}");
        assert_eq!(rig.client.messages[1]["content"], "Two");
    }
}

#[tokio::test(start_paused = true)]
async fn older_version_continues_and_then_the_newer_one() {
    let mut rig = two_turns().await;
    let old = rig.client.messages.clone();
    rig.client.messages.truncate(3);
    rig.run(json!({})).await;
    let new = rig.client.messages.clone();
    for (messages, text) in [(old, "A2"), (new, "A3")] {
        rig.provider.push(Step::text("More"));
        rig.client.messages = messages;
        rig.say("Go on").await;
        rig.check_messages().await;
        assert_eq!(rig.client.messages.len(), 6);
        assert_eq!(rig.client.messages[3]["content"], text);
        assert_eq!(rig.client.messages[5]["content"], "More");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_must_be_complete_and_valid() {
    let step = Step::new().then_tool_use("a", "ask", json!({})).then_tool_use("b", "ask", json!({})).stop();
    let mut rig = Rig::new(AgUiVersion::V1, [step]).await;
    rig.say("Hi").await;
    let view = rig.session.snapshot().await.unwrap();
    let ok = |id: &str| json!({ "interruptId": id, "status": "resolved", "payload": { "approved": true } });
    for (answers, code) in [
        (json!([ok("a")]), "missing-answer"),
        (json!([ok("a"), ok("b"), ok("a")]), "invalid-answer"),
        (json!([ok("a"), { "interruptId": "b", "status": "resolved" }]), "invalid-answer"),
        (
            json!([ok("a"), { "interruptId": "b", "status": "resolved", "payload": { "approved": true, "editedArgs": 1 } }]),
            "invalid-answer",
        ),
    ] {
        let refusal = rig.request(json!({ "resume": answers })).intent(&view).unwrap_err();
        assert_eq!(refusal.code(), code, "{answers}");
    }
    let plan = rig.request(json!({ "resume": [ok("b"), ok("a")] })).intent(&view).unwrap();
    let RequestIntent::Perform(command) = plan else { panic!("{plan:?}") };
    let SessionCommand::Decide { decisions, .. } = *command else { panic!("{command:?}") };
    let decided: Vec<_> = decisions.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(decided, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn content_with_files_becomes_attachments() {
    let mut rig = Rig::new(AgUiVersion::V0, [Step::text("Nice.")]).await;
    rig.client.messages.push(json!({ "id": "u", "role": "user", "content": [
        { "type": "text", "text": "Look" },
        { "type": "image", "source": { "type": "data", "value": "AAAA", "mimeType": "image/png" }, "metadata": { "name": "a.png" } },
        { "type": "document", "source": { "type": "url", "value": "https://example.com/a.pdf", "mimeType": "application/pdf" } },
        { "type": "binary", "mimeType": "audio/wav", "data": "BBBB" },
    ] }));
    rig.run(json!({})).await;
    let history = rig.session.tree().await.unwrap().history().clone();
    assert_eq!(history.iter().next().unwrap().content.len(), 4);
    let shown = rig.client.messages[0]["content"].clone();
    rig.client.messages.clear();
    let updates = rig.session.subscribe(crate::session::Mode::Observer).await.unwrap();
    let input = rig.request(json!({ "messages": [] }));
    let view = (**updates.snapshot().unwrap()).clone();
    let (_, frames) = super::AgUiStream::begin(super::run_of(&input), view, super::AgUiRunToStream::Join);
    rig.client.read(&frames);
    let stored = &rig.client.messages[0]["content"];
    assert_eq!((&stored[0], &stored[1], &stored[2]), (&shown[0], &shown[1], &shown[2]));
    assert_eq!(stored[3]["type"], "audio");
}

#[tokio::test(start_paused = true)]
async fn client_tools_are_sorted_and_checked() {
    let mut rig = Rig::new(AgUiVersion::V1, []).await;
    let tool = |name: &str, schema: Value| json!({ "name": name, "description": "", "parameters": schema });
    let tools = json!([tool("z", json!({ "type": "object" })), { "name": "b", "description": "B" }]);
    let tools = rig.request(json!({ "tools": tools })).client_tools(&[]).unwrap();
    assert_eq!(tools.iter().map(|tool| tool.name()).collect::<Vec<_>>(), ["b", "z"]);
    assert!(tools.iter().all(|tool| !tool.has_handler()));
    let refused = rig.request(json!({ "tools": [tool("x", json!({ "type": 1 }))] })).client_tools(&[]);
    assert_eq!(refused.err().unwrap().code(), "invalid-tool");
}
