//! What must be true of saving: which writes are made, what is told of them, and what is in the store then.

mod stored;

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    Check, ensure,
    model::{Kind, Model},
    vault::{Content, Vault, content, same_but_title, with, write_id},
};
use crate::{
    message::Timestamp,
    session::{
        SavedPart, StoreReport,
        core::{Core, Job},
    },
    store::{StateChange, StoreError, Stored, StoredState, Version, WriteId},
    tree::{Node, NodeId, Tree},
};

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may be so")]
pub(super) struct Ledger {
    /// All that there was to be stored, at one time after another.
    moments: Vec<Content>,
    /// What the store has for certain.
    pub(super) acked: Option<Stored>,
    /// The same, to compare.
    pub(super) acked_content: Option<Content>,
    /// The write that is under way, or waits to be repeated.
    open: Option<Open>,
    /// Ids of all writes.
    ids: HashSet<WriteId>,
    /// Whether something happened that is to be stored: what a session begins with is not, by itself.
    touched: bool,
    /// It was loaded with another state than it was started with, which the core knows no more of: the next state is
    /// written, whatever it is.
    replaced: bool,
    pub(super) lost: bool,
    /// Set while a commit that the store has refused for good is written in parts.
    divided: bool,
    behind: bool,
    tickets: Vec<Ticket>,
    /// The wait that must be asked for.
    wait: Option<Duration>,
    /// What must be told of the write that came back.
    told: Option<(SavedPart, Option<NodeId>, Result<Version, String>)>,
}

struct Open {
    job: Arc<Job>,
    moment: usize,
    /// Whether the store has all of the moment when the write is done.
    is_whole: bool,
    failures: u32,
    under_way: bool,
}

/// Somebody wants to know when all of a moment is safe.
struct Ticket {
    wanted: u64,
    moment: usize,
}

impl Ledger {
    pub(super) fn new(model: &Model, stored: Option<&Stored>) -> Check<Self> {
        let begun = (model.stable().clone(), model.state());
        let stored_content = stored.map(content).transpose()?;
        Ok(Self {
            replaced: stored_content.as_ref().is_some_and(|stored| *stored != begun),
            moments: vec![begun],
            acked: stored.cloned(),
            acked_content: stored_content,
            open: None,
            ids: HashSet::new(),
            touched: false,
            lost: false,
            divided: false,
            behind: false,
            tickets: Vec::new(),
            wait: None,
            told: None,
        })
    }

    /// Notes what is to be stored now. `touched`: something happened that is to be stored.
    pub(super) fn note(&mut self, model: &Model, touched: bool) {
        let now = (model.stable().clone(), model.state());
        if self.moments.last() != Some(&now) {
            self.moments.push(now);
        }
        self.touched |= touched;
    }

    fn now(&self) -> &Content {
        self.moments.last().expect("there is a first")
    }

    /// The write that is under way.
    pub(super) fn under_way(&self) -> Option<&Arc<Job>> {
        self.open.as_ref().filter(|open| open.under_way).map(|open| &open.job)
    }

    /// The write that waits to be repeated.
    pub(super) fn waiting(&self) -> Option<&Arc<Job>> {
        self.open.as_ref().filter(|open| !open.under_way && !self.lost).map(|open| &open.job)
    }

    /// A write begins.
    pub(super) fn begin(&mut self, job: Arc<Job>, left: Option<Duration>) -> Check {
        ensure!(!self.lost, "{job:?} after the place is lost");
        self.wait = silence(&job, left);
        if let Some(open) = &mut self.open {
            let repeats = left.is_some() || !open.under_way;
            ensure!(repeats, "{job:?} while {:?} is under way, and nobody waits", open.job);
            ensure!(Arc::ptr_eq(&open.job, &job), "{job:?} in place of {:?}, which failed", open.job);
            open.under_way = true;
            return Ok(());
        }
        ensure!(self.ids.insert(write_id(&job)), "{job:?} has the id of another write");
        self.check_job(&job)?;
        let moment = self.moments.len() - 1;
        let is_whole = match &self.acked {
            None => self.now().0.is_empty(),
            Some(acked) => {
                let mut next = acked.clone();
                with(&mut next, &job);
                content(&next)? == *self.now() && !(self.divided && self.replaced)
            }
        };
        self.open = Some(Open { job, moment, is_whole, failures: 0, under_way: true });
        Ok(())
    }

