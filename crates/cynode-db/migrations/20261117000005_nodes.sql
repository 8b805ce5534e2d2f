-- Nodes: machines of the user that run jobs.

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
    last_seen_at timestamptz NOT NULL,
    -- Which process of the node may speak for it. Each process that starts takes the next generation and ends the tokens of the
    -- one before; 0 is a node that joined and never ran.
    generation   bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
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
