//! Prompts of failed runs: the events and a later snapshot report the same end.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    Agent, Session,
    provider::{ProviderError, ProviderErrorKind},
    run::{Next, Prompt},
    session::{Mode, SessionEvent},
    store::MemoryStore,
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
    tree::NodeId,
};

const KEPT: &str = "down. The conversation contains the work that was done before";

fn down() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Auth, "down")
}

async fn session(steps: impl IntoIterator<Item = Step>, gate: &Gate) -> Session {
    let gate = gate.clone();
    let slow = tool_fn("slow", "Waits.", move |_: Value, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok("done")
        }
    });
    let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tool(slow);
    Session::builder(Arc::new(MemoryStore::new())).agent(agent).create().await.unwrap()
}

fn prompt(id: &'static str) -> Prompt {
    Prompt::new(id).with_id(id)
}

fn why(change: Option<RunChange>) -> String {
    match change {
        Some(RunChange::Ended(PromptEnd::Unanswered(why))) => why,
        other => panic!("{other:?}"),
    }
}

/// Runs the prompt `p`, which the prompt `q` joins after a tool's result. The step after it fails. Returns how `p` and
/// `q` ended, according to the events and to a snapshot.
async fn ends_of_joined(failing: Step) -> [[String; 2]; 2] {
    let gate = Gate::new();
    let session = session([Step::tool_use("a", "slow", json!({})), failing], &gate).await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt(prompt("p")).await.unwrap();
    gate.reached().await;
    session.prompt(prompt("q").at(Next::Step)).await.unwrap();
    gate.open();
    session.wait_until_idle().await.unwrap();
    let mut followed = ["p", "q"].map(|id| (FollowedPrompt::new(PromptId::new(id)), None));
    while followed.iter().any(|(_, end)| end.is_none()) {
        let Some(Update::Event(event)) = events.next().await else { panic!("events are missing") };
        let SessionEvent::Agent(event) = &*event.event else { continue };
        for (followed, end) in &mut followed {
            if let Some(change @ RunChange::Ended(_)) = followed.event(event) {
                end.get_or_insert(change);
            }
        }
    }
    let snapshot = session.snapshot().await.unwrap();
    followed.map(|(followed, end)| {
        let later = FollowedPrompt::new(followed.id().clone()).snapshot(&snapshot);
        [why(end), why(later)]
    })
}

#[tokio::test(start_paused = true)]
async fn failure_after_the_answer_to_a_joined_prompt_began_ends_both_prompts() {
    let ends = ends_of_joined(Step::new().then_text(["Half"]).fail(down())).await;
    for end in ends.as_flattened() {
        assert!(end.contains(KEPT), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_before_the_answer_to_a_joined_prompt_names_the_failure() {
    let [first, joined] = ends_of_joined(Step::error(down())).await;
    for end in &first {
        assert!(end.contains(KEPT), "{end}");
    }
    for end in &joined {
        assert!(
            end.starts_with("the run ended, so the prompt was not used: ") && end.ends_with("down"),
            "{end}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failure_on_another_branch_leaves_the_answer() {
    let failing = Step::new().then_text(["Half"]).fail(down());
    let session = session([Step::text("Yes."), failing], &Gate::new()).await;
    session.ask(prompt("p")).await.unwrap();
    let first = session.tree().await.unwrap();
    let node = first.head().unwrap();
    session.run(prompt("q")).instead_of(NodeId::new(1).unwrap()).response().await.unwrap_err();
    session.navigate(node).await.unwrap();
    let change = FollowedPrompt::new(PromptId::new("p")).snapshot(&session.snapshot().await.unwrap());
    let Some(RunChange::Ended(PromptEnd::Answered { message: Some(message), .. })) = change else {
        panic!("{change:?}");
    };
    assert_eq!(message.text(), "Yes.");
}
