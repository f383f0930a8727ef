//! Stateful LLM agents: they stream, call tools, ask for approval, and can be steered, stopped and resumed.
//!
//! ```no_run
//! use omni_agent::Agent;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::builder().model("anthropic:claude-sonnet-4-6").start().await?;
//! let mut events = agent.subscribe().await?;
//! agent.prompt("Hello!").await?;
//! let mut text = events.text_deltas();
//! while let Some(delta) = text.next().await {
//!     print!("{}", delta?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! Each layer uses only the layers above it, and can be used without the layers below it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`telemetry`] | spans of runs, requests and tool calls; metrics |
//! | [`message`] | pure data: messages, content blocks, [`History`](message::History), usage |
//! | [`budget`] | limits on spending, and the accounts that keep count |
//! | [`mod@tool`] | the tools that a model can call |
//! | [`provider`] | one streaming request to a model; wire formats, endpoints, retry |
//! | [`subscription`] | a snapshot and numbered events, without gap or overlap |
//! | [`run`] | pure data: prompts, responses, pauses, the ends of runs |
//! | [`tree`] | pure data: a branching conversation |
//! | [`store`] | stored conversations: the trait, and stores in memory, files, SQLite and PostgreSQL |
//! | [`agent`] | one conversation as an actor: turn loop, callbacks, approval, steering, events |
//! | [`session`] | a conversation with an id, a tree and a store, as an actor |
//! | [`manager`] | many sessions by id |
//! | `mcp` | tools of servers of the Model Context Protocol; needs the feature `mcp` |
//! | `access` | the clients of a manager: principals, their permissions, and the agents of their conversations; needs the feature `web`, `acp` or `mcp-server` |
//! | `web` | a manager behind HTTP, as an axum router; needs the feature `web`: see [a web service](guides::web_services) |
//! | `terminal` | a chat with a session in the terminal; needs the feature `terminal` |
//! | `serve` | a manager as an agent for editors and as an MCP server; needs the feature `acp` or `mcp-server` |
//!
//! The [`guides`] explain the layers step by step, beginning with [getting started](guides::getting_started).
//!
//! The crate root re-exports the types that a first program needs. It also re-exports the crates that such a program
//! needs, in the versions that this crate uses: [`macro@async_trait`], [`schemars`], [`serde`] and [`serde_json`].
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use omni_agent::{Agent, AgentCallbacks, ToolContext, async_trait, schemars, tool_fn};
//! use omni_agent::agent::{State, TurnDecision};
//! # use omni_agent::{serde_json::json, testing::{ScriptedProvider, Step}};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[schemars(crate = "omni_agent::schemars")]
//! struct Zone {
//!     /// The name of a city.
//!     city: String,
//! }
//!
//! struct Log;
//!
//! #[async_trait]
//! impl AgentCallbacks for Log {
//!     async fn handle_turn(&mut self, response: &omni_agent::Response, _: &mut State) -> TurnDecision {
//!         println!("{}", response.text());
//!         TurnDecision::Stop
//!     }
//! }
//!
//! let time = tool_fn("time", "Returns the local time.", |zone: Zone, _: ToolContext| async move {
//!     Ok(format!("It is noon in {}.", zone.city))
//! });
//! # let model = ScriptedProvider::new([
//! #     Step::tool_use("call-1", "time", json!({ "city": "Oslo" })),
//! #     Step::text("It is noon."),
//! # ])
//! # .model();
//! let agent = Agent::builder().model(model).tool(time).callbacks(Log).start().await?;
//! assert_eq!(agent.ask("What time is it in Oslo?").await?.text(), "It is noon.");
//! # Ok::<(), omni_agent::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `http` | yes | the HTTP endpoints: Anthropic, OpenAI, Google, Ollama, OpenRouter, Groq, Moonshot, Z.ai, Alibaba, OpenCode, and every service compatible with one of them |
//! | `sqlite` | no | conversations in one SQLite file; SQLite is compiled in, which needs a C compiler |
//! | `postgres` | no | conversations in PostgreSQL, for several machines |
//! | `acp` | no | the Agent Client Protocol. Coding agents as backends: [`AcpBackend`](https://docs.rs/omni-agent/latest/omni_agent/provider/acp/struct.AcpBackend.html). A manager as an agent for editors: [`serve::acp`](https://docs.rs/omni-agent/latest/omni_agent/serve/acp/index.html) |
//! | `mcp` | no | tools of servers of the Model Context Protocol: [`mcp`](https://docs.rs/omni-agent/latest/omni_agent/mcp/index.html) |
//! | `mcp-auth` | no | logins at MCP servers with OAuth 2.1: [`McpLogin`](https://docs.rs/omni-agent/latest/omni_agent/mcp/struct.McpLogin.html) |
//! | `mcp-server` | no | a manager's conversations as tools of an MCP server: [`serve::mcp`](https://docs.rs/omni-agent/latest/omni_agent/serve/mcp/index.html) |
//! | `schema` | no | [`JsonSchema`](schemars::JsonSchema) for the types of updates and commands; the documents in [`schema`] need no feature |
//! | `cron` | no | schedules with cron patterns in time zones: [`Schedule::cron`](https://docs.rs/omni-agent/latest/omni_agent/run/struct.Schedule.html#method.cron) |
//! | `web` | no | a manager behind HTTP, as an axum router, with streams for the AI SDK and AG-UI: [`web`](https://docs.rs/omni-agent/latest/omni_agent/web/index.html) |
//! | `terminal` | no | a chat with a session in the terminal: [`terminal`](https://docs.rs/omni-agent/latest/omni_agent/terminal/index.html) |
//! | `otel-metrics` | no | metrics through the API crate of OpenTelemetry: [`telemetry::OtelRecorder`](https://docs.rs/omni-agent/latest/omni_agent/telemetry/struct.OtelRecorder.html); spans need no feature |
//! | `test-util` | no | a scripted and a recorded provider, for tests of applications built on this crate; the suites that check a [`store::Store`] and a [`provider::custom::Backend`] |
//!
//! # Errors
//!
//! Agents, sessions and managers have one type of error: [`Error`]. Programs compare its [kind](ErrorKind) and read its
//! members. Its `Display` text includes the direct cause, and [`error_chain`] adds the deeper causes.
//! [`Error::provider_error`] returns the error of a failed request. [`Error::status`] is an HTTP status, and predicates
//! such as [`Error::is_not_found`] state its class. Stores, providers and tools have separate types of errors:
//! [`StoreError`], [`ProviderError`] and [`ToolError`].
//!
//! The `Debug` text of an error, except a [`ToolError`], is the text of [`error_chain`]. So if `main` returns an error, the
//! program prints sentences. `{:#?}` also shows the members of an [`Error`] or a [`ProviderError`].
//!
//! # Panics
//!
//! Panics in tools, callbacks and providers are contained. This needs `panic = "unwind"`, the default. With `panic =
//! "abort"`, the crate does not compile.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(panic = "abort")]
compile_error!(
    "omni-agent contains panics of tools, callbacks and providers, which needs `panic = \"unwind\"`"
);

