//! Random schedules of trees of sub-agents, through crashes.
//!
//! A schedule has one root, whose agent and whose sub-agents do what the seed says. People decide, stop, close, label,
//! erase and delete. Processes hand their work over, or die at any await. Time is paused, and all choices follow from the
//! seed, except the order in which tokio wakes the watchers of a value. The store delays each call, so that processes also
//! die between two writes.
//!
//! - `cargo test --test durable trees` runs some schedules. `OMNI_SCHEDULES` sets their number. `OMNI_SEED` runs a single
//!   one until it fails, at most 30 times, and prints its events.

mod oracle;
mod people;
mod place;
mod team;
mod world;

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use omni_agent::store::MemoryStore;
use tokio::time::timeout;

use self::{
    people::People,
    team::Life,
    world::{Dice, World},
};

/// The number of schedules in a usual run.
const USUAL: u64 = 40;

/// The number of times that a single schedule is run until it fails.
const REPLAYS: usize = 30;

/// The longest time of a life, on the paused clock.
const LONGEST: Duration = Duration::from_hours(2);

#[test]
fn trees_of_sub_agents_keep_the_contract_through_crashes() {
    if let Some(seed) = number("OMNI_SEED") {
        let mut plays = (0..REPLAYS).map(|_| play(seed));
        let last = plays.find(|(played, _)| played.is_err()).unwrap_or_else(|| play(seed));
        last.1.iter().for_each(|line| println!("{line}"));
        return last.0.unwrap_or_else(|breach| panic!("schedule {seed}: {breach}"));
    }
    let schedules = number("OMNI_SCHEDULES").unwrap_or(USUAL);
    let (next, is_broken) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while !is_broken.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= schedules {
                return None;
            }
            let (played, lines) = play(seed);
            if let Err(breach) = played {
                is_broken.store(true, Ordering::Relaxed);
                return Some((seed, breach, lines));
            }
        }
        None
    };
    let breach = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("breaches are caught")).min()
    });
    if let Some((seed, breach, lines)) = breach {
        let last = &lines[lines.len().saturating_sub(40)..];
        let replay = format!("replay it: OMNI_SEED={seed} cargo test --test durable trees_of");
        panic!("schedule {seed}: {breach}\n{}\n{replay}", last.join("\n"));
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs the schedule of `seed`. Returns its events, and an error if a promise is broken.
fn play(seed: u64) -> (Result<(), String>, Vec<String>) {
    let world = Arc::new(World::new(seed));
    let played = catch_unwind(AssertUnwindSafe(|| run(&world)));
    let played = played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    });
    (played, world.lines())
}

fn run(world: &Arc<World>) -> Result<(), String> {
    let store = MemoryStore::new();
    let mut dice = Dice::new(world.shape.seed, "lives");
    for number in 0..=world.shape.lives {
        let is_last = number == world.shape.lives;
        let scale = [20, 80, 300][usize::try_from(dice.below(3)).unwrap()];
        let crash = (!is_last).then(|| 1 + dice.below(scale));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let life = Arc::new(Life::new(world, &store, number, crash).await);
            world.note(&life, "begins");
            let people = People::new(&life, &store, is_last);
            let lived = async {
                if timeout(LONGEST, Box::pin(people.live())).await.is_err() {
                    world.breach(format!("life {number} does not end"));
                }
            };
            tokio::select! {
                biased;
                () = life.died() => {}
                () = lived => {}
            }
            life.end();
        });
        // The tasks end with their runtime. The store does nothing more for them.
        drop(runtime);
        world.check()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(oracle::check(world, &store));
    world.check()
}
