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
    Action, Principal, Problem, StartRequest, Web, feed,
    front::files::encoded,
    requests::{action, check},
    streams::Permit,
    view::Lens,
};
use crate::{
    manager::OpenedSession,
    run::{Error, ErrorKind},
    session::{Mode, Session, SessionCommand, SessionEvent, SessionSnapshot, SessionSubscription},
    store::{ConversationId, Labels, Summary},
    subscription::Update,
    sync::lock,
};

/// A request that has passed the access control of its route.
pub(super) struct Call {
    pub(super) web: Web,
    pub(super) principal: Principal,
    /// The conversation and its labels. `None` on a route without a conversation. Also `None` if clients may choose ids
    /// and no conversation with this id exists yet.
    target: Option<(ConversationId, Labels)>,
    /// The action that the route needs.
    action: Action,
    /// The id of the conversation as the client has written it, on routes of the AI SDK and AG-UI.
    pub(super) client_id: String,
    /// The path parameters after the conversation's id.
    pub(super) path: Vec<(String, String)>,
    /// The path under which the router is nested.
    pub(super) base: Arc<str>,
    pub(super) parts: Parts,
    /// The body, which a handler takes once. The mutex makes `Call` usable from several threads, because `Body` is not
    /// `Sync`.
    body: Mutex<Body>,
    /// Counts the bytes of the body among the bytes in work.
    held: Option<Permit>,
}

