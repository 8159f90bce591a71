-- The phase prompt of a session: what it is working on just now, sent in front of each message of its user.

ALTER TABLE chat_session ADD COLUMN phase TEXT NOT NULL DEFAULT '';
