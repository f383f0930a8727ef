//! The PostgreSQL store: the conformance suite, its settings, and special values. Without a server, the tests are
//! skipped with a message.

mod corrupt;
mod erasing;
mod faults;
mod hangs;
mod leases;
mod migration;
mod pages;
pub(crate) mod server;
mod tls;

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join;
use omni_agent::{
    message::Message,
    store::{
        ConversationId, Filter, Labels, Listing, Owner, Page, PostgresStore, Store, StoreError,
        custom::{Change, Commit, StateChange, StoredState, TurnRecord, Turns, Write, conformance},
    },
    tree::Node,
};

use self::server::{fresh, raw, url};
use crate::{
    skip,
    support::{commit, create, id, node, says},
};

struct Subject {
    url: &'static str,
    store: Arc<PostgresStore>,
}

/// Returns the name of the store's schema, quoted for SQL.
fn schema(store: &PostgresStore) -> String {
    format!("\"{}\"", store.schema().replace('"', "\"\""))
}

#[async_trait]
impl conformance::StoreUnderTest for Subject {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn another(&self) -> Arc<dyn Store> {
        let another = PostgresStore::builder(self.url).schema(self.store.schema()).connections(2);
        Arc::new(another.open().await.unwrap())
    }

    async fn damage(&self, id: &ConversationId) -> bool {
        let schema = schema(&self.store);
        // The column `content` must remain JSON, so the message is replaced with JSON that is not a message.
        let damage = format!(
            "UPDATE {schema}.nodes SET message = '[]' WHERE version = (
                 SELECT min(nodes.version) FROM {schema}.nodes JOIN {schema}.conversations ON key = conversation
                 WHERE conversations.id = $1)"
        );
        raw(self.url).await.execute(&damage, &[&id.as_str()]).await.unwrap() == 1
    }

    async fn run_out(&self, id: &ConversationId) -> bool {
        let past = format!(
            "UPDATE {}.conversations SET expires = clock_timestamp() - interval '1ms' WHERE id = $1",
            schema(&self.store)
        );
        raw(self.url).await.execute(&past, &[&id.as_str()]).await.unwrap() == 1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_on_postgres_store_passes() {
    let Some(url) = url() else { return };
    let make = async || Subject { url, store: Arc::new(fresh(url).open().await.unwrap()) };
    let report = conformance::check(make).await;
    let skipped = [
        "search_finds_words_in_titles_and_texts",
        "search_after_a_removal_finds_nothing",
        "search_splits_the_words_of_every_script",
    ];
    // The database does not leave torn writes behind, so this check is skipped too.
    assert_eq!(report.skipped, [&skipped[..], &["torn_write_is_dropped_completely"]].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_on_postgres_store_with_search_indexes_passes() {
    let Some(url) = url() else { return };
    let make = async || {
        let store = fresh(url).open().await.unwrap();
        store.create_search_index().await.unwrap();
        Subject { url, store: Arc::new(store) }
    };
    let report = conformance::check(make).await;
    assert_eq!(report.skipped, ["torn_write_is_dropped_completely"]);
}

#[tokio::test]
async fn search_index_is_created_once_and_replaced_if_it_is_broken() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "A new word\u{0} with a zero byte").await;
    let version = create(&store, &id("b")).await;
    commit(&store, &id("b"), version, 1, "An old word").await;
    store.create_search_index().await.unwrap();
    store.create_search_index().await.unwrap();
    let broken = format!(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}.nodes_by_words_1'::regclass",
        schema(&store)
    );
    raw(url).await.batch_execute(&broken).await.unwrap();
    let query = "old".parse().unwrap();
    let unsupported = store.search(&query, &Listing::default()).await;
    assert!(matches!(unsupported, Err(StoreError::Unsupported { .. })), "{unsupported:?}");
    store.create_search_index().await.unwrap();
    let found = store.search(&query, &Listing::default()).await.unwrap();
    assert_eq!(found.hits.iter().map(|hit| hit.conversation.id.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn search_index_created_by_two_stores_at_once_is_created_once() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "A word").await;
    // The creation of an index takes long enough for the calls to meet.
    let schema = schema(&store);
    let more = format!(
        "INSERT INTO {schema}.nodes (conversation, version, place, id, message, words, rule)
         SELECT conversation, version, number, number, message, words || number || ' ', rule
         FROM {schema}.nodes, generate_series(2, 20000) AS number"
    );
    raw(url).await.batch_execute(&more).await.unwrap();
    let other = PostgresStore::builder(url).schema(store.schema()).open().await.unwrap();
    let (first, second) =
        join(Box::pin(store.create_search_index()), Box::pin(other.create_search_index())).await;
    first.unwrap();
    second.unwrap();
    let found = other.search(&"word".parse().unwrap(), &Listing::default()).await.unwrap();
    assert_eq!(found.hits.len(), 1);
}

/// Another version of the crate may have made the words by another rule.
#[tokio::test]
async fn search_index_of_another_rule_is_replaced() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "天气很好").await;
    store.write(&id("a"), &Write::on(version), &Change::State(StateChange::title("A title"))).await.unwrap();
    let schema = schema(&store);
    let other = format!(
        "UPDATE {schema}.nodes SET rule = 0, words = ' other '; UPDATE {schema}.conversations SET rule = 0, words = ' '"
    );
    raw(url).await.batch_execute(&other).await.unwrap();
    store.create_search_index().await.unwrap();
    for (query, count) in [("天气", 1), ("title", 1), ("other", 0)] {
        let found = store.search(&query.parse().unwrap(), &Listing::default()).await.unwrap();
        assert_eq!((found.hits.len(), found.complete), (count, true), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_by_many_at_once_creates_one_schema() {
    let Some(url) = url() else { return };
    let builder = fresh(url);
    let opened = (0..5).map(|_| tokio::spawn(builder.clone().open()));
    for store in futures_util::future::join_all(opened).await {
        assert_eq!(store.unwrap().unwrap().list(&Listing::default()).await.unwrap(), []);
    }
}

#[tokio::test]
async fn open_with_an_invalid_schema_name_is_misconfigured() {
    for name in ["", "a\0b", &"x".repeat(64), "pg_chat"] {
        let error =
            PostgresStore::builder("postgres://localhost/none").schema(name).open().await.unwrap_err();
        assert!(matches!(error, StoreError::Misconfigured { .. }) && !error.is_transient(), "{error:?}");
        let reason = error.to_string();
        assert!(reason.contains("is not a valid schema name"), "{reason}");
    }
}

#[tokio::test]
async fn open_with_an_invalid_url_shows_no_password() {
    for url in [
        "nonsense://ada:hunter2@host/db",
        "postgresql+driver://ada:hunter2@host/db?ssl=true",
        "postgres://ada:hunter2@host:port/db",
        "postgres://ada:hunter2@/db",
        "host=db sslmode='allow password=hunter2",
        "postgres://host/db?user=ada&password=p@hunter2",
        "postgres://ada:x@hunter2@host/db",
        "host=db;password=hunter2",
        "postgres://ada:hunter2@db/app?port=6000",
    ] {
        let builder = PostgresStore::builder(url);
        assert!(!format!("{builder:?}").contains("hunter2"));
        let error = builder.open().await.unwrap_err();
        assert!(
            !format!("{error:?} {:?}", std::error::Error::source(&error)).contains("hunter2"),
            "{error:?}"
        );
        assert!(matches!(error, StoreError::Misconfigured { .. }) && !error.is_transient(), "{error:?}");
    }
}

#[tokio::test]
async fn open_without_a_server_is_unreachable() {
    let port = faults::free().port();
    let url = format!("postgres://ada:hunter2@127.0.0.1:{port}/app");
    let error = PostgresStore::open(url).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.is_transient());
    assert!(error.to_string().contains(&format!("\"app\" at 127.0.0.1:{port}")), "{error}");
    assert!(!format!("{error:?} {:?}", std::error::Error::source(&error)).contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn content_for_queries_contains_only_what_jsonb_can_hold() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let messages = [
        Message::user("Hi"),
        Message::user("zero \0 byte"),
        Message::user("no zero: \\u0000"),
        Message::user("x".repeat(1_000_000)),
    ];
    let nodes =
        messages.clone().into_iter().zip(1..).map(|(message, number)| Node::new(node(number), None, message));
    store
        .write(&id("a"), &Write::on(version), &Change::Commit(Commit::new(None).with_nodes(nodes)))
        .await
        .unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert!(stored.nodes.iter().map(|node| &**node.message()).eq(&messages));

    let query = format!(
        "SELECT content #>> '{{content,0,text}}', content IS NULL FROM {}.nodes ORDER BY id",
        schema(&store)
    );
    let rows = raw(url).await.query(&query, &[]).await.unwrap();
    let text: Option<&str> = rows[0].get(0);
    assert_eq!(text, Some("Hi"));
    let absent: Vec<bool> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!(absent, [false, true, true, true]);
}

#[tokio::test]
async fn list_with_an_invalid_title_reports_it_and_shows_the_others() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    create(&store, &id("a")).await;
    create(&store, &id("b")).await;
    let title = format!("UPDATE {}.conversations SET title = 'no JSON' WHERE id = 'a'", schema(&store));
    raw(url).await.execute(&title, &[]).await.unwrap();
    let list = store.list(&Listing::default()).await.unwrap();
    let damage: BTreeMap<_, _> =
        list.iter().map(|listed| (listed.id.as_str(), listed.damage.is_some())).collect();
    assert_eq!(damage, BTreeMap::from([("a", true), ("b", false)]));
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { place, .. } if place.contains("title")), "{error:?}");
}

