-- The base: every key starts with the owner, so that the tables can be split by owner.
-- JSON is text, times are seconds since 1970, yes and no are 1 and 0.

CREATE TABLE chat_session (
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  title TEXT NOT NULL,
  scenario TEXT NOT NULL,
  app TEXT NOT NULL,
  mode TEXT NOT NULL,
  skill TEXT NOT NULL,
  meta TEXT NOT NULL,
  injection TEXT NOT NULL,
  last_seq INTEGER NOT NULL,
  activity INTEGER NOT NULL,
  created REAL NOT NULL,
  updated REAL NOT NULL,
  ended REAL,
  parent_id TEXT NOT NULL,
  parent_seq INTEGER NOT NULL,
  PRIMARY KEY (owner, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE conversation (
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  message_id TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  content TEXT NOT NULL,
  extra TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('streaming', 'complete', 'interrupted', 'failed')),
  is_collected INTEGER NOT NULL,
  collected INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  created REAL NOT NULL,
  PRIMARY KEY (owner, session_id, seq),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE turn (
  owner TEXT NOT NULL CHECK (owner <> ''),
  turn_id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  key TEXT,
  state TEXT NOT NULL CHECK (state IN ('streaming', 'complete', 'interrupted', 'failed')),
  user_message_id TEXT NOT NULL,
  user_seq INTEGER NOT NULL,
  answer_message_id TEXT NOT NULL,
  answer_seq INTEGER NOT NULL,
  usage TEXT NOT NULL,
  receipt TEXT NOT NULL,
  error TEXT NOT NULL,
  created REAL NOT NULL,
  finished REAL,
  lease_until REAL NOT NULL,
  PRIMARY KEY (owner, turn_id),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunk (
  owner TEXT NOT NULL CHECK (owner <> ''),
  turn_id TEXT NOT NULL,
  n INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (owner, turn_id, n),
  FOREIGN KEY (owner, turn_id) REFERENCES turn (owner, turn_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE layer_text (
  owner TEXT NOT NULL CHECK (owner <> ''),
  hash TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (owner, hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE turn_text (
  owner TEXT NOT NULL CHECK (owner <> ''),
  turn_id TEXT NOT NULL,
  hash TEXT NOT NULL,
  PRIMARY KEY (owner, turn_id, hash),
  FOREIGN KEY (owner, turn_id) REFERENCES turn (owner, turn_id),
  FOREIGN KEY (owner, hash) REFERENCES layer_text (owner, hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE atomic_memory (
  owner TEXT NOT NULL CHECK (owner <> ''),
  memory_id TEXT NOT NULL,
  change INTEGER NOT NULL,
  text TEXT NOT NULL,
  context TEXT NOT NULL,
  kind TEXT NOT NULL,
  trust TEXT NOT NULL,
  importance REAL NOT NULL,
  pinned INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('active', 'superseded', 'forgotten')),
  superseded_by TEXT NOT NULL,
  session_id TEXT NOT NULL,
  turn_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  happened REAL,
  created REAL NOT NULL,
  updated REAL NOT NULL,
  text_hash TEXT NOT NULL,
  PRIMARY KEY (owner, memory_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE memory_index (
  owner TEXT NOT NULL CHECK (owner <> ''),
  memory_id TEXT NOT NULL,
  model TEXT NOT NULL,
  terms BLOB NOT NULL,
  mentions BLOB NOT NULL,
  vector BLOB NOT NULL,
  PRIMARY KEY (owner, memory_id),
  FOREIGN KEY (owner, memory_id) REFERENCES atomic_memory (owner, memory_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE session_summary (
  owner TEXT NOT NULL CHECK (owner <> ''),
  session_id TEXT NOT NULL,
  version INTEGER NOT NULL,
  number INTEGER NOT NULL,
  text TEXT NOT NULL,
  upto_seq INTEGER NOT NULL,
  written_by TEXT NOT NULL,
  created REAL NOT NULL,
  memory_ids TEXT NOT NULL,
  PRIMARY KEY (owner, session_id),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE user_profile (
  owner TEXT NOT NULL CHECK (owner <> ''),
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  updated REAL NOT NULL,
  PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE prompt_template (
  owner TEXT NOT NULL CHECK (owner <> ''),
  template_id TEXT NOT NULL,
  name TEXT NOT NULL,
  scenario TEXT NOT NULL,
  content TEXT NOT NULL,
  is_skill INTEGER NOT NULL,
  supported_apps TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  sort INTEGER NOT NULL,
  description TEXT NOT NULL,
  source TEXT NOT NULL,
  created REAL NOT NULL,
  updated REAL NOT NULL,
  PRIMARY KEY (owner, template_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  owner TEXT NOT NULL CHECK (owner <> ''),
  job_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  kind TEXT NOT NULL,
  key TEXT,
  payload TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'leased', 'done', 'parked')),
  attempts INTEGER NOT NULL,
  run_after REAL NOT NULL,
  lease_until REAL NOT NULL,
  worker TEXT NOT NULL,
  error TEXT NOT NULL,
  created REAL NOT NULL,
  updated REAL NOT NULL,
  PRIMARY KEY (owner, job_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE owner_counter (
  owner TEXT NOT NULL CHECK (owner <> ''),
  name TEXT NOT NULL,
  value INTEGER NOT NULL,
  PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX chat_session_activity ON chat_session (owner, activity);
CREATE UNIQUE INDEX conversation_message ON conversation (owner, message_id);
CREATE INDEX conversation_collected ON conversation (owner, collected) WHERE is_collected = 1;
CREATE UNIQUE INDEX turn_key ON turn (owner, key);
CREATE INDEX turn_session ON turn (owner, session_id, user_seq);
CREATE INDEX turn_text_hash ON turn_text (owner, hash);
CREATE UNIQUE INDEX atomic_memory_change ON atomic_memory (owner, change);
CREATE INDEX atomic_memory_hash ON atomic_memory (owner, text_hash) WHERE state = 'active';
CREATE INDEX atomic_memory_session ON atomic_memory (owner, session_id);
CREATE INDEX session_summary_number ON session_summary (owner, number);
CREATE UNIQUE INDEX outbox_key ON outbox (owner, key);
CREATE INDEX outbox_number ON outbox (owner, state, number);

-- Those below serve the work that is done for all owners at once: taking jobs, and ending turns nobody answers.
CREATE INDEX outbox_due ON outbox (run_after, number) WHERE state IN ('waiting', 'leased');
CREATE INDEX outbox_leased ON outbox (run_after) WHERE state = 'leased';
CREATE INDEX turn_open ON turn (lease_until) WHERE state = 'streaming';
