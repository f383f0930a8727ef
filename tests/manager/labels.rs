//! Labels, filters, searches and usage.

use std::{ops::Range, sync::Arc};

use omni_agent::{
    ErrorKind,
    manager::{Manager, ManagerEvent, OpenOptions, Titles},
    message::{Purpose, RequestEnd, Timestamp, Usage, UsageSum},
    provider::{ProviderError, ProviderErrorKind},
    store::{
        Filter, Found, Labels, Listing, MemoryStore, Page, Query, Store, StoreError, Summary, TurnSummary,
        custom::{StoreTraits, Turns},
    },
    subscription::Update,
    testing::{ScriptedProvider, Step},
};

use crate::support::{id, in_time, parrot, scripted, secs, settle};

fn labels(user: &str) -> Labels {
    Labels::new([("tenant", "acme"), ("user", user)]).unwrap()
}

fn ids(listed: &[omni_agent::manager::Listed]) -> Vec<&str> {
    let mut ids: Vec<_> = listed.iter().map(|listed| listed.summary.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(start_paused = true)]
async fn list_by_labels_contains_open_and_stored_conversations() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let mut updates = manager.subscribe();
    let mut view = (**updates.snapshot().unwrap()).clone();
    for (name, user) in [("a", "ann"), ("b", "ann"), ("c", "ben")] {
        manager.open_or_create(&id(name), OpenOptions::new(parrot()).labels(labels(user))).await.unwrap();
    }
    manager.close(&id("b")).await.unwrap();
    assert_eq!(ids(&manager.list(Filter::with(labels("ann"))).await.unwrap()), ["a", "b"]);
    let acme = Filter::with(Labels::new([("tenant", "acme")]).unwrap());
    assert_eq!(ids(&manager.list(acme.clone()).await.unwrap()), ["a", "b", "c"]);
    assert_eq!(manager.list((acme.clone(), Page::first(2))).await.unwrap().len(), 2);
    assert_eq!(manager.list(Page::first(2)).await.unwrap().len(), 2);
    assert_eq!(manager.list_open().iter().find(|open| open.id == id("c")).unwrap().labels, labels("ben"));

    // One of the two conversations is open, and the other is not.
    for name in ["a", "b"] {
        in_time(manager.set_labels(&id(name), labels("ben"))).await.unwrap();
    }
    assert_eq!(ids(&manager.list(Filter::with(labels("ben"))).await.unwrap()), ["a", "b", "c"]);
    assert_eq!(manager.list(Filter::with(labels("ann"))).await.unwrap().len(), 0);
    let mut labelled = Vec::new();
    while labelled.len() < 2 {
        let Some(Update::Event(event)) = in_time(updates.next()).await else { panic!("no event") };
        view.apply(&event);
        if let ManagerEvent::Labels { id, labels: new } = &*event.event {
            assert_eq!(*new, labels("ben"));
            labelled.push(id.to_string());
        }
    }
    assert_eq!(labelled, ["a", "b"]);
    assert!(view.open.iter().all(|open| open.labels == labels("ben")));
    let missing = manager.set_labels(&id("missing"), labels("ann")).await;
    assert!(missing.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn search_and_usage_of_a_manager_come_from_its_store() {
    let usage = Usage::default().with_input(7).with_cost(0.25);
    let answer = Step::new().then_text(["A blue lake"]).usage(usage).stop();
    let manager = Manager::builder(MemoryStore::new()).build();
    let options = OpenOptions::new(scripted([answer])).labels(labels("ann"));
    let opened = manager.open_or_create(&id("a"), options).await.unwrap();
    opened.session.ask("What is it?").await.unwrap();
    opened.session.flush(secs(5)).await.unwrap();
    let found = manager.search("lake", Page::default()).await.unwrap();
    assert_eq!((found.hits.len(), found.hits[0].excerpt.as_str()), (1, "A blue lake"));
    assert_eq!(manager.search("lake", Filter::with(labels("ben"))).await.unwrap().hits.len(), 0);
    let invalid = manager.search("\"open", Page::default()).await;
    assert_eq!(invalid.unwrap_err().kind(), ErrorKind::InvalidQuery);

    let always = Timestamp(0)..Timestamp(u64::MAX);
    manager.delete(&id("a")).await.unwrap();
    let sums = manager.used(&Filter::with(labels("ann")), always.clone()).await.unwrap();
    assert_eq!((sums.len(), sums[0].requests, sums[0].usage), (1, 1, usage));
    assert_eq!(manager.used(&Filter::with(labels("ben")), always).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn title_of_a_model_is_in_the_usage_ledger() {
    let usage = Usage::default().with_input(90).with_output(4);
    let titles = ScriptedProvider::new([Step::new().then_text(["A title"]).usage(usage).stop()]);
    let store = MemoryStore::new();
    let manager = Manager::builder(Arc::new(store.clone()))
        .titles(Titles::Model(titles.model()))
        .idle_shutdown(None)
        .build();
    let opened = manager.open_or_create(&id("a"), parrot()).await.unwrap();
    opened.session.ask("Hello").await.unwrap();
    settle().await;
    assert_eq!(opened.session.title().await.unwrap().as_deref(), Some("A title"));
    opened.session.flush(secs(5)).await.unwrap();
    let rows = store.usage(&id("a"), &Page::default()).await.unwrap();
    let row = rows.iter().find(|row| row.purpose == Purpose::Title).unwrap();
    assert_eq!((row.usage, row.turn), (usage, None));
    assert_eq!(opened.session.snapshot().await.unwrap().used, store.load(&id("a")).await.unwrap().used.usage);
}

#[tokio::test(start_paused = true)]
async fn failed_request_for_a_title_is_in_the_usage_ledger() {
    let usage = Usage::default().with_input(90).with_output(4);
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
    let titles = ScriptedProvider::new([Step::new().usage(usage).then_text(["A ti"]).fail(error)]);
    let store = MemoryStore::new();
    let manager = Manager::builder(Arc::new(store.clone()))
        .titles(Titles::Model(titles.model()))
        .idle_shutdown(None)
        .build();
    let opened = manager.open_or_create(&id("a"), parrot()).await.unwrap();
    opened.session.ask("Hello").await.unwrap();
    settle().await;
    assert_eq!(opened.session.title().await.unwrap(), None);
    opened.session.flush(secs(5)).await.unwrap();
    let rows = store.usage(&id("a"), &Page::default()).await.unwrap();
    let row = rows.iter().find(|row| row.purpose == Purpose::Title).unwrap();
    assert_eq!((row.usage, row.end, row.turn), (usage, RequestEnd::Failed, None));
    assert_eq!(row.model.as_deref(), Some(&**titles.model().id()));
    assert_eq!(opened.session.snapshot().await.unwrap().used, store.load(&id("a")).await.unwrap().used.usage);
}

/// A store that ignores filters, and does not claim to support them.
struct Careless(MemoryStore);

#[omni_agent::async_trait]
impl Store for Careless {
    forward!(self.0: write, load, summary, delete);

    fn traits(&self) -> StoreTraits {
        self.0.traits().with_labels(false)
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.0.list(&listing.page.clone().into()).await
    }

    async fn turns(&self, turns: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.0.turns(turns, &listing.page.clone().into()).await
    }

    async fn search(&self, query: &Query, listing: &Listing) -> Result<Found, StoreError> {
        self.0.search(query, &listing.page.clone().into()).await
    }

    async fn used(&self, _: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        self.0.used(&Filter::default(), period).await
    }
}

#[tokio::test(start_paused = true)]
async fn filter_at_a_store_that_would_ignore_it_is_unsupported() {
    let manager = Manager::builder(Careless(MemoryStore::new())).build();
    manager.create(OpenOptions::new(parrot()).labels(labels("ann"))).await.unwrap();
    let (ben, all) = (Filter::with(labels("ben")), Filter::default());
    let period = Timestamp(0)..Timestamp(u64::MAX);
    for (filter, expected) in [(ben, Some(ErrorKind::Unsupported)), (all, None)] {
        let page = || (filter.clone(), Page::default());
        for error in [
            manager.list(page()).await.err(),
            manager.search("word", page()).await.err(),
            manager.used(&filter, period.clone()).await.err(),
            manager.pending_approvals(&filter, Page::default()).await.err(),
            manager.left(&filter, Page::default()).await.err(),
        ] {
            assert_eq!(error.map(|error| error.kind()), expected);
        }
    }
}
