//! Coding agents that speak the [Agent Client Protocol](https://agentclientprotocol.com) (feature `acp`).
//!
//! [`AcpBackend`] starts such an agent as a program and talks to it over its standard input and output. With
//! [`BackendProvider`](super::BackendProvider) it is a provider like any other:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use omni_agent::{
//!     agent::Agent,
//!     provider::{Model, backend::{BackendProvider, acp::AcpBackend}},
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
//! - **A program for each session.** It starts with the conversation's first prompt and ends with the agent, however that
//!   ends: its standard input is closed, and what has not ended a little later is killed, on Unix with everything
//!   in its process group. Where it was killed, or failed, what it had put into other groups goes with it on Linux: a
//!   variable in its environment, `OMNI_AGENT_PROGRAM`, tells. If the application itself is killed, its process group is
//!   killed too on Unix, by a small `sh` that watches the application; processes in other groups survive then.
//! - **The model's name** is `default` for the agent's own choice, or a model among those that it offers.
//! - **A tool use** has the agent's name for it, else the protocol's kind (`read`, `edit`, `execute`, …), and the raw input;
//!   the whole tool call as the protocol has it comes with each update. The agent's mode, commands and options are
//!   statuses.
//! - **Permission** is asked as the module [above](super) says. An agent that offers no option for what was decided gets the
//!   outcome `cancelled`.
//! - **Sessions are resumed** where the agent announces `session/resume` or `session/load`; with others that is
//!   [`BackendError::NotResumable`]. What a loaded session tells of before is left out.
//! - **Nothing is served**: no file system and no terminals. Agents have their own.
//! - **The standard error** goes to the log ([`tracing`]), and its last lines into the error of a program that ended.
//!
//! It needs a tokio runtime with its input, output and time drivers.

mod connection;
mod content;
mod fault;
#[cfg(target_os = "linux")]
mod leftovers;
mod lines;
mod mcp;
mod message;
mod model;
mod permission;
mod process;
mod session;
mod shared;
mod translate;
#[cfg(unix)]
mod watcher;
mod wire;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf, absolute},
    process::Command,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
pub use mcp::McpServer;

use super::{Backend, BackendError, BackendSession, Capabilities, SessionId, SessionOptions};

/// An agent that is a program and speaks the Agent Client Protocol.
///
/// Everything is set before the first session; clones share nothing but their settings.
#[derive(Clone)]
pub struct AcpBackend(Config);

/// How the program is started and talked to.
#[derive(Clone)]
struct Config {
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
    /// A backend of this [name](Backend::name) that runs this program: a path, or a name that is looked for as a shell
    /// does.
    pub fn new(name: impl Into<String>, program: impl Into<OsString>) -> Self {
        Self(Config {
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
        })
    }

    /// The same backend with these arguments after those it has.
    pub fn with_arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.0.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// The same backend working in this folder, in place of the process's own. A conversation that has a folder of
    /// [its own](crate::provider::Options::with_folder) works in that one; a relative path is meant from this one.
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.folder = Some(folder.into());
        self
    }

    /// The same backend with this variable in the program's environment, beside those of the process.
    pub fn with_variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.0.environment.push((name.into(), value.into()));
        self
    }

    /// The same backend whose agent has the tools of this server too. One that the agent can't reach is an error at the
    /// start.
    pub fn with_mcp_server(mut self, server: McpServer) -> Self {
        self.0.servers.push(server);
        self
    }

    /// The same backend, which signs in by this one of the agent's methods before each session. Agents that are signed
    /// in already need none; [`BackendError::Auth`] says which there are.
    pub fn with_sign_in(mut self, method: impl Into<String>) -> Self {
        self.0.sign_in = Some(method.into());
        self
    }

    /// The same backend telling the agent that it is this application. It tells of this crate otherwise.
    pub fn with_client(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.0.client = (name.into(), version.into());
        self
    }

    /// The same backend with another limit for the start of a session, from the program's start on: 50 seconds, a little
    /// less than [`BackendLimits::start`](super::BackendLimits::start), since this one can say what is slow.
    pub fn with_start_limit(mut self, limit: Duration) -> Self {
        self.0.start_limit = limit;
        self
    }

    /// The same backend giving the program this long to end by itself when its input is closed: two seconds. It is asked to
    /// end then, and half as long after that it is killed. Keep it well below
    /// [`BackendLimits::terminate`](super::BackendLimits::terminate).
    pub fn with_stop_limit(mut self, limit: Duration) -> Self {
        self.0.stop_limit = limit;
        self
    }
}

impl Config {
    /// The folder to work in, as the protocol wants it: the conversation's own, else the backend's, else the process's.
    fn folder(&self, own: Option<&Path>) -> Result<PathBuf, BackendError> {
        let chosen = match (&self.folder, own) {
            // A relative one is meant from the backend's, and an absolute one replaces it.
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
        // Without this check, the error would name the program instead of the folder.
        match whole.metadata() {
            Ok(found) if found.is_dir() => Ok(whole),
            Ok(_) => Err(cannot(&"it is not a folder")),
            Err(error) => Err(cannot(&error)),
        }
    }

    fn command(&self, folder: &Path) -> Command {
        let path = Path::new(&self.program);
        // A path is meant from where the application is, not from where the agent works.
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

/// Without the environment, which may hold secrets.
impl fmt::Debug for AcpBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpBackend")
            .field("name", &self.0.name)
            .field("program", &self.0.program)
            .field("arguments", &self.0.arguments)
            .field("folder", &self.0.folder)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for AcpBackend {
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether an agent can resume is known only when it runs: this says that it can be asked to.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with_resume()
    }

    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
        Ok(Arc::new(session::open(&self.0, None, options).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        Ok(Arc::new(session::open(&self.0, Some(id), options).await?))
    }
}
