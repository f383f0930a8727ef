//! Attachments that are left out of requests.

use std::sync::Arc;

use futures_util::{future::maybe_done, poll};
use omni_agent::{
    ErrorKind,
    agent::{AgentBuilder, Compact, CompactionPolicy},
    message::{Attachment, Content, Message, ProviderItem, ResultBlock},
    provider::{
        ModelInfo, ProviderError, ProviderErrorKind, Request,
        custom::{BlockStart, Delta},
    },
    run::Settings,
    session::Session,
    store::{
        ConversationId, MemoryStore, Store,
        custom::{Change, StateChange, StoredState, Write},
        export_json, import_json, import_json_with_settings,
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{ToolContext, ToolOutput, tool_fn},
    tree::Tree,
};
use serde_json::{Value, json};

use crate::support::{id, node, secs};

fn picture() -> Content {
    Attachment::base64("image/png", "A".repeat(40_000)).named("map.png").into()
}

/// The note in place of the picture.
const NOTE: &str = "[A file is left out: image/png, 30 KB]";

fn agent(steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let provider = ScriptedProvider::new(steps);
    let builder = AgentBuilder::default().model(provider.model());
    (provider, builder)
}

/// Returns the blocks of a message of a request in short form.
fn blocks(request: &Request, message: usize) -> Vec<String> {
    let block = |block: &Content| match block {
        Content::Text(text) => text.text.clone(),
        Content::Attachment(file) => file.media_type.clone(),
        Content::ToolResult(result) => {
            let inner = result.content.iter().map(|block| match block {
                ResultBlock::Text(text) => text.text.clone(),
                ResultBlock::Attachment(file) => file.media_type.clone(),
                other => format!("{other:?}"),
            });
            inner.collect::<Vec<_>>().join(", ")
        }
        other => format!("{other:?}"),
    };
    request.history.get(message).unwrap().content.iter().map(block).collect()
}

fn has_file(message: &Message) -> bool {
    message.content.iter().any(|block| matches!(block, Content::Attachment(_)))
}

fn file_is_in(tree: &Tree) -> bool {
    tree.nodes().any(|node| has_file(node.message()))
}

/// Starts a conversation with a picture in its first message.
async fn with_picture(store: &Arc<dyn Store>, steps: usize) -> (ScriptedProvider, Session) {
    let (provider, agent) = agent((0..steps).map(|_| Step::text("Seen.")));
    let agent = agent.compaction(CompactionPolicy::default().with_kept_turns(0));
    let session = Session::builder(Arc::clone(store)).agent(agent).create_with_id(id("a")).await.unwrap();
    session.ask([Content::from("Look"), picture(), "please".into()]).await.unwrap();
    (provider, session)
}

#[tokio::test(start_paused = true)]
async fn omitted_attachment_is_a_note_in_requests_and_stays_everywhere_else() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (provider, session) = with_picture(&store, 4).await;
    session.omit(node(1), 1).await.unwrap();
    session.omit(node(1), 1).await.unwrap();
    session.ask("And?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE, "please"]);
    assert!(file_is_in(&session.tree().await.unwrap()));
    assert!(has_file(session.snapshot().await.unwrap().tree.history().get(0).unwrap()));

    // Another process opens the conversation.
    session.stop(secs(5)).await.unwrap();
    let (provider, agent) = agent([Step::text("Still."), Step::text("Again.")]);
    let session = Session::builder(Arc::clone(&store)).agent(agent).open(id("a")).await.unwrap();
    session.ask("Still?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE, "please"]);
    session.restore(node(1), 1).await.unwrap();
    session.restore(node(1), 1).await.unwrap();
    session.ask("Again?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", "image/png", "please"]);
    session.flush(secs(5)).await.unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap().state.settings, Settings::default());
}

#[tokio::test(start_paused = true)]
async fn prompt_that_a_service_refuses_is_answered_after_its_file_was_omitted() {
    let refused = ProviderError::new(ProviderErrorKind::InvalidRequest, "the image is too large");
    let (provider, agent) = agent([Step::error(refused), Step::text("No picture.")]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.ask([Content::from("Look"), picture()]).await.unwrap_err();
    session.omit(node(1), 1).await.unwrap();
    let response = session.again(node(1)).response().await.unwrap();
    assert_eq!(response.text(), "No picture.");
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE]);
    assert!(file_is_in(&session.tree().await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn omitted_result_of_a_tool_keeps_its_texts() {
    let (provider, builder) =
        agent([Step::tool_use("t", "draw", json!({})), Step::text("Drawn."), Step::text("Yes.")]);
    let draw = tool_fn("draw", "Draws.", |_: Value, _: ToolContext| async {
        let Content::Attachment(file) = picture() else { unreachable!() };
        Ok(ToolOutput::blocks([ResultBlock::from("Here:"), file.clone().into(), file.into()]))
    });
    let session = Session::builder(MemoryStore::new()).agent(builder.tool(draw)).create().await.unwrap();
    session.ask("Draw").await.unwrap();
    session.omit(node(3), 0).await.unwrap();
    session.ask("Nice?").await.unwrap();
    let request = provider.last_request().unwrap();
    assert_eq!(blocks(&request, 2), [format!("Here:, {NOTE}, {NOTE}")]);
    request.history.check_sendable().unwrap();
}

#[tokio::test(start_paused = true)]
async fn omitted_attachment_is_not_sent_for_a_summary_either() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (provider, session) = with_picture(&store, 2).await;
    session.ask("And?").await.unwrap();
    session.omit(node(1), 1).await.unwrap();
    provider.push(Step::text("A summary."));
    session.compact(Compact::default()).await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE, "please"]);
    session.compact(Compact::undo()).await.unwrap();
    provider.push(Step::text("Yes."));
    session.ask("Then?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE, "please"]);
}

