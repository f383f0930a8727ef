//! A store of one's own, checked by the suite that every store has to pass, and a session on it.
//!
//! ```sh
//! cargo run --example custom_store   # the suite comes with the feature `test-util`
//! ```
//!
//! [`Tables`] keeps two tables, as a database would: one with a row for each conversation, one with a row for each
//! write. Maps behind a lock stand in for them; where it is locked, a database would have a transaction.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this talks to the terminal")]

#[path = "support/support.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::HashMap,
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::Agent,
    message::Timestamp,
    session::Session,
    store::{
        Commit, ConversationId, Page, StateChange, Store, StoreError, Stored, StoredState, Summary, Version,
        Write, WriteId,
        conformance::{self, Plain},
    },
};
use support::explain;

#[derive(Clone, Default)]
struct Tables(Arc<Mutex<HashMap<ConversationId, Conversation>>>);

struct Conversation {
    /// The row of the conversation: version, times and state. Its nodes are in the writes.
    row: Stored,
    writes: Vec<Row>,
}

/// The row of a write.
struct Row {
    /// What the write led to: with the conversation's id, the key.
    version: Version,
    write: WriteId,
    /// What was committed, as JSON.
    commit: Option<String>,
}

impl Tables {
    // Nothing under the lock panics halfway through a change.
    fn begin(&self) -> MutexGuard<'_, HashMap<ConversationId, Conversation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: Option<String>,
        change_state: impl FnOnce(&mut Stored),
    ) -> Result<Version, StoreError> {
        let mut conversations = self.begin();
        let Conversation { row, writes } = conversations.get_mut(id).ok_or_else(|| not_found(id))?;
        let version = write.base.next();
        if write.base != row.version {
            // Either this very write is there already and its answer got lost, or another writer was faster.
            return match writes.iter().rfind(|row| row.version == version) {
                Some(row) if row.write == write.id => Ok(version),
                _ => Err(StoreError::Conflict { id: id.clone(), current: row.version }),
            };
        }
        change_state(row);
        row.version = version;
        row.updated = row.updated.max(Timestamp::now());
        writes.push(Row { version, write: write.id, commit });
        Ok(version)
    }
}

#[async_trait]
impl Store for Tables {
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let mut conversations = self.begin();
        if let Some(Conversation { writes, .. }) = conversations.get(id) {
            return match writes.first() {
                Some(first) if first.write == write => Ok(first.version),
                _ => Err(StoreError::AlreadyExists { id: id.clone() }),
            };
        }
        let version = Version::first();
        let row = Stored::new(version, Timestamp::now(), state.clone());
        let writes = vec![Row { version, write, commit: None }];
        conversations.insert(id.clone(), Conversation { row, writes });
        Ok(version)
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        let json = serde_json::to_string(commit).map_err(|error| StoreError::failed("encoding", error))?;
        self.write(id, write, Some(json), |row| {
            if let Some(state) = &commit.state {
                row.change_state(StateChange::Whole(state.clone()));
            }
        })
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        self.write(id, write, None, |row| row.change_state(change.clone()))
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let conversations = self.begin();
        let Conversation { row, writes } = conversations.get(id).ok_or_else(|| not_found(id))?;
        let mut stored = row.clone();
        for Row { version, commit, .. } in writes {
            let Some(json) = commit else { continue };
            let place = || format!("version {version} of {id}");
            stored.commit(
                serde_json::from_str(json)
                    .map_err(|error| StoreError::damaged(place(), error.to_string()))?,
            );
        }
        // Not that of the last commit: it may have changed since.
        stored.state = row.state.clone();
        Ok(stored)
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.begin().get(id).map(|conversation| summary(id, &conversation.row)).ok_or_else(|| not_found(id))
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        let mut all: Vec<Summary> = self.begin().iter().map(|(id, each)| summary(id, &each.row)).collect();
        all.sort_by_key(|summary| (Reverse(summary.updated), summary.id.clone()));
        Ok(all.into_iter().skip(page.offset).take(page.limit).collect())
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        self.begin().remove(id);
        Ok(())
    }
}

fn not_found(id: &ConversationId) -> StoreError {
    StoreError::NotFound { id: id.clone() }
}

fn summary(id: &ConversationId, row: &Stored) -> Summary {
    let mut summary = Summary::new(id.clone(), row.version, row.created);
    summary.updated = row.updated;
    summary.title.clone_from(&row.state.title);
    summary
}

#[tokio::main]
async fn main() -> ExitCode {
    match custom_store().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn custom_store() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model().await?;

    println!("\n1. The suite, which panics if a check fails. A test of the store would do the same.");
    // Nobody can tear these rows, or damage them: what a `Subject` can do besides is not called for.
    let report = conformance::check(async || Plain::new(Tables::default())).await;
    println!("passed:  {}", report.passed.join("\n         "));
    println!("skipped: {}", report.skipped.join("\n         "));

    println!("\n2. A turn of a session on it.");
    let tables = Tables::default();
    let agent = Agent::builder().model(picked.model).system("Be brief.");
    let session = Session::builder(Arc::new(tables.clone())).agent(agent).title("Stores").create().await?;
    println!("> What is a store?\n{}", session.ask("What is a store?").await?.text());
    session.stop(Duration::from_secs(5)).await?;

    println!("\n3. What the tables have now.");
    for (id, Conversation { row, writes }) in tables.begin().iter() {
        println!("{id}: {}, version {}", row.state.title.as_deref().unwrap_or("untitled"), row.version);
        for Row { version, write, commit } in writes {
            println!("  {version} {write} {}", commit.as_deref().unwrap_or("(state)"));
        }
    }
    Ok(())
}
