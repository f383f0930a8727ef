//! Subscribers that join at any moment, that resume, and that fall behind.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::Agent,
    provider::custom::Part,
    session::{Mode, SavedPart, Session, SessionEvent, SessionSnapshot, SessionSubscription, StoreReport},
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, Version, Write},
    },
    subscription::{EndReason, EventId, FeedLimits, Update},
    testing::{Gate, ScriptedProvider, Step},
    tree::NodeId,
};
use serde_json::json;

use crate::watch::{Watched, answered, held, in_time, on, reached, scripted, word};

/// Returns an agent that gives the same answer to every prompt.
fn parrot(answer: &'static str) -> omni_agent::agent::AgentBuilder {
    Agent::builder().model(ScriptedProvider::from_fn(move |_| Step::text(answer)).model())
}

const MOMENT: Duration = Duration::from_millis(1);

/// Applies updates until the snapshot has reached the event `last`. Returns the number of resyncs.
async fn follow(events: &mut SessionSubscription, view: &mut SessionSnapshot, last: EventId) -> usize {
    let mut resyncs = 0;
    while view.last.number < last.number {
        match in_time(events.next()).await.unwrap() {
            Update::Event(numbered) => {
                view.apply(&numbered).unwrap();
                assert_eq!(view.last, numbered.id);
            }
            Update::Resync(snapshot) => {
                *view = SessionSnapshot::clone(&snapshot);
                resyncs += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    resyncs
}

#[tokio::test(start_paused = true)]
async fn joining_at_every_event_gives_the_same_snapshot() {
    let gate = Gate::new();
    let slowly = |text: &str| {
        let begun = Step::new().wait(MOMENT).then_text(["Well"]).wait(MOMENT);
        begun.more(Part::Text(text.to_owned())).wait(MOMENT)
    };
    let steps = [
        slowly("A1").stop(),
        slowly("Let me see").then_tool_use("t", "echo", json!({})).wait(MOMENT).stop(),
        slowly("B1").stop(),
        slowly("C1").gate(&gate).stop(),
        slowly("D1").panic("broken"),
    ];
    let mut session = Watched::scripted(steps).await;
    let mut joined: Vec<Watched> = Vec::new();
    let one = NodeId::new(1).unwrap();
    for act in 0..6 {
        match act {
            0 => drop(answered(session.session.prompt("Q1")).await.unwrap()),
            1 | 3 => drop(answered(session.session.again(one).start()).await.unwrap()),
            2 => answered(session.session.navigate(NodeId::new(2))).await.unwrap(),
            4 => answered(session.session.cancel()).await.unwrap(),
            _ => drop(answered(session.session.run("Q2").below(None).start()).await.unwrap()),
        }
        for _ in 0..20 {
            joined.push(Watched::of(&session.session).await);
            tokio::time::advance(MOMENT / 2).await;
        }
        if act == 3 {
            reached(&gate).await;
        }
    }
    in_time(session.session.flush(Duration::from_secs(1))).await.unwrap();
    session.rest().await;
    let moments: std::collections::HashSet<u64> = joined.iter().map(|one| one.view.last.number).collect();
    assert!(moments.len() > 20, "{moments:?}");
    for mut one in joined {
        one.check().await;
        assert_eq!(one.view, session.view);
    }
    assert_eq!(session.view.tree.len(), 7, "the failed run keeps its prompt and the text so far");
}

#[tokio::test(start_paused = true)]
async fn resume_from_any_event_replays_the_later_events() {
    let session = on(parrot("A")).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Controller)).await.unwrap();
    let mut views = vec![events.snapshot().unwrap().as_ref().clone()];
    session.ask("Q1").await.unwrap();
    answered(session.navigate(None)).await.unwrap();
    session.ask("Q2").await.unwrap();
    in_time(session.flush(Duration::from_secs(1))).await.unwrap();
    let truth = answered(session.snapshot()).await.unwrap();
    while views.last().unwrap().last != truth.last {
        let Some(Update::Event(numbered)) = in_time(events.next()).await else { panic!() };
        let mut next = views.last().unwrap().clone();
        next.apply(&numbered).unwrap();
        views.push(next);
    }
    assert_eq!(*views.last().unwrap(), truth);
    for mut view in views {
        let mut events = answered(session.resume_from(view.last, Mode::Observer)).await.unwrap();
        assert!(events.snapshot().is_none());
        assert_eq!(events.last_id(), view.last);
        assert_eq!(follow(&mut events, &mut view, truth.last).await, 0);
        assert_eq!(view, truth);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_an_unavailable_id_resyncs_first() {
    let limits = FeedLimits::default().with_lag(256).with_replay(256).with_bytes(1 << 22);
    let session = on(parrot("A")).feed_limits(limits).create().await.unwrap();
    let before = answered(session.snapshot()).await.unwrap();
    session.ask("Unseen").await.unwrap();
    let _events = answered(session.subscribe(Mode::Controller)).await.unwrap();
    let stranger = EventId::new(before.last.life ^ 1, 1);
    let future = EventId::new(before.last.life, 1_000_000);
    for last in [before.last, stranger, future] {
        let mut events = answered(session.resume_from(last, Mode::Observer)).await.unwrap();
        let truth = answered(session.snapshot()).await.unwrap();
        assert_eq!(events.last_id(), last, "the reader has not seen the snapshot yet");
        let Some(Update::Resync(snapshot)) = in_time(events.next()).await else { panic!("{last}") };
        assert_eq!(events.last_id(), snapshot.last);
        let mut view = SessionSnapshot::clone(&snapshot);
        follow(&mut events, &mut view, truth.last).await;
        assert_eq!(view.tree, truth.tree);
        // The subscription then continues with events.
        session.ask("Q").await.unwrap();
        let truth = answered(session.snapshot()).await.unwrap();
        assert_eq!(follow(&mut events, &mut view, truth.last).await, 0);
        assert_eq!(view.tree, truth.tree);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_an_earlier_life_resyncs_first() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let session = Session::builder(Arc::clone(&store)).agent(parrot("A")).create().await.unwrap();
    let events = answered(session.subscribe(Mode::Controller)).await.unwrap();
    session.ask("Q1").await.unwrap();
    let last = events.last_id();
    in_time(session.stop(Duration::from_secs(1))).await.unwrap();
    let again = Session::builder(store).agent(parrot("A")).open(session.id().clone()).await.unwrap();
    let mut events = answered(again.resume_from(last, Mode::Controller)).await.unwrap();
    assert_eq!(events.mode(), Mode::Controller);
    let Some(Update::Resync(snapshot)) = in_time(events.next()).await else { panic!() };
    assert_eq!(snapshot.tree.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn subscriber_far_behind_misses_no_turn() {
    let session = on(parrot("A")).create().await.unwrap();
    let mut slow = answered(session.subscribe(Mode::Observer)).await.unwrap();
    let mut prompt = Watched::of(&session).await;
    let mut view = slow.snapshot().unwrap().as_ref().clone();
    for round in 0..3 {
        for turn in 0..100 {
            session.ask(format!("Q{round}.{turn}")).await.unwrap();
            prompt.check().await;
        }
        // The subscriber reads only the resync, so it falls behind again in the next round.
        let some = EventId::new(view.last.life, view.last.number + 1);
        let resyncs = follow(&mut slow, &mut view, some).await;
        assert_eq!(resyncs, 1);
    }
    in_time(session.flush(Duration::from_secs(1))).await.unwrap();
    let truth = answered(session.snapshot()).await.unwrap();
    follow(&mut slow, &mut view, truth.last).await;
    assert_eq!(view, truth);
    assert_eq!(view.tree.len(), 600);
    let questions = view.tree.history().iter().step_by(2).map(|message| message.text());
    assert!(questions.eq((0..300).map(|n| format!("Q{}.{}", n / 100, n % 100))));
}

#[tokio::test(start_paused = true)]
async fn subscriber_behind_in_bytes_misses_no_turn() {
    let limits = FeedLimits::default().with_lag(256).with_replay(256).with_bytes(10_000);
    let agent =
        || Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("x".repeat(5_000))).model());
    let session = on(agent()).feed_limits(limits).create().await.unwrap();
    let mut slow = answered(session.subscribe(Mode::Observer)).await.unwrap();
    let mut view = slow.snapshot().unwrap().as_ref().clone();
    for _ in 0..20 {
        session.ask("Q").await.unwrap();
    }
    in_time(session.flush(Duration::from_secs(1))).await.unwrap();
    let truth = answered(session.snapshot()).await.unwrap();
    assert!(follow(&mut slow, &mut view, truth.last).await > 0);
    assert_eq!(view, truth);
    assert_eq!(view.tree.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn subscriber_far_behind_at_the_end_gets_the_last_snapshot() {
    let session = on(parrot("A")).create().await.unwrap();
    let mut slow = answered(session.subscribe(Mode::Observer)).await.unwrap();
    for _ in 0..100 {
        session.ask("Q").await.unwrap();
    }
    in_time(session.stop(Duration::from_secs(1))).await.unwrap();
    let end = loop {
        if let Update::Closed(end) = in_time(slow.next()).await.unwrap() {
            break end;
        }
    };
    assert_eq!(end.reason, EndReason::Stopped);
    let last = end.snapshot.unwrap();
    assert_eq!((last.tree.len(), last.unsaved.len()), (200, 0));
    assert!(in_time(slow.next()).await.is_none());
}

// ---- other events ----

#[tokio::test(start_paused = true)]
async fn title_changes_are_emitted_once() {
    let mut session = Watched::start(on(scripted([])).title("First")).await;
    assert_eq!(session.view.title.as_deref(), Some("First"));
    for (title, is_change) in [
        (Some("First"), false),
        (Some("Second"), true),
        (Some("Second"), false),
        (None, true),
        (None, false),
        (Some(""), true),
    ] {
        let before = session.view.last.number;
        answered(session.session.set_title(title)).await.unwrap();
        assert_eq!(answered(session.session.title()).await.unwrap().as_deref(), title);
        in_time(session.session.flush(Duration::from_secs(1))).await.unwrap();
        session.check().await;
        assert_eq!(session.view.last.number > before, is_change, "{title:?}");
        assert_eq!(session.view.title.as_deref(), title);
    }
}

#[tokio::test(start_paused = true)]
async fn title_is_set_while_the_agent_is_busy() {
    let gate = Gate::new();
    let mut session = Watched::scripted([held(&gate)]).await;
    answered(session.session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    answered(session.session.set_title(Some("A title"))).await.unwrap();
    assert_eq!(session.until("title").await.last().unwrap(), "title");
    gate.open();
    session.rest().await;
    assert_eq!(session.view.title.as_deref(), Some("A title"));
}

#[tokio::test(start_paused = true)]
async fn tools_are_added_and_removed_while_idle() {
    let provider = ScriptedProvider::from_fn(|_| Step::text("A"));
    let mut session = Watched::start(on(Agent::builder().model(provider.model()))).await;
    let offered = || {
        let request = provider.last_request().unwrap();
        request.tools.iter().map(|tool| tool.name().to_owned()).collect::<Vec<_>>()
    };
    session.ask("Q1").await;
    assert!(offered().is_empty());
    answered(session.session.add_tool(crate::watch::echo())).await.unwrap();
    session.ask("Q2").await;
    assert_eq!(offered(), ["echo"]);
    assert_eq!(session.view.agent.state.tools[0].name, "echo");
    answered(session.session.add_tool(crate::watch::echo())).await.unwrap_err();
    answered(session.session.remove_tool("echo")).await.unwrap();
    answered(session.session.remove_tool("echo")).await.unwrap();
    session.ask("Q3").await;
    assert!(offered().is_empty());
    assert_eq!(session.view.tree.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn configuration_change_is_emitted_and_the_tree_is_unchanged() {
    let mut session = Watched::scripted([Step::text("A1")]).await;
    session.ask("Q1").await;
    let tree = session.view.tree.clone();
    let edit = |config: &mut omni_agent::agent::Config| {
        config.settings.system = Some("Be brief.".into());
        Ok(())
    };
    answered(session.session.configure(edit)).await.unwrap();
    session.check().await;
    assert_eq!(session.view.agent.state.settings.system.as_deref(), Some("Be brief."));
    assert_eq!(session.view.tree, tree);
    let error = answered(session.session.configure(|_| Err("no".into()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback, "{error:?}");
    session.check().await;
}

/// A store whose first write fails. Its commits wait at the gate.
#[derive(Debug)]
pub(crate) struct Balky(MemoryStore, std::sync::atomic::AtomicBool, Gate);

impl Balky {
    /// Returns a store whose first write fails, and whose commits do not wait.
    pub(crate) fn failing_once() -> Arc<dyn Store> {
        let gate = Gate::new();
        (0..10).for_each(|_| gate.open());
        Arc::new(Self(MemoryStore::new(), false.into(), gate))
    }
}

#[async_trait]
impl Store for Balky {
    forward!(self.0: load, summary, list, delete);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        match change {
            Change::Create(_) if !self.1.swap(true, std::sync::atomic::Ordering::Relaxed) => {
                return Err(StoreError::failed("creating", std::io::Error::other("not now")));
            }
            Change::Commit(_) => self.2.pass().await,
            _ => {}
        }
        self.0.write(id, write, change).await
    }
}

#[tokio::test(start_paused = true)]
async fn report_of_a_failed_first_write_stays_until_a_later_report() {
    let gate = Gate::new();
    let store: Arc<dyn Store> = Arc::new(Balky(MemoryStore::new(), false.into(), gate.clone()));
    let mut session = Watched::start(Session::builder(store).agent(scripted([Step::text("A1")]))).await;
    answered(session.session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    session.check().await;
    assert!(matches!(session.view.store, Some(StoreReport::Failed { .. })));
    gate.open();
    loop {
        let event = session.next().await;
        if let SessionEvent::Store(StoreReport::Saved { what, through, .. }) = &*event {
            assert_eq!((*what, *through), (SavedPart::Tree, NodeId::new(2)));
            break;
        }
        assert_ne!(word(&event), "title");
    }
    session.check().await;
    assert_eq!(session.view.store, None);
}
