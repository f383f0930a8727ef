//! Coding agents that support the [Agent Client Protocol](https://agentclientprotocol.com) (feature `acp`).
//!
//! [`AcpBackend`] starts such an agent as a program, and communicates with it over the program's standard input and
//! output. An [`McpServer`] gives the agent further tools. A [`BackendProvider`](super::BackendProvider) makes the
//! backend a provider like any other:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use omni_agent::{
//!     agent::Agent,
//!     provider::{BackendProvider, Model, acp::AcpBackend},
//! };
//!
//! let backend = AcpBackend::new("gemini", "gemini").with_arguments(["--acp"]).with_folder("/home/me/project");
//! let model = Model::new(Arc::new(BackendProvider::new(backend)), "default");
//! let agent = Agent::builder().model(model).start().await?;
//! println!("{}", agent.ask("What does this project do?").await?.text());
//! # Ok(())
//! # }
//! ```
//!
//! - **Processes.** Each session has its own program. The program starts with the conversation's first prompt. It ends
//!   when the session ends for any reason: its standard input is closed, and if the program is still running after the
//!   [stop limit](AcpBackend::with_stop_limit), it is killed. On Unix, it is asked to end first, and it is killed with
//!   its process group. On Linux, if the program was killed or failed, the processes that it had moved to other groups
//!   are killed too. They are found by a variable in their environment, `OMNI_AGENT_PROGRAM`. On Unix, if the
//!   application itself is killed, a small `sh` that watches the application kills the program's process group. In this
//!   case, processes in other groups survive.
//! - **Models.** The model's name is `default` for the agent's own choice, or the name of a model that the agent
//!   offers: in an option of the category `model` or with the id `model`, or in the older form, `models`, with the
//!   method `session/set_model`.
//! - **Texts.** An empty line separates texts of different messages of the agent that follow each other.
//! - **Tools.** A tool use contains the agent's name for the tool, or else the protocol's kind (`read`, `edit`,
//!   `execute`, …), and the raw input. Each update contains the complete tool call as the protocol defines it. The
//!   agent's mode, commands and options are statuses.
//! - **Permissions.** A request for permission is processed as the documentation of [`Backend`](super::Backend) describes. If the
//!   agent offers no option for the decision, the agent gets the outcome `cancelled`. If the agent uses the id of a tool
//!   call again for a request while another one is open, or for another input, the tool use has an id of its own.
//! - **Resuming.** A session is resumed if the agent announces `session/resume` or `session/load`; otherwise resuming
//!   fails with [`BackendError::NotResumable`]. The conversation that the agent repeats when it loads a session is
//!   discarded.
//! - **Services.** The agent can't use the file system or terminals of the application. It accesses the file system and
//!   starts commands by itself.
//! - **Logs.** The program's standard error is written to the log ([`tracing`]). If the program ends, the error
//!   contains the last lines of its standard error.
//!
//! The backend needs a tokio runtime with its IO and time drivers.

mod connection;
mod content;
mod message;
mod session;
mod shared;
mod translate;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf, absolute},
    process::Command,
    sync::Arc,
    time::Duration,
};

use agent_client_protocol_schema::v1::{
    EnvVariable, HttpHeader, McpCapabilities, McpServer as Wire, McpServerHttp, McpServerSse, McpServerStdio,
};
use async_trait::async_trait;

use super::{Backend, BackendError, BackendSession, Capabilities, SessionId, SessionOptions};

/// A backend that runs an agent as a program and uses the Agent Client Protocol.
///
/// The value contains only the settings of the sessions that it starts, so clones are independent of each other.
#[derive(Clone)]
pub struct AcpBackend {
    name: String,
    program: OsString,
    arguments: Vec<OsString>,
    folder: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    servers: Vec<McpServer>,
    sign_in: Option<String>,
    client: (String, String),
    start_limit: Duration,
    stop_limit: Duration,
}

impl AcpBackend {
    /// Creates a backend with this [name](Backend::name) that runs this program. The program is a path, or a name that
    /// is looked up in `PATH`, as a shell does.
    pub fn new(name: impl Into<String>, program: impl Into<OsString>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arguments: Vec::new(),
            folder: None,
            environment: Vec::new(),
            servers: Vec::new(),
            sign_in: None,
            client: ("omni-agent".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            start_limit: Duration::from_secs(50),
            stop_limit: Duration::from_secs(2),
        }
    }

