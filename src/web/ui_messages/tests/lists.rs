//! The list of messages.

use serde_json::{Value, json};

use super::rig::{Client, LEVELS, ask, find, listed, listed_id, session, settings, submit};
use crate::{
    message::{Attachment, Blocks, Content, StopReason},
    provider::{ProviderError, ProviderErrorKind},
    run::Prompt,
    session::{Session, tests::decided::decided},
    store::MemoryStore,
    testing::{Gate, Step},
    web::{
        front::files::MAX_INLINE,
        ui_messages::{AiSdkTranslationSettings, AiSdkVersion, messages},
    },
};

async fn list(session: &Session, settings: &AiSdkTranslationSettings) -> Vec<Value> {
    messages(settings, &session.snapshot().await.unwrap(), true)
}

#[tokio::test]
async fn list_shows_prompts_and_answers_with_the_ids_of_the_stream() {
    let session = session([Step::text("One."), Step::text("Two.")]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    ask(&session, AiSdkVersion::Seven, "u2").await;
    let list = list(&session, &settings(AiSdkVersion::Seven)).await;
    let ids: Vec<_> = list.iter().map(|message| message["id"].as_str().unwrap()).collect();
    let turns: Vec<_> =
        session.tree().await.unwrap().history().iter().map(|message| message.id.as_ref()?.turn()).collect();
    let answer = |place: usize| format!("a-{}", turns[place].unwrap());
    assert_eq!(ids, ["u1", &answer(1), "u2", &answer(3)]);
    assert_eq!(list[0]["parts"], json!([{ "type": "text", "text": "Hi" }]));
    assert_eq!(list[1]["metadata"]["nodes"], json!([2]));
}

#[tokio::test]
async fn list_of_an_active_run_ends_with_the_prompt() {
    let gate = Gate::new();
    let session = session([Step::new().then_text(["One."]).gate(&gate).stop()]).await;
    let client = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    let messages = list(&session, &settings(AiSdkVersion::Seven)).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["id"], "u1");
    gate.open();
    client.finish().await;
    assert_eq!(listed(&session, AiSdkVersion::Seven).await[1]["text"], "One.");
}

#[tokio::test]
async fn large_file_is_an_address_unless_files_are_inline() {
    let session = session([Step::text("Nice.")]).await;
    let small = Attachment::base64("image/png", "aGk=").named("s.png");
    let large = Attachment::base64("image/png", "a".repeat(MAX_INLINE + 4));
    let blocks: Vec<Content> = vec!["Look".into(), small.into(), large.into()];
    session.ask(Prompt::new(Blocks(blocks)).with_id("u/1")).await.unwrap();
    let mut settings = settings(AiSdkVersion::Seven);
    let parts = list(&session, &settings).await[0]["parts"].clone();
    assert_eq!(
        parts[1],
        json!({
            "type": "file", "url": "data:image/png;base64,aGk=", "mediaType": "image/png", "filename": "s.png",
        })
    );
    assert_eq!(parts[2]["url"], "/c/1/files/u%2F1/2");
    settings.files.limit = usize::MAX;
    let parts = list(&session, &settings).await[0]["parts"].clone();
    assert!(parts[2]["url"].as_str().unwrap().starts_with("data:"));
}

#[tokio::test]
async fn message_without_an_id_is_named_after_its_node() {
    let session = session([Step::text("One.")]).await;
    let mut tree = crate::tree::Tree::new();
    tree.push(crate::message::Message::user("Hi"));
    tree.push(crate::message::Message::assistant("Hello"));
    let mut snapshot = session.snapshot().await.unwrap();
    snapshot.tree = tree;
    let list = messages(&settings(AiSdkVersion::Seven), &snapshot, true);
    assert_eq!((&list[0]["id"], &list[1]["id"]), (&json!("n-1"), &json!("a-n-2")));
}

