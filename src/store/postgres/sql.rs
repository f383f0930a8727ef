//! The SQL statements. Times are measured by the database. Times that the store returns are in milliseconds.

use crate::store::StoreError;

/// The statements for one schema.
pub(super) struct Sql {
    pub(super) create: String,
    pub(super) created_by: String,
    pub(super) write: String,
    pub(super) examine: String,
    pub(super) conversation: String,
    pub(super) nodes: String,
    pub(super) cursors: String,
    pub(super) summary: String,
    pub(super) list: String,
    pub(super) list_after: String,
    pub(super) find: String,
    pub(super) delete: String,
    pub(super) delete_under: String,
    pub(super) acquire: String,
    pub(super) owner: String,
    pub(super) renew: String,
    pub(super) renew_all: String,
    pub(super) release: String,
}

/// Whether the conversation has an owner. If the clock was set back so far that a lease would last for more than twice
/// its duration, the lease counts as ended. A smaller difference makes the lease last longer, which is accepted.
const HELD: &str = "owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true)";

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

const CREATED_BY: &str = "
SELECT version, write FROM {schema}.writes
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)
ORDER BY version LIMIT 1";

/// A complete write in one statement. The statement locks the row, and compares version and lease while it holds the
/// lock.
const WRITE: &str = "
WITH written AS (
    UPDATE {schema}.conversations SET version = $3,
        updated = greatest(updated, date_trunc('milliseconds', clock_timestamp())),
        head = CASE WHEN $6 THEN $7 ELSE head END,
        title = CASE WHEN $8 THEN $9 ELSE title END,
        state = coalesce($10, state)
    WHERE id = $1 AND version = $2
        AND ($5::bigint IS NULL OR epoch = $5 AND {held})
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

/// Finds the reason why a write changed no row.
const EXAMINE: &str = "
SELECT version, epoch = $3 AND {held},
    (SELECT write FROM {schema}.writes WHERE conversation = key AND writes.version = $2)
FROM {schema}.conversations WHERE id = $1";

const CONVERSATION: &str =
    "SELECT version, created, updated, title, state, head FROM {schema}.conversations WHERE id = $1";

const NODES: &str = "
SELECT id, parent, message, usage FROM {schema}.nodes
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1) ORDER BY version, place";

const CURSORS: &str = "
SELECT node, child FROM {schema}.cursors
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)";

const SUMMARY: &str = "
SELECT id, version, created, updated, title,
    CASE WHEN {held} THEN owner END, owner_address
FROM {schema}.conversations";

/// Requires the epoch that was read before. This prevents a delayed statement from replacing an owner that acquired the
/// conversation in the meantime.
const ACQUIRE: &str = "
UPDATE {schema}.conversations SET epoch = epoch + $6, owner = $2, owner_address = $3,
    expires = clock_timestamp() + make_interval(secs => $4), lasts = make_interval(secs => $4)
WHERE id = $1 AND epoch = $5 AND (owner = $2 OR NOT ({held}))
RETURNING epoch";

const OWNER: &str = "
SELECT epoch, CASE WHEN {held} THEN owner END, owner_address
FROM {schema}.conversations WHERE id = $1";

/// Renews a lease, even if it has expired. The epoch shows whether another owner acquired the conversation.
const RENEW: &str = "
UPDATE {schema}.conversations
SET expires = clock_timestamp() + make_interval(secs => $3), lasts = make_interval(secs => $3)
WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL";

/// Skips rows that are locked, which can be renewed by the next renewal. Otherwise one hanging transaction would
/// prevent the renewal of all other leases.
const RENEW_ALL: &str = "
WITH wanted AS (
    SELECT id, epoch, lasts FROM unnest($1::text[], $2::bigint[], $3::float8[]) AS lease (id, epoch, lasts)
), held AS (
    SELECT key, wanted.lasts FROM wanted JOIN {schema}.conversations AS held USING (id)
    WHERE held.epoch = wanted.epoch AND owner IS NOT NULL
    ORDER BY key FOR NO KEY UPDATE OF held SKIP LOCKED
), renewed AS (
    UPDATE {schema}.conversations AS renewed
    SET expires = clock_timestamp() + make_interval(secs => held.lasts),
        lasts = make_interval(secs => held.lasts)
    FROM held WHERE renewed.key = held.key
)
SELECT id FROM wanted WHERE NOT EXISTS (
    SELECT FROM {schema}.conversations AS held WHERE held.id = wanted.id AND held.epoch = wanted.epoch
        AND owner IS NOT NULL
)";

const DELETE_UNDER: &str = "
DELETE FROM {schema}.conversations
WHERE id = $1 AND epoch = $2 AND {held}";

/// Also removes the duration, because processes with schema version 1 do not set it when they acquire a lease.
const RELEASE: &str = "
UPDATE {schema}.conversations
SET owner = NULL, owner_address = NULL, expires = '-infinity', lasts = NULL
WHERE id = $1 AND epoch = $2";

impl Sql {
    /// Returns the statements for the schema with this name.
    pub(super) fn new(schema: &str) -> Self {
        let quoted = quote(schema);
        let sql = |template: &str| template.replace("{held}", HELD).replace("{schema}", &quoted);
        Self {
            create: sql(CREATE),
            created_by: sql(CREATED_BY),
            write: sql(WRITE),
            examine: sql(EXAMINE),
            conversation: sql(CONVERSATION),
            nodes: sql(NODES),
            cursors: sql(CURSORS),
            summary: sql(SUMMARY) + " WHERE id = $1",
            list: sql(SUMMARY) + " ORDER BY updated DESC, id LIMIT $1 OFFSET $2",
            // The query has two parts, so that each part reads one range of the index. A query with one part would scan
            // all conversations with the same time. Each part has its own limit, $5 (limit plus offset), because
            // otherwise the server would sort whole ranges.
            list_after: format!(
                "({summary} WHERE updated = $3 AND id > $4 ORDER BY id LIMIT $5)
                 UNION ALL ({summary} WHERE updated < $3 ORDER BY updated DESC, id LIMIT $5)
                 ORDER BY updated DESC, id LIMIT $1 OFFSET $2",
                summary = sql(SUMMARY)
            ),
            find: sql("SELECT key FROM {schema}.conversations WHERE id = $1"),
            delete: sql("DELETE FROM {schema}.conversations WHERE key = $1"),
            delete_under: sql(DELETE_UNDER),
            acquire: sql(ACQUIRE),
            owner: sql(OWNER),
            renew: sql(RENEW),
            renew_all: sql(RENEW_ALL),
            release: sql(RELEASE),
        }
    }
}

/// Returns the name as a quoted identifier. Quotes inside the name are doubled (PostgreSQL's documentation, 4.1.1).
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Rejects names that a schema can't have.
pub(super) fn check_schema(name: &str) -> Result<(), StoreError> {
    /// The maximum number of bytes in a name. PostgreSQL cuts off the rest (PostgreSQL's documentation, 4.1.1).
    const LONGEST: usize = 63;

    #[derive(Debug, thiserror::Error)]
    #[error(
        "{0:?} is not a valid schema name: use 1 to {LONGEST} bytes, without zero bytes and not beginning with pg_"
    )]
    struct Unusable(String);

    // Names with this prefix are reserved for the system.
    if name.is_empty() || name.len() > LONGEST || name.contains('\0') || name.starts_with("pg_") {
        return Err(StoreError::misconfigured("the schema name", Unusable(name.to_owned())));
    }
    Ok(())
}
