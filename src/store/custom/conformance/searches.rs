use std::{collections::HashMap, sync::Arc};

use serde::Deserialize;

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, node_id};
use crate::{
    message::{Content, Message, Thinking},
    store::{
        Change, Commit, Filter, Labels, Listing, Page, Query, StateChange, Store, StoreError, StoredState,
        Version, Write,
    },
    tree::{Erased, Node, NodeId},
};

fn query(text: &str) -> Query {
    text.parse().expect("a valid query")
}

/// Returns the store if it supports searches.
async fn searching(subject: &dyn StoreUnderTest) -> Option<Arc<dyn Store>> {
    let store = subject.store();
    match store.search(&query("word"), &Listing::default()).await {
        Err(StoreError::Unsupported { .. }) => None,
        found => {
            let found = found.expect("searching succeeds");
            assert_eq!((found.hits.len(), found.complete), (0, true));
            Some(store)
        }
    }
}

/// Creates a conversation with a question and an answer.
async fn talk(
    store: &dyn Store,
    id: &str,
    tenant: &str,
    question: &str,
    answer: impl Into<Message>,
) -> Version {
    let labels = Labels::new([("tenant", tenant)]).expect("valid labels");
    let state = StoredState::default().with_title(format!("Title of {id}")).with_labels(labels);
    let id = conversation(id);
    let version = store.write(&id, &Write::first(), &Change::create(state)).await.expect("creating succeeds");
    let nodes = [
        Node::new(node_id(1), None, Message::user(question)),
        Node::new(node_id(2), Some(node_id(1)), answer.into()),
    ];
    committed(store, &id, version, &Commit::new(Some(node_id(2))).with_nodes(nodes)).await
}

async fn found(store: &dyn Store, filter: &Filter, text: &str, page: Page) -> Vec<(String, Option<u64>)> {
    let found = store.search(&query(text), &(filter.clone(), page).into()).await.expect("searching succeeds");
    assert!(found.complete);
    let hits = found.hits.into_iter();
    hits.map(|hit| (hit.conversation.id.to_string(), hit.node.map(NodeId::get))).collect()
}

pub(super) async fn search_finds_words_in_titles_and_texts(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = searching(subject).await else { return PassedOrSkipped::Skipped };
    let thinking = Message::assistant([
        Content::from(Thinking::new("hidden reasoning")),
        Content::from("The blue lake, below the Mountain."),
    ]);
    talk(&*store, "a", "x", "Which mountain?", thinking).await;
    super::lists::tick().await;
    talk(&*store, "b", "x", "A mountain and a lake that is blue", Message::assistant("Fuji \"quoted\" 100%"))
        .await;
    super::lists::tick().await;
    talk(&*store, "c", "y", "Nothing", Message::assistant("mountains are not a mountain \u{1F600}")).await;
    let all = Filter::default();
    let hit = |id: &str, node: Option<u64>| (id.to_owned(), node);
    let default = Page::default;
    assert_eq!(
        found(&*store, &all, "MOUNTAIN", default()).await,
        [hit("c", Some(2)), hit("b", Some(1)), hit("a", Some(2))]
    );
    assert_eq!(
        found(&*store, &all, "lake mountain", default()).await,
        [hit("b", Some(1)), hit("a", Some(2))]
    );
    assert_eq!(found(&*store, &all, "\"blue lake\"", default()).await, [hit("a", Some(2))]);
    assert_eq!(found(&*store, &all, "which title", default()).await, [], "the words are in different places");
    assert_eq!(found(&*store, &all, "hidden", default()).await, [], "thinking is not searched");
    assert_eq!(found(&*store, &all, "Title b", default()).await, [hit("b", None)]);
    let id = conversation("d");
    let version = talk(
        &*store,
        "d",
        "z",
        "See src/main.rs, <User> and user@example.com",
        Message::assistant("2025-11-23\nOK"),
    )
    .await;
    for text in ["main", "\"main rs\"", "user example", "User"] {
        assert_eq!(found(&*store, &all, text, default()).await, [hit("d", Some(1))], "{text}");
    }
    for text in ["11", "\"2025 11 23\"", "ok"] {
        assert_eq!(found(&*store, &all, text, default()).await, [hit("d", Some(2))], "{text}");
    }
    store
        .write(&id, &Write::on(version), &Change::State(StateChange::title("It's \"new\"\n(v1.2)")))
        .await
        .expect("a title");
    for text in ["new", "\"new v1 2\""] {
        assert_eq!(found(&*store, &all, text, default()).await, [hit("d", None)], "{text}");
    }
    store.delete(&id, None).await.expect("deleting succeeds");
    for text in ["quoted", "100%", "mountain -lake OR", "NOT* fuji^2", "\"fuji quoted\""] {
        found(&*store, &all, text, default()).await;
    }
    assert_eq!(found(&*store, &all, "-fuji*", default()).await, [hit("b", Some(2))], "signs have no meaning");
    let filter = Filter::with(Labels::new([("tenant", "x")]).expect("valid labels"));
    assert_eq!(found(&*store, &filter, "mountain", default()).await, [hit("b", Some(1)), hit("a", Some(2))]);
    assert_eq!(found(&*store, &all, "mountain", Page::first(1).from(1)).await, [hit("b", Some(1))]);
    let b = store.summary(&conversation("b")).await.expect("the conversation exists");
    assert_eq!(found(&*store, &all, "mountain", Page::first(9).after(&b)).await, [hit("a", Some(2))]);
    let hits = store
        .search(&query("fuji"), &(all.clone(), default()).into())
        .await
        .expect("searching succeeds")
        .hits;
    assert!(hits[0].excerpt.contains("Fuji"), "{:?}", hits[0].excerpt);
    assert_eq!(hits[0].conversation, b);
    PassedOrSkipped::Made
}

