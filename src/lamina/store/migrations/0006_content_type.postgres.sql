-- The text of a plain message is stored as it is, so that SQL reads it: `content_type` is 'text'. A list of parts, no
-- content (null), and a text that a database cannot hold (U+0000, half of a surrogate pair) stay JSON: 'json'.

ALTER TABLE conversation ADD COLUMN content_type text COLLATE "C" NOT NULL DEFAULT 'json'
  CHECK (content_type IN ('text', 'json'));

-- The rows of all owners: the tables' own role sees them while row-level security is not forced on it.
ALTER TABLE conversation NO FORCE ROW LEVEL SECURITY;

-- Escaped backslashes are taken out before a pattern looks for escapes. A row that is not JSON stays as it is.
UPDATE conversation SET content = CAST(content AS json) #>> '{}', content_type = 'text'
WHERE content ~ '^"([^"\\\x01-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"$'
  AND replace(content, '\\', '') !~* '\\u(0000|d[89a-f])';

ALTER TABLE conversation FORCE ROW LEVEL SECURITY;
