//! Turns of managers that end in different ways, continued by other managers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use omni_agent::{
    agent::{Agent, CompactionPolicy, Durable, Status},
    manager::{Approval, DecisionPlace, Manager, ManagerBuilder, OpenOptions, Sweep},
    message::Usage,
    provider::ModelInfo,
    session::Session,
    store::{Filter, Listing, MemoryStore, Owner, Page, Store, custom::Turns},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    lives::in_a_life,
    stores::{id, stores},
};

/// An agent that uses the tool `send` once, after an approval, and then answers. Any number of agents can be built from
/// its options, and they share one counter.
#[derive(Clone, Default)]
struct Sender {
    sent: Arc<AtomicUsize>,
}

impl Sender {
    fn options(&self) -> OpenOptions {
        let provider = ScriptedProvider::from_fn(|request| {
            let last = request.history.last();
            let result = last.and_then(|message| message.tool_results().next().cloned());
            match result {
                Some(result) => Step::text(format!("It says: {}", result.text())),
                None => Step::tool_use("call-1", "send", json!({ "to": "ann" })),
            }
        });
        let sent = Arc::clone(&self.sent);
        let tool = tool_fn("send", "Sends.", move |_: Value, _: ToolContext| {
            let number = sent.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(format!("sent {number}")) }
        });
        let agent = Agent::builder().model(provider.model()).tool(tool.with_replay(Replay::Never));
        OpenOptions::new(agent.needs_approval("send")).durable(Durable::InFlight).subscribe(None)
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

/// Returns a builder of a manager that always has the same owner's name. So a manager can take over the conversations
/// of an earlier one before their leases expire.
fn manager(store: &Arc<dyn Store>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).owner(Owner::new("worker")).sweep(Sweep::off())
}

async fn pending(manager: &Manager) -> Vec<Approval> {
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap()
}

/// Starts a turn in the conversation `a`, and waits until its approval is listed.
async fn paused(manager: &Manager, sender: &Sender) -> Approval {
    let opened = manager.create_with_id(&id("a"), sender.options()).await.unwrap();
    opened.session.prompt("Send it.").await.unwrap();
    loop {
        if let Some(approval) = pending(manager).await.pop() {
            return approval;
        }
        tokio::task::yield_now().await;
    }
}

