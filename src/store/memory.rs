use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;

use super::{
    Change, Commit, ConversationId, Filter, Found, Hit, Lease, Listing, Page, Query, ScheduleChange,
    ScheduleEntry, ScheduleList, Scheduled, Schedules, Store, StoreError, StoreTraits, Stored, StoredState,
    StoredTurn, Summary, TurnSummary, Turns, Version, Write, WriteId,
    ledger::{DeletedConversationsUsage, UsageSumsByModel},
    search::searched_text,
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
    sync::lock,
};

/// A store in the memory of this process. Its content is lost when the last clone of the store is dropped.
///
/// Clones share all content. The store shares messages with the writer instead of copying them. Lists by labels,
/// searches and sums of usage read all conversations.
///
/// ```
/// use omni_agent::store::{
///     ConversationId, MemoryStore, Store,
///     custom::{Change, StoredState, Write},
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = MemoryStore::new();
/// let id = ConversationId::new("first")?;
/// let version = store.clone().write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
/// assert_eq!(store.summary(&id).await?.version, version);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<MemoryContent>>);

#[derive(Default)]
struct MemoryContent {
    conversations: HashMap<ConversationId, ConversationInMemory>,
    /// The usage of deleted conversations.
    kept: DeletedConversationsUsage,
}

struct ConversationInMemory {
    stored: Stored,
    /// The write that created the conversation, followed by all later writes. The index of a write corresponds to its
    /// version.
    writes: Vec<WriteId>,
    /// The usage ledger, oldest row first.
    usage: Vec<UsageRow>,
    /// The schedules by their names.
    schedules: BTreeMap<String, ScheduleEntry>,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    // Code that holds the lock can't panic in the middle of a change, so the data behind a poisoned lock is still
    // valid.
    fn lock(&self) -> MutexGuard<'_, MemoryContent> {
        lock(&self.0)
    }

    /// Creates a conversation.
    fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let mut content = self.lock();
        if let Some(conversation) = content.conversations.get(id) {
            let back = conversation.writes.len() as u64 - 1;
            return if conversation.writes[0] == write {
                Ok(Version::new(conversation.stored.version.get() - back))
            } else {
                Err(StoreError::AlreadyExists { id: id.clone() })
            };
        }
        let version = Version::first();
        let stored = Stored::new(version, Timestamp::now(), state.clone());
        let conversation = ConversationInMemory {
            stored,
            writes: vec![write],
            usage: Vec::new(),
            schedules: BTreeMap::new(),
        };
        content.conversations.insert(id.clone(), conversation);
        Ok(version)
    }

    fn get<T>(
        &self,
        id: &ConversationId,
        read: impl FnOnce(&ConversationInMemory) -> T,
    ) -> Result<T, StoreError> {
        let content = self.lock();
        content.conversations.get(id).map(read).ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }
}

impl MemoryContent {
    /// Returns the conversations that match the filter and are on this page.
    fn list(&self, filter: &Filter, page: Page) -> Vec<(&ConversationId, &ConversationInMemory)> {
        let all = self.conversations.iter().filter(|(_, conversation)| conversation.matches(filter));
        page.cut(
            all.map(|(id, conversation)| (conversation.stored.updated, id, (id, conversation))).collect(),
        )
    }
}

impl ConversationInMemory {
    /// Returns the write that was based on this version.
    fn written_on(&self, base: Version) -> Option<WriteId> {
        let back = usize::try_from(self.stored.version.get().checked_sub(base.get())?).ok()?;
        self.writes.get(self.writes.len().checked_sub(back)?).copied()
    }

    fn commit(&mut self, commit: &Commit) -> bool {
        let is_update = commit.is_update(self.stored.head);
        self.usage.extend(commit.usage_rows());
        self.stored.commit_at(commit.clone(), Timestamp::now());
        is_update
    }

    fn schedule(&mut self, id: &ConversationId, change: &ScheduleChange) -> Result<Version, StoreError> {
        let current = self.stored.version;
        let known = self.schedules.get(&change.name).map(|known| (known.due, known.rev));
        if change.was.is_some() && change.was != known {
            return Err(StoreError::Conflict { id: id.clone(), current });
        }
        self.schedules.remove(&change.name);
        if let Some(mut entry) = change.entry.clone() {
            entry.schedule.prompt = Arc::unwrap_or_clone(Arc::new(entry.schedule.prompt).as_serialised());
            self.schedules.insert(change.name.clone(), entry);
        }
        Ok(current)
    }

    /// Returns whether the turn in flight needs nothing but decisions.
    fn only_waits(&self) -> bool {
        let turn = self.stored.turn.as_deref();
        turn.is_some_and(|turn| turn.is_on(self.stored.head) && turn.record.only_waits())
    }

    fn matches(&self, filter: &Filter) -> bool {
        filter.matches(&self.stored.state.labels)
    }

    fn turn(&self, id: &ConversationId) -> Option<TurnSummary> {
        let turn = TurnSummary::new(id.clone(), self.stored.turn.as_ref()?);
        Some(TurnSummary { labels: self.stored.state.labels.clone(), ..turn })
    }

