//! A manager behind HTTP: JSON routes, a stream of server-sent events, and an access hook that every route passes.
//!
//! [`Web::builder`] takes a [`Manager`], an implementation of [`Access`] and one of [`Agents`]. [`Web::router`] returns
//! an [`axum::Router`], which an application nests into its own router, behind its own middleware:
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use axum::http::request::Parts;
//! use omni_agent::agent::Agent;
//! use omni_agent::manager::{Manager, OpenOptions};
//! use omni_agent::store::{Labels, MemoryStore};
//! use omni_agent::access::{Permissions, Principal, StartRequest};
//! use omni_agent::web::{Access, Challenge, Web};
//! # use omni_agent::testing::ScriptedProvider;
//!
//! /// Everybody is the same user. A real application reads a session cookie or a token.
//! struct OneUser;
//!
//! impl Permissions for OneUser {}
//!
//! #[omni_agent::async_trait]
//! impl Access for OneUser {
//!     async fn principal(&self, _: &Parts) -> Result<Principal, Challenge> {
//!         let labels = Labels::new([("user", "me")]).map_err(|_| Challenge::bearer())?;
//!         Principal::new("me", labels).map_err(|_| Challenge::bearer())
//!     }
//! }
//!
//! # let model = ScriptedProvider::new([]).model();
//! let manager = Manager::builder(MemoryStore::new()).build();
//! let agents = move |_: &Principal, _: &StartRequest| {
//!     Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder().model(model.clone())))
//! };
//! let web = Web::builder(manager, OneUser, agents).build();
//! let app: axum::Router = axum::Router::new().nest("/agent", web.router());
//! # let _ = app;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The guide on [web services](crate::guides::web_services) shows the rest: access, limits, front ends, and the end of
//! the server.
//!
//! # Routes
//!
//! The paths are relative to the place where the router is nested. `C` is `/conversations/{id}`. The bodies of requests
//! are JSON, and so are the bodies of responses, except for streams and attachments. Errors are [`Problem`]s.
//!
//! | route | purpose |
//! | --- | --- |
//! | `GET /conversations?limit=&after=` | the principal's conversations, most recently written first |
//! | `POST /conversations` | creates a conversation; the body has an optional `title` and `model` |
//! | `GET /approvals?limit=&after=` | the tool uses that wait for decisions in the principal's conversations, from the store |
//! | `GET /search?q=&limit=&offset=` | a full-text search, if the store supports it |
//! | `GET /usage?from=&to=` | the usage of all conversations of the principal, by model |
//! | `GET C` | the [snapshot](crate::session::SessionSnapshot) |
//! | `DELETE C` | deletes the conversation |
//! | `POST C/forks` with `{node, title}` | copies the path to a message into a new conversation of the principal, and answers like `POST /conversations` |
//! | `POST C/commands` | runs a [`SessionCommand`](crate::session::SessionCommand); decisions, a title and labels do not open the conversation, all others do |
//! | `GET C/messages?before=&limit=` | the messages before a node, on its branch, oldest first: at most 4 MiB, but at least one; `before` is required, and the snapshot has the newest messages |
//! | `GET C/usage?limit=&after=` | the usage ledger, newest first, and the usage of sub-agents on its first page |
//! | `GET C/files/{message}/{block}` | the bytes of an attachment |
//! | `GET C/events?messages=` | a stream of the conversation's updates |
//! | `GET /events?list=&watch=&messages=` | a stream of the list and of up to eight conversations |
//! | `GET /schema/updates`, `GET /schema/commands` | the JSON Schemas of updates and commands |
//! | `GET /openapi.json` | the OpenAPI 3.1 document of these routes, with all parameters, answers and errors |
//!
//! # Streams
//!
//! A stream sends an event `conversation` with `{conversation, update}` for each update. In a new stream, the first
//! update of a conversation is a `resync` that contains a snapshot. The SSE `id` of an event contains, for each
//! conversation of the stream, the id of the last update that was sent. A client that sends the SSE `id` back as
//! `last-event-id` gets the updates that it has missed, or a new `resync`.
//!
//! Events with deltas of texts, thinking and tool inputs have no SSE `id`, so they may be sent again after a reconnect.
//! But each update in the JSON has an id of its own. A client skips every update whose id it has applied already.
//!
//! With `messages`, a snapshot contains only the last messages of the path, as by
//! [`Session::subscribe_tail`](crate::session::Session::subscribe_tail). The client reads older messages page by page.
//!
//! The event `list` contains `{update}`, an update of the list of conversations. The first update of the list is always
//! a `resync`. The event `refused` has `{conversation, problem}` if a conversation cannot be opened, or if the
//! principal may not watch it. If a later attempt can help, `retry_after` is the time in seconds until then. The event
//! `ending` announces the end of the stream. Leaving a stream of the
//! native routes never stops a run.
//!
//! # Security
//!
//! - Requests from the pages of other sites are refused: see [`WebBuilder::allow_origins`]. A body must have the
//!   content type `application/json`, which an HTML form cannot send. The crate sets no cookie.
//! - A client chooses the content of prompts and one of the [permitted models](WebBuilder::models). It cannot set
//!   options, limits or the system prompt. It can add tools only if [`WebBuilder::client_tools`] permits this.
//! - By default, the [`View`] removes the system prompt, schemas, signatures and data of providers from the events and
//!   snapshots that are sent.
//! - Rate limits are the task of the application's middleware.

