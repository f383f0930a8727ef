//! Turns that two owners continue at the same time, in stores without leases. One of the owners loses the conversation.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    agent::{Agent, Durable, Status},
    manager::{DecisionPlace, Manager, Sweep},
    session::{Session, SessionBuilder},
    store::{Filter, Page, Store},
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::stores::{Place, id, stores};

/// The calls of the tool `send` by all owners. A call ends when the gate is opened.
#[derive(Clone, Default)]
struct Calls {
    begun: Arc<AtomicUsize>,
    gate: Gate,
}

impl Calls {
    /// Returns a builder of a session whose model uses the tool `send` once. The model's answer to the result never
    /// ends.
    fn session(&self, store: &Arc<dyn Store>) -> SessionBuilder {
        let provider = ScriptedProvider::from_fn(|request| {
            match request.history.last().and_then(|last| last.tool_results().next()) {
                Some(_) => Step::text("Sent.").hang(),
                None => Step::tool_use("call-1", "send", json!({})),
            }
        });
        let calls = self.clone();
        let send = tool_fn("send", "Sends.", move |_: Value, _: ToolContext| {
            let Calls { begun, gate } = calls.clone();
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                gate.pass().await;
                Ok("sent")
            }
        });
        let agent = Agent::builder().model(provider.model()).tool(send.with_replay(Replay::Never));
        Session::builder(Arc::clone(store)).agent(agent.needs_approval("send")).durable(Durable::InFlight)
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

/// Waits until the session has this status.
async fn until(session: &Session, status: Status) {
    while session.status().await.unwrap() != status {
        tokio::task::yield_now().await;
    }
}

/// Returns a new session of the conversation `a` that waits for a decision.
async fn paused(store: &Arc<dyn Store>, calls: &Calls) -> Session {
    let session = calls.session(store).create_with_id(id("a")).await.unwrap();
    session.prompt("Send it.").await.unwrap();
    until(&session, Status::Paused).await;
    session
}

/// Returns new stores without leases.
async fn without_leases() -> Vec<Place> {
    let mut places = stores().await;
    places.truncate(2);
    places
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_in_two_sessions_of_one_turn_the_later_loses_the_conversation() {
    for place in without_leases().await {
        let calls = Calls::default();
        let first = paused(&place.store, &calls).await;
        let second = calls.session(&place.store).open(id("a")).await.unwrap();
        until(&second, Status::Paused).await;
        first.resume("call-1", Decision::Execute).await.unwrap();
        calls.gate.reached().await;
        assert!(second.resume("call-1", Decision::Execute).await.is_err());
        assert_eq!(second.ended().await.reason, EndReason::LostPlace);
        assert_eq!(calls.begun(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_that_another_session_continues_is_lost_at_the_next_record() {
    for place in without_leases().await {
        let calls = Calls::default();
        let first = paused(&place.store, &calls).await;
        first.resume("call-1", Decision::Execute).await.unwrap();
        calls.gate.reached().await;
        let second = calls.session(&place.store).open(id("a")).await.unwrap();
        calls.gate.open();
        assert_eq!(first.ended().await.reason, EndReason::LostPlace);
        assert!(second.end().is_none());
        assert_eq!(calls.begun(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_of_a_manager_is_not_overwritten_by_a_session_of_the_turn() {
    for place in without_leases().await {
        let calls = Calls::default();
        let session = paused(&place.store, &calls).await;
        let manager = Manager::builder(Arc::clone(&place.store)).sweep(Sweep::off()).build();
        let approval =
            manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap().remove(0);
        let decided = manager.decide(&approval.id, Decision::Execute, None).await.unwrap();
        assert_eq!(decided, DecisionPlace::InStore);
        assert!(session.resume("call-1", Decision::reject("No")).await.is_err());
        assert_eq!(session.ended().await.reason, EndReason::LostPlace);

        let _session = calls.session(&place.store).open(id("a")).await.unwrap();
        calls.gate.reached().await;
        assert_eq!(calls.begun(), 1);
    }
}
