//! Agents in the middle of work that does not end on its own.

use std::{any::Any, time::Duration};

use crate::{
    agent::{Agent, AgentCallbacks, AgentSubscription, ErrorDecision, Failure, State},
    provider::{ProviderError, ProviderErrorKind},
    testing::{Gate, Step},
    tool::{ToolContext, ToolLimits, tool_fn},
};
use async_trait::async_trait;
use futures_channel::mpsc;
use serde_json::{Value, json};

use super::{
    rig::{At, Deed, Rogue, answered, echoing, stuck_in, tokens},
    support::{next, scripted},
};

/// The phase in which a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amid {
    Callback(At),
    /// The provider is opening an instance.
    Open,
    /// The model is streaming: half of a text and the usage so far have arrived.
    Stream,
    /// A tool runs.
    Tools,
    /// The agent waits before a retry.
    Delay,
    /// The commit channel is full.
    NoRoom,
}

impl Amid {
    pub const ALL: [Self; 10] = [
        Self::Callback(At::PrepareStep),
        Self::Callback(At::HandleToolUse),
        Self::Callback(At::HandleToolResult),
        Self::Callback(At::HandleTurn),
        Self::Callback(At::HandleError),
        Self::Open,
        Self::Stream,
        Self::Tools,
        Self::Delay,
        Self::NoRoom,
    ];

    /// Starts an agent and subscribes to it. Then starts a run and waits until the run hangs in this phase.
    pub async fn agent(self) -> Scene {
        let mut kept: Box<dyn Any + Send> = Box::new(());
        let (agent, events) = match self {
            Self::Callback(at) => stuck_in(at).await,
            Self::Open => {
                let provider = Rogue::new(&[Deed::HangInOpen]);
                let builder = Agent::builder().model(provider.model());
                let scene = started(builder.start().await.unwrap()).await;
                provider.reached().await;
                kept = Box::new(provider);
                scene
            }
            Self::Stream => {
                let provider = Rogue::new(&[Deed::Hang]);
                let builder = Agent::builder().model(provider.model());
                let scene = started(builder.start().await.unwrap()).await;
                provider.reached().await;
                kept = Box::new(provider);
                scene
            }
            Self::Tools => {
                let gate = Gate::new();
                let builder = scripted([
                    Step::new().usage(tokens(7)).then_tool_use("t1", "hang", json!({})).stop(),
                    Step::text("Again."),
                ])
                .1;
                let builder = builder.tool_limits(no_timeout()).tool(hanging("hang", &gate));
                let scene = started(builder.start().await.unwrap()).await;
                answered(gate.reached()).await;
                scene
            }
            Self::Delay => {
                let error = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
                let builder = scripted([error, Step::text("Again.")]).1.callbacks(Patient);
                let (agent, mut events) = started(builder.start().await.unwrap()).await;
                let mut seen = Vec::new();
                while !matches!(seen.last().map(String::as_str), Some("retry")) {
                    seen.push(super::support::name(&*next(&mut events).await));
                }
                (agent, events)
            }
            Self::NoRoom => {
                let (sender, receiver) = mpsc::channel(0);
                kept = Box::new(receiver);
                started(echoing([Step::text("Hello!")]).commit_channel(sender).start().await.unwrap()).await
            }
        };
        Scene { agent, events, kept }
    }
}

async fn started(agent: Agent) -> (Agent, AgentSubscription) {
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    (agent, events)
}

pub struct Scene {
    pub agent: Agent,
    pub events: AgentSubscription,
    /// The provider or the receiver that the scene uses. It must not be dropped before the scene.
    pub kept: Box<dyn Any + Send>,
}

/// A tool that waits at the gate, and then answers "done".
pub fn hanging(name: &str, gate: &Gate) -> impl crate::tool::Tool {
    let gate = gate.clone();
    tool_fn(name, "Waits.", move |_: Value, _: ToolContext| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok("done")
        }
    })
}

pub fn no_timeout() -> ToolLimits {
    ToolLimits::default().with_timeout(Duration::MAX)
}

/// Callbacks that retry after each failure, with a very long delay.
pub struct Patient;

#[async_trait]
impl AgentCallbacks for Patient {
    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::RetryAfter(Duration::from_secs(1_000_000))
    }
}
