//! Turns that continue after `kill -9`, with real processes.
//!
//! A process sends prompts, and its tools write to a ledger. The process is killed at a random moment and started again
//! on the same store. After each kill, the ledger and the store are compared. A normal run kills 17 times for each
//! store. `OMNI_KILLS=1000 cargo test --release --all-features --test durable kill::` is a long run. The seed of the
//! work is printed, and `OMNI_SEED` sets it. The moments of the kills differ in each run.
//!
//! A normal run kills 5 more times for each database, while calls of sub-agents are at each of their stages. The next
//! process waits until the leases of the killed one have expired. So in a long run, these tests take most of the time,
//! and `cargo test --release --all-features --test durable kill::processes_with` runs them alone.
//!
//! In the tests that are ignored by default, two processes share a store for five minutes, or for `OMNI_SECONDS`. One
//! of them is killed every second, and PostgreSQL is stopped every 5 to 40 seconds:
//! `cargo test --release --all-features --test durable kill::two -- --ignored --nocapture`.

mod arena;
mod check;
mod facts;
mod life;
mod place;
mod plan;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rivals;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod teams;

use place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_the_file_system_lose_and_repeat_nothing() {
    arena::kill_one_after_another(&Place::files()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn processes_on_sqlite_lose_and_repeat_nothing() {
    arena::kill_one_after_another(&Place::sqlite()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn processes_on_postgres_lose_and_repeat_nothing() {
    let Some(url) = crate::server::url() else { return };
    arena::kill_one_after_another(&Place::postgres(url)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn processes_with_sub_agents_on_sqlite_lose_and_repeat_nothing() {
    arena::kill_teams(&Place::sqlite()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn processes_with_sub_agents_on_postgres_lose_and_repeat_nothing() {
    let Some(url) = crate::server::url() else { return };
    arena::kill_teams(&Place::postgres(url)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes five minutes"]
async fn two_processes_on_sqlite_end_each_turn_once() {
    rivals::kill_one_of_two(&Place::sqlite(), None).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes five minutes"]
async fn two_processes_on_postgres_that_restarts_end_each_turn_once() {
    // This server syncs, and nobody else uses it.
    let Some(server) = crate::server::Server::start("") else { return };
    let outage = |lasts| {
        server.stop("immediate");
        std::thread::sleep(lasts);
        server.restart();
    };
    rivals::kill_one_of_two(&Place::postgres(&server.url()), Some(&outage)).await;
}
