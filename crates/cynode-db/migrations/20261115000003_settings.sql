-- What people set: for the system, and for whom it concerns. Every write is kept.

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
    scope_id   uuid,
    key        text NOT NULL CHECK (key ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    value      jsonb NOT NULL,               -- JSON null hides the scopes below
    version    bigint NOT NULL CHECK (version >= 1),
    updated_by uuid NOT NULL REFERENCES users,
    updated_at timestamptz NOT NULL,
    CONSTRAINT preferences_scope_shape CHECK (CASE scope_type
        WHEN 'system' THEN scope_id IS NULL
        WHEN 'group' THEN scope_id IS NOT NULL
        WHEN 'user' THEN scope_id IS NOT NULL
        WHEN 'project' THEN scope_id IS NOT NULL
        WHEN 'task' THEN scope_id IS NOT NULL
        ELSE false END),
    CONSTRAINT preferences_once UNIQUE NULLS NOT DISTINCT (scope_type, scope_id, key)
);

CREATE TABLE preferences_history (
    scope_type text NOT NULL,
    scope_id   uuid,
    key        text NOT NULL,
    version    bigint NOT NULL,
    value      jsonb,                        -- null: this version is the deletion
    changed_by uuid NOT NULL REFERENCES users,
    changed_at timestamptz NOT NULL,
    CONSTRAINT preferences_history_once UNIQUE NULLS NOT DISTINCT (scope_type, scope_id, key, version)
);