mod access;
mod ag_ui;
mod ai_sdk;
mod client_ids;
mod feed;
mod front;
mod gate;
mod guard;
mod pages;
mod problem;
mod proxy;
mod requests;
mod routes;
mod streams;
#[cfg(test)]
mod testing;
mod ui_messages;
mod view;

pub use access::{Access, Challenge};
#[cfg(feature = "mcp-server")]
pub(crate) use guard::guarded;
pub use problem::Problem;
#[cfg(all(test, feature = "schema"))]
pub(crate) use requests::{
    ApprovalPage, Created, ListPage, ListQuery, MessagePage, MessagesQuery, NewConversation, NewFork,
    PeriodQuery, RowsPage, SearchQuery, UsageRowsQuery, WatchQuery,
};
pub use view::View;

use std::{collections::HashSet, sync::Arc, time::Duration};

use axum::{Router, http::Method};
use tokio_util::sync::CancellationToken;

use crate::{
    access::{Action, Agents, Principal, client::AuthorizedClient},
    manager::Manager,
    provider::Secret,
    setters::setters,
};
use access::WebAccessHooks;
use client_ids::ClientConversationIdTranslator;
use feed::LabelsCache;
use front::readers::WebRunReaders;
use routes::Route;
use streams::PrincipalLoads;

/// The error of a stream whose session can no longer save anything. The conversation may be deleted or damaged, or
/// another server may have taken it over and continue the answer.
const LOST: &str = "This server can no longer save the conversation. Load it again to see its current state.";

/// The error of a stream whose run was abandoned. The user has not asked for the end of the run, so a client must not
/// take the answer for complete.
const ABANDONED: &str = "The run was ended after too many restarts.";

/// A manager behind HTTP. Cheap to clone.
///
/// See the [module documentation](self) for the routes and an example.
#[derive(Clone, Debug)]
pub struct Web(Arc<WebShared>);

#[derive(Debug)]
struct WebShared {
    manager: Manager,
    hooks: WebAccessHooks,
    view: View,
    limits: WebLimits,
    models: Vec<String>,
    origins: HashSet<String>,
    hosts: Option<HashSet<String>>,
    reveals_owner: bool,
    proxy_secret: Option<Secret>,
    draining: CancellationToken,
    loads: Arc<PrincipalLoads>,
    read_labels: LabelsCache,
    client_ids: Option<ClientConversationIdTranslator>,
    client_tools: bool,
    ag_ui_runs: ag_ui::AgUiRecentRuns,
    readers: WebRunReaders,
}

/// Settings of a [`Web`].
#[derive(Debug)]
#[must_use = "a builder does nothing before `build` is called"]
pub struct WebBuilder(WebShared);

