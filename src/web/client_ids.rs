//! Conversations whose ids clients have invented.

use super::{Action, Principal, Problem, Web, WebBuilder, gate::WebRequest};
use crate::{run::ErrorKind, store::ConversationId};

type ClientIdMapping = dyn Fn(&Principal, &str) -> Option<ConversationId> + Send + Sync;

/// Turns the id of a client into the id of the stored conversation.
pub(super) struct ClientConversationIdTranslator(Box<ClientIdMapping>);

crate::debug::impl_debug!(ClientConversationIdTranslator {});

impl WebBuilder {
    /// Lets clients of the AI SDK and of AG-UI choose the ids of new conversations. By default, such a client can only
    /// use conversations that exist. An id that is not used yet has no stream and no messages. A stored id that begins
    /// with `sub-` belongs to a sub-agent, so a conversation with such an id is not created (409 `sub-agent`).
    ///
    /// `scope` returns the id of the stored conversation for a principal and the client's id, or `None` if the client's
    /// id is unacceptable. It must give different principals different ids, for example by including the principal's
    /// name and its labels. Two tenants can have principals with the same name.
    pub fn client_ids(
        mut self,
        scope: impl Fn(&Principal, &str) -> Option<ConversationId> + Send + Sync + 'static,
    ) -> Self {
        self.0.client_ids = Some(ClientConversationIdTranslator(Box::new(scope)));
        self
    }
}

impl WebRequest {
    /// Makes a conversation the target of this request, if the action on it is permitted. The client uses the id
    /// `client_id` for the conversation. Creates the conversation if it does not exist, clients may choose ids, and the
    /// request has a prompt.
    pub(super) async fn enter_or_create(
        &mut self,
        client_id: &str,
        action: Action,
        has_prompt: bool,
    ) -> Result<(), Problem> {
        let id = self.web.stored_id(&self.client.principal, client_id)?;
        client_id.clone_into(&mut self.client_id);
        match self.enter(id.clone(), action).await {
            Err(error) if error.is_not_found() && self.web.0.client_ids.is_some() => {}
            entered => return Ok(entered?),
        }
        let labels = self.client.principal.labels();
        if !has_prompt || !self.client.may(Action::Create, labels) {
            return Err(Problem::not_found());
        }
        self.client.permit(&[Action::Prompt], labels)?;
        match self.client.create(Some(&id), (None, None), None).await {
            // If another request has created the conversation for another principal, `enter` responds as for a
            // conversation that does not exist.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        Ok(self.enter(id, action).await?)
    }
}

impl Web {
    /// Returns the id of the stored conversation for which the client uses this id.
    pub(super) fn stored_id(&self, principal: &Principal, id: &str) -> Result<ConversationId, Problem> {
        match &self.0.client_ids {
            Some(ClientConversationIdTranslator(scope)) => {
                scope(principal, id).ok_or_else(|| Problem::invalid_id(&"the id is not acceptable"))
            }
            None => ConversationId::new(id).map_err(|error| Problem::invalid_id(&error)),
        }
    }
}
