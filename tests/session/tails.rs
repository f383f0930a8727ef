//! Readers that want only the last messages of the path.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    session::{Mode, Session, SessionSnapshot, SessionSubscription},
    store::MemoryStore,
    subscription::Update,
    testing::{Gate, Step},
    tree::Tree,
};

use crate::{
    support::{held, node, parrot, scripted},
    watch::{in_time, on},
};

/// A reader of a tail that counts its resyncs.
struct Reader {
    events: SessionSubscription,
    view: SessionSnapshot,
    resyncs: usize,
}

impl Reader {
    async fn of(session: &Session, limit: usize) -> Self {
        let events = session.subscribe_tail(Mode::Observer, limit).await.unwrap();
        let view = SessionSnapshot::clone(events.snapshot().unwrap());
        Self { events, view, resyncs: 0 }
    }

    /// Reads everything up to the present. Returns the number of resyncs, and the ids of the nodes with messages.
    async fn seen(&mut self, session: &Session) -> (usize, Vec<u64>) {
        let last = session.snapshot().await.unwrap().last;
        let before = self.resyncs;
        while self.view.last < last {
            let update = in_time(self.events.next()).await.unwrap();
            self.resyncs += usize::from(matches!(update, Update::Resync(_)));
            self.view.take(&update).unwrap();
        }
        assert_eq!(*self.view.tree.history(), self.view.agent.state.history);
        let whole = self.view.tree.nodes().filter(|node| !node.is_outline());
        let ids: Vec<u64> = whole.map(|node| node.id().get()).collect();
        assert_eq!(ids, self.view.tree.iter().map(|node| node.id().get()).collect::<Vec<_>>());
        (self.resyncs - before, ids)
    }
}

/// Returns a session with three turns: the nodes 1 to 6.
async fn three_turns() -> Session {
    let session = on(parrot()).create().await.unwrap();
    for text in ["One", "Two", "Three"] {
        session.ask(text).await.unwrap();
    }
    session.flush(Duration::from_secs(1)).await.unwrap();
    session
}

