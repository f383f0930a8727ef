//! The names of the phases of an agent.

use crate::agent::phase::{AfterEvent, Phase, Stage};

/// The names of all phases, with their stages and variants.
pub(crate) const PHASES: [&str; 18] = [
    "idle",
    "noticing at rest",
    "noticing between turns",
    "noticing in a turn",
    "preparing",
    "streaming",
    "asked by the provider",
    "deciding",
    "paused",
    "executing",
    "asked by a tool",
    "reviewing",
    "concluding",
    "failing",
    "delaying",
    "recovering",
    "compacting",
    "compacting alone",
];

/// Returns the name of a phase. A test requires that a process is closed in each phase that has a name.
pub(super) fn name(phase: &Phase) -> &'static str {
    let index = match phase {
        Phase::Idle => 0,
        Phase::Noticing { then: AfterEvent::Rest, .. } => 1,
        Phase::Noticing { then: AfterEvent::Continue(_), .. } => 2,
        Phase::InTurn { turn, stage, .. } => match stage {
            Stage::Noticing { .. } => 3,
            Stage::Preparing => 4,
            Stage::Streaming { question: None, .. } => 5,
            Stage::Streaming { question: Some(_), .. } => 6,
            Stage::Deciding { .. } => 7,
            Stage::Paused { .. } => 8,
            Stage::Executing { questions, .. } if questions.is_empty() => 9,
            Stage::Executing { .. } => 10,
            Stage::Reviewing { .. } => 11,
            Stage::Concluding { .. } => 12,
            Stage::Failing { .. } => 13,
            Stage::Delaying { .. } => 14,
            Stage::Recovering(_) => 15,
            Stage::Compacting { .. } => 16 + usize::from(turn.compaction.is_some()),
        },
    };
    PHASES[index]
}
