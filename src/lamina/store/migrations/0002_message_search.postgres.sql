-- Search over messages: derived from `conversation`, made again by `reindex`.
-- No GIN index: row-level security lets no index serve `@@` (it is not leakproof), so it would only cost writes.

CREATE TABLE message_words (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  session_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  words tsvector NOT NULL,
  PRIMARY KEY (owner, session_id, seq)
);
ALTER TABLE message_words ENABLE ROW LEVEL SECURITY;
ALTER TABLE message_words FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_only ON message_words USING (owner = current_setting('lamina.owner', true));
