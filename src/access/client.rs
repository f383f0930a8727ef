//! What a client may do with the conversations of a manager.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Action, Agents, Permissions, Principal, StartRequest, Via};
#[cfg(any(feature = "acp", feature = "web"))]
use crate::message::{Timestamp, Usage};
use crate::{
    error_chain,
    manager::{Listed, Manager, OpenOptions, OpenedSession},
    panics::contained_async,
    run::{Error, ErrorKind},
    session::{Mode, Session, SessionEvent, SessionSnapshot, SessionSubscription},
    store::{ConversationId, Filter, Labels, Page},
    subscription::{EventId, Update},
};
#[cfg(feature = "web")]
use crate::{manager::ForkOptions, tree::NodeId};

/// The conversations of a manager, as a principal may use them.
#[derive(Clone)]
pub(crate) struct AuthorizedClient {
    pub(crate) principal: Principal,
    pub(crate) manager: Manager,
    pub(crate) permissions: Arc<dyn Permissions>,
    pub(crate) agents: Arc<dyn Agents>,
    /// Cancelled when the server is about to stop.
    pub(crate) draining: CancellationToken,
    /// The maximum time that the client waits if the maximum number of sessions is open.
    pub(crate) room_timeout: Duration,
    /// Whether the client is connected by a pipe. It is served until its pipe ends.
    pub(crate) is_local: bool,
}

impl AuthorizedClient {
    /// Returns a client that is connected by a pipe, to whom all conversations with the labels of its principal belong.
    #[cfg(any(feature = "acp", feature = "mcp-server"))]
    pub(crate) fn local(manager: Manager, agents: impl Agents) -> Self {
        struct OwnerOfAllConversations;
        impl Permissions for OwnerOfAllConversations {}
        Self {
            principal: Principal::local(Labels::default()),
            manager,
            permissions: Arc::new(OwnerOfAllConversations),
            agents: Arc::new(agents),
            draining: CancellationToken::new(),
            room_timeout: crate::time::NEVER,
            is_local: true,
        }
    }

    /// Returns whether the client may perform this action on a conversation with these labels.
    pub(crate) fn may(&self, action: Action, labels: &Labels) -> bool {
        self.permissions.permits(&self.principal, action, labels)
    }

    /// Returns whether a conversation with these labels is in the client's list, which leaves out sub-agents.
    pub(crate) fn may_list(&self, labels: &Labels) -> bool {
        labels.get(Labels::PARENT).is_none() && self.may_see(labels)
    }

    /// Returns whether a conversation with these labels is the client's, and may be listed.
    pub(crate) fn may_see(&self, labels: &Labels) -> bool {
        self.principal.owns(labels) && self.may(Action::List, labels)
    }

    /// Checks whether the client may perform these actions on a conversation with these labels. A conversation that it
    /// may not read looks like a conversation that does not exist.
    pub(crate) fn permit(&self, actions: &[Action], labels: &Labels) -> Result<(), Error> {
        if !self.may(Action::Read, labels) {
            Err(Error::new(ErrorKind::NotFound, ErrorKind::NotFound.title()))
        } else if actions.iter().all(|action| self.may(*action, labels)) {
            Ok(())
        } else {
            let text = "The conversation may be read, but this action is not permitted.";
            Err(Error::new(ErrorKind::NotPermitted, text))
        }
    }

    /// Returns whether the client may see this update of a conversation. If the labels change, a reader sees the new
    /// labels in an event, or in a snapshot if it was too slow for the event.
    pub(crate) async fn still_watches(
        &self,
        id: &ConversationId,
        update: &Update<SessionSnapshot, SessionEvent>,
    ) -> bool {
        match new_labels(update) {
            Some(labels) => self.still_permitted(id, labels, &[Action::Watch]).await.is_ok(),
            None => true,
        }
    }

    /// Checks whether the client may perform these actions on an open conversation with these labels, and returns the
    /// labels that decide. A sub-agent has copies of the labels of its root, which can be older than those of the root.
    pub(crate) async fn still_permitted(
        &self,
        id: &ConversationId,
        labels: &Labels,
        actions: &[Action],
    ) -> Result<Labels, Error> {
        if id.is_of_sub_agent() && labels.get(Labels::PARENT).is_some() {
            return self.permitted(id, actions).await;
        }
        self.permit(actions, labels).map(|()| labels.clone())
    }

