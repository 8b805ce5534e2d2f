-- Profiles of the installation and of projects: what agents may use. Those that come with the product are not stored.

CREATE TABLE profiles (
    profile_id uuid PRIMARY KEY,
    project_id uuid REFERENCES projects ON DELETE CASCADE, -- null: of the installation
    name       text NOT NULL CHECK (name ~ '^[a-z][a-z0-9]*(-[a-z0-9]+)*$' AND char_length(name) <= 63),
    version    integer NOT NULL CHECK (version >= 1),      -- goes on when a deleted profile is made again
    spec       jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by uuid NOT NULL REFERENCES users,
    deleted_at timestamptz,
    CONSTRAINT profiles_name_unique UNIQUE NULLS NOT DISTINCT (project_id, name),
    CONSTRAINT profiles_name_not_shipped CHECK (name NOT IN ('default', 'offline', 'research', 'builder', 'reviewer'))
);
CREATE INDEX profiles_by_name ON profiles (name);

-- Every version that was written.
CREATE TABLE profile_versions (
    profile_id uuid NOT NULL REFERENCES profiles ON DELETE CASCADE,
    version    integer NOT NULL CHECK (version >= 1),
    spec       jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    written_by uuid NOT NULL REFERENCES users,
    written_at timestamptz NOT NULL,
    PRIMARY KEY (profile_id, version)
);

-- Before, the name of a profile was a label. Names that are in use permit what `default` does, so that an upgrade changes nothing.
INSERT INTO profiles (profile_id, name, version, spec, created_at, updated_at, updated_by)
SELECT gen_random_uuid(), l.name, 1, '{
    "description": "Agents that were given no other profile: everything but the network.",
    "tools": ["*"], "network": [], "variables": ["*"], "paths": { "read": ["**"], "write": ["**"] },
    "models": ["*"], "memory": "write", "sandbox": {}
}'::jsonb, now(), now(), l.author
FROM (
    SELECT DISTINCT ON (name) name, author
    FROM (
        SELECT value #>> '{}' AS name, updated_by AS author
        FROM preferences
        WHERE key IN ('memory.profile', 'agents.project_manager.profile') AND jsonb_typeof(value) = 'string'
        UNION ALL
        SELECT profile, coalesce(issued_by, user_id) FROM agent_tokens WHERE revoked_at IS NULL AND expires_at > now()
    ) used
    WHERE name ~ '^[a-z][a-z0-9]*(-[a-z0-9]+)*$' AND char_length(name) <= 63
        AND name NOT IN ('default', 'offline', 'research', 'builder', 'reviewer')
    ORDER BY name, author
) l;
INSERT INTO profile_versions (profile_id, version, spec, written_by, written_at)
SELECT profile_id, version, spec, updated_by, updated_at FROM profiles;

-- What an agent of a project that works under that name may use: the profile of the project, else that of the installation. One that the
-- project deleted is not followed by its namesake: nothing may become wider by a deletion.
CREATE FUNCTION current_profile(wanted text, area uuid) RETURNS TABLE (profile_version integer, profile_spec jsonb)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1
BEGIN ATOMIC
    SELECT f.version, f.spec
    FROM (
        SELECT p.version, p.spec, p.deleted_at
        FROM profiles p
        WHERE p.name = wanted AND (p.project_id = area OR p.project_id IS NULL)
        ORDER BY p.project_id IS NULL
        LIMIT 1
    ) f
    WHERE f.deleted_at IS NULL;
END;

-- From here on `agent_tokens.network` can only take the network away: a token has it when its profile has it and the column is true.

-- The profile that the agent of a record worked under. Records of earlier releases have none.
ALTER TABLE audit_records
    ADD COLUMN profile text CONSTRAINT audit_records_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$');
