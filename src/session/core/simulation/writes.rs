//! The outcomes of the write in flight and of abandoned writes, and the writes of other writers.

use std::sync::Arc;

use super::{
    Check, ensure,
    model::Kind,
    vault::{self, Vault},
    world::World,
};
use crate::{
    session::{
        SessionEvent, StoreReport,
        core::{ConversationAfterConflict, SessionEffect, StoredTurnFingerprint, WriteJob},
    },
    store::{Change, StoreError, TitleBy, TurnChange},
};

impl World {
    /// Delivers the outcome of the write in flight. If `friendly` is set, the store itself does not fail, but the write
    /// may conflict with another writer.
    pub(super) fn comes_back(&mut self, friendly: bool) -> Check {
        let job = self.ledger.under_way().cloned().ok_or("no write is in flight")?;
        let fails = !friendly && self.rng.percent(self.trouble);
        let outcome = match self.rng.below(4) {
            _ if !fails => self.vault.write(&job),
            0 => {
                // The write succeeds in the store, but the session gets no reply.
                let _ = self.vault.write(&job);
                Err(self.random_failure(&job))
            }
            1 | 2 => {
                // The write takes too long. The store may perform it later, or never.
                if self.rng.percent(70) {
                    self.ghosts.push((Arc::clone(&job), true));
                }
                Err(self.random_failure(&job))
            }
            _ if self.rng.percent(self.foes) && self.ledger.acked.is_some() => {
                self.vault.meddle();
                Err(StoreError::LeaseLost { id: vault::id() })
            }
            _ => Err(self.random_failure(&job)),
        };
        let outcome = match outcome {
            Err(StoreError::Unstorable { .. }) if self.vault.has_written(&job) => {
                Err(StoreError::failed("writing", std::io::Error::other("the cause")))
            }
            outcome => outcome,
        };
        if matches!(outcome, Err(StoreError::Unstorable { .. })) {
            // The store rejects this write permanently, so no other attempt at it may succeed later.
            self.ghosts.retain(|(ghost, _)| vault::write_id(ghost) != vault::write_id(&job));
        }
        self.note(|| format!("outcome of write {}: {outcome:?}", vault::write_id(&job)));
        self.ledger.check_stored(&self.vault)?;
        let place = matches!(outcome, Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. }));
        let has_others = self.vault.is_foreign || self.vault.is_retitled;
        ensure!(!place || has_others, "the session conflicts with itself: {outcome:?}");
        if let Err(error @ StoreError::Conflict { .. }) = &outcome {
            return self.conflicted(error);
        }
        let brings = self.ledger.brings().filter(|_| outcome.is_ok());
        if matches!(outcome, Err(StoreError::Unstorable { .. })) && !self.ledger.lost {
            if let (_, Change::Commit(commit)) = &*job
                && let Some(TurnChange::End(end)) = commit.turn.as_deref()
            {
                if self.model.books.last_run.as_ref() == Some(end) {
                    // The end is stored without the messages of prompts. If it has none, it is dropped.
                    let has_turn = !commit.nodes.is_empty();
                    let stored = self.ledger.acked_books().last_run.filter(|_| !has_turn);
                    self.model.books.last_run = end.without_messages().or(stored);
                }
                self.ledger.end_refused(&self.model);
                return self.input(vec![], |core, env, effects| core.written(outcome, env, effects));
            }
            let divides = self.core.divides();
            self.ledger.refused(divides)?;
            if divides {
                return self.input(vec![], |core, env, effects| core.written(outcome, env, effects));
            }
        }
        let kinds = match self.ledger.comes_back(&outcome, self.model.stable(), self.left)? {
            Kind::Agent => vec![],
            kind => vec![kind],
        };
        let loses = kinds == [Kind::Lost];
        let effects = self.feed(kinds, |core, env, effects| core.written(outcome, env, effects))?;
        let is_loss = |effect: &&SessionEffect| {
            matches!(effect, SessionEffect::Emit(SessionEvent::Store(StoreReport::Lost { .. })))
        };
        let lost = effects.iter().filter(is_loss).count();
        ensure!(lost == usize::from(loses), "{lost} reports of a loss, expected: {loses}");
        brings.map_or(Ok(()), |moment| self.ledger.check_answered(moment))
    }

    /// Reports that the write in flight has failed with a conflict, and passes on the conversation as the other writer
    /// left it.
    fn conflicted(&mut self, error: &StoreError) -> Check {
        let stored = self.vault.stored.clone().ok_or("a conflict without a stored conversation")?;
        let (tree, state, books) = vault::content(&stored)?;
        let flight = StoredTurnFingerprint::of_stored(stored.turn.as_deref(), stored.head);
        let found = ConversationAfterConflict { version: stored.version, tree, state, flight };
        let kinds = if self.ledger.is_retitled(&stored)? {
            // From here on, the session knows all stored content.
            self.vault.is_foreign = false;
            let title = self.ledger.title_of(&found.tree, &found.state);
            let known_title = self.ledger.acked_title();
            let known_labels = self.ledger.acked_labels();
            // A later turn or an erasure removes the stored end of the last run.
            let removes_end = self.ledger.owes_erasure() || !self.core.unsaved().is_empty();
            // The other writer may have added rows. The session's unsaved rows follow them.
            let known = self.ledger.acked_books();
            let unsaved = self.model.books.used.requests - known.used.requests;
            let saved = self.model.rows.len().saturating_sub(usize::try_from(unsaved).unwrap_or(usize::MAX));
            let unsaved = self.model.rows.split_off(saved);
            self.model.rows = self.vault.rows.iter().cloned().chain(unsaved).collect();
            self.model.take_books(&known, books, removes_end);
            let takes = self.model.take_title(&known_title, title);
            let takes_labels = self.model.take_labels(&known_labels, found.state.labels.clone());
            let is_done = self.ledger.retitled(&stored, &self.model)?;
            takes.into_iter().chain(takes_labels).chain(is_done.then_some(Kind::Saved)).collect()
        } else {
            ensure!(self.vault.is_foreign, "a loss, although only the title was changed");
            match self.ledger.comes_back(&Err(error.clone()), self.model.stable(), self.left)? {
                Kind::Agent => vec![],
                kind => vec![kind],
            }
        };
        self.input(kinds, |core, env, effects| core.conflicted(error, found, env, effects))
    }

    /// Simulates that another owner acquires the conversation, and that a renewal of the lease reports this. The write
    /// in flight may already have succeeded by then, although its reply has not arrived.
    pub(super) fn taken(&mut self) -> Check {
        if let Some(job) = self.ledger.under_way().cloned()
            && self.rng.percent(50)
        {
            let outcome = self.vault.write(&job);
            self.note(|| format!("write {} is done: {outcome:?}", vault::write_id(&job)));
        }
        self.note(|| "another owner takes the conversation".to_owned());
        self.vault.meddle();
        let error = StoreError::LeaseLost { id: vault::id() };
        self.ledger.taken(&error);
        self.input(vec![Kind::Lost], |core, _, effects| core.lost(&error, effects))
    }

    /// Returns a random failure of a write. After most of these failures, the session must repeat the write.
    fn random_failure(&mut self, job: &WriteJob) -> StoreError {
        let place = || "the place".to_owned();
        let cause = || std::io::Error::other("the cause");
        match self.rng.below(6) {
            0 => StoreError::Full { place: place(), source: Arc::new(cause()) },
            1 => StoreError::Unreachable { place: place(), source: Arc::new(cause()) },
            2 => StoreError::damaged(place(), "the data is damaged"),
            3 if matches!(job.1, Change::Create(_)) => StoreError::NotFound { id: vault::id() },
            4 if self.rng.percent(20) => {
                StoreError::Unstorable { id: vault::id(), problem: "a number".to_owned() }
            }
            _ => StoreError::failed("writing", cause()),
        }
    }

    /// Simulates that an abandoned write reaches the store after all.
    pub(super) fn ghost(&mut self) -> Check {
        let place = self.rng.below(self.ghosts.len());
        let (job, own) = self.ghosts.swap_remove(place);
        let version = |vault: &Vault| vault.stored.as_ref().map(|stored| stored.version);
        let before = version(&self.vault);
        let outcome = self.vault.write(&job);
        self.note(|| format!("write {} arrives late: {outcome:?}", vault::write_id(&job)));
        if !own && version(&self.vault) != before {
            // This write was made by a process that has died. For the current process, that process is another writer.
            self.vault.is_foreign = true;
        }
        self.ledger.check_stored(&self.vault)?;
        self.check()
    }

    /// Acts as another writer that writes to the conversation or deletes it.
    pub(super) fn interfere(&mut self) {
        if self.vault.stored.is_some() && self.rng.percent(60) {
            let title = self.rng.pick(&[None, Some("theirs"), Some("one")]);
            self.note(|| format!("another writer sets the title {title:?}"));
            if self.rng.percent(50) {
                let by = self.rng.pick(&[TitleBy::Derived, TitleBy::Person]);
                self.vault.retitle(title, title.map_or(TitleBy::Derived, |_| by));
            } else {
                let labels = super::start::random_labels(&mut self.rng);
                self.vault.relabel(labels);
            }
        } else if self.rng.percent(60) {
            self.note(|| "another writer writes".to_owned());
            self.vault.meddle();
        } else {
            self.note(|| "another writer deletes the conversation".to_owned());
            // The session must notice the deletion only if it has seen a successful write.
            self.vault.is_foreign |= self.ledger.acked.is_some();
            self.vault.delete();
        }
    }

    /// Kills the process and continues in another process.
    pub(super) fn die_and_load(&mut self) -> Check {
        self.note(|| "the process dies".to_owned());
        for ghost in &mut self.ghosts {
            ghost.1 = false;
        }
        if let Some(job) = self.ledger.under_way()
            && self.rng.percent(50)
        {
            self.ghosts.push((Arc::clone(job), false));
        }
        self.load()
    }
}
