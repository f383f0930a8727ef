//! Branching and navigating, and refused moves.

use omni_agent::{
    Error, ErrorKind,
    agent::{Status, ToolDecision},
    run::Prompt,
    session::Session,
    testing::{Gate, Step},
    tool::Decision,
    tree::NodeId,
};
use serde_json::json;

use crate::watch::{Hooks, Watched, answered, held, in_time, on, reached, scripted};

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Returns a session with this tree. The path leads through nodes 5 and 6:
///
/// ```text
/// 1 user: Q1
/// 2 assistant: A1
/// ├─ 3 user: Q2
/// │  4 assistant: A2
/// └─ 5 user: Q3
///    6 assistant: A3
/// ```
async fn forked(after: impl IntoIterator<Item = Step>) -> Watched {
    let steps = ["A1", "A2", "A3"].map(Step::text).into_iter().chain(after);
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    answered(session.session.run("Q3").below(Some(node(2))).start()).await.unwrap();
    session.rest().await;
    session
}

#[tokio::test(start_paused = true)]
async fn branch_below_an_answer_edits_the_next_prompt() {
    let session = forked([]).await;
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Q1
* 2 assistant: A1
  ├─ 3 user: Q2
  │  4 assistant: A2
* └─ 5 user: Q3
>    6 assistant: A3"
    );
}

#[tokio::test(start_paused = true)]
async fn branch_at_the_head_continues_the_path() {
    let mut session = forked([Step::text("A4")]).await;
    answered(session.session.run("Q4").below(Some(node(6))).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path()[2..], ["user: Q3", "assistant: A3", "user: Q4", "assistant: A4"]);
}

#[tokio::test(start_paused = true)]
async fn branch_without_a_base_begins_a_root() {
    let mut session = forked([Step::text("A4")]).await;
    answered(session.session.run("Q4").below(None).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q4", "assistant: A4"]);
    assert_eq!(session.view.tree.roots().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn branch_in_flight_snapshot_ends_at_its_base() {
    let gate = Gate::new();
    let mut session = forked([held(&gate)]).await;
    answered(session.session.run("Q4").below(Some(node(4))).start()).await.unwrap();
    reached(&gate).await;
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(4)));
    assert_eq!(session.view.agent.pending.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn branch_applies_the_options_of_its_prompt() {
    let mut session = forked([Step::tool_use("t", "echo", json!({}))]).await;
    answered(session.session.run(Prompt::new("Q4").with_max_steps(1)).below(Some(node(2))).start())
        .await
        .unwrap();
    session.rest().await;
    assert_eq!(session.path()[2..], ["user: Q4", "assistant: use t", "user: result t"]);
}

#[tokio::test(start_paused = true)]
async fn navigate_ends_at_the_last_active_leaf() {
    let mut session = forked([Step::text("A4")]).await;
    for (to, head) in [(3, 4), (1, 4), (5, 6), (2, 6), (4, 4), (6, 6)] {
        answered(session.session.navigate(node(to))).await.unwrap();
        session.check().await;
        assert_eq!(session.view.tree.head(), Some(node(head)), "after navigating to {to}");
    }
    answered(session.session.navigate(node(3))).await.unwrap();
    session.ask("Q4").await;
    assert_eq!(session.path()[2..], ["user: Q2", "assistant: A2", "user: Q4", "assistant: A4"]);
}

#[tokio::test(start_paused = true)]
async fn navigate_to_the_current_path_does_nothing() {
    let mut session = forked([]).await;
    in_time(session.session.flush(std::time::Duration::from_secs(1))).await.unwrap();
    session.check().await;
    let last = session.view.last;
    for to in [1, 2, 5, 6] {
        answered(session.session.navigate(node(to))).await.unwrap();
    }
    session.check().await;
    assert_eq!(session.view.last, last);
    answered(session.session.navigate(None)).await.unwrap();
    in_time(session.session.flush(std::time::Duration::from_secs(1))).await.unwrap();
    session.check().await;
    let last = session.view.last;
    answered(session.session.navigate(None)).await.unwrap();
    in_time(session.session.flush(std::time::Duration::from_secs(1))).await.unwrap();
    session.check().await;
    assert_eq!(session.view.last, last);
}

#[tokio::test(start_paused = true)]
async fn navigate_none_clears_and_the_next_prompt_is_a_root() {
    let mut session = forked([Step::text("A4")]).await;
    answered(session.session.navigate(None)).await.unwrap();
    session.check().await;
    assert_eq!(session.view.tree.head(), None);
    assert!(session.view.agent.state.history.is_empty());
    session.ask("Q4").await;
    assert_eq!(session.path(), ["user: Q4", "assistant: A4"]);
    assert_eq!(session.view.tree.roots().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn navigate_none_and_cancelled_prompt_stays_cleared() {
    let gate = Gate::new();
    let mut session = forked([held(&gate)]).await;
    answered(session.session.navigate(None)).await.unwrap();
    answered(session.session.prompt("Q4")).await.unwrap();
    reached(&gate).await;
    answered(session.session.cancel()).await.unwrap();
    session.rest().await;
    assert_eq!(session.view.tree.head(), None);
    assert_eq!(session.view.tree.len(), 6);
}

// ---- refused moves ----

async fn refused(session: &Session, what: &str) -> [Error; 3] {
    let to = node(what.parse().unwrap());
    [
        answered(session.again(to).start()).await.unwrap_err(),
        answered(session.run("Q").below(Some(to)).start()).await.unwrap_err(),
        answered(session.navigate(to)).await.unwrap_err(),
    ]
}

#[tokio::test(start_paused = true)]
async fn moves_to_an_unknown_node_are_refused() {
    let mut session = forked([]).await;
    for error in refused(&session.session, "99").await {
        assert_eq!((error.kind(), error.member("node")), (ErrorKind::UnknownNode, Some(&99.into())));
    }
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(6)));
}

#[tokio::test(start_paused = true)]
async fn moves_from_the_wrong_role_are_refused() {
    let mut session = forked([]).await;
    let error = answered(session.session.again(node(2)).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAPrompt, Some(&2.into())));
    let error = answered(session.session.run("Q").below(Some(node(3))).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAnAnswer, Some(&3.into())));
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(6)));
}

