-- Skills of an installation, a project or a person, with their files and every version.

-- What there is belongs to projects and stays as it is. The defaults are those of programs that know projects only.
ALTER TABLE skills ALTER COLUMN project_id DROP NOT NULL;
ALTER TABLE skills ADD COLUMN scope text NOT NULL DEFAULT 'project' CHECK (scope IN ('installation', 'project', 'person'));
ALTER TABLE skills ADD COLUMN user_id uuid REFERENCES users; -- whose skill it is
ALTER TABLE skills ADD COLUMN license text CHECK (char_length(license) BETWEEN 1 AND 200);
ALTER TABLE skills ADD COLUMN allowed_tools text[] NOT NULL DEFAULT '{}' CHECK (cardinality(allowed_tools) <= 64);
ALTER TABLE skills ADD COLUMN by_agent boolean NOT NULL DEFAULT false; -- an agent wrote this version, whoever reviewed it since
ALTER TABLE skills ADD CONSTRAINT skills_owner CHECK (
    (scope = 'project') = (project_id IS NOT NULL) AND (scope = 'person') = (user_id IS NOT NULL));
-- Names are unique in the installation, in a project, and of a person: the owner is nobody, a project or a person.
ALTER TABLE skills ADD COLUMN owner_id uuid NOT NULL
    GENERATED ALWAYS AS (coalesce(project_id, user_id, '00000000-0000-0000-0000-000000000000'::uuid)) STORED;
ALTER TABLE skills DROP CONSTRAINT skills_name_unique;
ALTER TABLE skills ADD CONSTRAINT skills_name_unique UNIQUE (owner_id, name);
CREATE INDEX skills_of_project ON skills (project_id);
UPDATE skills SET by_agent = true WHERE unreviewed;

-- Every version of a skill, the present one included. The oldest are removed when there are too many.
CREATE TABLE skill_versions (
    skill_id      uuid NOT NULL REFERENCES skills ON DELETE CASCADE,
    version       bigint NOT NULL CHECK (version >= 1),
    description   text NOT NULL CHECK (char_length(description) BETWEEN 1 AND 1000),
    body          text NOT NULL CHECK (octet_length(body) <= 65536),
    license       text CHECK (char_length(license) BETWEEN 1 AND 200),
    allowed_tools text[] NOT NULL CHECK (cardinality(allowed_tools) <= 64),
    by_agent      boolean NOT NULL,
    written_by    uuid NOT NULL REFERENCES users,
    written_at    timestamptz NOT NULL,
    reviewed_by   uuid REFERENCES users, -- who looked at what an agent wrote
    reviewed_at   timestamptz,
    PRIMARY KEY (skill_id, version),
    CONSTRAINT skill_versions_review CHECK ((reviewed_by IS NULL) = (reviewed_at IS NULL))
);
INSERT INTO skill_versions (skill_id, version, description, body, allowed_tools, by_agent, written_by, written_at)
SELECT skill_id, version, description, body, allowed_tools, by_agent, updated_by, updated_at FROM skills;

-- The files of a version beside its SKILL.md. The position bounds how many there are; a path has no part that hides or leads out.
CREATE TABLE skill_files (
    skill_id   uuid NOT NULL,
    version    bigint NOT NULL,
    position   smallint NOT NULL CHECK (position BETWEEN 0 AND 31),
    path       text NOT NULL CHECK (char_length(path) <= 200
                   AND path ~ '^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$' AND lower(path) <> 'skill.md'),
    content    text NOT NULL CHECK (octet_length(content) <= 65536),
    executable boolean NOT NULL,
    PRIMARY KEY (skill_id, version, position),
    CONSTRAINT skill_files_path_unique UNIQUE (skill_id, version, path),
    FOREIGN KEY (skill_id, version) REFERENCES skill_versions ON DELETE CASCADE
);
