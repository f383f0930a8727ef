//! The SQL statements. Times are measured by the database. Times that the store returns are in milliseconds.

use crate::store::{StoreError, ledger::IS_KEPT_LABEL, words::RULE};

/// The statements for one schema.
pub(super) struct PostgresStatements {
    pub(super) create: String,
    pub(super) created_by: String,
    pub(super) write: String,
    /// A write with a record of the turn in flight.
    pub(super) record: String,
    pub(super) turn: String,
    pub(super) listed_turn: String,
    pub(super) held: String,
    pub(super) examine: String,
    pub(super) conversation: String,
    pub(super) nodes: String,
    pub(super) files: String,
    pub(super) cursors: String,
    pub(super) summary: String,
    pub(super) list: String,
    pub(super) list_after: String,
    /// The quoted name of the schema.
    pub(super) schema: String,
    /// The beginning of a query for summaries, up to its condition.
    pub(super) summary_columns: String,
    pub(super) label_count: String,
    pub(super) usage: String,
    pub(super) sums: String,
    pub(super) erase: String,
    pub(super) last_run: String,
    pub(super) version: String,
    pub(super) usable_index: String,
    pub(super) find: String,
    pub(super) delete: String,
    pub(super) acquire: String,
    pub(super) owner: String,
    pub(super) renew: String,
    pub(super) renew_all: String,
    pub(super) release: String,
    pub(super) schedule: String,
    pub(super) unschedule: String,
}

/// The condition that the conversation has an owner. If the clock was set back so far that a lease would last for more
/// than twice its duration, the lease counts as ended. A smaller difference makes the lease last longer, which is
/// accepted.
const HELD: &str = "owner IS NOT NULL AND expires > clock_timestamp()
        AND coalesce(expires <= clock_timestamp() + 2 * lasts, true)";

const CREATE: &str = "
WITH created AS (
    INSERT INTO {schema}.conversations (id, version, created, updated, title, title_by_person, words, rule, state, epoch)
    SELECT $1::text, $2::bigint, moment, moment, $3::text, $8::boolean, $9::text, {rule}, $4::text, $2
    FROM (SELECT date_trunc('milliseconds', clock_timestamp())) AS clock (moment)
    ON CONFLICT (id) DO NOTHING RETURNING key
), named AS (
    INSERT INTO {schema}.writes (conversation, version, write) SELECT key, $2, $5::bytea FROM created
), labelled AS (
    INSERT INTO {schema}.labels (conversation, name, value)
    SELECT key, name, value FROM created, unnest($6::text[], $7::text[]) AS label (name, value)
)
SELECT key FROM created";

const CREATED_BY: &str = "
SELECT version, write FROM {schema}.writes
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)
ORDER BY version LIMIT 1";

