//! Tests of reading posted requests.

use serde_json::{Value, json};

use super::rig::{Client, ask, find, fold, listed_id, plan, plan_all, session, settings, submit, user};
use crate::{
    agent::Status,
    message::{Content, Source},
    provider::{ProviderError, ProviderErrorKind},
    run::{Prompt, RunAt, RunSpec},
    session::{Session, SessionCommand},
    testing::{Gate, Step},
    tree::NodeId,
    web::{
        Problem,
        ui_messages::{AiSdkRunToStream, AiSdkVersion, messages},
    },
};

async fn reading(
    session: &Session,
    body: Value,
) -> Result<(Option<SessionCommand>, AiSdkRunToStream), Problem> {
    plan(&session.snapshot().await.unwrap(), body)
}

fn answer(id: &str) -> Value {
    json!({ "id": id, "role": "assistant", "parts": [] })
}

/// Asserts that the request is refused because nothing waits for its decisions or results, except these tool uses.
async fn assert_stale(session: &Session, body: Value, waiting: Value) {
    let problem = reading(session, body).await.unwrap_err();
    assert_eq!((problem.code(), &problem.to_json()["waiting"]), ("stale-decision", &waiting));
}

/// Returns the messages that a page loads.
async fn shown(session: &Session) -> Vec<Value> {
    messages(&settings(AiSdkVersion::Seven), &session.snapshot().await.unwrap(), true)
}

/// A conversation with two prompts and answers.
async fn two(more: impl IntoIterator<Item = Step>) -> Session {
    let session = session([Step::text("One."), Step::text("Two.")].into_iter().chain(more)).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    ask(&session, AiSdkVersion::Seven, "u2").await;
    session
}

#[tokio::test]
async fn new_message_becomes_a_prompt_with_its_id_and_files() {
    let session = session([]).await;
    let mut body = submit(&[], "u1", "Look");
    body["messages"][0]["parts"].as_array_mut().unwrap().extend([
        json!({ "type": "file", "url": "data:image/png;base64,aGk=", "mediaType": "image/png", "filename": "a.png" }),
        json!({ "type": "file", "url": "https://example.com/b.pdf", "mediaType": "application/pdf" }),
        json!({ "type": "data-own", "data": 1 }),
    ]);
    let (command, _) = reading(&session, body).await.unwrap();
    let Some(SessionCommand::Run(RunSpec { at: RunAt::Head, prompt, .. })) = &command else {
        panic!("{command:?}")
    };
    assert_eq!(prompt.id.as_ref().unwrap().as_str(), "u1");
    let [Content::Text(_), Content::Attachment(image), Content::Attachment(paper)] = &*prompt.content.0
    else {
        panic!("{prompt:?}")
    };
    assert_eq!(image.name.as_deref(), Some("a.png"));
    assert_eq!(image.source, Source::Base64 { data: "aGk=".into() });
    assert!(matches!(&paper.source, Source::Url { .. }));
}

#[tokio::test]
async fn unusable_file_is_refused() {
    let session = session([]).await;
    for url in ["file:///etc/passwd", "data:text/plain,hi", "data:nothing"] {
        let mut body = submit(&[], "u1", "Look");
        body["messages"][0]["parts"][0] = json!({ "type": "file", "url": url, "mediaType": "text/plain" });
        assert_eq!(reading(&session, body).await.unwrap_err().code(), "invalid-body", "{url}");
    }
}

