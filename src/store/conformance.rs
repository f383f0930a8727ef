//! The suite that every store has to pass (feature `test-util`).
//!
//! [`check`] runs it on subjects that the store's own test makes. Each check gets a fresh one.
//!
//! ```
//! use omni_agent::store::{MemoryStore, conformance};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let report = conformance::check(async || conformance::Plain::new(MemoryStore::new())).await;
//! assert!(report.passed.contains(&"commit_on_an_old_version_conflicts"));
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod contents;
mod damage;
mod lists;
mod names;
mod ownership;
mod states;
mod writes;

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_util::FutureExt;

use super::{Commit, ConversationId, Store, StoredState, Version, Write, WriteId};
use crate::{
    message::Message,
    tree::{Node, NodeId},
};

/// A store with nothing in it, and what only its own test can do to it.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Another handle on the same conversations, as another process would have it. Without one, the suite
    /// uses the same handle twice.
    async fn another(&self) -> Arc<dyn Store> {
        self.store()
    }

    /// Leaves the last write to the conversation, a commit, as a crash in the middle of it would. `false` if no crash
    /// can.
    async fn tear(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }

    /// Damages what is stored of a write before the last, such that it can't be read. `false` if there is no
    /// getting at it.
    async fn damage(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }

    /// Makes the lease on the conversation run out now, as time would. `false` if there is no getting at it.
    async fn run_out(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }
}

/// A subject of which nothing is known but the store.
#[derive(Clone)]
pub struct Plain(Arc<dyn Store>);

impl Plain {
    /// The subject of this store.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

impl Subject for Plain {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }
}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}

/// What came of a run of the suite in which no check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The checks that passed.
    pub passed: Vec<&'static str>,
    /// The checks that need what the subject, or the store, does not have.
    pub skipped: Vec<&'static str>,
}

/// Whether a check was made.
enum CheckOutcome {
    Made,
    Skipped,
}

type Check = for<'a> fn(&'a dyn Subject) -> Pin<Box<dyn Future<Output = CheckOutcome> + 'a>>;

macro_rules! checks {
    ($($module:ident: $($name:ident),+;)+) => {
        const CHECKS: &[(&str, Check)] = &[$($((stringify!($name), |subject| Box::pin($module::$name(subject))),)+)+];
    };
}

checks! {
    names: strange_ids_are_kept_apart, ids_that_attack_are_refused;
    writes: create_of_a_taken_id_is_refused, create_by_many_at_once_succeeds_for_one, create_repeated_gives_the_first_result,
        writes_to_what_is_not_there_are_refused, commit_gives_the_next_version, commit_on_an_old_version_conflicts,
        commit_beyond_the_current_version_conflicts, commit_repeated_gives_the_first_result, write_repeated_after_others_gives_the_first_result,
        writers_at_once_form_one_line, write_whose_future_was_dropped_is_whole, delete_repeated_is_no_error,
        create_after_delete_starts_anew;
    states: state_alone_is_replaced_whole, title_alone_leaves_the_rest, commit_with_state_writes_both, secrets_are_not_stored;
    contents: commits_come_back_in_order, cursors_keep_their_latest_values, text_of_any_kind_comes_back, json_of_any_kind_comes_back,
        large_messages_come_back, ten_thousand_nodes_come_back;
    lists: list_puts_the_last_write_first, list_in_pages_gives_each_once, list_after_a_conversation_continues_there,
        list_after_a_conversation_while_others_write_gives_each_left_alone_once,
        list_while_others_write_misses_none_left_alone,
        summary_is_what_the_list_says;
    damage: torn_write_is_dropped_whole, damage_is_told_with_its_place;
    ownership: lease_keeps_others_out, lease_that_ran_out_can_be_taken_over, renew_all_names_the_leases_that_are_lost,
        lease_of_a_deleted_conversation_is_none_of_a_later_one, delete_under_a_lease_takes_one_that_holds,
        write_after_a_release_is_refused, write_beside_a_take_over_comes_before_it_or_is_refused,
        renewal_beside_a_take_over_leaves_one_owner;
}

/// Runs the suite; `make` gives a new subject for each check.
///
/// # Panics
///
/// When all checks were made and at least one failed. The message names those, and each has panicked with its own
/// message before.
///
/// # Cancel safety
///
/// What subjects stored so far stays.
pub async fn check<S: Subject>(mut make: impl AsyncFnMut() -> S) -> Report {
    let mut report = Report { passed: Vec::new(), skipped: Vec::new() };
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let subject = make().await;
        match AssertUnwindSafe(check(&subject)).catch_unwind().await {
            Ok(CheckOutcome::Made) => report.passed.push(*name),
            Ok(CheckOutcome::Skipped) => report.skipped.push(*name),
            Err(_) => failed.push(*name),
        }
    }
    assert!(failed.is_empty(), "{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join(", "));
    report
}

fn node_id(number: u64) -> NodeId {
    NodeId::new(number).expect("nodes are counted from 1")
}

fn conversation(id: &str) -> ConversationId {
    ConversationId::new(id).expect("the suite's own ids are valid")
}

/// A path of messages with the ids from `first` to `last`, under the node before.
fn path(first: u64, last: u64) -> impl Iterator<Item = Node> {
    (first..=last).map(|number| {
        let text = format!("message {number}");
        let message = if number % 2 == 1 { Message::user(text) } else { Message::assistant(text) };
        Node::new(node_id(number), NodeId::new(number - 1), message)
    })
}

/// A commit of such a path.
fn turn(first: u64, last: u64) -> Commit {
    Commit::new(Some(node_id(last))).with_nodes(path(first, last))
}

/// Creates a conversation with nothing in it.
async fn created(store: &dyn Store, id: &ConversationId) -> Version {
    let created = store.create(id, WriteId::generate(), &StoredState::default()).await;
    created.expect("a new conversation can be created")
}

/// Makes a commit that has to succeed.
async fn committed(store: &dyn Store, id: &ConversationId, base: Version, commit: &Commit) -> Version {
    store.commit(id, &Write::on(base), commit).await.expect("a commit on the current version succeeds")
}
