//! Starts processes, kills them, and checks the store after each kill.

use std::{
    io::{BufRead, BufReader},
    ops::Range,
    process::Child,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    check,
    facts::Facts,
    life::{self, Life, Order},
    place::{self, Place},
};

/// A process that is killed when this value is dropped, even if a check failed.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Starts a process, and waits until it has printed this word.
    pub(crate) fn start(order: &Order, word: &str) -> Self {
        let mut process = Self(life::spawn(order));
        let lines = BufReader::new(process.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == word), "the process has failed");
        process
    }

    pub(crate) fn kill(mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the process has failed");
    }

    /// Waits until the process ends by itself.
    pub(crate) fn finish(mut self) {
        assert!(self.0.wait().unwrap().success(), "the process has failed");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the value of an environment variable.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Returns the seed of this run, which `OMNI_SEED` can set.
pub(crate) fn seed() -> u64 {
    let seed = setting("OMNI_SEED", rand::random::<u32>().into());
    println!("OMNI_SEED={seed}");
    seed
}

/// Kills one process after another, and lets the last one finish.
pub(crate) async fn kill_one_after_another(place: &Place) {
    // Some processes are killed while they open conversations, and most while they work.
    let moment = |_: u64, random: &mut StdRng| {
        if random.random_bool(0.2) { ("open", 1.0..3.5) } else { ("working", 2.0..5.0) }
    };
    kill_each(Order::new(place, seed()), setting("OMNI_KILLS", 17), moment).await;
}

/// Kills one process after another whose conversations have sub-agents, and lets the last one finish.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn kill_teams(place: &Place) {
    // A process meets the leases of the processes before it.
    let order = Order { has_rivals: true, has_teams: true, ..Order::new(place, seed()) };
    // Every second process is killed while it continues runs, so no run is restarted too often.
    let moment = |number: u64, _: &mut StdRng| {
        if number.is_multiple_of(2) { ("held", 1.0..3.5) } else { ("working", 2.0..5.5) }
    };
    let facts = kill_each(order, setting("OMNI_KILLS", 5), moment).await;
    let store = place::open(&place.address).await.unwrap();
    super::teams::check(&*store, &facts).await;
}

/// Kills one process after another, and lets the last one finish. Returns the facts of all of them.
///
/// `moment` gets the number of the process. It returns the word after which the process is killed, and the range of the
/// exponents of the time until then in microseconds: within this range, all orders of magnitude are equally likely.
async fn kill_each(
    mut order: Order,
    kills: u64,
    moment: impl Fn(u64, &mut StdRng) -> (&'static str, Range<f64>),
) -> Facts {
    let mut random = StdRng::seed_from_u64(order.seed);
    for number in 0..kills {
        order.life += 1;
        let (word, exponents) = moment(number, &mut random);
        let process = Process::start(&order, word);
        let micros = 10_f64.powf(random.random_range(exponents));
        std::thread::sleep(Duration::from_secs_f64(micros / 1e6));
        process.kill();
        let store = place::open(&order.address).await.unwrap();
        check::check(&*store, &Facts::read(&order.ledger)).await;
        if random.random_bool(if order.has_teams { 0.5 } else { 0.2 }) {
            // Somebody decides while no process has the conversation open.
            order.life += 1;
            let order = Order { has_rivals: false, ..order.clone() };
            Life::new(order, store).decide_all().await;
        }
    }
    order.life += 1;
    order.finishes = true;
    Process::start(&order, "open").finish();
    let store = place::open(&order.address).await.unwrap();
    let facts = Facts::read(&order.ledger);
    let counts = check::check_end(store, &facts).await;
    println!("{}: {kills} kills, {counts:?}", order.address.split(' ').next().unwrap());
    assert!(counts.committed > 0, "no turn was completed");
    facts
}