/// A complete write in one statement. The statement locks the row, and compares version and epoch while it holds the
/// lock. The end of the lease does not matter, because a take-over changes the epoch in the same row. After a release, no
/// epoch is valid.
const WRITE: &str = "
WITH written AS (
    UPDATE {schema}.conversations SET version = $3,
        updated = CASE WHEN $22 AND head IS NOT DISTINCT FROM $7 THEN updated
            ELSE greatest(updated, date_trunc('milliseconds', clock_timestamp())) END,
        head = CASE WHEN $6 THEN $7 ELSE head END,
        title = CASE WHEN $8 THEN $9 ELSE title END,
        title_by_person = CASE WHEN $8 THEN $25 ELSE title_by_person END,
        words = CASE WHEN $8 THEN $28 ELSE words END,
        rule = CASE WHEN $8 THEN {rule} ELSE rule END,
        state = coalesce($10, state),
        mark = coalesce($24::text, mark),
        mark_version = CASE WHEN $24 IS NULL THEN mark_version ELSE $3 END
    WHERE id = $1 AND version = $2
        AND ($5::bigint IS NULL OR epoch = $5 AND owner IS NOT NULL)
    RETURNING key, head
), named AS (
    INSERT INTO {schema}.writes (conversation, version, write) SELECT key, $3, $4::bytea FROM written
), added AS (
    INSERT INTO {schema}.nodes (conversation, version, place, id, parent, message, usage, left_open, words, rule)
    SELECT key, $3, place, id, parent, message, usage, left_open, words, {rule}
    FROM written, unnest($11::bigint[], $12::bigint[], $13::text[], $14::text[], $26::boolean[], $27::text[])
        WITH ORDINALITY AS node (id, parent, message, usage, left_open, words, place)
), moved AS (
    INSERT INTO {schema}.cursors (conversation, node, child)
    SELECT key, node, child FROM written, unnest($15::bigint[], $16::bigint[]) AS cursor (node, child)
    ON CONFLICT (conversation, node) DO UPDATE SET child = excluded.child
), unlabelled AS (
    DELETE FROM {schema}.labels USING written
    WHERE conversation = key AND $17::text[] IS NOT NULL AND name <> ALL ($17)
), labelled AS (
    INSERT INTO {schema}.labels (conversation, name, value)
    SELECT key, name, value FROM written, unnest($17::text[], $18::text[]) AS label (name, value)
    ON CONFLICT (conversation, name) DO UPDATE SET value = excluded.value WHERE labels.value <> excluded.value
), spent AS (
    INSERT INTO {schema}.usage (conversation, version, place, purpose, turn, step, message, at, model, input,
        cache_read, cache_write, output, reasoning, cost, ending)
    SELECT key, $3, place, purpose, turn, step, message, at, model, input, cache_read, cache_write, output,
        reasoning, cost, ending
    FROM written, ROWS FROM (json_to_recordset($19::text::json) AS (purpose text, turn text, step bigint,
        message text, at bigint, model text, input bigint, cache_read bigint, cache_write bigint,
        output bigint, reasoning bigint, cost double precision, ending text)) WITH ORDINALITY AS spent (purpose, turn, step, message, at, model,
        input, cache_read, cache_write, output, reasoning, cost, ending, place)
), ended AS (
    INSERT INTO {schema}.runs (conversation, version, turn, ending, prompts)
    SELECT key, $3, $20::text, $21::text, $23::text FROM written WHERE $21 IS NOT NULL
    ON CONFLICT (conversation) DO UPDATE SET version = excluded.version, turn = excluded.turn,
        ending = excluded.ending, prompts = excluded.prompts
){turn}{files}
SELECT key FROM written";

/// The part of a write that adds its files. Its parameters follow all others.
const FILES: &str = ", filed AS (
    INSERT INTO {schema}.files (conversation, digest, bytes)
    SELECT key, digest, bytes FROM written, unnest($F1::text[], $F2::bytea[]) AS file (digest, bytes)
    ON CONFLICT (conversation, digest) DO NOTHING
), used AS (
    INSERT INTO {schema}.file_uses (conversation, place, version, digest)
    SELECT key, CASE WHEN place < 0 THEN place ELSE place + 1 END, $3, digest
    FROM written, unnest($F3::integer[], $F4::text[]) AS used (place, digest)
    ON CONFLICT (conversation, place, version, digest) DO NOTHING
)";

/// The last part of a write that does not record the turn in flight. It deletes the recorded turn if the write ends the
/// turn or changes the head.
const END: &str = ", over AS (
    DELETE FROM {schema}.turns USING written
    WHERE conversation = key AND ($29::boolean OR turns.head IS DISTINCT FROM written.head)
)";

