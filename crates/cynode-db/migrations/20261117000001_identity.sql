-- The users, how they authenticate, their groups, and the tokens of the programs of the installation.

CREATE TABLE users (
    user_id      uuid PRIMARY KEY,
    handle       text NOT NULL CONSTRAINT users_handle_unique UNIQUE
                 CHECK (handle ~ '^[a-z][a-z0-9-]{0,62}$'),
    display_name text NOT NULL CHECK (char_length(display_name) BETWEEN 1 AND 200),
    email        text CHECK (char_length(email) BETWEEN 3 AND 254),
    state        text NOT NULL,
    disabled_at  timestamptz,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    CONSTRAINT users_state_shape CHECK (CASE state
        WHEN 'active'   THEN disabled_at IS NULL
        WHEN 'disabled' THEN disabled_at IS NOT NULL
        ELSE false END)
);

-- A table of its own, so that no query of users can return a hash.
CREATE TABLE password_credentials (
    user_id    uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    phc        text NOT NULL CHECK (phc LIKE '$argon2id$%'),
    changed_at timestamptz NOT NULL
);

-- A token has 256 random bits. Only its SHA-256 is stored, here and for every other kind of token.
CREATE TABLE user_sessions (
    session_id uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    token_hash bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
    ended_at   timestamptz
);
CREATE INDEX user_sessions_by_user ON user_sessions (user_id);
-- Retention finds expired sessions by this index.
CREATE INDEX user_sessions_by_end ON user_sessions (expires_at);

CREATE TABLE api_keys (
    api_key_id uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    name       text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    token_hash bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz CHECK (expires_at > created_at),
    revoked_at timestamptz
);
CREATE INDEX api_keys_by_user ON api_keys (user_id, api_key_id);

CREATE TABLE bootstrap_tokens (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz
);

CREATE TABLE groups (
    group_id   uuid PRIMARY KEY,
    name       text NOT NULL CONSTRAINT groups_name_unique UNIQUE
               CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    created_at timestamptz NOT NULL
);

CREATE TABLE group_members (
    group_id uuid NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    added_at timestamptz NOT NULL,
    PRIMARY KEY (group_id, user_id)
);
CREATE INDEX group_members_by_user ON group_members (user_id);

-- Programs that work for the installation.
CREATE TABLE service_tokens (
    service_token_id uuid PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('runner', 'worker', 'manager', 'analyst')),
    name             text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    token_hash       bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_at       timestamptz NOT NULL,
    revoked_at       timestamptz,
    last_seen_at     timestamptz             -- when the program last asked for work, noted every few seconds at most
);
