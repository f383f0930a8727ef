//! A suite of checks for implementations of [`Store`] (feature `test-util`).
//!
//! Implement [`StoreUnderTest`] for a type that holds a new store and whatever the tests need to simulate crashes,
//! damage and time. An `Arc` of a store already implements [`StoreUnderTest`], but without these abilities. Then call
//! [`check`] in a test. It runs each check on a new store and panics if a check fails. Otherwise it returns a
//! [`ConformanceReport`] with the checks that passed, and the checks that were skipped because the test lacks an
//! ability.
//!
//! ```
//! use std::sync::Arc;
//!
//! use omni_agent::store::{MemoryStore, custom::conformance};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let report = conformance::check(async || Arc::new(MemoryStore::new())).await;
//! assert!(report.passed.contains(&"commit_on_an_old_version_conflicts"));
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod contents;
mod damage;
mod erasure;
mod files;
mod labels;
mod lists;
mod names;
mod ownership;
mod records;
mod schedules;
mod searches;
mod states;
mod turns;
mod usage;
mod writes;

use std::sync::Arc;

#[cfg(test)]
pub(in crate::store) use searches::cases;

use async_trait::async_trait;

use super::{Change, Commit, StoredState, Version, Write};
use crate::{
    conformance::{ConformanceReport, PassedOrSkipped, checks, run},
    message::Message,
    store::{ConversationId, Store},
    tree::{Node, NodeId},
};

/// A new, empty store, with the operations that only its own tests can perform.
#[async_trait]
pub trait StoreUnderTest: Send + Sync + 'static {
    /// Returns the store.
    fn store(&self) -> Arc<dyn Store>;

    /// Returns a second handle to the same conversations, such as another process would have. By default, the suite
    /// uses the same handle twice.
    async fn another(&self) -> Arc<dyn Store> {
        self.store()
    }

    /// Changes the stored data as if a crash had interrupted the last write to the conversation, which is a commit.
    /// Returns `false` if the store cannot be left in such a state by a crash.
    async fn tear(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }

    /// Damages the stored content of any write except the last one, so that it can't be read. Returns `false` if this
    /// is impossible.
    async fn damage(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }

    /// Ends the lease on the conversation now, as if the lease had expired. Returns `false` if this is impossible.
    async fn run_out(&self, id: &ConversationId) -> bool {
        let _ = id;
        false
    }
}

/// Runs the suite without the checks that need more than a store.
impl<S: Store> StoreUnderTest for Arc<S> {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self) as Arc<dyn Store>
    }
}

