//! The promises of an agent that hold over all lives.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        PendingUse,
        core::ending::NOT_RUN,
        phase::{DispatchedToolCall, Turn},
    },
    message::{Message, ToolUseId, TurnId},
    tool::Replay,
};

/// The reply to a caller, which promises something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// The prompt with this text is accepted.
    Prompt(String),
    /// The decision about this tool use is accepted.
    Decision(TurnId, ToolUseId),
    /// The run with this turn is over.
    Ended(TurnId),
    /// The response of this turn.
    Answer(TurnId),
    /// The compaction of this turn.
    Compaction(TurnId),
}

/// The calls of one tool use.
#[derive(Clone)]
struct Calls {
    count: usize,
    key: Arc<str>,
    input: Value,
}

#[derive(Clone, Default)]
pub(crate) struct Oracle {
    calls: HashMap<(TurnId, u32, ToolUseId), Calls>,
    /// The number of additional calls that persons have allowed, by key.
    allowed: HashMap<String, usize>,
    /// The requests that must not be repeated.
    requests: HashSet<(TurnId, u32)>,
    /// The prompts whose acceptance was acknowledged.
    pub(crate) acknowledged: HashSet<String>,
    /// The turns whose response was returned.
    pub(crate) answered: HashSet<TurnId>,
    decided: HashSet<(TurnId, ToolUseId)>,
    ended: HashSet<TurnId>,
}

impl Oracle {
    /// Checks a call that begins, together with all earlier calls for the same tool use.
    pub(super) fn starts(&mut self, turn: &Turn, call: &DispatchedToolCall, replay: Replay) -> Check {
        if replay == Replay::Safe {
            return Ok(());
        }
        let own = self.calls.entry((turn.id, turn.step, call.tool_use.id.clone())).or_insert_with(|| Calls {
            count: 0,
            key: Arc::clone(&call.idempotency_key),
            input: call.tool_use.input.clone(),
        });
        own.count += 1;
        keyed_calls_agree(own, call)?;
        let allowed = 1 + self.allowed.get(&*own.key).copied().unwrap_or_default();
        never_starts_twice(own.count, allowed, call, replay)
    }

    /// Checks the results in a message of this step: no result states that a tool was not run if its call has begun.
    pub(super) fn results(&self, turn: TurnId, step: u32, message: &Message) -> Check {
        for result in message.tool_results().filter(|result| result.text().ends_with(NOT_RUN)) {
            let call = self.calls.get(&(turn, step, result.tool_use_id.clone()));
            ensure!(
                call.is_none(),
                "{} has begun, but its result is {:?}",
                result.tool_use_id,
                result.text()
            );
        }
        Ok(())
    }

    /// Records that a person allows another call with this key.
    pub(crate) fn allow(&mut self, key: &str) {
        *self.allowed.entry(key.to_owned()).or_default() += 1;
    }

    /// Checks a request that is sent.
    pub(super) fn requests(&mut self, turn: TurnId, step: u32, replay: Replay) -> Check {
        let is_new = self.requests.insert((turn, step));
        ensure!(is_new || replay != Replay::Never, "the request of step {step} is sent again");
        Ok(())
    }

    pub(crate) fn acknowledge(&mut self, reply: Reply) {
        match reply {
            Reply::Prompt(text) => drop(self.acknowledged.insert(text)),
            Reply::Decision(turn, tool_use) => drop(self.decided.insert((turn, tool_use))),
            Reply::Ended(turn) => drop(self.ended.insert(turn)),
            Reply::Answer(turn) | Reply::Compaction(turn) => drop(self.answered.insert(turn)),
        }
    }

    /// Checks a pause that waits after an input: an acknowledged decision is never asked for again.
    pub(super) fn decided_once(&self, pause: &PendingUse) -> Check {
        let is_decided = self.decided.contains(&(pause.turn, pause.tool_use.id.clone()));
        ensure!(!is_decided, "{} was decided, and waits again", pause.tool_use.id);
        Ok(())
    }

    /// Returns whether a decision about this tool use was acknowledged.
    pub(crate) fn is_decided(&self, turn: TurnId, tool_use: &ToolUseId) -> bool {
        self.decided.contains(&(turn, tool_use.clone()))
    }

    /// Checks a turn that continues after a restart: its end was not acknowledged.
    pub(super) fn over_stays_over(&self, turn: TurnId) -> Check {
        ensure!(!self.ended.contains(&turn), "the end of turn {turn} was acknowledged, and it continues");
        Ok(())
    }

    /// Returns the number of calls of tools that are not safe, and of requests that must not be repeated, so far.
    pub(crate) fn effects(&self) -> usize {
        self.calls.values().map(|calls| calls.count).sum::<usize>() + self.requests.len()
    }

    /// Returns the number of calls that were begun with a key.
    pub(crate) fn keyed(&self) -> usize {
        self.calls.len()
    }
}

/// A repetition has the key and the input of the first call.
fn keyed_calls_agree(first: &Calls, call: &DispatchedToolCall) -> Check {
    ensure!(first.key == call.idempotency_key, "{call:?} had the key {} before", first.key);
    ensure!(first.input == call.tool_use.input, "{call:?} had the input {} before", first.input);
    Ok(())
}

/// A call that must not run twice begins once, and once more for each time that a person allows it.
fn never_starts_twice(count: usize, allowed: usize, call: &DispatchedToolCall, replay: Replay) -> Check {
    ensure!(replay != Replay::Never || count <= allowed, "{call:?} begins {count} times");
    Ok(())
}
