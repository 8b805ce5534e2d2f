-- Nobody waits behind what hangs or is long: forges that say nothing, and a channel with a long row of notices.

-- How many looks in a row a forge has answered nothing to.
ALTER TABLE project_remotes ADD COLUMN silent_looks integer NOT NULL DEFAULT 0 CHECK (silent_looks BETWEEN 0 AND 20);

-- What a channel is to be told next, without a look at all that it, or others, are to be told.
DROP INDEX notifications_due;
CREATE INDEX notifications_next ON notifications (channel_id, due_at, notification_id) WHERE state = 'pending';

-- Tasks that have not ended: their ceilings are few, those of all tasks are many.
CREATE INDEX tasks_open ON tasks (task_id) WHERE state IN ('queued', 'running');

-- What is of no use to anybody after its end is found by it.
CREATE INDEX user_sessions_by_end ON user_sessions (expires_at);
CREATE INDEX agent_tokens_by_end ON agent_tokens (expires_at);