#[tokio::test]
async fn load_with_an_invalid_node_id_names_its_place() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let observer = raw(url).await;
    for (table, column, what) in [("nodes", "parent", "node 1"), ("conversations", "head", "the head")] {
        let set = |to: &str| format!("UPDATE {}.{table} SET {column} = {to}", schema(&store));
        observer.execute(&set("0"), &[]).await.unwrap();
        let error = store.load(&id("a")).await.unwrap_err();
        let place_start = format!("{what} of conversation a");
        assert!(
            matches!(&error, StoreError::Damaged { place, .. } if place.starts_with(&place_start)),
            "{error:?}"
        );
        observer.execute(&set("NULL"), &[]).await.unwrap();
    }
    store.load(&id("a")).await.unwrap();
}

#[tokio::test]
async fn load_of_a_row_with_a_missing_value_is_damaged() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let lack = "ALTER COLUMN state DROP NOT NULL; UPDATE {schema}.conversations SET state = NULL";
    let lack = format!("ALTER TABLE {{schema}}.conversations {lack}").replace("{schema}", &schema(&store));
    raw(url).await.batch_execute(&lack).await.unwrap();
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if place.starts_with("the state of conversation a in")),
        "{error:?}"
    );
}

/// The server drops the prepared statements, as it does behind a pooler that resets connections between clients.
#[tokio::test]
async fn write_over_a_connection_without_its_statements_uses_another() {
    let Some(url) = url() else { return };
    let store = fresh(url).connections(1).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let schema = schema(&store);
    let reset = format!(
        "CREATE FUNCTION {schema}.reset() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NULL; END$$;
         CREATE TRIGGER reset AFTER INSERT ON {schema}.nodes FOR EACH ROW EXECUTE FUNCTION {schema}.reset()"
    );
    raw(url).await.batch_execute(&reset).await.unwrap();
    let version = commit(&store, &id("a"), version, 1, "One").await;
    commit(&store, &id("a"), version, 2, "Two").await;
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 2);
}

