//! Runs random schedules of inputs. This module contains the parts that the simulators of several cores share.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

/// The result of a check. The error describes the broken invariant.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Returns from a check with an error message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
pub(crate) use ensure;

/// A simulated environment of a core, created from a seed.
pub(crate) trait Simulated {
    /// Creates the environment. If `trace` is set, the environment records its inputs.
    fn begin(seed: u64, trace: bool) -> Self;

    /// Runs the whole schedule. Returns an error if an invariant breaks.
    fn run(&mut self) -> Check;

    /// Returns the recorded inputs.
    fn lines(&self) -> &[String];
}

/// Runs as many schedules as the environment variable `OMNI_SCHEDULES` specifies (`usual` if it is not set), or only
/// the schedule with the seed in `OMNI_SEED`. The panic message contains a command that replays the schedule, with
/// `tests` as the test filter.
///
/// # Panics
///
/// Panics if a schedule breaks an invariant. The message contains the seed of the first such schedule.
pub(crate) fn play_all<W: Simulated>(usual: u64, tests: &str) {
    if let Some(seed) = number_from_env("OMNI_SEED") {
        return play::<W>(seed, true).unwrap_or_else(|breach| panic!("schedule {seed}: {breach}"));
    }
    let schedules = number_from_env("OMNI_SCHEDULES").unwrap_or(usual);
    let (next, broken) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while !broken.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= schedules {
                return None;
            }
            if let Err(breach) = play::<W>(seed, false) {
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
        panic!("schedule {seed}: {breach}\nreplay it: OMNI_SEED={seed} cargo test --lib {tests}");
    }
}

/// Runs the schedule of `seed`. Returns an error if an invariant breaks.
fn play<W: Simulated>(seed: u64, trace: bool) -> Check {
    let mut world = W::begin(seed, trace);
    let played = catch_unwind(AssertUnwindSafe(|| world.run()));
    let outcome = played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    });
    for line in world.lines() {
        println!("{line}");
    }
    outcome
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}