    fn find(&self, id: &ConversationId, query: &Query) -> Option<Hit> {
        let nodes = self.stored.nodes.iter().rev();
        if let Some(node) = nodes.into_iter().find(|node| query.is_in(&searched_text(node.message()))) {
            return Some(Hit::message(self.stored.summary(id), node.id(), node.message(), query));
        }
        let title = self.stored.state.title.as_deref().unwrap_or_default();
        query.is_in(title).then(|| Hit::title(self.stored.summary(id)))
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn traits(&self) -> StoreTraits {
        StoreTraits {
            usage: true,
            erase: true,
            turns: true,
            schedules: true,
            search: true,
            labels: true,
            lease: None,
        }
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if let Change::Create(state) = change {
            return self.create(id, write.id, state);
        }
        let mut content = self.lock();
        let conversation = content.conversations.get_mut(id);
        let conversation = conversation.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        if let Change::Schedule(change) = change {
            return conversation.schedule(id, change);
        }
        let current = conversation.stored.version;
        if write.base != current {
            return match conversation.written_on(write.base) {
                Some(earlier) if earlier == write.id => Ok(write.base.next()),
                _ => Err(StoreError::Conflict { id: id.clone(), current }),
            };
        }
        // A write that does not count as an update does not change the time.
        let mut is_update = true;
        match change {
            Change::Create(_) | Change::Schedule(_) => {}
            Change::Commit(commit) => is_update = conversation.commit(commit),
            Change::State(change) => conversation.stored.change_state(change.clone()),
            Change::Erase(erased) => conversation.stored.erase(erased),
        }
        conversation.writes.push(write.id);
        let stored = &mut conversation.stored;
        let updated = if is_update { stored.updated.max(Timestamp::now()) } else { stored.updated };
        stored.advance(current.next(), updated);
        Ok(stored.version)
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.get(id, |conversation| conversation.stored.clone().read_at(Timestamp::now()))
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.get(id, |conversation| conversation.stored.summary(id))
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        let turn = self.get(id, |conversation| conversation.stored.turn.as_deref().cloned())?;
        Ok(turn.map(|turn| StoredTurn { now: Timestamp::now(), ..turn }))
    }

    async fn list(&self, Listing { filter, page }: &Listing) -> Result<Vec<Summary>, StoreError> {
        let content = self.lock();
        let listed = content.list(filter, page.clone());
        Ok(listed.into_iter().map(|(id, conversation)| conversation.stored.summary(id)).collect())
    }

    async fn turns(
        &self,
        which: Turns,
        Listing { filter, page }: &Listing,
    ) -> Result<Vec<TurnSummary>, StoreError> {
        let now = Timestamp::now();
        let content = self.lock();
        let matching = content.conversations.iter().filter(|(_, conversation)| conversation.matches(filter));
        let turns = matching.filter_map(|(id, conversation)| conversation.turn(id)?.listed(which, now));
        Ok(TurnSummary::page(turns.collect(), page))
    }

    async fn schedules(
        &self,
        which: &Schedules,
        Listing { filter, page }: &Listing,
    ) -> Result<ScheduleList, StoreError> {
        let mut list = ScheduleList::new(Timestamp::now());
        let content = self.lock();
        for (id, conversation) in content.conversations.iter().filter(|(_, own)| own.matches(filter)) {
            let until = match which {
                Schedules::All => Timestamp(u64::MAX),
                Schedules::Of(wanted) if wanted == id => Timestamp(u64::MAX),
                Schedules::Within(time) if !conversation.only_waits() => list.now.after(*time),
                _ => continue,
            };
            let entries = conversation.schedules.iter().filter(|(_, entry)| entry.due <= until);
            let entry = |(name, entry): (&String, &ScheduleEntry)| {
                Scheduled::new(id.clone(), name.clone(), entry.clone())
            };
            list.schedules.extend(entries.map(entry));
        }
        if let Some(after) = &page.after {
            list.schedules.retain(|entry| (entry.due, &entry.id) > (after.updated, &after.id));
        }
        list.schedules.sort_by(|a, b| (a.due, &a.id, &a.name).cmp(&(b.due, &b.id, &b.name)));
        list.schedules.drain(..page.offset.min(list.schedules.len()));
        Ok(list.cut(page.limit))
    }

    async fn search(&self, query: &Query, Listing { filter, page }: &Listing) -> Result<Found, StoreError> {
        let content = self.lock();
        let listed = content.list(filter, Page { limit: usize::MAX, offset: 0, ..page.clone() });
        let hits = listed.into_iter().filter_map(|(id, conversation)| conversation.find(id, query));
        Ok(Found::new(hits.skip(page.offset).take(page.limit).collect()))
    }

    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
        self.get(id, |conversation| {
            conversation.usage.iter().rev().skip(page.offset).take(page.limit).cloned().collect()
        })
    }

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let content = self.lock();
        let mut sums = UsageSumsByModel::default();
        for conversation in content.conversations.values().filter(|conversation| conversation.matches(filter))
        {
            for row in conversation.usage.iter().filter(|row| period.contains(&row.at)) {
                sums.add(row.model.as_deref(), 1, row.usage);
            }
        }
        for (labels, at, sum) in content.kept.iter() {
            if filter.matches(labels) && period.contains(&at) {
                sums.add(sum.model.as_deref(), sum.requests, sum.usage);
            }
        }
        Ok(sums.into_vec())
    }

    async fn delete(&self, id: &ConversationId, _: Option<&Lease>) -> Result<(), StoreError> {
        let mut content = self.lock();
        let removed = content.conversations.remove(id);
        if let Some(conversation) = &removed {
            content.kept.keep(&conversation.stored.state.labels, &conversation.usage);
        }
        drop(content);
        // Dropping a long conversation takes time, so the conversation is dropped after the lock was released.
        drop(removed);
        Ok(())
    }

    async fn release(&self, id: &ConversationId, _: &Lease, mark: Option<EventId>) -> Result<(), StoreError> {
        if let (Some(mark), Some(conversation)) = (mark, self.lock().conversations.get_mut(id)) {
            conversation.stored.mark = Some(mark);
        }
        Ok(())
    }
}

crate::debug::impl_debug!(MemoryStore(self) { conversations: self.lock().conversations.len() });
