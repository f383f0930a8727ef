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

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header, request::Parts},
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
use tokio_util::sync::CancellationToken;

use super::{
    ServerInfo,
    handler::{Handler, Hosts},
    host::{Host, Purpose, Refusal},
    running::LONGEST_QUESTION,
};
use crate::{
    access::{Action, Principal},
    manager::{Listed, OpenedSession},
    session::{Mode, Session},
    store::{ConversationId, Labels, Page},
    sync::lock,
    web::{self, NewConversation, Problem, Web},
};

const SESSION: &str = "mcp-session-id";

/// The time without messages after which a protocol session and its calls end. If the client wants reports of progress,
/// a running call sends them more often than that. A question that nobody answers ends before its session, so that the
/// call can continue.
const KEEP_ALIVE: Duration = LONGEST_QUESTION.saturating_add(Duration::from_mins(5));

/// Returns a router with the path `/`, which serves the conversations of a [`Web`] over the transport that the protocol
/// calls streamable HTTP. The [`Access`](crate::web::Access) of the web checks each request.
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
///     .nest("/mcp", mcp::router(&web, ServerInfo::new("my-agent", "1.0.0")));
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
    let mount = Arc::new(Mount::new(web.clone(), info));
    let handler = move |request: Request| {
        let mount = Arc::clone(&mount);
        async move {
            mount.handle(request).await.unwrap_or_else(|problem| mount.web.shown(problem).into_response())
        }
    };
    web::guarded(Router::new().route("/", any(handler)), web)
}

struct Mount {
    web: Web,
    service: StreamableHttpService<Handler, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    owners: Mutex<Owners>,
}

/// The principals of the protocol sessions.
#[derive(Default)]
struct Owners {
    of: HashMap<String, (u64, Principal)>,
    created: u64,
}

impl Owners {
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

impl Mount {
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
        let hosts: Arc<Hosts> = Arc::new(move |context: &RequestContext<RoleServer>| {
            let parts = context.extensions.get::<Parts>();
            let principal = parts.and_then(|parts| parts.extensions.get::<Principal>());
            let principal =
                principal.ok_or_else(|| ErrorData::internal_error("the sender is unknown", None))?;
            Ok(Arc::new(OfPrincipal { web: served.clone(), principal: principal.clone() }) as Arc<dyn Host>)
        });
        let handler = move || -> io::Result<Handler> {
            Ok(Handler::new(Arc::clone(&info), Arc::clone(&hosts), CancellationToken::new()))
        };
        let service = StreamableHttpService::new(handler, Arc::clone(&sessions), config);
        Self { web, service, sessions, owners: Mutex::default() }
    }

    async fn handle(&self, mut request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let mut principal = self.admit(&parts).await?;
        // A stream that belongs to no call stays open as long as the client wants, so it counts against the principal's
        // limit.
        let permit = if parts.method == Method::GET { Some(self.web.open_stream(&principal)?) } else { None };
        let is_whole = body.is_end_stream();
        let (body, _held) = self.web.receive(&principal, body, self.web.limits().command_body).await?;
        if !is_whole {
            // The client has chosen how long its body takes, so its access may have ended in the meantime.
            principal = self.admit(&parts).await?;
        }
        parts.extensions.insert(principal.clone());
        request = Request::from_parts(parts, body.into());
        let response = self.service.handle(request).await;
        let created = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let mut response = response.map(Body::new);
        if let Some(id) = created {
            self.remember(id, &principal).await;
            let exposed = HeaderValue::from_static(SESSION);
            response.headers_mut().insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
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
                    Body::from_stream(held)
                })
            }
        })
    }

    /// Returns the sender of a request. Fails if its session belongs to another principal.
    async fn admit(&self, parts: &Parts) -> Result<Principal, Problem> {
        let principal = self.web.principal(parts).await?;
        match parts.headers.get(SESSION) {
            Some(id) => self.check(id, &principal).map(|()| principal),
            None => Ok(principal),
        }
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

/// The conversations that a principal may use.
struct OfPrincipal {
    web: Web,
    principal: Principal,
}

impl OfPrincipal {
    /// Returns a problem in words for the client.
    fn refused(&self, problem: Problem) -> Refusal {
        let body = self.web.shown(problem).to_json();
        let texts = ["title", "detail"].into_iter().filter_map(|name| body[name].as_str());
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Returns the labels of a conversation, if the principal may use it for this purpose.
    async fn permitted(&self, id: &ConversationId, purpose: Purpose) -> Result<Labels, Problem> {
        let (_, labels) = self.web.permitted(&self.principal, id.clone(), Action::Read).await?;
        self.permits(purpose, &labels)?;
        Ok(labels)
    }

    fn permits(&self, purpose: Purpose, labels: &Labels) -> Result<(), Problem> {
        let actions: &[Action] = match purpose {
            Purpose::Read => &[],
            // A client that sends a prompt also gets its answer.
            Purpose::Prompt => &[Action::Prompt, Action::Watch],
            Purpose::Follow => &[Action::Watch],
            Purpose::Decide => &[Action::Decide],
            Purpose::Stop => &[Action::Stop],
        };
        let may = |action: &Action| self.web.permits(&self.principal, *action, labels);
        if !may(&Action::Read) {
            Err(Problem::not_found())
        } else if actions.iter().all(may) {
            Ok(())
        } else {
            Err(Problem::not_permitted())
        }
    }
}

#[async_trait]
impl Host for OfPrincipal {
    fn decider(&self, _: Option<&str>) -> Option<Arc<str>> {
        Some(self.principal.shared_name())
    }

    fn permit(&self) -> Result<Box<dyn Send>, Refusal> {
        let permit = self.web.open_stream(&self.principal).map_err(|problem| self.refused(problem))?;
        Ok(Box::new(permit))
    }

    async fn create(&self) -> Result<OpenedSession, Refusal> {
        // A new conversation begins with a prompt, and has the labels of its principal.
        self.check(Purpose::Prompt, self.principal.labels())?;
        let (new, mode) = (NewConversation::default(), Some(Mode::Controller));
        self.web.create(&self.principal, new, mode).await.map_err(|problem| self.refused(problem))
    }

    async fn open(&self, id: &ConversationId, purpose: Purpose) -> Result<OpenedSession, Refusal> {
        let opened = async {
            let labels = self.permitted(id, purpose).await?;
            let mode = if purpose == Purpose::Read { Mode::Observer } else { Mode::Controller };
            self.web.open(&self.principal, id, &labels, Some(mode)).await
        };
        opened.await.map_err(|problem| self.refused(problem))
    }

    async fn running(&self, id: &ConversationId, purpose: Purpose) -> Result<Option<Session>, Refusal> {
        self.permitted(id, purpose).await.map_err(|problem| self.refused(problem))?;
        Ok(self.web.manager().get(id))
    }

    async fn list(&self, page: Page) -> Result<Vec<Listed>, Refusal> {
        let listed = self.web.manager().list((self.principal.filter(), page)).await;
        listed.map_err(|error| self.refused(error.into()))
    }

    fn may_list(&self, labels: &Labels) -> bool {
        self.web.may_list(&self.principal, labels)
    }

    fn check(&self, purpose: Purpose, labels: &Labels) -> Result<(), Refusal> {
        self.permits(purpose, labels).map_err(|problem| self.refused(problem))
    }

    fn draining(&self) -> CancellationToken {
        self.web.draining()
    }
}
