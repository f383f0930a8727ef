//! Runs that fail after they have done work: what the session keeps and stores.

use std::sync::Arc;

use omni_agent::{
    ErrorKind,
    agent::{AgentCallbacks, Durable, ErrorDecision, State},
    message::RequestEnd,
    provider::{ProviderError, ProviderErrorKind},
    run::{Failure, Prompt, RunEnd, RunOutcome},
    session::Session,
    store::{
        MemoryStore, Page, Store,
        custom::{Change, TurnChange},
    },
    testing::Step,
};
use serde_json::json;

use crate::{
    support::{ScriptedStore, Tried, failing, node, secs, tree_in},
    watch::{Watched, briefs, in_time, on, scripted},
};

fn down() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::Auth, "down"))
}

fn echo_use() -> Step {
    Step::tool_use("a", "echo", json!({}))
}

const WORK: [&str; 3] = ["user: Q1", "assistant: use a", "user: result a"];

/// Returns the ends of runs that were stored, each with the number of nodes in the same commit.
fn stored_ends(store: &ScriptedStore) -> Vec<(RunEnd, usize)> {
    let end = |tried: Tried| match tried.what.1 {
        Change::Commit(commit) => match commit.turn.map(|turn| *turn) {
            Some(TurnChange::End(end)) => Some((end, commit.nodes.len())),
            _ => None,
        },
        _ => None,
    };
    store.tried().into_iter().filter_map(end).collect()
}

