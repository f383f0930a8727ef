//! A simulator of the core: a seeded world plays agent, shell, store and other writers, and a model checks what the core
//! makes of it.
//!
//! - `cargo test --lib session::core::simulation` runs 2,500 schedules.
//! - `OMNI_SCHEDULES=1000000 cargo test --release --lib session::core::simulation` runs more.
//! - `OMNI_SEED=17 cargo test --lib session::core::simulation` replays one and prints what went in.
//!
//! A schedule is some dozens of inputs, drawn from its seed alone: events of an agent that runs ahead, moves, titles,
//! and a store that is slow, fails, loses its answers, hangs and belongs to others too. The process may die at any
//! moment, and another goes on with what is stored. At its end the store works again, and everything must be in it.

mod agent;
mod commands;
mod ledger;
mod model;
mod regressions;
mod start;
mod vault;
mod world;
mod writes;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use world::World;

/// What a check found broken.
type Check<T = ()> = Result<T, String>;

/// Returns from a check with words unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
use ensure;

const SCHEDULES: u64 = 2_500;

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Plays the schedule of `seed`; what broke, if something did.
fn play(seed: u64, trace: bool) -> Check {
    let mut world = World::new(seed, trace);
    let played = catch_unwind(AssertUnwindSafe(|| world.play()));
    let outcome = played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    });
    for line in world.trace() {
        println!("{line}");
    }
    outcome
}

#[test]
fn schedules_at_random_keep_the_contract() {
    if let Some(seed) = number_from_env("OMNI_SEED") {
        return play(seed, true).unwrap_or_else(|breach| panic!("schedule {seed}: {breach}"));
    }
    let schedules = number_from_env("OMNI_SCHEDULES").unwrap_or(SCHEDULES);
    let (next, broken) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while !broken.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= schedules {
                return None;
            }
            if let Err(breach) = play(seed, false) {
                broken.store(true, Ordering::Relaxed);
                return Some((seed, breach));
            }
        }
        None
    };
    let breach = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("breaches are caught")).min()
    });
    if let Some((seed, breach)) = breach {
        panic!(
            "schedule {seed}: {breach}\n\
             replay it: OMNI_SEED={seed} cargo test --lib session::core::simulation"
        );
    }
}
