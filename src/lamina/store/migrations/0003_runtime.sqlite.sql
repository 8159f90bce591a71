-- What a session's turns leave to the next one (use of the window, failures of tools, compactions), and when an answer
-- began: a turn without that was accepted, and nothing of its answer has come.

ALTER TABLE chat_session ADD COLUMN runtime TEXT NOT NULL DEFAULT '{}';
ALTER TABLE turn ADD COLUMN begun REAL;
