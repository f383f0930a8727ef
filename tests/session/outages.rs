//! A store fails or hangs for a long time, and recovers while a flush or the end of a session waits. If enough time is
//! left, everything is saved.

use std::time::Duration;

use omni_agent::{
    ErrorKind,
    session::{Session, SessionBuilder},
    subscription::EndReason,
};
use tokio::time::Instant;

use crate::support::{Act, ScriptedStore, created, parrot, secs, tree_in};

/// The length of the outage. At its end, the delay between two attempts has grown to half a minute.
const LONG: Duration = Duration::from_mins(10);

/// The way in which a store behaves during an outage.
#[derive(Clone, Copy, Debug)]
enum Down {
    Fails,
    Hangs,
    /// Writes take effect, but the store never replies to them.
    IsMute,
}

const EVERY: [Down; 3] = [Down::Fails, Down::Hangs, Down::IsMute];

/// Makes the store behave as `down` states until the given moment.
fn break_down(store: &ScriptedStore, down: Down, back: Instant) {
    store.otherwise(move || match down {
        _ if Instant::now() >= back => Act::Work,
        Down::Fails => Act::Fail,
        Down::Hangs => Act::Hang,
        Down::IsMute => Act::HangAfter,
    });
}

/// Returns a session with a turn that could not be saved for ten minutes. The store starts to work again two seconds
/// after this function returns.
async fn after_an_outage(down: Down, builder: SessionBuilder, store: &ScriptedStore) -> Session {
    let session = builder.create_with_id(crate::support::id("talk")).await.unwrap();
    break_down(store, down, Instant::now() + LONG + secs(2));
    session.ask("One").await.unwrap();
    tokio::time::sleep(LONG).await;
    session
}

async fn assert_saved(store: &ScriptedStore) {
    assert_eq!(tree_in(&**store.beneath(), &crate::support::id("talk")).await.len(), 2);
    store.assert_sound();
}

fn builder(store: &ScriptedStore) -> SessionBuilder {
    Session::builder(store.as_dyn()).agent(parrot())
}

