-- The audit log: hash chains of records of tool calls, and their signed heads.

-- Hash chains of records. Each holds the hash of the chain before it, so that removing one is detected.
CREATE TABLE audit_chains (
    chain_id        uuid PRIMARY KEY,
    number          bigint NOT NULL UNIQUE CHECK (number >= 1),
    previous_hash   bytea NOT NULL CHECK (octet_length(previous_hash) = 32),
    writer          text NOT NULL,
    started_at      timestamptz NOT NULL,
    signature       bytea NOT NULL CHECK (octet_length(signature) = 64),
    pruned_at       timestamptz,
    prune_signature bytea CHECK (octet_length(prune_signature) = 64) -- signs that its records were pruned
);

-- Records of tool calls. No column can hold arguments or results: only their keyed digests and sizes.
CREATE TABLE audit_records (
    chain_id          uuid NOT NULL,
    seq               bigint NOT NULL CHECK (seq >= 0),
    recorded_at       timestamptz NOT NULL,
    call_id           uuid NOT NULL,
    phase             text NOT NULL CHECK (phase IN ('decision', 'outcome')),
    decision          text NOT NULL CHECK (decision IN ('allow', 'deny', 'needs_approval')),
    reason            text NOT NULL CHECK (reason ~ '^[a-z0-9_.:-]{1,64}$'),
    rules             text[] NOT NULL,
    shadow_rules      text[] NOT NULL,
    outcome           text,
    agent_token_id    uuid,
    agent_kind        text,
    agent_role        text,
    user_id           uuid,
    project_id        uuid,
    task_id           uuid,
    run_id            uuid,
    job_id            uuid,
    method            text NOT NULL CHECK (method ~ '^[a-z/_]{1,40}$'),
    tool              text CHECK (char_length(tool) <= 128),
    definition_digest bytea CHECK (octet_length(definition_digest) = 32),
    server_id         uuid,
    node_id           uuid,
    policy_hash       bytea NOT NULL CHECK (octet_length(policy_hash) = 32),
    catalogue_hash    bytea NOT NULL CHECK (octet_length(catalogue_hash) = 32),
    trace_id          text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    arguments_digest  bytea CHECK (octet_length(arguments_digest) = 32),
    arguments_size    bigint NOT NULL CHECK (arguments_size >= 0),
    result_digest     bytea CHECK (octet_length(result_digest) = 32),
    result_size       bigint NOT NULL CHECK (result_size >= 0),
    duration_us       bigint NOT NULL CHECK (duration_us >= 0),
    previous_hash     bytea NOT NULL CHECK (octet_length(previous_hash) = 32),
    hash              bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (chain_id, seq, recorded_at)
) PARTITION BY RANGE (recorded_at);
CREATE INDEX audit_records_by_task ON audit_records (task_id, recorded_at) WHERE task_id IS NOT NULL;
CREATE INDEX audit_records_by_call ON audit_records (call_id);
CREATE INDEX audit_records_by_time ON audit_records USING brin (recorded_at);

-- Signed heads of chains.
CREATE TABLE audit_checkpoints (
    chain_id  uuid NOT NULL,
    size      bigint NOT NULL CHECK (size >= 0),
    root      bytea NOT NULL CHECK (octet_length(root) = 32),
    head      bytea NOT NULL CHECK (octet_length(head) = 32),
    signed_at timestamptz NOT NULL,
    closed    boolean NOT NULL,
    signature bytea NOT NULL CHECK (octet_length(signature) = 64),
    PRIMARY KEY (chain_id, size, closed)
);
