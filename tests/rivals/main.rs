//! Processes compete for the same conversations, while some of the processes are killed or frozen.
//!
//! In a normal run, processes are killed or frozen six times. `OMNI_BLOWS=200 cargo test --release --all-features
//! --test rivals` is a long run.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an unwrap is a failure of the test; the results are printed"
)]

mod arena;
mod place;
mod rival;
#[cfg(feature = "postgres")]
#[allow(dead_code, reason = "shared with the tests of the store")]
#[path = "../store/postgres/server.rs"]
mod server;
#[cfg(feature = "postgres")]
#[path = "../support/skip.rs"]
mod skip;

use arena::Arena;
use place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_the_file_system_make_one_history() {
    Arena::new(Place::folder()).fight(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_processes_on_the_file_system_make_one_history() {
    Arena::new(Place::folder()).fight(5).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_sqlite_make_one_history() {
    Arena::new(Place::sqlite()).fight(2).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn five_processes_on_sqlite_make_one_history() {
    Arena::new(Place::sqlite()).fight(5).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_postgres_make_one_history() {
    let Some(place) = Place::postgres() else { return };
    Arena::new(place).fight(2).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn five_processes_on_postgres_make_one_history() {
    let Some(place) = Place::postgres() else { return };
    Arena::new(place).fight(5).await;
}
