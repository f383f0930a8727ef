use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;

use super::{
    Commit, ConversationId, Page, StateChange, Store, StoreError, Stored, StoredState, Summary, Version,
    Write, WriteId,
};
use crate::{message::Timestamp, sync::lock};

/// A store in the memory of this process. Its content is lost when the last clone of the store is dropped.
///
/// Clones share all content. The store shares messages with the writer instead of copying them.
///
/// ```
/// use omni_agent::store::{ConversationId, MemoryStore, Store, StoredState, WriteId};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = MemoryStore::new();
/// let id = ConversationId::new("first")?;
/// store.clone().create(&id, WriteId::generate(), &StoredState::default()).await?;
/// assert!(store.exists(&id).await?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<HashMap<ConversationId, Conversation>>>);

struct Conversation {
    stored: Stored,
    /// The write that created the conversation, followed by all later writes. The index of a write corresponds to its
    /// version.
    writes: Vec<WriteId>,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    // Code that holds the lock can't panic in the middle of a change, so the data behind a poisoned lock is still
    // valid.
    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationId, Conversation>> {
        lock(&self.0)
    }

    fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        apply: impl FnOnce(&mut Stored),
    ) -> Result<Version, StoreError> {
        let mut conversations = self.lock();
        let conversation =
            conversations.get_mut(id).ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        let current = conversation.stored.version;
        if write.base != current {
            return match conversation.written_on(write.base) {
                Some(earlier) if earlier == write.id => Ok(write.base.next()),
                _ => Err(StoreError::Conflict { id: id.clone(), current }),
            };
        }
        let stored = &mut conversation.stored;
        apply(stored);
        stored.version = current.next();
        stored.updated = stored.updated.max(Timestamp::now());
        conversation.writes.push(write.id);
        Ok(stored.version)
    }
}

impl Conversation {
    /// Returns the write that was based on this version.
    fn written_on(&self, base: Version) -> Option<WriteId> {
        let back = usize::try_from(self.stored.version.get().checked_sub(base.get())?).ok()?;
        self.writes.get(self.writes.len().checked_sub(back)?).copied()
    }

    fn summary(&self, id: &ConversationId) -> Summary {
        let stored = &self.stored;
        Summary {
            title: stored.state.title.clone(),
            updated: stored.updated,
            ..Summary::new(id.clone(), stored.version, stored.created)
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let mut conversations = self.lock();
        if let Some(conversation) = conversations.get(id) {
            let back = conversation.writes.len() as u64 - 1;
            return if conversation.writes[0] == write {
                Ok(Version::new(conversation.stored.version.get() - back))
            } else {
                Err(StoreError::AlreadyExists { id: id.clone() })
            };
        }
        let version = Version::first();
        let stored = Stored::new(version, Timestamp::now(), state.clone());
        conversations.insert(id.clone(), Conversation { stored, writes: vec![write] });
        Ok(version)
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        self.write(id, write, |stored| stored.commit(commit.clone()))
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        self.write(id, write, |stored| stored.change_state(change.clone()))
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let conversations = self.lock();
        let conversation = conversations.get(id).ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        Ok(conversation.stored.clone())
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        let conversations = self.lock();
        let conversation = conversations.get(id).ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        Ok(conversation.summary(id))
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        let conversations = self.lock();
        let all = conversations
            .iter()
            .map(|(id, conversation)| (conversation.stored.updated, id, (id, conversation)));
        let listed = page.cut(all.collect());
        Ok(listed.into_iter().map(|(id, conversation)| conversation.summary(id)).collect())
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        let removed = self.lock().remove(id);
        // Dropping a long conversation takes time, so the conversation is dropped after the lock was released.
        drop(removed);
        Ok(())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("conversations", &self.lock().len()).finish()
    }
}
