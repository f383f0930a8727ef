//! Turns that survive the end of their process: the levels, the records that an agent makes, and the recovery.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use futures_util::task::AtomicWaker;
use serde::{Deserialize, Serialize};

use super::{Config, TurnRecord, core::AgentCore};
use crate::{
    message::{History, Message, Timestamp, ToolUse, ToolUseId, TurnId},
    setters::setters,
    tool::Replay,
};

/// The greatest number of restarts without progress. A turn with more is interrupted instead of resumed.
pub(crate) const MAX_LIVES: u32 = 5;

/// The delay of records for which nothing waits, if the application sets no other delay.
pub(crate) const RECORD_DELAY: Duration = Duration::from_millis(50);

/// How much of a turn in flight survives the end of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durable {
    /// Committed turns are stored, and a turn in flight is lost.
    #[default]
    Turns,
    /// As `InFlight`, but only from a turn's first pause on. An approval then waits in the store.
    Approvals,
    /// The turn in flight is stored at each point after which something must not be lost or happen twice.
    InFlight,
}

/// The treatment of a tool use whose tool was running when its process ended, if the tool must not run twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUncertain {
    /// The model gets an error result, which states that it is not known whether the tool took effect.
    #[default]
    Report,
    /// The turn pauses, and the tool use waits for a decision. The pause has an id that no earlier pause had: see
    /// [`PendingUse::asked_by`](crate::run::PendingUse::asked_by).
    Ask,
}

/// The decision of [`handle_recovery`](super::AgentCallbacks::handle_recovery).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecoveryDecision {
    /// Continue the turn.
    #[default]
    Resume,
    /// Interrupt the run, and keep its completed steps.
    Interrupt,
    /// Cancel the run, and discard the messages of the turn in flight.
    Discard,
}

/// The treatment of a turn in flight when its conversation is opened again.
/// [`handle_recovery`](super::AgentCallbacks::handle_recovery) can change it for each turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recover {
    /// Whether the turn continues.
    pub decision: RecoveryDecision,
    /// The treatment of tool uses whose outcome is not known.
    pub on_uncertain: OnUncertain,
}

setters!(Recover: with_decision(decision: RecoveryDecision), with_on_uncertain(on_uncertain: OnUncertain));

/// The activity of a turn that is about to continue after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecordedStage {
    /// The next request was being prepared, or was not sent yet.
    Preparing,
    /// The request was sent, and its response was not complete.
    Streaming,
    /// The tool uses of a response were being decided on.
    Deciding,
    /// At least one tool use waits for a decision.
    Paused,
    /// Tools were running.
    Executing,
    /// The results of tools were being reviewed by `handle_tool_result`.
    Reviewing,
    /// `handle_turn` was running.
    Concluding,
    /// `handle_error` was running.
    Failing,
    /// The repetition of a step was delayed.
    Delaying,
}

/// A turn in flight that is about to continue after a restart. See
/// [`handle_recovery`](super::AgentCallbacks::handle_recovery).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recovery {
    /// The id of the turn.
    pub turn: TurnId,
    /// The activity at which the turn continues.
    pub stage: RecordedStage,
    /// The time since the turn was first recorded.
    pub age: Duration,
    /// The number of restarts since the turn last made progress.
    pub lives: u32,
    /// The messages of the turn so far.
    pub pending: Vec<Arc<Message>>,
    /// The tool uses whose tools were running. Tools that must not run twice follow
    /// [`on_uncertain`](UncertainUse::on_uncertain). The others run again.
    pub uncertain: Vec<UncertainUse>,
    /// The decision that was set with [`Recover`].
    pub decision: RecoveryDecision,
}

/// A tool use whose outcome is not known, because its tool was running when its process ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UncertainUse {
    /// The tool use, with the input with which the tool was run.
    pub tool_use: ToolUse,
    /// The stricter one of the tool's declarations at its start and now. `Never` if the tool does not exist any more.
    pub replay: Replay,
    /// The idempotency key of the call. A repetition has the same key.
    pub idempotency_key: Arc<str>,
    /// The treatment, if the tool is declared as [`Replay::Never`].
    pub on_uncertain: OnUncertain,
}

