-- The keyring, the audit of privileged events, and the export of audit records.

-- Keys of the installation. The master key, which is not in the database, wraps their material. A retired key has no material left; a
-- signing key keeps its public key, because earlier signatures name it.
CREATE TABLE installation_keys (
    key_id       uuid PRIMARY KEY,
    purpose      text NOT NULL CHECK (purpose IN ('master', 'signing', 'token')),
    created_at   timestamptz NOT NULL,
    activates_at timestamptz NOT NULL,       -- from then on it seals, signs or hashes; every replica knows it before
    retires_at   timestamptz,                -- set once a newer key takes over: it is not retired before
    retired_at   timestamptz,
    derived      boolean NOT NULL DEFAULT false, -- follows from the master key of the first version
    wrapped_by   text CHECK (char_length(wrapped_by) BETWEEN 1 AND 200), -- version of the master key
    wrapped      bytea,
    public_key   bytea CHECK (octet_length(public_key) = 32),
    endorsement  bytea CHECK (octet_length(endorsement) = 64), -- signs the public key of a retired key, so that nobody adds one
    endorsed_by  uuid REFERENCES installation_keys,
    introduction bytea CHECK (octet_length(introduction) = 64), -- the signature of the key before it, so that a witness can trust it
    introduced_by uuid REFERENCES installation_keys,
    CONSTRAINT installation_keys_endorsement CHECK ((endorsement IS NULL) = (endorsed_by IS NULL)),
    CONSTRAINT installation_keys_introduction CHECK ((introduction IS NULL) = (introduced_by IS NULL)),
    CONSTRAINT installation_keys_material CHECK (CASE
        WHEN retired_at IS NOT NULL THEN wrapped IS NULL
        WHEN derived THEN (wrapped IS NULL) = (wrapped_by IS NULL)
        ELSE num_nonnulls(wrapped, wrapped_by) = 2 END),
    CONSTRAINT installation_keys_public_key CHECK (public_key IS NULL OR purpose = 'signing')
);
CREATE INDEX installation_keys_live ON installation_keys (purpose, activates_at) WHERE retired_at IS NULL;

-- The keys of an installation from before the keyring. What names no key was sealed, signed or hashed with these.
INSERT INTO installation_keys (key_id, purpose, created_at, activates_at, derived)
SELECT key_id, purpose, coalesce((SELECT min(created_at) FROM users), now()), 'epoch', true
FROM (VALUES
    ('00000000-0000-8000-8000-000000000001'::uuid, 'master'),
    ('00000000-0000-8000-8000-000000000002'::uuid, 'signing'),
    ('00000000-0000-8000-8000-000000000003'::uuid, 'token')
) first (key_id, purpose);

-- Keys that may still be named by a sealed secret or by the hash of a token. A row is deleted when its key is retired: the references
-- below refuse that while anything names the key, and refuse to name it afterwards.
CREATE TABLE openable_keys (
    key_id uuid PRIMARY KEY REFERENCES installation_keys
);
INSERT INTO openable_keys (key_id) SELECT key_id FROM installation_keys WHERE purpose IN ('master', 'token');

-- The key that a sealed secret names in its header; the first key if it has none.
CREATE FUNCTION sealing_key_of(sealed bytea) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN sealed IS NULL THEN NULL
        WHEN substring(sealed FROM 1 FOR 8) = '\x43595345414c0001'::bytea THEN encode(substring(sealed FROM 9 FOR 16), 'hex')::uuid
        ELSE '00000000-0000-8000-8000-000000000001'::uuid END
$$;

ALTER TABLE provider_keys
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_key)) STORED REFERENCES openable_keys;
ALTER TABLE tool_servers
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_credentials)) STORED REFERENCES openable_keys;
ALTER TABLE approvals
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(arguments_sealed)) STORED REFERENCES openable_keys;
ALTER TABLE project_remotes
    ADD COLUMN credential_sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(credential)) STORED REFERENCES openable_keys,
    ADD COLUMN webhook_sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(webhook_secret)) STORED REFERENCES openable_keys;