    /// Returns the labels of a conversation, if the client may perform these actions on it. A conversation that the
    /// client may not read is looked up in the same way as a conversation that does not exist.
    pub(crate) async fn permitted(&self, id: &ConversationId, actions: &[Action]) -> Result<Labels, Error> {
        // All conversations belong to a server without labels, so its store need not support labels.
        if self.is_local && self.principal.is_operator() {
            return Ok(Labels::default());
        }
        let labels = self.manager.labels_of(id).await?;
        self.permit(actions, &labels).map(|()| labels)
    }

    /// Returns the filter for the client's conversations.
    pub(crate) fn filter(&self) -> Filter {
        Filter::with(self.principal.labels().clone())
    }

    /// Returns the filter for lists and searches of the client's conversations, which leave out sub-agents.
    pub(crate) fn list_filter(&self) -> Filter {
        let is_kept = self.manager.keeps_labels();
        if is_kept { self.filter().without(Labels::PARENT) } else { self.filter() }
    }

    /// Returns a page of the list of conversations. The caller removes the conversations that the client may not see.
    pub(crate) async fn list(&self, page: Page) -> Result<Vec<Listed>, Error> {
        self.manager.list((self.list_filter(), page)).await
    }

    /// Returns the usage of all sub-agents below a conversation, deleted ones included. If the store keeps no labels,
    /// sub-agents have no conversations, and the usage is zero.
    #[cfg(any(feature = "acp", feature = "web"))]
    pub(crate) async fn delegated(&self, root: &ConversationId) -> Result<Usage, Error> {
        if !self.manager.keeps_labels() {
            return Ok(Usage::default());
        }
        let below = Filter::with(Labels::place(Labels::ROOT, root));
        let sums = self.manager.used(&below, Timestamp(0)..Timestamp(u64::MAX)).await?;
        Ok(sums.into_iter().map(|sum| sum.usage).sum())
    }

    /// Asks the application for the agent of a conversation.
    pub(crate) async fn options(
        &self,
        request: &StartRequest,
        mode: Option<Mode>,
    ) -> Result<OpenOptions, Error> {
        let failed =
            |why: String| Error::new(ErrorKind::Callback, format!("the agent can't be started: {why}"));
        let started = contained_async(self.agents.start(&self.principal, request)).await.map_err(failed)?;
        // A stored conversation keeps its labels.
        let is_new = request.conversation.is_none();
        let add = |options: OpenOptions| options.add_labels(self.principal.labels());
        let options = started.and_then(|options| if is_new { add(options) } else { Ok(options) });
        // A client over HTTP gets an error of the application as it is.
        let options =
            options.map_err(|error| if self.is_local { failed(error_chain(&error)) } else { error });
        Ok(options?.subscribe(mode))
    }

    fn request(&self, labels: &Labels) -> StartRequest {
        let via = if self.is_local { Via::Mcp } else { Via::Web };
        StartRequest { labels: labels.clone(), via, ..StartRequest::default() }
    }

    /// Awaits `opening` for a limited time. If the maximum number of sessions is open, `opening` waits for a place.
    async fn within_room<T>(&self, opening: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let no_room = |_| Error::new(ErrorKind::NoRoom, ErrorKind::NoRoom.title());
        timeout(self.room_timeout, opening).await.map_err(no_room)?
    }

    /// Opens a conversation with these labels, or returns its session if it is open.
    pub(crate) async fn open(
        &self,
        id: &ConversationId,
        labels: &Labels,
        mode: Option<Mode>,
    ) -> Result<OpenedSession, Error> {
        let request = StartRequest { conversation: Some(id.clone()), ..self.request(labels) };
        let options = self.options(&request, mode).await?;
        self.within_room(self.manager.open(id, options)).await
    }

