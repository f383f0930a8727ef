-- For each conversation: the fields that a list shows, and the owner. The rows are small, because each write and each
-- renewal rewrites one.
CREATE TABLE conversations (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    created INTEGER NOT NULL, -- milliseconds since 1970, as all times here
    updated INTEGER NOT NULL,
    title TEXT,
    head INTEGER,
    epoch INTEGER NOT NULL,
    owner TEXT,
    owner_address TEXT,
    expires INTEGER NOT NULL DEFAULT 0,
    lasts INTEGER NOT NULL DEFAULT 0 -- of the lease, to tell one that a clock set back would make last for long
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
    PRIMARY KEY (conversation, version, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE cursors (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    node INTEGER NOT NULL,
    child INTEGER NOT NULL,
    PRIMARY KEY (conversation, node)
) STRICT, WITHOUT ROWID;