    /// A new write brings all that there is to be stored, and nothing twice.
    fn check_job(&self, job: &Job) -> Check {
        let (tree, state) = self.now();
        let (Some(acked), Some((acked_tree, acked_state))) = (&self.acked, &self.acked_content) else {
            let Job::Create(_, created) = job else {
                return Err(format!("{job:?} before the conversation is created"));
            };
            ensure!(created == state, "it is created with {created:?}, not {state:?}");
            return Ok(());
        };
        match job {
            Job::Create(..) => return Err(format!("{job:?}, and it is there already")),
            Job::Commit(write, commit) if self.divided => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                ensure!(commit.state.is_none(), "state in a part of a commit: {:?}", commit.state);
                let mut next = acked.clone();
                with(&mut next, job);
                let next = content(&next)?;
                ensure!(self.is_part(&next.0), "{commit:?} leaves the store between two turns");
                return Ok(());
            }
            Job::Commit(write, commit) => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                ensure!(tree != acked_tree, "{commit:?} changes nothing");
                let due = state != acked_state || self.replaced;
                ensure!(commit.state.is_some() == due, "state in a commit: {:?}, due: {due}", commit.state);
            }
            Job::State(write, change) => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                ensure!(tree == acked_tree, "the state is saved before the tree");
                ensure!(state != acked_state || self.replaced, "{change:?} changes nothing");
                let untitled = |state: &StoredState| StoredState { title: None, ..state.clone() };
                let only_title = !self.replaced && untitled(state) == untitled(acked_state);
                let fits = matches!(change, StateChange::Title(_)) == only_title;
                ensure!(fits, "{change:?}, only the title is another: {only_title}");
            }
        }
        let mut next = acked.clone();
        with(&mut next, job);
        ensure!(content(&next)? == *self.now(), "{job:?} brings not what there is to be stored");
        Ok(())
    }

    /// Whether there once was a tree to be stored with these nodes, and this head. Its cursors may be others.
    fn is_part(&self, tree: &Tree) -> bool {
        self.moments.iter().any(|(once, _)| (once.head(), once.len()) == (tree.head(), tree.len()))
    }

    /// The most parts that a divided commit may be written in.
    pub(super) fn parts(&self) -> usize {
        if self.divided { self.moments.len() } else { 0 }
    }

    /// How many turns the write under way brings.
    fn turns(&self) -> usize {
        let (Some(open), Some((acked, _))) = (&self.open, &self.acked_content) else { return 0 };
        let Job::Commit(_, commit) = &*open.job else { return 0 };
        let sizes = acked.len() + 1..=acked.len() + commit.nodes.len();
        let sizes = self.moments.iter().map(|(tree, _)| tree.len()).filter(|size| sizes.contains(size));
        sizes.collect::<HashSet<_>>().len()
    }

    /// The store refuses the write under way for good. `divides`: the session writes it in parts.
    pub(super) fn refused(&mut self, divides: bool) -> Check {
        let state = match self.under_way().map(|job| &**job) {
            Some(Job::Commit(_, commit)) => commit.state.is_some(),
            _ => false,
        };
        let turns = self.turns();
        ensure!(divides || turns < 2 && !state, "{turns} turns are lost together, state: {state}");
        ensure!(!divides || turns > 0 || state, "{turns} turns are divided, state: {state}");
        if divides {
            self.divided = true;
            self.open = None;
        }
        Ok(())
    }

    /// Somebody has found that the conversation is another's, while no write told of it.
    pub(super) fn taken(&mut self, error: &StoreError) {
        self.lost = true;
        self.told = Some((SavedPart::State, None, Err(words(error))));
    }

    /// Whether nothing but the title is another in the store, as far as the session may know.
    pub(super) fn is_retitled(&self, stored: &Stored) -> Check<bool> {
        let (Some(acked), Some(known)) = (&self.acked, &self.acked_content) else {
            return Ok(false);
        };
        let writes = stored.version.get().saturating_sub(acked.version.get());
        Ok(!self.lost && (1..=256).contains(&writes) && same_but_title(&content(stored)?, known))
    }

    /// The title that the session knows to be stored.
    pub(super) fn acked_title(&self) -> Option<Arc<str>> {
        self.acked_content.as_ref()?.1.title.as_deref().map(Arc::from)
    }

    /// The session has found this in the store, with another title, when its write was refused.
    pub(super) fn retitled(&mut self, stored: &Stored, model: &Model) -> Check {
        self.open = None;
        self.note(model, false);
        self.acked_content = Some(content(stored)?);
        self.acked = Some(stored.clone());
        if self.is_done() {
            self.told = Some((SavedPart::State, None, Ok(stored.version)));
        }
        Ok(())
    }

    /// Whether all that there is to be stored is known to be in the store.
    pub(super) fn is_done(&self) -> bool {
        self.acked_content.as_ref() == Some(self.now()) && !self.replaced
    }

    /// A write comes back. Gives what must be told.
    pub(super) fn comes_back(
        &mut self,
        outcome: &Result<Version, StoreError>,
        tree: &Tree,
        left: Option<Duration>,
    ) -> Check<Kind> {
        if self.lost && outcome.is_err() {
            // The last word is said.
            let open = self.open.as_mut().ok_or("no write is under way")?;
            open.under_way = false;
            return Ok(Kind::Agent);
        }
        let mut open = self.open.take().ok_or("no write is under way")?;
        let (what, through) = match &*open.job {
            Job::Commit(_, commit) => (SavedPart::Tree, commit.nodes.last().map(Node::id)),
            _ => (SavedPart::State, None),
        };
        self.told = Some((what, through, outcome.as_ref().copied().map_err(words)));
        match outcome {
            Ok(version) => {
                // Any write takes the state along that is unknown, unless it is a part.
                self.replaced &= self.divided && matches!(*open.job, Job::Commit(..));
                let acked = match (self.acked.take(), &*open.job) {
                    (None, Job::Create(_, state)) => Stored::new(*version, Timestamp(0), state.clone()),
                    (Some(mut acked), job) => {
                        with(&mut acked, job);
                        Stored { version: *version, ..acked }
                    }
                    (None, job) => return Err(format!("{job:?} before the conversation is created")),
                };
                self.acked_content = Some(content(&acked)?);
                self.acked = Some(acked);
                if matches!(*open.job, Job::Create(..)) && !tree.is_empty() {
                    // What it was created for is yet to come.
                    self.told = None;
                    return Ok(Kind::Agent);
                }
                Ok(Kind::Saved)
            }
            Err(
                StoreError::Conflict { .. }
                | StoreError::LeaseLost { .. }
                | StoreError::AlreadyExists { .. }
                | StoreError::Unstorable { .. },
            ) => {
                self.lost = true;
                Ok(Kind::Lost)
            }
            Err(StoreError::NotFound { .. }) if self.acked.is_some() => {
                self.lost = true;
                Ok(Kind::Lost)
            }
            Err(_) => {
                let doubled = Duration::from_millis(500) * 2_u32.pow(open.failures.min(10));
                let share = left.map_or(doubled, |left| (left / 8).max(Duration::from_millis(50)));
                self.wait = Some(doubled.min(share).min(Duration::from_secs(30)));
                open.failures += 1;
                open.under_way = false;
                self.open = Some(open);
                Ok(Kind::Failed)
            }
        }
    }

    /// Subscribers are told what became of a write.
    pub(super) fn report(&mut self, report: &StoreReport) -> Check {
        let told = self.told.take().ok_or("a write is told of that did not come back")?;
        let fits = match report.clone() {
            StoreReport::Saved { what, version, through } => (what, through, Ok(version)) == told,
            StoreReport::Failed { what, error, retry_in } => {
                what == told.0 && Err(error) == told.2 && Some(retry_in) == self.wait
            }
            StoreReport::Lost { error } => self.lost && Err(error) == told.2,
        };
        ensure!(fits, "{report:?} of {told:?}, wait {:?}", self.wait);
        Ok(())
    }

    /// A flush begins, with this much time.
    pub(super) fn hurry(&mut self, left: Option<Duration>) {
        if let Some(open) = self.open.as_mut().filter(|_| !self.lost) {
            open.failures = 0;
            if open.under_way {
                self.wait = silence(&open.job, left);
            }
        }
    }

    pub(super) fn retry_in(&mut self, wait: Duration) -> Check {
        let expected = self.wait.take();
        ensure!(expected == Some(wait), "it waits for {wait:?}, not {expected:?}");
        Ok(())
    }

    pub(super) fn told_behind(&mut self, behind: bool) -> Check {
        ensure!(self.behind != behind, "behind is {behind} again");
        self.behind = behind;
        Ok(())
    }

    pub(super) fn take_ticket(&mut self, wanted: u64) {
        if self.touched {
            self.tickets.push(Ticket { wanted, moment: self.moments.len() - 1 });
        }
    }

    /// Checks everything after an input.
    pub(super) fn check(&mut self, core: &Core, vault: &Vault, limit: usize) -> Check {
        ensure!(self.wait.is_none(), "a failed write is not repeated");
        ensure!(self.told.is_none(), "nothing is told of a write that came back");
        ensure!(core.is_lost() == self.lost, "lost: {}, not {}", core.is_lost(), self.lost);
        let saved = core.is_safe(core.wanted());
        let done = self.open.is_none() && !self.lost;
        self.divided &= !done;
        // A write that was under way when the conversation was lost may have been the last that was needed.
        ensure!(
            saved == done || saved && self.lost,
            "all is safe: {saved}, a write is open: {}",
            self.open.is_some()
        );
        if saved && self.touched {
            ensure!(self.acked_content.as_ref() == Some(self.now()), "something is unsaved, and not written");
        }
        let acked = self.acked_content.as_ref().map_or(0, |(tree, _)| tree.len());
        let nodes = || self.now().0.nodes();
        let missing: Vec<NodeId> = nodes().skip(acked).map(Node::id).collect();
        ensure!(core.unsaved() == missing, "unsaved are {:?}, not {missing:?}", core.unsaved());
        let bytes: usize = nodes().skip(acked).map(|node| 128 + node.message().weight()).sum();
        ensure!((bytes > limit) == self.behind, "{bytes} bytes of {limit}, behind is {}", self.behind);
        if !vault.is_foreign {
            let stored = vault.stored.as_ref().map_or(&[][..], |stored| &stored.nodes);
            let there = nodes().take(acked).eq(stored.iter().take(acked));
            ensure!(there, "not all is in the store that is told to be");
            let version = |stored: &Stored| stored.version;
            let (stored, acked) = (vault.stored.as_ref().map(version), self.acked.as_ref().map(version));
            ensure!(stored >= acked, "version {acked:?} is told to be stored, {stored:?} is there");
        }
        self.check_tickets(core, vault)
    }

    /// What is told to be safe is in the store, should the process die now.
    fn check_tickets(&mut self, core: &Core, vault: &Vault) -> Check {
        let (safe, rest): (Vec<_>, _) =
            std::mem::take(&mut self.tickets).into_iter().partition(|ticket| core.is_safe(ticket.wanted));
        self.tickets = rest;
        if let Some(moment) = safe.iter().map(|ticket| ticket.moment).max()
            && !vault.is_foreign
        {
            let stored = self.moment_of(vault)?;
            ensure!(stored >= Some(moment), "moment {moment} is safe, and {stored:?} is stored");
        }
        Ok(())
    }

    /// Who waited for what the last write brought waits no longer.
    pub(super) fn check_answered(&self, written: usize) -> Check {
        let late = self.tickets.iter().find(|ticket| ticket.moment <= written);
        ensure!(late.is_none(), "moment {written} is stored, and not told to be safe");
        Ok(())
    }

    /// The moment that the write under way takes to the store, if it takes all of it.
    pub(super) fn brings(&self) -> Option<usize> {
        let open = self.open.as_ref()?;
        open.is_whole.then_some(open.moment)
    }
}

/// The time that a write may be silent during a flush with this much time left.
fn silence(job: &Job, left: Option<Duration>) -> Option<Duration> {
    let share = if matches!(job, Job::Create(..)) { 2 } else { 4 };
    Some((left? / share).max(Duration::from_millis(50)))
}

/// An error with its cause; none has two.
fn words(error: &StoreError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