/// The last part of a write that records the turn in flight.
const RECORD: &str = ", earlier AS (
    SELECT since, (
        SELECT count(*) FROM {schema}.pending WHERE pending.conversation = turns.conversation
    ) AS messages
    FROM {schema}.turns JOIN written ON conversation = key
    WHERE turns.turn = $29::text AND turns.head IS NOT DISTINCT FROM written.head
), base AS (
    SELECT key, written.head, since, date_trunc('milliseconds', clock_timestamp()) AS moment,
        least($32::integer, coalesce(messages, 0))::integer AS kept
    FROM written LEFT JOIN earlier ON true
), recorded AS (
    INSERT INTO {schema}.turns (conversation, turn, record, head, since, recorded, waits)
    SELECT key, $29, $30::text, head, coalesce(since, moment), moment, $31::boolean FROM base
    ON CONFLICT (conversation) DO UPDATE SET turn = excluded.turn, record = excluded.record, head = excluded.head,
        since = excluded.since, recorded = excluded.recorded, waits = excluded.waits
), dropped AS (
    DELETE FROM {schema}.pending USING base WHERE conversation = key AND place >= kept + cardinality($33::text[])
), appended AS (
    INSERT INTO {schema}.pending (conversation, place, content)
    SELECT key, kept + place - 1, content FROM base, unnest($33) WITH ORDINALITY AS message (content, place)
    ON CONFLICT (conversation, place) DO UPDATE SET content = excluded.content
), decided AS (
    DELETE FROM {schema}.approvals USING written WHERE conversation = key AND tool_use <> ALL ($34::text[])
), asked AS (
    INSERT INTO {schema}.approvals (conversation, tool_use, place, content, survives, since, expires)
    SELECT key, asked.tool_use, asked.place - 1, asked.content, asked.survives, coalesce(open.since, moment),
        least(coalesce(open.since, moment), '9999-12-31') + asked.time_limit * interval '1 millisecond'
    FROM base, unnest($34, $35::text[], $36::boolean[], $37::bigint[]) WITH ORDINALITY
        AS asked (tool_use, content, survives, time_limit, place)
        LEFT JOIN {schema}.approvals AS open ON open.tool_use = asked.tool_use
            AND open.conversation = (SELECT key FROM base WHERE since IS NOT NULL)
    ON CONFLICT (conversation, tool_use) DO UPDATE SET place = excluded.place, content = excluded.content,
        survives = excluded.survives, since = excluded.since, expires = excluded.expires
)";

/// The end of the last run at a version of the conversation.
const LAST_RUN: &str = "
SELECT runs.ending, runs.prompts
FROM {schema}.conversations JOIN {schema}.runs ON runs.conversation = key AND NOT EXISTS (
    SELECT FROM {schema}.nodes WHERE nodes.conversation = key AND nodes.version > runs.version
)
WHERE id = $1 AND conversations.version = $2";

/// An erasure in one statement, with the same checks as a write. It also deletes the turn in flight, and deletes or
/// replaces the end of the last run, because they may contain an erased message.
const ERASE: &str = "
WITH written AS (
    UPDATE {schema}.conversations SET version = $3, head = $6, next_node = $7,
        title = CASE WHEN title_by_person OR NOT $11::boolean THEN title END,
        words = CASE WHEN title_by_person OR NOT $11 THEN words ELSE ' ' END,
        updated = greatest(updated, date_trunc('milliseconds', clock_timestamp()))
    WHERE id = $1 AND version = $2
        AND ($5::bigint IS NULL OR epoch = $5 AND owner IS NOT NULL)
    RETURNING key
), named AS (
    INSERT INTO {schema}.writes (conversation, version, write) SELECT key, $3, $4::bytea FROM written
), removed AS (
    DELETE FROM {schema}.nodes USING written WHERE conversation = key AND nodes.id = ANY ($8::bigint[])
), unlinked AS (
    DELETE FROM {schema}.cursors USING written WHERE conversation = key AND (node = ANY ($8) OR child = ANY ($8))
), unended AS (
    DELETE FROM {schema}.runs USING written WHERE conversation = key AND $9::text IS NULL
), ended AS (
    UPDATE {schema}.runs SET version = $3, turn = NULL, ending = $9, prompts = $10::text
    FROM written WHERE conversation = key AND $9 IS NOT NULL
), over AS (
    DELETE FROM {schema}.turns USING written WHERE conversation = key
)
SELECT key FROM written";

/// The number of requests, and the sums of their tokens and cost. The limits prevent an overflow.
const SUMS: &str = "count(*), least(coalesce(sum(input), 0), 9e18)::bigint, least(coalesce(sum(cache_read), 0), 9e18)::bigint,
    least(coalesce(sum(cache_write), 0), 9e18)::bigint, least(coalesce(sum(output), 0), 9e18)::bigint, least(coalesce(sum(reasoning), 0), 9e18)::bigint,
    sum(CASE WHEN cost > 1e290 THEN 1e290 ELSE cost END)";

const USAGE: &str = "
SELECT input, cache_read, cache_write, output, reasoning, cost, purpose, turn, step, at, model, ending, message
FROM {schema}.usage WHERE conversation = $1 ORDER BY version DESC, place DESC LIMIT $2 OFFSET $3";

