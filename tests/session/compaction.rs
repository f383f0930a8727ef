//! Conversations whose tree contains a compaction.

use omni_agent::{
    ErrorKind,
    agent::{Compact, CompactionPolicy, Durable},
    message::{History, Usage},
    provider::{ModelInfo, Options, ProviderError, ProviderErrorKind},
    run::{Prompt, PromptState},
    session::{Session, SessionAnswer, SessionCommand},
    store::{MemoryStore, Store, StoreError, export_json, import_json},
    testing::{Gate, ScriptedProvider, Step},
    tree::{Node, NodeId},
};
use serde_json::{Value, json};

use crate::support::{ScriptedStore, assert_agree, created, id, node, secs};

fn compaction(number: u64, kept: u32) -> Value {
    json!({
        "id": number, "parent": number - 1,
        "message": {
            "role": "user",
            "content": [{ "type": "text", "text": "They have greeted each other." }],
            "timestamp": 0,
            "compaction": { "is_summary": true, "kept": kept, "cleared": 0, "trigger": "request" },
        },
    })
}

/// Returns an export of a conversation with two turns, and with a compaction as node 5.
async fn exported(kept: u32) -> String {
    let store = ScriptedStore::new([]);
    let provider = ScriptedProvider::new(["Hi.", "Ho."].map(Step::text));
    let session = created(&store, "talk", omni_agent::Agent::builder().model(provider.model())).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    session.stop(secs(1)).await.unwrap();
    let text = export_json(&**store.beneath(), &id("talk")).await.unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let conversation = &mut document["conversation"];
    conversation["nodes"].as_array_mut().unwrap().push(compaction(5, kept));
    conversation["head"] = json!(5);
    document.to_string()
}