/// A state of the agent to be stored. The effects and replies that wait for the record's number, or for a lower one,
/// are released when the state is stored.
#[derive(Debug)]
pub(crate) struct RecordToStore {
    pub(crate) number: u64,
    /// The turn in flight. `None` if no recorded turn is in flight any more.
    pub(crate) turn: Option<TurnRecord>,
}

/// The number of the last record that is stored. The history's owner raises it, and the agent's task waits for it.
#[derive(Debug, Default)]
pub(crate) struct LastStoredRecordNumber {
    number: AtomicU64,
    waker: AtomicWaker,
}

impl LastStoredRecordNumber {
    /// Reports that all records up to this number are stored.
    pub(crate) fn report(&self, number: u64) {
        self.number.fetch_max(number, Ordering::AcqRel);
        self.waker.wake();
    }

    /// Returns the number of the last stored record. The waker is woken when the number rises.
    pub(super) fn poll(&self, waker: &Waker) -> u64 {
        self.waker.register(waker);
        self.number()
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }
}

/// The reason why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnreadableTurnReason {
    /// A newer version of the crate has written the record.
    Newer { format: u32 },
    /// The record is damaged. The value is the problem.
    Damaged(String),
}

/// The format of records that this version writes.
pub(super) const FORMAT: u32 = 1;

/// A recorded turn in flight, with which an agent starts.
#[derive(Debug)]
pub(crate) struct TurnInFlight {
    pub(super) core: AgentCore,
    /// The name of the model of the turn's prompt, if the prompt has one.
    model: Option<String>,
    pub(super) facts: RecoveryFacts,
}

/// The facts about a recovery that are not part of the agent's state.
#[derive(Debug, Default)]
pub(super) struct RecoveryFacts {
    pub(super) lives: u32,
    pub(super) age: Duration,
    pub(super) recover: Recover,
    /// The time since which each tool use waits, and the end of its time limit.
    pub(super) waits: Vec<(ToolUseId, Timestamp, Option<Timestamp>)>,
}

impl TurnInFlight {
    /// Reads the sum of a turn's records. `history` is the history to which the turn's messages are added. `fallback`
    /// is the history that is restored if the run commits no turn.
    ///
    /// # Errors
    ///
    /// Returns the reason why the record cannot be read.
    pub(crate) fn read(
        record: TurnRecord,
        history: &History,
        fallback: Option<History>,
    ) -> Result<Self, UnreadableTurnReason> {
        let facts = RecoveryFacts { lives: record.lives, ..RecoveryFacts::default() };
        let (core, model) = AgentCore::restore(record, history.clone(), fallback)?;
        Ok(Self { core, model, facts })
    }

    /// Returns the activity at which the turn continues.
    #[cfg(test)]
    pub(crate) fn stage(&self) -> RecordedStage {
        self.core.recorded_stage()
    }

    /// Returns whether the turn only waits at the time `now`: for decisions, or for the end of a delay.
    pub(crate) fn only_waits(&self, now: Timestamp) -> bool {
        self.core.only_waits(now)
    }

    /// Sets the number of restarts since the turn last made progress.
    pub(crate) fn with_lives(mut self, lives: u32) -> Self {
        self.facts.lives = lives;
        self
    }

    /// Returns the agent's state and the facts about the recovery. If the turn's prompt selects a model whose name can
    /// be resolved with `config`, the state contains this model.
    pub(super) fn start(self, config: &Config) -> (AgentCore, RecoveryFacts) {
        let Self { mut core, model, facts } = self;
        core.lives = facts.lives;
        if let Some(name) = model {
            let mut own = config.clone();
            match own.set_model(&*name) {
                Ok(()) => core.set_prompt_model(own.model),
                Err(error) => tracing::warn!(
                    model = name,
                    %error,
                    "the turn in flight continues with the agent's model because its own model is unknown"
                ),
            }
        }
        (core, facts)
    }

    setters! {
        /// Sets the time since the turn was first recorded.
        pub(crate) fn with_age(self, age: Duration) { self.facts.age = age }

        /// Sets the treatment of the turn.
        pub(crate) fn with_recover(self, recover: Recover) { self.facts.recover = recover }

        /// Sets the time since which each tool use waits, and the end of its time limit. By default, they are those of
        /// the record.
        pub(crate) fn with_waits(self, waits: Vec<(ToolUseId, Timestamp, Option<Timestamp>)>) {
            self.facts.waits = waits;
        }
    }
}
