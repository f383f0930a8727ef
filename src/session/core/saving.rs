//! What of a session is to be written, and what became of it.
//!
//! One write is under way at a time. While it is, and while it fails, what comes to be unsaved only adds up; the next
//! write takes all of it. A write that failed is repeated as it was, under the same id, before anything newer.

use std::{sync::Arc, time::Duration};

use super::{Core, Effect, Effects, Env};
use crate::{
    agent::{Config, SavedConfig},
    error::error_chain,
    session::{SavedPart, SessionEvent, StoreReport},
    store::{Commit, StateChange, StoreError, StoredState, Version, Write, WriteId},
    tree::{Node, NodeId, Tree},
};

/// The wait before a failed write is repeated, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The share of the time left that such a wait takes at most during an end or a flush.
const WAIT_SHARE: u32 = 8;
/// The share of the time left after which a write that does not answer is begun once more.
const SILENCE_SHARE: u32 = 4;
/// The same for a creation. It is abandoned by that, since two attempts that acquire the conversation side by side could
/// end each other's lease. So it gets more time.
const SILENT_CREATION_SHARE: u32 = 2;
/// The shortest of these waits. Shares of the time left never come to its end.
const SHORTEST: Duration = Duration::from_millis(50);

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::session) enum Job {
    Create(WriteId, StoredState),
    Commit(Write, Commit),
    State(Write, StateChange),
}

/// What is in the store, and what is on its way there.
#[derive(Debug)]
pub(super) struct Saver {
    /// The version of the conversation in the store; `None` if it is not there yet.
    version: Option<Version>,
    /// The tree as the store has it; `None` if that is the stable one.
    stored: Option<Box<Tree>>,
    /// A configuration and a title whose persistable parts are what the store has.
    config: Option<Arc<Config>>,
    title: Option<Arc<str>>,
    /// Whether configuration or title are to be stored.
    state_is_due: bool,
    attempt: Option<Box<Attempt>>,
    /// Bytes of messages that are not in the store.
    unsaved: usize,
    was_behind: bool,
    /// Counts what came to be unsaved: up to here in all, and up to here in the store.
    wanted: u64,
    safe: u64,
    /// Why saving fails, if it does; or why it is over.
    report: Option<Box<StoreReport>>,
    lost: bool,
}

/// A write that is under way, or waits to be repeated.
#[derive(Debug)]
struct Attempt {
    job: Arc<Job>,
    /// What the store has when it is done.
    tree: Tree,
    config: Arc<Config>,
    title: Option<Arc<str>>,
    bytes: usize,
    wanted: u64,
    failures: u32,
    under_way: bool,
}

impl Saver {
    pub(super) fn new() -> Self {
        Self {
            version: None,
            stored: None,
            config: None,
            title: None,
            state_is_due: false,
            attempt: None,
            unsaved: 0,
            was_behind: false,
            wanted: 0,
            safe: 0,
            report: None,
            lost: false,
        }
    }

    /// What it is for a conversation in the store.
    pub(super) fn at(
        version: Version,
        state: &StoredState,
        config: &Arc<Config>,
        title: Option<&Arc<str>>,
    ) -> Self {
        let same = persistable(config, title) == *state;
        let config = same.then(|| Arc::clone(config));
        Self { version: Some(version), config, title: title.cloned(), ..Self::new() }
    }

    /// The stable tree is about to change; it is this one still.
    pub(super) fn about_to_change(&mut self, stable: &Tree) {
        if self.stored.is_none() {
            self.stored = Some(Box::new(stable.clone()));
        }
    }

    /// The stable tree has changed, by so many bytes of messages.
    pub(super) fn tree_changed(&mut self, bytes: usize) {
        self.unsaved += bytes;
        self.wanted += 1;
    }

    /// Configuration or title may have changed: they are to be stored if what is persistable of them has.
    pub(super) fn state_changed(&mut self, config: &Arc<Config>, title: Option<&Arc<str>>) {
        let due = !self.has(config, title);
        if due != self.state_is_due || due && self.attempt.is_some() {
            self.wanted += 1;
        }
        self.state_is_due = due;
    }

