//! Processes of schema version 2 that continue after another process has updated the schema.

use omni_agent::{
    message::Timestamp,
    run::{RunEnd, RunOutcome},
    store::{
        Change, Commit, Filter, Labels, Listing, Owner, PostgresStore, StateChange, Store, StoreError,
        StoredState, Turns, Write, WriteId,
    },
    subscription::EventId,
};
use tokio_postgres::{Client, Row, types::ToSql};

use super::{
    golden::restored,
    schema,
    server::{raw, url},
};
use crate::{
    flight::record,
    support::{commit, id, node},
};

// The statements of the last release with schema version 2. They never change.

const CREATE: &str = "
WITH created AS (
    INSERT INTO {schema}.conversations (id, version, created, updated, title, state, epoch)
    SELECT $1::text, $2::bigint, moment, moment, $3::text, $4::text, $2
    FROM (SELECT date_trunc('milliseconds', clock_timestamp())) AS clock (moment)
    ON CONFLICT (id) DO NOTHING RETURNING key
), named AS (
    INSERT INTO {schema}.writes (conversation, version, write) SELECT key, $2, $5::bytea FROM created
)
SELECT key FROM created";

const WRITE: &str = "
WITH written AS (
    UPDATE {schema}.conversations SET version = $3,
        updated = greatest(updated, date_trunc('milliseconds', clock_timestamp())),
        head = CASE WHEN $6 THEN $7 ELSE head END,
        title = CASE WHEN $8 THEN $9 ELSE title END,
        state = coalesce($10, state)
    WHERE id = $1 AND version = $2
        AND ($5::bigint IS NULL OR epoch = $5 AND owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true))
    RETURNING key
), named AS (
    INSERT INTO {schema}.writes (conversation, version, write) SELECT key, $3, $4::bytea FROM written
), added AS (
    INSERT INTO {schema}.nodes (conversation, version, place, id, parent, message, usage)
    SELECT key, $3, place, id, parent, message, usage
    FROM written, unnest($11::bigint[], $12::bigint[], $13::text[], $14::text[])
        WITH ORDINALITY AS node (id, parent, message, usage, place)
), moved AS (
    INSERT INTO {schema}.cursors (conversation, node, child)
    SELECT key, node, child FROM written, unnest($15::bigint[], $16::bigint[]) AS cursor (node, child)
    ON CONFLICT (conversation, node) DO UPDATE SET child = excluded.child
)
SELECT key FROM written";

const CONVERSATION: &str = "
SELECT version, created, updated, title, state, head FROM {schema}.conversations WHERE id = $1";

const NODES: &str = "
SELECT id, parent, message, usage FROM {schema}.nodes
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1) ORDER BY version, place";

const CURSORS: &str = "
SELECT node, child FROM {schema}.cursors
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)";

const SUMMARY: &str = "
SELECT id, version, created, updated, title,
    CASE WHEN owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true) THEN owner END, owner_address
FROM {schema}.conversations";

const ACQUIRE: &str = "
UPDATE {schema}.conversations SET epoch = epoch + $6, owner = $2, owner_address = $3,
    expires = clock_timestamp() + make_interval(secs => $4), lasts = make_interval(secs => $4)
WHERE id = $1 AND epoch = $5 AND (owner = $2 OR NOT (owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true)))
RETURNING epoch";

const DELETE_UNDER: &str = "
DELETE FROM {schema}.conversations
WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true)";

const RELEASE: &str = "
UPDATE {schema}.conversations
SET owner = NULL, owner_address = NULL, expires = '-infinity', lasts = NULL
WHERE id = $1 AND epoch = $2";

/// A process of schema version 2.
struct Older {
    client: Client,
    schema: String,
}

