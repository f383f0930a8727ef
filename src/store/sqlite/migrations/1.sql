-- For each conversation: the fields that a list shows, and the owner. The rows are small, because each write and each
-- renewal rewrites one.
CREATE TABLE conversations (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    created INTEGER NOT NULL, -- milliseconds since 1970, as all times here
    updated INTEGER NOT NULL,
    title TEXT,
    title_by_person INTEGER NOT NULL DEFAULT 0, -- 1 if a person set the title, 0 if it was made from the messages
    head INTEGER,
    epoch INTEGER NOT NULL,
    owner TEXT,
    owner_address TEXT,
    expires INTEGER NOT NULL DEFAULT 0,
    lasts INTEGER NOT NULL DEFAULT 0, -- of the lease, to tell one that a clock set back would make last for long
    mark TEXT, -- the last event of the session's feed
    mark_version INTEGER, -- the version at which the mark was written; the mark is void at any other version
    next_node INTEGER -- the id of the next node, if nodes with higher ids than the last remaining node were erased
) STRICT;

CREATE INDEX conversations_by_update ON conversations (updated DESC, id);

-- Model, system prompt and options, as JSON.
CREATE TABLE states (
    conversation INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
    state TEXT NOT NULL
) STRICT;

-- All writes, for recognizing repetitions. `version` is the version that the write resulted in.
CREATE TABLE writes (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    version INTEGER NOT NULL,
    write BLOB NOT NULL,
    PRIMARY KEY (conversation, version)
) STRICT, WITHOUT ROWID;

-- The nodes. `version` is the version that the commit of the node resulted in. `place` is the node's position within
-- this commit.
CREATE TABLE nodes (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    version INTEGER NOT NULL,
    place INTEGER NOT NULL,
    id INTEGER NOT NULL,
    parent INTEGER,
    message TEXT NOT NULL, -- JSON, exactly as it was written
    usage TEXT,
    left_open INTEGER NOT NULL DEFAULT 0, -- 1 if a turn ended here and left tool uses open
    PRIMARY KEY (conversation, version, place)
) STRICT, WITHOUT ROWID;

-- The bytes of large attachments, once per conversation. `digest` is their SHA-256 in hexadecimal digits. JSON in other
-- tables refers to it.
CREATE TABLE files (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    digest TEXT NOT NULL,
    bytes BLOB NOT NULL,
    UNIQUE (conversation, digest)
) STRICT;

-- The references to files: from the node with this version and place, from the turn in flight (place -1), or from the
-- end of the last run (place -2). `version` is the version that the write of the reference resulted in. The triggers at
-- the end remove references together with their rows, and files together with their last references.
CREATE TABLE file_uses (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    place INTEGER NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (conversation, place, version, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX file_uses_by_digest ON file_uses (conversation, digest);

CREATE TABLE cursors (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    node INTEGER NOT NULL,
    child INTEGER NOT NULL,
    PRIMARY KEY (conversation, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE labels (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (conversation, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX labels_by_value ON labels (name, value, conversation);

-- The usage ledger, with one row per request. `version` is the version that the write of the row resulted in. `place`
-- is the row's position within this write.
CREATE TABLE usage (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    version INTEGER NOT NULL,
    place INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    turn TEXT,
    step INTEGER,
    message TEXT,
    at INTEGER NOT NULL,
    model TEXT,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    cost REAL,
    ending TEXT NOT NULL,
    PRIMARY KEY (conversation, version, place)
) STRICT, WITHOUT ROWID;

-- The usage of deleted conversations: sums per labels (as a JSON object), hour and model ('' if it is unknown).
CREATE TABLE kept_usage (
    labels TEXT NOT NULL,
    hour INTEGER NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    cost REAL,
    PRIMARY KEY (labels, hour, model)
) STRICT, WITHOUT ROWID;

-- The end of the last run, if the run left a prompt without an answer, was cancelled or failed. The row is void if a
-- node has a later version. `prompts` contains the known ids of prompts.
CREATE TABLE runs (
    conversation INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
    version INTEGER NOT NULL,
    turn TEXT,
    ending TEXT NOT NULL, -- JSON
    prompts TEXT
) STRICT;

-- The turn in flight, if it is recorded.
CREATE TABLE turns (
    conversation INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
    turn TEXT NOT NULL,
    record TEXT NOT NULL, -- JSON, without the head, the messages and the tool uses that wait
    head INTEGER,
    since INTEGER NOT NULL,
    recorded INTEGER NOT NULL,
    waits INTEGER NOT NULL
) STRICT;

CREATE INDEX turns_at_work ON turns (since) WHERE NOT waits;

-- The tool uses that wait for a decision.
CREATE TABLE approvals (
    conversation INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
    tool_use TEXT NOT NULL,
    place INTEGER NOT NULL,
    content TEXT NOT NULL,
    survives INTEGER NOT NULL,
    since INTEGER NOT NULL,
    expires INTEGER,
    PRIMARY KEY (conversation, tool_use)
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_by_age ON approvals (since, conversation);
CREATE INDEX approvals_by_expiry ON approvals (expires) WHERE expires IS NOT NULL;

-- The messages of the turn in flight.
CREATE TABLE pending (
    conversation INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
    place INTEGER NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (conversation, place)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER file_uses_of_nodes AFTER DELETE ON nodes WHEN instr(old.message, '"type":"file"') BEGIN
    DELETE FROM file_uses WHERE (conversation, place, version) = (old.conversation, old.place, old.version);
END;

CREATE TRIGGER file_uses_of_turns AFTER DELETE ON turns BEGIN
    DELETE FROM file_uses WHERE (conversation, place) = (old.conversation, -1);
END;

CREATE TRIGGER file_uses_of_runs AFTER DELETE ON runs BEGIN
    DELETE FROM file_uses WHERE (conversation, place) = (old.conversation, -2);
END;

CREATE TRIGGER file_uses_of_replaced_runs AFTER UPDATE ON runs BEGIN
    DELETE FROM file_uses WHERE (conversation, place) = (old.conversation, -2);
END;

CREATE TRIGGER unused_files AFTER DELETE ON file_uses BEGIN
    DELETE FROM files WHERE (conversation, digest) = (old.conversation, old.digest) AND NOT EXISTS (
        SELECT 1 FROM file_uses WHERE (conversation, digest) = (old.conversation, old.digest)
    );
END;
