//! A store for one conversation. It follows the contract of the `Store` trait literally.

use std::sync::Arc;

use super::{Check, ensure};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    run::RunEnd,
    session::core::WriteJob,
    store::{
        Change, ConversationId, Labels, StateChange, StoreError, Stored, StoredState, TitleBy, Version,
        WriteId,
    },
    tree::Tree,
};

/// The id of all writes by other writers.
const NOBODY: WriteId = WriteId::from_bytes([255; 16]);

#[derive(Clone, Default)]
pub(super) struct Vault {
    pub(super) stored: Option<Stored>,
    /// For each write, the version on which it is based, its id and the version that it produced.
    writes: Vec<(Option<Version>, WriteId, Version)>,
    /// The rows of the usage ledger.
    pub(super) rows: Vec<UsageRow>,
    /// The number of conversations that have been created.
    created: u64,
    /// Whether another writer has deleted the conversation or changed more than its title and labels.
    pub(super) is_foreign: bool,
    /// Whether another writer has changed the title or the labels. The session may not know this yet.
    pub(super) is_retitled: bool,
}

/// The content of a conversation.
pub(super) type Content = (Tree, StoredState, Books);

/// The sum of the usage ledger, and the end of the last run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Books {
    pub(super) used: UsageSum,
    pub(super) last_run: Option<RunEnd>,
}

/// Returns the parts of a stored conversation that matter to a session.
pub(super) fn content(stored: &Stored) -> Check<Content> {
    let Stored { nodes, head, cursors, state, next, used, last_run, .. } = stored.clone();
    let ascending = nodes.is_sorted_by(|a, b| a.id() < b.id());
    ensure!(ascending, "nodes are stored out of order: {:?}", nodes.iter().map(crate::tree::Node::id));
    let tree = Tree::restored(nodes, head, cursors, next)
        .map_err(|error| format!("the stored nodes do not form a tree: {error}"))?;
    let secret = state.settings.options.api_key().is_some() || state.settings.options.headers().is_some();
    ensure!(!secret, "a secret is stored");
    Ok((tree, state, Books { used, last_run }))
}

/// Returns whether both contents are equal apart from their titles, their labels and the usage ledger.
pub(super) fn same_but_title(a: &Content, b: &Content) -> bool {
    a.0 == b.0 && untitled(&a.1) == untitled(&b.1)
}

/// A title and who set it.
pub(super) type Title = Option<(Arc<str>, TitleBy)>;

/// Returns the title in a state.
pub(super) fn title(state: &StoredState) -> Title {
    Some((state.title.as_deref()?.into(), state.title_by))
}

/// Returns the state without title and labels.
pub(super) fn untitled(state: &StoredState) -> StoredState {
    StoredState { title: None, title_by: TitleBy::Derived, labels: Labels::default(), ..state.clone() }
}

/// Applies a write to the stored conversation.
pub(super) fn with(stored: &mut Stored, job: &WriteJob) {
    match job {
        (_, Change::Create(_)) => unreachable!("the conversation exists"),
        (_, Change::Schedule(_)) => unreachable!("a session changes no schedules"),
        (_, Change::Commit(commit)) => stored.commit(commit.clone()),
        (_, Change::State(change)) => stored.change_state(change.clone()),
        (_, Change::Erase(erased)) => stored.erase(erased),
    }
}

pub(super) fn id() -> ConversationId {
    ConversationId::new("it").expect("the id is valid")
}

pub(super) fn write_id(job: &WriteJob) -> WriteId {
    job.0.id
}

impl Vault {
    /// Stores a new conversation.
    pub(super) fn put(&mut self, state: StoredState) -> Version {
        self.created += 1;
        let version = Version::new(self.created * 1000);
        self.stored = Some(Stored::new(version, Timestamp(0), state));
        self.writes.clear();
        self.rows.clear();
        version
    }

    /// Returns whether an attempt at this write has succeeded.
    pub(super) fn has_written(&self, job: &WriteJob) -> bool {
        self.writes.iter().any(|(_, id, _)| *id == write_id(job))
    }

    pub(super) fn write(&mut self, job: &WriteJob) -> Result<Version, StoreError> {
        let base = if matches!(job.1, Change::Create(_)) { None } else { Some(job.0.base) };
        let write = job.0.id;
        match (&mut self.stored, job) {
            (None, (_, Change::Create(state))) => {
                let version = self.put((**state).clone());
                self.writes.push((None, write, version));
                Ok(version)
            }
            (None, _) => Err(StoreError::NotFound { id: id() }),
            (Some(stored), _) => {
                let once = self.writes.iter().find(|known| known.0 == base);
                let current = stored.version;
                match once {
                    Some((_, known, version)) if *known == write => Ok(*version),
                    None if base == Some(current) => {
                        with(stored, job);
                        if let (_, Change::Commit(commit)) = job {
                            self.rows.extend(commit.usage.iter().flatten().cloned());
                        }
                        stored.advance(current.next(), Timestamp(0));
                        self.writes.push((base, write, stored.version));
                        Ok(stored.version)
                    }
                    _ if base.is_none() => Err(StoreError::AlreadyExists { id: id() }),
                    _ => Err(StoreError::Conflict { id: id(), current }),
                }
            }
        }
    }

    /// Acts as another writer: changes the state of the conversation, or creates a conversation with this id if there
    /// is none.
    pub(super) fn meddle(&mut self) {
        self.is_foreign = true;
        if let Some(stored) = &self.stored {
            let mut state = stored.state.clone();
            state.settings.system = Some(format!("theirs at {}", stored.version).into());
            self.change(StateChange::whole(state));
        } else {
            let version = self.put(StoredState::default().with_title("theirs"));
            self.writes.push((None, NOBODY, version));
        }
    }

    /// Acts as another writer that changes the title.
    pub(super) fn retitle(&mut self, title: Option<&str>, by: TitleBy) {
        self.is_retitled = true;
        self.change(StateChange::Title { title: title.map(str::to_owned), by });
    }

    /// Acts as another writer that changes the labels.
    pub(super) fn relabel(&mut self, labels: Labels) {
        self.is_retitled = true;
        self.change(StateChange::Labels(labels));
    }

    fn change(&mut self, change: StateChange) {
        let stored = self.stored.as_mut().expect("the conversation is stored");
        stored.change_state(change);
        self.writes.push((Some(stored.version), NOBODY, stored.version.next()));
        stored.version = stored.version.next();
    }

    pub(super) fn delete(&mut self) {
        self.stored = None;
        self.writes.clear();
    }
}