impl Older {
    async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.client.query(&sql.replace("{schema}", &self.schema), params).await.unwrap()
    }

    /// Appends a node to the conversation `talk`, or changes only the title. Returns whether the base was current.
    async fn write(&self, base: u64, node: Option<i64>, title: Option<&str>) -> bool {
        let (base, nodes) = (base.cast_signed(), Vec::from_iter(node));
        let count = nodes.len();
        let (parents, usages) = (vec![None::<i64>; count], vec![Some(r#"{"input":7,"output":9}"#); count]);
        let message = r#"{"role":"assistant","content":[{"type":"text","text":"From an older process"}]}"#;
        let messages = vec![message; count];
        let (write, epoch, state, cursors) = (&[7_u8; 16][..], None::<i64>, None::<&str>, Vec::<i64>::new());
        let written = self
            .query(
                WRITE,
                &[
                    &"talk",
                    &base,
                    &(base + 1),
                    &write,
                    &epoch,
                    &node.is_some(),
                    &node,
                    &title.is_some(),
                    &title,
                    &state,
                    &nodes,
                    &parents,
                    &messages,
                    &usages,
                    &cursors,
                    &cursors,
                ],
            )
            .await;
        written.len() == 1
    }

    /// Returns the number of rows of the table.
    async fn count(&self, table: &str) -> i64 {
        self.query(&format!("SELECT count(*) FROM {{schema}}.{table}"), &[]).await[0].get(0)
    }
}

/// Restores a schema of version 2, starts an older process on it, and then updates the schema.
async fn updated(url: &str) -> (Older, PostgresStore) {
    let name = restored(url, "postgres-2.sql").await;
    let client = raw(url).await;
    let older = Older { client, schema: format!("\"{name}\"") };
    assert_eq!(older.query(SUMMARY, &[]).await.len(), 2);
    let store = PostgresStore::builder(url).schema(&name).connections(2).open().await.unwrap();
    assert_eq!(schema(&store), older.schema);
    (older, store)
}

#[tokio::test]
async fn commit_of_an_older_process_ends_the_turn_and_keeps_everything_else() {
    let Some(url) = url() else { return };
    let (older, store) = updated(url).await;
    let talk = id("talk");
    let before = store.load(&talk).await.unwrap();
    let labels = StateChange::Labels(Labels::new([("tenant", "a")]).unwrap());
    let version =
        store.write(&talk, &Write::on(before.version), &Change::State(labels.clone())).await.unwrap();
    let head = Commit::new(before.head).with_usage([]);
    let end = head.clone().with_run_end(RunEnd::new(RunOutcome::Cancelled).with_mark(EventId::new(1, 2)));
    let version = store.write(&talk, &Write::on(version), &Change::Commit(end)).await.unwrap();
    assert!(store.load(&talk).await.unwrap().last_run.is_some());
    let recorded = head.with_turn(record().with_head(before.head.unwrap()));
    let version = store.write(&talk, &Write::on(version), &Change::Commit(recorded)).await.unwrap();
    assert!(store.load(&talk).await.unwrap().turn.is_some());

    // A new title leaves the turn in flight unchanged.
    assert!(older.write(version.get(), None, Some(r#""A title""#)).await);
    let titled = store.load(&talk).await.unwrap();
    assert_eq!((titled.state.title.as_deref(), titled.turn.is_some()), (Some("A title"), true));
    assert!(older.write(titled.version.get(), Some(7), None).await);
    let stored = store.load(&talk).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.head), (before.nodes.len() + 1, Some(node(7))));
    assert_eq!((&stored.turn, &stored.last_run, stored.mark), (&None, &None, None));
    assert_eq!(stored.state.labels.get("tenant"), Some("a"));
    // An older process does not write to the usage ledger.
    assert_eq!(stored.used, before.used);
    for which in [Turns::All, Turns::Left, Turns::Waiting] {
        let listed = store.turns(which, &Listing::default()).await.unwrap();
        assert!(listed.is_empty(), "{listed:?}");
    }

    // Each process notices the writes of the other.
    let late = store.write(&talk, &Write::on(version), &Change::Commit(Commit::new(None))).await;
    assert!(
        matches!(late, Err(StoreError::Conflict { current, .. }) if current == stored.version),
        "{late:?}"
    );
    let current = commit(&store, &talk, stored.version, 8, "From the new process").await;
    assert!(!older.write(stored.version.get(), Some(9), None).await);
    let loaded = older.query(CONVERSATION, &[&"talk"]).await;
    assert_eq!(loaded[0].get::<_, i64>(0), current.get().cast_signed());
    assert_eq!(older.query(NODES, &[&"talk"]).await.len(), before.nodes.len() + 2);
    assert_eq!(older.query(CURSORS, &[&"talk"]).await.len(), before.cursors.len());
}

#[tokio::test]
async fn conversation_of_an_older_process_is_complete() {
    let Some(url) = url() else { return };
    let (older, store) = updated(url).await;
    let (write, first) = (WriteId::generate(), 1_i64 << 40);
    let bytes = write.as_bytes().as_slice();
    let created = older.query(CREATE, &[&"new", &first, &None::<&str>, &"{}", &bytes]).await;
    assert_eq!(created.len(), 1);
    let stored = store.load(&id("new")).await.unwrap();
    assert_eq!((stored.version.get(), &stored.state), (1 << 40, &StoredState::default()));
    assert_eq!((stored.used.requests, &stored.turn, &stored.last_run), (0, &None, &None));
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 3);
    // The lease of an older process keeps other owners out.
    let acquire: &[&(dyn ToSql + Sync)] = &[&"new", &"ann", &None::<&str>, &60_f64, &first, &1_i64];
    assert_eq!(older.query(ACQUIRE, acquire).await.len(), 1);
    let refused = store.acquire(&id("new"), &Owner::new("bea")).await;
    assert!(matches!(refused, Err(StoreError::Owned { .. })), "{refused:?}");
    older.query(RELEASE, &[&"new", &(first + 1)]).await;
    store.acquire(&id("new"), &Owner::new("bea")).await.unwrap();
}

#[tokio::test]
async fn delete_by_an_older_process_removes_all_rows() {
    let Some(url) = url() else { return };
    let (older, store) = updated(url).await;
    let talk = id("talk");
    let before = store.load(&talk).await.unwrap();
    let labels = StateChange::Labels(Labels::new([("tenant", "a")]).unwrap());
    let version =
        store.write(&talk, &Write::on(before.version), &Change::State(labels.clone())).await.unwrap();
    let head = Commit::new(before.head).with_usage([]);
    let end = head.clone().with_run_end(RunEnd::new(RunOutcome::Cancelled));
    let version = store.write(&talk, &Write::on(version), &Change::Commit(end)).await.unwrap();
    let recorded = head.with_turn(record().with_head(before.head.unwrap()));
    store.write(&talk, &Write::on(version), &Change::Commit(recorded)).await.unwrap();
    let tables = ["labels", "runs", "turns", "approvals", "pending", "usage", "cursors"];
    for table in tables {
        assert!(older.count(table).await > 0, "{table}");
    }
    let acquired = store.acquire(&talk, &Owner::new("ann")).await.unwrap();
    let deleted = older.query(DELETE_UNDER, &[&"talk", &acquired.epoch.0.cast_signed()]).await;
    assert!(deleted.is_empty());
    for table in tables {
        assert_eq!(older.count(table).await, 0, "{table}");
    }
    assert!(!store.summary(&talk).await.is_ok());
    // A deletion by an older process keeps no sums of the usage.
    let all = Timestamp(0)..Timestamp(u64::MAX);
    assert!(store.used(&Filter::default(), all).await.unwrap().is_empty());
}