#[tokio::test(start_paused = true)]
async fn failed_run_stores_its_steps_and_its_end_in_one_commit_at_every_level() {
    for level in [Durable::Turns, Durable::Approvals, Durable::InFlight] {
        let store = ScriptedStore::new([]);
        let agent = scripted([echo_use(), down()]);
        let builder = Session::builder(store.as_dyn()).durable(level).agent(agent);
        let mut session = Watched::start(builder).await;
        session.session.prompt(Prompt::new("Q1").with_id("q1")).await.unwrap();
        let words = session.until("tree").await;
        assert_eq!(words[words.len() - 4..], ["status(idle)", "prompt", "error", "tree"], "{level:?}");
        in_time(session.session.flush(secs(10))).await.unwrap();
        session.check().await;
        assert_eq!(session.path(), WORK, "{level:?}");
        let outcome = in_time(session.session.outcome("q1")).await.unwrap();
        assert!(matches!(outcome.outcome, RunOutcome::Failed { .. }), "{level:?}: {outcome:?}");
        assert_eq!(outcome.through, Some(node(3)), "{level:?}");

        let ends = stored_ends(&store);
        let [(end, nodes)] = &ends[..] else { panic!("{level:?}: {ends:?}") };
        assert_eq!((*nodes, end.unanswered.len()), (3, 0), "{level:?}");
        let stored = store.load(session.session.id()).await.unwrap();
        assert_eq!(stored.last_run.as_ref(), Some(end), "{level:?}");
        assert!(stored.turn.is_none(), "{level:?}");
        store.assert_sound();

        session.session.stop(secs(5)).await.unwrap();
        let id = session.session.id().clone();
        let opened = Session::builder(store.as_dyn()).agent(scripted([Step::text("A2")])).open(id).await;
        let mut opened = Watched::of(&opened.unwrap()).await;
        assert_eq!(opened.path(), WORK, "{level:?}");
        let last_run = opened.view.agent.last_run.as_ref().unwrap();
        assert!(matches!(last_run.outcome, RunOutcome::Failed { .. }), "{level:?}");
        opened.ask("Q2").await;
        assert_eq!(opened.path().last().unwrap(), "assistant: A2", "{level:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_run_of_which_only_the_prompt_is_left_stores_it_as_a_leaf_with_its_end() {
    let store = ScriptedStore::new([]);
    let mut session = Watched::start(Session::builder(store.as_dyn()).agent(scripted([down()]))).await;
    let error = in_time(session.session.ask("Q1")).await.unwrap_err();
    assert_eq!(error.response().unwrap().messages.len(), 1);
    session.rest().await;
    in_time(session.session.flush(secs(10))).await.unwrap();
    assert!(session.path().is_empty());
    let ends = stored_ends(&store);
    assert_eq!((ends.len(), ends[0].1, ends[0].0.unanswered[0].text().as_str()), (1, 1, "Q1"));
    let stored = store.load(session.session.id()).await.unwrap();
    assert_eq!((stored.head, stored.nodes[0].parent()), (None, None));
    assert_eq!(
        (stored.nodes[0].message(), stored.last_run.as_ref()),
        (&ends[0].0.unanswered[0], Some(&ends[0].0))
    );
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn failed_run_on_a_branch_keeps_the_branch_with_its_work() {
    for kind in 0..3 {
        let steps = [Step::text("A1"), echo_use(), down(), Step::text("A3")];
        let mut session = Watched::start(on(scripted(steps))).await;
        session.ask("Q1").await;
        let inner = &session.session;
        let failed = in_time(async {
            match kind {
                0 => inner.again(node(1)).response().await,
                1 => inner.run("Q2").instead_of(node(1)).response().await,
                _ => inner.run("Q2").below(None).response().await,
            }
        });
        let error = failed.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed, "{error:?}");
        assert_eq!(error.response().unwrap().messages.len(), 3);
        session.check().await;
        let prompt = if kind == 0 { "user: Q1" } else { "user: Q2" };
        assert_eq!(session.path(), [prompt, "assistant: use a", "user: result a"], "{kind}");
        assert_eq!(session.view.tree.len(), if kind == 0 { 4 } else { 5 }, "{}", session.drawn());
        session.ask("Q3").await;
        assert_eq!(session.path().len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_run_that_handle_error_discards_leaves_only_its_prompt() {
    struct Discards;
    #[async_trait::async_trait]
    impl AgentCallbacks for Discards {
        async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
            ErrorDecision::Discard
        }
    }
    let steps = [Step::text("A1"), echo_use(), down()];
    let mut session = Watched::start(on(scripted(steps).callbacks(Discards))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    in_time(session.session.run("Q2").instead_of(node(1)).response()).await.unwrap_err();
    session.check().await;
    assert_eq!((session.view.tree.head(), session.view.tree.len()), (before.head(), before.len() + 1));
    assert_eq!(session.view.tree.unanswered(None).next().unwrap().message().text(), "Q2");
}

#[tokio::test(start_paused = true)]
async fn failed_run_stores_results_that_the_service_refused_in_cleared_form() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let long = "x".repeat(700);
    let steps = [Step::tool_use("a", "echo", json!({ "text": long })), failing(), Step::text("A2")];
    let mut session = Watched::start(Session::builder(Arc::clone(&store)).agent(scripted(steps))).await;
    in_time(session.session.ask("Q1")).await.unwrap_err();
    session.check().await;
    in_time(session.session.flush(secs(10))).await.unwrap();
    let tree = tree_in(&*store, session.session.id()).await;
    assert_eq!(briefs(tree.history()), WORK);
    let result = tree.history().last().unwrap().tool_results().next().unwrap().text();
    assert_eq!(result, "[Removed after an error of the model service: 711 characters]");
    session.ask("Q2").await;
}

#[tokio::test(start_paused = true)]
async fn failed_run_that_keeps_a_text_counts_its_request_once() {
    let store = MemoryStore::new();
    let usage = |input| omni_agent::message::Usage::default().with_input(input);
    let broken = Step::new().usage(usage(4)).then_text(["Half"]);
    let broken = broken.fail(ProviderError::new(ProviderErrorKind::Auth, "down"));
    let first = Step::new().usage(usage(1)).then_tool_use("a", "echo", json!({})).stop();
    let mut session = Watched::start(Session::builder(store.clone()).agent(scripted([first, broken]))).await;
    in_time(session.session.ask("Q1")).await.unwrap_err();
    session.check().await;
    in_time(session.session.flush(secs(10))).await.unwrap();
    let rows = store.usage(session.session.id(), &Page::default()).await.unwrap();
    let rows: Vec<_> = rows.into_iter().rev().map(|row| (row.end, row.usage.input)).collect();
    assert_eq!(rows, [(RequestEnd::Answered, 1), (RequestEnd::Failed, 4)]);
    assert_eq!((session.view.used.input, session.view.tree.usage().input), (5, 5));
}
