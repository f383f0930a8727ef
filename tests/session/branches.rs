//! Branches in the store. The first commit stores a branch as a whole. Before this commit, nothing of the branch is
//! stored.

use omni_agent::{
    ErrorKind,
    run::Prompt,
    session::Session,
    store::custom::Change,
    testing::{Gate, Step},
    tree::Node,
};
use serde_json::{Value, json};

use crate::support::{
    Act, ScriptedStore, Tried, assert_agree, created, failing, held, id, node, scripted, secs,
};

/// Returns a session with two saved turns, which consist of nodes 1 to 4.
async fn two_turns(store: &ScriptedStore, steps: impl IntoIterator<Item = Step>) -> Session {
    let steps = [Step::text("Yes."), Step::text("No.")].into_iter().chain(steps);
    let session = created(store, "talk", scripted(steps)).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    session
}

#[tokio::test(start_paused = true)]
async fn regenerate_stores_nothing_before_its_first_commit_and_then_everything() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session = two_turns(&store, [held(&gate, "Perhaps.")]).await;
    let (before, writes) = (store.tree(session.id()).await, store.tried().len());
    session.again(node(1)).start().await.unwrap();
    gate.reached().await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tried().len(), writes);
    assert_eq!(session.tree().await.unwrap().head(), None);
    // If a title is set during the run, it is saved without the branch.
    session.set_title(Some("Talk")).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tree(session.id()).await, before);

    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
    let tried = store.tried();
    let Change::Commit(commit) = &tried.last().unwrap().what.1 else { panic!() };
    assert_eq!(commit.head, Some(node(5)));
    assert_eq!(commit.nodes.len(), 1);
    assert_eq!(commit.cursors, [(node(1), node(5))]);
}

#[tokio::test(start_paused = true)]
async fn branch_in_flight_earlier_slow_turns_are_stored_without_it() {
    let (gate, write) = (Gate::new(), Gate::new());
    let store = ScriptedStore::new([Act::Wait(write.clone())]);
    let steps = [Step::text("Yes."), Step::text("No."), held(&gate, "Perhaps.")];
    let session = created(&store, "talk", scripted(steps)).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.run("Three").below(Some(node(2))).start().await.unwrap();
    gate.reached().await;
    // Both earlier turns are saved while the run on the branch continues.
    write.open();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tree(session.id()).await.head(), Some(node(4)));
    assert_eq!(session.tree().await.unwrap().head(), Some(node(2)));
    assert_eq!(session.snapshot().await.unwrap().unsaved, []);
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
    assert_eq!(store.tree(session.id()).await.head(), Some(node(6)));
}

#[tokio::test(start_paused = true)]
async fn branch_cancelled_or_failed_leaves_the_stored_path_unchanged() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let steps = [held(&gate, ""), held(&gate, ""), held(&gate, ""), failing(), failing(), held(&gate, "")];
    let session = two_turns(&store, steps).await;
    let (before, writes) = (session.tree().await.unwrap(), store.tried().len());
    for base in [Some(node(2)), Some(node(4)), None] {
        session.run("Three").below(base).start().await.unwrap();
        gate.reached().await;
        session.cancel().await.unwrap();
        session.wait_until_idle().await.unwrap();
        assert_eq!(session.tree().await.unwrap(), before);
    }
    session.run("Three").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    let failed = session.tree().await.unwrap();
    assert_eq!((failed.head(), failed.history()), (before.head(), before.history()));
    assert_eq!(failed.unanswered(Some(node(2))).map(|node| node.id().get()).collect::<Vec<_>>(), [5]);
    session.again(node(3)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.again(node(1)).start().await.unwrap();
    gate.reached().await;
    // No part of the answer has arrived yet, so the interruption has nothing to keep.
    session.interrupt().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
    assert_eq!(session.tree().await.unwrap(), failed);
    // The later writes record how the runs ended, and one of them has the prompt of the failed run.
    let written: Vec<u64> = store.tried()[writes..].iter().flat_map(Tried::nodes).collect();
    assert_eq!(written, [5]);
}

#[tokio::test(start_paused = true)]
async fn branch_committed_then_cancelled_in_its_second_turn_is_kept() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session = two_turns(&store, [held(&gate, "Perhaps."), held(&gate, "Never.")]).await;
    session.again(node(3)).start().await.unwrap();
    gate.reached().await;
    session.prompt("And then?").await.unwrap();
    gate.open();
    gate.reached().await;
    session.cancel().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
    let tree = store.tree(session.id()).await;
    assert_eq!((tree.len(), tree.head()), (5, Some(node(5))));
}