#[tokio::test(start_paused = true)]
async fn kept_prompts_of_a_summary_contain_no_note_of_an_omitted_file() {
    let steps = ["Seen.", "Yes.", "A summary."].map(Step::text);
    let (provider, agent) = agent(steps);
    let policy = CompactionPolicy::default().with_kept_turns(0).with_kept_prompts();
    let session =
        Session::builder(MemoryStore::new()).agent(agent.compaction(policy)).create().await.unwrap();
    session.ask([Content::from("Look"), picture()]).await.unwrap();
    session.omit(node(1), 1).await.unwrap();
    session.ask("And?").await.unwrap();
    let summary = session.compact(Compact::default()).await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE]);
    let text = "A summary.\n\nEarlier messages of the user, the newest first:\n\nLook";
    assert_eq!(summary.text(), text);
}

#[tokio::test(start_paused = true)]
async fn omission_of_something_else_fails_and_changes_nothing() {
    let gate = Gate::new();
    let (_, agent) = agent([Step::text("Seen."), Step::new().then_text(["Half"]).gate(&gate).stop()]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.ask([Content::from("Look"), picture()]).await.unwrap();
    for (at, block, kind) in [
        (9, 0, ErrorKind::UnknownNode),
        (1, 0, ErrorKind::NotAnAttachment),
        (1, 2, ErrorKind::NotAnAttachment),
        (1, usize::MAX, ErrorKind::NotAnAttachment),
        (2, 0, ErrorKind::NotAnAttachment),
    ] {
        assert_eq!(session.omit(node(at), block).await.unwrap_err().kind(), kind, "{at}, {block}");
        assert_eq!(session.restore(node(at), block).await.unwrap_err().kind(), kind, "{at}, {block}");
    }
    session.prompt("Go on").await.unwrap();
    gate.reached().await;
    assert_eq!(session.omit(node(1), 1).await.unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert!(session.state().await.unwrap().config().settings.omitted.is_empty());
}

#[tokio::test(start_paused = true)]
async fn omission_of_an_erased_message_is_forgotten_with_the_next_one() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (_, session) = with_picture(&store, 2).await;
    session.ask([picture()]).await.unwrap();
    session.omit(node(3), 0).await.unwrap();
    session.erase(node(3)).await.unwrap();
    session.omit(node(1), 1).await.unwrap();
    let tree = session.tree().await.unwrap();
    let first = tree.node(node(1)).unwrap().message().id.clone().unwrap();
    let omitted = session.state().await.unwrap().config().settings.omitted.clone();
    assert_eq!(omitted.into_iter().collect::<Vec<_>>(), [(first, [1].into())]);
}

#[tokio::test(start_paused = true)]
async fn omission_of_a_newer_message_during_another_omission_is_kept() {
    for polls in 0..4 {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (_, session) = with_picture(&store, 2).await;
        let mut first = Box::pin(maybe_done(session.omit(node(1), 1)));
        for _ in 0..polls {
            let _ = poll!(&mut first);
            // The agent and the session answer the commands of the first call.
            session.status().await.unwrap();
            session.tree().await.unwrap();
        }
        session.ask([picture()]).await.unwrap();
        session.omit(node(3), 0).await.unwrap();
        first.as_mut().await;
        first.as_mut().take_output().unwrap().unwrap();
        let omitted = session.state().await.unwrap().config().settings.omitted.clone();
        assert_eq!(omitted.len(), 2, "after {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn export_keeps_the_file_and_only_a_trusted_import_keeps_the_omission() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (_, session) = with_picture(&store, 1).await;
    session.omit(node(1), 1).await.unwrap();
    session.stop(secs(5)).await.unwrap();
    let exported = export_json(&*store, &id("a")).await.unwrap();
    assert!(exported.contains(&"A".repeat(40_000)));
    for is_trusted in [true, false] {
        let other = MemoryStore::new();
        let imported = if is_trusted {
            import_json_with_settings(&other, &exported, None).await
        } else {
            import_json(&other, &exported, None).await
        };
        let settings = other.load(&imported.unwrap()).await.unwrap().state.settings;
        assert_eq!(!settings.omitted.is_empty(), is_trusted);
    }
}

#[tokio::test(start_paused = true)]
async fn omitted_file_counts_no_more_towards_the_size_of_the_conversation() {
    let refused = ProviderError::new(ProviderErrorKind::InvalidRequest, "the file is too large");
    let steps = [Step::text("First."), Step::error(refused), Step::text("Small."), Step::text("Last.")];
    let (provider, builder) = agent(steps);
    let info = ModelInfo::new("small").with_context_window(100_000);
    let builder = builder.model(provider.model().with_info(info)).compaction(CompactionPolicy::default());
    let session = Session::builder(MemoryStore::new()).agent(builder).create().await.unwrap();
    session.ask("One").await.unwrap();
    let table = Attachment::base64("text/csv", "A".repeat(600_000));
    session.ask([Content::from("Sum it"), table.into()]).await.unwrap_err();
    session.omit(node(3), 1).await.unwrap();
    assert_eq!(session.again(node(3)).response().await.unwrap().text(), "Small.");
    session.ask("And?").await.unwrap();
    assert_eq!(provider.requests().len(), 4, "no request for a summary was made");
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["One"]);
}

#[tokio::test(start_paused = true)]
async fn content_of_an_omitted_file_that_a_gateway_has_returned_is_left_out_too() {
    let read = json!({ "annotations": [
        { "type": "file", "file": { "content": [{ "type": "text", "text": "secret" }] } },
        { "type": "url_citation", "url_citation": { "url": "https://a.example" } },
    ] });
    let item = ProviderItem::new("chat_completions", read);
    let item = Delta::Start { index: 1, block: BlockStart::ProviderItem(item) };
    let answer = Step::new().then_text(["Seen."]).delta(item).delta(Delta::End { index: 1 }).stop();
    let (provider, agent) = agent([answer, Step::text("Yes."), Step::text("No.")]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let file = Attachment::base64("application/pdf", "QUJD");
    session.ask([Content::from("Read"), file.into()]).await.unwrap();
    let sent = |provider: &ScriptedProvider| format!("{:?}", provider.last_request().unwrap().history);
    session.ask("And?").await.unwrap();
    assert!(sent(&provider).contains("secret"));
    session.omit(node(1), 1).await.unwrap();
    session.ask("And now?").await.unwrap();
    assert!(!sent(&provider).contains("secret"), "{}", sent(&provider));
    assert!(sent(&provider).contains("url_citation"));
}

// ---- hostile values ----

/// Stores these settings in place of those of the conversation.
async fn set(store: &dyn Store, id: &ConversationId, omitted: Value) {
    let state: StoredState = serde_json::from_value(json!({ "omitted": omitted })).unwrap();
    let version = store.summary(id).await.unwrap().version;
    let change = Change::State(StateChange::whole(state));
    store.write(id, &Write::on(version), &change).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stored_omissions_of_unknown_messages_and_other_blocks_have_no_effect() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (_, session) = with_picture(&store, 1).await;
    let first = session.tree().await.unwrap().node(node(1)).unwrap().message().id.clone().unwrap();
    session.stop(secs(5)).await.unwrap();
    let mut omitted: serde_json::Map<String, Value> =
        (0..50_000).map(|number| (format!("unknown-{number}"), json!([number]))).collect();
    omitted.insert(String::new(), json!([0]));
    omitted.insert(first.to_string(), json!([u64::MAX, 2, 0, 0, 99]));
    set(&*store, &id("a"), omitted.into()).await;
    let (provider, agent) = agent([Step::text("Yes."), Step::text("No.")]);
    let session = Session::builder(Arc::clone(&store)).agent(agent).open(id("a")).await.unwrap();
    session.ask("And?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", "image/png", "please"]);
    session.omit(node(1), 1).await.unwrap();
    session.ask("Now?").await.unwrap();
    assert_eq!(blocks(&provider.last_request().unwrap(), 0), ["Look", NOTE, "please"]);
    assert_eq!(session.state().await.unwrap().config().settings.omitted.len(), 1);
}

#[test]
fn stored_omissions_of_the_wrong_form_are_damage_and_missing_ones_are_none() {
    assert_eq!(serde_json::from_value::<StoredState>(json!({})).unwrap(), StoredState::default());
    for omitted in
        [json!(null), json!([]), json!({ "m": 1 }), json!({ "m": [-1] }), json!({ "m": ["0"] }), json!("m")]
    {
        let read = serde_json::from_value::<StoredState>(json!({ "omitted": omitted }));
        assert!(read.is_err(), "{omitted}");
    }
}
