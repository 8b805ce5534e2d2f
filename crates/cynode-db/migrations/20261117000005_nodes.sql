-- Nodes: machines of the user that run jobs.

CREATE TABLE nodes (
    node_id        uuid PRIMARY KEY,
    name           text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    public_key     bytea NOT NULL UNIQUE CHECK (octet_length(public_key) = 32),
    state          text NOT NULL CHECK (state IN ('active', 'draining', 'removed')),
    labels         text[] NOT NULL,
    report         jsonb NOT NULL CHECK (jsonb_typeof(report) = 'object'),
    slots          integer NOT NULL CHECK (slots BETWEEN 0 AND 1000),
    last_placement bigint NOT NULL DEFAULT 0, -- the number of its last placement
    joined_by      uuid REFERENCES users,    -- null: a person on the server itself
    joined_at      timestamptz NOT NULL,
    last_seen_at   timestamptz NOT NULL,
    -- Which process of the node is valid. Each process that starts takes the next generation and revokes the tokens of the one
    -- before; 0 is a node that joined and never ran.
    generation     bigint NOT NULL DEFAULT 0 CHECK (generation >= 0)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX nodes_name_unique ON nodes (name) WHERE state <> 'removed';

-- Numbers placements: among equal nodes the one with the oldest placement is next.
CREATE SEQUENCE node_placements;

-- One-time tokens, each for one machine to join.
CREATE TABLE node_join_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    labels     text[] NOT NULL,
    issued_by  uuid REFERENCES users,        -- null: a person on the server itself
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    node_id    uuid REFERENCES nodes         -- the node that used it
);

-- Short-lived bearer tokens of nodes.
CREATE TABLE node_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    node_id    uuid NOT NULL REFERENCES nodes ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
CREATE INDEX node_tokens_by_node ON node_tokens (node_id);
CREATE INDEX node_tokens_expiring ON node_tokens (expires_at);
