//! The checks of every request before its handler: they identify the principal and the conversation, and decide whether
//! the request is permitted.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    RequestPartsExt,
    body::Body,
    extract::{OriginalUri, Path, Request},
    http::{StatusCode, header, request::Parts},
    response::Response,
};
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;

use super::{
    Access, Action, AuthorizedClient, Principal, Problem, Web, WebShared, feed,
    front::{files::encoded, stop::RunToStop},
    requests::{action, check},
    streams::LoadPermit,
    view::ConversationViewFilter,
};
use crate::{
    json::halves,
    run::{Error, ErrorKind},
    session::{Session, SessionCommand, SessionSnapshot, SessionSubscription},
    store::{ConversationId, Labels, Summary},
    sync::lock,
};

/// A request that has passed the access control of its route.
pub(super) struct WebRequest {
    pub(super) web: Web,
    pub(super) client: AuthorizedClient,
    /// The conversation and its labels. `None` on a route without a conversation. Also `None` if clients may choose ids
    /// and no conversation with this id exists yet.
    target: Option<(ConversationId, Labels)>,
    /// The action that the route needs.
    action: Action,
    /// On a route that stops a run, the run that was active when the request was admitted.
    pub(super) active: RunToStop,
    /// The id of the conversation as the client has written it, on routes of the AI SDK and AG-UI.
    pub(super) client_id: String,
    /// The path parameters after the conversation's id.
    pub(super) path: Vec<(String, String)>,
    /// The path under which the router is nested.
    pub(super) base: Arc<str>,
    pub(super) parts: Parts,
    /// The body, which a handler takes once. The mutex makes `WebRequest` usable from several threads, because `Body` is not
    /// `Sync`.
    body: Mutex<Body>,
    /// Counts the bytes of the body among the bytes in work.
    held: Option<LoadPermit>,
}

impl WebRequest {
    /// Identifies the principal and, if the path has the id of a conversation, checks whether the principal may perform
    /// this action on it. Returns the request as a call for the handler.
    pub(super) async fn admit(web: Web, action: Action, request: Request) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let client = web.identify(&parts).await?;
        let Path(mut path) = parts
            .extract::<Path<Vec<(String, String)>>>()
            .await
            .map_err(|error| Problem::invalid_id(&error))?;
        let (mut target, mut client_id) = (None, String::new());
        match path.first().map(|(name, _)| name.as_str()) {
            Some("id") => {
                let id =
                    ConversationId::new(path.remove(0).1).map_err(|error| Problem::invalid_id(&error))?;
                let labels = client.permitted(&id, &[action]).await?;
                target = Some((id, labels));
            }
            Some("chat" | "thread") => {
                client_id = path.remove(0).1;
                let id = web.stored_id(&client.principal, &client_id)?;
                target = match client.permitted(&id, &[action]).await {
                    Err(error) if error.is_not_found() && web.0.client_ids.is_some() => None,
                    labels => Some((id, labels?)),
                };
            }
            _ => {}
        }
        // Another run can begin before the stop is performed.
        let stopped = target.as_ref().filter(|_| action == Action::Stop);
        let active = match stopped {
            Some((id, _)) => web.active_run(id).await,
            None => RunToStop::Opened,
        };
        let base = base(&mut parts).await;
        let body = Mutex::new(body);
        Ok(Self { web, client, target, action, active, client_id, path, base, parts, body, held: None })
    }

    /// Checks again what [`admit`](Self::admit) has checked, because the client has chosen how long its body takes.
    async fn admit_again(&mut self) -> Result<(), Problem> {
        self.client = self.web.identify(&self.parts).await?;
        if let Some((id, _)) = self.target.take() {
            self.enter(id, self.action).await?;
        }
        Ok(())
    }

    /// Makes this conversation the target of the request, if the action on it is permitted. For routes whose path has
    /// no id.
    pub(super) async fn enter(&mut self, id: ConversationId, action: Action) -> Result<(), Error> {
        let labels = self.client.permitted(&id, &[action]).await?;
        self.target = Some((id, labels));
        Ok(())
    }

    /// Returns a path on routes of the AI SDK and AG-UI: the mount point, `folder`, and the client's id of the
    /// conversation.
    pub(super) fn client_path(&self, folder: &str) -> String {
        format!("{}{folder}/{}", self.base, encoded(&self.client_id))
    }

    /// Returns the route's conversation with its labels.
    pub(super) fn conversation(&self) -> Result<&(ConversationId, Labels), Problem> {
        self.target.as_ref().ok_or_else(Problem::not_found)
    }

    /// Returns whether the request's conversation exists. If clients may choose ids, a request may have an id whose
    /// conversation does not exist yet.
    pub(super) fn has_conversation(&self) -> bool {
        self.target.is_some()
    }

    /// Returns the id of the route's conversation.
    pub(super) fn id(&self) -> Result<&ConversationId, Problem> {
        Ok(&self.conversation()?.0)
    }

    /// Checks a further action on the route's conversation.
    pub(super) fn permit(&self, action: Action) -> Result<(), Problem> {
        Ok(self.client.permit(&[action], &self.conversation()?.1)?)
    }

    /// Checks whether the principal may send this command. A command that starts a run is refused while the server stops.
    pub(super) fn permit_command(&self, command: &SessionCommand) -> Result<(), Problem> {
        self.permit(action(command))?;
        check(command, &self.client.principal)?;
        if matches!(command, SessionCommand::Run(_) | SessionCommand::Compact(_)) && self.web.is_draining() {
            return Err(Problem::draining());
        }
        Ok(())
    }

    /// Returns the view of a conversation that clients get.
    pub(super) fn lens(&self, id: &ConversationId) -> ConversationViewFilter {
        self.web.0.view.of(format!("{}/conversations/{id}/files", self.base))
    }

    /// Opens the route's conversation and subscribes to it. The events follow the snapshot without a gap. From now on,
    /// the labels of this moment decide what is permitted.
    pub(super) async fn subscribe(
        &mut self,
    ) -> Result<(Session, SessionSubscription, Arc<SessionSnapshot>), Problem> {
        let (id, labels) = self.conversation()?;
        let (session, updates, labels) = feed::subscribe(&self.client, id, labels, None).await?;
        let snapshot = updates.snapshot().map(Arc::clone).ok_or_else(Problem::invalid_position)?;
        self.target = Some((id.clone(), labels));
        Ok((session, updates, snapshot))
    }

    /// Opens the route's conversation without a subscription. Checks the action again afterwards, because opening can
    /// wait for a place among the open sessions.
    pub(super) async fn session(&self, action: Action) -> Result<Session, Problem> {
        let (id, labels) = self.conversation()?;
        let session = self.client.open(id, labels, None).await?.session;
        self.client.permitted(id, &[action]).await?;
        Ok(session)
    }

    /// Performs an operation on the route's conversation, if the action is permitted. If the session is ended at the
    /// same moment, the conversation is opened again, once.
    pub(super) async fn on_session<T, F>(
        &self,
        action: Action,
        operation: impl Fn(Session) -> F,
    ) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match operation(self.session(action).await?).await {
            Err(error) if error.kind() == ErrorKind::Ended => {
                Ok(operation(self.session(action).await?).await?)
            }
            other => Ok(other?),
        }
    }

    /// Returns the snapshot of the route's conversation. The labels are checked once more, because they may have changed
    /// while the conversation was being opened.
    pub(super) async fn snapshot(&self) -> Result<SessionSnapshot, Problem> {
        let snapshot =
            self.on_session(Action::Read, |session| async move { session.snapshot().await }).await?;
        self.client.still_permitted(self.id()?, &snapshot.labels, &[]).await?;
        Ok(snapshot)
    }

    /// Checks the content type and the size of the body, and reads the body as JSON. Then checks the access again.
    pub(super) async fn json<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, Problem> {
        let content_type = self.parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|value| value.split(';').next()).map(str::trim);
        if !media_type.is_some_and(|value| value.eq_ignore_ascii_case("application/json")) {
            let problem = Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "content-type",
                "The body must have the content type application/json.",
            );
            return Err(problem);
        }
        let declared = self.parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if declared.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64)
        {
            return Err(Problem::too_large(limit));
        }
        let body = std::mem::take(&mut *lock(&self.body));
        let (body, held) = self.web.receive(&self.client.principal, body, limit).await?;
        self.held = Some(held);
        self.admit_again().await?;
        halves::parse(&body).map_err(|error| Problem::invalid_body(&error))
    }

    /// Reads the query of the address.
    pub(super) fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        axum::extract::Query::try_from_uri(&self.parts.uri)
            .map(|axum::extract::Query(query)| query)
            .map_err(|error| Problem::invalid_query(&error))
    }
}

