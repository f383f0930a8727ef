//! A simulator of the core. A seeded world plays the shell, the callbacks, the provider and the tools. A model checks
//! the core's events and effects.
//!
//! - `cargo test --lib simulation` runs 20,000 schedules.
//! - `OMNI_SCHEDULES=1000000 cargo test --release --lib simulation` runs more.
//! - `OMNI_SEED=17 cargo test --lib simulation` replays one schedule and prints its inputs.
//!
//! A schedule consists of some dozens of inputs, which depend only on the schedule's seed. The inputs are commands at
//! any moment, outcomes of effects (in any order, late or never), and outcomes of operations that have already ended
//! ("ghosts"). Sometimes, the core is recorded and read again between two inputs. After these inputs, the world becomes
//! friendly: it reports all outcomes and no longer interferes. Then every operation in progress must end.

mod asks;
mod backups;
mod blocks;
mod budgets;
mod commands;
mod compare;
mod desk;
mod ends;
mod follows;
mod ghosts;
mod ids;
mod model;
mod outcomes;
mod outputs;
mod owner;
mod pauses;
pub(crate) mod process;
mod questions;
mod queue;
mod regressions;
mod stream;
mod world;

use world::World;

use crate::actor::simulation::{Check, Simulated, ensure, play_all};

#[test]
fn random_schedules_keep_the_contract() {
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
