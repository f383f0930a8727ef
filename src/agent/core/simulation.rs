//! A simulator of the core: a seeded world plays shell, callbacks, provider and tools, and a model checks
//! what the core makes of it.
//!
//! - `cargo test --lib simulation` runs 20,000 schedules.
//! - `OMNI_SCHEDULES=1000000 cargo test --release --lib simulation` runs more.
//! - `OMNI_SEED=17 cargo test --lib simulation` replays one and prints what went in.
//!
//! A schedule is some dozens of inputs, drawn from its seed alone: commands at any moment, outcomes of
//! effects in any order, late and never, and ghosts of operations that are over. At its end the world turns
//! friendly, and everything that was begun must come to its end.

mod asks;
mod blocks;
mod commands;
mod compare;
mod desk;
mod ends;
mod ghosts;
mod model;
mod outcomes;
mod outputs;
mod owner;
mod regressions;
mod stream;
mod world;

use world::World;

use crate::actor::simulation::{Check, Simulated, ensure, play_all};

#[test]
fn schedules_at_random_keep_the_contract() {
    play_all::<World>(20_000, "agent::core::simulation");
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
