-- The indexed texts. `version` and `place` are those of the node, or null for a title. A key is not used again, so words
-- that are left of a text are never found.
CREATE TABLE texts (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation INTEGER NOT NULL,
    version INTEGER,
    place INTEGER
) STRICT;

CREATE UNIQUE INDEX texts_by_place ON texts (conversation, version, place);

-- The words of each indexed text, by the key of the text. The table does not contain the texts themselves. The store
-- makes the words and writes them with spaces between them, so the tokenizer must not change them.
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = 'ascii');
-- Deleted words are removed from the index at once.
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);

-- The number of the rule by which the words were made, or 0 if the index has to be built anew. The progress of indexing
-- the texts that are older than the index: `conversation` is the key of the last indexed conversation, and `last` is the
-- key of the last conversation to index.
CREATE TABLE indexing (rule INTEGER NOT NULL, conversation INTEGER NOT NULL, last INTEGER NOT NULL) STRICT;
