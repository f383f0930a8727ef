//! The surroundings of the core: what an input can read, and the effects that the shell performs.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        AgentError, Config, Event, Failure, Response,
        phase::{Op, ToolCall},
    },
    message::{Timestamp, ToolResult, ToolUse},
    tool::{Decision, ToolSet},
};

/// The surroundings of one input, and the list of its effects.
pub(in crate::agent) struct Context<'a> {
    /// Returns the time, for new messages. This is a function because most inputs, above all deltas, create no message.
    pub(in crate::agent) now: &'a dyn Fn() -> Timestamp,
    /// The configuration in force.
    pub(in crate::agent) config: &'a Config,
    /// The tools that the current request offered.
    pub(in crate::agent) tools: &'a ToolSet,
    /// Returns a random id for a new turn.
    pub(in crate::agent) turn_id: &'a dyn Fn() -> u128,
    /// Returns the reason why no run may start now, if there is one.
    pub(in crate::agent) hold: &'a dyn Fn() -> Option<String>,
    /// The actions for the shell, in order.
    pub(in crate::agent) effects: Vec<Effect>,
}

impl Context<'_> {
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.push(Effect::Emit(event));
    }
}

/// An action for the shell.
#[derive(Debug)]
pub(in crate::agent) enum Effect {
    /// Emit an event.
    Emit(Event),
    /// Call a callback. Its outcome comes back with this number.
    Call(Op, Call),
    /// Drop all work in progress: the callback, the exchange with the provider, the tools, the delay.
    Abort,
    /// Drop the running callback, if there is one.
    DropCall,
    /// Send the prepared request. Deltas come back with this number.
    Open(Op),
    /// Answer the provider's question.
    Answer(Decision),
    /// Run these tools. Results come back with this number.
    RunTools(Op, Vec<ToolCall>),
    /// Report with this number when this delay has passed.
    Delay(Op, Duration),
    /// Report when this time has passed from now on, which is the turn's limit. `None` for no limit.
    Watch(Option<Duration>),
    /// Stop the turn's clock while a decision is pending, or continue it.
    FreezeWatch(bool),
    /// Send this result to the caller of `ask`.
    Resolve(Result<Arc<Response>, AgentError>),
}

/// A callback to call. Large arguments are boxed, because every agent has room for one call.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Call {
    PrepareStep,
    HandleToolUse(Box<ToolUse>),
    HandleToolResult(Box<ToolResult>),
    HandleTurn(Arc<Response>),
    HandleError(Box<Failure>),
    HandleEvent,
}

impl Call {
    pub(in crate::agent) fn name(&self) -> &'static str {
        match self {
            Self::PrepareStep => "prepare_step",
            Self::HandleToolUse(_) => "handle_tool_use",
            Self::HandleToolResult(_) => "handle_tool_result",
            Self::HandleTurn(_) => "handle_turn",
            Self::HandleError(_) => "handle_error",
            Self::HandleEvent => "handle_event",
        }
    }
}
