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
    -- Model, system prompt and options, as JSON.
    state text NOT NULL,
    head bigint,
    epoch bigint NOT NULL,
    owner text,
    owner_address text,
    expires timestamptz NOT NULL DEFAULT '-infinity'
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
    PRIMARY KEY (conversation, version, place)
);

CREATE TABLE {schema}.cursors (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    node bigint NOT NULL,
    child bigint NOT NULL,
    PRIMARY KEY (conversation, node)
);
