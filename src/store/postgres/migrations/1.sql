-- In each statement, the placeholder in braces is replaced by the quoted name of the schema. Comments must not contain
-- the placeholder, because the name may contain line ends.

-- For each conversation: the fields that a list shows, the owner, and the state. The lease is in the row that each
-- write locks, so that a write and a take-over always see each other.
CREATE TABLE {schema}.conversations (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    version bigint NOT NULL,
    created timestamptz NOT NULL,
    updated timestamptz NOT NULL,
    -- As a JSON string, since `text` can't hold U+0000.
    title text,
    -- Whether a person set the title. Otherwise it was made from the messages.
    title_by_person boolean NOT NULL DEFAULT false,
    -- Model, system prompt and options, as JSON.
    state text NOT NULL,
    head bigint,
    epoch bigint NOT NULL,
    owner text,
    owner_address text,
    expires timestamptz NOT NULL DEFAULT '-infinity',
    -- The duration of the lease. After the clock was set back, it reveals a lease that would end much too late.
    lasts interval,
    -- The last event of the session's feed. It is void at any other version than `mark_version`.
    mark text,
    mark_version bigint,
    -- The id of the next node. It is null unless nodes with higher ids than the last remaining node were erased.
    next_node bigint,
    -- The words of the title, each between two spaces, and the number of the rule by which they were made.
    words text NOT NULL DEFAULT ' ',
    rule smallint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

CREATE INDEX conversations_by_update ON {schema}.conversations (updated DESC, id);

-- All writes, for recognizing repetitions. `version` is the version that the write resulted in.
CREATE TABLE {schema}.writes (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    write bytea NOT NULL,
    PRIMARY KEY (conversation, version)
);

-- The nodes. `version` is the version that the commit of the node resulted in. `place` is the node's position within
-- this commit.
CREATE TABLE {schema}.nodes (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    place integer NOT NULL,
    id bigint NOT NULL,
    parent bigint,
    -- JSON, exactly as it was written. `content` is only for queries, because `jsonb` reorders keys. `content` is null
    -- if the message contains U+0000, which `jsonb` rejects, or if the message is too long to be stored twice.
    message text NOT NULL,
    content jsonb GENERATED ALWAYS AS (
        CASE WHEN strpos(message, '\u0000') = 0 AND octet_length(message) <= 262144 THEN message::jsonb END
    ) STORED,
    usage text,
    -- Whether a turn ended with this node and left tool uses open.
    left_open boolean NOT NULL DEFAULT false,
    -- The words of the text blocks, each between two spaces, and the number of the rule by which they were made.
    words text NOT NULL DEFAULT ' ',
    rule smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (conversation, version, place)
);

-- The bytes of large attachments, once per conversation. `digest` is their SHA-256 in hexadecimal digits. JSON in other
-- tables refers to it. The bytes are not compressed, because most of them are already compressed.
CREATE TABLE {schema}.files (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    digest text NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (conversation, digest)
);
ALTER TABLE {schema}.files ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- The references to files: from the node with this version and place, from the turn in flight (place -1), or from the
-- end of the last run (place -2). `version` is the version that the write of the reference resulted in. The triggers at
-- the end remove references together with their rows, and files together with their last references.
CREATE TABLE {schema}.file_uses (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    place integer NOT NULL,
    version bigint NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (conversation, place, version, digest)
);

CREATE INDEX file_uses_by_digest ON {schema}.file_uses (conversation, digest);

CREATE TABLE {schema}.cursors (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    node bigint NOT NULL,
    child bigint NOT NULL,
    PRIMARY KEY (conversation, node)
);

CREATE TABLE {schema}.labels (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    PRIMARY KEY (conversation, name)
);

CREATE INDEX labels_by_value ON {schema}.labels (name, value, conversation);

-- The usage ledger, with one row per request. `version` is the version that the write of the row resulted in. `place`
-- is the row's position within this write. Times are milliseconds since 1970. A model's name is a JSON string, because
-- `text` can't hold U+0000.
CREATE TABLE {schema}.usage (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    place integer NOT NULL,
    purpose text NOT NULL,
    turn text,
    step bigint,
    message text,
    at bigint NOT NULL,
    model text,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    cost double precision,
    ending text NOT NULL,
    PRIMARY KEY (conversation, version, place)
);

-- The usage of deleted conversations: sums per labels (a JSON object), hour and model ('' if it is unknown).
CREATE TABLE {schema}.kept_usage (
    labels jsonb NOT NULL,
    hour bigint NOT NULL,
    model text NOT NULL,
    requests bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    cost double precision,
    PRIMARY KEY (labels, hour, model)
);

-- The end of the last run, if the run left a prompt without an answer, was cancelled or failed. The row is void if a
-- node has a later version. `prompts` contains the known ids of prompts.
CREATE TABLE {schema}.runs (
    conversation bigint PRIMARY KEY REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    turn text,
    ending text NOT NULL,
    prompts text
);

-- The turn in flight, if it is recorded.
CREATE TABLE {schema}.turns (
    conversation bigint PRIMARY KEY REFERENCES {schema}.conversations ON DELETE CASCADE,
    turn text NOT NULL,
    -- JSON, without the head, the messages and the tool uses that wait.
    record text NOT NULL,
    head bigint,
    since timestamptz NOT NULL,
    recorded timestamptz NOT NULL,
    waits boolean NOT NULL
);

CREATE INDEX turns_at_work ON {schema}.turns (since) WHERE NOT waits;

-- The tool uses that wait for a decision.
CREATE TABLE {schema}.approvals (
    conversation bigint NOT NULL REFERENCES {schema}.turns ON DELETE CASCADE,
    tool_use text NOT NULL,
    place integer NOT NULL,
    content text NOT NULL,
    survives boolean NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz,
    PRIMARY KEY (conversation, tool_use)
);

CREATE INDEX approvals_by_age ON {schema}.approvals (since, conversation);
CREATE INDEX approvals_by_expiry ON {schema}.approvals (expires) WHERE expires IS NOT NULL;

-- The messages of the turn in flight.
CREATE TABLE {schema}.pending (
    conversation bigint NOT NULL REFERENCES {schema}.turns ON DELETE CASCADE,
    place integer NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (conversation, place)
);

-- These triggers run after all parts of a statement, so they see the references that the same write has added. The
-- version tells these from earlier ones.
CREATE FUNCTION {schema}.remove_file_uses() RETURNS trigger LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
BEGIN
    DELETE FROM file_uses WHERE conversation = OLD.conversation AND place = TG_ARGV[0]::integer
        AND version <> (SELECT version FROM conversations WHERE key = OLD.conversation);
    RETURN NULL;
END $$;

CREATE FUNCTION {schema}.remove_file_uses_of_node() RETURNS trigger LANGUAGE plpgsql
SET search_path = {schema}, pg_temp AS $$
BEGIN
    DELETE FROM file_uses
    WHERE (conversation, place, version) = (OLD.conversation, OLD.place, OLD.version);
    RETURN NULL;
END $$;

CREATE FUNCTION {schema}.remove_unused_file() RETURNS trigger LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
BEGIN
    DELETE FROM files WHERE (conversation, digest) = (OLD.conversation, OLD.digest) AND NOT EXISTS (
        SELECT FROM file_uses WHERE (conversation, digest) = (OLD.conversation, OLD.digest)
    );
    RETURN NULL;
END $$;

CREATE TRIGGER file_uses_of_nodes AFTER DELETE ON {schema}.nodes FOR EACH ROW
WHEN (strpos(OLD.message, '"type":"file"') > 0) EXECUTE FUNCTION {schema}.remove_file_uses_of_node();

CREATE TRIGGER file_uses_of_turns AFTER DELETE ON {schema}.turns FOR EACH ROW
EXECUTE FUNCTION {schema}.remove_file_uses('-1');

CREATE TRIGGER file_uses_of_replaced_turns AFTER UPDATE ON {schema}.turns FOR EACH ROW
WHEN ((OLD.turn, OLD.head) IS DISTINCT FROM (NEW.turn, NEW.head)) EXECUTE FUNCTION {schema}.remove_file_uses('-1');

CREATE TRIGGER file_uses_of_runs AFTER DELETE OR UPDATE ON {schema}.runs FOR EACH ROW
EXECUTE FUNCTION {schema}.remove_file_uses('-2');

CREATE TRIGGER unused_files AFTER DELETE ON {schema}.file_uses FOR EACH ROW
EXECUTE FUNCTION {schema}.remove_unused_file();