// Unit tests share helpers with the integration tests. These helpers refer to the crate by its name.
#[cfg(test)]
extern crate self as omni_agent;

#[cfg(any(feature = "acp", feature = "mcp-server", feature = "web"))]
pub mod access;
#[cfg(feature = "acp")]
mod acp;
mod actor;
pub mod agent;
pub mod budget;
mod chunks;
#[cfg(feature = "test-util")]
mod conformance;
mod debug;
mod error;
pub mod guides;
mod json;
pub mod manager;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod message;
mod panics;
#[cfg(any(feature = "acp", feature = "mcp"))]
mod process;
pub mod provider;
pub mod run;
pub mod schema;
#[cfg(any(feature = "acp", feature = "mcp-server"))]
pub mod serve;
pub mod session;
mod setters;
pub mod store;
pub mod subscription;
mod sync;
pub mod telemetry;
#[cfg(feature = "terminal")]
pub mod terminal;
#[cfg(feature = "test-util")]
pub mod testing;
mod text;
mod time;
pub mod tool;
pub mod tree;
#[cfg(feature = "web")]
pub mod web;

#[doc(no_inline)]
pub use agent::{Agent, AgentBuilder, AgentCallbacks, Event, Status};
pub use async_trait::async_trait;
pub use error::{InvalidId, error_chain};
#[doc(no_inline)]
pub use manager::Manager;
#[doc(no_inline)]
pub use message::{Attachment, Message};
#[doc(no_inline)]
pub use provider::{Model, Options, Provider, ProviderError, ProviderErrorKind};
#[doc(no_inline)]
pub use run::{Error, ErrorKind, Failure, Prompt, Response};
pub use schemars;
pub use serde;
pub use serde_json;
#[doc(no_inline)]
pub use session::{Session, SessionEvent};
#[doc(no_inline)]
pub use store::{ConversationId, Store, StoreError};
#[doc(no_inline)]
pub use subscription::{EventId, Update};
#[doc(no_inline)]
pub use tool::{Decision, Tool, ToolContext, ToolError, ToolOutput, tool_fn};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