#[tokio::test(start_paused = true)]
async fn moves_into_the_middle_of_a_turn_are_refused() {
    let steps = [Step::tool_use("t", "echo", json!({})), Step::text("A1")];
    let mut session = Watched::scripted(steps).await;
    session.ask("Q1").await;
    let error = answered(session.session.again(node(3)).start()).await.unwrap_err();
    assert_eq!(error.to_string(), "node 3 has tool results; give the user message that started the turn");
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAPrompt, Some(&3.into())));
    let error = answered(session.session.run("Q").below(Some(node(3))).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAnAnswer, Some(&3.into())));
    let error = answered(session.session.run("Q").below(Some(node(2))).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::OpenToolUses, Some(&2.into())));
    for to in [2, 3] {
        answered(session.session.navigate(node(to))).await.unwrap();
    }
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(4)), "navigation still ends at a leaf");
}

#[tokio::test(start_paused = true)]
async fn branch_below_open_tool_uses_answers_them_like_a_prompt() {
    let tool = omni_agent::tool::declared_tool::<serde_json::Value>("look", "The application answers.");
    let steps =
        [Step::tool_use("t", "look", json!({}))].into_iter().chain(["A1", "A2", "B1"].map(Step::text));
    let mut session = Watched::start(on(scripted(steps).tool(tool))).await;
    session.ask("Q1").await;
    assert_eq!(session.path(), ["user: Q1", "assistant: use t"]);
    answered(session.session.run("Never mind").below(Some(node(2))).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path()[2..], ["user: result t, Never mind", "assistant: A1"]);
    answered(session.session.run("Not now").below(Some(node(2))).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path()[2..], ["user: result t, Not now", "assistant: A2"]);
    answered(session.session.again(node(1)).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: B1"]);
    answered(session.session.navigate(node(2))).await.unwrap();
    session.check().await;
    assert_eq!(session.view.tree.head(), Some(node(6)));
}

#[tokio::test(start_paused = true)]
async fn branch_with_a_bad_prompt_changes_nothing() {
    let mut session = forked([]).await;
    session.check().await;
    let before = session.view.clone();
    let error = answered(session.session.run("  ").below(Some(node(2))).start()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EmptyPrompt, "{error:?}");
    let error = answered(session.session.run(Prompt::new("Q").with_max_steps(0)).below(None).start())
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    session.check().await;
    assert_eq!(session.view.tree, before.tree);
}

#[tokio::test(start_paused = true)]
async fn moves_while_busy_name_the_status() {
    let gate = Gate::new();
    let mut session = forked([held(&gate)]).await;
    answered(session.session.prompt("Q4")).await.unwrap();
    reached(&gate).await;
    all_busy(&session.session, Status::Busy).await;
    gate.open();
    session.rest().await;
    assert_eq!(session.path().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn moves_while_paused_name_the_status() {
    let mut asked = false;
    let hooks = Hooks::new().on_tool_use(move |_| {
        if std::mem::replace(&mut asked, true) {
            ToolDecision::Execute
        } else {
            ToolDecision::Pause(json!("sure?"))
        }
    });
    let steps = [Step::text("A1"), Step::tool_use("t", "echo", json!({})), Step::text("A2")];
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.again(node(1)).start()).await.unwrap();
    session.until("status(paused)").await;
    session.check().await;
    assert_eq!(session.view.agent.pauses[0].reason, json!("sure?"));
    all_busy(&session.session, Status::Paused).await;
    answered(session.session.resume("t", Decision::Execute)).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: use t", "user: result t", "assistant: A2"]);
}

#[tokio::test(start_paused = true)]
async fn moves_of_a_paused_branch_that_is_cancelled_are_rolled_back() {
    let hooks = Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("sure?")));
    let steps = [Step::text("A1"), Step::tool_use("t", "echo", json!({}))];
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    answered(session.session.run("Q2").below(None).start()).await.unwrap();
    session.until("status(paused)").await;
    answered(session.session.cancel()).await.unwrap();
    session.rest().await;
    assert_eq!(session.view.tree, before);
}