checks! {
    dyn StoreUnderTest;
    names: unusual_ids_do_not_collide, unsafe_ids_are_rejected;
    writes: create_with_an_existing_id_is_rejected, create_by_many_at_the_same_time_succeeds_once, create_repeated_returns_the_first_result,
        writes_to_a_missing_conversation_are_rejected, commit_returns_the_next_version, commit_on_an_old_version_conflicts,
        commit_beyond_the_current_version_conflicts, commit_repeated_returns_the_first_result, write_repeated_after_others_returns_the_first_result,
        concurrent_writes_form_one_sequence, write_with_a_dropped_future_is_all_or_nothing, delete_repeated_succeeds,
        create_after_delete_starts_empty;
    states: state_change_replaces_the_whole_state, title_change_keeps_the_rest_of_the_state, commit_with_state_writes_both, secrets_are_not_stored;
    contents: commits_are_loaded_in_order, cursors_keep_their_latest_values, text_of_any_kind_is_preserved, json_of_any_kind_is_preserved,
        large_messages_are_preserved, ten_thousand_nodes_are_preserved;
    files: large_attachments_are_preserved, attachment_of_a_repeated_commit_is_preserved,
        erase_keeps_an_attachment_of_another_message, attachments_of_a_turn_in_flight_are_preserved;
    lists: list_puts_the_last_write_first, list_in_pages_contains_each_once, list_after_a_conversation_continues_there,
        list_after_a_conversation_during_writes_contains_each_unchanged_once,
        list_during_writes_contains_each_unchanged,
        summary_equals_the_list_entry;
    labels: labels_are_kept_by_every_other_write, label_change_replaces_all_labels, list_by_labels_contains_exactly_the_matches,
        commit_without_an_update_keeps_the_time;
    searches: search_finds_words_in_titles_and_texts, search_after_a_removal_finds_nothing, search_splits_the_words_of_every_script,
        invalid_queries_are_rejected;
    usage: usage_rows_are_returned_newest_first, commit_without_usage_rows_adds_a_row_per_node_with_usage,
           usage_of_any_size_is_added_up_and_deleted,
        used_adds_up_the_matching_rows_by_model, used_by_a_deleted_sub_agent_keeps_the_label_of_its_root,
        last_run_is_returned_until_the_next_turn;
    erasure: erase_removes_nodes_and_their_cursors, erase_of_everything_leaves_an_empty_conversation,
        erase_keeps_the_ledger_and_removes_the_last_run, erase_keeps_the_outcomes_of_prompts,
        erase_removes_a_derived_title_and_keeps_a_persons, erase_requires_a_valid_lease;
    turns: turn_in_flight_is_the_sum_of_its_records, record_keeps_the_time_of_the_last_write,
        turn_ends_with_its_run_with_nodes_or_with_a_move, record_on_another_head_begins_the_turn_again,
        turn_stays_when_the_state_changes,
        approvals_keep_their_age_and_expire, clock_is_that_of_the_records, turns_are_listed_by_age_and_labels, turns_of_an_owner_are_not_left,
        mark_is_returned_until_the_next_write, turn_is_removed_by_erase_and_delete;
    records: records_of_any_content_are_summed_up;
    schedules: schedules_are_listed_by_time_and_labels, schedule_moves_only_from_its_stored_time,
        schedules_of_a_turn_that_waits_are_not_due, schedules_are_deleted_with_their_conversation;
    damage: torn_write_is_dropped_completely, damage_is_reported_with_its_place;
    ownership: lease_excludes_other_owners, expired_lease_can_be_acquired_by_another, renew_returns_the_lost_leases,
        lease_of_a_deleted_conversation_is_invalid_for_a_later_one, delete_under_a_lease_requires_a_valid_lease,
        write_after_a_release_is_rejected, write_during_an_acquisition_precedes_it_or_is_rejected,
        renewal_during_an_acquisition_leaves_one_owner;
}

/// Runs the suite. `make` returns a new, empty store for each check.
///
/// # Panics
///
/// Panics after all checks if at least one of them failed. The message lists the failed checks, each of which has
/// already panicked with its own message.
///
/// # Cancel safety
///
/// If the future is dropped, the content that was already stored remains.
pub async fn check<S: StoreUnderTest>(make: impl AsyncFnMut() -> S) -> ConformanceReport {
    run(CHECKS, make, |under_test| under_test).await
}

fn node_id(number: u64) -> NodeId {
    NodeId::new(number).expect("nodes are counted from 1")
}

fn conversation(id: &str) -> ConversationId {
    ConversationId::new(id).expect("the suite's own ids are valid")
}

/// Returns a path of messages with the ids from `first` to `last`. The parent of each node has the preceding id.
fn path(first: u64, last: u64) -> impl Iterator<Item = Node> {
    (first..=last).map(|number| {
        let text = format!("message {number}");
        let message = if number % 2 == 1 { Message::user(text) } else { Message::assistant(text) };
        Node::new(node_id(number), NodeId::new(number - 1), message)
    })
}

/// Returns a commit that adds the path from `first` to `last`.
fn turn(first: u64, last: u64) -> Commit {
    Commit::new(Some(node_id(last))).with_nodes(path(first, last))
}

/// Creates an empty conversation.
async fn created(store: &dyn Store, id: &ConversationId) -> Version {
    let created = store.write(id, &Write::first(), &Change::create(StoredState::default())).await;
    created.expect("a new conversation can be created")
}

/// Makes a commit that must succeed.
async fn committed(store: &dyn Store, id: &ConversationId, base: Version, commit: &Commit) -> Version {
    store
        .write(id, &Write::on(base), &Change::Commit(commit.clone()))
        .await
        .expect("a commit on the current version succeeds")
}
