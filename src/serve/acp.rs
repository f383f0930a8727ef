//! A manager's conversations as an agent of the [Agent Client Protocol](https://agentclientprotocol.com) (feature
//! `acp`), for editors such as Zed.
//!
//! [`AcpAgent`] serves an editor that has started the application's program. When the editor creates or opens a
//! session, the application's [`Agents`] return the session's agent. The editor creates and loads sessions, sends
//! prompts, shows text and tools as they arrive, asks its user about tools that need an approval, cancels, and chooses
//! the model:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use omni_agent::{
//!     Agent, Error, Manager,
//!     access::{Principal, StartRequest},
//!     manager::OpenOptions,
//!     serve::acp::AcpAgent,
//!     store::MemoryStore,
//!     tool::ToolSet,
//! };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let manager = Manager::builder(MemoryStore::new()).build();
//! let agent = AcpAgent::new(manager.clone(), |_: &Principal, request: &StartRequest| {
//!     // The tools are those of the MCP servers in the editor's settings.
//!     let tools = ToolSet::new().extended(request.tools().to_vec())?;
//!     Ok::<_, Error>(OpenOptions::new(Agent::builder().model("anthropic:claude-sonnet-4-6").tools(tools)))
//! });
//! agent.models(["anthropic:claude-sonnet-4-6", "anthropic:claude-opus-5"]).stdio().await?;
//! manager.shutdown(Duration::from_secs(10)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Output.** The standard output carries only the protocol. Logs go to the standard error.
//! - **Conversations.** A session is a conversation of the manager, with the same id. The conversation's label
//!   `omni.cwd` contains the session's folder, or a checksum if the path is too long for a label. A list shows the
//!   conversations of one folder, or all conversations. The manager may close an idle session; the next prompt opens it
//!   again. A new conversation is stored, and listed, after its first turn.
//! - **Prompts.** A prompt is answered at the end of its run, or when the run begins to use the next staged prompt. A
//!   prompt that arrives during a run is staged. Up to 16 prompts of a session can wait. A cancellation interrupts the
//!   run, which keeps the completed steps.
//! - **Approvals.** Each tool use that waits for a decision is one question to the user, and all questions of a step
//!   are asked at once. If another client decides first, the question is withdrawn.
//! - **The end.** If the editor closes the connection or ends, the runs of its prompts are interrupted. They keep their
//!   completed steps, and other clients of the same manager can continue the conversations.
//! - **The death of the process.** If the options of `start` make turns [durable](crate::manager::OpenOptions::durable),
//!   a session that is loaded or resumed by the next process continues its turn. The client gets the turn's messages and
//!   the rest of the turn as updates, and is asked again about open tool uses. See
//!   [Serving an agent to other programs](crate::guides::serving).
//! - **MCP servers.** With feature `mcp`, the servers of the editor's settings are connected, and each use of their
//!   tools waits for an approval, unless the agent's callbacks decide otherwise. If a server can't be used, the session
//!   opens without it, and a warning before the first answer names the server: a notice, or a part of the message if the
//!   client shows no notices. Without the feature, no server can be used.
//! - **Limits.** A message may be up to 32 MiB long. A client that writes 1,000 consecutive lines that are not messages
//!   is disconnected. Up to 64 requests can wait, and up to 1,000 sessions can be in use. If a client does not read the
//!   messages sent to it, the agent waits.
//!
//! This module does not use the services that editors offer: files, terminals, and modes. Images and audio are accepted
//! if one of the offered models accepts them. They are also accepted if no models are offered, or if it is unknown what
//! an offered model accepts.

mod content;
mod entry;
mod prompts;
mod relay;
mod server;
mod sessions;
mod view;

