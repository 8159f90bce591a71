-- The text of a plain message is stored as it is, so that SQL reads it: `content_type` is 'text'. A list of parts, no
-- content (null), and a text that a database cannot hold (U+0000, half of a surrogate pair) stay JSON: 'json'.

ALTER TABLE conversation ADD COLUMN content_type TEXT NOT NULL DEFAULT 'json'
  CHECK (content_type IN ('text', 'json'));

-- Escaped backslashes are taken out before a pattern looks for escapes. A row that is not JSON stays as it is.
UPDATE conversation SET content = json_extract(content, '$'), content_type = 'text'
WHERE CASE WHEN json_valid(content) THEN json_type(content) = 'text' ELSE 0 END
  AND replace(content, '\\', '') NOT GLOB '*\u0000*'
  AND replace(content, '\\', '') NOT GLOB '*\u[dD][89a-fA-F]*';