/// The limits of a [`Web`].
///
/// ```
/// use omni_agent::web::WebLimits;
///
/// let limits = WebLimits::default().with_streams_per_principal(4);
/// assert_eq!(limits.streams_per_principal, 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebLimits {
    /// The maximum size of a body in bytes, if the body is a command, a decision, or a request of the AI SDK, of AG-UI or
    /// of the mounted MCP server: 8 MiB by default.
    pub command_body: usize,
    /// The maximum size of all other bodies in bytes: 64 KiB by default.
    pub body: usize,
    /// The maximum sum of the sizes of one principal's bodies that are received or processed at the same time, in bytes:
    /// 32 MiB by default.
    pub bodies_per_principal: usize,
    /// The maximum sum of the sizes of all bodies that are received or processed at the same time, in bytes: 128 MiB by
    /// default. It bounds the memory for requests, which is a multiple of this size.
    pub bodies: usize,
    /// The maximum number of streams of one principal: 16 by default.
    pub streams_per_principal: usize,
    /// The maximum number of streams in all: 10,000 by default.
    pub streams: usize,
    /// The maximum number of entries on a page: 200 by default. A request without `limit` gets 50.
    pub page: usize,
    /// The maximum time that a request waits if the maximum number of sessions is open: 30 seconds by default.
    pub room_timeout: Duration,
    /// The time after which a stream ends, so that the client's access is checked again: 15 minutes by default. The
    /// time of each stream differs by up to 10 % from this value. A stream of the native routes ends with an `ending`
    /// event. The body of a stream of the AI SDK or of AG-UI fails, and the client can join the run again.
    pub stream_lifetime: Duration,
    /// The silence after which a stream sends a comment: 15 seconds by default.
    pub keep_alive: Duration,
    /// The maximum time in which a client takes the next part of a stream: 2 minutes by default. After this time, the
    /// stream ends, so that a client that never reads does not count as a reader for ever. The run of the stream
    /// continues. If the client reads later, the body fails.
    pub send_timeout: Duration,
}

setters! {
    WebLimits: with_command_body(command_body: usize), with_body(body: usize),
    with_bodies_per_principal(bodies_per_principal: usize), with_bodies(bodies: usize),
    with_streams_per_principal(streams_per_principal: usize), with_streams(streams: usize), with_page(page: usize),
    with_room_timeout(room_timeout: Duration), with_stream_lifetime(stream_lifetime: Duration),
    with_keep_alive(keep_alive: Duration), with_send_timeout(send_timeout: Duration)
}

impl Default for WebLimits {
    fn default() -> Self {
        Self {
            command_body: 8 << 20,
            body: 64 << 10,
            bodies_per_principal: 32 << 20,
            bodies: 128 << 20,
            streams_per_principal: 16,
            streams: 10_000,
            page: 200,
            room_timeout: Duration::from_secs(30),
            stream_lifetime: Duration::from_mins(15),
            keep_alive: Duration::from_secs(15),
            send_timeout: Duration::from_mins(2),
        }
    }
}

impl Web {
    /// Returns a builder for a router over this manager. `access` decides who may do what, and `agents` builds the
    /// agent of each conversation.
    pub fn builder(manager: Manager, access: impl Access, agents: impl Agents) -> WebBuilder {
        WebBuilder(WebShared {
            manager,
            hooks: WebAccessHooks { access: Arc::new(access), agents: Arc::new(agents) },
            view: View::chat(),
            limits: WebLimits::default(),
            models: Vec::new(),
            origins: HashSet::new(),
            hosts: None,
            reveals_owner: false,
            proxy_secret: None,
            draining: CancellationToken::new(),
            loads: Arc::default(),
            read_labels: LabelsCache::default(),
            client_ids: None,
            client_tools: false,
            ag_ui_runs: ag_ui::AgUiRecentRuns::default(),
            readers: WebRunReaders::default(),
        })
    }

    /// Returns the router with the native routes.
    pub fn router(&self) -> Router {
        routes::router(self)
    }

