//! Conversations whose ids clients have invented.

use super::{Action, Principal, Problem, StartRequest, Web, WebBuilder, gate::Call};
use crate::store::ConversationId;

type Scope = dyn Fn(&Principal, &str) -> Option<ConversationId> + Send + Sync;

/// Turns the id of a client into the id of the stored conversation.
pub(super) struct ClientIds(Box<Scope>);

crate::debug::impl_debug!(ClientIds {});

impl WebBuilder {
    /// Lets clients of the AI SDK and of AG-UI choose the ids of new conversations. By default, such a client can only
    /// use conversations that exist. An id that is not used yet has no stream and no messages.
    ///
    /// `scope` returns the id of the stored conversation for a principal and the client's id, or `None` if the client's
    /// id is unacceptable. It must give different principals different ids, for example by including the principal's
    /// name and its labels. Two tenants can have principals with the same name.
    pub fn client_ids(
        mut self,
        scope: impl Fn(&Principal, &str) -> Option<ConversationId> + Send + Sync + 'static,
    ) -> Self {
        self.0.client_ids = Some(ClientIds(Box::new(scope)));
        self
    }
}

impl Call {
    /// Makes a conversation the target of this request, if the action on it is permitted. The client uses the id
    /// `client_id` for the conversation. Creates the conversation if it does not exist and clients may choose ids.
    pub(super) async fn enter_or_create(&mut self, client_id: &str, action: Action) -> Result<(), Problem> {
        let id = self.web.stored_id(&self.principal, client_id)?;
        client_id.clone_into(&mut self.client_id);
        match self.enter(id.clone(), action).await {
            Err(problem) if problem.code() == "not-found" && self.web.0.client_ids.is_some() => {}
            other => return other,
        }
        let web = &self.web;
        if web.is_draining() {
            return Err(Problem::draining());
        }
        let labels = self.principal.labels();
        if !web.0.hooks.access.permits(&self.principal, Action::Create, labels) {
            return Err(Problem::not_found());
        }
        let request = StartRequest { labels: labels.clone(), ..StartRequest::default() };
        let options = web.0.hooks.agents.start(&self.principal, &request).await?;
        let options = options.add_labels(labels)?.subscribe(None);
        match web.within_room(web.0.manager.create_with_id(&id, options)).await {
            Ok(_) => {}
            // Another request has created the conversation. If it belongs to another principal, `enter` responds as for
            // a conversation that does not exist.
            Err(problem) if problem.code() == "already-exists" => {}
            Err(problem) => return Err(problem),
        }
        self.enter(id, action).await
    }
}

impl Web {
    /// Returns the id of the stored conversation for which the client uses this id.
    pub(super) fn stored_id(&self, principal: &Principal, id: &str) -> Result<ConversationId, Problem> {
        match &self.0.client_ids {
            Some(ClientIds(scope)) => {
                scope(principal, id).ok_or_else(|| Problem::invalid_id(&"the id is not acceptable"))
            }
            None => ConversationId::new(id).map_err(|error| Problem::invalid_id(&error)),
        }
    }
}
