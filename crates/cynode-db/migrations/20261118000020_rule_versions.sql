-- Every version of a policy rule, with who wrote it. It begins with the rules that there are.
CREATE TABLE policy_rule_versions (
    name       text NOT NULL CHECK (name ~ '^[a-z0-9-]{1,60}$'),
    version    bigint NOT NULL CHECK (version >= 1),
    mode       text CHECK (mode IN ('refuse', 'approve', 'shadow')), -- null: this version is the deletion
    text       text CHECK (octet_length(text) <= 16384),
    changed_by uuid REFERENCES users,        -- null: it came with the installation
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (name, version),
    CONSTRAINT policy_rule_versions_deletion CHECK ((mode IS NULL) = (text IS NULL))
);

INSERT INTO policy_rule_versions (name, version, mode, text, changed_by, changed_at)
SELECT name, version, mode, text, updated_by, updated_at FROM policy_rules;
