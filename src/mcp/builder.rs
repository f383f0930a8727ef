//! The settings of a client.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rmcp::model::ProtocolVersion;

use super::{McpClient, McpError, connection::LONGEST, secret::Secrets, server::ServerConnection};
use crate::text::clip;

/// The settings of an [`McpClient`], created by [`McpClient::stdio`] or [`McpClient::http`].
#[must_use = "a client is made by `connect`"]
pub struct McpBuilder {
    /// The settings. The version and the secrets are set by `connect`.
    settings: McpSettings,
    version: Option<String>,
    /// The last setting that the application has set although the transport does not have it, such as a header for a
    /// program.
    misplaced: Option<&'static str>,
}

impl McpBuilder {
    pub(super) fn program(program: OsString) -> Self {
        let name = Path::new(&program).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        Self::new(name, Transport::Program(ProgramStart { program, ..ProgramStart::default() }))
    }

    pub(super) fn http(url: String) -> Self {
        let parsed = reqwest::Url::parse(&url).ok();
        let name = parsed.and_then(|url| url.host_str().map(str::to_owned));
        Self::new(name, Transport::Http(HttpTarget { url, ..HttpTarget::default() }))
    }

    fn new(name: Option<String>, transport: Transport) -> Self {
        let settings = McpSettings {
            name: name.unwrap_or_else(|| "server".to_owned()),
            transport,
            version: None,
            secrets: Secrets::default(),
            connect_limit: Duration::from_secs(30),
            idle_limit: Duration::from_mins(1),
            total_limit: Duration::from_mins(10),
            selection: McpToolSettings::default(),
        };
        Self { settings, version: None, misplaced: None }
    }

    fn on_program(mut self, setting: &'static str, set: impl FnOnce(&mut ProgramStart)) -> Self {
        match &mut self.settings.transport {
            Transport::Program(start) => set(start),
            Transport::Http(_) => self.misplaced = Some(setting),
        }
        self
    }

    /// Sets the name of the server, which is the beginning of its tools' names. The default is the name of the program,
    /// or the host of the URL.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Adds arguments to the command line of the program.
    pub fn args(self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.on_program("args", |start| start.arguments.extend(arguments.into_iter().map(Into::into)))
    }

    /// Adds a variable to the program's environment. The program also inherits the variables of the application's
    /// process. The value is a secret: it does not appear in logs, events and errors, except in the logs of `rmcp` at the
    /// level TRACE if the server repeats it.
    pub fn env(self, name: impl Into<OsString>, value: impl Into<String>) -> Self {
        self.on_program("env", |start| start.environment.push((name.into(), value.into())))
    }

    /// Sets the folder in which the program starts. The default is the process's current folder.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        self.on_program("folder", |start| start.folder = Some(folder.into()))
    }

    /// Adds a header to each HTTP request. The value is a secret: it does not appear in logs, events and errors, except
    /// in the logs of `rmcp` at the level TRACE if the server repeats it.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.settings.transport {
            Transport::Http(target) => target.headers.push((name.into(), value.into())),
            Transport::Program(_) => self.misplaced = Some("header"),
        }
        self
    }

    /// Sends the tokens of this store with each HTTP request, and renews them when they expire. [`McpLogin`] fills the
    /// store. The tokens belong to one user, so do not share the client between users.
    ///
    /// [`McpLogin`]: super::McpLogin
    #[cfg(feature = "mcp-auth")]
    pub fn tokens(mut self, store: impl super::TokenStore) -> Self {
        match &mut self.settings.transport {
            Transport::Http(target) => target.tokens = Some(Arc::new(store)),
            Transport::Program(_) => self.misplaced = Some("tokens"),
        }
        self
    }

    crate::setters::setters! {
        /// Uses this version of the protocol, such as `2025-06-18`. By default, the client asks for the newest version
        /// and falls back to older ones. A fixed version saves one request.
        pub fn version(self, version: impl Into<String>) { self.version = Some(version.into()) }

        /// Sets the time limit for connecting and for listing tools. The default is 30 seconds. A program that is
        /// installed at its first start, for example by `npx`, may need longer.
        pub fn connect_limit(self, limit: Duration) { self.settings.connect_limit = limit }

        /// Sets how long a call may run without a report of progress. The default is one minute.
        pub fn idle_limit(self, limit: Duration) { self.settings.idle_limit = limit }

        /// Sets the total time limit of a call. The default is ten minutes.
        pub fn total_limit(self, limit: Duration) { self.settings.total_limit = limit }

        /// Offers only these tools. They are identified by the names that the server uses. By default, all tools are
        /// offered.
        pub fn allow(self, tools: impl IntoIterator<Item = impl Into<String>>) {
            self.settings.selection.allowed.get_or_insert_default().extend(tools.into_iter().map(Into::into));
        }

        /// Offers a tool under exactly this name instead of `SERVER__TOOL`.
        pub fn rename(self, tool: impl Into<String>, name: impl Into<String>) {
            self.settings.selection.renamed.insert(tool.into(), name.into());
        }

        /// Requires an approval for every use of these tools. They are identified by the names that the server uses.
        pub fn approve(self, tools: impl IntoIterator<Item = impl Into<String>>) {
            self.settings.selection.approved.extend(tools.into_iter().map(Into::into));
        }

        /// Requires an approval for every use of every tool.
        pub fn approve_all(self) { self.settings.selection.approve_all = true }

        /// Trusts the hints of the server about repeated calls. A tool then declares [`Replay::Safe`] if its hint
        /// `read_only` or `idempotent` is true: see [`ToolHints`](super::ToolHints). By default, every tool declares
        /// [`Replay::Never`], because a wrong hint would let a call of a process that ended take effect twice.
        ///
        /// [`Replay::Safe`]: crate::tool::Replay::Safe
        /// [`Replay::Never`]: crate::tool::Replay::Never
        pub fn trust_hints(self) { self.settings.selection.trusts_hints = true }
    }

    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid, or if the server can't be reached, requires an authorization, or does not answer
    /// in time.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection is closed. If the server is a program, it is killed.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with IO and time enabled.
    pub async fn connect(self) -> Result<McpClient, McpError> {
        let Self { mut settings, version, misplaced } = self;
        if let Some(setting) = misplaced {
            return Err(settings.misconfigured(format!("its transport has no setting `{setting}`")));
        }
        if let Some(version) = version {
            let known = ProtocolVersion::KNOWN_VERSIONS;
            settings.version = known.iter().find(|known| known.as_str() == version).cloned();
            if settings.version.is_none() {
                let list = known.iter().map(ProtocolVersion::as_str).collect::<Vec<_>>().join(", ");
                let reason = format!("the version {version:?} is unknown; the versions are {list}");
                return Err(settings.misconfigured(reason));
            }
        }
        settings.secrets = match &settings.transport {
            Transport::Program(start) => {
                Secrets::new(start.environment.iter().map(|(_, value)| value.clone()))
            }
            Transport::Http(target) => {
                let headers = target.headers.iter().map(|(_, value)| value.clone());
                Secrets::new(headers.chain(Secrets::in_url(&target.url)))
            }
        };
        Ok(McpClient(Arc::new(ServerConnection::connect(settings).await?)))
    }
}

