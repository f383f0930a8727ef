-- In each statement, the placeholder in braces is replaced by the quoted name of the schema.

-- `mark_version` is the version at which `mark` was written. The mark is void at any other version. `next_node` is the
-- id of the next node. It is null unless nodes with higher ids than the last remaining node were erased.
ALTER TABLE {schema}.conversations
    ADD COLUMN mark text, ADD COLUMN mark_version bigint, ADD COLUMN next_node bigint;

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

-- Converts a number of tokens, as text from JSON, to an integer. Returns 0 if the text is not a number.
CREATE FUNCTION {schema}.tokens(number text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN number ~ '^[0-9]{1,18}$' THEN least(number::bigint, 9007199254740992) ELSE 0 END
$$;

-- Conversations of earlier schema versions have no ledger. Their new ledgers begin with the usage of their nodes.
INSERT INTO {schema}.usage
SELECT conversation, version, place, 'answer', NULL, NULL, NULL,
    {schema}.tokens(coalesce(content ->> 'timestamp', substring(message from '"timestamp":([0-9]+)'))), NULL,
    {schema}.tokens(substring(usage from '"input":([0-9]+)')),
    {schema}.tokens(substring(usage from '"cache_read":([0-9]+)')),
    {schema}.tokens(substring(usage from '"cache_write":([0-9]+)')),
    {schema}.tokens(substring(usage from '"output":([0-9]+)')),
    {schema}.tokens(substring(usage from '"reasoning":([0-9]+)')),
    substring(usage from '"cost":([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e-?[0-9]{1,2})?)[,}]')::double precision,
    'answered'
FROM {schema}.nodes WHERE usage IS NOT NULL;

DROP FUNCTION {schema}.tokens(text);

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

-- The words of a message's text blocks and of a title, for searches. All punctuation is replaced by spaces, because the
-- text search parser would treat a file name as one word and ignore a tag. A title is a JSON string. Its escapes are
-- replaced by spaces, too.
CREATE FUNCTION {schema}.words_of_message(content jsonb) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT to_tsvector('simple', regexp_replace(string_agg(text #>> '{}', ' '), '[!-/:-@[-`{-~]+', ' ', 'g'))
    FROM jsonb_path_query(content, '$.content[*] ? (@.type == "text").text') AS text
$$;

CREATE FUNCTION {schema}.words_of_title(title text) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT to_tsvector('simple',
        regexp_replace(regexp_replace(title, '\\(u[0-9a-fA-F]{4}|.)', ' ', 'g'), '[!-/:-@[-`{-~]+', ' ', 'g'))
$$;

-- The turn in flight, if it is recorded.
CREATE TABLE {schema}.turns (
    conversation bigint PRIMARY KEY REFERENCES {schema}.conversations ON DELETE CASCADE,
    turn text NOT NULL,
    lives integer NOT NULL,
    orderly boolean NOT NULL,
    format integer NOT NULL,
    core text NOT NULL,
    head bigint,
    branch text,
    spent interval NOT NULL,
    prompts text NOT NULL,
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
    reason text NOT NULL,
    on_expiry text,
    survives boolean NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz,
    PRIMARY KEY (conversation, tool_use)
);

CREATE INDEX approvals_by_age ON {schema}.approvals (since, conversation);
CREATE INDEX approvals_by_expiry ON {schema}.approvals (expires) WHERE expires IS NOT NULL;

-- The messages of the turn in flight (slot -1), and the results of its tools.
CREATE TABLE {schema}.pending (
    conversation bigint NOT NULL REFERENCES {schema}.turns ON DELETE CASCADE,
    place integer NOT NULL,
    slot integer NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (conversation, place, slot)
);