use std::{collections::BTreeSet, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

use super::stdio;
use crate::{
    access::{Agents, EditorServers, Principal, client::AuthorizedClient},
    manager::Manager,
    session::{Session, SessionSubscription},
    store::Labels,
};

impl EditorServers {
    /// If the session uses tools of the servers, keeps these tools up to date.
    #[cfg_attr(not(feature = "mcp"), expect(clippy::unused_self, reason = "as with the feature"))]
    fn follow(&self, session: &Session, events: &SessionSubscription) {
        #[cfg(feature = "mcp")]
        if let Some(snapshot) = events.snapshot() {
            let used = &snapshot.agent.state.tools;
            if self.tools.iter().any(|tool| used.iter().any(|used| used.name == tool.name())) {
                self.clients.iter().for_each(|client| client.follow(session));
            }
        }
        #[cfg(not(feature = "mcp"))]
        let _ = (session, events);
    }

    /// Closes the connections to the servers.
    #[cfg_attr(not(feature = "mcp"), expect(clippy::unused_async, reason = "as with the feature"))]
    async fn close(&self) {
        #[cfg(feature = "mcp")]
        for client in &self.clients {
            client.close().await;
        }
    }
}

/// An agent that editors use over the Agent Client Protocol. Its sessions are the conversations of a [`Manager`].
///
/// See the [module](self).
#[must_use = "an agent does nothing until it serves a client"]
pub struct AcpAgent(EditorServerSettings);

#[derive(Clone)]
struct EditorServerSettings {
    client: AuthorizedClient,
    models: Arc<[String]>,
    name: String,
    version: String,
}

impl EditorServerSettings {
    /// Returns whether one of the offered models accepts files of this type. Also returns `true` if this is unknown, or
    /// if no models are offered.
    fn takes(&self, media_type: &str) -> bool {
        let registry = self.client.manager.registry_of_models();
        let takes = |name: &String| {
            let model = registry.model(name).ok();
            model.is_none_or(|model| model.info().is_none_or(|info| info.takes(media_type)))
        };
        self.models.is_empty() || self.models.iter().any(takes)
    }
}

impl AcpAgent {
    /// Creates an agent whose sessions are conversations of `manager`. `agents` returns the agent of a session: for a
    /// new conversation, and each time a stored conversation is opened.
    pub fn new(manager: Manager, agents: impl Agents) -> Self {
        Self(EditorServerSettings {
            client: AuthorizedClient::local(manager, agents),
            models: Arc::new([]),
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// Sets the models among which the editor's user can choose, by their names in the manager's registry. A repeated name
    /// is ignored. A model that is chosen during a run applies from the next prompt on. By default, no choice is offered.
    pub fn models(mut self, models: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut seen = BTreeSet::new();
        self.0.models =
            models.into_iter().map(Into::into).filter(|name: &String| seen.insert(name.clone())).collect();
        self
    }

    crate::setters::setters! {
        /// Sets labels that all conversations of this agent have. The agent lists, opens and deletes only conversations
        /// with these labels. The manager's store must support labels.
        pub fn labels(self, labels: Labels) { self.0.client.principal = Principal::local(labels) }

        /// Sets the name of the agent that editors see. The default is the name of this crate.
        pub fn name(self, name: impl Into<String>) { self.0.name = name.into() }

        /// Sets the version of the agent that editors see. The default is the version of this crate.
        pub fn version(self, version: impl Into<String>) { self.0.version = version.into() }
    }

    /// Serves the program that has started this process, over the standard input and output. Returns when that program
    /// closes the standard input or ends.
    ///
    /// Nothing else may be written to the standard output. The manager is not shut down: see [`Manager::shutdown`].
    ///
    /// # Errors
    ///
    /// Fails if the input or output fails, or if the client sends a message that is too long or many lines that are not
    /// messages.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client is no longer served. The runs of its prompts continue.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with time enabled.
    pub async fn stdio(self) -> Result<(), crate::Error> {
        let (output, finished) = stdio::output().map_err(stdio::unwritable)?;
        let input = stdio::input().map_err(stdio::unreadable)?;
        let served = self.serve(input, output).await;
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
        &self,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin,
    ) -> Result<(), crate::Error> {
        // The future is large, because it contains all requests.
        Box::pin(server::run(self.0.clone(), input, output)).await
    }
}

crate::debug::impl_debug! { AcpAgent(self) {
    manager: self.0.client.manager, models: self.0.models, labels: self.0.client.principal.labels(), name: self.0.name,
    version: self.0.version, ..
} }