const LABEL_COUNT: &str = "
SELECT count(*) FROM (SELECT FROM {schema}.labels WHERE name = $1 AND value = $2 LIMIT $3) AS labelled";

/// Sets a schedule. If the write replaces a schedule with the time $3 and the number $4, changes nothing unless it is the
/// stored one. The conversation is locked, because a schedule without it would violate a constraint.
const SCHEDULE: &str = "
WITH target AS (
    SELECT key, version FROM {schema}.conversations WHERE id = $1 FOR KEY SHARE
), replaced AS (
    UPDATE {schema}.schedules SET due = $5, rev = $6, entry = $7
    FROM target WHERE conversation = key AND name = $2 AND (due, rev) = ($3, $4::bigint) RETURNING name
), added AS (
    INSERT INTO {schema}.schedules (conversation, name, due, rev, entry)
    SELECT key, $2::text, $5::bigint, $6::bigint, $7::text FROM target WHERE $3::bigint IS NULL
    ON CONFLICT (conversation, name) DO UPDATE SET due = excluded.due, rev = excluded.rev, entry = excluded.entry
)
SELECT version, EXISTS (SELECT FROM replaced) FROM target";

/// Removes a schedule, under the same condition.
const UNSCHEDULE: &str = "
WITH target AS (
    SELECT key, version FROM {schema}.conversations WHERE id = $1
), removed AS (
    DELETE FROM {schema}.schedules USING target
    WHERE conversation = key AND name = $2 AND ($3::bigint IS NULL OR (due, rev) = ($3, $4::bigint)) RETURNING name
)
SELECT version, EXISTS (SELECT FROM removed) FROM target";

/// Deletes a conversation that still has this version, and keeps the sums of its usage. If another writer is faster, no
/// row is deleted, because the usage of its write would be missing from the sums.
const DELETE: &str = "
WITH doomed AS (
    SELECT key FROM {schema}.conversations
    WHERE key = $1 AND version = $2 AND ($3::bigint IS NULL OR epoch = $3 AND owner IS NOT NULL)
    FOR UPDATE
), kept AS (
    INSERT INTO {schema}.kept_usage
        (labels, hour, model, requests, input, cache_read, cache_write, output, reasoning, cost)
    SELECT coalesce((SELECT jsonb_object_agg(name, value) FROM {schema}.labels
            WHERE conversation = $1 AND {is_kept_label}), '{}'),
        at / 3600000 * 3600000, CASE WHEN octet_length(model) <= 1000 THEN model ELSE '' END, {sums}
    FROM {schema}.usage WHERE conversation = (SELECT key FROM doomed) GROUP BY 2, 3
    ON CONFLICT (labels, hour, model) DO UPDATE SET requests = kept_usage.requests + excluded.requests,
        input = least(kept_usage.input::numeric + excluded.input, 9e18)::bigint,
        cache_read = least(kept_usage.cache_read::numeric + excluded.cache_read, 9e18)::bigint,
        cache_write = least(kept_usage.cache_write::numeric + excluded.cache_write, 9e18)::bigint,
        output = least(kept_usage.output::numeric + excluded.output, 9e18)::bigint,
        reasoning = least(kept_usage.reasoning::numeric + excluded.reasoning, 9e18)::bigint,
        cost = CASE WHEN kept_usage.cost IS NULL THEN excluded.cost
            ELSE least(kept_usage.cost, 1e300) + least(coalesce(excluded.cost, 0), 1e300) END
)
DELETE FROM {schema}.conversations WHERE key = (SELECT key FROM doomed)";

/// Finds the reason why a write changed no row.
const EXAMINE: &str = "
SELECT version, epoch = $3 AND owner IS NOT NULL,
    (SELECT write FROM {schema}.writes WHERE conversation = key AND writes.version = $2)
FROM {schema}.conversations WHERE id = $1";

const CONVERSATION: &str = "
SELECT conversations.version, created, updated, title, state, head, next_node, {labels}, runs.ending, runs.prompts,
    mark, mark_version, title_by_person, used.*
