//! Prompts of runs that failed and kept nothing: they stay in the tree as leaves, and can be sent again.

use std::sync::Arc;

use omni_agent::{
    ErrorKind,
    agent::AgentBuilder,
    message::{Attachment, Blocks, Content, ToolResult, ToolUse},
    provider::{Options, ProviderError, ProviderErrorKind},
    run::{Prompt, RunOutcome},
    session::{Mode, Session, SessionEvent},
    store::{MemoryStore, Store},
    subscription::Update,
    testing::{ScriptedProvider, Step},
    tool::declared_tool,
    tree::{Node, NodeId},
};
use serde_json::json;

use crate::{
    support::{node, secs, tree_in},
    watch::{Watched, brief, in_time, on, scripted},
};

fn down() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::Auth, "down"))
}

fn ids<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<u64> {
    nodes.map(|node| node.id().get()).collect()
}

/// Sends a prompt whose run fails.
async fn fail(session: &mut Watched, prompt: impl Into<Prompt>) {
    let error = in_time(session.session.ask(prompt)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    session.check().await;
}

/// Returns the parent and the text of each unanswered prompt, as the view has them.
fn leaves(session: &Watched) -> Vec<(Option<u64>, String)> {
    let tree = &session.view.tree;
    let parents = [None].into_iter().chain(tree.nodes().map(|node| Some(node.id())));
    let leaves = parents.flat_map(|parent| tree.unanswered(parent));
    leaves.map(|node| (node.parent().map(NodeId::get), brief(node.message()))).collect()
}

fn leaf(parent: u64, text: &str) -> (Option<u64>, String) {
    (Some(parent).filter(|parent| *parent > 0), format!("user: {text}"))
}

#[tokio::test(start_paused = true)]
async fn failed_prompts_in_a_row_survive_a_reload_and_are_each_answered_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let steps = [Step::text("A1"), down(), down()];
    let mut session = Watched::start(Session::builder(Arc::clone(&store)).agent(scripted(steps))).await;
    session.ask("Q1").await;
    let file = Attachment::base64("image/png", "aGk=").named("s.png");
    fail(&mut session, Prompt::new(Blocks(vec!["Q2".into(), file.into()])).with_id("q2")).await;
    fail(&mut session, Prompt::new("Q3").with_id("q3")).await;
    let path = session.path();
    assert_eq!((path.len(), session.view.tree.head()), (2, Some(node(2))));
    let (newest, failure) = session.view.unanswered().unwrap();
    assert!(newest.message().text() == "Q3" && failure.unwrap().to_string().contains("down"));
    in_time(session.session.stop(secs(5))).await.unwrap();

    let id = session.session.id().clone();
    let provider = ScriptedProvider::new([Step::text("A3"), Step::text("A2"), Step::text("A4")]);
    let agent = AgentBuilder::default().model(provider.model());
    let opened = Session::builder(Arc::clone(&store)).agent(agent).open(id.clone()).await.unwrap();
    let mut opened = Watched::of(&opened).await;
    assert_eq!((opened.path(), ids(opened.view.tree.unanswered(Some(node(2))))), (path, vec![3, 4]));
    assert!(opened.view.unanswered().unwrap().1.is_some(), "the end of the run is stored with its prompt");
    in_time(opened.session.again(node(4)).response()).await.unwrap();
    opened.check().await;
    assert_eq!(
        (opened.view.tree.len(), &opened.path()[2..]),
        (5, &["user: Q3".into(), "assistant: A3".into()][..])
    );
    assert!(opened.view.unanswered().is_none());
    in_time(opened.session.again(node(3)).response()).await.unwrap();
    opened.check().await;
    let sent = provider.last_request().unwrap().history;
    let has_file = |content: &Content| matches!(content, Content::Attachment(_));
    assert!(sent.len() == 3 && sent.last().unwrap().content.iter().any(has_file));
    assert_eq!((opened.view.tree.len(), leaves(&opened)), (6, vec![]));
    opened.ask("Q4").await;
    in_time(opened.session.flush(secs(5))).await.unwrap();
    assert_eq!(tree_in(&*store, &id).await, opened.view.tree);
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_stays_below_the_node_below_which_it_was_sent() {
    let steps = [Step::text("A1"), Step::text("A2"), down(), down(), down(), down(), Step::text("A3")];
    let mut session = Watched::start(on(scripted(steps))).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    let path = session.path();
    let inner = session.session.clone();
    in_time(inner.run("edited").instead_of(node(3)).response()).await.unwrap_err();
    in_time(inner.run("below").below(Some(node(2))).response()).await.unwrap_err();
    in_time(inner.run("root").below(None).response()).await.unwrap_err();
    session.check().await;
    assert_eq!(leaves(&session), [leaf(0, "root"), leaf(2, "edited"), leaf(2, "below")]);
    in_time(inner.again(node(3)).response()).await.unwrap_err();
    session.check().await;
    assert_eq!((session.view.tree.len(), session.path()), (7, path), "the prompt was in the tree already");
    // The path never leads to a leaf, so a move to the node above ends at the answer that was active last.
    in_time(inner.navigate(node(1))).await.unwrap();
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(4)));
    session.ask("Q3").await;
    assert_eq!(session.path()[4..], ["user: Q3", "assistant: A3"]);
}

