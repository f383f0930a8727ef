//! A store written by an application. The conformance suite checks the store, and a session uses it.
//!
//! ```sh
//! cargo run --example custom_store   # the suite comes with the feature `test-util`
//! ```
//!
//! [`Shelf`] is a minimal store: a map behind a lock. A database would use a transaction instead of the lock.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{
    cmp::Reverse,
    collections::HashMap,
    error::Error,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::Agent,
    message::Timestamp,
    session::Session,
    store::{
        ConversationId, Listing, Position, Store, StoreError, Summary,
        custom::{Change, Lease, Stored, Version, Write, WriteId, conformance},
    },
    tree::Tree,
};
use support::explain;

/// For each conversation, the value that `load` returns, and the id of each write by the version that the write
/// created.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<HashMap<ConversationId, Kept>>>);
type Kept = (Stored, HashMap<Version, WriteId>);

#[async_trait]
impl Store for Shelf {
    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let mut map = self.0.lock().expect("nothing panics under the lock");
        if let Change::Create(state) = change {
            if let Some((_, writes)) = map.get(id) {
                let first = writes.keys().min().filter(|first| writes[first] == write.id);
                return first.copied().ok_or_else(|| StoreError::AlreadyExists { id: id.clone() });
            }
            let version = Version::first();
            let stored = Stored::new(version, Timestamp::now(), (**state).clone());
            map.insert(id.clone(), (stored, HashMap::from([(version, write.id)])));
            return Ok(version);
        }
        let (stored, writes) = map.get_mut(id).ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        let version = write.base.next();
        // If the base is not the current version, only a repetition of an earlier write succeeds.
        if write.base != stored.version {
            let is_repeated = writes.get(&version) == Some(&write.id);
            let conflict = StoreError::Conflict { id: id.clone(), current: stored.version };
            return if is_repeated { Ok(version) } else { Err(conflict) };
        }
        match change {
            Change::Commit(commit) => stored.commit(commit.clone()),
            Change::State(change) => stored.change_state(change.clone()),
            _ => return Err(StoreError::unsupported("this change")),
        }
        (stored.version, stored.updated) = (version, stored.updated.max(Timestamp::now()));
        writes.insert(version, write.id);
        Ok(version)
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let map = self.0.lock().expect("nothing panics under the lock");
        map.get(id).map(|(stored, _)| stored.clone()).ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        let page = listing.unfiltered()?;
        let map = self.0.lock().expect("nothing panics under the lock");
        let mut all: Vec<Summary> = map.iter().map(|(id, (stored, _))| stored.summary(id)).collect();
        all.sort_by_key(|summary| (Reverse(summary.updated), summary.id.clone()));
        let is_before =
            |summary: &Summary| page.after.as_ref().is_some_and(|after| Position::from(summary) <= *after);
        Ok(all.into_iter().skip_while(is_before).skip(page.offset).take(page.limit).collect())
    }

    async fn delete(&self, id: &ConversationId, _: Option<&Lease>) -> Result<(), StoreError> {
        self.0.lock().expect("nothing panics under the lock").remove(id);
        Ok(())
    }
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
    let picked =
        support::pick_model("A store written by an application, checked by the conformance suite.").await?;

    println!("\n1. The suite, which panics if a check fails. A test of the store would do the same.");
    // Content in memory can't be torn by a crash or damaged, so the other methods of `StoreUnderTest` are not needed.
    let report = conformance::check(async || Arc::new(Shelf::default())).await;
    println!("passed:  {}", report.passed.join("\n         "));
    println!("skipped: {}", report.skipped.join("\n         "));

    println!("\n2. A turn of a session on it.");
    let shelf = Shelf::default();
    let agent = Agent::builder().model(picked.model).system("Be brief.");
    let session = Session::builder(shelf.clone()).agent(agent).title("Stores").create().await?;
    println!("> What is a store?\n{}", session.ask("What is a store?").await?.text());
    session.stop(Duration::from_secs(5)).await?;

    println!("\n3. The store's content.");
    for Summary { id, .. } in shelf.list(&Listing::default()).await? {
        let Stored { nodes, head, cursors, state, version, .. } = shelf.load(&id).await?;
        println!("{id}: {}, at version {version}", state.title.as_deref().unwrap_or("untitled"));
        println!("{}", Tree::hydrate(nodes, head, cursors)?);
    }
    Ok(())
}
