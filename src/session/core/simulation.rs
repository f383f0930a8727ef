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

use world::World;

use crate::actor::simulation::{Check, Simulated, ensure, play_all};

#[test]
fn schedules_at_random_keep_the_contract() {
    play_all::<World>(2_500, "session::core::simulation");
}

impl Simulated for World {
    fn begin(seed: u64, trace: bool) -> Self {
        Self::new(seed, trace)
    }

    fn run(&mut self) -> Check {
        self.play()
    }

    fn lines(&self) -> &[String] {
        self.trace()
    }
}
