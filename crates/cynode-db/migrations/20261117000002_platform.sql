-- Settings of the system, preferences of every scope, mandatory policies, and stored answers to repeated requests.

CREATE TABLE system_settings (
    key        text PRIMARY KEY CHECK (key ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    value      jsonb NOT NULL,
    version    bigint NOT NULL CHECK (version >= 1),
    updated_by uuid NOT NULL REFERENCES users,
    updated_at timestamptz NOT NULL
);

CREATE TABLE system_settings_history (
    key        text NOT NULL,
    version    bigint NOT NULL,
    value      jsonb,                        -- null: this version is the deletion
    changed_by uuid NOT NULL REFERENCES users,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (key, version)
);

CREATE TABLE preferences (
    scope_type text NOT NULL,
    scope_id   uuid NOT NULL,                -- nil for the system, so that an index finds it
    key        text NOT NULL CHECK (key ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    value      jsonb NOT NULL,               -- JSON null hides the scopes below
    version    bigint NOT NULL CHECK (version >= 1),
    updated_by uuid NOT NULL REFERENCES users,
    updated_at timestamptz NOT NULL,
    CONSTRAINT preferences_scope_shape CHECK (CASE scope_type
        WHEN 'system' THEN scope_id = '00000000-0000-0000-0000-000000000000'
        WHEN 'group' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        WHEN 'user' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        WHEN 'project' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        WHEN 'task' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        ELSE false END),
    CONSTRAINT preferences_unique UNIQUE (scope_type, scope_id, key)
);

CREATE TABLE preferences_history (
    scope_type text NOT NULL,
    scope_id   uuid NOT NULL,                -- nil for the system, so that an index finds it
    key        text NOT NULL,
    version    bigint NOT NULL,
    value      jsonb,                        -- null: this version is the deletion
    changed_by uuid NOT NULL REFERENCES users,
    changed_at timestamptz NOT NULL,
    CONSTRAINT preferences_history_unique UNIQUE (scope_type, scope_id, key, version)
);

-- How often the preferences of one user, project or task that choose models were changed. A model call compares it with what its
-- route was chosen by, and so does not depend on the changes of others. Those of the system and of groups raise `routing_epoch`.
CREATE TABLE preference_epochs (
    scope_type text NOT NULL CHECK (scope_type IN ('user', 'project', 'task')),
    scope_id   uuid NOT NULL,
    epoch      bigint NOT NULL CHECK (epoch >= 1),
    PRIMARY KEY (scope_type, scope_id)
) WITH (fillfactor = 50);

-- The epoch of all preferences that apply to a call: it grows with each change of one of them.
CREATE FUNCTION preference_epoch(of_user uuid, of_project uuid, of_task uuid) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce(sum(e.epoch), 0)::bigint FROM preference_epochs e
    WHERE (e.scope_type = 'user' AND e.scope_id = of_user) OR (e.scope_type = 'project' AND e.scope_id = of_project)
        OR (e.scope_type = 'task' AND e.scope_id = of_task);
END;

-- Mandatory policies. All that apply to a request hold together, so a narrower scope can only be stricter.
CREATE TABLE mandatory_policies (
    scope_type text NOT NULL,
    scope_id   uuid NOT NULL,                -- nil for the system, so that an index finds it
    key        text NOT NULL CHECK (key ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    value      jsonb NOT NULL CHECK (value = 'true' OR jsonb_typeof(value) = 'array'),
    set_by     uuid NOT NULL REFERENCES users,
    set_at     timestamptz NOT NULL,
    PRIMARY KEY (scope_type, scope_id, key),
    CONSTRAINT mandatory_policies_scope_shape CHECK (CASE scope_type
        WHEN 'system' THEN scope_id = '00000000-0000-0000-0000-000000000000'
        WHEN 'group' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        WHEN 'project' THEN scope_id <> '00000000-0000-0000-0000-000000000000'
        ELSE false END)
);

-- The key is unique as long as a row is stored, so the table cannot be partitioned by time; retention prunes it by `expires_at`.
CREATE TABLE idempotency_keys (
    actor_id       uuid NOT NULL,
    key            text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 200),
    request_digest bytea NOT NULL CHECK (octet_length(request_digest) = 32),
    answer         bytea NOT NULL,
    expires_at     timestamptz NOT NULL,
    PRIMARY KEY (actor_id, key)
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys USING brin (expires_at);