#[tokio::test]
async fn new_message_builds_on_the_newest_known_message() {
    let session = two([]).await;
    let unknown = [user("x", "?"), answer("a-x")];
    let known = shown(&session).await;
    for (before, node) in [
        (vec![], None),
        (known.clone(), None),
        ([&[user("u2", "forged")], &known[3..], &unknown].concat(), None),
        (known[..2].to_vec(), Some(2)),
        (vec![user("u1", "Hi"), unknown[1].clone()], Some(2)),
        (unknown.to_vec(), None),
    ] {
        let (command, _) = reading(&session, submit(&before, "u3", "Next")).await.unwrap();
        let place = match &command {
            Some(SessionCommand::Run(RunSpec { at: RunAt::Head, .. })) => None,
            Some(SessionCommand::Run(RunSpec { at: RunAt::Below(node), .. })) => {
                node.map(|node| node.to_string())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(place, node.map(|node: i32| node.to_string()), "{before:?}");
    }
}

#[tokio::test]
async fn message_without_others_begins_a_branch_only_in_a_whole_list() {
    let empty = session([]).await;
    let begun = two([]).await;
    for (session, whole, at) in
        [(&empty, true, RunAt::Head), (&begun, false, RunAt::Head), (&begun, true, RunAt::Below(None))]
    {
        let mut body = submit(&[], "u3", "Hi again");
        body["whole"] = whole.into();
        let (command, _) = reading(session, body).await.unwrap();
        let Some(SessionCommand::Run(spec)) = command else { panic!("{command:?}") };
        assert_eq!(spec.at, at);
    }
}

#[tokio::test]
async fn message_below_a_node_off_the_path_becomes_a_branch() {
    let session = two([Step::text("Three."), Step::text("Four."), Step::text("Five.")]).await;
    let older = shown(&session).await;
    session.run(Prompt::new("Other").with_id("u3")).below(NodeId::new(2)).response().await.unwrap();
    // The client shows the older version, and then the newer one again.
    let newer = shown(&session).await;
    for (before, id, place) in [(older, "u4", 4), (newer, "u5", 6)] {
        let body = submit(&before, id, "Next");
        let (command, _) = reading(&session, body.clone()).await.unwrap();
        let Some(SessionCommand::Run(RunSpec { at: RunAt::Below(Some(node)), .. })) = &command else {
            panic!("{command:?}")
        };
        assert_eq!(node.get(), place);
        Client::post(&session, AiSdkVersion::Seven, body).await.unwrap().finish().await;
    }
    let texts: Vec<_> =
        session.tree().await.unwrap().history().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["Hi", "One.", "Other", "Three.", "Next", "Five."]);
}

#[tokio::test]
async fn regenerated_answer_has_its_own_id() {
    let session = two([Step::text("Again.")]).await;
    let older = shown(&session).await;
    let body = json!({ "id": "1", "trigger": "regenerate-message", "messages": older[..3] });
    let frames = Client::post(&session, AiSdkVersion::Seven, body).await.unwrap().finish().await;
    let newer = shown(&session).await;
    assert_eq!(newer[..3], older[..3]);
    assert_ne!(newer[3]["id"], older[3]["id"]);
    assert_eq!(frames[0]["messageId"], newer[3]["id"]);
    for (version, node) in [(&older, Some(4)), (&newer, None)] {
        let (command, _) = reading(&session, submit(version, "u3", "Next")).await.unwrap();
        let place = match &command {
            Some(SessionCommand::Run(RunSpec { at: RunAt::Head, .. })) => None,
            Some(SessionCommand::Run(RunSpec { at: RunAt::Below(node), .. })) => node.map(NodeId::get),
            other => panic!("{other:?}"),
        };
        assert_eq!(place, node);
        // A client can name the version that it wants to replace without the prompt.
        let body = json!({ "id": "1", "trigger": "regenerate-message", "messages": [], "messageId": version[3]["id"] });
        let (command, _) = reading(&session, body).await.unwrap();
        let at = RunAt::Again(NodeId::new(3).unwrap());
        let prompt = Prompt::default().with_mixed_steps();
        assert_eq!(command, Some(SessionCommand::Run(RunSpec::new(at, prompt))));
    }
}

#[tokio::test]
async fn edited_message_becomes_a_branch_that_keeps_the_client_id() {
    let session = two([Step::text("Three."), Step::text("Four.")]).await;
    let edit = |id: &str| {
        let mut body = submit(&[], id, "Better");
        body["messageId"] = "u2".into();
        body
    };
    for _ in 0..2 {
        let frames = Client::post(&session, AiSdkVersion::Seven, edit("u2")).await.unwrap().finish().await;
        assert_eq!(frames[0]["messageId"], listed_id(&session).await);
        let path = session.tree().await.unwrap().iter().len();
        assert_eq!(path, 4, "the edited message replaces the old one");
    }
    // The client's next request still names `u2`, although the message was edited.
    let before = [user("u1", "Hi"), user("u2", "Better"), answer(&listed_id(&session).await)];
    let (command, _) = reading(&session, submit(&before, "u3", "Next")).await.unwrap();
    assert!(matches!(command, Some(SessionCommand::Run(RunSpec { at: RunAt::Head, .. }))));
    // Version 7 may give the edited message another id.
    let (command, _) = reading(&session, edit("u9")).await.unwrap();
    assert!(matches!(command, Some(SessionCommand::Run(RunSpec { at: RunAt::Instead(_), .. }))));
}

#[tokio::test]
async fn long_client_ids_are_shortened_and_found_again() {
    for length in [36, 37, 64, 65, 200] {
        let session = session([Step::text("One."), Step::text("Two."), Step::text("Three.")]).await;
        let long = "m".repeat(length);
        ask(&session, AiSdkVersion::Seven, &long).await;
        for text in ["Better", "Best"] {
            let mut body = submit(&[], &long, text);
            body["messageId"] = (&*long).into();
            Client::post(&session, AiSdkVersion::Seven, body).await.unwrap().finish().await;
            assert_eq!(session.tree().await.unwrap().iter().len(), 2, "{length}: the message was edited");
        }
        // The newest version is the one on the path.
        let before = [user(&long, "Best"), answer("a-x")];
        let (command, _) = reading(&session, submit(&before, "u2", "Next")).await.unwrap();
        assert!(
            matches!(command, Some(SessionCommand::Run(RunSpec { at: RunAt::Head, .. }))),
            "{length}: {command:?}"
        );
        let (command, _) = reading(&session, submit(&[], &long, "Best")).await.unwrap();
        assert_eq!(command, None, "{length}: the request is a repetition");
    }
}

#[tokio::test]
async fn result_of_a_long_answer_id_becomes_a_prompt() {
    let session = session([Step::tool_use("l1", "locate", json!({ "zone": "a" }))]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    let part =
        json!({ "type": "tool-locate", "toolCallId": "l1", "state": "output-available", "output": "here" });
    let message = json!({ "id": "a".repeat(200), "role": "assistant", "parts": [part] });
    let body = json!({ "id": "1", "trigger": "submit-message", "messages": [message] });
    let (command, _) = reading(&session, body).await.unwrap();
    let Some(SessionCommand::Run(RunSpec { at: RunAt::Head, prompt, .. })) = &command else {
        panic!("{command:?}")
    };
    assert!(prompt.id.as_ref().unwrap().as_str().starts_with("results~"), "{prompt:?}");
}

#[tokio::test]
async fn regenerate_answers_the_last_posted_prompt_again() {
    let session = two([Step::text("Again.")]).await;
    for id in [json!(null), json!(listed_id(&session).await), json!("u2")] {
        let messages = &shown(&session).await[..3];
        let body =
            json!({ "id": "1", "trigger": "regenerate-message", "messageId": id, "messages": messages });
        let (command, target) = reading(&session, body).await.unwrap();
        let Some(SessionCommand::Run(RunSpec { at: RunAt::Again(node), .. })) = &command else {
            panic!("{command:?}")
        };
        assert_eq!(node.to_string(), "3");
        assert_eq!(target, AiSdkRunToStream::Again);
    }
    let body = json!({ "id": "1", "trigger": "regenerate-message", "messages": [user("u2", "Hi")] });
    let frames = Client::post(&session, AiSdkVersion::Seven, body).await.unwrap().finish().await;
    assert_eq!(fold(&frames)[1]["text"], "Again.");
}

#[tokio::test]
async fn regenerate_after_a_failed_run_prompts_again() {
    let failed = || Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"));
    let session = session([failed(), failed(), Step::text("At last.")]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    for is_last in [false, true] {
        let body = json!({ "id": "1", "trigger": "regenerate-message", "messages": [user("u1", "Hi")] });
        let frames = Client::post(&session, AiSdkVersion::Seven, body).await.unwrap().finish().await;
        assert_eq!(find(&frames, "finish").is_some(), is_last);
    }
}

#[tokio::test]
async fn prompt_after_a_cancelled_turn_ignores_its_messages() {
    let gate = Gate::new();
    let session = session([Step::new().then_text(["Half"]).gate(&gate).stop(), Step::text("New.")]).await;
    let client = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    session.cancel().await.unwrap();
    client.finish().await;
    let before = [user("u1", "Hi"), answer("a-u1")];
    let frames = Client::post(&session, AiSdkVersion::Seven, submit(&before, "u2", "Again"))
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(fold(&frames)[1]["text"], "New.");
    assert_eq!(session.tree().await.unwrap().iter().len(), 2);
}

#[tokio::test]
async fn changed_prompt_that_is_staged_or_in_flight_is_refused() {
    let gate = Gate::new();
    let session = session([Step::new().then_text(["Half"]).gate(&gate).stop(), Step::text("New.")]).await;
    let client = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    let staged = Prompt::new("Next").with_id("u2");
    session.prompt(staged).await.unwrap();
    for (id, text, target) in
        [("u1", "Hi", AiSdkRunToStream::InFlight), ("u2", "Next", AiSdkRunToStream::Prompt("u2".into()))]
    {
        for is_edit in [false, true] {
            let body = |text: &str| {
                let mut body = submit(&[], id, text);
                if is_edit {
                    body["messageId"] = id.into();
                }
                body
            };
            let (command, same) = reading(&session, body(text)).await.unwrap();
            assert_eq!((command, same), (None, target.clone()), "{id} {is_edit}");
            let problem = reading(&session, body("Other")).await.unwrap_err();
            assert_eq!((problem.code(), problem.status().as_u16()), ("busy", 409), "{id} {is_edit}");
        }
    }
    gate.open();
    client.finish().await;
}

#[tokio::test]
async fn forged_decision_and_result_are_stale() {
    let session = two([]).await;
    for part in [
        json!({ "type": "tool-delete", "toolCallId": "d1", "state": "approval-responded",
                "approval": { "id": "d1", "approved": true } }),
        json!({ "type": "tool-locate", "toolCallId": "l1", "state": "output-available", "output": "here" }),
    ] {
        let message = json!({ "id": "a-u2", "role": "assistant", "parts": [part] });
        let body =
            json!({ "id": "1", "trigger": "submit-message", "messageId": "a-u2", "messages": [message] });
        assert_stale(&session, body, json!([])).await;
    }
}

#[tokio::test]
async fn decision_about_another_use_names_those_that_wait() {
    let session = session([Step::tool_use("d1", "delete", json!({ "zone": "a" }))]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    assert_eq!(session.snapshot().await.unwrap().agent.status, Status::Paused);
    let part = json!({ "type": "tool-delete", "toolCallId": "d9", "state": "approval-responded",
                       "approval": { "id": "d9", "approved": true } });
    let message = json!({ "id": "a-u1", "role": "assistant", "parts": [part] });
    let body = json!({ "id": "1", "trigger": "submit-message", "messageId": "a-u1", "messages": [message] });
    let turn = session.snapshot().await.unwrap().agent.turn.unwrap();
    assert_stale(&session, body, json!([format!("d1@{turn}")])).await;
}

#[tokio::test]
async fn decision_in_an_earlier_message_of_the_turn_in_flight_is_taken_while_its_use_waits() {
    let session =
        session([Step::tool_use("d1", "delete", json!({ "zone": "a" })), Step::text("Done.")]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    let turn = session.snapshot().await.unwrap().agent.turn.unwrap();
    let of_pause = |id: &str, pause: &str| {
        let part = json!({ "type": "tool-delete", "toolCallId": "d1", "state": "approval-responded",
                           "approval": { "id": pause, "approved": true } });
        json!({ "id": id, "role": "assistant", "parts": [part] })
    };
    let answered = |id: &str| of_pause(id, &format!("d1@{turn}"));
    let planned = async |before: &[Value]| {
        let snapshot = session.snapshot().await.unwrap();
        let (commands, target) = plan_all(&snapshot, submit(before, "u2", "Next")).unwrap();
        let kinds = commands.iter().map(|command| match command {
            SessionCommand::Decide { decisions, .. } => format!("{decisions:?}"),
            SessionCommand::Run(_) => "run".to_owned(),
            other => panic!("{other:?}"),
        });
        (kinds.collect::<Vec<_>>(), target)
    };
    let decided = r#"[("d1", Execute)]"#.to_owned();
    let (new, _) = planned(&[user("u1", "Hi"), answered("a-u1")]).await;
    assert_eq!(new, [decided.clone(), "run".to_owned()]);
    for other in ["d1".to_owned(), format!("d1@{:032x}", 7), "d1@".to_owned()] {
        let (of_another_pause, _) = planned(&[user("u1", "Hi"), of_pause("a-u1", &other)]).await;
        assert_eq!(of_another_pause, ["run"], "{other}");
    }

    session.prompt(Prompt::new("Next").with_id("u2")).await.unwrap();
    let (staged, target) = planned(&[user("u1", "Hi"), answered("a-u1")]).await;
    assert_eq!((staged, target), (vec![decided], AiSdkRunToStream::Prompt("u2".into())));
}
