-- The indexed texts. `version` and `place` are those of the node, or null for a title.
CREATE TABLE texts (
    key INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    version INTEGER,
    place INTEGER
) STRICT;

CREATE UNIQUE INDEX texts_by_place ON texts (conversation, version, place);

-- The words of each indexed text, by the key of the text. The table does not contain the texts themselves.
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2');
-- Deleted words are removed from the index at once.
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);

-- The progress of indexing the nodes that are older than the index: `conversation` is the key of the last indexed
-- conversation, and `last` is the key of the last conversation to index.
CREATE TABLE indexing (conversation INTEGER NOT NULL, last INTEGER NOT NULL) STRICT;
INSERT INTO indexing SELECT 0, coalesce(max(key), 0) FROM conversations;

-- The text to index for each node, or null if the message has no text. Long messages are not indexed, and messages with
-- U+0000 can't be indexed.
CREATE VIEW node_texts AS
SELECT conversation, version, place, (
    SELECT group_concat(value ->> '$.text', char(10)) FROM json_each(message, '$.content')
    WHERE value ->> '$.type' = 'text'
) AS text
FROM nodes
WHERE octet_length(message) <= 262144 AND instr(message, '\u0000') = 0 AND json_valid(message);

CREATE TRIGGER node_is_indexed AFTER INSERT ON nodes BEGIN
    INSERT INTO texts (conversation, version, place)
    SELECT conversation, version, place FROM node_texts
    WHERE (conversation, version, place) = (new.conversation, new.version, new.place) AND text <> '';
    INSERT INTO words (rowid, text)
    SELECT key, text FROM texts JOIN node_texts USING (conversation, version, place)
    WHERE (conversation, version, place) = (new.conversation, new.version, new.place);
END;

CREATE TRIGGER node_is_removed BEFORE DELETE ON nodes BEGIN
    INSERT INTO words (words, rowid, text)
    SELECT 'delete', key, text FROM texts JOIN node_texts USING (conversation, version, place)
    WHERE (conversation, version, place) = (old.conversation, old.version, old.place);
    DELETE FROM texts
    WHERE (conversation, version, place) = (old.conversation, old.version, old.place);
END;

CREATE TRIGGER title_is_indexed AFTER UPDATE OF title ON conversations WHEN old.title IS NOT new.title BEGIN
    INSERT INTO words (words, rowid, text)
    SELECT 'delete', key, old.title FROM texts WHERE conversation = old.key AND version IS NULL;
    DELETE FROM texts WHERE conversation = old.key AND version IS NULL;
    INSERT INTO texts (conversation) SELECT new.key WHERE new.title <> '' AND instr(new.title, char(0)) = 0;
    INSERT INTO words (rowid, text) SELECT key, new.title FROM texts WHERE conversation = new.key AND version IS NULL;
END;

CREATE TRIGGER title_is_removed BEFORE DELETE ON conversations BEGIN
    INSERT INTO words (words, rowid, text)
    SELECT 'delete', key, old.title FROM texts WHERE conversation = old.key AND version IS NULL;
    DELETE FROM texts WHERE conversation = old.key AND version IS NULL;
END;
