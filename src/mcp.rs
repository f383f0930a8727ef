//! Tools of servers of the [Model Context Protocol](https://modelcontextprotocol.io) (feature `mcp`).
//!
//! An [`McpClient`] is a connection to a server, which is a program or an HTTP address. [`McpBuilder`] holds its
//! settings. [`McpClient::tools`] returns the server's tools as [`McpTools`], and an agent uses them like its own
//! tools. [`McpClient::follow`] replaces the tools of a session when the server's list of tools changes.
//!
//! ```no_run
//! # async fn example(token: String) -> Result<(), Box<dyn std::error::Error>> {
//! use omni_agent::{Agent, mcp::{McpClient, McpTools}, tool::ToolSet};
//!
//! let files = McpClient::stdio("mcp-files").args(["--root", "."]).name("files").connect().await?;
//! let github = McpClient::http("https://mcp.example.com/mcp")
//!     .name("github")
//!     .header("Authorization", format!("Bearer {token}"))
//!     .connect()
//!     .await?;
//! let tools = ToolSet::new().extended(files.tools().await?.tools)?.extended(github.tools().await?.tools)?;
//! let agent = Agent::builder().model("anthropic:claude-sonnet-4-6").tools(tools).start().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Names.** A tool is named `SERVER__TOOL`. In this name, characters other than ASCII letters, digits, `_`, `-` and
//!   `.` become `_`. If a name is longer than 128 characters, or equals another name only because of this replacement,
//!   it ends with a checksum of the whole name.
//! - **Calls.** A call has two limits: the time without progress, and the total time. Dropping a call cancels it at the
//!   server. Progress becomes [`ToolContext::progress`](crate::ToolContext::progress), at most ten times per second.
//! - **Results.** Texts, images, PDF files, embedded texts and structured content become blocks. Other files are replaced
//!   by a text, because most models do not accept them. The agent's [`ToolLimits`](crate::tool::ToolLimits) limit the size of results. A
//!   message of more than 16 MiB ends the connection. If an answer can't be read, its call fails at once.
//! - **Lost servers.** If the connection to the server is lost, the next call connects again. The delay before an
//!   attempt is half a second at first, and doubles with each failure up to thirty seconds. A call that was already
//!   sent is never repeated. A program that ends three times within a minute is not started again.
//! - **Processes.** A program runs in its own process group. The program ends when the client and all its tools are
//!   dropped, when [`McpClient::close`] is called, or when the runtime shuts down.
//! - **Trust.** Descriptions, annotations and results come from the server. The client does not trust them:
//!   [`McpBuilder::allow`] and [`McpBuilder::approve`] decide what a model can use. [`McpBuilder::trust_hints`] lets
//!   the annotations decide which calls a durable turn may repeat after a crash.
//! - **Questions.** A question of a server (elicitation) becomes [`ToolContext::ask`](crate::ToolContext::ask), so the
//!   agent pauses until a person answers. An answer that does not match the schema of its form is declined. Outside an
//!   agent, questions are declined.
//! - **Tasks.** If a server answers a call with a task, the client waits for its result. Dropping the call cancels the
//!   task.
//! - **Logins.** With the feature `mcp-auth`, `McpLogin` logs a user in at a server with OAuth 2.1, and
//!   `McpBuilder::tokens` uses the tokens and renews them. If a server requires a login and the client has no tokens,
//!   connecting fails with [`McpError::Unauthorized`].
//!
//! Prompts, resources, sampling and roots of servers are not used.

#[cfg(feature = "mcp-auth")]
mod auth;
mod builder;
mod call;
mod connection;
mod http;
pub(crate) mod incoming;
mod secret;
mod server;
mod tool;

use std::{collections::BTreeMap, ffi::OsString, sync::Arc, time::Duration};

use crate::{Session, tool::Tool};
use server::ServerConnection;

#[cfg(feature = "mcp-auth")]
pub use auth::{McpLogin, McpLoginBuilder, TokenStore, Tokens};
pub use builder::McpBuilder;

/// A connection to an MCP server. Agents can use the server's tools. Clones share the connection.
///
/// If the credentials belong to one user or one conversation, do not share the client with others.
#[derive(Clone)]
pub struct McpClient(Arc<ServerConnection>);

/// The tools of a server at one moment.
#[derive(Clone)]
#[non_exhaustive]
pub struct McpTools {
    /// The tools, sorted by name.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The tools that can't be used, sorted by name.
    pub skipped: Vec<SkippedTool>,
    /// The server's hints about its tools, by the name of the tool. A tool without hints has no entry.
    pub hints: BTreeMap<String, ToolHints>,
}

/// The hints of a server about one of its tools, which the protocol calls annotations.
///
/// The hints come from the server and are not checked. Show them to a person, but do not base decisions of the
/// application on them unless it trusts the server: see [`McpBuilder::trust_hints`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolHints {
    /// The name of the tool for people, cut at 4 KiB.
    pub title: Option<String>,
    /// Whether the tool only reads.
    pub read_only: Option<bool>,
    /// Whether the tool may delete or overwrite something.
    pub destructive: Option<bool>,
    /// Whether a repeated call with the same input has no further effect.
    pub idempotent: Option<bool>,
    /// Whether the tool reaches systems outside the server, such as the web.
    pub open_world: Option<bool>,
}

/// A tool that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedTool {
    /// The server's name for the tool, cut at 4 KiB.
    pub name: String,
    /// The reason, for example an unusable schema.
    pub reason: String,
}