    /// Returns the router with the routes of the AI SDK. If it is nested at `/api`, `useChat` finds it without further
    /// settings. A conversation is created with the native routes first, and its id is the id of the chat. With
    /// [`client_ids`](WebBuilder::client_ids), the first message of a chat creates its conversation.
    ///
    /// The routes implement the protocol of `ai` 7. A client with `ai` 6 adds `?ui=6` to the address of the chat.
    ///
    /// | route | purpose |
    /// | --- | --- |
    /// | `POST /chat` | sends a message, an edit, decisions or results, or answers again; responds with the stream |
    /// | `GET /chat/{chat}/stream` | the answer that is streaming, from its start; 204 if there is none |
    /// | `GET /chat/{chat}/messages` | the messages that a page loads |
    /// | `POST /chat/{chat}/stop?message=&discard=` | stops the run of this prompt or answer and keeps its text, or discards the run |
    /// | `GET /chat/{chat}/files/{message}/{block}` | the bytes of an attachment |
    /// | `POST /chat/{chat}/commands` | runs a [`SessionCommand`](crate::session::SessionCommand), such as a decision with another input |
    ///
    /// A page's stop button must call the route `stop`, because leaving a stream does not stop a run. The response then
    /// ends by itself. With [`interrupt_when_left`](WebBuilder::interrupt_when_left), a stop button that only leaves the
    /// stream works, too.
    ///
    /// With `lastAssistantMessageIsCompleteWithApprovalResponses` as `sendAutomaticallyWhen`, version 7 sends decisions
    /// about tools by itself. Version 6 has no frame for tools that run without a decision, so it needs another
    /// condition:
    ///
    /// ```js
    /// const sendAutomaticallyWhen = ({ messages }) => {
    ///   const parts = messages.at(-1)?.parts ?? [];
    ///   return parts.some(part => part.state === 'approval-responded')
    ///     && !parts.some(part => part.state === 'approval-requested');
    /// };
    /// ```
    pub fn ai_sdk(&self) -> Router {
        ai_sdk::router(self)
    }

    /// Returns the methods and paths of the native routes, for documents, metrics and tests.
    ///
    /// ```
    /// use omni_agent::web::Web;
    ///
    /// assert!(Web::routes().any(|(method, path)| method == "GET" && path == "/conversations/{id}"));
    /// ```
    pub fn routes() -> impl Iterator<Item = (Method, &'static str)> {
        names(routes::all())
    }

    /// Returns the methods and paths of the routes of the AI SDK.
    pub fn ai_sdk_routes() -> impl Iterator<Item = (Method, &'static str)> {
        names(ai_sdk::all())
    }

    /// Returns the methods and paths of the routes of AG-UI.
    pub fn ag_ui_routes() -> impl Iterator<Item = (Method, &'static str)> {
        names(ag_ui::routes::all())
    }

    /// Returns the router with the routes of AG-UI, for clients of protocol version 1.0 and of version 0.0.59 of the
    /// packages:
    ///
    /// | route | purpose |
    /// | --- | --- |
    /// | `POST /` | runs the agent, and answers with the events of the run |
    /// | `GET /{thread}?runId=&protocolVersion=` | joins the active run; if no run is active, sends the messages |
    /// | `POST /{thread}/stop?runId=&discard=` | ends the run, and keeps its text unless `discard` is `true` |
    /// | `GET /{thread}/files/{message}/{block}` | the bytes of an attachment |
    ///
    /// The thread is the conversation. Each tool use that waits for a decision is an interrupt. Its answer has the
    /// members `approved`, `reason` and `editedArgs`. The posted messages before the newest one only show where the
    /// newest message belongs. If the newest message is a user message that the server knows, it is answered again, or
    /// edited if its content differs.
    pub fn ag_ui(&self) -> Router {
        ag_ui::routes::router(self)
    }

    /// Ends the streams of the native routes with an `ending` event. From now on, new streams and prompts are refused
    /// with the status 503. A stream of the AI SDK or of AG-UI ends with its run, or when [`Manager::shutdown`] ends
    /// the session.
    ///
    /// Call it before [`Manager::shutdown`], and stop the HTTP server last. Without this call, a graceful shutdown of
    /// the HTTP server waits for streams that do not end.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }

    fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Returns whether a load balancer should send requests to this server, for the route of a readiness probe. It
    /// returns `false` after [`drain`](Self::drain), and once the shutdown or hand-over of the manager has begun.
    ///
    /// A store that cannot be reached does not change the answer. Otherwise all processes that share the store would
    /// become unready together, and clients would lose what needs no store.
    pub fn is_ready(&self) -> bool {
        !self.is_draining() && !self.0.manager.is_shut()
    }