    /// Whether the store has this state, or will when the write under way is done.
    fn has(&self, config: &Arc<Config>, title: Option<&Arc<str>>) -> bool {
        let (stored, stored_title) = match &self.attempt {
            Some(attempt) => (Some(&attempt.config), attempt.title.as_ref()),
            None => (self.config.as_ref(), self.title.as_ref()),
        };
        stored.is_some_and(|stored| same(stored, config)) && stored_title == title
    }

    /// The nodes of the stable tree that are not in the store.
    pub(super) fn unsaved(&self, stable: &Tree) -> Vec<NodeId> {
        let new = self.stored.as_ref().and_then(|stored| stable.changes_since(stored));
        new.into_iter().flat_map(|changes| changes.nodes).map(|node| node.id()).collect()
    }

    pub(super) fn report(&self) -> Option<&StoreReport> {
        self.report.as_deref()
    }
}

impl Core {
    /// Begins the next write, if there is something to write and no write is under way. One that waits to be repeated
    /// is repeated now.
    pub(in crate::session) fn save(&mut self, env: &Env<'_>, effects: &mut Effects) {
        self.tell_behind(env, effects);
        if self.saver.lost {
            return;
        }
        if let Some(attempt) = &mut self.saver.attempt {
            if !attempt.under_way {
                attempt.under_way = true;
                begin(&attempt.job, env, effects);
            }
            return;
        }
        let Some(job) = self.next_job(env) else {
            return;
        };
        let job = Arc::new(job);
        begin(&job, env, effects);
        let saver = &self.saver;
        self.saver.attempt = Some(Box::new(Attempt {
            // A conversation is created without nodes.
            tree: if saver.version.is_none() { Tree::new() } else { self.stable().clone() },
            bytes: if saver.version.is_none() { 0 } else { saver.unsaved },
            wanted: if saver.version.is_none() && saver.stored.is_some() { saver.safe } else { saver.wanted },
            config: Arc::clone(&self.config),
            title: self.title.clone(),
            job,
            failures: 0,
            under_way: true,
        }));
        self.saver.state_is_due = false;
    }

    /// Saves what is unsaved, for an end or a flush that has just begun. The waits between attempts start anew. A write under
    /// way has a share of the time left to answer.
    pub(in crate::session) fn hurry(&mut self, env: &Env<'_>, effects: &mut Effects) {
        let is_lost = self.saver.lost;
        if let Some(attempt) = self.saver.attempt.as_mut().filter(|_| !is_lost) {
            attempt.failures = 0;
            if attempt.under_way {
                effects.extend(silence(&attempt.job, env).map(Effect::RetryIn));
            }
        }
        self.save(env, effects);
    }

    /// The wait that was asked for is over. A failed write is repeated. A write that has not answered is begun once more if
    /// an end or a flush still waits for it.
    pub(in crate::session) fn retry(&mut self, env: &Env<'_>, effects: &mut Effects) {
        match &self.saver.attempt {
            Some(attempt) if attempt.under_way => {
                if env.left.is_some() && !self.saver.lost {
                    begin(&attempt.job, env, effects);
                }
            }
            _ => self.save(env, effects),
        }
    }

    fn next_job(&mut self, env: &Env<'_>) -> Option<Job> {
        let state = || persistable(&self.config, self.title.as_ref());
        let write = |version| Write::on(version).with_id((env.write_id)());
        let saver = &self.saver;
        let Some(version) = saver.version else {
            let due = saver.stored.is_some() || saver.state_is_due;
            return due.then(|| Job::Create((env.write_id)(), state()));
        };
        if let Some(stored) = &saver.stored {
            let changes =
                self.stable().changes_since(stored).expect("the tree grew from what is in the store");
            if !changes.is_empty() {
                let commit = Commit::from(changes);
                let commit = if saver.state_is_due { commit.with_state(state()) } else { commit };
                return Some(Job::Commit(write(version), commit));
            }
        }
        // There and back again: the store has it all.
        self.saver.stored = None;
        let saver = &self.saver;
        if !saver.state_is_due {
            self.saver.safe = self.saver.wanted;
            return None;
        }
        let only_title = saver.config.as_ref().is_some_and(|stored| same(stored, &self.config));
        let change = if only_title {
            StateChange::Title(self.title.as_deref().map(str::to_owned))
        } else {
            StateChange::whole(state())
        };
        Some(Job::State(write(version), change))
    }