impl Call {
    /// Identifies the principal and, if the path has the id of a conversation, checks whether the principal may perform
    /// this action on it. Returns the request as a call for the handler.
    pub(super) async fn admit(web: Web, action: Action, request: Request) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let principal = web.principal(&parts).await?;
        let Path(mut path) = parts
            .extract::<Path<Vec<(String, String)>>>()
            .await
            .map_err(|error| Problem::invalid_id(&error))?;
        let (mut target, mut client_id) = (None, String::new());
        match path.first().map(|(name, _)| name.as_str()) {
            Some("id") => {
                let id =
                    ConversationId::new(path.remove(0).1).map_err(|error| Problem::invalid_id(&error))?;
                target = Some(web.permitted(&principal, id, action).await?);
            }
            Some("chat" | "thread") => {
                client_id = path.remove(0).1;
                let id = web.stored_id(&principal, &client_id)?;
                target = match web.permitted(&principal, id, action).await {
                    Err(problem) if problem.code() == "not-found" && web.0.client_ids.is_some() => None,
                    permitted => Some(permitted?),
                };
            }
            _ => {}
        }
        let base = base(&mut parts).await;
        let body = Mutex::new(body);
        Ok(Self { web, principal, target, action, client_id, path, base, parts, body, held: None })
    }

    /// Checks again what [`admit`](Self::admit) has checked, because the client has chosen how long its body takes.
    async fn admit_again(&mut self) -> Result<(), Problem> {
        self.principal = self.web.principal(&self.parts).await?;
        if let Some((id, _)) = self.target.take() {
            self.enter(id, self.action).await?;
        }
        Ok(())
    }

    /// Makes this conversation the target of the request, if the action on it is permitted. For routes whose path has
    /// no id.
    pub(super) async fn enter(&mut self, id: ConversationId, action: Action) -> Result<(), Problem> {
        self.target = Some(self.web.permitted(&self.principal, id, action).await?);
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
        let (_, labels) = self.conversation()?;
        if self.web.0.hooks.access.permits(&self.principal, action, labels) {
            Ok(())
        } else {
            Err(Problem::not_permitted())
        }
    }

    /// Checks whether the principal may send this command. A command that starts a run is refused while the server stops.
    pub(super) fn permit_command(&self, command: &SessionCommand) -> Result<(), Problem> {
        self.permit(action(command))?;
        check(command, &self.principal)?;
        if matches!(command, SessionCommand::Run(_)) && self.web.is_draining() {
            return Err(Problem::draining());
        }
        Ok(())
    }

    /// Returns the view of a conversation that clients get.
    pub(super) fn lens(&self, id: &ConversationId) -> Lens {
        self.web.0.view.of(format!("{}/conversations/{id}/files", self.base))
    }

    /// Opens the route's conversation and subscribes to it. The events follow the snapshot without a gap. From now on,
    /// the labels of the snapshot decide what is permitted.
    pub(super) async fn subscribe(
        &mut self,
    ) -> Result<(Session, SessionSubscription, Arc<SessionSnapshot>), Problem> {
        let (id, labels) = self.conversation()?;
        let (session, updates) = feed::subscribe(&self.web, &self.principal, id, labels, None).await?;
        let snapshot = updates.snapshot().map(Arc::clone).ok_or_else(Problem::invalid_position)?;
        self.target = Some((id.clone(), snapshot.labels.clone()));
        Ok((session, updates, snapshot))
    }

    /// Opens the route's conversation without a subscription. Checks the action again afterwards, because opening can
    /// wait for a place among the open sessions.
    pub(super) async fn session(&self, action: Action) -> Result<Session, Problem> {
        let (id, labels) = self.conversation()?;
        let session = self.web.open(&self.principal, id, labels, None).await?.session;
        self.web.permitted(&self.principal, id.clone(), action).await?;
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
        if !self.web.0.hooks.access.permits(&self.principal, Action::Read, &snapshot.labels) {
            return Err(Problem::not_found());
        }
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
        let (body, held) = self.web.receive(&self.principal, body, limit).await?;
        self.held = Some(held);
        self.admit_again().await?;
        serde_json::from_slice(&body).map_err(|error| Problem::invalid_body(&error))
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
    pub(crate) async fn principal(&self, parts: &Parts) -> Result<Principal, Problem> {
        self.0.hooks.access.principal(parts).await.map_err(|challenge| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "The request is not authenticated.")
                .with_challenge(challenge.0)
        })
    }

    /// Returns the labels of a conversation that the principal may read. A conversation that the principal may not read
    /// looks like a conversation that does not exist: both are looked up in the same way.
    pub(super) async fn visible(
        &self,
        principal: &Principal,
        id: &ConversationId,
    ) -> Result<Labels, Problem> {
        let labels = self.0.manager.labels_of(id).await?;
        if self.0.hooks.access.permits(principal, Action::Read, &labels) {
            Ok(labels)
        } else {
            Err(Problem::not_found())
        }
    }

    /// Returns the conversation with its labels, if the principal may read it and the action on it is permitted.
    pub(crate) async fn permitted(
        &self,
        principal: &Principal,
        id: ConversationId,
        action: Action,
    ) -> Result<(ConversationId, Labels), Problem> {
        let labels = self.visible(principal, &id).await?;
        if self.0.hooks.access.permits(principal, action, &labels) {
            Ok((id, labels))
        } else {
            Err(Problem::not_permitted())
        }
    }

    /// Returns whether the principal may watch a conversation with these labels.
    pub(super) fn may_watch(&self, principal: &Principal, labels: &Labels) -> bool {
        let may = |action| self.0.hooks.access.permits(principal, action, labels);
        may(Action::Read) && may(Action::Watch)
    }

    /// Returns whether the principal may see this update. If the labels change, a reader sees the new labels in an
    /// event, or in a snapshot if it was too slow for the event.
    pub(super) fn still_watches(
        &self,
        principal: &Principal,
        update: &Update<SessionSnapshot, SessionEvent>,
    ) -> bool {
        let labels = match update {
            Update::Event(numbered) => match &*numbered.event {
                SessionEvent::Labels { labels } => Some(labels),
                _ => None,
            },
            Update::Resync(snapshot) => Some(&snapshot.labels),
            Update::Closed(end) => end.snapshot.as_ref().map(|snapshot| &snapshot.labels),
        };
        labels.is_none_or(|labels| self.may_watch(principal, labels))
    }

    /// Removes from a summary what only an operator may see: the address of the owner, and the reason of damage, which
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

    /// Opens a conversation, or returns its session if it is open.
    pub(crate) async fn open(
        &self,
        principal: &Principal,
        id: &ConversationId,
        labels: &Labels,
        mode: Option<Mode>,
    ) -> Result<OpenedSession, Problem> {
        let request = StartRequest {
            conversation: Some(id.clone()),
            labels: labels.clone(),
            ..StartRequest::default()
        };
        let options = self.0.hooks.agents.start(principal, &request).await?.subscribe(mode);
        self.within_room(self.0.manager.open(id, options)).await
    }

    /// Awaits `opening` for at most the time of `room_timeout`. If the maximum number of sessions is open, `opening`
    /// waits for a place.
    pub(super) async fn within_room<T>(
        &self,
        opening: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Problem> {
        match tokio::time::timeout(self.0.limits.room_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| self.shown(error.into())),
            Err(_) => Err(Problem::no_room()),
        }
    }

    /// Removes the address of a conversation's owner from a problem, unless clients may see it.
    pub(crate) fn shown(&self, problem: Problem) -> Problem {
        if self.0.reveals_owner { problem } else { problem.without_address() }
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
pub(super) type Handler = fn(Call) -> BoxFuture<'static, Result<Response, Problem>>;

/// The time after which a client may try again, in responses with the status 429 or 503.
pub(super) const RETRY: Duration = Duration::from_secs(5);