    crate::setters::setters! {
        /// Returns the same backend with these arguments after the existing ones.
        pub fn with_arguments(self, arguments: impl IntoIterator<Item = impl Into<OsString>>) {
            self.arguments.extend(arguments.into_iter().map(Into::into));
        }

        /// Returns the same backend, but working in this folder instead of the process's current folder. If a
        /// conversation has a folder of [its own](crate::provider::Options::with_folder), the backend works in that
        /// folder. If the conversation's folder is a relative path, it is resolved against this folder.
        pub fn with_folder(self, folder: impl Into<PathBuf>) { self.folder = Some(folder.into()) }

        /// Returns the same backend with this variable in the program's environment. The program also inherits the
        /// variables of the process.
        pub fn with_variable(self, name: impl Into<OsString>, value: impl Into<OsString>) {
            self.environment.push((name.into(), value.into()));
        }

        /// Returns the same backend with this MCP server, whose tools the agent can use. If the agent can't reach the
        /// server, the start fails.
        pub fn with_mcp_server(self, server: McpServer) { self.servers.push(server) }

        /// Returns the same backend, but signing in with this method of the agent before each session. An agent that is
        /// already signed in needs no method. [`BackendError::Auth`] lists the methods.
        pub fn with_sign_in(self, method: impl Into<String>) { self.sign_in = Some(method.into()) }

        /// Returns the same backend, but introducing itself to the agent as this application instead of as this crate.
        pub fn with_client(self, name: impl Into<String>, version: impl Into<String>) {
            self.client = (name.into(), version.into());
        }

        /// Returns the same backend with another limit for the start of a session, measured from the start of the
        /// program. The default is 50 seconds. This is a little less than
        /// [`BackendLimits::start`](super::BackendLimits::start), so that this limit expires first: its error names the
        /// slow request.
        pub fn with_start_limit(self, limit: Duration) { self.start_limit = limit }

        /// Returns the same backend, but with this time for the program to end after its input is closed. The default
        /// is two seconds. After that time, the program is killed. On Unix, it is first asked to end (`SIGTERM`), and
        /// it is killed after another half of that time. Keep this limit well below
        /// [`BackendLimits::terminate`](super::BackendLimits::terminate).
        pub fn with_stop_limit(self, limit: Duration) { self.stop_limit = limit }
    }

    /// Returns the folder to work in, as the absolute path that the protocol requires. This is the conversation's
    /// folder, or else the backend's folder, or else the process's current folder.
    fn folder(&self, own: Option<&Path>) -> Result<PathBuf, BackendError> {
        let chosen = match (&self.folder, own) {
            // If the conversation's folder is a relative path, it is resolved against the backend's folder. An absolute
            // path replaces the backend's folder.
            (Some(folder), Some(own)) => Some(folder.join(own)),
            (folder, own) => own.map(Path::to_owned).or_else(|| folder.clone()),
        };
        let setting = if own.is_some() { "the option `folder`" } else { "`with_folder`" };
        let cannot = |why: &dyn fmt::Display| {
            let folder = chosen.as_deref().unwrap_or(Path::new(".")).display();
            BackendError::Misconfigured(format!(
                "the folder `{folder}` can't be used: {why}; check {setting}"
            ))
        };
        let whole = match &chosen {
            Some(folder) => absolute(folder),
            None => std::env::current_dir(),
        };
        let whole = whole.map_err(|error| cannot(&error))?;
        // Without this check, a missing folder would cause an error that names the program instead of the folder.
        match whole.metadata() {
            Ok(found) if found.is_dir() => Ok(whole),
            Ok(_) => Err(cannot(&"it is not a folder")),
            Err(error) => Err(cannot(&error)),
        }
    }

    fn command(&self, folder: &Path) -> Command {
        let path = Path::new(&self.program);
        // A relative path of the program is resolved against the application's folder, not against the agent's folder.
        let program = match absolute(path) {
            Ok(whole) if path.components().count() > 1 => whole.into(),
            _ => self.program.clone(),
        };
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder);
        command
    }
}

crate::debug::impl_debug! {
    /// Omits the environment variables, since they may contain secrets.
    AcpBackend(self) {
        name: self.name, program: self.program, arguments: self.arguments, folder: self.folder, ..
    }
}

#[async_trait]
impl Backend for AcpBackend {
    fn name(&self) -> &str {
        &self.name
    }

    /// Declares that sessions can be resumed, because only a running agent reports whether it supports this.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with_resume()
    }

    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
        Ok(Arc::new(session::open(self, None, options).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        Ok(Arc::new(session::open(self, Some(id), options).await?))
    }
}

/// A server of the Model Context Protocol, whose tools the agent can use.
#[derive(Clone)]
pub struct McpServer(Wire);

impl McpServer {
    /// Creates a server that the agent starts as a program. The program's path should be absolute.
    pub fn program(
        name: impl Into<String>,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self(Wire::Stdio(McpServerStdio::new(name, program).args(arguments)))
    }

    /// Creates a server that is reached over HTTP. Not every agent supports this transport.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self(Wire::Http(McpServerHttp::new(name, url)))
    }

    /// Creates a server that is reached with server-sent events, the older transport. Not every agent supports this
    /// transport.
    pub fn sse(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self(Wire::Sse(McpServerSse::new(name, url)))
    }

    /// Returns the same server with this secret: a variable of the program's environment, or a header of each request.
    pub fn with_secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.0 {
            Wire::Stdio(server) => server.env.push(EnvVariable::new(name, value)),
            Wire::Http(server) => server.headers.push(HttpHeader::new(name, value)),
            Wire::Sse(server) => server.headers.push(HttpHeader::new(name, value)),
            _ => {}
        }
        self
    }

    fn name(&self) -> &str {
        match &self.0 {
            Wire::Stdio(server) => &server.name,
            Wire::Http(server) => &server.name,
            Wire::Sse(server) => &server.name,
            _ => "",
        }
    }

    /// Returns the server in the form that is sent to the agent. Fails if the agent does not support the server's
    /// transport.
    fn wire(&self, can: &McpCapabilities) -> Result<Wire, BackendError> {
        let way = match &self.0 {
            Wire::Http(_) if !can.http => "HTTP",
            Wire::Sse(_) if !can.sse => "server-sent events",
            _ => return Ok(self.0.clone()),
        };
        let name = self.name();
        Err(BackendError::Unsupported(format!(
            "this agent can't reach the MCP server `{name}`: it does not support {way}"
        )))
    }
}

/// Shows only the name, since the rest may contain secrets.
impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("McpServer").field(&self.name()).finish()
    }
}