    /// Returns the token that [`drain`](Self::drain) cancels.
    #[cfg(feature = "mcp-server")]
    pub(crate) fn draining(&self) -> CancellationToken {
        self.0.draining.clone()
    }

    #[cfg(feature = "mcp-server")]
    pub(crate) fn limits(&self) -> &WebLimits {
        &self.0.limits
    }
}

fn names(table: impl IntoIterator<Item = Route>) -> impl Iterator<Item = (Method, &'static str)> {
    table.into_iter().map(|route| (route.method, route.path))
}

impl WebBuilder {
    /// Sets the names of the models that a client may choose. By default, a client cannot choose a model.
    pub fn models<N: Into<String>>(mut self, models: impl IntoIterator<Item = N>) -> Self {
        self.0.models = models.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// Sets which parts of events and snapshots a client sees. The default is [`View::chat`].
        pub fn view(self, view: View) { self.0.view = view }

        /// Sets the limits.
        pub fn limits(self, limits: WebLimits) { self.0.limits = limits }
    }

    /// Allows requests of pages on these origins, such as `https://chat.example.com`. By default, only pages of the
    /// router's own origin may send requests, and no CORS header is sent.
    ///
    /// Pages on a listed origin may also send cookies, except on the origin `null`.
    ///
    /// A request without the headers `origin` and `sec-fetch-site` does not come from a web page and is accepted.
    pub fn allow_origins<N: Into<String>>(mut self, origins: impl IntoIterator<Item = N>) -> Self {
        self.0.origins = origins.into_iter().map(Into::into).collect();
        self
    }

    /// Accepts only requests for these hosts (the header `host`, with the port if it is not the default port). This
    /// protects a server on loopback or in a private network against DNS rebinding. By default, all hosts are accepted.
    pub fn hosts<N: Into<String>>(mut self, hosts: impl IntoIterator<Item = N>) -> Self {
        self.0.hosts = Some(hosts.into_iter().map(|host| host.into().to_ascii_lowercase()).collect());
        self
    }

    setters! {
        /// Accepts the tools that AG-UI clients declare. The model can use them, and the client runs them. They are
        /// added after the agent's own tools, for the run of their request only. By default, they are ignored.
        ///
        /// They cannot replace a tool of the agent. If the agent itself runs a tool of the same name, the client's
        /// declaration is ignored. If the agent only declares the tool, its declaration stays, and a client's
        /// declaration with another schema is refused.
        pub fn client_tools(self) { self.0.client_tools = true }

        /// Interrupts a run that was started or continued by a decision over a stream of the AI SDK or of AG-UI, and that
        /// nobody reads any more. A stop button that only leaves the stream then stops the run, such as `stop()` of
        /// `useChat`. By default, a run continues.
        ///
        /// If such a stream is left before the end of its run, and the conversation has no other stream of the AI SDK or
        /// of AG-UI, the run continues for the time `grace`. A new stream, such as that of a reloaded page, keeps the run.
        /// A new message of the same principal ends the time early, and is answered after the interrupted run. The
        /// server may notice after this message that the stream was left, so the message waits up to five seconds while
        /// the principal reads an active run elsewhere. After `grace`:
        ///
        /// - A run keeps its text and its complete steps, as by [`Session::interrupt`](crate::session::Session::interrupt).
        /// - A prompt that is still staged is withdrawn.
        /// - A paused run stays, because decisions can be made much later.
        ///
        /// Nothing ends while the server [drains](Web::drain), or if the principal lacks [`Action::Stop`]. If the server
        /// itself ends a stream early, such as after [`WebLimits::stream_lifetime`], its run continues.
        ///
        /// A lost connection looks like a stop button. So `grace` should be at least five seconds, which is enough for a
        /// client to connect again.
        pub fn interrupt_when_left(self, grace: Duration) { self.0.readers.grace = Some(grace) }

        /// Shows which process has a conversation open, with its address, in lists and in results of searches. For
        /// services whose clients are operators. By default, clients do not learn it.
        pub fn reveal_owner(self) { self.0.reveals_owner = true }
    }

    /// Returns the [`Web`], which creates the routers.
    pub fn build(self) -> Web {
        Web(Arc::new(self.0))
    }
}
