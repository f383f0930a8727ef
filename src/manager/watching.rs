//! Handles the notifications of sessions to their manager.

use std::sync::{Arc, Weak};

use super::{Inner, registry::Key};
use crate::{
    agent::Status,
    session::{Notice, Session, Watcher},
    store::ConversationId,
};

/// The watcher of one session.
pub(super) struct Watch {
    inner: Weak<Inner>,
    id: ConversationId,
    key: Key,
}

impl Watch {
    pub(super) fn new(inner: Weak<Inner>, id: ConversationId, key: Key) -> Self {
        Self { inner, id, key }
    }
}

impl Watcher for Watch {
    fn notice(&self, notice: Notice<'_>) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        let (id, key) = (&self.id, self.key);
        match notice {
            Notice::Status(status) => {
                let mut registry = inner.registry();
                registry.act(id, key, Some(status), None);
                if status == Status::Idle {
                    registry.changed(id, key);
                }
            }
            Notice::Title(title) => inner.registry().titled(id, key, title.cloned()),
            Notice::Finished(_) => inner.make_title(id, key),
            Notice::Left => {
                let mut registry = inner.registry();
                registry.touch(id);
                registry.changed(id, key);
            }
            Notice::Settled => inner.registry().changed(id, key),
            Notice::Ended(reason) => inner.registry().ended(id, key, reason),
        }
    }
}

impl Inner {
    /// Generates a title for an untitled conversation, concurrently with everything else.
    fn make_title(self: &Arc<Self>, id: &ConversationId, key: Key) {
        if self.titles.is_off() {
            return;
        }
        let Some(session) = self.registry().begin_title(id, key) else {
            return;
        };
        let titling = Titling { inner: Arc::clone(self), id: id.clone(), key };
        // A session that is ending accepts no title.
        let Ok(guard) = session.keep() else {
            return;
        };
        tokio::spawn(async move {
            let titling = titling;
            titling.inner.title(&session).await;
            drop(titling);
            // From here on, the session may sleep or end by its idle shutdown.
            drop(guard);
        });
    }

    async fn title(&self, session: &Session) {
        let Ok(tree) = session.tree().await else {
            return;
        };
        match self.titles.make(tree.history()).await {
            Ok(Some(title)) => {
                // A session that has ended needs no title.
                let _ = session.suggest_title(&title).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(id = %session.id(), %error, "no title was generated"),
        }
    }

    /// Waits for the title after the turns that have finished so far, if one is being generated.
    pub(super) async fn titled(&self, session: &Session) {
        if self.titles.is_off() || self.registry().is_titled(session.id()) {
            return;
        }
        // The session first processes all events of its agent. So it has reported all finished turns by then.
        if session.tree().await.is_err() {
            return;
        }
        let titling = self.registry().titling(session.id());
        if let Some(titling) = titling {
            titling.cancelled().await;
        }
    }
}

/// Marks that a title is being generated, until it is dropped.
struct Titling {
    inner: Arc<Inner>,
    id: ConversationId,
    key: Key,
}

impl Drop for Titling {
    fn drop(&mut self) {
        self.inner.registry().end_title(&self.id, self.key);
    }
}
