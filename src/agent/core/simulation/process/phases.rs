//! The names of the phases of an agent.

use crate::agent::phase::{AfterEventCallback, AgentPhase, AgentTurnStage};

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
pub(super) fn name(phase: &AgentPhase) -> &'static str {
    let index = match phase {
        AgentPhase::Idle => 0,
        AgentPhase::Noticing { then: AfterEventCallback::Rest, .. } => 1,
        AgentPhase::Noticing { then: AfterEventCallback::Continue(_), .. } => 2,
        AgentPhase::InTurn { turn, stage, .. } => match stage {
            AgentTurnStage::Noticing { .. } => 3,
            AgentTurnStage::Preparing => 4,
            AgentTurnStage::Streaming { question: None, .. } => 5,
            AgentTurnStage::Streaming { question: Some(_), .. } => 6,
            AgentTurnStage::Deciding { .. } => 7,
            AgentTurnStage::Paused { .. } => 8,
            AgentTurnStage::Executing { questions, .. } if questions.is_empty() => 9,
            AgentTurnStage::Executing { .. } => 10,
            AgentTurnStage::Reviewing { .. } => 11,
            AgentTurnStage::Concluding { .. } => 12,
            AgentTurnStage::Failing { .. } => 13,
            AgentTurnStage::Delaying { .. } => 14,
            AgentTurnStage::Recovering(_) => 15,
            AgentTurnStage::Compacting { .. } => 16 + usize::from(turn.compaction.is_some()),
        },
    };
    PHASES[index]
}