/// Checks that every operation that needs an idle session fails with the given status while the session is busy or
/// paused. This status takes precedence over all other reasons for a failure.
async fn all_busy(session: &Session, status: Status) {
    let errors = [
        answered(session.again(node(1)).start()).await.unwrap_err(),
        answered(session.again(node(99)).start()).await.unwrap_err(),
        answered(session.run("Q").below(Some(node(2))).start()).await.unwrap_err(),
        answered(session.run("Q").below(None).start()).await.unwrap_err(),
        answered(session.navigate(node(1))).await.unwrap_err(),
        answered(session.navigate(None)).await.unwrap_err(),
        answered(session.configure(|_| Ok(()))).await.unwrap_err(),
        answered(session.add_tool(crate::watch::echo())).await.unwrap_err(),
        answered(session.remove_tool("echo")).await.unwrap_err(),
        answered(session.ask("Q")).await.unwrap_err(),
    ];
    for error in errors {
        let text = format!("the session is {status:?}; wait until it is idle, or cancel");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Busy, text));
    }
}

#[tokio::test(start_paused = true)]
async fn edit_adds_a_sibling_of_the_message() {
    let mut session = forked([Step::text("B1"), Step::text("B2")]).await;
    answered(session.session.run("Q2, better").instead_of(node(3)).start()).await.unwrap();
    session.rest().await;
    answered(session.session.run("Q1, better").instead_of(node(1)).start()).await.unwrap();
    session.rest().await;
    let tree = session.session.tree().await.unwrap();
    let parents = |id| tree.node(node(id)).unwrap().parent();
    assert_eq!((parents(7), parents(9)), (Some(node(2)), None), "{tree}");
    assert_eq!(tree.head(), Some(node(10)));
}

#[tokio::test(start_paused = true)]
async fn edit_after_an_interrupted_tool_continues_below_its_results() {
    let gate = Gate::new();
    let steps = [
        Step::tool_use("t1", "echo", json!({})),
        Step::new().gate(&gate).then_text(["never"]),
        Step::text("A2"),
        Step::text("B2"),
    ];
    let mut session = Watched::scripted(steps).await;
    session.session.prompt("Q1").await.unwrap();
    // Waits until the tool results have arrived. The next answer has not arrived yet.
    while session.session.snapshot().await.unwrap().agent.pending.len() < 3 {
        tokio::task::yield_now().await;
    }
    answered(session.session.interrupt()).await.unwrap();
    session.rest().await;
    session.ask("Q2").await;
    let tree = session.session.tree().await.unwrap();
    let results = tree.node(node(4)).unwrap().parent().unwrap();
    assert_eq!(tree.node(results).unwrap().message().tool_results().count(), 1, "{tree}");
    answered(session.session.run("Q2, better").instead_of(node(4)).start()).await.unwrap();
    session.rest().await;
    let tree = session.session.tree().await.unwrap();
    assert_eq!(tree.siblings(node(4)).unwrap().count(), 2, "{tree}");
    assert_eq!(session.session.snapshot().await.unwrap().agent.state.history, *tree.history());
}

#[tokio::test(start_paused = true)]
async fn edit_of_a_node_that_is_not_a_prompt_is_refused() {
    let session = forked([]).await;
    let error = answered(session.session.run("Q").instead_of(node(2)).start()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAPrompt, Some(&2.into())));
    let unknown = answered(session.session.run("Q").instead_of(node(99)).start()).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::UnknownNode);
}
