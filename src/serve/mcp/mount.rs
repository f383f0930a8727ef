//! The server over HTTP, for the principals of the web layer.
//!
//! A protocol session belongs to the principal that created it. Others get the same answer as for an unknown session.
//! Each principal has a limited number of them, and a new one ends the oldest.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header::ACCEPT, request::Parts},
    response::{IntoResponse, Response},
    routing::any,
};
use futures_util::StreamExt;
use rmcp::{
    ErrorData, RoleServer,
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService,
        session::{SessionManager, local::LocalSessionManager},
    },
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    ServerInfo,
    caller::{McpCaller, RefusalText},
    handler::{McpCallerLookup, McpServerHandler},
    running::LONGEST_QUESTION,
};
use crate::{
    access::{Principal, client::AuthorizedClient},
    sync::lock,
    web::{self, Problem, Web},
};

const SESSION: &str = "mcp-session-id";

/// The media type of a stream of events.
const STREAM: &str = "text/event-stream";

/// The time without messages after which a protocol session and its calls end. If the client wants reports of progress,
/// a running call sends them more often than that. A question that nobody answers ends before its session, so that the
/// call can continue.
const KEEP_ALIVE: Duration = LONGEST_QUESTION.saturating_add(Duration::from_mins(5));

/// Returns a router with the path `/`, which serves the conversations of a [`Web`] over the transport that the protocol
/// calls streamable HTTP. The [`Access`](crate::web::Access) of the web checks each request. `nest_service` also serves
/// the path with a slash at its end, such as `/mcp/`, and `nest` does not.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use omni_agent::serve::mcp::{self, ServerInfo};
/// # use omni_agent::{Agent, manager::{Manager, OpenOptions}, store::{Labels, MemoryStore}, testing::ScriptedProvider};
/// # use omni_agent::access::{Permissions, Principal, StartRequest};
/// # use omni_agent::web::{Access, Challenge, Web};
/// # struct OneUser;
/// # impl Permissions for OneUser {}
/// # #[omni_agent::async_trait]
/// # impl Access for OneUser {
/// #     async fn principal(&self, _: &axum::http::request::Parts) -> Result<Principal, Challenge> {
/// #         Principal::new("me", Labels::new([("user", "me")]).unwrap()).map_err(|_| Challenge::bearer())
/// #     }
/// # }
/// # let model = ScriptedProvider::new([]).model();
/// # let manager = Manager::builder(MemoryStore::new()).build();
/// # let agents = move |_: &Principal, _: &StartRequest| {
/// #     Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder().model(model.clone())))
/// # };
/// # let web = Web::builder(manager, OneUser, agents).build();
/// let app: axum::Router = axum::Router::new()
///     .nest("/agent", web.router())
///     .nest_service("/mcp", mcp::router(&web, ServerInfo::new("my-agent", "1.0.0")));
/// # let _ = app;
/// # })
/// # ;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - The [`Action`](crate::access::Action)s that a principal is permitted decide which conversations it sees and what it
///   may do with them. A conversation that it may not read looks like one that does not exist. `ask` needs the actions
///   `Read`, `Watch` and `Prompt`, and also `Create` for a new conversation. If the labels of the conversation change,
///   the permissions are checked again: a call whose client may no longer watch ends, and its run continues. Without
///   `Decide`, the client is not asked about tool uses. If a client closes the connection of a call that it has sent
///   again with answers, the run is interrupted only if the principal is permitted to `Stop`.
/// - A call counts as a stream, unless it calls `stop`: see [`WebLimits`](crate::web::WebLimits). A principal has at
///   most as many protocol sessions as streams. A session above this limit ends the oldest one. Only clients of
///   versions before 2026-07-28 have sessions. A session ends after an hour and five minutes without messages, and its
///   calls are then cancelled. So a client with long calls should ask for progress.
/// - After [`Web::drain`](crate::web::Web::drain), calls that wait end with an error, and their runs continue.
pub fn router(web: &Web, info: ServerInfo) -> Router {
    let mount = Arc::new(McpWebMount::new(web.clone(), info));
    let handler = move |request: Request| {
        let mount = Arc::clone(&mount);
        async move { mount.handle(request).await.unwrap_or_else(Problem::into_response) }
    };
    web::guarded(Router::new().route("/", any(handler)), web)
}

struct McpWebMount {
    web: Web,
    service: StreamableHttpService<McpServerHandler, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    owners: Mutex<McpSessionOwners>,
}

/// The principals of the protocol sessions.
#[derive(Default)]
struct McpSessionOwners {
    of: HashMap<String, (u64, Principal)>,
    created: u64,
}

impl McpSessionOwners {
    /// Adds a session. Returns the oldest session of the principal if it has more than `most`.
    fn add(&mut self, id: String, principal: &Principal, most: usize) -> Option<String> {
        self.created += 1;
        self.of.insert(id, (self.created, principal.clone()));
        let own = self.of.iter().filter(|(_, (_, owner))| owner == principal);
        let (count, oldest) = own.fold((0, None), |(count, oldest), (id, (number, _))| {
            (count + 1, oldest.into_iter().chain([(*number, id)]).min())
        });
        let oldest = oldest.filter(|_| count > most).map(|(_, id)| id.clone())?;
        self.of.remove(&oldest);
        Some(oldest)
    }
}