#[tokio::test]
async fn list_states_the_decisions_about_tool_uses_and_the_unusual_end_of_an_answer() {
    let session = decided(&MemoryStore::new(), StopReason::Length).await;
    for level in LEVELS {
        let answer = list(&session, &settings(level)).await.remove(1);
        assert_eq!(answer["metadata"]["stopReason"], "length");
        let parts = answer["parts"].as_array().unwrap();
        let decisions = parts.iter().filter(|part| part["type"] == "data-omni-decision");
        let decisions: Vec<_> =
            decisions.map(|part| (part["data"]["toolCallId"].as_str().unwrap(), &part["data"])).collect();
        assert_eq!(decisions.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["p", "r"]);
        let (changed, rejected) = (decisions[0].1, decisions[1].1);
        assert_eq!((&changed["by"], &changed["input"]), (&json!("ann"), &json!({ "eur": 20 })));
        assert_eq!((&rejected["kind"], &rejected["by"]), (&json!("reject"), &json!("ben")));
        let paid = parts.iter().find(|part| part["toolCallId"] == "p").unwrap();
        assert_eq!(paid["output"], "paid {\"eur\":20}");
        let denied = parts.iter().find(|part| part["toolCallId"] == "r").unwrap();
        assert_eq!(
            (&denied["state"], &denied["approval"]["approved"]),
            (&json!("output-denied"), &json!(false))
        );
        assert!(denied["approval"]["id"].as_str().unwrap().starts_with("r@"), "{denied}");
        assert_eq!(denied["approval"].get("reason").is_some(), level == AiSdkVersion::Seven);
    }
    let usual = decided(&MemoryStore::new(), StopReason::Stop).await;
    assert_eq!(list(&usual, &settings(AiSdkVersion::Seven)).await[1]["metadata"].get("stopReason"), None);
}

fn down() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"))
}

fn ids(list: &[Value]) -> Vec<&str> {
    list.iter().map(|message| message["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn list_ends_with_the_newest_failed_prompt_and_each_is_sent_again_once() {
    for level in LEVELS {
        let steps = [Step::text("One."), down(), down(), Step::text("Three."), Step::text("Two.")];
        let session = session(steps).await;
        ask(&session, level, "u1").await;
        let one = listed_id(&session).await;
        let file = json!({ "type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGk=" });
        let mut body = submit(&list(&session, &settings(level)).await, "u2", "Look");
        body["messages"][2]["parts"].as_array_mut().unwrap().push(file);
        Client::post(&session, level, body).await.unwrap().finish().await;
        // The client still has the failed prompt, from which the conversation does not continue.
        let two = list(&session, &settings(level)).await;
        assert_eq!((ids(&two), two[2]["parts"].as_array().unwrap().len()), (vec!["u1", &one, "u2"], 2));
        let frames = Client::post(&session, level, submit(&two, "u3", "Hi")).await.unwrap().finish().await;
        assert!(find(&frames, "error").is_some());
        let three = list(&session, &settings(level)).await;
        assert_eq!(ids(&three), ["u1", &one, "u3"]);
        assert_eq!(three[2]["metadata"]["nodes"], json!([4]));
        assert!(three[2]["metadata"]["error"].as_str().unwrap().contains("no key"));

        // The page was loaded again. It sends its last prompt again, and later the one before.
        let frames =
            Client::post(&session, level, submit(&three[..2], "u3", "Hi")).await.unwrap().finish().await;
        assert!(find(&frames, "finish").is_some());
        let list_now = list(&session, &settings(level)).await;
        assert_eq!(ids(&list_now)[..3], ["u1", &one, "u3"]);
        assert_eq!((list_now.len(), list_now[3]["parts"][1]["text"].clone()), (4, json!("Three.")));
        let again = json!({ "id": "1", "trigger": "regenerate-message", "messages": two });
        Client::post(&session, level, again).await.unwrap().finish().await;
        let all = session.tree().await.unwrap();
        assert_eq!(
            (all.len(), all.iter().map(|node| node.id().get()).collect::<Vec<_>>()),
            (6, vec![1, 2, 3, 6])
        );
        let list_now = list(&session, &settings(level)).await;
        assert_eq!((ids(&list_now)[2], list_now[2]["parts"].as_array().unwrap().len()), ("u2", 2));
        // An answered prompt that is posted again is a repetition.
        let posted = submit(&list_now[..2], "u2", "Look");
        Client::post(&session, level, posted).await.unwrap().finish().await;
        assert_eq!(session.tree().await.unwrap().len(), 6);
    }
}

#[tokio::test]
async fn list_of_a_run_about_a_failed_prompt_has_it_once() {
    let gate = Gate::new();
    let session = session([down(), Step::new().then_text(["One."]).gate(&gate).stop()]).await;
    ask(&session, AiSdkVersion::Seven, "u1").await;
    assert_eq!(ids(&list(&session, &settings(AiSdkVersion::Seven)).await), ["u1"]);
    let client = Client::post(&session, AiSdkVersion::Seven, submit(&[], "u1", "Hi")).await.unwrap();
    gate.reached().await;
    assert_eq!(ids(&list(&session, &settings(AiSdkVersion::Seven)).await), ["u1"]);
    gate.open();
    client.finish().await;
    assert_eq!(session.tree().await.unwrap().len(), 2);
}
