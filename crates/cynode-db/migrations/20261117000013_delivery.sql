-- Repositories, and delivery: pull requests, the commits delivered to them, and their reviews.

-- The repository of a project. Its objects are on disk.
CREATE TABLE repositories (
    project_id     uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    default_branch text NOT NULL CHECK (char_length(default_branch) BETWEEN 1 AND 200),
    head           text NOT NULL CHECK (head ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    imported_by    uuid NOT NULL REFERENCES users,
    imported_at    timestamptz NOT NULL
);

-- Pull requests of tasks: in CyNode itself (`local`) or on a forge.
CREATE TABLE pull_requests (
    pull_request_id uuid PRIMARY KEY,
    project_id      uuid NOT NULL REFERENCES projects,
    task_id         uuid NOT NULL REFERENCES tasks, -- the task that it was opened for
    number          bigint NOT NULL CHECK (number >= 1),
    forge           text NOT NULL CHECK (forge IN ('local', 'github', 'gitlab', 'gitea')),
    branch          text NOT NULL CHECK (branch ~ '^cynode/[a-z0-9][a-z0-9-]{0,99}$'),
    base_branch     text NOT NULL CHECK (char_length(base_branch) BETWEEN 1 AND 200 AND base_branch <> branch),
    base_commit     text NOT NULL CHECK (base_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    head_commit     text CHECK (head_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'), -- null until something was delivered
    tree            text CHECK (tree ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    title           text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    body            text NOT NULL CHECK (char_length(body) <= 40000),
    state           text NOT NULL,
    remote_number   bigint CHECK (remote_number >= 1),
    url             text CHECK (char_length(url) BETWEEN 1 AND 2000),
    failure         text CHECK (char_length(failure) BETWEEN 1 AND 2000), -- of the last attempt to deliver
    -- The merge commit, and the commit that the base branch had before it; set before the merge is done.
    merge_commit    text CHECK (merge_commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    merge_parent    text CHECK (merge_parent ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    merged_by       uuid REFERENCES users,   -- null: it was merged at the forge
    opened_at       timestamptz,
    merged_at       timestamptz,
    closed_at       timestamptz,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    polled_at       timestamptz,             -- when its state on the forge was last read
    CONSTRAINT pull_requests_numbered UNIQUE (project_id, number),
    CONSTRAINT pull_requests_branch UNIQUE (project_id, branch),
    CONSTRAINT pull_requests_head CHECK ((head_commit IS NULL) = (tree IS NULL)),
    -- Mirrors `PullRequestState` in cynode-core.
    CONSTRAINT pull_requests_state_shape CHECK (CASE state
        WHEN 'opening' THEN num_nonnulls(opened_at, merged_at, closed_at, failure) = 0
        WHEN 'open'    THEN num_nonnulls(head_commit, opened_at) = 2 AND num_nonnulls(merged_at, closed_at) = 0
        WHEN 'merged'  THEN num_nonnulls(head_commit, opened_at, merged_at) = 3 AND closed_at IS NULL
        WHEN 'closed'  THEN closed_at IS NOT NULL AND merged_at IS NULL
        WHEN 'failed'  THEN failure IS NOT NULL AND num_nonnulls(opened_at, merged_at, closed_at) = 0
        ELSE false END)
);
-- A task has one open pull request at a time.
CREATE UNIQUE INDEX pull_requests_of_task ON pull_requests (task_id) WHERE state IN ('opening', 'open', 'failed');
CREATE INDEX pull_requests_by_project ON pull_requests (project_id, pull_request_id);
CREATE INDEX pull_requests_by_task ON pull_requests (task_id, number);

-- Deliveries: one commit each, made of the results of the task's units so far.
CREATE TABLE deliveries (
    delivery_id     uuid PRIMARY KEY,
    task_id         uuid NOT NULL REFERENCES tasks,
    pull_request_id uuid REFERENCES pull_requests, -- null: the work changed nothing
    source          text NOT NULL CHECK (source ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'), -- the verified commit of the work
    unit_commits    text[] NOT NULL,         -- the commits of the units that it contains
    parent          text NOT NULL CHECK (parent ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    tree            text NOT NULL CHECK (tree ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    title           text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    body            text NOT NULL CHECK (char_length(body) <= 40000),
    author          text NOT NULL CHECK (char_length(author) BETWEEN 3 AND 200),
    commit_id       text CHECK (commit_id ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    created_at      timestamptz NOT NULL,
    delivered_at    timestamptz,
    CONSTRAINT deliveries_unique UNIQUE (task_id, source),
    CONSTRAINT deliveries_done CHECK ((delivered_at IS NULL) = (commit_id IS NULL) OR pull_request_id IS NULL)
);
-- One delivery at a time: each builds on the last.
CREATE UNIQUE INDEX deliveries_in_progress ON deliveries (pull_request_id) WHERE delivered_at IS NULL;
CREATE INDEX deliveries_of_pull_request ON deliveries (pull_request_id, created_at);

-- Reviews of people, each of one commit.
CREATE TABLE pull_request_reviews (
    review_id       uuid PRIMARY KEY,
    pull_request_id uuid NOT NULL REFERENCES pull_requests,
    user_id         uuid NOT NULL REFERENCES users,
    verdict         text NOT NULL CHECK (verdict IN ('approve', 'changes', 'comment')),
    note            text CHECK (char_length(note) BETWEEN 1 AND 20000),
    commit_id       text NOT NULL CHECK (commit_id ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    created_at      timestamptz NOT NULL
);
CREATE INDEX pull_request_reviews_by_pull_request ON pull_request_reviews (pull_request_id, created_at);

-- Comments on pull requests. `source` identifies a comment, so that it is stored once.
CREATE TABLE pull_request_comments (
    comment_id      uuid PRIMARY KEY,
    pull_request_id uuid NOT NULL REFERENCES pull_requests,
    author_id       uuid REFERENCES users,
    author_role     text,                    -- an agent
    path            text CHECK (char_length(path) BETWEEN 1 AND 1000),
    line            integer CHECK (line >= 1),
    body            text NOT NULL CHECK (char_length(body) BETWEEN 1 AND 20000),
    source          text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 200),
    review_id       uuid CONSTRAINT pull_request_comments_review REFERENCES pull_request_reviews, -- that it was part of
    created_at      timestamptz NOT NULL,
    CONSTRAINT pull_request_comments_unique UNIQUE (pull_request_id, source),
    CONSTRAINT pull_request_comments_author CHECK (num_nonnulls(author_id, author_role) = 1),
    CONSTRAINT pull_request_comments_position CHECK (line IS NULL OR path IS NOT NULL)
);

-- Tasks that continue a pull request because of feedback.
CREATE TABLE pull_request_followups (
    pull_request_id uuid NOT NULL REFERENCES pull_requests,
    source          text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 200), -- identifies the feedback, so that it is followed up once
    number          integer NOT NULL CHECK (number BETWEEN 1 AND 3),
    task_id         uuid NOT NULL UNIQUE REFERENCES tasks,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (pull_request_id, number),
    CONSTRAINT pull_request_followups_unique UNIQUE (pull_request_id, source)
);
