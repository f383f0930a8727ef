-- The schedules. `due` is the next time, in milliseconds since 1970. `rev` distinguishes a schedule from earlier ones with
-- its name. `entry` is the schedule as JSON.
CREATE TABLE {schema}.schedules (
    conversation bigint NOT NULL REFERENCES {schema}.conversations ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    due bigint NOT NULL,
    rev bigint NOT NULL,
    entry text NOT NULL,
    PRIMARY KEY (conversation, name)
);

CREATE INDEX schedules_by_due ON {schema}.schedules (due);