#[tokio::test(start_paused = true)]
async fn tail_of_a_new_turn_grows_without_a_resync() {
    let session = three_turns().await;
    let (mut small, mut large) = (Reader::of(&session, 2).await, Reader::of(&session, 100).await);
    assert_eq!((small.view.from, large.view.from), (Some(node(5)), None));
    assert_eq!(small.seen(&session).await, (0, vec![5, 6]));
    session.ask("Four").await.unwrap();
    assert_eq!(small.seen(&session).await, (0, vec![5, 6, 7, 8]));
    assert_eq!(large.seen(&session).await, (0, (1..=8).collect()));
    session
        .configure(|config| {
            config.settings.max_steps = Some(7);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(small.seen(&session).await, (0, vec![5, 6, 7, 8]), "a state event has the tail");
    assert_eq!(small.view.agent.state.settings.max_steps, Some(7));
    assert_eq!(small.view.from, Some(node(5)));
}

#[tokio::test(start_paused = true)]
async fn tail_of_an_empty_conversation_becomes_the_whole_path() {
    let session = on(parrot()).create().await.unwrap();
    let mut reader = Reader::of(&session, 1).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    assert_eq!(reader.seen(&session).await, (0, vec![1, 2, 3, 4]));
    assert_eq!(reader.view.from, None);
}

#[tokio::test(start_paused = true)]
async fn regenerate_edit_and_branch_before_the_tail_reach_its_reader_as_resyncs() {
    for (prompted, ids) in [("regenerate", vec![1, 7]), ("edit", vec![7, 8]), ("branch", vec![7, 8])] {
        let session = three_turns().await;
        let mut reader = Reader::of(&session, 2).await;
        match prompted {
            "regenerate" => drop(session.again(node(1)).response().await.unwrap()),
            "edit" => drop(session.run("Other").instead_of(node(1)).response().await.unwrap()),
            _ => drop(session.run("Other").below(Some(node(2))).response().await.unwrap()),
        }
        assert_eq!(reader.seen(&session).await, (1, ids), "{prompted}");
    }
}

#[tokio::test(start_paused = true)]
async fn navigate_and_cancelled_branch_reach_the_reader_as_resyncs() {
    let gate = Gate::new();
    let session =
        on(scripted([Step::text("One."), Step::text("Two."), held(&gate, "Half")])).create().await.unwrap();
    session.ask("1").await.unwrap();
    session.ask("2").await.unwrap();
    let mut reader = Reader::of(&session, 1).await;
    session.run("3").instead_of(node(3)).start().await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(reader.seen(&session).await, (1, vec![2]));
    let late = Reader::of(&session, 2).await;
    assert_eq!((late.view.agent.pending.len(), late.view.tree.history().len()), (1, 2));
    session.cancel().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(reader.seen(&session).await, (1, vec![4]));
    session.navigate(node(2)).await.unwrap();
    session.navigate(None).await.unwrap();
    assert_eq!(reader.seen(&session).await.1, Vec::<u64>::new());
    assert_eq!(reader.view.from, None);
    session.navigate(node(1)).await.unwrap();
    assert_eq!(reader.seen(&session).await, (1, vec![4]));
}

#[tokio::test(start_paused = true)]
async fn erasure_in_and_before_the_tail_removes_the_nodes_for_its_reader() {
    for (erased, left) in [(5, vec![4]), (3, vec![2]), (1, vec![])] {
        let session = three_turns().await;
        let mut reader = Reader::of(&session, 1).await;
        session.erase(node(erased)).await.unwrap();
        let (resyncs, ids) = reader.seen(&session).await;
        assert_eq!((resyncs, ids), (1, left), "{erased}");
        assert_eq!(reader.view.tree.len(), session.tree().await.unwrap().len(), "{erased}");
    }
}

#[tokio::test(start_paused = true)]
async fn lagging_reader_and_closed_session_give_tails() {
    let words: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let session =
        on(scripted([Step::text("One."), Step::new().then_text(words).stop()])).create().await.unwrap();
    session.ask("1").await.unwrap();
    let mut reader = Reader::of(&session, 1).await;
    session.ask("2").await.unwrap();
    let (resyncs, ids) = reader.seen(&session).await;
    assert!(resyncs >= 1, "the reader lags");
    assert_eq!(ids, [4]);
    // The outlines have no messages that could be stored.
    assert_eq!(reader.view.tree.changes_since(&Tree::new()), None);
    session.stop(Duration::from_secs(1)).await.unwrap();
    let mut last = None;
    while let Some(update) = in_time(reader.events.next()).await {
        last = Some(update);
    }
    let Some(Update::Closed(end)) = last else { panic!("{last:?}") };
    assert_eq!(end.snapshot.unwrap().from, Some(node(4)));
}

#[tokio::test(start_paused = true)]
async fn reader_that_resumes_in_the_next_life_gets_a_tail_at_the_first_commit() {
    let store = Arc::new(MemoryStore::new());
    let session = Session::builder(Arc::clone(&store)).agent(parrot()).create().await.unwrap();
    for text in ["One", "Two"] {
        session.ask(text).await.unwrap();
    }
    session.flush(Duration::from_secs(1)).await.unwrap();
    let mut reader = Reader::of(&session, 2).await;
    reader.seen(&session).await;
    let conversation = session.id().clone();
    session.stop(Duration::from_secs(1)).await.unwrap();
    let session = Session::builder(store).agent(parrot()).open(conversation).await.unwrap();
    reader.events = session.resume_tail(reader.view.last, Mode::Observer, 2).await.unwrap();
    session.ask("Three").await.unwrap();
    assert_eq!(reader.seen(&session).await, (1, vec![5, 6]));
    session.ask("Four").await.unwrap();
    assert_eq!(reader.seen(&session).await, (0, vec![5, 6, 7, 8]));
}

#[tokio::test(start_paused = true)]
async fn reader_of_a_regeneration_gets_a_tail_at_the_base_and_at_the_commit() {
    let gate = Gate::new();
    let steps = [Step::text("One."), Step::text("Two."), held(&gate, "Other.")];
    let session = on(scripted(steps)).create().await.unwrap();
    session.ask("1").await.unwrap();
    session.ask("2").await.unwrap();
    let mut reader = Reader::of(&session, 2).await;
    session.again(node(3)).start().await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(reader.seen(&session).await, (1, vec![1, 2]));
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(reader.seen(&session).await, (1, vec![3, 5]));
}
