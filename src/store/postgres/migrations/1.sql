-- The schema's quoted name is put in where it belongs. None is to stand in a comment: names may have line ends.

-- What a list shows, who has the conversation, and its state. A lease stands in the row that each write locks: so a
-- write and a take-over never miss each other.
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

-- All writes, to know a repetition by: the version that each led to.
CREATE TABLE {schema}.writes (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    write bytea NOT NULL,
    PRIMARY KEY (conversation, version)
);

-- In the order of commits (the version that each led to), and of nodes within them.
CREATE TABLE {schema}.nodes (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    version bigint NOT NULL,
    place integer NOT NULL,
    id bigint NOT NULL,
    parent bigint,
    -- JSON, exactly as it was written. `content` is for queries alone: `jsonb` reorders keys. It is null where
    -- `jsonb` refuses the text (U+0000), and for what is so long that keeping it twice would be a waste.
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
