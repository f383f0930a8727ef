//! The rules of saving: which writes the session makes, what it reports about them, and what the store contains
//! afterwards.

mod stored;

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    Check, ensure,
    model::{Kind, Model},
    vault::{Books, Content, Title, Vault, content, same_but_title, title, untitled, with, write_id},
};
use crate::{
    message::Timestamp,
    session::{
        SavedPart, StoreReport,
        core::{SessionCore, WriteJob},
    },
    store::{Change, Labels, StateChange, StoreError, Stored, StoredState, TitleBy, Version, WriteId},
    tree::{Erased, Node, NodeId, Tree},
};

/// The contents that had to be stored, the writes for them, and their outcomes. This is not the usage ledger.
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(super) struct Ledger {
    /// The contents that had to be stored so far, in order of time. Each entry is a moment.
    moments: Vec<Content>,
    /// The conversation that is certainly in the store.
    pub(super) acked: Option<Stored>,
    /// The content of the conversation in `acked`, for comparison.
    pub(super) acked_content: Option<Content>,
    /// The write that is in flight or is waiting to be repeated.
    open: Option<Open>,
    /// The ids of all writes.
    ids: HashSet<WriteId>,
    /// Whether anything has happened that has to be stored. The initial state on its own does not have to be stored.
    touched: bool,
    pub(super) lost: bool,
    /// Whether a commit that was permanently rejected is now being written in parts.
    divided: bool,
    behind: bool,
    tickets: Vec<Ticket>,
    /// The wait that the core must request next.
    wait: Option<Duration>,
    /// The report that the core must emit about the outcome of the last write.
    due_report: Option<(SavedPart, Option<NodeId>, Result<Version, String>)>,
}

struct Open {
    job: Arc<WriteJob>,
    moment: usize,
    /// Whether the store contains the whole content of `moment` after this write.
    is_whole: bool,
    failures: u32,
    under_way: bool,
}

/// A caller that is waiting until everything up to a moment is saved.
struct Ticket {
    wanted: u64,
    moment: usize,
}

impl Ledger {
    pub(super) fn new(model: &Model, stored: Option<&Stored>) -> Check<Self> {
        let begun = (model.stable().clone(), model.state(), model.books.clone());
        let stored_content = stored.map(content).transpose()?;
        Ok(Self {
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
            due_report: None,
        })
    }

    /// Notes the content that has to be stored now. `touched` means that the input caused something that has to be
    /// stored.
    pub(super) fn note(&mut self, model: &Model, touched: bool) {
        let now = (model.stable().clone(), model.state(), model.books.clone());
        if self.moments.last() != Some(&now) {
            self.moments.push(now);
        }
        self.touched |= touched;
    }

    fn now(&self) -> &Content {
        self.moments.last().expect("the first moment is never removed")
    }

    /// Returns whether the configuration has to be stored.
    pub(super) fn owes_configuration(&self) -> bool {
        self.acked_content.as_ref().is_some_and(|acked| untitled(&acked.1) != untitled(&self.now().1))
    }

    /// Returns the write in flight.
    pub(super) fn under_way(&self) -> Option<&Arc<WriteJob>> {
        self.open.as_ref().filter(|open| open.under_way).map(|open| &open.job)
    }

    /// Returns the write that is waiting to be repeated.
    pub(super) fn waiting(&self) -> Option<&Arc<WriteJob>> {
        self.open.as_ref().filter(|open| !open.under_way && !self.lost).map(|open| &open.job)
    }

    /// Checks the start of a write.
    pub(super) fn begin(&mut self, job: Arc<WriteJob>, left: Option<Duration>) -> Check {
        ensure!(!self.lost, "{job:?} after the conversation is lost");
        self.wait = silence(&job, left);
        if let Some(open) = &mut self.open {
            let repeats = left.is_some() || !open.under_way;
            ensure!(repeats, "{job:?} while {:?} is in flight, and nobody waits", open.job);
            ensure!(Arc::ptr_eq(&open.job, &job), "{job:?} in place of {:?}, which failed", open.job);
            open.under_way = true;
            return Ok(());
        }
        ensure!(self.ids.insert(write_id(&job)), "{job:?} has the id of another write");
        self.check_job(&job)?;
        let moment = self.moments.len() - 1;
        let is_whole = match &self.acked {
            None => self.now().0.is_empty() && self.now().2 == Books::default(),
            Some(acked) => {
                let mut next = acked.clone();
                with(&mut next, &job);
                content(&next)? == *self.now()
            }
        };
        self.open = Some(Open { job, moment, is_whole, failures: 0, under_way: true });
        Ok(())
    }

