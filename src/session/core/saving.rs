//! The writes of a session and their outcomes.
//!
//! One write is in flight at a time. Changes that occur while the write is in flight or failing are collected, and the
//! next write contains all of them. A failed write is repeated unchanged and with the same id before newer changes are
//! written. If the store can never accept a commit, the commit is divided, so that the turns before the rejected turn
//! can be written.

#[cfg(any(test, debug_assertions))]
mod check;
mod conflict;
mod outcome;
mod pace;
mod record;

use std::{collections::VecDeque, sync::Arc};

pub(in crate::session) use conflict::ConversationAfterConflict;
pub(in crate::session) use record::StoredTurnFingerprint;
pub(in crate::session) use record::UnsavedRunRecords;

use super::{Effects, SessionCore, SessionCoreEnv, SessionEffect};
use crate::{
    session::{SessionEvent, StoreReport},
    store::{Change, Commit, StateChange, StoredState, TitleBy, Version, Write},
    subscription::EndReason,
    tree::{Erased, NodeId, Tree},
};

/// One write.
pub(in crate::session) type WriteJob = (Write, Change);

/// The stored state and the writes that are due.
#[derive(Debug)]
pub(super) struct SaveTracker {
    /// The version of the conversation in the store, or `None` if the conversation does not exist there yet.
    version: Option<Version>,
    /// The tree in the store. `None` if it equals the stable tree, which is the session's tree without an uncommitted
    /// branch.
    stored: Option<Box<Tree>>,
    /// The state in the store. `None` if the conversation does not exist there yet.
    state: Option<Box<StoredState>>,
    /// Whether the configuration, the title or the labels still have to be stored.
    state_is_due: bool,
    attempt: Option<Box<PendingWrite>>,
    /// The nodes that are still to be erased from the store. Everything that was committed before the erasure is in the
    /// store.
    erased: Option<Box<Erased>>,
    /// The usage, the end of a run and the turn in flight that are not in the store.
    record: UnsavedRunRecords,
    /// The turn in flight that is in the store.
    flight: Option<Box<StoredTurnFingerprint>>,
    /// The changes to the tree that are not in the store, in order.
    portions: VecDeque<UnsavedTurnChanges>,
    /// The maximum number of portions in a commit. `usize::MAX` means no limit. While there is a limit, the state is
    /// written separately.
    at_most: usize,
    /// The size in bytes of the messages that are not in the store.
    unsaved: usize,
    was_behind: bool,
    /// The number of changes that have to be stored, counted from the start of the session.
    wanted: u64,
    /// The number of changes, out of those counted in `wanted`, that are in the store.
    safe: u64,
    /// The last report about a failure, if saving is failing or has stopped.
    report: Option<Box<StoreReport>>,
    /// The reason why nothing more is saved, if saving has stopped.
    loss: Option<EndReason>,
}

/// The smallest part of the unsaved changes that can be written alone: a turn and the moves of the head after it.
#[derive(Debug)]
struct UnsavedTurnChanges {
    head: Option<NodeId>,
    /// The number of nodes in the tree after this portion.
    nodes: usize,
    bytes: usize,
}

/// A write that is in flight or is waiting to be repeated.
#[derive(Debug)]
struct PendingWrite {
    job: Arc<WriteJob>,
    /// The tree in the store after the write.
    tree: Tree,
    /// The state in the store after the write. `None` if the write leaves the state as it is.
    state: Option<Box<StoredState>>,
    /// The number of portions in the write.
    portions: usize,
    wanted: u64,
    failures: u32,
    under_way: bool,
}

impl SaveTracker {
    pub(super) fn new() -> Self {
        Self {
            version: None,
            stored: None,
            state: None,
            state_is_due: false,
            attempt: None,
            erased: None,
            record: UnsavedRunRecords::default(),
            flight: None,
            portions: VecDeque::new(),
            at_most: usize::MAX,
            unsaved: 0,
            was_behind: false,
            wanted: 0,
            safe: 0,
            report: None,
            loss: None,
        }
    }

    /// Creates the saver of a conversation that is in the store.
    pub(super) fn at(version: Version, state: StoredState) -> Self {
        Self { version: Some(version), state: Some(Box::new(state)), ..Self::new() }
    }

    /// Notes the version of the conversation and its turn in flight after a write that was made outside this module: a
    /// counted restart or the mark of a handover.
    pub(super) fn rewritten(&mut self, version: Version, flight: Option<StoredTurnFingerprint>) {
        self.version = Some(version);
        self.flight = flight.map(Box::new);
    }

