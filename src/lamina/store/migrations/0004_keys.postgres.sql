-- Keys of the gateway: each belongs to one user, only its hash is kept, and what it used is added up by the day.

CREATE TABLE api_key (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  key_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  hash text COLLATE "C" NOT NULL,
  scopes text COLLATE "C" NOT NULL,
  rate bigint NOT NULL,
  tokens bigint NOT NULL,
  created double precision NOT NULL,
  expires double precision,
  revoked double precision,
  used double precision,
  PRIMARY KEY (owner, key_id)
);

CREATE TABLE key_use (
  owner text COLLATE "C" NOT NULL CHECK (owner <> ''),
  key_id text COLLATE "C" NOT NULL,
  day text COLLATE "C" NOT NULL,
  requests bigint NOT NULL,
  tokens bigint NOT NULL,
  PRIMARY KEY (owner, key_id, day)
);

-- Whoever shows a key has not said who he is: it is found by its id alone.
CREATE UNIQUE INDEX api_key_id ON api_key (key_id);

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['api_key', 'key_use']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    EXECUTE format(
      'CREATE POLICY owner_only ON %I USING (owner = current_setting(''lamina.owner'', true))', name);
    EXECUTE format(
      'CREATE POLICY worker_finds ON %I FOR SELECT USING (current_setting(''lamina.worker'', true) = ''on'')', name);
  END LOOP;
END $$;
