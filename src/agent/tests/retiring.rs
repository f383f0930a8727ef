//! The owner of an agent's history ends the agent when it is idle.

use crate::{
    agent::{AgentBuilder, HistoryChangeRight},
    run::ErrorKind,
    testing::{Gate, Step},
};

use super::{
    hooks::{Watched, reached},
    rig::answered,
    support::scripted,
};

async fn retirable(builder: AgentBuilder) -> (Watched, HistoryChangeRight) {
    let (agent, owner) = builder.start_owned().await.unwrap();
    (Watched::of(agent).await, owner)
}

#[tokio::test(start_paused = true)]
async fn retire_ends_an_idle_agent() {
    let (agent, owner) = retirable(scripted([]).1).await;
    assert!(answered(owner.retire(None)).await.unwrap());
    let error = answered(agent.agent.status()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"idle".into())), "{error:?}");
    let error = answered(owner.retire(None)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"idle".into())), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn retire_after_newer_events_is_refused() {
    let (mut agent, owner) = retirable(scripted([Step::text("Hello!")]).1).await;
    let seen = owner.position().await.unwrap().last;
    agent.run("Hi").await;
    assert!(!answered(owner.retire(Some(seen))).await.unwrap());
    let seen = owner.position().await.unwrap().last;
    assert!(answered(owner.retire(Some(seen))).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn retire_while_a_run_is_active_is_refused() {
    let gate = Gate::new();
    let (mut agent, owner) =
        retirable(scripted([Step::new().gate(&gate).then_text(["Hello!"]).stop()]).1).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    assert!(!answered(owner.retire(None)).await.unwrap());
    gate.open();
    agent.end().await;
    assert!(answered(owner.retire(None)).await.unwrap());
}
