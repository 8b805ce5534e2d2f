-- Projects, and who has which role where.

CREATE TABLE projects (
    project_id  uuid PRIMARY KEY,
    slug        text NOT NULL CONSTRAINT projects_slug_taken UNIQUE
                CHECK (slug ~ '^[a-z][a-z0-9-]{0,62}$'),
    title       text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    description text CHECK (char_length(description) BETWEEN 1 AND 20000),
    created_by  uuid NOT NULL REFERENCES users,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- A user's own role in a project.
CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    added_at   timestamptz NOT NULL,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_by_user ON project_members (user_id);

-- Everything else: a role in the whole installation (project_id is null) for a user or a group,
-- or a group's role in one project.
CREATE TABLE role_bindings (
    user_id    uuid REFERENCES users ON DELETE CASCADE,
    group_id   uuid REFERENCES groups ON DELETE CASCADE,
    project_id uuid REFERENCES projects ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    bound_at   timestamptz NOT NULL,
    CONSTRAINT role_bindings_one_subject CHECK (num_nonnulls(user_id, group_id) = 1),
    CONSTRAINT role_bindings_users_are_members CHECK (project_id IS NULL OR user_id IS NULL),
    CONSTRAINT role_bindings_once UNIQUE NULLS NOT DISTINCT (user_id, group_id, project_id)
);
CREATE INDEX role_bindings_by_group ON role_bindings (group_id) WHERE group_id IS NOT NULL;
