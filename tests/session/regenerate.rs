//! Answering a user message again.

use std::time::Duration;

use omni_agent::{
    agent::{Agent, Event},
    message::{Message, Usage},
    run::{Accepted, PromptState},
    session::{Session, SessionEvent},
    testing::{Gate, ScriptedProvider, Step},
    tree::NodeId,
};
use serde_json::json;

use crate::watch::{Hooks, Watched, answered, brief, held, in_time, on, reached, scripted};

/// Returns the ids of the path's user messages, in order.
fn users(session: &Watched) -> Vec<NodeId> {
    let users =
        session.view.tree.iter().filter(|node| node.message().role == omni_agent::message::Role::User);
    users.map(omni_agent::tree::Node::id).collect()
}

async fn regenerate(session: &Session, node: NodeId) {
    answered(session.again(node).start()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn regenerate_answer_is_a_sibling_below_the_same_message() {
    let usage = Usage::default().with_input(3).with_output(5);
    let steps = [Step::text("A1"), Step::text("A2"), Step::new().usage(usage).then_text(["B1"]).stop()];
    let provider = ScriptedProvider::new(steps);
    let mut session = Watched::start(on(Agent::builder().model(provider.model()))).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    let question = users(&session)[0];
    let asked = std::sync::Arc::clone(session.view.tree.node(question).unwrap().message());
    tokio::time::advance(Duration::from_hours(1)).await;
    regenerate(&session.session, question).await;
    session.rest().await;
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Q1
  ├─ 2 assistant: A1
  │  3 user: Q2
  │  4 assistant: A2
> └─ 5 assistant: B1"
    );
    assert_eq!(provider.last_request().unwrap().history.iter().collect::<Vec<_>>(), [&asked]);
    assert_eq!(session.view.agent.state.history.get(0), Some(&asked), "the same message, its time included");
    let answer = session.view.tree.nodes().last().unwrap();
    assert_eq!(answer.usage(), Some(&usage));
}

#[tokio::test(start_paused = true)]
async fn regenerate_on_another_branch_moves_there() {
    let steps = ["A1", "X", "B1"].map(Step::text);
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    let question = users(&session)[0];
    answered(session.session.run("Other").below(None).start()).await.unwrap();
    session.rest().await;
    regenerate(&session.session, question).await;
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: B1"]);
    assert_eq!(session.view.tree.roots().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn regenerate_with_continuations_commits_each_turn() {
    let steps = ["A1", "B1", "B2", "B3"].map(Step::text);
    // The first turn, which is regenerated later, has no continuation.
    let mut first = true;
    let mut texts = vec!["C2", "C1"];
    let hooks = Hooks::new().on_turn(move |_, _| {
        let next = if std::mem::take(&mut first) { None } else { texts.pop() };
        async move {
            next.map_or(omni_agent::agent::TurnDecision::Stop, omni_agent::agent::TurnDecision::continue_with)
        }
    });
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    regenerate(&session.session, users(&session)[0]).await;
    let words = session.until("turn(stop)").await;
    assert_eq!(words.iter().filter(|word| *word == "turn(continue)").count(), 2);
    for (index, word) in words.iter().enumerate() {
        if word == "turn(continue)" {
            assert_eq!(words[index + 1], "tree");
        }
    }
    session.rest().await;
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Q1
  ├─ 2 assistant: A1
* └─ 3 assistant: B1
*    4 user: C1
*    5 assistant: B2
*    6 user: C2
>    7 assistant: B3"
    );
}

#[tokio::test(start_paused = true)]
async fn regenerate_cancelled_after_its_first_commit_keeps_the_committed_turns() {
    for fails in [false, true] {
        let gate = Gate::new();
        let last = if fails { Step::new().panic("broken") } else { held(&gate) };
        let steps = [Step::text("A1"), Step::text("B1"), last, Step::text("End")];
        let mut turns = 0;
        let hooks = Hooks::new().on_turn(move |_, _| {
            turns += 1;
            let go_on = turns == 2;
            async move {
                if go_on {
                    omni_agent::agent::TurnDecision::continue_with("On")
                } else {
                    omni_agent::agent::TurnDecision::Stop
                }
            }
        });
        let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
        session.ask("Q1").await;
        regenerate(&session.session, users(&session)[0]).await;
        let end = if fails {
            "error"
        } else {
            reached(&gate).await;
            session.check().await;
            answered(session.session.cancel()).await.unwrap();
            "cancelled"
        };
        session.until(end).await;
        session.rest().await;
        assert_eq!(session.path(), ["user: Q1", "assistant: B1"]);
        // The continuation has failed, so its prompt stays as a leaf.
        assert_eq!(session.view.tree.len(), 3 + usize::from(fails));
        session.ask("Q2").await;
        assert_eq!(session.path(), ["user: Q1", "assistant: B1", "user: Q2", "assistant: End"]);
    }
}

#[tokio::test(start_paused = true)]
async fn regenerate_with_tools_puts_the_whole_turn_below_the_message() {
    let steps =
        [Step::text("A1"), Step::tool_use("t1", "echo", json!({})), Step::text("B1"), Step::text("C1")];
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    let question = users(&session)[0];
    regenerate(&session.session, question).await;
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: use t1", "user: result t1", "assistant: B1"]);
    assert_eq!(session.view.tree.children(question).unwrap().count(), 2);
    assert_eq!(session.view.tree.len(), 5);
    regenerate(&session.session, question).await;
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: C1"]);
}

#[tokio::test(start_paused = true)]
async fn regenerate_cancelled_while_its_tools_run_is_rolled_back() {
    let gate = Gate::new();
    let tool = {
        let gate = gate.clone();
        omni_agent::tool::tool_fn("wait", "Waits.", move |_: serde_json::Value, _| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok("done")
            }
        })
    };
    let steps = [Step::text("A1"), Step::tool_use("t1", "wait", json!({}))];
    let mut session = Watched::start(on(scripted(steps).tool(tool))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    regenerate(&session.session, users(&session)[0]).await;
    reached(&gate).await;
    session.check().await;
    answered(session.session.cancel()).await.unwrap();
    session.until("state").await;
    session.check().await;
    assert_eq!(session.view.tree, before);
}

#[tokio::test(start_paused = true)]
async fn regenerate_with_a_staged_prompt_continues_below_the_new_answer() {
    let gate = Gate::new();
    let steps = [Step::text("A1"), held(&gate), Step::text("B2")];
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    regenerate(&session.session, users(&session)[0]).await;
    reached(&gate).await;
    let staged = answered(session.session.prompt("Q2")).await.unwrap();
    assert!(matches!(staged, Accepted::Staged { ahead: 0, .. }), "{staged:?}");
    session.check().await;
    gate.open();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: Half", "user: Q2", "assistant: B2"]);
    assert_eq!(session.view.tree.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn regenerate_cancelled_with_a_staged_prompt_carries_it_back() {
    let gate = Gate::new();
    let mut session = Watched::scripted([Step::text("A1"), held(&gate)]).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    regenerate(&session.session, users(&session)[0]).await;
    reached(&gate).await;
    answered(session.session.prompt("Q2")).await.unwrap();
    answered(session.session.cancel()).await.unwrap();
    let staged = loop {
        if let SessionEvent::Agent(event) = &*session.next().await
            && let Event::Prompt { prompt: Some(prompt), state: PromptState::Returned, .. } = &**event
        {
            break prompt.clone();
        }
    };
    assert_eq!(staged.content, omni_agent::run::Prompt::new("Q2").content);
    session.rest().await;
    assert_eq!(session.view.tree, before);
}

#[tokio::test(start_paused = true)]
async fn regenerate_interrupted_keeps_the_partial_answer() {
    let gate = Gate::new();
    let mut session = Watched::scripted([Step::text("A1"), held(&gate), Step::text("B2")]).await;
    session.ask("Q1").await;
    regenerate(&session.session, users(&session)[0]).await;
    reached(&gate).await;
    answered(session.session.interrupt()).await.unwrap();
    session.until("turn(stop)").await;
    session.rest().await;
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Q1
  ├─ 2 assistant: A1
> └─ 3 assistant: Half"
    );
    session.ask("Q2").await;
    assert_eq!(session.path(), ["user: Q1", "assistant: Half", "user: Q2", "assistant: B2"]);
}

#[tokio::test(start_paused = true)]
async fn regenerate_in_flight_snapshot_shows_the_message_once() {
    let gate = Gate::new();
    let mut session = Watched::scripted([Step::text("A1"), Step::text("A2"), held(&gate)]).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    regenerate(&session.session, users(&session)[1]).await;
    reached(&gate).await;
    let shown = answered(session.session.snapshot()).await.unwrap();
    let messages: Vec<_> = shown.messages().map(|message| brief(message)).collect();
    assert_eq!(messages, ["user: Q1", "assistant: A1", "user: Q2"]);
    assert_eq!(shown.agent.partial.len(), 1);
    assert_eq!(shown.tree.len(), 4);
    session.see(&shown).await;
    // A subscriber that joins now receives the same snapshot.
    let mut joined = Watched::of(&session.session).await;
    gate.open();
    session.rest().await;
    joined.check().await;
    assert_eq!(joined.view.tree, session.view.tree);
}

#[tokio::test(start_paused = true)]
async fn regenerate_never_stores_an_unanswered_prompt() {
    use omni_agent::store::{MemoryStore, Store};
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(MemoryStore::new());
    let gate = Gate::new();
    let agent = scripted([Step::text("A1"), Step::text("A2"), held(&gate)]);
    let session = Session::builder(std::sync::Arc::clone(&store)).agent(agent).create().await.unwrap();
    let mut session = Watched::of(&session).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    regenerate(&session.session, users(&session)[1]).await;
    reached(&gate).await;
    // A title is saved during the run.
    answered(session.session.set_title(Some("A title"))).await.unwrap();
    in_time(session.session.flush(Duration::from_secs(1))).await.unwrap();
    let stored = store.load(session.session.id()).await.unwrap();
    assert_eq!(stored.state.title.as_deref(), Some("A title"));
    assert_eq!((stored.nodes.len(), stored.head), (4, NodeId::new(4)));
    // If the end of the session discards a run, the run leaves no trace.
    answered(session.session.stop_discarding(Duration::from_secs(1))).await.unwrap();
    let stored = store.load(session.session.id()).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.head), (4, NodeId::new(4)));
    session.closed().await;
    assert_eq!(session.view.tree.head(), NodeId::new(4));
}

#[tokio::test(start_paused = true)]
async fn regenerate_message_keeps_its_attachments() {
    let steps = ["A1", "B1"].map(Step::text);
    let mut session = Watched::scripted(steps).await;
    let image = omni_agent::message::Attachment::base64("image/png", "iVBORw0KGgo=");
    let blocks: Vec<omni_agent::message::Content> = vec![image.into(), "What is it?".into()];
    let prompt = Message::user(blocks);
    in_time(session.session.ask(prompt.content.clone())).await.unwrap();
    session.check().await;
    regenerate(&session.session, users(&session)[0]).await;
    session.rest().await;
    assert_eq!(session.view.tree.len(), 3);
    assert_eq!(session.view.agent.state.history.get(0).unwrap().content, prompt.content);
}
