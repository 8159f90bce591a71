-- The base: every key starts with the owner, so that the tables can be split by owner.
-- JSON is text, times are seconds since 1970, yes and no are 1 and 0.

CREATE TABLE chat_session (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  session_id text COLLATE "C" NOT NULL,
  title text COLLATE "C" NOT NULL,
  scenario text COLLATE "C" NOT NULL,
  app text COLLATE "C" NOT NULL,
  mode text COLLATE "C" NOT NULL,
  skill text COLLATE "C" NOT NULL,
  meta text COLLATE "C" NOT NULL,
  injection text COLLATE "C" NOT NULL,
  last_seq bigint NOT NULL,
  activity bigint NOT NULL,
  created double precision NOT NULL,
  updated double precision NOT NULL,
  ended double precision,
  parent_id text COLLATE "C" NOT NULL,
  parent_seq bigint NOT NULL,
  PRIMARY KEY (owner, session_id)
);

CREATE TABLE conversation (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  session_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  turn_id text COLLATE "C" NOT NULL,
  role text COLLATE "C" NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  content text COLLATE "C" NOT NULL,
  extra text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN ('streaming', 'complete', 'interrupted', 'failed')),
  is_collected bigint NOT NULL,
  collected bigint NOT NULL,
  tokens bigint NOT NULL,
  created double precision NOT NULL,
  PRIMARY KEY (owner, session_id, seq),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
);

CREATE TABLE turn (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  turn_id text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  state text COLLATE "C" NOT NULL CHECK (state IN ('streaming', 'complete', 'interrupted', 'failed')),
  user_message_id text COLLATE "C" NOT NULL,
  user_seq bigint NOT NULL,
  answer_message_id text COLLATE "C" NOT NULL,
  answer_seq bigint NOT NULL,
  usage text COLLATE "C" NOT NULL,
  receipt text COLLATE "C" NOT NULL,
  error text COLLATE "C" NOT NULL,
  created double precision NOT NULL,
  finished double precision,
  lease_until double precision NOT NULL,
  PRIMARY KEY (owner, turn_id),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
);

CREATE TABLE chunk (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  turn_id text COLLATE "C" NOT NULL,
  n bigint NOT NULL,
  text text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, turn_id, n),
  FOREIGN KEY (owner, turn_id) REFERENCES turn (owner, turn_id)
);

CREATE TABLE layer_text (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  hash text COLLATE "C" NOT NULL,
  text text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, hash)
);

CREATE TABLE turn_text (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  turn_id text COLLATE "C" NOT NULL,
  hash text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, turn_id, hash),
  FOREIGN KEY (owner, turn_id) REFERENCES turn (owner, turn_id),
  FOREIGN KEY (owner, hash) REFERENCES layer_text (owner, hash)
);

CREATE TABLE atomic_memory (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  memory_id text COLLATE "C" NOT NULL,
  change bigint NOT NULL,
  text text COLLATE "C" NOT NULL,
  context text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  trust text COLLATE "C" NOT NULL,
  importance double precision NOT NULL,
  pinned bigint NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN ('active', 'superseded', 'forgotten')),
  superseded_by text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  turn_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  happened double precision,
  created double precision NOT NULL,
  updated double precision NOT NULL,
  text_hash text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, memory_id)
);

CREATE TABLE memory_index (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  memory_id text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  terms bytea NOT NULL,
  mentions bytea NOT NULL,
  vector bytea NOT NULL,
  PRIMARY KEY (owner, memory_id),
  FOREIGN KEY (owner, memory_id) REFERENCES atomic_memory (owner, memory_id)
);

CREATE TABLE session_summary (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  session_id text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  number bigint NOT NULL,
  text text COLLATE "C" NOT NULL,
  upto_seq bigint NOT NULL,
  written_by text COLLATE "C" NOT NULL,
  created double precision NOT NULL,
  memory_ids text COLLATE "C" NOT NULL,
  PRIMARY KEY (owner, session_id),
  FOREIGN KEY (owner, session_id) REFERENCES chat_session (owner, session_id)
);

CREATE TABLE user_profile (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  name text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  updated double precision NOT NULL,
  PRIMARY KEY (owner, name)
);

CREATE TABLE prompt_template (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  template_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  scenario text COLLATE "C" NOT NULL,
  content text COLLATE "C" NOT NULL,
  is_skill bigint NOT NULL,
  supported_apps text COLLATE "C" NOT NULL,
  enabled bigint NOT NULL,
  priority bigint NOT NULL,
  sort bigint NOT NULL,
  description text COLLATE "C" NOT NULL,
  source text COLLATE "C" NOT NULL,
  created double precision NOT NULL,
  updated double precision NOT NULL,
  PRIMARY KEY (owner, template_id)
);

CREATE TABLE outbox (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  job_id text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  kind text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  payload text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'leased', 'done', 'parked')),
  attempts bigint NOT NULL,
  run_after double precision NOT NULL,
  lease_until double precision NOT NULL,
  worker text COLLATE "C" NOT NULL,
  error text COLLATE "C" NOT NULL,
  created double precision NOT NULL,
  updated double precision NOT NULL,
  PRIMARY KEY (owner, job_id)
);

CREATE TABLE owner_counter (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  name text COLLATE "C" NOT NULL,
  value bigint NOT NULL,
  PRIMARY KEY (owner, name)
);

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


-- The second wall: a transaction sees the rows of the owner it has named, and no others; not even the tables' own
-- role is exempt. Workers may read and take jobs of all owners, find turns that are still open, and list the owners.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['chat_session', 'conversation', 'turn', 'chunk', 'layer_text', 'turn_text', 'atomic_memory', 'memory_index', 'session_summary', 'user_profile', 'prompt_template', 'outbox', 'owner_counter']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    EXECUTE format(
      'CREATE POLICY owner_only ON %I USING (owner = current_setting(''lamina.owner'', true))', name);
  END LOOP;
END $$;
CREATE POLICY worker_reads ON outbox FOR SELECT USING (current_setting('lamina.worker', true) = 'on');
CREATE POLICY worker_takes ON outbox FOR UPDATE USING (current_setting('lamina.worker', true) = 'on');
CREATE POLICY worker_finds ON turn FOR SELECT
  USING (state = 'streaming' AND current_setting('lamina.worker', true) = 'on');
CREATE POLICY worker_lists ON owner_counter FOR SELECT USING (current_setting('lamina.worker', true) = 'on');
