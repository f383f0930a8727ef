//! Stateful LLM agents: they stream, call tools, ask for approval, and can be steered, stopped and resumed.
//!
//! ```no_run
//! use omni_agent::agent::{Agent, Event, Status};
//! use omni_agent::subscription::Update;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::builder().model("anthropic:claude-sonnet-4-6").start().await?;
//! let mut events = agent.subscribe().await?;
//! agent.prompt("Hello!").await?;
//! while let Some(update) = events.next().await {
//!     match update {
//!         Update::Event(numbered) => match &*numbered.event {
//!             Event::TextDelta { delta, .. } => print!("{delta}"),
//!             Event::Turn(_) => break,
//!             Event::Error { failure, .. } => return Err(failure.clone().into()),
//!             Event::Cancelled { .. } => return Err("the run was cancelled".into()),
//!             _ => {}
//!         },
//!         // This reader was too slow. The snapshot replaces the events that it missed.
//!         Update::Resync(snapshot) => {
//!             println!("{}", snapshot.messages().last().map_or(String::new(), |message| message.text()));
//!             if snapshot.status == Status::Idle {
//!                 break;
//!             }
//!         }
//!         Update::Closed(end) => return Err(end.reason.into()),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! Each uses only the public surface of those above it, and is useful alone.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`message`] | pure data: messages, content blocks, [`History`](message::History), usage |
//! | [`tool`] | what a model can call |
//! | [`provider`] | one streaming request to a model, whoever serves it; wire formats and endpoints |
//! | [`subscription`] | a snapshot and numbered events, without gap or overlap |
//! | [`agent`] | one conversation as an actor: turn loop, callbacks, approval, steering, events |
//! | [`tree`] | pure data: a branching conversation |
//! | [`store`] | where conversations live between runs |
//! | [`session`] | a conversation with an identity: an agent, a tree and a store, as an actor |
//! | [`manager`] | many sessions by id |
//!
//! # Features
//!
//! | feature | default | what it brings |
//! | --- | --- | --- |
//! | `http` | yes | the HTTP endpoints: Anthropic, OpenAI, Google, Ollama, OpenRouter, Groq, Moonshot, Z.ai, Alibaba, OpenCode, and every service compatible with one of them |
//! | `sqlite` | no | conversations in one SQLite file; SQLite is compiled in, which takes a C compiler |
//! | `postgres` | no | conversations in PostgreSQL, for several machines |
//! | `acp` | no | coding agents that speak the Agent Client Protocol, as programs: [`AcpBackend`](https://docs.rs/omni-agent/latest/omni_agent/provider/backend/acp/struct.AcpBackend.html) |
//! | `test-util` | no | a scripted provider, for tests of applications built on this crate; the suites that check a [`store::Store`] and a [`provider::backend::Backend`] |
//!
//! # Errors
//!
//! Each layer has one error type. `Display` ends with the sentence of the cause, and [`error_chain`] adds the causes below
//! it. Before a run, [`AgentError`](agent::AgentError) names what is missing; a failed request is
//! [`AgentError::provider_error`](agent::AgentError::provider_error).
//!
//! # Panics
//!
//! Panics in tools, callbacks and providers are contained, which needs `panic = "unwind"`, the default. With
//! `panic = "abort"` the first of them ends the process.

#![warn(unreachable_pub)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(panic = "abort")]
compile_error!(
    "omni-agent contains panics of tools, callbacks and providers, which needs `panic = \"unwind\"`"
);

mod actor;
pub mod agent;
mod error;
pub mod manager;
pub mod message;
pub mod provider;
pub mod session;
pub mod store;
pub mod subscription;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod tool;
pub mod tree;

pub use error::error_chain;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
