//! A simulator of the core. A seeded world plays the shell, the callbacks, the provider and the tools. A model checks
//! the core's events and effects.
//!
//! - `cargo test --lib simulation` runs 8,000 schedules.
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

use crate::{
    actor::simulation::{Check, Simulated, ensure, play_all},
    agent::{CompactionPolicy, ResolvedCompactionPolicy},
    provider::ModelInfo,
};

#[test]
fn random_schedules_keep_the_contract() {
    play_all::<World>(8_000, "agent::core::simulation");
}

/// A policy under which no compaction is due changes nothing until a service refuses a conversation as too long.
#[test]
fn policy_without_compactions_changes_no_schedule() {
    let played = |seed, has_policy: bool| {
        let mut world = World::new(seed, true);
        if world.config.compactor().is_some() || !world.config.backups().is_empty() {
            return None;
        }
        let info = ModelInfo::new("model").with_context_window(u64::MAX).with_output_limit(1);
        world.config.model = world.config.model.with_info(info);
        world.is_uncompacted = true;
        if has_policy {
            let policy = CompactionPolicy::default().with_kept_turns(u32::MAX);
            world.config.set_compactor(Some(ResolvedCompactionPolicy {
                policy,
                model: None,
                acts_at_end: true,
            }));
        }
        world.play().unwrap_or_else(|breach| panic!("schedule {seed}: {breach}"));
        let is_overflow = |line: &String| line.contains("context too long") || line.contains("ContextLength");
        Some(world.trace().iter().take_while(|line| !is_overflow(line)).cloned().collect::<Vec<_>>())
    };
    for seed in 0..1_000 {
        let (with, without) = (played(seed, true), played(seed, false));
        let differs =
            with.iter().flatten().zip(without.iter().flatten()).find(|(with, without)| with != without);
        assert_eq!(differs, None, "schedule {seed}");
        assert_eq!(with, without, "schedule {seed}");
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
