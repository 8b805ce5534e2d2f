-- Schedules: tasks and handoffs that are created at set times.

-- A schedule acts for the user who wrote it last. It is due at `next_at`; null: it is disabled or over.
CREATE TABLE schedules (
    schedule_id   uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    name          text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    cron          text CHECK (char_length(cron) BETWEEN 1 AND 100),
    timezone      text CHECK (char_length(timezone) BETWEEN 1 AND 100),
    once_at       timestamptz,
    prompt        text CHECK (char_length(prompt) BETWEEN 1 AND 20000),
    template      jsonb CHECK (jsonb_typeof(template) = 'object'),
    missed_policy text NOT NULL CHECK (missed_policy IN ('skip', 'once')),
    enabled       boolean NOT NULL,
    next_at       timestamptz,
    firing_count  bigint NOT NULL CHECK (firing_count >= 0),
    version       bigint NOT NULL CHECK (version >= 1),
    unreviewed    boolean NOT NULL DEFAULT false, -- an agent wrote it last, and no person has looked at it
    acts_for      uuid NOT NULL REFERENCES users,
    created_by    uuid NOT NULL REFERENCES users,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    CONSTRAINT schedules_name_unique UNIQUE (project_id, name),
    -- A cron expression or one time; a prompt or a whole task.
    CONSTRAINT schedules_trigger_shape CHECK ((cron IS NULL) = (timezone IS NULL) AND (cron IS NULL) <> (once_at IS NULL)),
    CONSTRAINT schedules_action_shape CHECK ((prompt IS NULL) <> (template IS NULL)),
    CONSTRAINT schedules_enabled_shape CHECK (enabled OR next_at IS NULL)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_by_user ON schedules (acts_for);

-- Firings of schedules: because one was due, or because a person asked for it. Each time is due once.
CREATE TABLE schedule_firings (
    schedule_id  uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    number       bigint NOT NULL CHECK (number >= 1),
    cause        text NOT NULL CHECK (cause IN ('due', 'asked')),
    due_at       timestamptz NOT NULL,
    fired_at     timestamptz NOT NULL,
    missed_count integer NOT NULL CHECK (missed_count >= 0), -- times before this one that were missed
    outcome      text NOT NULL,
    task_id      uuid REFERENCES tasks ON DELETE CASCADE,
    handoff_id   uuid REFERENCES handoffs ON DELETE CASCADE,
    reason       text CHECK (char_length(reason) BETWEEN 1 AND 2000),
    trace_id     text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    PRIMARY KEY (schedule_id, number),
    CONSTRAINT schedule_firings_outcome_shape CHECK (CASE outcome
        WHEN 'task'    THEN task_id IS NOT NULL AND num_nonnulls(handoff_id, reason) = 0
        WHEN 'handoff' THEN handoff_id IS NOT NULL AND num_nonnulls(task_id, reason) = 0
        WHEN 'skipped' THEN num_nonnulls(task_id, handoff_id) = 0 AND reason IS NOT NULL
        WHEN 'refused' THEN num_nonnulls(task_id, handoff_id) = 0 AND reason IS NOT NULL
        ELSE false END)
);
CREATE UNIQUE INDEX schedule_firings_due_unique ON schedule_firings (schedule_id, due_at) WHERE cause = 'due';
CREATE INDEX schedule_firings_by_time ON schedule_firings (fired_at);
CREATE INDEX schedule_firings_by_task ON schedule_firings (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX schedule_firings_by_handoff ON schedule_firings (handoff_id) WHERE handoff_id IS NOT NULL;

-- The kind of handoff that an agent works on, for the rules of tool calls. A schedule that no person has reviewed does not count as
-- one: what it asks for is not yet what a person asked for.
CREATE FUNCTION agent_handoff_kind(handoff uuid) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT h.kind FROM handoffs h
    WHERE h.handoff_id = handoff
        AND (h.kind <> 'schedule' OR EXISTS (
            SELECT FROM schedule_firings f JOIN schedules s USING (schedule_id)
            WHERE f.handoff_id = h.handoff_id AND NOT s.unreviewed));
END;