    /// Adds the usage, the end of a run and the turn in flight to a commit. Returns the value of the counter of changes
    /// up to which all changes are stored after the commit.
    fn join_record(&mut self, commit: &mut Commit) -> u64 {
        self.record = std::mem::take(&mut self.record).join(commit);
        if self.record.is_empty() { self.wanted } else { self.safe }
    }

    /// Adds the data of a commit that was not written to the record again.
    fn keep_record(&mut self, earlier: UnsavedRunRecords) {
        let later = std::mem::take(&mut self.record);
        self.record = earlier.then(later);
    }

    /// Notes that the stable tree is about to change. `stable` is the tree before the change.
    pub(super) fn about_to_change(&mut self, stable: &Tree) {
        if self.stored.is_none() {
            self.stored = Some(Box::new(stable.clone()));
        }
    }

    /// Notes that the stable tree has changed. `stable` is the tree after the change, and `bytes` is the size of its
    /// new messages.
    pub(super) fn tree_changed(&mut self, stable: &Tree, bytes: usize) {
        self.unsaved += bytes;
        self.wanted += 1;
        let (head, nodes) = (stable.head(), stable.len());
        let under_way = self.attempt.as_ref().map_or(0, |attempt| attempt.portions);
        let is_free = self.portions.len() > under_way;
        match self.portions.back_mut().filter(|last| is_free && last.nodes == nodes) {
            Some(last) => last.head = head,
            None => self.portions.push_back(UnsavedTurnChanges { head, nodes, bytes }),
        }
    }

    /// Notes that the state may have changed. If `due` is set, it will be stored.
    fn state_changed(&mut self, due: bool) {
        if due != self.state_is_due || due && self.attempt.is_some() {
            self.wanted += 1;
        }
        self.state_is_due = due;
    }

    /// Returns the state that the store contains, or will contain after the current write.
    fn latest_state(&self) -> Option<&StoredState> {
        let written = self.attempt.as_ref().and_then(|attempt| attempt.state.as_deref());
        written.or(self.state.as_deref())
    }

    /// Returns the nodes of the stable tree that are not in the store.
    pub(super) fn unsaved(&self, stable: &Tree) -> Vec<NodeId> {
        let new = self.stored.as_ref().and_then(|stored| stable.changes_since(stored));
        new.into_iter().flat_map(|changes| changes.nodes).map(|node| node.id()).collect()
    }

    pub(super) fn report(&self) -> Option<&StoreReport> {
        self.report.as_deref()
    }
}

impl SessionCore {
    /// Starts the next write, if there are unsaved changes and no write is in flight. If a failed write is waiting to
    /// be repeated, it is repeated now instead.
    pub(in crate::session) fn save(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        self.begin_next(env, effects);
        self.report_written(effects);
    }

    fn begin_next(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        self.update_behind(env, effects);
        if self.saver.loss.is_some() {
            return;
        }
        if let Some(attempt) = &mut self.saver.attempt {
            if !attempt.under_way {
                attempt.under_way = true;
                pace::begin(&attempt.job, env, effects);
            }
            return;
        }
        let Some(attempt) = self.next_attempt(env) else {
            return;
        };
        pace::begin(&attempt.job, env, effects);
        let has_state = attempt.state.is_some();
        self.saver.attempt = Some(Box::new(attempt));
        if has_state {
            self.saver.state_is_due = !self.has_state();
        }
    }

