-- When pull requests at forges were last read: whoever waits longest comes first.

ALTER TABLE pull_requests ADD COLUMN read_at timestamptz;