impl Web {
    /// Returns the sender of a request.
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<AuthorizedClient, Problem> {
        let principal = self.0.hooks.access.principal(parts).await.map_err(|challenge| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "The request is not authenticated.")
                .with_challenge(challenge.0)
        })?;
        Ok(self.client(principal))
    }

    /// Returns the client with this principal.
    pub(super) fn client(&self, principal: Principal) -> AuthorizedClient {
        let WebShared { manager, hooks, limits, draining, .. } = &*self.0;
        AuthorizedClient {
            principal,
            manager: manager.clone(),
            permissions: Arc::<dyn Access>::clone(&hooks.access),
            agents: Arc::clone(&hooks.agents),
            draining: draining.clone(),
            room_timeout: limits.room_timeout,
            is_local: false,
        }
    }

    /// Removes from a summary what only an operator may see: the owner, and the reason of damage, which
    /// can name a path of the server.
    pub(super) fn hide(&self, summary: &mut Summary) {
        if !self.0.reveals_owner {
            summary.owner = None;
        }
        if !self.0.view.everything
            && let Some(damage) = &mut summary.damage
        {
            "The stored conversation is damaged.".clone_into(damage);
        }
    }
}

/// Returns the path under which the router is nested.
async fn base(parts: &mut Parts) -> Arc<str> {
    let inner = parts.uri.path().to_owned();
    let outer = parts.extract::<OriginalUri>().await.map(|OriginalUri(uri)| uri.path().to_owned());
    // For the root of a nested router, the inner path is `/`, but the outer path may have no slash at its end.
    let inner = if inner == "/" { "" } else { &inner };
    let outer = outer.as_deref().map(|outer| outer.trim_end_matches('/'));
    outer.ok().and_then(|outer| outer.strip_suffix(inner)).unwrap_or_default().into()
}

/// A handler of a route.
pub(super) type RouteHandler = fn(WebRequest) -> BoxFuture<'static, Result<Response, Problem>>;

/// The time after which a client may try again, in responses with the status 429 or 503.
pub(super) const RETRY: Duration = Duration::from_secs(5);
