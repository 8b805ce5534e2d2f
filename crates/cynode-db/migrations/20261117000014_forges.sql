-- Forges: the remote repositories of projects, their webhooks, issues and review feedback.

-- The repository of a project on a forge, and which of its issues become tasks.
CREATE TABLE project_remotes (
    project_id              uuid PRIMARY KEY REFERENCES projects,
    forge                   text NOT NULL CHECK (forge IN ('github', 'gitlab', 'gitea')),
    url                     text NOT NULL CHECK (char_length(url) BETWEEN 1 AND 500),
    api                     text NOT NULL CHECK (char_length(api) BETWEEN 1 AND 500),
    repository              text NOT NULL CHECK (char_length(repository) BETWEEN 3 AND 300),
    default_branch          text NOT NULL CHECK (char_length(default_branch) BETWEEN 1 AND 200),
    credential              bytea NOT NULL,  -- sealed
    webhook_secret          bytea NOT NULL,  -- sealed
    login                   text CHECK (char_length(login) BETWEEN 1 AND 200), -- the account of the credential on the forge
    label                   text CHECK (char_length(label) BETWEEN 1 AND 100),
    assigned_to_bot         boolean NOT NULL,
    allow_untrusted_authors boolean NOT NULL,
    poll_seconds            integer NOT NULL CHECK (poll_seconds BETWEEN 10 AND 86400),
    set_by                  uuid NOT NULL REFERENCES users, -- creates the tasks of issues
    set_at                  timestamptz NOT NULL,
    -- When the mirror was last fetched.
    fetched_at              timestamptz,
    -- Polling: when it is due, the lease of the poller, its position, and its last failure.
    due_at                  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_id                uuid,
    lease_expires_at        timestamptz,
    issues_since            timestamptz NOT NULL,
    failure                 text CHECK (char_length(failure) BETWEEN 1 AND 2000),
    polled_at               timestamptz,
    -- Webhook deliveries with a wrong signature.
    rejected_webhooks       bigint NOT NULL DEFAULT 0,
    rejected_at             timestamptz,
    -- Whether the forge may be on this machine or in a private network.
    allow_private           boolean NOT NULL DEFAULT false,
    -- How many polls in a row the forge did not answer.
    failed_polls            integer NOT NULL DEFAULT 0 CHECK (failed_polls BETWEEN 0 AND 20),
    CONSTRAINT project_remotes_lease CHECK ((lease_id IS NULL) = (lease_expires_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX project_remotes_due ON project_remotes (due_at);

-- Webhook deliveries, deduplicated by the digest of their content.
CREATE TABLE webhook_deliveries (
    project_id   uuid NOT NULL REFERENCES project_remotes ON DELETE CASCADE,
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    delivery_id  text NOT NULL CHECK (char_length(delivery_id) BETWEEN 1 AND 200),
    event        jsonb NOT NULL,
    received_at  timestamptz NOT NULL,
    processed_at timestamptz,
    PRIMARY KEY (project_id, digest)
);
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (project_id, received_at) WHERE processed_at IS NULL;
CREATE INDEX webhook_deliveries_processed ON webhook_deliveries (processed_at) WHERE processed_at IS NOT NULL;

-- Issues that were selected: each became one task or was refused. `answered_at` is when the issue got its comment.
CREATE TABLE forge_issues (
    project_id     uuid NOT NULL REFERENCES projects,
    forge          text NOT NULL CHECK (forge IN ('github', 'gitlab', 'gitea')),
    repository     text NOT NULL,
    number         bigint NOT NULL CHECK (number >= 1),
    url            text NOT NULL CHECK (char_length(url) <= 2000),
    author         text NOT NULL CHECK (char_length(author) BETWEEN 1 AND 200),
    task_id        uuid UNIQUE REFERENCES tasks,
    refusal_reason text CHECK (char_length(refusal_reason) BETWEEN 1 AND 500),
    removed        jsonb NOT NULL,           -- what the sanitizer removed from its text
    seen_at        timestamptz NOT NULL,
    answered_at    timestamptz,
    PRIMARY KEY (project_id, forge, repository, number),
    CONSTRAINT forge_issues_outcome CHECK (num_nonnulls(task_id, refusal_reason) = 1),
    CONSTRAINT forge_issues_answered CHECK (answered_at IS NULL OR task_id IS NOT NULL)
);
CREATE INDEX forge_issues_unanswered ON forge_issues (project_id) WHERE task_id IS NOT NULL AND answered_at IS NULL;

-- Feedback on pull requests on a forge: each item became part of a task or was ignored, once.
CREATE TABLE pull_request_feedback (
    pull_request_id uuid NOT NULL REFERENCES pull_requests,
    feedback_id     text NOT NULL CHECK (char_length(feedback_id) BETWEEN 1 AND 300),
    task_id         uuid REFERENCES tasks,
    ignored_reason  text CHECK (char_length(ignored_reason) BETWEEN 1 AND 500),
    recorded_at     timestamptz NOT NULL,
    PRIMARY KEY (pull_request_id, feedback_id),
    CONSTRAINT pull_request_feedback_outcome CHECK (num_nonnulls(task_id, ignored_reason) = 1)
);
