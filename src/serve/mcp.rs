//! A manager's conversations as tools of a server of the [Model Context Protocol](https://modelcontextprotocol.io)
//! (feature `mcp-server`), for other agents and for applications with a model.
//!
//! [`McpServer`] serves a client that has started the application's program. When the client starts or continues a
//! conversation, the application's [`Agents`] return the conversation's agent:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use omni_agent::{
//!     Agent, Error, Manager,
//!     access::{Principal, StartRequest},
//!     manager::OpenOptions,
//!     serve::mcp::{McpServer, ServerInfo},
//!     store::MemoryStore,
//! };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let manager = Manager::builder(MemoryStore::new()).build();
//! let server = McpServer::new(manager.clone(), |_: &Principal, _: &StartRequest| {
//!     Ok::<_, Error>(OpenOptions::new(Agent::builder().model("anthropic:claude-sonnet-4-6")))
//! });
//! server.info(ServerInfo::new("my-agent", "1.0.0")).stdio().await?;
//! manager.shutdown(Duration::from_secs(10)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `web`, `router` serves the conversations of a `Web` over HTTP, behind the same access hook.
//!
//! | tool | arguments | result |
//! | --- | --- | --- |
//! | `ask` | `prompt`, and `conversation` to continue one | the answer and the conversation's id |
//! | `list` | `limit`, `after` | the conversations, most recently written first |
//! | `read` | `conversation`, `last` | the last messages as text, and the agent's status |
//! | `stop` | `conversation` | whether the agent was working |
//!
//! - **Protocol versions.** From 2024-11-05 to 2026-07-28, as the client chooses.
//! - **Prompts.** `ask` returns at the end of the run, or when the run continues with another prompt. A prompt that
//!   arrives during a run is staged.
//! - **Progress.** If a client asks for progress, it gets a report with the name of each tool that begins to run, and a
//!   report every 15 seconds. So a time limit of the client that starts again with each report does not end a long
//!   call.
//! - **Approvals.** Each tool use of the prompt's own turn that waits for a decision is a question to the client's user
//!   (elicitation). A client of version 2026-07-28 gets all questions in the result of the call, and calls again with
//!   the answers. If the client does not call again, the agent stays paused. An older client is asked during the call.
//!   If another client decides first, the question is withdrawn. If a client can't ask its user, or if an older client
//!   does not answer within an hour, the tool uses are rejected. Questions of running tools are passed on in the same
//!   way. A form of another MCP server keeps its fields.
//! - **Cancellation.** If the client cancels a call or is gone, a staged prompt is withdrawn, and a run that has begun
//!   is interrupted. The interrupted run keeps its completed steps. Over HTTP, a client of version 2026-07-28 cancels a
//!   call when it closes the connection. For an older client, the call continues. The client can receive the result on a
//!   new connection only while the call runs. Later, `read` shows the answer.
//! - **Limits.** A message over a pipe may be up to 16 MiB long. A client over a pipe can have 64 calls at the same
//!   time, and `stop` does not count. `read` returns up to 256 KiB of text. A question shows up to 4 KiB of a tool's
//!   input, and names the length of a longer input.
//!
//! Prompts, resources, tasks and the older SSE transport are not offered.

mod answer;
mod ask;
mod caller;
mod followed;
mod handler;
#[cfg(feature = "web")]
mod mount;
mod pipe;
mod question;
mod running;
mod tools;

use std::sync::Arc;

#[cfg(feature = "web")]
pub use mount::router;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};

use super::stdio;
use crate::{
    access::{Agents, Principal, client::AuthorizedClient},
    error_chain,
    manager::Manager,
    setters::setters,
    store::Labels,
};
use caller::{MOST_CALLS, McpCaller, RefusalText};

/// A server that other programs use over the Model Context Protocol. Its tools use the conversations of a [`Manager`].
///
/// See the [module](self).
#[must_use = "a server does nothing until it serves a client"]
pub struct McpServer {
    client: AuthorizedClient,
    info: ServerInfo,
}

/// The description of a server that clients get before they call a tool.
///
/// ```
/// use omni_agent::serve::mcp::ServerInfo;
///
/// let info = ServerInfo::new("librarian", "1.2.0").with_instructions("Ask it about the books of the library.");
/// assert_eq!(info.name, "librarian");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The name of the server.
    pub name: String,
    /// The version of the server.
    pub version: String,
    /// The text from which the client's model learns when to use the server.
    pub instructions: Option<String>,
}

setters!(ServerInfo: with_instructions(instructions: some String));

impl ServerInfo {
    /// Returns a description with this name and version, without instructions.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into(), instructions: None }
    }
}

impl McpServer {
    /// Creates a server for the conversations of `manager`. `agents` returns the agent of a conversation: for a new
    /// conversation, and each time a stored conversation is opened.
    pub fn new(manager: Manager, agents: impl Agents) -> Self {
        let info = ServerInfo::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        Self { client: AuthorizedClient::local(manager, agents), info }
    }

    setters! {
        /// Sets labels that all conversations of this server have. The server lists, opens and stops only conversations
        /// with these labels. The manager's store must support labels.
        pub fn labels(self, labels: Labels) { self.client.principal = Principal::local(labels) }

        /// Sets the description of the server. By default, its name and version are those of this crate.
        pub fn info(self, info: ServerInfo) { self.info = info }
    }

    /// Serves the program that has started this process, over the standard input and output. Returns when that program
    /// closes the standard input or ends.
    ///
    /// Nothing else may be written to the standard output. The manager is not shut down: see [`Manager::shutdown`].
    ///
    /// # Errors
    ///
    /// Fails if the input fails, or at the first error of the standard output while the client is connected. Also fails if
    /// the client sends a message that is too long, does not read its messages, or does not speak the protocol.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client is no longer served, and its calls are cancelled.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with time enabled.
    pub async fn stdio(self) -> Result<(), crate::Error> {
        let (output, finished) = stdio::output().map_err(stdio::unwritable)?;
        let input = stdio::input().map_err(stdio::unreadable)?;
        let served = Box::pin(self.serve(input, output)).await;
        finished.wait().await;
        served
    }

    /// Serves a client over streams other than the standard input and output.
    ///
    /// # Errors
    ///
    /// As for [`stdio`](Self::stdio).
    ///
    /// # Cancel safety
    ///
    /// As for [`stdio`](Self::stdio).
    ///
    /// # Panics
    ///
    /// As for [`stdio`](Self::stdio).
    pub async fn serve(
        self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), crate::Error> {
        let calls = Arc::new(Semaphore::new(MOST_CALLS));
        let permit = move || -> Result<Box<dyn Send>, RefusalText> {
            let permit = Arc::clone(&calls).try_acquire_owned();
            Ok(Box::new(
                permit
                    .map_err(|_| format!("{MOST_CALLS} calls are running already; wait for some of them"))?,
            ))
        };
        let refused = |error: crate::Error| {
            let unknown = "there is no such conversation";
            if error.is_not_found() { unknown.to_owned() } else { error_chain(&error) }
        };
        let caller = Arc::new(McpCaller { client: self.client, permit: Box::new(permit), refused });
        let callers = Arc::new(move |_: &_| Ok(Arc::clone(&caller)));
        pipe::serve(Arc::new(self.info), callers, input, output).await
    }
}

crate::debug::impl_debug!(McpServer(self) { info: self.info, .. });
