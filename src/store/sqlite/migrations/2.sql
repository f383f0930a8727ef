-- `mark_version` is the version at which `mark` was written. The mark is void at any other version. `next_node` is the
-- id of the next node. It is null unless nodes with higher ids than the last remaining node were erased.
ALTER TABLE conversations ADD COLUMN mark TEXT;
ALTER TABLE conversations ADD COLUMN mark_version INTEGER;
ALTER TABLE conversations ADD COLUMN next_node INTEGER;

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

-- Conversations of schema version 1 have no ledger. Their new ledgers begin with the usage of their nodes.
INSERT INTO usage
SELECT conversation, version, place, 'answer', NULL, NULL, NULL,
    coalesce(CAST(message ->> '$.timestamp' AS INTEGER), 0), NULL,
    coalesce(min(CAST(usage ->> '$.input' AS INTEGER), 1 << 40), 0),
    coalesce(min(CAST(usage ->> '$.cache_read' AS INTEGER), 1 << 40), 0),
    coalesce(min(CAST(usage ->> '$.cache_write' AS INTEGER), 1 << 40), 0),
    coalesce(min(CAST(usage ->> '$.output' AS INTEGER), 1 << 40), 0),
    coalesce(min(CAST(usage ->> '$.reasoning' AS INTEGER), 1 << 40), 0),
    CAST(usage ->> '$.cost' AS REAL), 'answered'
FROM nodes WHERE json_valid(usage) AND json_valid(message);

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
    lives INTEGER NOT NULL,
    orderly INTEGER NOT NULL,
    format INTEGER NOT NULL,
    core TEXT NOT NULL,
    head INTEGER,
    branch TEXT,
    spent INTEGER NOT NULL,
    prompts TEXT NOT NULL,
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
    reason TEXT NOT NULL,
    on_expiry TEXT,
    survives INTEGER NOT NULL,
    since INTEGER NOT NULL,
    expires INTEGER,
    PRIMARY KEY (conversation, tool_use)
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_by_age ON approvals (since, conversation);
CREATE INDEX approvals_by_expiry ON approvals (expires) WHERE expires IS NOT NULL;

-- The messages of the turn in flight (slot -1), and the results of its tools.
CREATE TABLE pending (
    conversation INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
    place INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (conversation, place, slot)
) STRICT, WITHOUT ROWID;
