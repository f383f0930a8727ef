//! A conversation that is given to another tenant, over a store that writes slowly.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::Method;
use omni_agent::{
    async_trait,
    session::Session,
    store::{
        ConversationId, Filter, Found, Listing, MemoryStore, Page, Query, Store, StoreError, Summary,
        TurnSummary,
        custom::{Change, Lease, StoreTraits, Stored, StoredTurn, Turns, Version, Write},
    },
    testing::{Gate, Step},
};
use serde_json::{Value, json};

use crate::support::{App, labels, prompt, request};

/// A store whose writes and loads can be made to wait.
#[derive(Clone, Default)]
pub(crate) struct SlowStore {
    beneath: Arc<MemoryStore>,
    writing: Arc<Mutex<Option<Gate>>>,
    pub(crate) loading: Arc<Mutex<Option<Gate>>>,
}

#[async_trait]
impl Store for SlowStore {
    fn traits(&self) -> StoreTraits {
        self.beneath.traits()
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let gate = self.writing.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.beneath.write(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let gate = self.loading.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.beneath.load(id).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.beneath.summary(id).await
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        self.beneath.turn(id).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.beneath.list(listing).await
    }

    async fn turns(&self, turns: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.beneath.turns(turns, listing).await
    }

    async fn search(&self, query: &Query, listing: &Listing) -> Result<Found, StoreError> {
        self.beneath.search(query, listing).await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.beneath.delete(id, lease).await
    }
}

fn session(app: &App, id: &str) -> Session {
    app.manager.get(&ConversationId::new(id).unwrap()).unwrap()
}

/// Returns how many entries this user finds in the list, in a search and among the approvals.
async fn found(app: &App, user: &str) -> [usize; 3] {
    let count = |page: &Value, name: &str| page[name].as_array().unwrap_or_else(|| panic!("{page}")).len();
    let list = app.get(user, "/agent/conversations").await.json();
    let search = app.get(user, "/agent/search?q=lake").await.json();
    let approvals = app.get(user, "/agent/approvals").await.json();
    let found = [count(&list, "items"), count(&search, "hits"), count(&approvals, "items")];
    // An application that calls the manager with the filter of this user gets the same.
    let filter = || Filter::with(labels(user));
    let by_manager = [
        app.manager.list(filter()).await.unwrap().len(),
        app.manager.search("lake", filter()).await.unwrap().hits.len(),
        app.manager.pending_approvals(&filter(), Page::first(50)).await.unwrap().len(),
    ];
    assert_eq!(found, by_manager, "{user}");
    found
}

#[tokio::test(start_paused = true)]
async fn labels_that_the_store_writes_slowly_hide_the_conversation_at_once_and_are_answered_when_stored() {
    let store = SlowStore::default();
    let app = App::durable(
        &store,
        [Step::text("A lake."), Step::tool_use("t1", "lookup", json!({ "what": "it" }))],
    );
    let id = app.create("ann").await;
    app.ask("ann", &id, "Where?").await;
    let commands = format!("/agent/conversations/{id}/commands");
    app.post("ann", &commands, prompt("And now?")).await;
    session(&app, &id).flush(Duration::from_secs(5)).await.unwrap();
    assert_eq!((found(&app, "ann").await, found(&app, "ben").await), ([1, 1, 1], [0, 0, 0]));

    let gate = Gate::new();
    *store.writing.lock().unwrap() = Some(gate.clone());
    let command = json!({ "type": "labels", "labels": { "user": "ben" } });
    let answer = app.send(request(Method::POST, "boss", &commands, Some(command)));
    tokio::pin!(answer);
    tokio::select! {
        biased;
        _ = &mut answer => panic!("the labels are not stored yet"),
        () = gate.reached() => {}
    }
    assert_eq!((found(&app, "ann").await, found(&app, "ben").await), ([0, 0, 0], [0, 0, 0]));
    tokio::time::timeout(Duration::from_millis(1), &mut answer).await.expect_err("the write still waits");

    *store.writing.lock().unwrap() = None;
    gate.open();
    assert_eq!(answer.await.status(), 200);
    assert_eq!((found(&app, "ann").await, found(&app, "ben").await), ([0, 0, 0], [1, 1, 1]));
    app.manager.close(&ConversationId::new(&*id).unwrap()).await.unwrap();
    assert_eq!(found(&app, "ann").await[..2], [0, 0]);
    assert_eq!(found(&app, "ben").await[..2], [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn page_of_a_list_has_no_gap_for_conversations_that_are_given_away() {
    let store = SlowStore::default();
    let app = App::durable(&store, []);
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(app.create("ann").await);
    }
    let gate = Gate::new();
    *store.writing.lock().unwrap() = Some(gate.clone());
    for id in [&ids[5], &ids[3], &ids[2]] {
        session(&app, id).set_labels(labels("ben")).await.unwrap();
    }
    let listed = app.manager.list((Filter::with(labels("ann")), Page::first(2))).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|listed| listed.summary.id.as_str()).collect();
    assert_eq!(listed.len(), 2);
    let pages = app.pages("ann", "/agent/conversations", 2).await;
    let mut shown: Vec<_> = pages.iter().flat_map(|page| page["items"].as_array().unwrap()).collect();
    shown.sort_by_key(|item| item["summary"]["id"].as_str().unwrap().to_owned());
    let mut kept = [&ids[4], &ids[1], &ids[0]];
    kept.sort();
    let shown: Vec<_> = shown.iter().map(|item| item["summary"]["id"].as_str().unwrap()).collect();
    assert_eq!(shown, kept);
    assert!(listed.iter().all(|id| shown.contains(id)));
}
