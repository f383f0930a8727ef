//! The two hooks of an application: [`Access`] decides about each request on every route, and [`Agents`] builds the
//! agents.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::{HeaderValue, request::Parts};

use super::Problem;
use crate::{
    manager::OpenOptions,
    run::{Error, ErrorKind},
    store::{ConversationId, Filter, Labels},
};

/// Decides who sends a request (the principal), and which conversations this principal may use.
///
/// Every route calls [`principal`](Access::principal) first. A route of a conversation then calls
/// [`permits`](Access::permits) with the conversation's labels. A conversation that the principal may not read looks
/// like a conversation that does not exist.
///
/// A client decides how long the body of its request takes. So both methods are called before the body is read, and
/// again when it has arrived. `permits` is also called again when a conversation had to be opened for the request.
///
/// ```
/// use axum::http::request::Parts;
/// use omni_agent::{async_trait, store::Labels, web::{Access, Challenge, Principal}};
///
/// /// Users are known by a token.
/// struct Tokens;
///
/// #[async_trait]
/// impl Access for Tokens {
///     async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
///         let token = request.headers.get("authorization").and_then(|value| value.to_str().ok());
///         let user = match token {
///             Some("Bearer ann-17") => "ann",
///             Some("Bearer ben-42") => "ben",
///             _ => return Err(Challenge::bearer()),
///         };
///         Principal::new(user, Labels::new([("user", user)]).map_err(|_| Challenge::bearer())?)
///             .map_err(|_| Challenge::bearer())
///     }
/// }
/// ```
#[async_trait]
pub trait Access: Send + Sync + 'static {
    /// Returns who sends the request.
    ///
    /// # Errors
    ///
    /// Fails if the request is not authenticated. The client gets the status 401 with the challenge.
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge>;

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
/// use omni_agent::{store::Labels, web::Principal};
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

    /// Returns the filter for the principal's conversations.
    pub(crate) fn filter(&self) -> Filter {
        Filter::with(self.labels.clone())
    }

    #[cfg(feature = "mcp-server")]
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
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

/// The value of the header `www-authenticate`, which tells a client how to authenticate.
#[derive(Clone, Debug)]
pub struct Challenge(pub(super) HeaderValue);

impl Challenge {
    /// Returns a challenge for a bearer token.
    pub const fn bearer() -> Self {
        Self(HeaderValue::from_static("Bearer"))
    }

    /// Returns a challenge with this header value.
    pub const fn new(value: HeaderValue) -> Self {
        Self(value)
    }
}

/// Builds the agent of each conversation that is opened or created.
///
/// A closure with the same arguments is an implementation:
///
/// ```
/// use omni_agent::agent::Agent;
/// use omni_agent::manager::OpenOptions;
/// use omni_agent::web::{Agents, Principal, Problem, StartRequest};
///
/// fn assistants() -> impl Agents {
///     |_: &Principal, request: &StartRequest| {
///         let model = request.model.as_deref().unwrap_or("anthropic:claude-sonnet-4-6");
///         let agent = Agent::builder().model(model).system("You are a helpful assistant.");
///         Ok::<_, Problem>(OpenOptions::new(agent))
///     }
/// }
/// # let _ = assistants();
/// ```
///
/// A type that implements the trait can wait, for example to connect to a server with the principal's credentials.
#[async_trait]
pub trait Agents: Send + Sync + 'static {
    /// Returns the options for a conversation that is about to be opened or created. The router adds the principal's
    /// labels to a new conversation and chooses the mode of the subscription. If the conversation is open already, the
    /// returned agent is not used.
    ///
    /// # Errors
    ///
    /// Fails with a problem, which is sent to the client.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if the client closes its connection.
    async fn start(&self, principal: &Principal, request: &StartRequest) -> Result<OpenOptions, Problem>;
}

#[async_trait]
impl<F> Agents for F
where
    F: Fn(&Principal, &StartRequest) -> Result<OpenOptions, Problem> + Send + Sync + 'static,
{
    async fn start(&self, principal: &Principal, request: &StartRequest) -> Result<OpenOptions, Problem> {
        self(principal, request)
    }
}

/// The conversation that an agent is needed for.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StartRequest {
    /// The id of the stored conversation. `None` for a new conversation.
    pub conversation: Option<ConversationId>,
    /// The labels of the stored conversation, or the principal's labels for a new one.
    pub labels: Labels,
    /// The model that the client has chosen for a new conversation. It is one of the
    /// [permitted models](super::WebBuilder::models). A stored conversation keeps its model.
    pub model: Option<String>,
}

/// The two hooks of the application.
pub(super) struct Hooks {
    pub(super) access: Box<dyn Access>,
    pub(super) agents: Box<dyn Agents>,
}

crate::debug::impl_debug!(Hooks {});
