-- Environments of projects, the secrets that set-up may use, and the packages that jobs fetched.

-- Versions of the environment of a project. A version never changes; people decide which one jobs run in.
CREATE TABLE project_environments (
    project_id    uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    version       integer NOT NULL CHECK (version >= 1),
    digest        text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'), -- SHA-256 of the canonical specification
    spec          jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    origin        text NOT NULL CHECK (origin IN ('person', 'detected', 'repository', 'devcontainer')),
    source_commit text CHECK (source_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'), -- the commit that it was read from
    reasons       jsonb NOT NULL CHECK (jsonb_typeof(reasons) = 'array'),
    warnings      jsonb NOT NULL CHECK (jsonb_typeof(warnings) = 'array'),
    state         text NOT NULL,
    proposed_by   uuid REFERENCES users,     -- null: the installation itself
    proposed_at   timestamptz NOT NULL,
    decided_by    uuid REFERENCES users,
    decided_at    timestamptz,
    decision_note text CHECK (char_length(decision_note) BETWEEN 1 AND 2000),
    PRIMARY KEY (project_id, version),
    -- Mirrors `EnvironmentState` in cynode-core. A version that was accepted keeps its decision when a later one supersedes it.
    CONSTRAINT project_environments_state_shape CHECK (CASE state
        WHEN 'proposed'   THEN num_nonnulls(decided_by, decided_at, decision_note) = 0
        WHEN 'accepted'   THEN num_nonnulls(decided_by, decided_at) = 2
        WHEN 'rejected'   THEN num_nonnulls(decided_by, decided_at) = 2
        WHEN 'superseded' THEN num_nonnulls(decided_by, decided_at) IN (0, 2)
        ELSE false END)
);
-- Jobs of a project run in one environment.
CREATE UNIQUE INDEX project_environments_accepted ON project_environments (project_id) WHERE state = 'accepted';
CREATE INDEX project_environments_by_digest ON project_environments (project_id, digest);
CREATE INDEX project_environments_proposed ON project_environments (project_id) WHERE state = 'proposed';

-- The commit at which the repository's own environment file was last read.
ALTER TABLE repositories ADD COLUMN environment_commit text
    CHECK (environment_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$');
CREATE INDEX repositories_environment_unread ON repositories (project_id) WHERE environment_commit IS DISTINCT FROM head;

-- Secrets of a project. Set-up gets them if the environment names them and the installation allows it.
CREATE TABLE project_secrets (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    name       text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    sealed     bytea NOT NULL,
    created_by uuid NOT NULL REFERENCES users,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, name)
);

-- Packages that jobs fetched through the package proxy of their node, and fetches that it refused.
CREATE TABLE package_fetches (
    fetch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    task_id    uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    job_id     uuid NOT NULL,
    source     text NOT NULL CHECK (source IN ('crates', 'pypi', 'npm', 'debian')),
    package    text NOT NULL,
    version    text NOT NULL,
    sha256     text NOT NULL CHECK (sha256 ~ '^([0-9a-f]{64})?$'), -- empty: it was refused
    bytes      bigint NOT NULL CHECK (bytes >= 0),
    cached     boolean NOT NULL,
    refused    text,
    fetched_at timestamptz NOT NULL
);
CREATE INDEX package_fetches_by_project ON package_fetches (project_id, fetch_id);
CREATE INDEX package_fetches_by_task ON package_fetches (task_id);
CREATE INDEX package_fetches_by_time ON package_fetches (fetched_at);

-- Plans that are given with a task: no manager plans it and no model is asked.
CREATE TABLE task_plans (
    task_id uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    plan    jsonb NOT NULL CHECK (jsonb_typeof(plan) = 'object')
);
