//! The context of the core: the values that an input can read, and the effects that the shell performs.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        Config, Durable, Event, Failure, Recovery, Response,
        phase::{DispatchedToolCall, OpNumber},
    },
    message::{Timestamp, ToolResult, ToolUse, ToolUseId, TurnId},
    provider::Model,
    run::Error,
    tool::{Answer, Decision, Replay, ToolSet},
};

/// The values that one input can read, and the list of the input's effects.
pub(in crate::agent) struct CoreInputContext<'a> {
    /// Returns the time for new messages. The field is a function because most inputs, especially deltas, create no
    /// message and need no time.
    pub(in crate::agent) now: &'a dyn Fn() -> Timestamp,
    /// The configuration in force.
    pub(in crate::agent) config: &'a Config,
    /// The tools that were offered in the current request.
    pub(in crate::agent) tools: &'a ToolSet,
    /// Returns a random id for a new turn.
    pub(in crate::agent) turn_id: &'a dyn Fn() -> TurnId,
    /// The number of prompts that may be staged.
    pub(in crate::agent) max_staged: usize,
    /// The number of tools of a step that run at once.
    pub(in crate::agent) at_once: usize,
    /// The level at which new runs are recorded.
    pub(in crate::agent) records: Durable,
    /// Returns the declaration of a model's provider.
    pub(in crate::agent) replay: &'a dyn Fn(&Model) -> Replay,
    /// Returns the reason why no run may start now, if there is one.
    pub(in crate::agent) hold: &'a dyn Fn() -> Option<String>,
    /// The actions for the shell, in order.
    pub(in crate::agent) effects: Vec<AgentEffect>,
}

impl CoreInputContext<'_> {
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Returns whether uses of the tool with this name need an approval.
    pub(super) fn requires_approval(&self, tool: &str) -> bool {
        self.tools.requires_approval(tool) || self.config.requires_approval(tool)
    }

    pub(super) fn push(&mut self, effect: AgentEffect) {
        self.effects.push(effect);
    }

    /// Performs an effect. If `recorded` is true, records the state first, and holds the effect until this record is
    /// stored.
    pub(super) fn gate(&mut self, recorded: bool, effect: AgentEffect) {
        if recorded {
            self.push(AgentEffect::Record);
        }
        self.hold_back(recorded, effect);
    }

    /// Performs an effect. If `recorded` is true, holds the effect until the last record is stored.
    pub(super) fn hold_back(&mut self, recorded: bool, effect: AgentEffect) {
        self.push(if recorded { AgentEffect::Held(Box::new(effect)) } else { effect });
    }

    /// If `recorded` is true, requests a record of the state after a delay. Nothing waits for this record.
    pub(super) fn record_soon(&mut self, recorded: bool) {
        if recorded {
            self.push(AgentEffect::RecordSoon);
        }
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.push(AgentEffect::Emit(event));
    }
}

/// An action for the shell.
#[derive(Debug)]
pub(in crate::agent) enum AgentEffect {
    /// Emit an event.
    Emit(Event),
    /// Call a callback. Its outcome is reported to the core with this operation number.
    Call(OpNumber, CallbackCall),
    /// Drop all work in progress: the callback, the exchange with the provider, the tools, the delay.
    Abort,
    /// Drop the running callback, if there is one.
    DropCall,
    /// Record the state that results from this input. The next event of the input carries the record.
    Record,
    /// Record the state after a delay, unless another effect records it earlier. Nothing waits for this record.
    RecordSoon,
    /// Perform the contained effect when the most recent record is stored. `Abort` drops it.
    Held(Box<AgentEffect>),
    /// Report to the core that a record is stored, with this operation number. This effect is always inside
    /// [`Held`](Self::Held).
    Return(OpNumber),
    /// Ask for a permit for the prepared request. Then report the permit to the core if the agent makes records, and
    /// otherwise connect at once. Deltas are reported to the core with this operation number.
    Open(OpNumber),
    /// Ask for a permit for the request for the planned summary, and continue as with `Open`.
    Summarise(OpNumber),
    /// Send the request that has its permit.
    Connect(OpNumber),
    /// Answer the provider's question.
    Answer(Decision),
    /// Answer the question of a running tool that has this id.
    AnswerTool(ToolUseId, Answer),
    /// Drop the running tool in this slot, because a decision has provided its result.
    EndTool(usize),
    /// Run these tools, in addition to those that already run with this operation number. Results are reported to the
    /// core with this number. If tools with the same number are held, these tools start together with them.
    RunTools(OpNumber, Vec<DispatchedToolCall>),
    /// Wait for this delay, then report to the core with this operation number.
    Delay(OpNumber, Duration),
    /// Report to the core when the turn's time limit, which starts now, has passed. `None` removes the limit.
    Watch(Option<Duration>),
    /// Like `Watch`, for a turn that has already taken the time `spent`.
    WatchOn { limit: Duration, spent: Duration },
    /// Pause the turn's time limit while a decision is pending (`true`), or let it continue (`false`).
    FreezeWatch(bool),
    /// Report to the core if this tool use still waits for a decision after this time. The timer is dropped when the
    /// pause ends.
    Expire(ToolUseId, Duration),
    /// Send this result to the caller of `ask`.
    Resolve(Result<Arc<Response>, Error>),
}

impl AgentEffect {
    /// Returns the effect to be held in place of the effect that is held already: both, if tools wait to start.
    pub(in crate::agent) fn after(self, held: Option<Self>) -> Self {
        match (held, self) {
            (Some(Self::RunTools(op, mut calls)), Self::RunTools(own, more)) if op == own => {
                calls.extend(more);
                Self::RunTools(op, calls)
            }
            (_, effect) => effect,
        }
    }
}

/// A callback to call. Large arguments are boxed, because a call is moved several times before it is made.
#[derive(Clone, Debug)]
pub(in crate::agent) enum CallbackCall {
    PrepareStep,
    HandleToolUse(Box<ToolUse>),
    HandleToolResult(Box<ToolResult>),
    HandleTurn(Arc<Response>),
    HandleError(Box<Failure>),
    HandleEvent,
    HandleRecovery(Box<Recovery>),
}

impl CallbackCall {
    /// The name of the callback `handle_tool_use`.
    pub(in crate::agent) const HANDLE_TOOL_USE: &str = "handle_tool_use";

    pub(in crate::agent) fn name(&self) -> &'static str {
        match self {
            Self::PrepareStep => "prepare_step",
            Self::HandleToolUse(_) => Self::HANDLE_TOOL_USE,
            Self::HandleToolResult(_) => "handle_tool_result",
            Self::HandleTurn(_) => "handle_turn",
            Self::HandleError(_) => "handle_error",
            Self::HandleEvent => "handle_event",
            Self::HandleRecovery(_) => "handle_recovery",
        }
    }
}
