//! Two processes that share a store. One of them is killed every second, and the other one continues its turns.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    arena::{Process, seed, setting},
    check,
    facts::Facts,
    life::Order,
    place::{self, Place},
};

/// An operation that stops a server, leaves it down for this time, and starts it again.
pub(crate) type Outage<'a> = &'a dyn Fn(Duration);

/// Kills one of two processes every second for `OMNI_SECONDS`, and lets the last two finish. With an outage, the store
/// fails every 5 to 40 seconds.
pub(crate) async fn kill_one_of_two(place: &Place, outage: Option<Outage<'_>>) {
    let (seed, seconds) = (seed(), setting("OMNI_SECONDS", 300));
    let mut random = StdRng::seed_from_u64(seed);
    let mut lives = 0;
    let order =
        |prefix: &str| Order { prefix: prefix.to_owned(), has_rivals: true, ..Order::new(place, seed) };
    let mut start = |mut order: Order| {
        lives += 1;
        order.life = lives;
        (Process::start(&order, "open"), order)
    };
    let mut two = ["left-", "right-"].map(|prefix| start(order(prefix)));
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    let (mut kills, mut outages) = (0, 0);
    let mut next_outage = Duration::from_secs(random.random_range(5..=40));
    while begun.elapsed() < limit {
        sleep(Duration::from_secs(1));
        if let Some(outage) = outage.filter(|_| begun.elapsed() > next_outage) {
            outage(Duration::from_millis(random.random_range(0..1_500)));
            outages += 1;
            next_outage = begun.elapsed() + Duration::from_secs(random.random_range(5..=40));
        }
        let victim = &mut two[random.random_range(0..2)];
        let order = victim.1.clone();
        let old = std::mem::replace(victim, start(order));
        old.0.kill();
        kills += 1;
    }
    let orders = two.map(|(process, order)| {
        process.kill();
        Order { finishes: true, ..order }
    });
    for (process, _) in orders.map(&mut start) {
        process.finish();
    }
    let store = place::open(&place.address).await.unwrap();
    let counts = check::check_end(store, &Facts::read(&place.ledger())).await;
    println!(
        "{}: {kills} kills, {outages} outages, {counts:?}",
        order("").address.split(' ').next().unwrap()
    );
    assert!(counts.committed > 0, "no turn was completed");
}
