//! A store fails or hangs for a long time, and recovers while the manager ends its sessions. All sessions must be
//! saved.

use std::time::Duration;

use omni_agent::{
    manager::{Manager, Titles},
    store::Store,
};
use tokio::time::Instant;

use crate::rig::{Act, MoodyStore, id, parrot, secs};

/// The length of the outage. At its end, the delay between two attempts has grown to half a minute.
const LONG: Duration = Duration::from_mins(10);

/// Returns a manager with a session whose turn could not be saved for ten minutes. The store starts to work again two
/// seconds after this function returns.
async fn after_an_outage(down: Act, store: &MoodyStore) -> Manager {
    let manager = store.manager().titles(Titles::Off).build();
    let talk = manager.create_with_id(&id("talk"), parrot()).await.unwrap();
    let back = Instant::now() + LONG + secs(2);
    store.mood(move |_, _| if Instant::now() < back { down.clone() } else { Act::Work });
    talk.session.ask("One").await.unwrap();
    tokio::time::sleep(LONG).await;
    manager
}

async fn assert_saved(store: &MoodyStore) {
    assert_eq!(store.beneath().load(&id("talk")).await.unwrap().nodes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn close_after_an_outage_saves_once_the_store_works() {
    for down in [Act::Fail, Act::Hang] {
        let store = MoodyStore::new();
        let manager = after_an_outage(down, &store).await;
        manager.close(&id("talk")).await.unwrap();
        assert_saved(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_after_an_outage_saves_once_the_store_works() {
    for down in [Act::Fail, Act::Hang] {
        let store = MoodyStore::new();
        let manager = after_an_outage(down, &store).await;
        manager.shutdown(secs(29)).await.unwrap();
        assert_saved(&store).await;
    }
}
