//! Processes the notifications that sessions send to their manager.

use std::sync::{Arc, Weak};

use tracing::Instrument;

use super::{Inner, registry::Key};
use crate::{
    agent::Status,
    session::{Notice, Session, Watcher},
    store::ConversationId,
    telemetry::{self, Caller},
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
                if status != Status::Busy {
                    registry.changed(id, key);
                }
            }
            Notice::Title(title) => inner.registry().titled(id, key, title.cloned()),
            Notice::Erased => inner.registry().forget(),
            Notice::Labels(labels) => inner.registry().labelled(id, key, labels.clone()),
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
    /// Starts to generate a title for an untitled conversation, in a separate task.
    fn make_title(self: &Arc<Self>, id: &ConversationId, key: Key) {
        if self.titles.is_off() {
            return;
        }
        let Some(session) = self.registry().begin_title(id, key) else {
            return;
        };
        let titling = Titling { inner: Arc::clone(self), id: id.clone(), key };
        // A session that is ending accepts no title, so none is generated.
        let Ok(guard) = session.keep() else {
            return;
        };
        let span = telemetry::title(&Caller::current(), id.as_str());
        let generating = async move {
            let titling = titling;
            titling.inner.title(&session).await;
            drop(titling);
            // From here on, the session may sleep or be ended by its idle shutdown.
            drop(guard);
        };
        tokio::spawn(generating.instrument(span));
    }

    async fn title(&self, session: &Session) {
        let Ok(tree) = session.tree().await else {
            return;
        };
        let made = self.titles.make(tree.history()).await;
        for row in made.usage {
            // A session that has ended can no longer record the usage, so an error is ignored.
            let _ = session.spent(row).await;
        }
        match made.title {
            Ok(Some(title)) => {
                // A session that has ended needs no title, so an error is ignored.
                let _ = session.suggest_title(&title, tree.head()).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(id = %session.id(), %error, "no title was generated"),
        }
    }

    /// If a title is being generated for a turn that has already finished, waits for this title.
    pub(super) async fn titled(&self, session: &Session) {
        if self.titles.is_off() || self.registry().is_titled(session.id()) {
            return;
        }
        // The session answers this call after it has processed all events of its agent. By then, the session has
        // reported all finished turns to this watcher.
        if session.tree().await.is_err() {
            return;
        }
        let titling = self.registry().titling(session.id());
        if let Some(titling) = titling {
            titling.cancelled().await;
        }
    }
}

/// A guard that marks a title as being generated until the guard is dropped.
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