#[tokio::test]
async fn owner_with_invalid_text_is_rejected() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    create(&store, &id("a")).await;
    let refused = store.acquire(&id("a"), &Owner::new("a\0b")).await;
    assert!(matches!(refused, Err(StoreError::Unstorable { .. })), "{refused:?}");
}

/// Returns the server's plan for the statement that the store sent last.
async fn plan(observer: &tokio_postgres::Client, parameters: &str) -> String {
    let last = "SELECT query FROM pg_stat_activity WHERE application_name = 'omni-agent plans' \
                ORDER BY state_change DESC LIMIT 1";
    let query: String = observer.query_one(last, &[]).await.unwrap().get(0);
    observer.batch_execute(&format!("DEALLOCATE ALL; PREPARE sent AS {query}")).await.unwrap();
    let rows = observer.simple_query(&format!("EXPLAIN EXECUTE sent ({parameters})")).await.unwrap();
    let lines = rows.iter().filter_map(|row| match row {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn queries_among_many_conversations_use_indexes() {
    let Some(url) = url() else { return };
    let separator = if url.contains('?') { '&' } else { '?' };
    let store = fresh(&format!("{url}{separator}application_name=omni-agent%20plans"))
        .connections(1)
        .open()
        .await
        .unwrap();
    let observer = raw(url).await;
    let schema = schema(&store);
    let turn = "0".repeat(32);
    let record = format!(r#"{{"format":1,"turn":"{turn}","core":"{{}}"}}"#);
    let pending = format!(r#"{{"turn":"{turn}","tool_use":{{"id":"1","name":"a","input":{{}}}}}}"#);
    let fill = format!(
        "INSERT INTO {schema}.conversations (id, version, created, updated, state, epoch)
             SELECT 'n' || n, n, now(), now() - make_interval(secs => n), '{{}}', n FROM generate_series(1, 20000) AS n;
         INSERT INTO {schema}.writes SELECT key, version, '0123456789abcdef' FROM {schema}.conversations;
         INSERT INTO {schema}.nodes (conversation, version, place, id, message)
             SELECT key, version, 1, 1, '{{}}' FROM {schema}.conversations;
         INSERT INTO {schema}.cursors SELECT key, 1, 2 FROM {schema}.conversations;
         INSERT INTO {schema}.usage (conversation, version, place, purpose, at, input, cache_read, cache_write, output,
             reasoning, ending)
             SELECT key, 1, 1, 'answer', 1, 1, 1, 1, 1, 1, 'answered' FROM {schema}.conversations;
         INSERT INTO {schema}.labels
             SELECT key, 'tenant', CASE WHEN key % 200 = 0 THEN 'rare' ELSE 'frequent' END FROM {schema}.conversations;
         INSERT INTO {schema}.turns (conversation, turn, record, since, recorded, waits)
             SELECT key, '{turn}', '{record}', updated, updated, key % 200 > 0 FROM {schema}.conversations;
         INSERT INTO {schema}.approvals (conversation, tool_use, place, content, survives, since, expires)
             SELECT key, '1', 0, '{pending}', true, updated,
                 CASE WHEN key % 200 = 1 THEN now() WHEN key % 2 = 1 THEN 'infinity' END
             FROM {schema}.conversations WHERE key % 200 > 0;
         INSERT INTO {schema}.pending SELECT key, 0, '{{}}' FROM {schema}.conversations;
         ANALYZE {schema}.turns, {schema}.approvals, {schema}.pending;
         ANALYZE {schema}.usage, {schema}.labels, {schema}.conversations, {schema}.writes, {schema}.nodes, {schema}.cursors;
         SET plan_cache_mode = force_generic_plan"
    );
    observer.batch_execute(&fill).await.unwrap();

    let mut plans = Vec::new();
    store.list(&Listing::default()).await.unwrap();
    plans.push(("list", plan(&observer, "50, 0").await));
    store.summary(&id("n7")).await.unwrap();
    plans.push(("summary", plan(&observer, "'n7'").await));
    let _ = store
        .write(
            &id("n7"),
            &Write::on(omni_agent::store::custom::Version::new(3)),
            &Change::Commit(says(1, "Hi")),
        )
        .await;
    plans.push(("examine", plan(&observer, "'n7', 1, 1").await));
    let lease = store.acquire(&id("n7"), &Owner::new("ann")).await.unwrap();
    plans.push(("acquire", plan(&observer, "'n7', 'ann', null, 30, 1, 1").await));
    store.renew(&[(id("n7"), lease.clone())]).await.unwrap();
    plans.push(("renew", plan(&observer, "'n7', 1, 30").await));
    store.renew(&[(id("n7"), lease.clone()), (id("n7"), lease.clone())]).await.unwrap();
    plans.push(("renew all", plan(&observer, "'{n7}', '{1}', '{30}'").await));
    store.release(&id("n7"), &lease, None).await.unwrap();
    plans.push(("release", plan(&observer, "'n7', 1, null").await));
    store.write(&id("new"), &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let again = store.write(&id("new"), &Write::first(), &Change::create(StoredState::default())).await;
    assert!(matches!(again, Err(StoreError::AlreadyExists { .. })));
    plans.push(("created by", plan(&observer, "'n7'").await));
    let version = store.load(&id("new")).await.unwrap().version;
    commit(&store, &id("new"), version, 1, "Hi").await;
    let nothing = ["null"; 33].join(", ");
    plans.push(("write", plan(&observer, &nothing).await));
    let version = store.load(&id("new")).await.unwrap().version;
    let record = TurnRecord::new(1, turn.parse().unwrap(), "{}");
    store
        .write(&id("new"), &Write::on(version), &Change::Commit(Commit::new(None).with_turn(record)))
        .await
        .unwrap();
    let nothing = ["null"; 41].join(", ");
    plans.push(("record", plan(&observer, &nothing).await));
    store.delete(&id("n8"), None).await.unwrap();
    plans.push(("delete", plan(&observer, "8, 1, null").await));
    let lease = store.acquire(&id("n9"), &Owner::new("ann")).await.unwrap();
    store.delete(&id("n9"), Some(&lease)).await.unwrap();
    plans.push(("delete under a lease", plan(&observer, "9, 1, 1").await));
    observer.batch_execute("SET plan_cache_mode = force_custom_plan").await.unwrap();
    for (value, more) in [("frequent", ", 5000"), ("rare", "")] {
        let filter = Filter::with(Labels::new([("tenant", value)]).unwrap());
        store.list(&filter.into()).await.unwrap();
        plans.push((value, plan(&observer, &format!("50, 0, 'tenant', '{value}'{more}")).await));
    }
    for which in [Turns::Waiting, Turns::Left] {
        let listed = store.turns(which, &Listing::default()).await.unwrap();
        assert_eq!(listed.len(), 50);
        plans.push(("turns", plan(&observer, "50, 0").await));
        let after = Page::default().after(&listed[49]);
        assert_eq!(store.turns(which, &after.into()).await.unwrap().len(), 50);
        plans.push(("more turns", plan(&observer, "now() - interval '1 hour', 'n7', 50, 0").await));
    }
    let rare = Filter::with(Labels::new([("tenant", "rare")]).unwrap());
    store.turns(Turns::Left, &rare.clone().into()).await.unwrap();
    plans.push(("rare turns", plan(&observer, "'tenant', 'rare', 50, 0").await));
    for (what, plan) in plans {
        assert!(plan.contains("Index Scan"), "{what}:\n{plan}");
        assert!(!plan.contains("Seq Scan"), "{what}:\n{plan}");
    }
}

/// Renewals run in a separate thread. They must not wait for the application's threads.
#[test]
fn renew_while_the_runtime_of_others_is_blocked_succeeds() {
    let Some(url) = url() else { return };
    let application = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (opened, is_opened) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        application.block_on(async {
            // All existing connections were opened on this runtime.
            let store = fresh(url).connections(2).open().await.unwrap();
            create(&store, &id("a")).await;
            let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
            // Each of these operations has started and is waiting for an answer, but the runtime does not poll it.
            let begun = (0..50).map(|number| {
                let store = store.clone();
                tokio::spawn(async move { create(&store, &id(&format!("n{number}"))).await })
            });
            let begun: Vec<_> = begun.collect();
            tokio::task::yield_now().await;
            opened.send((store, lease)).unwrap();
            may_go_on.recv().unwrap();
            for begun in begun {
                begun.await.unwrap();
            }
        });
    });
    let (store, lease) = is_opened.recv().unwrap();
    let own = tokio::runtime::Builder::new_current_thread().build().unwrap();
    own.block_on(async {
        for count in [1, 2] {
            assert_eq!(store.renew(&vec![(id("a"), lease.clone()); count]).await.unwrap(), []);
        }
        // All other operations also work.
        let version = store.load(&id("a")).await.unwrap().version;
        store.write(&id("a"), &Write::on(version), &Change::State(StateChange::title("A"))).await.unwrap();
    });
    go_on.send(()).unwrap();
    thread.join().unwrap();
}

#[tokio::test]
async fn write_while_another_holds_the_row_is_busy_after_the_wait() {
    let Some(url) = url() else { return };
    let store = fresh(url).lock_wait(Duration::from_millis(50)).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    create(&store, &id("b")).await;
    let other_lease = store.acquire(&id("b"), &Owner::new("ann")).await.unwrap();
    let mut other = raw(url).await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!("SELECT FROM {}.conversations WHERE id = 'a' FOR UPDATE", schema(&store));
    transaction.execute(&lock, &[]).await.unwrap();

    let write = Write::on(version);
    match store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await {
        Err(error @ StoreError::Busy { waited, .. }) => {
            assert_eq!(waited, Duration::from_millis(50));
            assert!(error.to_string().starts_with("conversation a in the PostgreSQL database"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Reads don't wait, operations on other conversations don't wait, and other leases are renewed.
    assert_eq!(store.load(&id("a")).await.unwrap().version, version);
    create(&store, &id("c")).await;
    assert_eq!(store.renew(&[(id("a"), lease), (id("b"), other_lease)]).await.unwrap(), []);
    transaction.rollback().await.unwrap();
    store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap();
}