async fn last_text(session: &Session) -> String {
    session.wait_until_idle().await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_of_a_process_that_died_is_decided_and_the_turn_finishes() {
    for place in stores().await {
        let (store, sender) = (Arc::clone(&place.store), Sender::default());
        let (first, of_first) = (Arc::clone(&store), sender.clone());
        let approval = in_a_life(async move {
            let manager = manager(&first).build();
            let approval = paused(&manager, &of_first).await;
            // The manager is never dropped, because a process that dies runs no destructors.
            std::mem::forget(manager);
            approval
        });
        assert_eq!((approval.pending.tool_use.name.as_str(), sender.sent()), ("send", 0));

        // Another process decides. It has no starter, so it cannot open the conversation.
        let other = manager(&store).build();
        let decided = other.decide(&approval.id, Decision::Execute, Some("ann")).await.unwrap();
        assert_eq!(decided, DecisionPlace::InStore);
        assert!(pending(&other).await.is_empty() && other.list_open().is_empty());

        let of_worker = sender.clone();
        let worker = manager(&store).starter(move |_| Some(of_worker.options())).build();
        assert_eq!(worker.recover().await.unwrap().opened, [id("a")]);
        let session = worker.get(&id("a")).unwrap();
        assert_eq!(last_text(&session).await, "It says: sent 1");
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
        assert_eq!(sender.sent(), 1);
        let left = store.turns(Turns::All, &Listing::default()).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn decision_after_a_process_has_died_waits_for_the_end_of_its_lease() {
    let place = crate::stores::sqlite_with_leases(Duration::from_millis(1500)).await;
    let sender = Sender::default();
    let (store, of_first) = (Arc::clone(&place.store), sender.clone());
    let approval = in_a_life(async move {
        let manager = manager(&store).owner(Owner::new("dead")).build();
        let approval = paused(&manager, &of_first).await;
        std::mem::forget(manager);
        approval
    });
    // The thread that renews leases survives the life, so another lease stands for that of the dead process.
    while place.store.acquire(&id("a"), &Owner::new("killed")).await.is_err() {
        tokio::task::yield_now().await;
    }
    let other = manager(&place.store).owner(Owner::new("other")).build();
    let decided = other.decide(&approval.id, Decision::Execute, Some("ann")).await.unwrap();
    assert_eq!(decided, DecisionPlace::InStore);
}

#[tokio::test(flavor = "multi_thread")]
async fn recover_opens_as_many_turns_as_requests_are_free() {
    const TURNS: usize = 24;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let hanging = || {
        let provider = ScriptedProvider::from_fn(|_| Step::new().hang());
        OpenOptions::new(Agent::builder().model(provider.model())).durable(Durable::InFlight).subscribe(None)
    };
    let first = Arc::clone(&store);
    in_a_life(async move {
        let manager = manager(&first).build();
        for number in 0..TURNS {
            let opened = manager.create_with_id(&id(&number.to_string()), hanging()).await.unwrap();
            opened.session.prompt("Go").await.unwrap();
        }
        std::mem::forget(manager);
    });
    let worker = manager(&store).max_turns(TURNS - 1).starter(move |_| Some(hanging())).build();
    assert_eq!(worker.recover().await.unwrap().opened.len(), TURNS - 1);
}

/// The names of the deciders in the session's snapshot.
async fn deciders(session: &Session) -> Vec<String> {
    let snapshot = session.snapshot().await.unwrap();
    snapshot.agent.decisions.iter().map(|(_, own)| own.by.as_deref().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_that_was_killed_in_an_approved_tool_still_names_the_decider() {
    for place in stores().await {
        let (before, after) = (Gate::new(), Gate::new());
        let options = |gate: &Gate| {
            let provider = ScriptedProvider::from_fn(|request| {
                let is_done = request.history.last().is_some_and(|last| last.tool_results().next().is_some());
                if is_done { Step::text("Done.") } else { Step::tool_use("call-1", "wait", json!({})) }
            });
            let gate = gate.clone();
            let wait = tool_fn("wait", "Waits.", move |_: Value, _: ToolContext| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok("over")
                }
            });
            let agent = Agent::builder().model(provider.model()).tool(wait.with_replay(Replay::Safe));
            OpenOptions::new(agent.needs_approval("wait")).durable(Durable::Approvals).subscribe(None)
        };
        let (store, of_first) = (Arc::clone(&place.store), options(&before));
        in_a_life(async move {
            let manager = manager(&store).build();
            let opened = manager.create_with_id(&id("a"), of_first).await.unwrap();
            opened.session.prompt("Wait.").await.unwrap();
            while opened.session.status().await.unwrap() != Status::Paused {
                tokio::task::yield_now().await;
            }
            let approval = pending(&manager).await.pop().unwrap();
            manager.decide(&approval.id, Decision::Execute, Some("ann")).await.unwrap();
            before.reached().await;
            assert_eq!(deciders(&opened.session).await, ["ann"]);
            // The manager is never dropped, because a process that dies runs no destructors.
            std::mem::forget((manager, opened));
        });

        // The lease of the killed process is released by another thread.
        let filter = Filter::default();
        while place.store.turns(Turns::Left, &filter.clone().into()).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let of_starter = after.clone();
        let worker = manager(&place.store).starter(move |_| Some(options(&of_starter))).build();
        assert_eq!(worker.recover().await.unwrap().opened, [id("a")]);
        after.reached().await;
        let session = worker.get(&id("a")).unwrap();
        assert_eq!(deciders(&session).await, ["ann"]);
        after.open();
        session.wait_until_idle().await.unwrap();
        assert!(deciders(&session).await.is_empty());
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn decision_in_an_open_session_continues_its_turn() {
    let (store, sender): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::new()), Sender::default());
    let manager = manager(&store).build();
    let approval = paused(&manager, &sender).await;
    let decided = manager.decide(&approval.id, Decision::Execute, Some("ann")).await.unwrap();
    assert_eq!(decided, DecisionPlace::InSession);
    assert_eq!(last_text(&manager.get(&id("a")).unwrap()).await, "It says: sent 1");
    assert!(manager.decide(&approval.id, Decision::Execute, None).await.unwrap_err().is_conflict());
}

#[tokio::test(start_paused = true)]
async fn paused_session_makes_room_and_its_approval_waits_in_the_store() {
    let (store, sender): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::new()), Sender::default());
    let of_starter = sender.clone();
    let manager = manager(&store).max_open(1).starter(move |_| Some(of_starter.options())).build();
    let approval = paused(&manager, &sender).await;
    let opened = manager.create_with_id(&id("b"), sender.options()).await.unwrap();
    assert_eq!(manager.list_open().len(), 1, "the paused session has ended");
    assert_eq!(pending(&manager).await, std::slice::from_ref(&approval));
    drop(opened);
    let decided = manager.decide(&approval.id, Decision::Execute, None).await.unwrap();
    assert_eq!(decided, DecisionPlace::InStore);
    let session = loop {
        match manager.get(&id("a")) {
            Some(session) => break session,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert_eq!(last_text(&session).await, "It says: sent 1");
}

#[tokio::test(start_paused = true)]
async fn hand_over_leaves_the_turn_to_the_next_manager() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let gate = Gate::new();
    let options = |gate: &Gate| {
        let gate = gate.clone();
        let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Half"]).gate(&gate).stop());
        OpenOptions::new(Agent::builder().model(provider.model())).durable(Durable::InFlight).subscribe(None)
    };
    let first = manager(&store).build();
    let session = first.create_with_id(&id("a"), options(&gate)).await.unwrap().session;
    session.prompt("Hello").await.unwrap();
    first.hand_over(Duration::from_secs(10)).await.unwrap();
    assert!(first.list_open().is_empty());
    let left = store.turns(Turns::Left, &Listing::default()).await.unwrap();
    assert_eq!((left.len(), left[0].orderly, left[0].lives), (1, true, 0));

    gate.open();
    let second = manager(&store).starter(move |_| Some(options(&gate))).build();
    assert_eq!(second.recover().await.unwrap().opened, [id("a")]);
    assert_eq!(last_text(&second.get(&id("a")).unwrap()).await, "Half");
}

#[tokio::test(start_paused = true)]
async fn hand_over_during_a_compaction_keeps_the_answer_and_leaves_the_staged_prompt() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let gate = Gate::new();
    let options = |gate: &Gate| {
        let gate = gate.clone();
        let provider = ScriptedProvider::from_fn(move |request| {
            let asked = request.history.last().map(|message| message.text()).unwrap_or_default();
            if asked.len() > 2 {
                return Step::new().then_text(["Summary"]).gate(&gate).stop();
            }
            let usage = Usage::default().with_input(if asked == "Q2" { 900 } else { 300 });
            Step::new().usage(usage).then_text([format!("To {asked}")]).stop()
        });
        let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
        let agent = Agent::builder().model(provider.model().with_info(info));
        let policy = CompactionPolicy::default().with_kept_turns(1);
        OpenOptions::new(agent.compaction(policy)).durable(Durable::InFlight).subscribe(None)
    };
    let first = manager(&store).build();
    let session = first.create_with_id(&id("a"), options(&gate)).await.unwrap().session;
    session.prompt("Q1").await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.prompt("Q2").await.unwrap();
    gate.reached().await;
    session.prompt("Q3").await.unwrap();
    first.hand_over(Duration::from_secs(10)).await.unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(stored.nodes.len(), 4, "the answer is stored, and no summary");

    gate.open();
    let second = manager(&store).starter(move |_| Some(options(&gate))).build();
    assert_eq!(second.recover().await.unwrap().opened, [id("a")]);
    let session = second.get(&id("a")).unwrap();
    session.wait_until_idle().await.unwrap();
    let history = session.tree().await.unwrap().history().clone();
    let texts: Vec<_> = history.iter().map(|message| message.text()).collect();
    assert_eq!(texts[..7], ["Q1", "To Q1", "Q2", "To Q2", "Summary", "Q3", "To Q3"]);
}

#[tokio::test(start_paused = true)]
async fn hand_over_waits_for_a_turn_that_ends_within_the_grace() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let gate = Gate::new();
    let held = gate.clone();
    let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Whole"]).gate(&held).stop());
    let options = OpenOptions::new(Agent::builder().model(provider.model())).durable(Durable::InFlight);
    let manager = manager(&store).build();
    let session = manager.create_with_id(&id("a"), options.subscribe(None)).await.unwrap().session;
    session.prompt("Hello").await.unwrap();
    let ending = manager.clone();
    let handing_over = tokio::spawn(async move {
        let limits = omni_agent::manager::Shutdown::within(Duration::from_secs(10));
        ending.hand_over(limits.with_grace(Duration::from_mins(1))).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.open();
    handing_over.await.unwrap().unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.turn), (2, None));
}