    /// The conversation was created before anything else went on.
    pub(in crate::session) fn created(&mut self, version: Version) {
        self.saver.version = Some(version);
        self.saver.config = Some(Arc::clone(&self.config));
        self.saver.title.clone_from(&self.title);
    }

    /// What a conversation is created with.
    pub(in crate::session) fn state(&self) -> StoredState {
        persistable(&self.config, self.title.as_ref())
    }

    /// What became of the write under way.
    pub(in crate::session) fn written(
        &mut self,
        outcome: Result<Version, StoreError>,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        let Some(mut attempt) = self.saver.attempt.take() else {
            debug_assert!(false, "a write came back that nobody waits for");
            return;
        };
        let (what, through) = match &*attempt.job {
            Job::Commit(_, commit) => (SavedPart::Tree, commit.nodes.last().map(Node::id)),
            Job::Create(..) | Job::State(..) => (SavedPart::State, None),
        };
        match outcome {
            Ok(version) => {
                let saver = &mut self.saver;
                let creates = saver.version.replace(version).is_none();
                (saver.config, saver.title) = (Some(attempt.config), attempt.title);
                saver.unsaved -= attempt.bytes;
                saver.safe = saver.safe.max(attempt.wanted);
                if !creates {
                    saver.stored = Some(Box::new(attempt.tree));
                }
                // What a first save begins with is told when all of it is done. A failure stands as long.
                if !(creates && self.saver.stored.is_some()) {
                    // It may have been done before another took the conversation over: that stays the last word.
                    if !self.saver.lost {
                        self.saver.report = None;
                    }
                    let report = StoreReport::Saved { what, version, through };
                    effects.push(Effect::Emit(SessionEvent::Store(report)));
                }
                // It may have changed while that write was under way, or before one that failed was repeated.
                let due = !self.saver.has(&self.config, self.title.as_ref());
                self.saver.state_is_due = due;
                self.save(env, effects);
            }
            Err(error) if is_lost(&error, &attempt.job) => self.lost(&error, effects),
            // The loss is already reported; keep this write as unsaved.
            Err(_) if self.saver.lost => {
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
            }
            Err(error) => {
                let wait = wait(attempt.failures, env.left);
                attempt.failures += 1;
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
                let report = StoreReport::Failed { what, error: error_chain(&error), retry_in: wait };
                self.saver.report = Some(Box::new(report.clone()));
                effects.extend([Effect::Emit(SessionEvent::Store(report)), Effect::RetryIn(wait)]);
            }
        }
    }

    /// The conversation in the store is another's from now on: nothing more is saved.
    pub(in crate::session) fn lost(&mut self, error: &StoreError, effects: &mut Effects) {
        if std::mem::replace(&mut self.saver.lost, true) {
            return;
        }
        let report = StoreReport::Lost { error: error_chain(error) };
        self.saver.report = Some(Box::new(report.clone()));
        effects.push(Effect::Emit(SessionEvent::Store(report)));
    }

    /// Names what is unsaved now: see [`is_safe`](Self::is_safe).
    pub(in crate::session) fn wanted(&self) -> u64 {
        self.saver.wanted
    }

    /// Whether all that was unsaved when [`wanted`](Self::wanted) gave this number is in the store.
    pub(in crate::session) fn is_safe(&self, wanted: u64) -> bool {
        self.saver.safe >= wanted
    }

