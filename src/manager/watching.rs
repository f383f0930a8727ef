//! What sessions tell their manager.

use std::sync::Weak;

use super::{Inner, registry::Key};
use crate::{
    agent::Status,
    session::{Notice, Watcher, WeakSession},
    store::ConversationId,
};

/// Told by one session.
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
                inner.registry().act(id, key, Some(status), None);
                if status == Status::Idle {
                    inner.make_room();
                }
            }
            Notice::Title(title) => inner.registry().titled(id, key, title.cloned()),
            Notice::Finished(_) => inner.make_title(id, key),
            Notice::Left => {
                inner.registry().touch(id);
                inner.make_room();
            }
            Notice::Ended(reason) => inner.registry().ended(id, key, reason),
        }
    }
}

impl Inner {
    /// Gives an untitled conversation a title, beside everything else.
    fn make_title(self: &std::sync::Arc<Self>, id: &ConversationId, key: Key) {
        if self.titles.is_off() || !self.registry().begin_title(id, key) {
            return;
        }
        let session = self.registry().get(id).map(|session| session.downgrade());
        let (inner, id) = (std::sync::Arc::clone(self), id.clone());
        tokio::spawn(async move {
            let _titling = Titling { inner: &inner, id: &id, key };
            if let Some(session) = session {
                inner.title(&session).await;
            }
        });
    }

    async fn title(&self, weak: &WeakSession) {
        let Some(Ok(tree)) = (match weak.upgrade() {
            Some(session) => Some(session.tree().await),
            None => None,
        }) else {
            return;
        };
        match self.titles.make(tree.history()).await {
            Ok(Some(title)) => {
                if let Some(session) = weak.upgrade() {
                    // One that has ended needs none.
                    let _ = session.suggest_title(&title).await;
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(id = %weak.id(), %error, "no title could be made"),
        }
    }
}

/// A title is being made, until this is dropped.
struct Titling<'a> {
    inner: &'a Inner,
    id: &'a ConversationId,
    key: Key,
}

impl Drop for Titling<'_> {
    fn drop(&mut self) {
        self.inner.registry().end_title(self.id, self.key);
    }
}
