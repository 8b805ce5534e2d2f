-- Projects with the roles of their members, and tasks with their dependencies.

CREATE TABLE projects (
    project_id  uuid PRIMARY KEY,
    slug        text NOT NULL CONSTRAINT projects_slug_unique UNIQUE
                CHECK (slug ~ '^[a-z][a-z0-9-]{0,62}$'),
    title       text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    description text CHECK (char_length(description) BETWEEN 1 AND 20000),
    created_by  uuid NOT NULL REFERENCES users,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    -- No task may be created in an archived project; its models, schedules and forge are inactive.
    archived_at timestamptz,
    archived_by uuid REFERENCES users,
    CONSTRAINT projects_archived CHECK ((archived_at IS NULL) = (archived_by IS NULL))
);
-- Archived projects are few; every list of schedules and forges excludes them.
CREATE INDEX projects_archived ON projects (project_id) WHERE archived_at IS NOT NULL;

-- The role of a user in a project.
CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    added_at   timestamptz NOT NULL,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_by_user ON project_members (user_id);

-- Other roles: of a user or a group in the whole installation (`project_id` is null), or of a group in one project.
CREATE TABLE role_bindings (
    user_id    uuid REFERENCES users ON DELETE CASCADE,
    group_id   uuid REFERENCES groups ON DELETE CASCADE,
    project_id uuid REFERENCES projects ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    bound_at   timestamptz NOT NULL,
    CONSTRAINT role_bindings_one_subject CHECK (num_nonnulls(user_id, group_id) = 1),
    CONSTRAINT role_bindings_users_are_members CHECK (project_id IS NULL OR user_id IS NULL),
    CONSTRAINT role_bindings_unique UNIQUE NULLS NOT DISTINCT (user_id, group_id, project_id)
);
CREATE INDEX role_bindings_by_group ON role_bindings (group_id) WHERE group_id IS NOT NULL;

-- A task changes its state twice: the fill factor leaves room for that on its page, so that indexes stay as they are.
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
    unreviewed          boolean NOT NULL DEFAULT false, -- an agent wrote it last, and no person has looked at it
    created_by          uuid NOT NULL REFERENCES users,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    files_expired_at    timestamptz,         -- when the commits and artifacts of its jobs were removed
    -- The tasks whose agents asked for it, the nearest last. What it spends counts against the budgets of all of them.
    ancestors           uuid[] NOT NULL DEFAULT '{}' CONSTRAINT tasks_ancestors_depth CHECK (cardinality(ancestors) <= 4),
    CONSTRAINT tasks_name_unique UNIQUE (project_id, name),
    -- Mirrors `TaskState` in cynode-core.
    CONSTRAINT tasks_state_shape CHECK (CASE state
        WHEN 'queued'    THEN num_nonnulls(started_at, ended_at, failure) = 0
        WHEN 'running'   THEN started_at IS NOT NULL AND num_nonnulls(ended_at, failure) = 0
        WHEN 'completed' THEN ended_at IS NOT NULL AND failure IS NULL
        WHEN 'failed'    THEN num_nonnulls(ended_at, failure) = 2
        WHEN 'cancelled' THEN ended_at IS NOT NULL AND failure IS NULL
        ELSE false END)
) WITH (fillfactor = 80);
CREATE INDEX tasks_by_project ON tasks (project_id, task_id);
-- Tasks that have not ended: budgets are listed for these only.
CREATE INDEX tasks_open ON tasks (task_id) WHERE state IN ('queued', 'running');
-- Tasks whose files retention has not removed yet.
CREATE INDEX tasks_with_files ON tasks (ended_at) WHERE files_expired_at IS NULL;

-- Archiving a project locks its row. A task that is stored at the same time waits for that lock here, and is then refused.
CREATE FUNCTION refuse_task_of_archived_project() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz;
BEGIN
    SELECT p.archived_at INTO since FROM projects p WHERE p.project_id = NEW.project_id FOR KEY SHARE;
    IF since IS NOT NULL THEN
        RAISE EXCEPTION 'the project is archived' USING ERRCODE = 'check_violation', CONSTRAINT = 'tasks_project_archived';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER tasks_project_archived BEFORE INSERT ON tasks
    FOR EACH ROW EXECUTE FUNCTION refuse_task_of_archived_project();

CREATE TABLE task_dependencies (
    task_id    uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    depends_on uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    PRIMARY KEY (task_id, depends_on),
    CONSTRAINT task_dependencies_not_itself CHECK (task_id <> depends_on)
);
CREATE INDEX task_dependencies_by_target ON task_dependencies (depends_on);

-- Tasks that continue an earlier task: they start from its best commit; changes are measured from the commit where it started.
CREATE TABLE task_continuations (
    task_id         uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    earlier_task_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    start_commit    text NOT NULL CHECK (start_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    base_commit     text NOT NULL CHECK (base_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$')
);
CREATE INDEX task_continuations_by_earlier_task ON task_continuations (earlier_task_id);