#[tokio::test(start_paused = true)]
async fn unanswered_prompt_never_ends_a_path_and_can_be_erased() {
    let mut session = Watched::start(on(scripted([Step::text("A1"), down(), Step::text("A2")]))).await;
    session.ask("Q1").await;
    fail(&mut session, "Q2").await;
    let error = in_time(session.session.navigate(node(3))).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::Unanswered, Some(&3.into())));
    let error = in_time(session.session.run("Q").below(Some(node(3))).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAnAnswer, Some(&3.into())));
    in_time(session.session.erase(node(3))).await.unwrap();
    session.check().await;
    assert_eq!((session.view.tree.len(), session.view.tree.head()), (2, Some(node(2))));
    session.ask("Q3").await;
    assert_eq!(session.path()[2..], ["user: Q3", "assistant: A2"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_leaves_no_prompt() {
    let mut session = Watched::start(on(scripted([Step::text("A1"), Step::text("A2").hang()]))).await;
    session.ask("Q1").await;
    session.session.prompt("Q2").await.unwrap();
    in_time(session.session.cancel()).await.unwrap();
    session.check().await;
    assert_eq!((session.view.tree.len(), session.view.unanswered().is_none()), (2, true));
    let last = session.view.agent.last_run.as_ref().unwrap();
    assert_eq!((&last.outcome, last.unanswered.len()), (&RunOutcome::Cancelled, 1));
}

#[tokio::test(start_paused = true)]
async fn more_failed_prompts_than_the_limit_are_in_the_last_run_only() {
    let mut session = Watched::start(on(scripted((0..19).map(|_| down())))).await;
    for number in 0..18 {
        fail(&mut session, format!("Q{number}")).await;
    }
    assert_eq!((session.view.tree.len(), session.view.tree.unanswered(None).count()), (16, 16));
    let last = session.view.agent.last_run.as_ref().unwrap();
    assert_eq!(last.unanswered[0].text(), "Q17");
    assert!(session.view.unanswered().unwrap().1.is_none(), "the failure is that of another prompt");
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_below_open_tool_uses_leaves_them_open() {
    let provider = ScriptedProvider::new([
        Step::tool_use("a", "ask_user", json!({})),
        down(),
        down(),
        Step::text("Fine."),
        Step::text("Good."),
    ]);
    let ask_user = declared_tool::<serde_json::Value>("ask_user", "The application answers.");
    let mut session =
        Watched::start(on(AgentBuilder::default().model(provider.model()).tool(ask_user))).await;
    session.ask("Go").await;
    let result = |text: &str| {
        Prompt::new(Blocks(vec![ToolResult::ok(&ToolUse::new("a", "ask_user", json!({})), text).into()]))
    };
    fail(&mut session, result("no")).await;
    fail(&mut session, result("yes")).await;
    assert_eq!((session.path().len(), ids(session.view.tree.unanswered(Some(node(2))))), (2, vec![3, 4]));
    let error = in_time(session.session.navigate(node(4))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unanswered);
    in_time(session.session.again(node(4)).response()).await.unwrap();
    session.check().await;
    assert_eq!(session.path()[2..], ["user: result a", "assistant: Fine."]);
    let results = |index: usize| {
        provider.requests()[index].history.last().unwrap().tool_results().next().unwrap().text()
    };
    assert_eq!(results(3), "yes");
    in_time(session.session.run(result("maybe")).below(Some(node(2))).response()).await.unwrap();
    session.check().await;
    assert_eq!((results(4), leaves(&session)), ("maybe".to_owned(), vec![leaf(2, "result a")]));
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_that_is_sent_again_keeps_its_settings() {
    let provider = ScriptedProvider::new([down(), down(), Step::text("A1")]);
    let mut session = Watched::start(on(AgentBuilder::default().model(provider.model()))).await;
    fail(&mut session, Prompt::new("Q1").with_options(Options::default().with_max_tokens(100))).await;
    in_time(session.session.again(node(1)).response()).await.unwrap_err();
    in_time(session.session.again(node(1)).response()).await.unwrap();
    let sent: Vec<_> = provider.requests().iter().map(|request| request.options.max_tokens()).collect();
    assert_eq!(sent, [Some(100); 3]);
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_reaches_the_reader_of_a_tail_without_a_new_tail() {
    let mut session = Watched::start(on(scripted([Step::text("A1"), Step::text("A2"), down()]))).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    let mut tail = session.session.subscribe_tail(Mode::Observer, 2).await.unwrap();
    let mut view = tail.snapshot().unwrap().as_ref().clone();
    fail(&mut session, "Q3").await;
    loop {
        let update = in_time(tail.next()).await.unwrap();
        let Update::Event(event) = &update else { panic!("{update:?}") };
        view.apply(event).unwrap();
        if matches!(&*event.event, SessionEvent::Tree(_)) {
            break;
        }
    }
    assert_eq!(ids(view.tree.unanswered(Some(node(4)))), [5]);
    let fresh = session.session.subscribe_tail(Mode::Observer, 2).await.unwrap();
    assert_eq!(fresh.snapshot().unwrap().tree, view.tree);
}