pub(super) async fn search_after_a_removal_finds_nothing(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = searching(subject).await else { return PassedOrSkipped::Skipped };
    let (a, all) = (conversation("a"), Filter::default());
    let version = talk(&*store, "a", "x", "apple", Message::assistant("pear")).await;
    let version = store
        .write(&a, &Write::on(version), &Change::State(StateChange::title("plum")))
        .await
        .expect("a title");
    let default = Page::default;
    assert_eq!(found(&*store, &all, "plum", default()).await.len(), 1);
    assert_eq!(found(&*store, &all, "title", default()).await, [], "the title was replaced");
    let erased = Erased { nodes: vec![node_id(1), node_id(2)], head: None, next: node_id(3), title: true };
    match store.write(&a, &Write::on(version), &Change::Erase(erased)).await {
        Err(StoreError::Unsupported { .. }) => {}
        result => {
            result.expect("erasing succeeds");
            assert_eq!(found(&*store, &all, "pear", default()).await, []);
        }
    }
    assert_eq!(found(&*store, &all, "plum", default()).await.len(), 1);
    store.delete(&a, None).await.expect("deleting succeeds");
    for word in ["apple", "pear", "plum"] {
        assert_eq!(found(&*store, &all, word, default()).await, []);
    }
    PassedOrSkipped::Made
}

pub(super) async fn invalid_queries_are_rejected(_: &dyn StoreUnderTest) -> PassedOrSkipped {
    for text in ["", "  -+* ", "\"open", "a\"b", &"a ".repeat(33), &"a".repeat(1025)] {
        let error = text.parse::<Query>().expect_err("an invalid query");
        assert!(matches!(error, StoreError::InvalidQuery { .. }), "{error:?}");
    }
    PassedOrSkipped::Made
}

/// A text, and whether a query finds it.
#[derive(Deserialize)]
pub(in crate::store) struct SearchTestCase {
    pub(in crate::store) text: String,
    pub(in crate::store) query: String,
    pub(in crate::store) found: bool,
}

/// Returns the texts and queries with which each store must agree.
pub(in crate::store) fn cases() -> Vec<SearchTestCase> {
    serde_json::from_str(include_str!("words.json")).expect("the cases are valid JSON")
}

pub(super) async fn search_splits_the_words_of_every_script(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = searching(subject).await else { return PassedOrSkipped::Skipped };
    let cases = cases();
    let mut ids = HashMap::new();
    for (number, case) in cases.iter().enumerate() {
        if ids.contains_key(&case.text) {
            continue;
        }
        // Texts are titles and messages by turns.
        let id = conversation(&format!("text-{number}"));
        let is_title = ids.len() % 2 == 0;
        let state =
            if is_title { StoredState::default().with_title(&case.text) } else { StoredState::default() };
        let created = store.write(&id, &Write::first(), &Change::create(state)).await;
        let version = created.expect("creating succeeds");
        if !is_title {
            let nodes = [Node::new(node_id(1), None, Message::user(case.text.as_str()))];
            committed(&*store, &id, version, &Commit::new(None).with_nodes(nodes)).await;
        }
        ids.insert(case.text.clone(), id);
    }
    for SearchTestCase { text, query, found: expected } in &cases {
        let hits = found(&*store, &Filter::default(), query, Page::first(1000)).await;
        let is_found = hits.iter().any(|(id, _)| *id == ids[text].to_string());
        assert_eq!(is_found, *expected, "{query:?} in {text:?}");
    }
    // Only the beginning of a long text is indexed, and a word of any length is stored.
    let id = conversation("long");
    let long = format!(
        "{} {} beforetheend {} aftertheend",
        "x".repeat(5000),
        "天気".repeat(3000),
        "lorem ipsum ".repeat(30_000)
    );
    let version = super::created(&*store, &id).await;
    let nodes = [Node::new(node_id(1), None, Message::user(long))];
    committed(&*store, &id, version, &Commit::new(None).with_nodes(nodes)).await;
    for (query, count) in [("beforetheend", 1), ("xxxx", 1), ("気天", 1), ("aftertheend", 0)] {
        assert_eq!(found(&*store, &Filter::default(), query, Page::default()).await.len(), count, "{query}");
    }
    PassedOrSkipped::Made
}