#[tokio::test(start_paused = true)]
async fn stop_after_an_outage_saves_once_the_store_works() {
    for down in EVERY {
        let store = ScriptedStore::new([]);
        let session = after_an_outage(down, builder(&store), &store).await;
        session.stop(secs(29)).await.unwrap_or_else(|error| panic!("{down:?}: {error}"));
        assert_saved(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn flush_after_an_outage_saves_once_the_store_works() {
    for down in EVERY {
        let store = ScriptedStore::new([]);
        let session = after_an_outage(down, builder(&store), &store).await;
        session.flush(secs(29)).await.unwrap_or_else(|error| panic!("{down:?}: {error}"));
        assert_saved(&store).await;
        session.ask("Two").await.unwrap();
        session.flush(secs(1)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_after_an_outage_saves_once_the_store_works() {
    for down in EVERY {
        let store = ScriptedStore::new([]);
        let session = after_an_outage(down, builder(&store), &store).await;
        let mut events = crate::support::watch(&session).await.into_parts().0;
        drop(session);
        let end = loop {
            if let omni_agent::subscription::Update::Closed(end) = events.next().await.unwrap() {
                break end;
            }
        };
        assert_eq!(end.reason, EndReason::HandlesDropped);
        assert_eq!(end.snapshot.unwrap().unsaved, [], "{down:?}");
        assert_saved(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_ends_after_an_outage_saves_once_the_store_works() {
    for down in EVERY {
        let store = ScriptedStore::new([]);
        let session = after_an_outage(down, builder(&store), &store).await;
        let agent = session.state().await.unwrap().agent().upgrade().unwrap();
        agent.stop(secs(1)).await.unwrap();
        let end = session.ended().await;
        assert_eq!(end.reason, EndReason::AgentEnded);
        assert_eq!(end.snapshot.unwrap().unsaved, [], "{down:?}");
        assert_saved(&store).await;
    }
}

/// When the idle time is over, the delays between attempts restart with a short delay. Otherwise, the session would
/// stay open for another half minute.
#[tokio::test(start_paused = true)]
async fn idle_time_over_after_an_outage_saves_soon_once_the_store_works() {
    let store = ScriptedStore::new([]);
    let session = builder(&store)
        .idle_shutdown(LONG.saturating_sub(secs(1)))
        .create_with_id(crate::support::id("talk"))
        .await;
    let session = session.unwrap();
    let start = Instant::now();
    break_down(&store, Down::Fails, start + LONG);
    session.ask("One").await.unwrap();
    while tree_in(&**store.beneath(), session.id()).await.is_empty() {
        store.arrival().await;
        tokio::task::yield_now().await;
    }
    assert!(start.elapsed() < LONG + secs(1), "{:?}", start.elapsed());
    assert_eq!(session.ended().await.reason, EndReason::Idle);
    assert_saved(&store).await;
}

#[tokio::test(start_paused = true)]
async fn stop_while_a_write_hangs_repeats_it_with_its_id() {
    let store = ScriptedStore::new([Act::Hang]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    store.arrival().await;
    let start = Instant::now();
    session.stop(secs(8)).await.unwrap();
    assert_eq!(start.elapsed(), secs(2));
    let tried = store.tried();
    assert_eq!(tried.len(), 2);
    assert_eq!(tried[0].what, tried[1].what);
    assert_saved(&store).await;
}

#[tokio::test(start_paused = true)]
async fn flush_while_a_creation_hangs_repeats_it_with_its_id() {
    for down in [Act::Hang, Act::HangAfter] {
        let store = ScriptedStore::new([down]);
        let session = builder(&store).create().await.unwrap();
        session.ask("One").await.unwrap();
        session.flush(secs(8)).await.unwrap();
        assert_eq!(store.words(), ["create", "create", "commit"]);
        let tried = store.tried();
        assert_eq!(tried[0].what, tried[1].what);
    }
}

/// A slow write is not treated as a hanging write: its first attempt may use all the time until the deadline.
#[tokio::test(start_paused = true)]
async fn stop_of_a_slow_store_uses_the_answer_of_the_first_attempt() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    store.otherwise(|| Act::Slow(secs(9)));
    session.ask("One").await.unwrap();
    let start = Instant::now();
    session.stop(secs(10)).await.unwrap();
    assert_eq!(start.elapsed(), secs(9));
    assert_saved(&store).await;
}

#[tokio::test(start_paused = true)]
async fn stop_of_a_hanging_store_keeps_at_most_two_attempts() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    store.otherwise(|| Act::Hang);
    session.ask("One").await.unwrap();
    let stopped = session.stop(secs(50)).await;
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    let tried = store.tried();
    assert!((10..60).contains(&tried.len()), "{}", tried.len());
    assert!(tried.iter().all(|attempt| attempt.what == tried[0].what));
    // An abandoned attempt is dropped only when the runtime polls it. By then, the next attempt may have begun.
    assert!(store.most_at_once() <= 3, "{}", store.most_at_once());
}

/// When no flush is waiting, the usual delays apply again.
#[tokio::test(start_paused = true)]
async fn flush_over_delays_return_to_normal() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    assert!(session.flush(secs(2)).await.is_err());
    let before = store.tried().len();
    tokio::time::sleep(secs(3600)).await;
    let after = store.tried().len() - before;
    assert!((115..125).contains(&after), "{after}");
    store.otherwise(|| Act::Work);
    session.flush(secs(1)).await.unwrap();
}

/// Even without a deadline, a hanging attempt is abandoned and repeated.
#[tokio::test(start_paused = true)]
async fn flush_without_a_deadline_repeats_failed_and_hanging_writes() {
    for down in EVERY {
        let store = ScriptedStore::new([]);
        let session = after_an_outage(down, builder(&store), &store).await;
        session.flush(Duration::MAX).await.unwrap();
        assert_saved(&store).await;
    }
}
