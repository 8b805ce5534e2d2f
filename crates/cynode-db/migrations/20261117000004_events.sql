-- The event log, in the order in which events became visible.

CREATE SEQUENCE events_seq AS bigint;

-- (xact, seq) is the position of an event. A reader that reads only events whose transaction is older than every running one
-- sees each event once and in order: no event can appear behind its position.
CREATE TABLE events (
    xact        bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    seq         bigint NOT NULL DEFAULT nextval('events_seq'),
    occurred_at timestamptz NOT NULL,
    kind        text NOT NULL CHECK (kind ~ '^[a-z_]+\.[a-z_]+$'),
    actor_id    uuid,
    subject_id  uuid,                        -- the user whose account it concerns, if any
    project_id  uuid,
    task_id     uuid,
    trace_id    text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    data        jsonb NOT NULL CHECK (jsonb_typeof(data) = 'object'),
    PRIMARY KEY (xact, seq, occurred_at)
) PARTITION BY RANGE (occurred_at);
CREATE INDEX events_by_project ON events (project_id, xact, seq);
CREATE INDEX events_by_task ON events (task_id, xact, seq) WHERE task_id IS NOT NULL;
