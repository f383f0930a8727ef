-- The schedules. `due` is the next time. `rev` distinguishes a schedule from earlier ones with its name. `entry` is the
-- schedule as JSON.
CREATE TABLE schedules (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    name TEXT NOT NULL,
    due INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (conversation, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_by_due ON schedules (due);
