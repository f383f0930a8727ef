//! The clients of a manager's conversations: who they are, what they may do, and the agents of their conversations.
//!
//! The application decides with two hooks. [`Permissions`] decides what a [`Principal`] may do. The web layer adds the
//! trait `Access`, which finds the principal of a request. [`Agents`] builds the agent of each conversation, for the
//! web layer and for the servers in `serve`. A [`StartRequest`] describes the conversation, and the way in which its client
//! reaches it.

#[cfg(any(feature = "acp", feature = "mcp-server", feature = "web"))]
#[cfg_attr(not(feature = "web"), allow(dead_code, reason = "the web layer uses all parts"))]
pub(crate) mod client;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;

#[cfg(feature = "mcp")]
use crate::mcp::McpClient;
use crate::{
    manager::OpenOptions,
    run::{Error, ErrorKind},
    store::{ConversationId, Labels},
    tool::Tool,
};

/// Decides what a principal may do.
pub trait Permissions: Send + Sync + 'static {
    /// Returns whether the principal may perform this action on a conversation with these labels.
    ///
    /// By default, a principal may do everything with the conversations that have all labels of the principal. Lists
    /// and searches contain only such conversations, even if this method permits more.
    ///
    /// A list reads on until its page is full of permitted conversations, so a method that refuses most of them makes
    /// lists slow. It is better to give such conversations other labels.
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        let _ = action;
        principal.owns(labels)
    }
}

/// The sender of a request: a name and labels.
///
/// A conversation belongs to a principal if it has all labels of the principal. A conversation that the principal
/// creates gets these labels. Principals with the same name and other labels are different, such as those of two tenants.
///
/// ```
/// use omni_agent::{access::Principal, store::Labels};
///
/// let ann = Principal::new("ann", Labels::new([("tenant", "acme"), ("user", "ann")])?)?;
/// assert!(ann.owns(&Labels::new([("tenant", "acme"), ("user", "ann"), ("kind", "support")])?));
/// assert!(!ann.owns(&Labels::new([("tenant", "acme"), ("user", "ben")])?));
/// assert!(Principal::new("nobody", Labels::default()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    name: Arc<str>,
    /// The labels, or empty labels for an operator.
    labels: Labels,
}

impl Principal {
    /// The greatest length of a name in bytes.
    const MAX_NAME: usize = 256;

