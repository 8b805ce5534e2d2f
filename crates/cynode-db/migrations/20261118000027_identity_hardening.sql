-- Restricted API keys, idle sessions, second factors, break-glass links, the SCIM directory, and who may create projects.

-- Creating projects is a permission of its own: an operator of the installation works in every project, a person with this creates their own.
ALTER TABLE users ADD COLUMN can_create_projects boolean NOT NULL DEFAULT false;
ALTER TABLE groups ADD COLUMN can_create_projects boolean NOT NULL DEFAULT false;
-- A directory looks people up by this.
CREATE INDEX users_by_display_name ON users (lower(display_name));

-- A session ends when it was not used for a while. Its use is noted once a minute at most; open streams do not count.
ALTER TABLE user_sessions ADD COLUMN last_used_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE user_sessions ADD COLUMN second_factor boolean NOT NULL DEFAULT false;

ALTER TABLE api_keys ADD COLUMN scopes text[]    -- null: every group of operations
    CONSTRAINT api_keys_scopes CHECK (scopes <@ ARRAY['accounts', 'delivery', 'events', 'manager', 'models', 'nodes', 'notifications',
        'operation', 'projects', 'schedules', 'settings', 'skills', 'tasks', 'tools']);
ALTER TABLE api_keys ADD COLUMN read_only boolean NOT NULL DEFAULT false;
-- Said here and not by the rows below: when its last project is deleted, a key is worth nothing, and not everything.
ALTER TABLE api_keys ADD COLUMN limited_to_projects boolean NOT NULL DEFAULT false;
ALTER TABLE api_keys ADD COLUMN second_factor boolean NOT NULL DEFAULT false;
ALTER TABLE api_keys ADD COLUMN last_used_at timestamptz;

CREATE TABLE api_key_projects (
    api_key_id uuid NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    PRIMARY KEY (api_key_id, project_id)
);
CREATE INDEX api_key_projects_by_project ON api_key_projects (project_id);

-- One-time passwords (RFC 6238). The secret is sealed; a time step counts once.
CREATE TABLE totp_credentials (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    sealed_secret bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    confirmed_at  timestamptz,               -- null: enrolment has begun, and no code was shown yet
    last_step     bigint NOT NULL DEFAULT 0
);

CREATE TABLE recovery_codes (
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    code_hash  bytea NOT NULL CHECK (octet_length(code_hash) = 32),
    created_at timestamptz NOT NULL,
    used_at    timestamptz,
    PRIMARY KEY (user_id, code_hash)
);

-- Links that somebody with the master key makes on the host. The tag is made with that key: a row that only the database was
-- written with opens nothing.
CREATE TABLE break_glass_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    tag        bytea NOT NULL CHECK (octet_length(tag) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
    used_at    timestamptz
);
CREATE INDEX break_glass_tokens_by_user ON break_glass_tokens (user_id);

-- The directory of a company provisions users and groups by SCIM 2.0, with a token that opens nothing else.
CREATE TABLE scim_tokens (
    scim_token_id uuid PRIMARY KEY,
    name          text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    token_hash    bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_by    uuid NOT NULL REFERENCES users,
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at    timestamptz,
    last_used_at  timestamptz
);

-- Accounts that the directory manages. It sees and changes no others.
CREATE TABLE scim_users (
    user_id     uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    user_name   text NOT NULL CHECK (char_length(user_name) BETWEEN 1 AND 254),
    external_id text CHECK (char_length(external_id) BETWEEN 1 AND 254),
    updated_at  timestamptz NOT NULL
);
CREATE UNIQUE INDEX scim_users_user_name_unique ON scim_users (lower(user_name));
CREATE INDEX scim_users_by_external_id ON scim_users (external_id) WHERE external_id IS NOT NULL;

CREATE TABLE scim_groups (
    group_id     uuid PRIMARY KEY REFERENCES groups ON DELETE CASCADE,
    display_name text NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 200),
    external_id  text CHECK (char_length(external_id) BETWEEN 1 AND 254),
    updated_at   timestamptz NOT NULL
);
CREATE UNIQUE INDEX scim_groups_display_name_unique ON scim_groups (lower(display_name));
