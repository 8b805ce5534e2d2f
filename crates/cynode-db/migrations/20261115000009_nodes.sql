-- Nodes: machines of the user that run jobs, what they were given, and what they told of it.

CREATE TABLE nodes (
    node_id      uuid PRIMARY KEY,
    name         text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    public_key   bytea NOT NULL UNIQUE CHECK (octet_length(public_key) = 32),
    state        text NOT NULL CHECK (state IN ('active', 'draining', 'removed')),
    labels       text[] NOT NULL,
    report       jsonb NOT NULL CHECK (jsonb_typeof(report) = 'object'),
    slots        integer NOT NULL CHECK (slots BETWEEN 0 AND 1000),
    turn         bigint NOT NULL DEFAULT 0,  -- when it was given a job last, in turns
    joined_by    uuid REFERENCES users,      -- null: the person at the machine
    joined_at    timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX nodes_name_taken ON nodes (name) WHERE state <> 'removed';

-- Counts the turns: whoever was given a job longest ago is next among equals.
CREATE SEQUENCE node_turns;

-- Lets one machine join, once.
CREATE TABLE node_join_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    labels     text[] NOT NULL,
    issued_by  uuid REFERENCES users,        -- null: the person at the machine
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    node_id    uuid REFERENCES nodes         -- whoever used it
);

-- What nodes show with each request; short-lived, as with people only a hash is kept.
CREATE TABLE node_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    node_id    uuid NOT NULL REFERENCES nodes ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX node_tokens_by_node ON node_tokens (node_id);
CREATE INDEX node_tokens_expiring ON node_tokens (expires_at);

ALTER TABLE jobs
    -- Where it was placed. A queued job may be placed elsewhere; a running one never is.
    ADD COLUMN node_id uuid REFERENCES nodes,
    -- The commit it was told to start from.
    ADD COLUMN base text,
    ADD COLUMN phase text CHECK (phase IN ('preparing', 'working', 'asking', 'finishing')),
    -- The number of the event that is expected next.
    ADD COLUMN events_next bigint NOT NULL DEFAULT 0,
    -- Work in a sandbox, which only nodes do.
    ADD COLUMN for_nodes boolean NOT NULL GENERATED ALWAYS AS (coalesce(payload -> 'unit' ? 'work', false)) STORED;
CREATE INDEX jobs_of_nodes ON jobs (node_id) WHERE state IN ('queued', 'running') AND node_id IS NOT NULL;
CREATE INDEX jobs_unplaced ON jobs (queued_at) WHERE state = 'queued' AND for_nodes AND node_id IS NULL;

-- What happened in jobs, as their nodes told. Text is redacted before it comes here.
CREATE TABLE job_events (
    job_id  uuid NOT NULL,
    task_id uuid NOT NULL,
    number  bigint NOT NULL CHECK (number >= 0),
    at      timestamptz NOT NULL,
    at_ms   bigint NOT NULL CHECK (at_ms >= 0),
    event   text NOT NULL,
    data    jsonb NOT NULL,
    PRIMARY KEY (job_id, number, at)
) PARTITION BY RANGE (at);
CREATE INDEX job_events_by_task ON job_events (task_id, at);
CREATE INDEX job_events_by_time ON job_events USING brin (at);

-- Which agent at work was told which instruction.
CREATE TABLE job_deliveries (
    job_id         uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    instruction_id uuid NOT NULL REFERENCES task_instructions ON DELETE CASCADE,
    delivered_at   timestamptz NOT NULL,
    PRIMARY KEY (job_id, instruction_id)
);

-- The repository of a project: the objects are on disk, here is what people are shown.
CREATE TABLE repositories (
    project_id     uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    default_branch text NOT NULL CHECK (char_length(default_branch) BETWEEN 1 AND 200),
    head           text NOT NULL CHECK (head ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    imported_by    uuid NOT NULL REFERENCES users,
    imported_at    timestamptz NOT NULL
);

CREATE INDEX agent_tokens_by_job ON agent_tokens (job_id) WHERE revoked_at IS NULL AND job_id IS NOT NULL;