    /// Returns a principal with this name, which decisions about tool uses record, and these labels.
    ///
    /// # Errors
    ///
    /// Fails if the labels are empty, or if the name has more than 256 bytes.
    pub fn new(name: impl Into<Arc<str>>, labels: Labels) -> Result<Self, Error> {
        if labels.is_empty() {
            let text = "a principal without labels would own every conversation; give it labels, or use Principal::operator";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let principal = Self { name: name.into(), labels };
        match principal.name.len() {
            length if length > Self::MAX_NAME => {
                let limit = Self::MAX_NAME;
                let text = format!("the principal's name has {length} bytes; use at most {limit}");
                Err(Error::new(ErrorKind::Config, text)
                    .with_member("length", length)
                    .with_member("limit", limit))
            }
            _ => Ok(principal),
        }
    }

    /// Returns a principal to whom every conversation belongs, and who may replace labels. The name is cut to at
    /// most 256 bytes.
    pub fn operator(name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        let name = &name[..name.floor_char_boundary(Self::MAX_NAME)];
        Self { name: name.into(), labels: Labels::default() }
    }

    /// Returns the principal of a server over a pipe, to whom all conversations with these labels belong.
    #[cfg(any(feature = "acp", feature = "mcp-server"))]
    pub(crate) fn local(labels: Labels) -> Self {
        Self { name: "local".into(), labels }
    }

    /// Returns the principal's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the principal's labels. An operator has none.
    pub const fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Returns whether the principal is an operator.
    pub const fn is_operator(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns whether a conversation with these labels belongs to the principal.
    pub fn owns(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

/// An action on a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Lists the conversation, or finds it by a search.
    List,
    /// Creates the conversation.
    Create,
    /// Reads the conversation, its files and its usage.
    Read,
    /// Subscribes to the conversation's events.
    Watch,
    /// Sends a prompt, or takes back a staged prompt.
    Prompt,
    /// Decides on a tool use.
    Decide,
    /// Interrupts or cancels a run.
    Stop,
    /// Regenerates, edits, branches or moves the path.
    Branch,
    /// Changes the title.
    Rename,
    /// Changes the model or, for operators, the labels.
    Configure,
    /// Deletes the conversation, or erases messages.
    Delete,
}

/// Builds the agent of each conversation that is opened or created.
///
/// A closure with the same arguments is an implementation:
///
/// ```
/// use omni_agent::agent::Agent;
/// use omni_agent::manager::OpenOptions;
/// use omni_agent::access::{Agents, Principal, StartRequest};
///
/// fn assistants() -> impl Agents {
///     |_: &Principal, request: &StartRequest| {
///         let model = request.model.as_deref().unwrap_or("anthropic:claude-sonnet-4-6");
///         let agent = Agent::builder().model(model).system("You are a helpful assistant.");
///         Ok::<_, omni_agent::Error>(OpenOptions::new(agent))
///     }
/// }
/// # let _ = assistants();
/// ```
///
/// A type that implements the trait can wait, for example to connect to a server with the principal's credentials.
#[async_trait]
pub trait Agents: Send + Sync + 'static {
    /// Returns the options for a conversation that is about to be opened or created. The principal's labels are
    /// added to a new conversation, and the mode of the subscription in the options has no effect. If the conversation
    /// is open already, the returned agent is not used.
    ///
    /// # Errors
    ///
    /// Fails with an error, which is sent to the client. A client of the web gets the status, the code and the title of the
    /// [`ErrorKind`](crate::ErrorKind). It gets the text only with the status 400, 409 or 422, and not with
    /// [`StaleDecision`](crate::ErrorKind::StaleDecision), and with [`NotPermitted`](crate::ErrorKind::NotPermitted). For a
    /// refusal by the application, use `NotPermitted`, or [`Unsupported`](crate::ErrorKind::Unsupported) for a model.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the client closes its connection.
    async fn start(&self, principal: &Principal, request: &StartRequest) -> Result<OpenOptions, Error>;
}

#[async_trait]
impl<F> Agents for F
where
    F: Fn(&Principal, &StartRequest) -> Result<OpenOptions, Error> + Send + Sync + 'static,
{
    async fn start(&self, principal: &Principal, request: &StartRequest) -> Result<OpenOptions, Error> {
        self(principal, request)
    }
}

/// The conversation that an agent is needed for.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StartRequest {
    /// The id of the stored conversation. `None` for a new conversation.
    ///
    /// Settings such as the model and the system prompt are stored with a conversation. Set them for new conversations
    /// only, because they would replace the stored ones.
    pub conversation: Option<ConversationId>,
    /// The labels of the stored conversation, or the principal's labels for a new one. An MCP server or an ACP agent over a
    /// pipe that has no labels itself does not read those of stored conversations, so the labels are empty there.
    pub labels: Labels,
    /// The model that the client has chosen for a new conversation. It is one of the models that the
    /// server offers. A stored conversation keeps its model.
    pub model: Option<String>,
    /// The way in which the client reaches the conversation.
    pub via: Via,
}

impl StartRequest {
    /// Returns the absolute path of the folder in which an editor's user works. `None` for other clients.
    pub fn folder(&self) -> Option<&Path> {
        self.editor().map(|(folder, _)| folder)
    }

    /// Returns the tools of the MCP servers that an editor names. Without the feature `mcp`, the list is empty.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        self.editor().map_or(&[], |(_, servers)| &servers.tools)
    }

    /// Returns the folder and the MCP servers that an editor names.
    pub(crate) fn editor(&self) -> Option<(&Path, &EditorServers)> {
        match &self.via {
            Via::Acp { folder, servers } => Some((folder, servers)),
            Via::Web | Via::Mcp => None,
        }
    }
}

/// The way in which a client reaches a conversation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Via {
    /// Over HTTP: over the routes of the [web layer](crate::guides::web_services), or over a mounted MCP server.
    #[default]
    Web,
    /// Over the Model Context Protocol, from a program that is connected by a pipe.
    Mcp,
    /// Over the Agent Client Protocol, from an editor.
    Acp {
        /// The absolute path of the folder in which the editor's user works.
        folder: PathBuf,
        /// The MCP servers that the editor names.
        servers: EditorServers,
    },
}

/// The MCP servers that an editor names: connected, with their tools.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct EditorServers {
    /// The tools of the servers. Without the feature `mcp`, the list is empty.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The servers.
    #[cfg(feature = "mcp")]
    pub clients: Vec<McpClient>,
    /// A sentence for each server that can't be used, with the server's name and the reason.
    pub warnings: Vec<String>,
}

crate::debug::impl_debug! { EditorServers(self) {
    tools: self.tools.iter().map(|tool| (**tool).name()).collect::<Vec<_>>(), ..
} }
