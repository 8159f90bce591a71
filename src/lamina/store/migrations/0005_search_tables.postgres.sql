-- Sessions whose words in `message_words` are not complete, and up to which message they are. Derived, as those are.

CREATE TABLE search_todo (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  session_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  PRIMARY KEY (owner, session_id)
);
ALTER TABLE search_todo ENABLE ROW LEVEL SECURITY;
ALTER TABLE search_todo FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_only ON search_todo USING (owner = current_setting('lamina.owner', true));
CREATE POLICY worker_lists ON search_todo FOR SELECT USING (current_setting('lamina.worker', true) = 'on');
