-- Forges: the remote repositories of projects, their webhooks, issues and review feedback.

-- The repository of a project on a forge, and what of its issues becomes work.
CREATE TABLE project_remotes (
    project_id     uuid PRIMARY KEY REFERENCES projects,
    forge          text NOT NULL CHECK (forge IN ('github', 'gitlab', 'gitea')),
    url            text NOT NULL CHECK (char_length(url) BETWEEN 1 AND 500),
    api            text NOT NULL CHECK (char_length(api) BETWEEN 1 AND 500),
    repository     text NOT NULL CHECK (char_length(repository) BETWEEN 3 AND 300),
    default_branch text NOT NULL CHECK (char_length(default_branch) BETWEEN 1 AND 200),
    credential     bytea NOT NULL,                   -- sealed
    webhook_secret bytea NOT NULL,                   -- sealed
    login          text CHECK (char_length(login) BETWEEN 1 AND 200), -- whose credential it is, as the forge says
    label          text CHECK (char_length(label) BETWEEN 1 AND 100),
    assign_to_us   boolean NOT NULL,
    from_anyone    boolean NOT NULL,
    poll_seconds   integer NOT NULL CHECK (poll_seconds BETWEEN 10 AND 86400),
    set_by         uuid NOT NULL REFERENCES users,   -- whose tasks they become
    set_at         timestamptz NOT NULL,
    -- The mirror.
    fetched_at     timestamptz,
    -- Looking: when, who does, from where on, and why it last came to nothing.
    due_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_id       uuid,
    lease_until    timestamptz,
    issues_since   timestamptz NOT NULL,
    failure        text CHECK (char_length(failure) BETWEEN 1 AND 2000),
    looked_at      timestamptz,
    -- Deliveries that were not from the forge.
    refused        bigint NOT NULL DEFAULT 0,
    refused_at     timestamptz,
    -- Whether the forge may be on this machine or in a private network.
    private        boolean NOT NULL DEFAULT false,
    -- How many looks in a row the forge has answered nothing to.
    silent_looks   integer NOT NULL DEFAULT 0 CHECK (silent_looks BETWEEN 0 AND 20),
    CONSTRAINT project_remotes_lease CHECK ((lease_id IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX project_remotes_due ON project_remotes (due_at);

-- What a forge told us of, each once: what says the same is the same, whatever it is called.
CREATE TABLE forge_deliveries (
    project_id  uuid NOT NULL REFERENCES project_remotes ON DELETE CASCADE,
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),
    delivery    text NOT NULL CHECK (char_length(delivery) BETWEEN 1 AND 200),
    event       jsonb NOT NULL,
    received_at timestamptz NOT NULL,
    done_at     timestamptz,
    PRIMARY KEY (project_id, digest)
);
CREATE INDEX forge_deliveries_waiting ON forge_deliveries (project_id, received_at) WHERE done_at IS NULL;
CREATE INDEX forge_deliveries_done ON forge_deliveries (done_at) WHERE done_at IS NOT NULL;

-- Issues that were wanted: each became one task, or it is said why none. `answered_at` is when the issue was told.
CREATE TABLE forge_issues (
    project_id  uuid NOT NULL REFERENCES projects,
    forge       text NOT NULL CHECK (forge IN ('github', 'gitlab', 'gitea')),
    repository  text NOT NULL,
    number      bigint NOT NULL CHECK (number >= 1),
    url         text NOT NULL CHECK (char_length(url) <= 2000),
    author      text NOT NULL CHECK (char_length(author) BETWEEN 1 AND 200),
    task_id     uuid UNIQUE REFERENCES tasks,
    refused     text CHECK (char_length(refused) BETWEEN 1 AND 500),
    removed     jsonb NOT NULL,                      -- what was taken out of its text
    seen_at     timestamptz NOT NULL,
    answered_at timestamptz,
    PRIMARY KEY (project_id, forge, repository, number),
    CONSTRAINT forge_issues_became CHECK (num_nonnulls(task_id, refused) = 1),
    CONSTRAINT forge_issues_answered CHECK (answered_at IS NULL OR task_id IS NOT NULL)
);
CREATE INDEX forge_issues_unanswered ON forge_issues (project_id) WHERE task_id IS NOT NULL AND answered_at IS NULL;

-- What was said about a pull request on a forge, and what became of it: each remark is dealt with once.
CREATE TABLE pull_request_remarks (
    pull_request_id uuid NOT NULL REFERENCES pull_requests,
    remark          text NOT NULL CHECK (char_length(remark) BETWEEN 1 AND 300),
    task_id         uuid REFERENCES tasks,
    ignored         text CHECK (char_length(ignored) BETWEEN 1 AND 500),
    at              timestamptz NOT NULL,
    PRIMARY KEY (pull_request_id, remark),
    CONSTRAINT pull_request_remarks_became CHECK (num_nonnulls(task_id, ignored) = 1)
);
