-- Message search in plain tables instead of FTS5, whose index kept deleted words until it was merged, and broke when it
-- was merged too often. Deleting a row here erases its words (`secure_delete`). All of it is derived from `conversation`.
-- A block is 32 messages of a session, so that new words are written close together and a search takes one step a block.
-- The tables of version 2 are emptied and dropped in the background: they may be large or damaged.

DROP TRIGGER IF EXISTS message_words_added;
DROP TRIGGER IF EXISTS message_words_removed;

CREATE TABLE message_block (
  id INTEGER PRIMARY KEY,
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  block INTEGER NOT NULL,
  UNIQUE (owner, session_id, block)
) STRICT;

CREATE TABLE message_word (
  block_id INTEGER NOT NULL,
  word TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (block_id, word, seq)
) STRICT, WITHOUT ROWID;

-- Sessions whose words are not complete, and up to which message they are.
CREATE TABLE search_todo (
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (owner, session_id)
) STRICT, WITHOUT ROWID;

INSERT INTO search_todo (owner, session_id, seq) SELECT owner, session_id, 0 FROM chat_session;
