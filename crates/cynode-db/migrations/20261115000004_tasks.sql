-- Tasks: what is to be done, and where it stands.

CREATE TABLE tasks (
    task_id             uuid PRIMARY KEY,
    project_id          uuid NOT NULL REFERENCES projects,
    name                text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    description         text NOT NULL CHECK (char_length(description) BETWEEN 1 AND 20000),
    acceptance_criteria jsonb NOT NULL CHECK (jsonb_typeof(acceptance_criteria) = 'array'),
    max_cost_micros     bigint CHECK (max_cost_micros >= 0),
    max_tokens          bigint CHECK (max_tokens >= 0),
    state               text NOT NULL,
    started_at          timestamptz,
    ended_at            timestamptz,
    failure             text,
    created_by          uuid NOT NULL REFERENCES users,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    CONSTRAINT tasks_name_taken UNIQUE (project_id, name),
    -- The same sentence as `TaskState` in cynode-core.
    CONSTRAINT tasks_state_shape CHECK (CASE state
        WHEN 'queued'    THEN num_nonnulls(started_at, ended_at, failure) = 0
        WHEN 'running'   THEN started_at IS NOT NULL AND num_nonnulls(ended_at, failure) = 0
        WHEN 'completed' THEN ended_at IS NOT NULL AND failure IS NULL
        WHEN 'failed'    THEN num_nonnulls(ended_at, failure) = 2
        WHEN 'cancelled' THEN ended_at IS NOT NULL AND failure IS NULL
        ELSE false END)
);
CREATE INDEX tasks_by_project ON tasks (project_id, task_id);

CREATE TABLE task_dependencies (
    task_id    uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    depends_on uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (task_id, depends_on),
    CONSTRAINT task_dependencies_not_itself CHECK (task_id <> depends_on)
);
CREATE INDEX task_dependencies_by_target ON task_dependencies (depends_on);
