-- Search over messages: derived from `conversation`, made again by `reindex`.
-- Each word in `words` begins with a mark of its owner, so a search reads the lists of its own owner only.

CREATE TABLE message_words (
  id INTEGER PRIMARY KEY,
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  words TEXT NOT NULL,
  UNIQUE (owner, session_id, seq)
) STRICT;

CREATE VIRTUAL TABLE message_fts USING fts5 (
  words, content = 'message_words', content_rowid = 'id', detail = 'none', tokenize = "ascii tokenchars '_'"
);
CREATE TRIGGER message_words_added AFTER INSERT ON message_words BEGIN
  INSERT INTO message_fts (rowid, words) VALUES (new.id, new.words);
END;
CREATE TRIGGER message_words_removed AFTER DELETE ON message_words BEGIN
  INSERT INTO message_fts (message_fts, rowid, words) VALUES ('delete', old.id, old.words);
END;
