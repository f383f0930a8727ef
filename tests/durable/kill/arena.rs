//! Starts processes, kills them, and checks the store after each kill.

use std::{
    io::{BufRead, BufReader},
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
    let (seed, kills) = (seed(), setting("OMNI_KILLS", 17));
    let mut random = StdRng::seed_from_u64(seed);
    let mut order = Order {
        address: place.address.clone(),
        ledger: place.ledger(),
        seed,
        life: 0,
        prefix: "talk".to_owned(),
        finishes: false,
        has_rivals: false,
    };
    for _ in 0..kills {
        order.life += 1;
        // Some processes are killed while they open conversations, and most while they work. Within these limits, all
        // orders of magnitude are equally likely.
        let (word, exponents) =
            if random.random_bool(0.2) { ("open", 1.0..3.5) } else { ("working", 2.0..5.0) };
        let process = Process::start(&order, word);
        let micros = 10_f64.powf(random.random_range(exponents));
        std::thread::sleep(Duration::from_secs_f64(micros / 1e6));
        process.kill();
        let store = place::open(&place.address).await.unwrap();
        check::check(&*store, &Facts::read(&order.ledger)).await;
        if random.random_bool(0.2) {
            // Somebody decides while no process has the conversation open.
            order.life += 1;
            Life::new(order.clone(), store).decide_all().await;
        }
    }
    order.life += 1;
    order.finishes = true;
    Process::start(&order, "open").finish();
    let store = place::open(&place.address).await.unwrap();
    let counts = check::check_end(store, &Facts::read(&order.ledger)).await;
    println!("{}: {kills} kills, {counts:?}", order.address.split(' ').next().unwrap());
    assert!(counts.committed > 0, "no turn was completed");
}
