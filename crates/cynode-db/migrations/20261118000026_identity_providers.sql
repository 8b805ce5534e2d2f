-- Single sign-on: identity providers (OpenID Connect), the accounts that people have there, the grants behind their
-- sessions, and the logins of devices.

CREATE TABLE identity_providers (
    identity_provider_id uuid PRIMARY KEY,
    name                 text NOT NULL CONSTRAINT identity_providers_name_unique UNIQUE
                         CHECK (name ~ '^[a-z][a-z0-9-]{0,30}$'),
    display_name         text NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 200),
    -- It never changes: the subjects of another issuer are other people.
    issuer               text NOT NULL CONSTRAINT identity_providers_issuer_unique UNIQUE
                         CHECK (char_length(issuer) BETWEEN 8 AND 500),
    client_id            text NOT NULL CHECK (char_length(client_id) BETWEEN 1 AND 500),
    sealed_secret        bytea,                   -- a public client has none
    scopes               text[] NOT NULL CHECK (cardinality(scopes) <= 20),
    groups_claim         text NOT NULL CHECK (char_length(groups_claim) BETWEEN 1 AND 200),
    create_accounts      boolean NOT NULL,        -- just-in-time accounts
    -- Accounts of the directory log in by it: its subject is their external id.
    links_directory      boolean NOT NULL DEFAULT false,
    -- Values of the claim `acr` that stand for a second factor.
    second_factor_contexts text[] NOT NULL DEFAULT '{}' CHECK (cardinality(second_factor_contexts) <= 20),
    enabled              boolean NOT NULL,
    from_file            boolean NOT NULL,        -- the file of the configuration owns it
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL
);

-- Which group of the provider is which group here. A group without a row gives no right.
CREATE TABLE provider_group_mappings (
    identity_provider_id uuid NOT NULL REFERENCES identity_providers ON DELETE CASCADE,
    claim_value          text NOT NULL CHECK (char_length(claim_value) BETWEEN 1 AND 300),
    group_id             uuid NOT NULL REFERENCES groups ON DELETE CASCADE,
    PRIMARY KEY (identity_provider_id, claim_value, group_id)
);
CREATE INDEX provider_group_mappings_by_group ON provider_group_mappings (group_id);

-- A person is known by issuer and subject, never by an e-mail address.
CREATE TABLE external_identities (
    external_identity_id uuid PRIMARY KEY,
    identity_provider_id uuid NOT NULL REFERENCES identity_providers ON DELETE CASCADE,
    subject              text NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 255),
    user_id              uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    linked_at            timestamptz NOT NULL,
    CONSTRAINT external_identities_subject_unique UNIQUE (identity_provider_id, subject),
    CONSTRAINT external_identities_user_unique UNIQUE (identity_provider_id, user_id)
);
CREATE INDEX external_identities_by_user ON external_identities (user_id);

-- What a provider granted at a login. Its sessions work while the provider confirms it.
CREATE TABLE provider_grants (
    provider_grant_id    uuid PRIMARY KEY,
    external_identity_id uuid NOT NULL REFERENCES external_identities ON DELETE CASCADE,
    provider_session     text CHECK (char_length(provider_session) BETWEEN 1 AND 255),
    sealed_tokens        bytea NOT NULL,          -- empty after its end
    confirmed_at         timestamptz NOT NULL,    -- when the provider last said yes
    valid_until          timestamptz NOT NULL,    -- its sessions wait for a new check after that
    claimed_until        timestamptz,             -- a process checks it until then
    check_number         bigint NOT NULL DEFAULT 0, -- fencing token of checks
    unreachable_since    timestamptz,
    created_at           timestamptz NOT NULL,
    ended_at             timestamptz
);
CREATE INDEX provider_grants_by_identity ON provider_grants (external_identity_id);

ALTER TABLE user_sessions
    ADD COLUMN provider_grant_id uuid REFERENCES provider_grants ON DELETE CASCADE,
    ADD COLUMN login_method      text CHECK (login_method IN ('password', 'provider', 'device', 'break_glass')),
    ADD COLUMN device            text CHECK (char_length(device) BETWEEN 1 AND 200),
    ADD COLUMN source            text CHECK (char_length(source) BETWEEN 1 AND 100);
CREATE INDEX user_sessions_by_grant ON user_sessions (provider_grant_id) WHERE provider_grant_id IS NOT NULL;

-- A membership that a provider gave, it takes away again. One that a person gave stays.
ALTER TABLE group_members
    ADD COLUMN identity_provider_id uuid REFERENCES identity_providers ON DELETE CASCADE;
CREATE INDEX group_members_by_provider ON group_members (identity_provider_id, user_id) WHERE identity_provider_id IS NOT NULL;

-- States of logins and ids of logout tokens that were used: neither works twice.
CREATE TABLE used_login_values (
    value_hash bytea PRIMARY KEY CHECK (octet_length(value_hash) = 32),
    expires_at timestamptz NOT NULL
);
CREATE INDEX used_login_values_by_end ON used_login_values (expires_at);

-- Logins of devices without a browser (RFC 8628). A person confirms one in a session of theirs.
CREATE TABLE device_authorizations (
    device_code_hash bytea PRIMARY KEY CHECK (octet_length(device_code_hash) = 32),
    user_code        text NOT NULL CONSTRAINT device_authorizations_user_code_unique UNIQUE
                     CHECK (user_code ~ '^[BCDFGHJKLMNPQRSTVWXZ]{8}$'),
    device           text NOT NULL CHECK (char_length(device) BETWEEN 1 AND 200),
    source           text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 100),
    state            text NOT NULL,
    decided_by       uuid REFERENCES users ON DELETE CASCADE,
    decided_session  uuid REFERENCES user_sessions ON DELETE CASCADE,
    created_at       timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL CHECK (expires_at > created_at),
    polled_at        timestamptz,
    CONSTRAINT device_authorizations_state_shape CHECK (CASE state
        WHEN 'pending'  THEN decided_by IS NULL AND decided_session IS NULL
        WHEN 'approved' THEN decided_by IS NOT NULL AND decided_session IS NOT NULL
        WHEN 'denied'   THEN decided_by IS NOT NULL AND decided_session IS NOT NULL
        ELSE false END)
);
CREATE INDEX device_authorizations_by_source ON device_authorizations (source) WHERE state = 'pending';
CREATE INDEX device_authorizations_by_end ON device_authorizations (expires_at);
CREATE INDEX device_authorizations_by_decider ON device_authorizations (decided_by);
CREATE INDEX device_authorizations_by_session ON device_authorizations (decided_session);
