//! A simulator for the core. A world that is generated from a seed plays the agent, the session's task, the store and
//! other writers. A reference model checks the behaviour of the core.
//!
//! - `cargo test --lib session::core::simulation` runs 2,500 schedules.
//! - `OMNI_SCHEDULES=1000000 cargo test --release --lib session::core::simulation` runs more.
//! - `OMNI_SEED=17 cargo test --lib session::core::simulation` replays one schedule and prints its inputs.
//!
//! A schedule has some dozens of inputs, which are generated from its seed alone: events of an agent that runs ahead of
//! the session, changes of the path, and other commands, such as changes of the title. The store is slow, fails, loses
//! its replies, hangs and has other writers. The process may die at any moment, and another process continues with the
//! stored conversation. At the end of the schedule, the store works again and everything must be stored.

mod agent;
mod commands;
mod compactions;
mod joined;
mod ledger;
mod model;
mod regressions;
mod start;
mod vault;
mod world;
mod writes;

use commands::LeafFault;
use world::World;

use crate::actor::simulation::{Check, Simulated, ensure, play_all};

#[test]
fn random_schedules_keep_the_contract() {
    play_all::<World>(2_500, "session::core::simulation");
}

#[test]
fn faults_about_unanswered_prompts_are_noticed() {
    for fault in [LeafFault::Extended, LeafFault::ClosesUses] {
        let notices = |seed| {
            let mut world = World::new(seed, false);
            world.fault = Some(fault);
            world.play().is_err()
        };
        assert!((0..2_500).any(notices), "{fault:?}");
    }
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