    fn next_attempt(&mut self, env: &SessionCoreEnv<'_>) -> Option<PendingWrite> {
        // The state, if the next write has to contain it.
        let is_new = self.saver.version.is_none();
        let now = (is_new || self.saver.state_is_due).then(|| Box::new(self.state()));
        let write = |version| Write::on(version).with_id((env.write_id)());
        let attempt = |job, tree, portions, wanted| PendingWrite {
            job: Arc::new(job),
            tree,
            state: now.clone(),
            portions,
            wanted,
            failures: 0,
            under_way: true,
        };
        let saver = &self.saver;
        let Some(version) = saver.version else {
            let is_whole = saver.stored.is_none();
            let due = !is_whole || saver.state_is_due || !saver.record.is_empty();
            let is_whole = is_whole && saver.record.is_empty();
            let wanted = if is_whole { saver.wanted } else { saver.safe };
            // The conversation is first created without nodes. A later write adds them.
            let job = |state| (Write::first().with_id((env.write_id)()), Change::Create(state));
            return now.clone().filter(|_| due).map(|state| attempt(job(state), Tree::new(), 0, wanted));
        };
        if let Some(erased) = self.saver.erased.take() {
            let saver = &self.saver;
            let tree = saver.stored.as_deref().unwrap_or(self.stable()).clone();
            let is_last = saver.portions.is_empty() && !saver.state_is_due && saver.record.is_empty();
            let wanted = if is_last { saver.wanted } else { saver.safe };
            let mut state = saver.state.clone();
            if let Some(state) = &mut state {
                state.erase(&erased);
            }
            let job = (write(version), Change::Erase(*erased));
            return Some(PendingWrite { state, ..attempt(job, tree, 0, wanted) });
        }
        let saver = &self.saver;
        if let Some(stored) = &saver.stored {
            let portions = saver.portions.len().min(saver.at_most);
            let is_divided = saver.at_most < usize::MAX;
            let tree = self.stable_with(stored, portions);
            let changes = tree.changes_since(stored).expect("the tree extends the stored tree");
            if !changes.is_empty() || portions < saver.portions.len() {
                let mut commit = Commit::from(changes);
                if self.keeps_usage {
                    // With an empty list, the store derives no rows of the usage ledger from the nodes. Only requests
                    // add rows.
                    commit.usage = Some(Vec::new());
                }
                if is_divided {
                    // Until the last part of a divided commit is written, no change counts as saved.
                    let is_last =
                        portions == saver.portions.len() && !saver.state_is_due && saver.record.is_empty();
                    let wanted = if is_last { saver.wanted } else { saver.safe };
                    let job = (write(version), Change::Commit(commit));
                    return Some(PendingWrite { state: None, ..attempt(job, tree, portions, wanted) });
                }
                commit.state.clone_from(&now);
                let wanted = self.saver.join_record(&mut commit);
                return Some(attempt((write(version), Change::Commit(commit)), tree, portions, wanted));
            }
        }
        // The store already has this tree, because the tree's unsaved changes cancel each other out.
        self.saver.stored = None;
        self.saver.portions.clear();
        if !self.saver.record.is_empty() {
            let mut commit = Commit::new(self.stable().head());
            commit.usage = self.keeps_usage.then(Vec::new);
            let wanted = self.saver.join_record(&mut commit);
            let (saver, tree) = (&self.saver, self.stable().clone());
            if saver.state_is_due && saver.at_most < usize::MAX {
                // The store has rejected a write with the state, so the state follows in a separate write.
                let job = (write(version), Change::Commit(commit));
                return Some(PendingWrite { state: None, ..attempt(job, tree, 0, saver.safe) });
            }
            commit.state.clone_from(&now);
            let job = (write(version), Change::Commit(commit));
            return Some(attempt(job, tree, 0, wanted));
        }
        let saver = &self.saver;
        let Some(now) = &now else {
            self.saver.at_most = usize::MAX;
            self.saver.safe = self.saver.wanted;
            return None;
        };
        let change = match saver.state.as_deref().filter(|stored| stored.configures_as(now)) {
            Some(stored) if stored.labels == now.labels => {
                StateChange::Title { title: now.title.clone(), by: now.title_by }
            }
            Some(stored) if (&stored.title, stored.title_by) == (&now.title, now.title_by) => {
                StateChange::Labels(now.labels.clone())
            }
            _ => StateChange::Whole(now.clone()),
        };
        Some(attempt((write(version), Change::State(change)), self.stable().clone(), 0, saver.wanted))
    }

    /// Returns the stable tree as it was after the first `portions` unsaved portions.
    fn stable_with(&self, stored: &Tree, portions: usize) -> Tree {
        let stable = self.stable();
        let Some(last) = portions.checked_sub(1).and_then(|last| self.saver.portions.get(last)) else {
            return stable.clone();
        };
        if portions == self.saver.portions.len() {
            return stable.clone();
        }
        let mut changes = stable.changes_since(stored).expect("the tree extends the stored tree");
        changes.nodes.truncate(last.nodes - stored.len());
        // The cursors are cleared, because they may lead to later nodes. The path of the stored tree is cleared first,
        // so that applying the changes sets all cursors on the new path. Otherwise, the cursor of a parent could lead
        // to a node that is not on the path.
        changes.cursors.clear();
        changes.head = last.head;
        let mut tree = stored.clone();
        tree.clear();
        tree.apply(&changes).expect("nodes come after their parents");
        tree
    }