    /// Whether nothing more will be stored, since another writer took the conversation over: the session ends.
    pub(in crate::session) fn is_lost(&self) -> bool {
        self.saver.lost
    }

    fn tell_behind(&mut self, env: &Env<'_>, effects: &mut Effects) {
        let behind = self.saver.unsaved > env.unsaved_limit;
        if behind != self.saver.was_behind {
            self.saver.was_behind = behind;
            effects.push(Effect::Behind(behind));
        }
    }
}

/// Begins an attempt at a write.
fn begin(job: &Arc<Job>, env: &Env<'_>, effects: &mut Effects) {
    effects.push(Effect::Write(Arc::clone(job)));
    effects.extend(silence(job, env).map(Effect::RetryIn));
}

/// How long a write may be silent before it is begun once more.
fn silence(job: &Job, env: &Env<'_>) -> Option<Duration> {
    let share = if matches!(job, Job::Create(..)) { SILENT_CREATION_SHARE } else { SILENCE_SHARE };
    env.left.map(|left| (left / share).max(SHORTEST))
}

/// The wait before a failed write is repeated, after this number of earlier failures.
fn wait(failures: u32, left: Option<Duration>) -> Duration {
    let (first, longest) = RETRY;
    let wait = first.saturating_mul(1 << failures.min(16)).min(longest);
    left.map_or(wait, |left| wait.min((left / WAIT_SHARE).max(SHORTEST)))
}

/// Whether a failed write means that the conversation in the store is another's, or gone.
fn is_lost(error: &StoreError, job: &Job) -> bool {
    match error {
        StoreError::Conflict { .. }
        | StoreError::LeaseLost { .. }
        | StoreError::Owned { .. }
        | StoreError::AlreadyExists { .. } => true,
        StoreError::NotFound { .. } => !matches!(job, Job::Create(..)),
        _ => false,
    }
}

/// What of a configuration and a title is kept.
fn persistable(config: &Config, title: Option<&Arc<str>>) -> StoredState {
    let SavedConfig { model, system, options, max_steps, turn_timeout, .. } = config.saved();
    let mut state = StoredState::default().with_options(options);
    state.model = model;
    state.system = system.as_deref().map(str::to_owned);
    (state.max_steps, state.turn_timeout) = (max_steps, turn_timeout);
    state.title = title.map(|title| title.as_ref().to_owned());
    state
}

/// The configuration that a conversation was saved with.
pub(in crate::session) fn saved(state: &StoredState) -> SavedConfig {
    let mut saved = SavedConfig::default().with_options(state.options.clone());
    saved.model.clone_from(&state.model);
    saved.system = state.system.as_deref().map(Arc::from);
    (saved.max_steps, saved.turn_timeout) = (state.max_steps, state.turn_timeout);
    saved
}

/// Whether what is kept of both is the same.
fn same(a: &Arc<Config>, b: &Arc<Config>) -> bool {
    Arc::ptr_eq(a, b) || a.saves_as(b)
}

#[cfg(any(test, debug_assertions))]
impl Saver {
    pub(super) fn check(&self, stable: &Tree) -> Result<(), String> {
        let of_stored = self.stored.as_ref().map(|stored| stable.changes_since(stored));
        if let Some(None) = of_stored {
            return Err("the tree to be stored has not grown from the stored one".into());
        }
        if let (Some(attempt), Some(stored)) = (&self.attempt, &self.stored)
            && self.version.is_some()
            && attempt.tree.changes_since(stored).is_none()
        {
            return Err("the write under way does not build on what is stored".into());
        }
        if self.safe > self.wanted {
            return Err("more is safe than was wanted".into());
        }
        if self.safe < self.wanted && self.attempt.is_none() && !self.lost {
            return Err("something is unsaved, and nothing is done about it".into());
        }
        let nodes = self.stored.as_ref().map_or(0, |stored| stable.len() - stored.len());
        if (nodes == 0) != (self.unsaved == 0) {
            return Err(format!("{nodes} nodes are unsaved, with {} bytes", self.unsaved));
        }
        Ok(())
    }
}
