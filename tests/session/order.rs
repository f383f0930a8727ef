//! The order of a session's events.

use omni_agent::{
    agent::Status,
    provider::{ProviderError, ProviderErrorKind},
    session::SessionEvent,
    testing::{Gate, Step},
    tree::NodeId,
};

use crate::watch::{Watched, answered, in_time, reached, word};

/// The first events of a run that changes the path.
const BEGIN: [&str; 4] = ["tree", "state", "status(busy)", "message"];

fn refusal() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))
}

/// The operations that change the path and start a run.
#[derive(Clone, Copy, Debug)]
enum Begin {
    Regenerate,
    Branch,
    Root,
}

const ALL: [Begin; 3] = [Begin::Regenerate, Begin::Branch, Begin::Root];

/// Returns a session with two turns. The next answer of its model is `step`.
async fn two_turns(step: Step) -> (Watched, Vec<NodeId>) {
    let steps = [Step::text("A1"), Step::text("A2"), step, Step::text("Later")];
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    in_time(session.session.flush(std::time::Duration::from_secs(1))).await.unwrap();
    session.check().await;
    let nodes = session.view.tree.iter().map(omni_agent::tree::Node::id).collect();
    (session, nodes)
}

async fn begin(session: &Watched, nodes: &[NodeId], how: Begin) {
    let begun = match how {
        Begin::Regenerate => answered(session.session.again(nodes[2]).start()).await,
        Begin::Branch => answered(session.session.run("Q3").below(Some(nodes[1])).start()).await,
        Begin::Root => answered(session.session.run("Q3").below(None).start()).await,
    };
    begun.unwrap();
}

#[tokio::test(start_paused = true)]
async fn branch_committed_emits_turn_then_tree() {
    for how in ALL {
        let (mut session, nodes) = two_turns(Step::text("A3")).await;
        begin(&session, &nodes, how).await;
        let words = session.until("turn(stop)").await;
        assert_eq!(words[..4], BEGIN, "{how:?}");
        assert_eq!(words[words.len() - 2..], ["status(idle)", "turn(stop)"]);
        assert_eq!(words.iter().filter(|word| *word == "tree" || *word == "state").count(), 2, "{words:?}");
        assert_eq!(word(&*session.next().await), "tree");
        session.rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn branch_cancelled_emits_cancelled_then_tree_then_state() {
    for how in ALL {
        let gate = Gate::new();
        let (mut session, nodes) = two_turns(Step::new().gate(&gate)).await;
        let before = session.view.clone();
        begin(&session, &nodes, how).await;
        reached(&gate).await;
        assert_eq!(session.status().await, Status::Busy);
        answered(session.session.cancel()).await.unwrap();
        let words = session.until("cancelled").await;
        assert_eq!(words[..4], BEGIN, "{how:?}");
        assert_eq!(words[words.len() - 2..], ["status(idle)", "cancelled"]);
        rolled_back(session, before, 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn branch_failed_emits_error_then_tree_then_state() {
    for how in ALL {
        let (mut session, nodes) = two_turns(refusal()).await;
        let before = session.view.clone();
        begin(&session, &nodes, how).await;
        let words = session.until("error").await;
        assert_eq!(words[..4], BEGIN, "{how:?}");
        // The prompt of another answer is in the tree already.
        rolled_back(session, before, usize::from(!matches!(how, Begin::Regenerate))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn branch_interrupted_with_nothing_to_keep_is_rolled_back() {
    let gate = Gate::new();
    for how in ALL {
        let (mut session, nodes) = two_turns(Step::new().gate(&gate)).await;
        let before = session.view.clone();
        begin(&session, &nodes, how).await;
        reached(&gate).await;
        answered(session.session.interrupt()).await.unwrap();
        session.until("cancelled").await;
        rolled_back(session, before, 0).await;
    }
}

/// Checks the events after a run that was rolled back. The path and the history must be restored, the tree has this number
/// of new leaves, and nothing more must be stored. The session must continue from there.
async fn rolled_back(mut session: Watched, before: omni_agent::session::SessionSnapshot, leaves: usize) {
    assert_eq!(word(&*session.next().await), "tree");
    let (tree, old) = (&session.view.tree, &before.tree);
    assert_eq!((tree.head(), tree.history(), tree.len()), (old.head(), old.history(), old.len() + leaves));
    assert!(leaves > 0 || tree == old);
    assert_eq!(word(&*session.next().await), "state");
    assert_eq!(session.view.agent.state, before.agent.state);
    session.rest().await;
    assert_eq!(session.view.unsaved, []);
    answered(session.session.flush(std::time::Duration::from_millis(1))).await.unwrap();
    let last = session.view.last;
    session.check().await;
    assert_eq!(session.view.last, last, "nothing was written");
    session.ask("Q4").await;
    assert_eq!(
        session.path(),
        ["user: Q1", "assistant: A1", "user: Q2", "assistant: A2", "user: Q4", "assistant: Later"]
    );
    assert_eq!(session.view.tree.len(), 6 + leaves);
}

#[tokio::test(start_paused = true)]
async fn prompt_cancelled_emits_neither_tree_nor_state() {
    let gate = Gate::new();
    let (mut session, _) = two_turns(Step::new().gate(&gate)).await;
    answered(session.session.prompt("Q3")).await.unwrap();
    reached(&gate).await;
    answered(session.session.cancel()).await.unwrap();
    let words = session.until("cancelled").await;
    assert_eq!(words, ["status(busy)", "message", "step_start", "status(idle)", "cancelled"]);
    assert_eq!(word(&*session.next().await), "store", "the end of the run is stored");
    answered(session.session.prompt("Q3")).await.unwrap();
    assert_eq!(word(&*session.next().await), "status(busy)");
}

#[tokio::test(start_paused = true)]
async fn navigate_emits_tree_then_state() {
    let (mut session, nodes) = two_turns(Step::text("A3")).await;
    begin(&session, &nodes, Begin::Root).await;
    session.rest().await;
    answered(session.session.navigate(nodes[0])).await.unwrap();
    assert_eq!(session.until("state").await, ["tree", "state"]);
    assert_eq!(session.view.tree.head(), Some(nodes[3]));
    session.check().await;
}

#[tokio::test(start_paused = true)]
async fn store_events_follow_their_trees_in_order() {
    let mut session = Watched::scripted((0..20).map(|n| Step::text(n.to_string()))).await;
    for _ in 0..20 {
        session.session.ask("Q").await.unwrap();
    }
    let (mut emitted, mut saved) = (0, 0);
    while saved < 40 {
        match &*session.next().await {
            SessionEvent::Tree(changes) => emitted = changes.nodes.last().unwrap().id().get(),
            SessionEvent::Store(omni_agent::session::StoreReport::Saved { through: Some(node), .. }) => {
                assert!(
                    node.get() <= emitted && node.get() > saved,
                    "{node} after {saved}, in the tree: {emitted}"
                );
                saved = node.get();
            }
            _ => {}
        }
    }
    session.check().await;
    assert_eq!(session.view.unsaved, []);
}
