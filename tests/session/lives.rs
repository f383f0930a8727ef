//! The lives of a conversation, and readers that continue in a later life.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder},
    message::Timestamp,
    session::{Mode, Session, SessionSnapshot},
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, StateChange, Stored, Write},
    },
    subscription::{EventId, Update},
    testing::{ScriptedProvider, Step},
};

use crate::{
    leasing::LeasingStore,
    watch::{answered, in_time},
};

const SOON: Duration = Duration::from_secs(1);

fn agent() -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("A")).model())
}

/// A store, which may have leases.
struct Place {
    store: Arc<dyn Store>,
    leases: Option<LeasingStore>,
}

impl Place {
    fn leasing() -> Self {
        let leases = LeasingStore::new();
        Self { store: leases.as_dyn(), leases: Some(leases) }
    }

    fn all() -> [Self; 2] {
        [Self { store: Arc::new(MemoryStore::new()), leases: None }, Self::leasing()]
    }

    /// Ends a session. If the store has leases, waits until the conversation's lease is released.
    async fn stop(&self, session: &Session) {
        in_time(session.stop(SOON)).await.unwrap();
        if let Some(leases) = &self.leases {
            leases.released(session.id()).await;
        }
    }

    async fn open(&self, session: &Session, agent: AgentBuilder) -> Session {
        Session::builder(Arc::clone(&self.store)).agent(agent).open(session.id().clone()).await.unwrap()
    }
}

/// Starts a conversation with one turn, and ends the session. Returns the session, and the snapshot of a reader that
/// has read all its events.
async fn ended(place: &Place) -> (Session, SessionSnapshot) {
    let session = Session::builder(Arc::clone(&place.store)).agent(agent()).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    session.ask("Q1").await.unwrap();
    place.stop(&session).await;
    while let Some(update) = in_time(events.next()).await {
        if matches!(update, Update::Event(_)) {
            view.take(&update).unwrap();
        }
    }
    (session, view)
}

/// Returns whether a reader that resumes after this event first gets a resync.
async fn resyncs(session: &Session, after: EventId) -> bool {
    let mut events = answered(session.resume_from(after, Mode::Observer)).await.unwrap();
    session.ask("Q").await.unwrap();
    matches!(in_time(events.next()).await, Some(Update::Resync(_)))
}

#[tokio::test(start_paused = true)]
async fn each_opening_starts_a_higher_life() {
    for place in Place::all() {
        let (session, view) = ended(&place).await;
        assert_eq!(view.last.life, 0, "the conversation was not stored when the session began");
        let mut last = view.last.life;
        for _ in 0..20 {
            let session = place.open(&session, agent()).await;
            let life = answered(session.snapshot()).await.unwrap().last.life;
            assert!(life > last, "{life:x} follows {last:x}");
            last = life;
            place.stop(&session).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_the_end_of_the_life_before_needs_no_snapshot() {
    for place in Place::all() {
        let (session, mut view) = ended(&place).await;
        let session = place.open(&session, agent()).await;
        let mut events = answered(session.resume_from(view.last, Mode::Controller)).await.unwrap();
        assert!(events.snapshot().is_none());
        session.ask("Q2").await.unwrap();
        in_time(session.flush(SOON)).await.unwrap();
        let truth = answered(session.snapshot()).await.unwrap();
        while view.last != truth.last {
            let update = in_time(events.next()).await.unwrap();
            assert!(matches!(update, Update::Event(_)), "{update:?}");
            view.take(&update).unwrap();
        }
        assert_eq!((&view.tree, &view.unsaved, &view.store), (&truth.tree, &truth.unsaved, &truth.store));
        assert_eq!((view.agent.state, view.agent.status), (truth.agent.state, truth.agent.status));
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_the_end_of_a_life_outlasts_lives_without_events() {
    for place in Place::all() {
        let (session, view) = ended(&place).await;
        for _ in 0..2 {
            let session = place.open(&session, agent()).await;
            let reader = answered(session.resume_from(view.last, Mode::Observer)).await.unwrap();
            place.stop(&session).await;
            assert_eq!(reader.last_id(), view.last);
        }
        assert!(!resyncs(&place.open(&session, agent()).await, view.last).await);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_an_earlier_event_of_the_life_before_resyncs() {
    for place in Place::all() {
        let (session, view) = ended(&place).await;
        let earlier = EventId::new(view.last.life, view.last.number - 1);
        assert!(resyncs(&place.open(&session, agent()).await, earlier).await);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_after_another_write_resyncs() {
    for place in Place::all() {
        let (session, view) = ended(&place).await;
        let version = place.store.summary(session.id()).await.unwrap().version;
        let title = StateChange::title("Renamed".to_owned());
        place.store.write(session.id(), &Write::on(version), &Change::State(title)).await.unwrap();
        assert!(resyncs(&place.open(&session, agent()).await, view.last).await);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_with_other_settings_resyncs() {
    for place in Place::all() {
        let (session, view) = ended(&place).await;
        assert!(resyncs(&place.open(&session, agent().system("Other")).await, view.last).await);
    }
}

#[tokio::test(start_paused = true)]
async fn take_ignores_a_former_owner() {
    let place = Place::leasing();
    let (former, _) = ended(&place).await;
    let former = place.open(&former, agent()).await;
    let mut late = answered(former.subscribe(Mode::Controller)).await.unwrap();
    let old = Update::Resync(Arc::clone(late.snapshot().unwrap()));
    former.ask("Not seen").await.unwrap();
    place.stop(&former).await;

    let session = place.open(&former, agent()).await;
    let truth = answered(session.snapshot()).await.unwrap();
    let mut view = truth.clone();
    view.take(&old).unwrap();
    let mut ignored = 0;
    while let Some(update) = in_time(late.next()).await {
        view.take(&update).unwrap();
        ignored += 1;
    }
    assert!(ignored > 1);
    assert_eq!(view, truth);
}

/// A store without owners, and without marks, whose last write was an hour ahead of the clock.
struct AheadStore(MemoryStore);

#[async_trait]
impl Store for AheadStore {
    forward!(self.0: traits, write, summary, list, delete, turn, release);

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let mut stored = self.0.load(id).await?;
        (stored.mark, stored.updated) = (None, Timestamp(Timestamp::now().0 + 3_600_000));
        Ok(stored)
    }
}

#[tokio::test(start_paused = true)]
async fn opening_after_a_kill_and_a_clock_set_back_starts_a_higher_life() {
    let store = MemoryStore::new();
    let session = Session::builder(store.clone()).agent(agent()).create().await.unwrap();
    session.ask("Q").await.unwrap();
    in_time(session.stop(SOON)).await.unwrap();
    let ahead = Timestamp::now().0 + 3_600_000;
    let builder = Session::builder(AheadStore(store)).agent(agent());
    let session = builder.open(session.id().clone()).await.unwrap();
    let life = answered(session.snapshot()).await.unwrap().last.life;
    assert!(life > ahead, "{life} {ahead}");
}