impl McpClient {
    /// Returns the settings of a client whose server is a program. The client starts the program and communicates with
    /// it through its standard input and output. The program is given as a path, or as a name that is looked up in the
    /// way a shell does.
    pub fn stdio(program: impl Into<OsString>) -> McpBuilder {
        McpBuilder::program(program.into())
    }

    /// Returns the settings of a client whose server is at this URL. The client uses the transport that the protocol
    /// calls streamable HTTP.
    pub fn http(url: impl Into<String>) -> McpBuilder {
        McpBuilder::http(url.into())
    }

    /// Returns the name of the server, which is the beginning of its tools' names.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// Returns the protocol version in use, such as `2025-11-25`, or `None` if there is no connection.
    #[expect(clippy::unused_async, reason = "callers await it")]
    pub async fn protocol_version(&self) -> Option<String> {
        self.0.version()
    }

    /// Returns the tools that the server offers now. A tool that can't be used is listed in [`McpTools::skipped`].
    ///
    /// # Errors
    ///
    /// Fails if the server can't be reached or does not answer in time, or if its answer is not a list of tools.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost.
    pub async fn tools(&self) -> Result<McpTools, McpError> {
        tool::tools(&self.0, self.0.list().await?).await
    }

    /// Keeps the session's tools of this server up to date. When the server's list of tools changes, the new tools
    /// replace the old ones between two runs. During a run, the tools never change.
    ///
    /// This starts a task on the tokio runtime. The task ends when the session ends or when the client and its tools
    /// are dropped, and does not keep the session open.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn follow(&self, session: &Session) {
        tool::follow(&self.0, session);
    }

    /// Closes the connection. If the server is a program, waits until the program and the processes that it started
    /// have ended. Calls that wait for a connection and later calls fail. An attempt to connect is abandoned, and its
    /// program is killed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection may stay open.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

crate::debug::impl_debug! {
    /// Shows only the name, since the rest may contain secrets.
    McpClient(self) { name: self.name(), .. }
}

crate::debug::impl_debug! { McpTools(self) {
    tools: self.tools.iter().map(|tool| (**tool).name()).collect::<Vec<_>>(), skipped: self.skipped, ..
} }

// The error of a client.

/// The advice for a server that requires authorization.
#[cfg(feature = "mcp-auth")]
const UNAUTHORIZED: &str = "log in with `McpLogin` and set its store with `tokens`, or set a token with \
                            `header(\"Authorization\", …)`";
#[cfg(not(feature = "mcp-auth"))]
const UNAUTHORIZED: &str = "set a token with `header(\"Authorization\", …)`, or enable the feature `mcp-auth` and log \
                            in with `McpLogin`";

/// A server of the Model Context Protocol could not be used.
///
/// The texts contain neither environment variables nor headers nor the query of the URL.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// A setting of the client is invalid.
    #[error("the MCP server {server:?} can't be used: {reason}; correct the setting")]
    Misconfigured {
        /// The name of the server.
        server: String,
        /// The reason why the setting is invalid.
        reason: String,
    },
    /// The program did not start, or the server can't be reached.
    #[error("the MCP server {server:?} can't be reached: {reason}")]
    Unreachable {
        /// The name of the server.
        server: String,
        /// The reason why the server can't be reached.
        reason: String,
    },
    /// The server requires an authorization that the client does not have.
    #[error("the MCP server {server:?} requires authorization{}; {UNAUTHORIZED}", for_scope(.scope.as_deref()))]
    Unauthorized {
        /// The name of the server.
        server: String,
        /// The scope that the authorization lacks, if the server names it.
        scope: Option<String>,
        /// The header `WWW-Authenticate` with which the server refused the request, if there was one. `McpLogin` uses
        /// it to find the authorization server and the scope.
        challenge: Option<String>,
    },
    /// A login at the server failed (feature `mcp-auth`).
    #[cfg(feature = "mcp-auth")]
    #[error("the login at the MCP server {server:?} failed: {reason}; begin another login")]
    LoginFailed {
        /// The URL of the server, without user, query and fragment.
        server: String,
        /// The reason.
        reason: String,
    },
    /// The server did not answer in time.
    #[error("the MCP server {server:?} did not answer within {limit:?}")]
    TimedOut {
        /// The name of the server.
        server: String,
        /// The limit.
        limit: Duration,
    },
    /// The program ended three times within a minute and is not started again.
    #[error("the MCP server {server:?} ended three times within a minute and stays down; make a new client")]
    Down {
        /// The name of the server.
        server: String,
    },
    /// The connection ended before an answer arrived, so the server may have processed the request. Calls of a closed
    /// client fail with this error, too.
    #[error("the connection to the MCP server {server:?} ended before its answer arrived{reason}")]
    Lost {
        /// The name of the server.
        server: String,
        /// The details of the end, as far as they are known. May be empty.
        reason: String,
    },
    /// The server refused the request, or its answer is invalid.
    #[error("the MCP server {server:?} refused the request: {reason}")]
    Refused {
        /// The name of the server.
        server: String,
        /// The reason in the server's words, or the description of the invalid answer.
        reason: String,
    },
}

crate::error::debug_as_chain!(McpError);

fn for_scope(scope: Option<&str>) -> String {
    scope.map_or_else(String::new, |scope| format!(" for the scope {scope:?}"))
}