crate::debug::impl_debug! {
    /// Omits the environment variables, headers and the URL, since they may contain secrets.
    McpBuilder(self) {
        name: self.settings.name, version: self.version, ..
    }
}

// The settings of a client, as its builder collects them.

/// Everything that a client needs to connect, and to connect again.
pub(super) struct McpSettings {
    pub(super) name: String,
    pub(super) transport: Transport,
    pub(super) version: Option<ProtocolVersion>,
    pub(super) secrets: Secrets,
    pub(super) connect_limit: Duration,
    pub(super) idle_limit: Duration,
    pub(super) total_limit: Duration,
    pub(super) selection: McpToolSettings,
}

impl McpSettings {
    pub(super) fn is_program(&self) -> bool {
        matches!(self.transport, Transport::Program(_))
    }

    /// Returns the error for an invalid setting. Secrets in the reason are replaced.
    pub(super) fn misconfigured(&self, reason: String) -> McpError {
        McpError::Misconfigured { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for a connection that has ended. `reason` is a suffix for its text.
    pub(super) fn lost(&self, reason: String) -> McpError {
        McpError::Lost { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for a server that can't be reached. Secrets in the reason are replaced.
    pub(super) fn unreachable(&self, reason: String) -> McpError {
        McpError::Unreachable { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for an answer that is invalid or refuses the request.
    pub(super) fn refused(&self, reason: &str) -> McpError {
        let reason = self.secrets.removed(clip(reason, LONGEST).into_owned());
        McpError::Refused { server: self.name.clone(), reason }
    }

    /// Returns the error for a request that requires another authorization, with the scope and the challenge that the
    /// server names.
    pub(super) fn unauthorized(&self, scope: Option<&str>, challenge: Option<&str>) -> McpError {
        let clean = |text: &str| self.secrets.removed(clip(text, LONGEST).into_owned());
        let (scope, challenge) = (scope.map(clean), challenge.map(clean));
        McpError::Unauthorized { server: self.name.clone(), scope, challenge }
    }

    /// Returns the error for a server that did not answer within the limit.
    pub(super) fn timed_out(&self, limit: Duration) -> McpError {
        McpError::TimedOut { server: self.name.clone(), limit }
    }
}

pub(super) enum Transport {
    Program(ProgramStart),
    Http(HttpTarget),
}

#[derive(Default)]
pub(super) struct ProgramStart {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, String)>,
    pub(super) folder: Option<PathBuf>,
}

#[derive(Default)]
pub(super) struct HttpTarget {
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    #[cfg(feature = "mcp-auth")]
    pub(super) tokens: Option<std::sync::Arc<dyn super::TokenStore>>,
}

/// The tools that are offered, identified by the names that the server uses.
#[derive(Clone, Debug, Default)]
pub(super) struct McpToolSettings {
    /// The only tools that are offered. `None` offers all.
    pub(super) allowed: Option<BTreeSet<String>>,
    pub(super) renamed: BTreeMap<String, String>,
    pub(super) approved: BTreeSet<String>,
    pub(super) approve_all: bool,
    /// Whether the hints of the server decide whether a call may be repeated.
    pub(super) trusts_hints: bool,
}