    /// Checks that a new write contains everything that has to be stored, and nothing that is already stored.
    fn check_job(&self, job: &WriteJob) -> Check {
        let (tree, state, books) = self.now();
        let (Some(acked), Some((acked_tree, acked_state, acked_books))) = (&self.acked, &self.acked_content)
        else {
            let (_, Change::Create(created)) = job else {
                return Err(format!("{job:?} before the conversation is created"));
            };
            ensure!(**created == *state, "the conversation is created with {created:?}, not {state:?}");
            return Ok(());
        };
        match job {
            (_, Change::Create(_)) => return Err(format!("{job:?}, but the conversation exists")),
            (_, Change::Schedule(_)) => return Err(format!("{job:?}, but a session changes no schedules")),
            (write, Change::Erase(_)) => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                return Ok(());
            }
            (write, Change::Commit(commit))
                if self.divided
                    && commit.turn.is_none()
                    && commit.usage.as_ref().is_none_or(Vec::is_empty) =>
            {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                ensure!(commit.state.is_none(), "state in a part of a commit: {:?}", commit.state);
                let mut next = acked.clone();
                with(&mut next, job);
                let next = content(&next)?;
                ensure!(self.is_part(&next.0), "{commit:?} leaves the store between two turns");
                return Ok(());
            }
            (write, Change::Commit(commit)) => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                let changes = tree != acked_tree || books != acked_books || commit.turn.is_some();
                ensure!(changes, "{commit:?} changes nothing");
                let due = state != acked_state;
                if due && self.divided && commit.state.is_none() {
                    // While a commit is divided, the state follows in a separate write, so the stored state stays the
                    // same.
                    let mut next = acked.clone();
                    with(&mut next, job);
                    let (next_tree, _, next_books) = content(&next)?;
                    let is_rest = next_tree == *tree && next_books == *books;
                    ensure!(is_rest, "{commit:?} is not all that has to be stored before the state");
                    return Ok(());
                }
                ensure!(commit.state.is_some() == due, "state in a commit: {:?}, due: {due}", commit.state);
            }
            (write, Change::State(change)) => {
                ensure!(write.base == acked.version, "{write:?} does not build on {}", acked.version);
                // A state that was due before an erasure is written first. Then the stored tree still has the nodes to
                // erase.
                let is_erased = tree.nodes().all(|node| acked_tree.node(node.id()) == Some(node));
                ensure!(tree == acked_tree || is_erased, "the state is saved before the tree");
                let has_books = books == acked_books || is_erased && tree != acked_tree;
                ensure!(has_books, "the state is saved without the usage");
                ensure!(state != acked_state, "{change:?} changes nothing");
                let same = untitled(state) == untitled(acked_state);
                let fits = match change {
                    StateChange::Title { .. } => same && state.labels == acked_state.labels,
                    StateChange::Labels(_) => same && title(state) == title(acked_state),
                    StateChange::Whole(_) => {
                        !same || state.labels != acked_state.labels && title(state) != title(acked_state)
                    }
                };
                ensure!(fits, "{change:?} from {acked_state:?} to {state:?}");
            }
        }
        if matches!(job.1, Change::State(_)) && tree != acked_tree {
            return Ok(());
        }
        let mut next = acked.clone();
        with(&mut next, job);
        ensure!(content(&next)? == *self.now(), "{job:?} differs from what has to be stored");
        Ok(())
    }

    /// Returns whether a tree with this number of nodes and this head had to be stored at some moment. Its cursors may
    /// differ.
    fn is_part(&self, tree: &Tree) -> bool {
        self.moments.iter().any(|(once, ..)| (once.head(), once.len()) == (tree.head(), tree.len()))
    }

    /// Returns the maximum number of parts into which a commit is divided.
    pub(super) fn parts(&self) -> usize {
        if self.divided { self.moments.len() } else { 0 }
    }

    /// Returns the number of turns in the write in flight.
    fn turns(&self) -> usize {
        let Some((_, Change::Commit(commit))) = self.open.as_ref().map(|open| &*open.job) else { return 0 };
        let ends = self.moments.iter().filter_map(|(tree, ..)| Some(tree.nodes().last()?.id()));
        let ends = ends.filter(|id| commit.nodes.iter().any(|node| node.id() == *id));
        ends.collect::<HashSet<_>>().len()
    }

    /// Processes a permanent rejection of the write in flight. `divides` means that the session will write the commit
    /// in parts.
    pub(super) fn refused(&mut self, divides: bool) -> Check {
        let state = match self.under_way().map(|job| &**job) {
            Some((_, Change::Commit(commit))) => commit.state.is_some(),
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

    /// Processes a permanent rejection of a write with the end of a run. The session then writes the rest of the data
    /// with less of the end of the run, or without it.
    pub(super) fn end_refused(&mut self, model: &Model) {
        self.open = None;
        self.note(model, false);
    }

    /// Processes the loss of the conversation to another owner. The session notices this loss by its lease, not by the
    /// outcome of a write.
    pub(super) fn taken(&mut self, error: &StoreError) {
        self.lost = true;
        self.due_report = Some((SavedPart::State, None, Err(words(error))));
    }

    /// Returns whether the stored conversation differs only in its title, its labels or its usage ledger, as far as the
    /// session can know.
    pub(super) fn is_retitled(&self, stored: &Stored) -> Check<bool> {
        let (Some(acked), Some(known)) = (&self.acked, &self.acked_content) else {
            return Ok(false);
        };
        let writes = stored.version.get().saturating_sub(acked.version.get());
        let (Some(found), Some(known)) = (self.with_erasure(&content(stored)?), self.with_erasure(known))
        else {
            return Ok(false);
        };
        Ok(!self.lost && (1..=256).contains(&writes) && same_but_title(&found, &known))
    }

    /// Returns the usage ledger that the session knows to be stored.
    pub(super) fn acked_books(&self) -> Books {
        self.acked_content.as_ref().map(|content| content.2.clone()).unwrap_or_default()
    }

    /// Returns whether the store still has nodes that were erased.
    pub(super) fn owes_erasure(&self) -> bool {
        !self.owed().is_empty()
    }

    /// Returns the nodes that were erased and that the store still has.
    fn owed(&self) -> Vec<NodeId> {
        let (tree, ..) = self.now();
        let stored = self.acked_content.iter().flat_map(|(stored, ..)| stored.nodes().map(Node::id));
        stored.filter(|id| tree.node(*id).is_none()).collect()
    }

    /// Removes the erased nodes that the content still contains. If there are any, the content's head becomes the head
    /// after the erasure. Returns `None` if the nodes cannot be removed.
    fn with_erasure(&self, content: &Content) -> Option<Content> {
        let (mut content, owed) = (content.clone(), self.owed());
        let after = self.moments.iter().rev().map(|(tree, ..)| tree);
        let after = after.take_while(|tree| owed.iter().all(|id| tree.node(*id).is_none())).last();
        let nodes: Vec<_> = owed.iter().copied().filter(|id| content.0.node(*id).is_some()).collect();
        if !nodes.is_empty() {
            let (head, next) = (after.and_then(Tree::head), content.0.next_id());
            content.0.apply_erased(&Erased { nodes, head, next, title: true }).ok()?;
        }
        Some(content)
    }

    /// Returns the labels that the session knows to be stored.
    pub(super) fn acked_labels(&self) -> Labels {
        self.acked_content.as_ref().map(|content| content.1.labels.clone()).unwrap_or_default()
    }

    /// Returns the title that the session knows to be stored, after the erasures that the store still has to make.
    pub(super) fn acked_title(&self) -> Title {
        self.acked_content.as_ref().map_or_else(Title::default, |(tree, state, _)| self.title_of(tree, state))
    }

    /// Returns the title of a stored conversation. If the conversation still has nodes to erase, a derived title goes with
    /// them.
    pub(super) fn title_of(&self, tree: &Tree, state: &StoredState) -> Title {
        let owes = self.owed().iter().any(|id| tree.node(*id).is_some());
        title(state).filter(|(_, by)| !owes || *by == TitleBy::Person)
    }

    /// Processes a rejected write after which the session found a different title, different labels or a different
    /// usage ledger in the store. Returns whether nothing is left to be written.
    pub(super) fn retitled(&mut self, stored: &Stored, model: &Model) -> Check<bool> {
        self.open = None;
        self.note(model, false);
        self.acked_content = Some(content(stored)?);
        self.acked = Some(stored.clone());
        let is_done = self.is_done();
        if is_done {
            self.due_report = Some((SavedPart::State, None, Ok(stored.version)));
        }
        Ok(is_done)
    }

    /// Returns whether everything that has to be stored is known to be in the store.
    fn is_done(&self) -> bool {
        self.acked_content.as_ref() == Some(self.now())
    }

    /// Processes the outcome of a write. Returns the kind of event that the core must emit, or `Agent` if it must emit
    /// none.
    pub(super) fn comes_back(
        &mut self,
        outcome: &Result<Version, StoreError>,
        tree: &Tree,
        left: Option<Duration>,
    ) -> Check<Kind> {
        if self.lost && outcome.is_err() {
            // No event is expected, because the loss is already reported.
            let open = self.open.as_mut().ok_or("no write is in flight")?;
            open.under_way = false;
            return Ok(Kind::Agent);
        }
        let mut open = self.open.take().ok_or("no write is in flight")?;
        let (what, through) = match &*open.job {
            (_, Change::Commit(commit)) if commit.is_update(commit.head) => {
                (SavedPart::Tree, commit.nodes.last().map(Node::id))
            }
            (_, Change::Commit(_)) => (SavedPart::Record, None),
            (_, Change::Erase(_)) => (SavedPart::Tree, None),
            _ => (SavedPart::State, None),
        };
        self.due_report = Some((what, through, outcome.as_ref().copied().map_err(words)));
        match outcome {
            Ok(version) => {
                let acked = match (self.acked.take(), &*open.job) {
                    (None, (_, Change::Create(state))) => {
                        Stored::new(*version, Timestamp(0), (**state).clone())
                    }
                    (Some(mut acked), job) => {
                        with(&mut acked, job);
                        Stored { version: *version, ..acked }
                    }
                    (None, job) => return Err(format!("{job:?} before the conversation is created")),
                };
                self.acked_content = Some(content(&acked)?);
                self.acked = Some(acked);
                if matches!(open.job.1, Change::Create(_))
                    && (!tree.is_empty() || self.now().2 != Books::default())
                {
                    // No event is expected yet, because the commit for which the conversation was created follows now.
                    self.due_report = None;
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

    /// Checks that a report describes the outcome of the last write.
    pub(super) fn report(&mut self, report: &StoreReport) -> Check {
        let due = self.due_report.take().ok_or("a report without an outcome of a write")?;
        let fits = match report.clone() {
            StoreReport::Saved { what, version, through } => (what, through, Ok(version)) == due,
            StoreReport::Failed { what, error, retry_in } => {
                what == due.0 && Err(error) == due.2 && Some(retry_in) == self.wait
            }
            StoreReport::Lost { error } => self.lost && Err(error) == due.2,
        };
        ensure!(fits, "the report is {report:?}, expected {due:?}, wait {:?}", self.wait);
        Ok(())
    }

    /// Notes that a flush has started, with this much time until its deadline.
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
        ensure!(expected == Some(wait), "the wait is {wait:?}, not {expected:?}");
        Ok(())
    }

    pub(super) fn behind_changed(&mut self, behind: bool) -> Check {
        ensure!(self.behind != behind, "behind is reported as {behind} twice");
        self.behind = behind;
        Ok(())
    }

    pub(super) fn take_ticket(&mut self, wanted: u64) {
        if self.touched {
            self.tickets.push(Ticket { wanted, moment: self.moments.len() - 1 });
        }
    }

    /// Checks all rules after an input.
    pub(super) fn check(&mut self, core: &SessionCore, vault: &Vault, limit: usize) -> Check {
        ensure!(self.wait.is_none(), "a failed write is not repeated");
        ensure!(self.due_report.is_none(), "the outcome of a write is not reported");
        ensure!(core.is_lost() == self.lost, "lost: {}, not {}", core.is_lost(), self.lost);
        let saved = core.is_safe(core.wanted());
        let done = self.open.is_none() && !self.lost;
        self.divided &= !done;
        // If the conversation is lost, everything may still be saved: the write in flight at that time may have been
        // the last one needed.
        ensure!(
            saved == done || saved && self.lost,
            "everything is saved: {saved}, a write is open: {}",
            self.open.is_some()
        );
        if saved && self.touched {
            ensure!(
                self.acked_content.as_ref() == Some(self.now()),
                "the session reports unsaved changes as saved"
            );
        }
        let is_acked = |node: &&Node| {
            self.acked_content.as_ref().is_some_and(|(tree, ..)| tree.node(node.id()).is_some())
        };
        let nodes = || self.now().0.nodes();
        let missing: Vec<NodeId> = nodes().filter(|node| !is_acked(node)).map(Node::id).collect();
        ensure!(core.unsaved() == missing, "unsaved are {:?}, not {missing:?}", core.unsaved());
        let unsaved = nodes().filter(|node| !is_acked(node));
        let bytes: usize = unsaved.map(|node| 128 + node.message().weight()).sum();
        let bytes = bytes + core.record_weight();
        let is_right = self.lost || (bytes > limit) == self.behind;
        ensure!(is_right, "{bytes} bytes of {limit}, behind is {}", self.behind);
        if !vault.is_foreign {
            let stored = vault.stored.as_ref().map_or(&[][..], |stored| &stored.nodes);
            let there = nodes().filter(is_acked).all(|node| stored.contains(node));
            ensure!(there, "nodes that are reported as saved are not in the store");
            let version = |stored: &Stored| stored.version;
            let (stored, acked) = (vault.stored.as_ref().map(version), self.acked.as_ref().map(version));
            ensure!(stored >= acked, "version {acked:?} is reported as saved, the store has {stored:?}");
        }
        self.check_tickets(core, vault)
    }

    /// Checks that everything reported as saved would survive if the process died now.
    fn check_tickets(&mut self, core: &SessionCore, vault: &Vault) -> Check {
        let (safe, rest): (Vec<_>, _) =
            std::mem::take(&mut self.tickets).into_iter().partition(|ticket| core.is_safe(ticket.wanted));
        self.tickets = rest;
        if let Some(moment) = safe.iter().map(|ticket| ticket.moment).max()
            && !vault.is_foreign
        {
            let stored = self.moment_of(vault)?;
            ensure!(stored >= Some(moment), "moment {moment} is reported as saved, the store has {stored:?}");
        }
        Ok(())
    }

    /// Checks that no caller is still waiting for changes that the last write stored.
    pub(super) fn check_answered(&self, written: usize) -> Check {
        let late = self.tickets.iter().find(|ticket| ticket.moment <= written);
        ensure!(late.is_none(), "moment {written} is stored, but not reported as saved");
        Ok(())
    }

    /// Returns the moment of the write in flight, if the write stores all content of that moment.
    pub(super) fn brings(&self) -> Option<usize> {
        let open = self.open.as_ref()?;
        open.is_whole.then_some(open.moment)
    }
}

/// Returns the maximum time that a write may remain without a result, if a flush has the time `left` until its
/// deadline.
fn silence(job: &WriteJob, left: Option<Duration>) -> Option<Duration> {
    let share = if matches!(job.1, Change::Create(_)) { 2 } else { 4 };
    Some((left? / share).max(Duration::from_millis(50)))
}

/// Returns the text of an error and its cause. The errors in the simulation have at most one cause.
fn words(error: &StoreError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
