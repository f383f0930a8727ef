//! Opening a stored conversation, and the turn that was in flight when its last owner ended.
//!
//! The session reads the record, starts the agent with it, counts the restart in the store, and only then lets the
//! agent continue. So a turn that kills its process can't be restarted without an end. If one of these steps fails, the
//! opening fails and the lease is released.

use std::time::Duration;

use crate::{
    agent::{Recover, RecoveryDecision, TurnInFlight, UnreadableTurnReason},
    message::{History, Timestamp},
    run::{BranchPoint, Error, ErrorKind, PromptState, RunEnd, RunOutcome, TurnRecord},
    session::damaged_turn,
    store::{ConversationId, StoredTurn},
    tree::Tree,
};

/// The turn in flight of a loaded conversation.
pub(super) struct LoadedTurn {
    /// The turn, with which the agent starts.
    pub(super) in_flight: TurnInFlight,
    /// The stored records of the turn, combined into one.
    pub(super) record: Box<TurnRecord>,
    /// The history to which the turn's messages are added.
    pub(super) history: History,
    /// The number of restarts without progress, including this restart if it is counted.
    pub(super) lives: u32,
}

/// The treatment of the recorded turn of a loaded conversation.
pub(super) enum RecordedTurnTreatment {
    /// No turn is in flight, or the stored turn is outdated because messages were added after it.
    None,
    /// The turn was read, and the agent starts with it.
    Turn(Box<LoadedTurn>),
    /// The turn can't be read, and is discarded, as [`Recover`] demands. Contains the end of its run.
    Discarded(Box<RunEnd>),
}

impl RecordedTurnTreatment {
    /// Reads the turn in flight of a loaded conversation with this tree. `now` is the time of the store's clock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NewerTurn`] or [`ErrorKind::DamagedTurn`] if the turn can't be read and is not discarded.
    pub(super) fn of(
        id: &ConversationId,
        turn: Option<Box<StoredTurn>>,
        tree: &Tree,
        recover: Recover,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let Some(turn) = turn else { return Ok(Self::None) };
        if !turn.is_on(tree.head()) {
            // A process with an older version of this crate, which ignores stored turns in flight, has continued the
            // conversation.
            tracing::warn!(%id, turn = %turn.record.turn, "a turn in flight is dropped, because messages were added after it");
            return Ok(Self::None);
        }
        let discarded = RunEnd::new(RunOutcome::Discarded).with_turn(turn.record.turn);
        let discarded = closed(discarded.with_prompts(turn.record.prompts.clone()));
        match LoadedTurn::read(*turn, tree, recover, now) {
            Ok(turn) => Ok(Self::Turn(Box::new(turn))),
            Err(error) if recover.decision == RecoveryDecision::Discard => {
                tracing::warn!(%id, %error, "a turn in flight is discarded");
                Ok(Self::Discarded(Box::new(discarded)))
            }
            Err(error) => Err(error),
        }
    }
}

impl LoadedTurn {
    fn read(turn: StoredTurn, tree: &Tree, recover: Recover, now: Timestamp) -> Result<Self, Error> {
        let base = turn.record.branch.map(|branch| base(tree, branch)).transpose()?;
        let (history, fallback) = match base {
            Some(history) => (history, Some(tree.history().clone())),
            None => (tree.history().clone(), None),
        };
        let in_flight =
            TurnInFlight::read(turn.record.clone(), &history, fallback).map_err(|problem| match problem {
                UnreadableTurnReason::Newer { format } => {
                    let text = format!(
                        "the turn in flight has the format {format} of a newer version; open the conversation with \
                         that version, or discard the turn with `SessionBuilder::recover`"
                    );
                    Error::new(ErrorKind::NewerTurn, text).with_member("format", format)
                }
                UnreadableTurnReason::Damaged(problem) => damaged_turn(&problem),
            })?;
        if let Some(problem) = &turn.damage {
            return Err(damaged_turn(problem));
        }
        // A restart is counted only if the turn broke off. A turn that only waits or was handed over did not break off.
        // After a delay, the stored record still contains the delay, but the turn has continued.
        let is_counted = !turn.record.orderly && !in_flight.only_waits(now);
        let lives = turn.record.lives.saturating_add(is_counted.into());
        let age = Duration::from_millis(now.0.saturating_sub(turn.since.0));
        let local = Timestamp::now();
        let waits = turn.approvals().into_iter().filter_map(|pause| {
            let since = local.before(now.since(pause.since?));
            // If the clock was ahead when the tool use began to wait, its limit begins now.
            let left = |limit| Some(pause.expires?.since(now).min(limit));
            Some((pause.tool_use.id, since, pause.limit.and_then(left).map(|left| local.after(left))))
        });
        let in_flight =
            in_flight.with_lives(lives).with_age(age).with_recover(recover).with_waits(waits.collect());
        Ok(Self { in_flight, record: Box::new(turn.record), history, lives })
    }
}

/// Returns the history up to the node where a branch starts.
fn base(tree: &Tree, branch: BranchPoint) -> Result<History, Error> {
    let damaged = |node| damaged_turn(&format!("the tree has no node {node}"));
    let mut tree = tree.clone();
    if let Some(answers) = branch.answers
        && tree.node(answers).is_none_or(|node| node.parent() != branch.base)
    {
        return Err(damaged(answers));
    }
    match branch.base {
        Some(base) => tree.navigate(base).map_err(|_| damaged(base))?,
        None => tree.clear(),
    }
    Ok(tree.history().clone())
}

/// Completes the stored end of a run that does not continue: removes staged prompts, which were never used, and gives
/// prompts in flight the outcome of the run. Prompts are stored in these states if the run has ended with its process.
pub(crate) fn closed(mut end: RunEnd) -> RunEnd {
    end.prompts.retain(|prompt| prompt.state != PromptState::Staged);
    for prompt in end.prompts.iter_mut().filter(|prompt| !prompt.is_over()) {
        prompt.state = PromptState::Ended { outcome: end.outcome.clone() };
    }
    end
}