ALTER TABLE notification_channels
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_secret)) STORED REFERENCES openable_keys,
    ADD COLUMN old_sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(old_sealed_secret)) STORED REFERENCES openable_keys;
ALTER TABLE project_secrets
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed)) STORED REFERENCES openable_keys;
ALTER TABLE web_push_keys
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_private_key)) STORED REFERENCES openable_keys;
ALTER TABLE totp_credentials
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_secret)) STORED REFERENCES openable_keys;
ALTER TABLE identity_providers
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(sealed_secret)) STORED REFERENCES openable_keys;
-- A grant that has ended has no tokens, and names no key.
ALTER TABLE provider_grants
    ADD COLUMN sealed_by uuid GENERATED ALWAYS AS (sealing_key_of(nullif(sealed_tokens, ''::bytea))) STORED REFERENCES openable_keys;

-- The key under which a token is stored. The first one is no key: SHA-256 alone.
ALTER TABLE user_sessions
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE api_keys
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE bootstrap_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE service_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE agent_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE node_join_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE node_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE scim_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE break_glass_tokens
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;
ALTER TABLE device_authorizations
    ADD COLUMN hash_key_id uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000003' REFERENCES openable_keys;

-- The keys of signatures. Verification finds a key that is not one of ours, so there is no reference.
ALTER TABLE audit_chains
    ADD COLUMN signed_by uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000002',
    ADD COLUMN prune_signed_by uuid;
UPDATE audit_chains SET prune_signed_by = '00000000-0000-8000-8000-000000000002' WHERE pruned_at IS NOT NULL;
ALTER TABLE audit_checkpoints
    ADD COLUMN signed_by uuid NOT NULL DEFAULT '00000000-0000-8000-8000-000000000002';

-- Privileged events that are not in a chain of audit records yet. A row is written together with its event.
CREATE TABLE privileged_event_queue (
    xact        bigint NOT NULL,
    seq         bigint NOT NULL,
    occurred_at timestamptz NOT NULL,
    PRIMARY KEY (xact, seq)
);

-- Receivers of audit records outside of the installation. `target` holds no secret.
CREATE TABLE audit_sinks (
    sink_id       uuid PRIMARY KEY,
    name          text NOT NULL CONSTRAINT audit_sinks_name_unique UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    kind          text NOT NULL CHECK (kind IN ('syslog', 'webhook', 'object_store')),
    target        jsonb NOT NULL CHECK (jsonb_typeof(target) = 'object'),
    sealed_secret bytea,
    sealed_by     uuid GENERATED ALWAYS AS (sealing_key_of(sealed_secret)) STORED REFERENCES openable_keys,
    enabled       boolean NOT NULL,
    created_by    uuid NOT NULL REFERENCES users,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    sent_at       timestamptz,               -- the last delivery
    heads_sent_at timestamptz,               -- the last delivery of signed heads
    failures      integer NOT NULL DEFAULT 0 CHECK (failures >= 0), -- since the last delivery
    last_error    text CHECK (char_length(last_error) <= 500),
    retry_at      timestamptz,
    lease_holder  uuid,                      -- the process that delivers to it
    lease_until   timestamptz,
    CONSTRAINT audit_sinks_lease CHECK ((lease_holder IS NULL) = (lease_until IS NULL))
);

-- How far each sink is in each chain. A chain without a row has not been begun.
CREATE TABLE audit_sink_positions (
    sink_id  uuid NOT NULL REFERENCES audit_sinks ON DELETE CASCADE,
    chain_id uuid NOT NULL REFERENCES audit_chains,
    next_seq bigint NOT NULL CHECK (next_seq >= 0), -- the first record that was not delivered
    finished boolean NOT NULL,               -- the chain is closed, and everything was delivered
    PRIMARY KEY (sink_id, chain_id)
);