/// Returns the kinds of answers to name in place of the request's own. The answer to a message is always sent. The
/// answer to a request for a stream is sent if the client accepts it.
fn answered_kinds(request: &Parts) -> Option<&'static str> {
    if request.method != Method::GET {
        return Some("application/json, text/event-stream");
    }
    let mut accepted = request.headers.get_all(ACCEPT).iter().peekable();
    let is_accepted = accepted.peek().is_none()
        || accepted.filter_map(|kinds| kinds.to_str().ok()).flat_map(|kinds| kinds.split(',')).any(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            ["*/*", "text/*", STREAM].iter().any(|range| kind.eq_ignore_ascii_case(range))
        });
    is_accepted.then_some(STREAM)
}

impl McpWebMount {
    fn new(web: Web, info: ServerInfo) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(KEEP_ALIVE);
        let sessions = Arc::new(sessions);
        // The guard of the web layer checks hosts and origins, so the check of hosts in rmcp is disabled.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(web.limits().command_body)
            .with_sse_keep_alive(Some(web.limits().keep_alive));
        let (served, info) = (web.clone(), Arc::new(info));
        let callers: Arc<McpCallerLookup> = Arc::new(move |context: &RequestContext<RoleServer>| {
            let parts = context.extensions.get::<Parts>();
            let client = parts.and_then(|parts| parts.extensions.get::<AuthorizedClient>().cloned());
            let client = client.ok_or_else(|| ErrorData::internal_error("the sender is unknown", None))?;
            let (web, principal) = (served.clone(), client.principal.clone());
            let permit = move || -> Result<Box<dyn Send>, RefusalText> {
                Ok(Box::new(web.open_stream(&principal).map_err(|problem| problem.words())?))
            };
            let refused = |error| Problem::from(error).words();
            Ok(Arc::new(McpCaller { client, permit: Box::new(permit), refused }))
        });
        let handler = move || -> io::Result<McpServerHandler> {
            Ok(McpServerHandler::new(Arc::clone(&info), Arc::clone(&callers), CancellationToken::new()))
        };
        let service = StreamableHttpService::new(handler, Arc::clone(&sessions), config);
        Self { web, service, sessions, owners: Mutex::default() }
    }

    async fn handle(&self, mut request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let mut client = self.web.identify(&parts).await?;
        if parts.method != Method::POST
            && let Some(id) = parts.headers.get(SESSION)
        {
            self.check(id, &client.principal)?;
        }
        // A stream that belongs to no call stays open as long as the client wants, so it counts against the principal's
        // limit.
        let permit =
            if parts.method == Method::GET { Some(self.web.open_stream(&client.principal)?) } else { None };
        let is_whole = body.is_end_stream();
        let (body, _held) = self.web.receive(&client.principal, body, self.web.limits().command_body).await?;
        if !is_whole {
            // The client has chosen how long its body takes, so its access may have ended in the meantime.
            client = self.web.identify(&parts).await?;
        }
        if let Some(id) = parts.headers.get(SESSION)
            && let Err(unknown) = self.check(id, &client.principal)
        {
            // Some clients still send the id of their lost session when they begin another one.
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            if message["method"] != "initialize" {
                return Err(unknown);
            }
            parts.headers.remove(SESSION);
        }
        let principal = client.principal.clone();
        parts.extensions.insert(client);
        // rmcp refuses a request unless its client names every kind of answer, and many clients do not.
        if let Some(kinds) = answered_kinds(&parts) {
            parts.headers.insert(ACCEPT, HeaderValue::from_static(kinds));
        }
        request = Request::from_parts(parts, body.into());
        let response = self.service.handle(request).await;
        let created = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let response = response.map(Body::new);
        if let Some(id) = created {
            self.remember(id, &principal).await;
        }
        Ok(match permit {
            None => response,
            Some(permit) => {
                let draining = self.web.draining().cancelled_owned();
                response.map(|body| {
                    let held = body.into_data_stream().take_until(draining).map(move |piece| {
                        let _held = &permit;
                        piece
                    });
                    self.web.bounded(Body::from_stream(held), CancellationToken::new())
                })
            }
        })
    }

    /// Checks that the session belongs to the principal.
    fn check(&self, id: &HeaderValue, principal: &Principal) -> Result<(), Problem> {
        let owners = lock(&self.owners);
        let owner = id.to_str().ok().and_then(|id| owners.of.get(id));
        match owner {
            Some((_, owner)) if owner == principal => Ok(()),
            _ => Err(Problem::new(StatusCode::NOT_FOUND, "not-found", "There is no such session.")),
        }
    }

    /// Records the owner of a new session.
    async fn remember(&self, id: String, principal: &Principal) {
        let most = self.web.limits().streams_per_principal;
        let oldest = {
            let live = self.sessions.sessions.read().await;
            let mut owners = lock(&self.owners);
            owners.of.retain(|id, _| live.contains_key(id.as_str()));
            owners.add(id, principal, most)
        };
        if let Some(oldest) = oldest
            && let Err(error) = self.sessions.close_session(&oldest.into()).await
        {
            tracing::debug!(%error, "the oldest session of a principal has ended already");
        }
    }
}