FROM {schema}.conversations
    LEFT JOIN {schema}.runs ON runs.conversation = key AND NOT EXISTS (
        SELECT FROM {schema}.nodes WHERE nodes.conversation = key AND nodes.version > runs.version
    ), LATERAL (SELECT {sums} FROM {schema}.usage WHERE usage.conversation = key) AS used
WHERE id = $1";

/// The labels of a conversation as a JSON object.
const LABELS: &str =
    "(SELECT json_object_agg(name, value)::text FROM {schema}.labels WHERE conversation = key)";

/// The columns of a turn in flight, with its approvals as JSON, and the current time.
const TURN_COLUMNS: &str = "turns.turn, turns.record, turns.head, {since}, {recorded}, (
        SELECT json_agg(json_build_array(content, {approval_since}) ORDER BY place)::text
        FROM {schema}.approvals WHERE approvals.conversation = turns.conversation
    ), {now}";

/// The columns of an entry in a list of turns: those of the conversation, and those of the turn.
const LISTED_TURN: &str =
    "conversations.id, version, CASE WHEN {held} THEN owner END, owner_address, {labels}, {turn_columns}";

/// The turn in flight of a conversation.
const TURN: &str = "
SELECT {turn_columns}, version, turns.head IS NOT DISTINCT FROM conversations.head, (
    SELECT json_agg(content ORDER BY place)::text FROM {schema}.pending WHERE pending.conversation = turns.conversation
)
FROM {schema}.conversations LEFT JOIN {schema}.turns ON turns.conversation = key WHERE id = $1";

/// The number of open approvals, or null if no turn is in flight.
const IN_FLIGHT: &str = "(SELECT (SELECT count(*) FROM {schema}.approvals WHERE approvals.conversation = turns.conversation) \
    FROM {schema}.turns WHERE turns.conversation = key AND turns.head IS NOT DISTINCT FROM conversations.head)";

const NODES: &str = "
SELECT id, parent, message, usage, left_open FROM {schema}.nodes
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1) ORDER BY version, place";

/// The files of a conversation. If a place is given, only the files with references from this place.
const FILES_OF: &str = "
SELECT digest, bytes FROM {schema}.files
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1) AND ($2::integer IS NULL OR digest IN (
    SELECT uses.digest FROM {schema}.file_uses AS uses
    WHERE uses.conversation = files.conversation AND place = $2
))";

const CURSORS: &str = "
SELECT node, child FROM {schema}.cursors
WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)";

const SUMMARY: &str = "
SELECT id, version, created, updated, title,
    CASE WHEN {held} THEN owner END, owner_address, {labels}, {in_flight}
FROM {schema}.conversations";

const ALL: &str = "SELECT * FROM {schema}.conversations ORDER BY updated DESC, id LIMIT $1 OFFSET $2";

/// Acquires a conversation whose epoch is still the one that was read before. So a delayed statement can't replace an
/// owner that acquired the conversation in the meantime. The epoch begins with the milliseconds of the database's clock,
/// followed by 20 random bits. So if another server takes over without the last transactions, its epochs are higher than
/// those that it lacks.
const ACQUIRE: &str = "
UPDATE {schema}.conversations SET
    epoch = greatest(epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20) + $6, owner = $2, owner_address = $3,
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

/// Renews leases. Skips rows that are locked, because otherwise one hanging transaction would prevent the renewal of
/// all other leases. The next renewal can renew the skipped leases.
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

/// Returns the version, and whether the conversation is held under this epoch.
const VERSION: &str =
    "SELECT version, epoch = $2 AND owner IS NOT NULL FROM {schema}.conversations WHERE key = $1";

/// Releases a lease. If the lease was already released, the last event of the session's feed is not recorded.
const RELEASE: &str = "
UPDATE {schema}.conversations
SET owner = NULL, owner_address = NULL, expires = '-infinity',
    mark = CASE WHEN owner IS NULL THEN mark ELSE coalesce($3::text, mark) END,
    mark_version = CASE WHEN owner IS NULL OR $3 IS NULL THEN mark_version ELSE version END
WHERE id = $1 AND epoch = $2";

impl PostgresStatements {
    /// Returns the query for the summaries of a page, given the query for the page's conversations.
    pub(super) fn page_of(&self, conversations: &str) -> String {
        page_of(&self.summary_columns, conversations)
    }