    /// Opens a conversation with these labels, and subscribes to it. With `after`, the subscription continues after that
    /// event. The actions are checked again, because the labels may have changed while the conversation was being
    /// opened. Also returns the labels that decide what is permitted from now on.
    pub(crate) async fn subscribe(
        &self,
        (id, labels): (&ConversationId, &Labels),
        mode: Mode,
        after: Option<EventId>,
        actions: &[Action],
    ) -> Result<(Session, SessionSubscription, Labels), Error> {
        let OpenedSession { session, subscription, .. } = self.open(id, labels, Some(mode)).await?;
        let subscription = match (after, subscription) {
            (None, Some(subscription)) => subscription,
            (None, None) => session.subscribe(mode).await?,
            (Some(after), _) => session.resume_from(after, mode).await?,
        };
        // A change of the labels after the snapshot is an event of the subscription.
        let labels = match subscription.snapshot() {
            Some(snapshot) => snapshot.labels.clone(),
            None => session.labels().await?,
        };
        let labels = self.still_permitted(id, &labels, actions).await?;
        Ok((session, subscription, labels))
    }

    /// Returns the options of a new conversation, if the client may create one.
    async fn new_options(&self, model: Option<String>, mode: Option<Mode>) -> Result<OpenOptions, Error> {
        if self.draining.is_cancelled() {
            return Err(Error::new(ErrorKind::Draining, ErrorKind::Draining.title()));
        }
        let labels = self.principal.labels();
        if !self.may(Action::Create, labels) {
            return Err(Error::new(ErrorKind::NotPermitted, "This principal cannot create conversations."));
        }
        self.options(&StartRequest { model, ..self.request(labels) }, mode).await
    }

    /// Forks a conversation that the client may read. The fork has the labels of a new conversation. A client that can't
    /// use the model in the original may not get it by a fork, so it must be that of a new conversation or one of `models`.
    #[cfg(feature = "web")]
    pub(crate) async fn fork(
        &self,
        id: &ConversationId,
        node: NodeId,
        title: Option<String>,
        models: &[String],
    ) -> Result<ConversationId, Error> {
        let (labels, own) = self.new_options(None, None).await?.into_labels_and_model();
        let options = title.into_iter().fold(ForkOptions::new(labels), ForkOptions::with_title);
        let check = async { self.permitted(id, &[Action::Read]).await.map(drop) };
        let may_prompt = self.permitted(id, &[Action::Prompt]).await.is_ok();
        let check_model = |model: Option<&str>| match model {
            Some(name)
                if !may_prompt
                    && own.as_deref() != Some(name)
                    && models.iter().all(|model| model != name) =>
            {
                let text = format!("the model {name} of the conversation can't be chosen for a new one");
                Err(Error::new(ErrorKind::UnknownModel, text).with_member("model", name))
            }
            _ => Ok(()),
        };
        self.manager.fork_if(id, node, options, check, check_model).await
    }

    /// Creates a conversation with the labels of the principal. If the client is connected by a pipe, a conversation
    /// without an id is stored after its first turn. Other conversations are stored at once.
    pub(crate) async fn create(
        &self,
        id: Option<&ConversationId>,
        (title, model): (Option<String>, Option<String>),
        mode: Option<Mode>,
    ) -> Result<OpenedSession, Error> {
        let mut options = self.new_options(model, mode).await?;
        if let Some(title) = title {
            options = options.title(title);
        }
        if self.is_local && id.is_none() {
            return self.manager.create(options).await;
        }
        if let Some(id) = id.filter(|id| id.is_of_sub_agent()) {
            return Err(Error::id_of_a_sub_agent(id));
        }
        let id = id.cloned().unwrap_or_else(ConversationId::generate);
        self.within_room(self.manager.create_with_id(&id, options)).await
    }
}

/// Returns the labels of the conversation, if this update may have changed them.
pub(crate) fn new_labels(update: &Update<SessionSnapshot, SessionEvent>) -> Option<&Labels> {
    match update {
        Update::Event(numbered) => match &*numbered.event {
            SessionEvent::Labels { labels } => Some(labels),
            _ => None,
        },
        Update::Resync(snapshot) => Some(&snapshot.labels),
        Update::Closed(end) => end.snapshot.as_ref().map(|snapshot| &snapshot.labels),
    }
}
