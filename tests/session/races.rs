//! Prompts and moves that race with turns that application events have started.

use std::time::Duration;

use omni_agent::{
    ErrorKind,
    agent::Agent,
    run::Prompt,
    testing::{ScriptedProvider, Step},
    tree::NodeId,
};

use crate::watch::{Hooks, Watched, in_time, on};

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Returns a session with two roots. Each root begins one turn, and the path leads through the second root. A handler
/// answers each application event with a prompt.
async fn two_roots() -> Watched {
    let provider =
        ScriptedProvider::from_fn(|_| Step::new().then_text(["A"]).wait(Duration::from_millis(1)).stop());
    let hooks = Hooks::new().on_event(|event, _| async move {
        tokio::task::yield_now().await;
        Some(Prompt::new(*event.downcast::<&str>().unwrap()))
    });
    let mut session = Watched::start(on(Agent::builder().model(provider.model()).callbacks(hooks))).await;
    session.ask("Q1").await;
    session.session.run("Q2").below(None).start().await.unwrap();
    session.rest().await;
    session
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Navigate,
    Clear,
    Regenerate,
    Branch,
    Prompt,
}

const ALL: [Act; 5] = [Act::Navigate, Act::Clear, Act::Regenerate, Act::Branch, Act::Prompt];

#[tokio::test(start_paused = true)]
async fn act_raced_with_an_event_that_prompts_both_apply_in_one_order() {
    let mut refused = 0;
    for act in ALL {
        for yields in 0..12 {
            let mut session = two_roots().await;
            let handle = session.session.clone();
            let acting = tokio::spawn(async move {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                match act {
                    Act::Navigate => handle.navigate(node(1)).await,
                    Act::Clear => handle.navigate(None).await,
                    Act::Regenerate => handle.again(node(1)).start().await.map(drop),
                    Act::Branch => handle.run("Edit").below(Some(node(2))).start().await.map(drop),
                    Act::Prompt => handle.prompt("Own").await.map(drop),
                }
            });
            session.session.notify("From the event").await.unwrap();
            let done = in_time(acting).await.unwrap();
            session.rest().await;
            let path = session.path();
            // In every case, the turn that the event started is on the path exactly once.
            let event = ["user: From the event", "assistant: A"];
            assert_eq!(path.iter().filter(|message| *message == event[0]).count(), 1, "{act:?} {path:?}");
            let before = match (act, done.is_ok()) {
                (Act::Navigate, true) => {
                    [&["user: Q1", "assistant: A"][..], &["user: Q2", "assistant: A"]].to_vec()
                }
                (Act::Clear, true) => [&[][..], &["user: Q2", "assistant: A"]].to_vec(),
                (Act::Regenerate, true) => [&["user: Q1", "assistant: A"][..]].to_vec(),
                (Act::Branch, true) => {
                    [&["user: Q1", "assistant: A", "user: Edit", "assistant: A"][..]].to_vec()
                }
                (Act::Prompt, true) => {
                    assert!(path.contains(&"user: Own".to_owned()), "{path:?}");
                    continue;
                }
                (_, false) => [&["user: Q2", "assistant: A"][..]].to_vec(),
            };
            assert!(
                before.iter().any(|before| path == [before, &event[..]].concat()),
                "{act:?} {yields} {path:?}"
            );
            if let Err(error) = done {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "no operation was refused");
}

#[tokio::test(start_paused = true)]
async fn moves_by_many_tasks_are_all_answered() {
    let session = two_roots().await;
    let mut acting = tokio::task::JoinSet::new();
    for index in 0..100_u64 {
        let session = session.session.clone();
        acting.spawn(async move {
            match index % 4 {
                0 => session.navigate(node(1)).await,
                1 => session.navigate(node(3)).await,
                2 => session.again(node(3)).start().await.map(drop),
                _ => session.notify("From the event").await,
            }
        });
    }
    let mut moved = 0;
    while let Some(done) = in_time(acting.join_next()).await {
        match done.unwrap() {
            Ok(()) => moved += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
        }
    }
    assert!(moved >= 25, "{moved}");
    in_time(session.session.wait_until_idle()).await.unwrap();
    // The old subscription has fallen too far behind by now, so the test joins again.
    let mut session = Watched::of(&session.session).await;
    session.rest().await;
    let prompted = session.view.tree.nodes().filter(|node| node.message().text() == "From the event").count();
    assert_eq!(prompted, 25);
}
