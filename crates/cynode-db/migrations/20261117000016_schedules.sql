-- Schedules: tasks and handoffs that are created at set times.

-- A schedule acts in the name of whoever wrote it last. `next_at` is when it is due; without it, it is switched off or over.
CREATE TABLE schedules (
    schedule_id uuid PRIMARY KEY,
    project_id  uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    name        text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    cron        text CHECK (char_length(cron) BETWEEN 1 AND 100),
    zone        text CHECK (char_length(zone) BETWEEN 1 AND 100),
    once_at     timestamptz,
    words       text CHECK (char_length(words) BETWEEN 1 AND 20000),
    template    jsonb CHECK (jsonb_typeof(template) = 'object'),
    missed      text NOT NULL CHECK (missed IN ('skip', 'once')),
    enabled     boolean NOT NULL,
    next_at     timestamptz,
    firings     bigint NOT NULL CHECK (firings >= 0),
    version     bigint NOT NULL CHECK (version >= 1),
    acts_for    uuid NOT NULL REFERENCES users,
    created_by  uuid NOT NULL REFERENCES users,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT schedules_name_taken UNIQUE (project_id, name),
    -- At times or at one time; words or a whole task.
    CONSTRAINT schedules_when_shape CHECK ((cron IS NULL) = (zone IS NULL) AND (cron IS NULL) <> (once_at IS NULL)),
    CONSTRAINT schedules_what_shape CHECK ((words IS NULL) <> (template IS NULL)),
    CONSTRAINT schedules_off_shape CHECK (enabled OR next_at IS NULL)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_by_user ON schedules (acts_for);

-- Each time that a schedule was due or a person did not wait for it. A time is due once.
CREATE TABLE schedule_firings (
    schedule_id uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    number      bigint NOT NULL CHECK (number >= 1),
    cause       text NOT NULL CHECK (cause IN ('due', 'asked')),
    due_at      timestamptz NOT NULL,
    fired_at    timestamptz NOT NULL,
    missed      integer NOT NULL CHECK (missed >= 0), -- times before this one of which nothing came
    outcome     text NOT NULL,
    task_id     uuid REFERENCES tasks ON DELETE CASCADE,
    handoff_id  uuid REFERENCES handoffs ON DELETE CASCADE,
    reason      text CHECK (char_length(reason) BETWEEN 1 AND 2000),
    trace_id    text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    PRIMARY KEY (schedule_id, number),
    CONSTRAINT schedule_firings_outcome_shape CHECK (CASE outcome
        WHEN 'task'    THEN task_id IS NOT NULL AND num_nonnulls(handoff_id, reason) = 0
        WHEN 'handoff' THEN handoff_id IS NOT NULL AND num_nonnulls(task_id, reason) = 0
        WHEN 'skipped' THEN num_nonnulls(task_id, handoff_id) = 0 AND reason IS NOT NULL
        WHEN 'refused' THEN num_nonnulls(task_id, handoff_id) = 0 AND reason IS NOT NULL
        ELSE false END)
);
CREATE UNIQUE INDEX schedule_firings_due_once ON schedule_firings (schedule_id, due_at) WHERE cause = 'due';
CREATE INDEX schedule_firings_by_time ON schedule_firings (fired_at);
CREATE INDEX schedule_firings_by_task ON schedule_firings (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX schedule_firings_by_handoff ON schedule_firings (handoff_id) WHERE handoff_id IS NOT NULL;