#[tokio::test(start_paused = true)]
async fn regenerate_interrupted_with_text_keeps_the_part_under_the_same_user_node() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let partial = Step::new().then_text(["Perh"]).gate(&gate).stop();
    let session = two_turns(&store, [partial]).await;
    session.again(node(3)).start().await.unwrap();
    gate.reached().await;
    session.interrupt().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
    let tree = store.tree(session.id()).await;
    let part = tree.node(node(5)).unwrap();
    assert_eq!((part.parent(), part.message().text()), (Some(node(3)), "Perh".into()));
}

#[tokio::test(start_paused = true)]
async fn failing_store_with_branches_finally_stores_the_whole_tree() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session =
        two_turns(&store, [Step::text("Three."), failing(), held(&gate, ""), Step::text("Four.")]).await;
    store.otherwise(|| Act::Fail);
    session.navigate(None).await.unwrap();
    session.again(node(1)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.again(node(1)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.run("Other").below(None).start().await.unwrap();
    gate.reached().await;
    session.cancel().await.unwrap();
    session.navigate(node(2)).await.unwrap();
    session.navigate(node(5)).await.unwrap();
    session.run("More").below(Some(node(4))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    let error = session.flush(secs(5)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&3.into())));
    store.otherwise(|| Act::Work);
    assert_agree(&session, &store).await;
    assert_eq!(session.tree().await.unwrap().head(), Some(node(7)));
}

#[tokio::test(start_paused = true)]
async fn turn_of_several_steps_is_stored_in_one_commit() {
    let store = ScriptedStore::new([]);
    let steps = [Step::tool_use("t1", "look", json!({})), Step::text("Nothing there.")];
    let look = omni_agent::tool::tool_fn("look", "Looks.", |_: Value, _| async { Ok("nothing") });
    let session = created(&store, "talk", scripted(steps).tool(look)).await;
    session.ask("Look").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let nodes: Vec<_> = store.tried().iter().map(Tried::nodes).collect();
    assert_eq!(nodes, [[1, 2, 3, 4]]);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn heads_in_the_store_are_never_unanswered_prompts() {
    let store = ScriptedStore::new([]);
    store.otherwise({
        let mut turn = 0;
        move || {
            turn += 1;
            if turn % 3 == 0 {
                Act::Fail
            } else {
                Act::Slow(std::time::Duration::from_millis(turn * 37 % 90))
            }
        }
    });
    let slow = omni_agent::testing::ScriptedProvider::from_fn(|request| {
        let text = request.history.last().unwrap().text();
        Step::new().wait(std::time::Duration::from_millis(20)).then_text([text]).stop()
    });
    let agent = omni_agent::agent::Agent::builder().model(slow.model());
    let session = Session::builder(store.as_dyn()).agent(agent).create_with_id(id("talk")).await.unwrap();
    session.ask("One").await.unwrap();
    for round in 0..20_u64 {
        let users: Vec<_> = session
            .tree()
            .await
            .unwrap()
            .nodes()
            .filter(|node| node.usage().is_none())
            .map(Node::id)
            .collect();
        let user = users[usize::try_from(round).unwrap() * 7 % users.len()];
        session.again(user).start().await.unwrap();
        session.set_title(Some(&format!("Title {round}"))).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(round * 3 % 30)).await;
        let _ = match round % 4 {
            0 => session.cancel().await,
            1 => session.interrupt().await,
            2 => session.prompt("Staged").await.map(drop),
            _ => Ok(()),
        };
        session.set_title(Some(&format!("Title {round} again"))).await.unwrap();
        session.wait_until_idle().await.unwrap();
        if round % 5 == 0 {
            session.flush(secs(60)).await.unwrap();
        }
    }
    assert_agree(&session, &store).await;
    assert!(session.tree().await.unwrap().len() > 10);
    assert!(store.tried().len() > 10);
}

#[tokio::test(start_paused = true)]
async fn edit_and_branch_with_a_known_id_are_refused_and_change_nothing() {
    let store = ScriptedStore::new([]);
    let session = two_turns(&store, [Step::text("Perhaps.")]).await;
    let known = |text: &str| Prompt::new(text).with_id("p1");
    session.ask(known("Three")).await.unwrap();
    let before = session.tree().await.unwrap();
    let edited = session.run(known("Other")).instead_of(node(1)).start().await.unwrap_err();
    let branched = session.run(known("Other")).below(Some(node(2))).start().await.unwrap_err();
    for refused in [edited, branched] {
        assert_eq!(refused.kind(), ErrorKind::KnownPrompt, "{refused:?}");
    }
    assert_eq!(session.tree().await.unwrap(), before);
}