    /// Notes that the conversation was created in the store before the session's task started.
    pub(in crate::session) fn created(&mut self, version: Version) {
        self.saver.version = Some(version);
        self.saver.state = Some(Box::new(self.state()));
    }

    /// Erases nodes from the tree, and starts to erase them from the store. The caller must ensure that all earlier
    /// changes are saved.
    pub(in crate::session) fn erased(
        &mut self,
        erased: Erased,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        if let Err(error) = self.tree.apply_erased(&erased) {
            unreachable!("the erasure was made from this tree: {error}");
        }
        self.forget_nodes(&erased);
        self.settings.retain(|node, _| erased.nodes.binary_search(node).is_err());
        let saver = &mut self.saver;
        saver.wanted += 1;
        saver.stored = None;
        if let Some(attempt) = &mut saver.attempt {
            // The write in flight changes only the state, so its tree can be replaced with the tree after the erasure.
            attempt.tree = self.tree.clone();
        }
        effects.push(SessionEffect::Emit(SessionEvent::Erased(Arc::new(erased.clone()))));
        if erased.title && self.title_by.is_derived() {
            self.replace_title(None, TitleBy::Derived, effects);
        }
        self.saver.erased = Some(Box::new(erased));
        self.save(env, effects);
    }

    /// Notes the turn in flight that is in the store.
    pub(in crate::session) fn loaded_flight(&mut self, flight: Option<StoredTurnFingerprint>) {
        self.saver.flight = flight.map(Box::new);
    }

    /// Returns whether the store has a turn in flight. Its state may be older than the last record, or the turn may be
    /// an earlier one, whose end is not stored yet.
    pub(in crate::session) fn has_stored_turn(&self) -> bool {
        self.saver.flight.is_some()
    }

    /// Returns the version of the conversation in the store.
    pub(in crate::session) fn version(&self) -> Option<Version> {
        self.saver.version
    }

    /// Returns whether the session shows a loaded conversation as the store has it: with the same configuration.
    pub(in crate::session) fn is_as_stored(&self) -> bool {
        self.has_state() && self.config.model.fallback_for().is_none()
    }

    /// Notes that the configuration, the title or the labels may have changed.
    pub(super) fn state_changed(&mut self) {
        let due = !self.has_state();
        self.saver.state_changed(due);
    }

    /// Returns whether the store contains the state, or will contain it after the current write and a due erasure.
    fn has_state(&self) -> bool {
        let erases_title = self.saver.erased.as_ref().is_some_and(|erased| erased.title);
        self.saver.latest_state().is_some_and(|stored| {
            let stays = !(erases_title && stored.title_by.is_derived());
            stored.title.as_deref().filter(|_| stays) == self.title.as_deref()
                && stored.title_by == self.title_by
                && stored.labels == self.labels
                && self.config.is_stored_as(stored)
        })
    }

    /// Returns the state that has to be stored.
    pub(in crate::session) fn state(&self) -> StoredState {
        let (title, labels) = (self.title.as_deref().map(str::to_owned), self.labels.clone());
        StoredState { title, title_by: self.title_by, labels, ..StoredState::from(&*self.config) }
    }

    /// Returns the current value of the change counter. [`is_safe`](Self::is_safe) reports whether all changes up to
    /// this value are stored.
    pub(in crate::session) fn wanted(&self) -> u64 {
        self.saver.wanted
    }

    /// Returns whether the store has the conversation.
    pub(in crate::session) fn is_stored(&self) -> bool {
        self.saver.state.is_some()
    }

    /// Returns whether the store contains all changes that were made before [`wanted`](Self::wanted) returned this
    /// number.
    pub(in crate::session) fn is_safe(&self, wanted: u64) -> bool {
        self.saver.safe >= wanted
    }

    /// Returns whether saving has stopped, so that nothing more will be stored.
    pub(in crate::session) fn is_lost(&self) -> bool {
        self.saver.loss.is_some()
    }

    /// Returns the reason why saving has stopped, if it has. The session then ends.
    pub(in crate::session) fn loss(&self) -> Option<&EndReason> {
        self.saver.loss.as_ref()
    }

    fn update_behind(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        let behind = self.saver.unsaved.saturating_add(self.record_weight()) > env.unsaved_limit;
        if behind != self.saver.was_behind {
            self.saver.was_behind = behind;
            effects.push(SessionEffect::Behind(behind));
        }
    }
}