async fn opened(
    kept: u32,
    steps: &[&'static str],
) -> (Session, ScriptedProvider, std::sync::Arc<MemoryStore>) {
    let store = std::sync::Arc::new(MemoryStore::new());
    let own = import_json(&*store, &exported(kept).await, None).await.unwrap();
    let provider = ScriptedProvider::new(steps.iter().copied().map(Step::text));
    let agent = omni_agent::Agent::builder().model(provider.model());
    let shared: std::sync::Arc<dyn Store> = store.clone();
    (Session::builder(shared).agent(agent).open(own).await.unwrap(), provider, store)
}

fn sent(provider: &ScriptedProvider) -> Vec<String> {
    provider.last_request().unwrap().history.iter().map(|message| message.text()).collect()
}

async fn parent(session: &Session, text: &str) -> Option<NodeId> {
    let tree = session.tree().await.unwrap();
    tree.nodes().find(|node| node.message().text() == text).and_then(Node::parent)
}

#[tokio::test(start_paused = true)]
async fn prompt_after_a_compaction_sends_the_summary_and_what_follows() {
    let (session, provider, store) = opened(1, &["A", "B"]).await;
    session.ask("Three").await.unwrap();
    let texts = sent(&provider);
    assert!(texts[0].ends_with("\n\nThey have greeted each other."), "{texts:?}");
    assert_eq!(texts[1..], ["Ho.", "Three"]);
    assert_eq!(parent(&session, "Three").await, Some(node(5)));
    session.ask("Four").await.unwrap();
    assert_eq!(sent(&provider)[1..], ["Ho.", "Three", "A", "Four"]);
    let tree = session.tree().await.unwrap();
    assert_eq!(tree.history().len(), 9, "nothing is deleted");
    assert!(tree.to_string().contains("5 user: [summary] They have greeted each other."), "{tree}");
    session.stop(secs(1)).await.unwrap();
    let stored = store.load(&id("talk")).await.unwrap();
    assert!(stored.nodes[4].message().compaction.is_some());
}

#[tokio::test(start_paused = true)]
async fn run_at_a_compaction_is_refused_and_below_it_is_accepted() {
    let (session, provider, _store) = opened(0, &["A"]).await;
    let again = session.again(node(5)).start().await.unwrap_err();
    let instead = session.run("Three").instead_of(node(5)).start().await.unwrap_err();
    assert_eq!([again.kind(), instead.kind()], [ErrorKind::NotAPrompt; 2]);
    session.run("Three").below(Some(node(5))).response().await.unwrap();
    assert_eq!(sent(&provider).len(), 2);
    session.navigate(Some(node(5))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_above_a_compaction_sends_everything() {
    let (session, provider, _store) = opened(0, &["A"]).await;
    session.again(node(3)).response().await.unwrap();
    assert_eq!(sent(&provider), ["One", "Hi.", "Two"]);
}

#[tokio::test(start_paused = true)]
async fn erase_of_a_covered_message_erases_the_compaction() {
    let (session, _provider, _store) = opened(0, &[]).await;
    session.erase(node(3)).await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!((tree.len(), tree.history().compaction()), (2, None));
}

#[tokio::test]
async fn import_of_a_compaction_that_breaks_the_law_names_its_node() {
    let text = exported(5).await;
    let refused = import_json(&MemoryStore::new(), &text, None).await.unwrap_err();
    let StoreError::Damaged { .. } = &refused else { panic!("{refused:?}") };
    let text = refused.to_string();
    assert!(text.contains("node 5") && text.contains("covers more messages than stand before it"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn answer_states_the_size_of_the_conversation_after_it() {
    let usage = Usage::default().with_input(50).with_cache_read(1000).with_output(40).with_reasoning(30);
    let provider = ScriptedProvider::new([Step::new().usage(usage).then_text(["A"]).stop(), Step::text("B")]);
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", omni_agent::Agent::builder().model(provider.model())).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.stop(secs(1)).await.unwrap();
    let tree = store.tree(&id("talk")).await;
    let sizes: Vec<_> = tree.history().iter().map(|message| message.context_tokens).collect();
    assert_eq!(sizes, [None, Some(1060), None, None], "the second answer has no usage");
}

#[tokio::test(start_paused = true)]
async fn prompt_with_a_compaction_before_it_keeps_its_settings_and_is_answered_again_with_it() {
    let full = Step::new().usage(Usage::default().with_input(900)).then_text(["A1"]).stop();
    let steps = [full, Step::text("S."), Step::text("A2"), Step::text("B2")];
    let provider = ScriptedProvider::new(steps);
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let agent = omni_agent::Agent::builder()
        .model(provider.model().with_info(info))
        .compaction(CompactionPolicy::default().with_kept_turns(1));
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", agent).await;
    session.ask("One").await.unwrap();
    session.run("Two").with_options(Options::default().with_temperature(0.5)).response().await.unwrap();
    let texts = |history: &History| history.iter().map(|message| message.text()).collect::<Vec<_>>();
    assert_eq!(texts(session.tree().await.unwrap().history()), ["One", "A1", "S.", "Two", "A2"]);
    session.again(node(4)).response().await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!(texts(tree.history()), ["One", "A1", "S.", "Two", "B2"]);
    assert_eq!(provider.requests().len(), 4, "the compaction is used again");
    assert_eq!(provider.last_request().unwrap().options.temperature(), Some(0.5));
    assert!(sent(&provider)[0].ends_with("\n\nS."));
    assert_agree(&session, &store).await;
}

fn steps(texts: [&'static str; 3]) -> impl Iterator<Item = Step> {
    texts.into_iter().map(Step::text)
}

#[tokio::test(start_paused = true)]
async fn requested_compaction_is_stored_and_in_force_after_the_conversation_is_opened_again() {
    let provider = ScriptedProvider::new(steps(["A1", "A2", "A3"]).chain(steps(["S.", "A4", "A5"])));
    let store = std::sync::Arc::new(MemoryStore::new());
    let builder = || {
        let shared: std::sync::Arc<dyn Store> = store.clone();
        Session::builder(shared).agent(omni_agent::Agent::builder().model(provider.model()))
    };
    let session = builder().open_or_create(id("talk")).await.unwrap();
    for prompt in ["Q1", "Q2", "Q3"] {
        session.ask(prompt).await.unwrap();
    }
    let compact = SessionCommand::Compact(Compact::from("names"));
    let SessionAnswer::Message { message } = session.perform(compact, None).await.unwrap() else { panic!() };
    assert_eq!(message.text(), "S.");
    session.stop(secs(1)).await.unwrap();

    let session = builder().open(id("talk")).await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!((tree.len(), tree.history().compaction().map(|(index, _)| index)), (7, Some(6)));
    session.ask("Q4").await.unwrap();
    let texts = sent(&provider);
    assert!(texts[0].ends_with("\n\nS."), "{texts:?}");
    assert_eq!(texts[1..], ["Q2", "A2", "Q3", "A3", "Q4"]);
    session.compact(Compact::undo()).await.unwrap();
    session.ask("Q5").await.unwrap();
    assert_eq!(sent(&provider).len(), 9, "all messages are sent again");
    session.stop(secs(1)).await.unwrap();
}

/// Runs two prompts, after whose second answer a summary begins that does not end.
async fn held_at_the_end(durable: Durable) -> (Session, std::sync::Arc<MemoryStore>, Gate) {
    let gate = Gate::new();
    let full = Usage::default().with_input(900);
    let answer = |text: &'static str| Step::new().usage(full).then_text([text]).stop();
    let held = Step::new().then_text(["S."]).gate(&gate).stop();
    let provider = ScriptedProvider::new([Step::text("A1"), answer("A2"), held]);
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let agent = omni_agent::Agent::builder()
        .model(provider.model().with_info(info))
        .compaction(CompactionPolicy::default().with_kept_turns(1));
    let store = std::sync::Arc::new(MemoryStore::new());
    let shared: std::sync::Arc<dyn Store> = store.clone();
    let builder = Session::builder(shared).agent(agent).durable(durable);
    let session = builder.create_with_id(id("talk")).await.unwrap();
    session.ask("Q1").await.unwrap();
    session.prompt(Prompt::new("Q2").with_id("q2")).await.unwrap();
    gate.reached().await;
    (session, store, gate)
}

#[tokio::test(start_paused = true)]
async fn answer_before_a_compaction_at_the_end_is_complete_and_stored() {
    for durable in [Durable::Turns, Durable::Approvals, Durable::InFlight] {
        let (session, store, gate) = held_at_the_end(durable).await;
        let outcome = session.outcome("q2").await.unwrap();
        assert_eq!(outcome.through, Some(node(4)), "{outcome:?}");
        assert!(session.snapshot().await.unwrap().agent.compacting.is_some());
        gate.open();
        session.wait_until_idle().await.unwrap();
        let tree = session.tree().await.unwrap();
        assert_eq!(tree.history().compaction().map(|(index, _)| index), Some(4));
        session.stop(secs(1)).await.unwrap();
        let stored = store.load(&id("talk")).await.unwrap();
        // Without records, the store keeps no outcomes of complete runs.
        let known = stored.last_run.map(|end| end.prompts.clone()).unwrap_or_default();
        assert!(durable == Durable::Turns || known[0].through == Some(node(4)), "{known:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_during_a_compaction_at_the_end_keeps_the_answer() {
    for durable in [Durable::Turns, Durable::Approvals, Durable::InFlight] {
        let (session, store, _gate) = held_at_the_end(durable).await;
        session.stop(secs(1)).await.unwrap();
        let stored = store.load(&id("talk")).await.unwrap();
        assert_eq!(stored.nodes.len(), 4, "{durable:?}");
        let known = stored.last_run.as_ref().and_then(|end| end.prompts.first());
        let is_ended = known.is_some_and(|known| matches!(known.state, PromptState::Ended { .. }));
        assert!(durable == Durable::Turns || is_ended, "{known:?}");
    }
}

fn full(text: &'static str) -> Step {
    Step::new().usage(Usage::default().with_input(900)).then_text([text]).stop()
}

#[tokio::test(start_paused = true)]
async fn prompt_whose_run_fails_behind_its_compaction_stays_without_it_and_gets_one_with_each_answer() {
    let down = Step::error(ProviderError::new(ProviderErrorKind::Auth, "down"));
    let rest = ["S2.", "A2", "S3.", "B2"].map(Step::text);
    let steps = [full("A1"), Step::text("S1."), down].into_iter().chain(rest);
    let provider = ScriptedProvider::new(steps);
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let agent = omni_agent::Agent::builder()
        .model(provider.model().with_info(info))
        .compaction(CompactionPolicy::default().with_kept_turns(1));
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", agent).await;
    session.ask("One").await.unwrap();
    let error = session.ask("Two").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert_eq!(provider.requests().len(), 3, "the request was sent with the summary");
    let tree = session.tree().await.unwrap();
    let unanswered: Vec<_> = tree.unanswered(Some(node(2))).map(|own| own.message().text()).collect();
    assert_eq!((tree.len(), unanswered), (3, vec!["Two".to_owned()]));

    let texts = |history: &History| history.iter().map(|message| message.text()).collect::<Vec<_>>();
    for (summary, answer) in [("S2.", "A2"), ("S3.", "B2")] {
        session.again(node(3)).response().await.unwrap();
        let tree = session.tree().await.unwrap();
        assert_eq!(texts(tree.history()), ["One", "A1", "Two", summary, answer]);
        let sent = sent(&provider);
        assert!(sent.len() == 3 && sent[0].ends_with(&format!("\n\n{summary}")), "{sent:?}");
        assert_eq!(sent[1..], ["A1", "Two"]);
    }
    assert_eq!(session.tree().await.unwrap().len(), 7);
    assert_agree(&session, &store).await;
}