    /// Returns the statements for the schema with this name.
    pub(super) fn new(schema: &str) -> Self {
        let quoted = quote(schema);
        let sql = |template: &str| {
            let parts = template.replace("{held}", HELD).replace("{labels}", LABELS).replace("{sums}", SUMS);
            let parts = parts.replace("{rule}", &RULE.to_string()).replace("{is_kept_label}", IS_KEPT_LABEL);
            let parts = parts.replace("{in_flight}", IN_FLIGHT).replace("{turn_columns}", TURN_COLUMNS);
            let parts = parts
                .replace("{since}", &millis("turns.since"))
                .replace("{recorded}", &millis("turns.recorded"))
                .replace("{now}", &millis("date_trunc('milliseconds', clock_timestamp())"))
                .replace("{approval_since}", &millis("approvals.since"));
            parts.replace("{schema}", &quoted)
        };
        // The number of parameters before those of the files is `params`.
        let write = |turn: &str, params: usize| {
            let number = |part: String, at| part.replace(&format!("$F{at}"), &format!("${}", params + at));
            let files = (1..=4).fold(FILES.to_owned(), number);
            sql(&WRITE.replace("{turn}", turn).replace("{files}", &files))
        };
        Self {
            create: sql(CREATE),
            created_by: sql(CREATED_BY),
            write: write(END, 29),
            record: write(RECORD, 37),
            turn: sql(TURN),
            listed_turn: sql(LISTED_TURN),
            held: HELD.to_owned(),
            examine: sql(EXAMINE),
            conversation: sql(CONVERSATION),
            nodes: sql(NODES),
            files: sql(FILES_OF),
            cursors: sql(CURSORS),
            summary: sql(SUMMARY) + " WHERE id = $1",
            list: page_of(&sql(SUMMARY), &sql(ALL)),
            // The query has two parts, so that each part reads one range of the index. A query with one part would scan
            // all conversations with the same time. Each part has its own limit, $5 (limit plus offset), because
            // otherwise the server would sort whole ranges.
            list_after: format!(
                "({summary} WHERE updated = $3 AND id > $4 ORDER BY id LIMIT $5)
                 UNION ALL ({summary} WHERE updated < $3 ORDER BY updated DESC, id LIMIT $5)
                 ORDER BY updated DESC, id LIMIT $1 OFFSET $2",
                summary = sql(SUMMARY)
            ),
            summary_columns: sql(SUMMARY),
            label_count: sql(LABEL_COUNT),
            usage: sql(USAGE),
            sums: SUMS.to_owned(),
            erase: sql(ERASE),
            last_run: sql(LAST_RUN),
            version: sql(VERSION),
            usable_index: format!(
                "SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
                 WHERE indisvalid AND relname = $1 AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = '{}')",
                schema.replace('\'', "''")
            ),
            find: sql("SELECT key FROM {schema}.conversations WHERE id = $1"),
            delete: sql(DELETE),
            schedule: sql(SCHEDULE),
            unschedule: sql(UNSCHEDULE),
            acquire: sql(ACQUIRE),
            owner: sql(OWNER),
            renew: sql(RENEW),
            renew_all: sql(RENEW_ALL),
            release: sql(RELEASE),
            schema: quoted.clone(),
        }
    }
}

/// Returns the query for the summaries of a page, given the query for the page's conversations. The labels are read for
/// this page alone, and not for the conversations before it.
fn page_of(summary: &str, conversations: &str) -> String {
    let (columns, _) = summary.split_once("\nFROM ").unwrap_or_default();
    format!("{columns} FROM ({conversations}) AS conversations ORDER BY updated DESC, id")
}

/// Returns an SQL expression for a time in milliseconds since 1970. A time that this crate can't have written is replaced
/// by the nearest possible time.
pub(super) fn millis(time: &str) -> String {
    format!("least(greatest(extract(epoch FROM {time}) * 1000, 0), 253402300800000)::bigint")
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
    struct InvalidSchemaName(String);

    // Names that begin with `pg_` are reserved for the system.
    if name.is_empty() || name.len() > LONGEST || name.contains('\0') || name.starts_with("pg_") {
        return Err(StoreError::misconfigured("the schema name", InvalidSchemaName(name.to_owned())));
    }
    Ok(())
}
