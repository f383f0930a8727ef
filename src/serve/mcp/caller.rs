//! The sender of a call.

use crate::{
    access::{Action, client::AuthorizedClient},
    run::Error,
    session::{Mode, Session, SessionSubscription},
    store::{ConversationId, Labels},
};

/// The maximum number of concurrent calls of a client that is connected over standard input and output.
pub(super) const MOST_CALLS: usize = 64;

/// A client that sends a prompt also gets its answer.
pub(super) const ASK: &[Action] = &[Action::Prompt, Action::Watch];

/// The reason why an operation is refused, in words for the client.
pub(super) type RefusalText = String;

/// The sender of a call.
pub(super) struct McpCaller {
    pub(super) client: AuthorizedClient,
    /// Counts a call of the client until the permit is dropped. Fails if the client has too many calls.
    pub(super) permit: Box<dyn Fn() -> Result<Box<dyn Send>, RefusalText> + Send + Sync>,
    /// Returns an error in words for the client.
    pub(super) refused: fn(Error) -> RefusalText,
}

impl McpCaller {
    /// Opens a conversation, if the client may perform these actions, and subscribes to it. Also returns the labels that
    /// decide what is permitted.
    pub(super) async fn open(
        &self,
        id: &ConversationId,
        mode: Mode,
        actions: &[Action],
    ) -> Result<(Session, SessionSubscription, Labels), RefusalText> {
        let opened = async {
            let labels = self.client.permitted(id, actions).await?;
            self.client.subscribe((id, &labels), mode, None, actions).await
        };
        opened.await.map_err(self.refused)
    }

    /// Creates a conversation and subscribes to it. A new conversation begins with a prompt.
    pub(super) async fn create(&self) -> Result<(Session, SessionSubscription, Labels), RefusalText> {
        let created = async {
            self.client.permit(ASK, self.client.principal.labels())?;
            let opened = self.client.create(None, (None, None), Some(Mode::Controller)).await?;
            Ok((opened.session, opened.subscription))
        };
        let (session, subscription) = created.await.map_err(self.refused)?;
        let subscription = subscription.ok_or("the session has no subscription")?;
        let labels = subscription.snapshot().map(|snapshot| snapshot.labels.clone()).unwrap_or_default();
        Ok((session, subscription, labels))
    }
}
