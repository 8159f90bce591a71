-- Keys of the gateway: each belongs to one user, only its hash is kept, and what it used is added up by the day.

CREATE TABLE api_key (
  owner TEXT NOT NULL CHECK (owner <> ''),
  key_id TEXT NOT NULL,
  name TEXT NOT NULL,
  hash TEXT NOT NULL,
  scopes TEXT NOT NULL,
  rate INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  created REAL NOT NULL,
  expires REAL,
  revoked REAL,
  used REAL,
  PRIMARY KEY (owner, key_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE key_use (
  owner TEXT NOT NULL CHECK (owner <> ''),
  key_id TEXT NOT NULL,
  day TEXT NOT NULL,
  requests INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  PRIMARY KEY (owner, key_id, day)
) STRICT, WITHOUT ROWID;

-- Whoever shows a key has not said who he is: it is found by its id alone.
CREATE UNIQUE INDEX api_key_id ON api_key (key_id);
