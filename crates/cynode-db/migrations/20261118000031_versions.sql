-- Programs of the installation and the release that each named last. A command line is named by the account that it is logged in as, and
-- one account may use several releases. Nodes are in their own table.
CREATE TABLE processes (
    kind         text NOT NULL CHECK (kind IN ('server', 'runner', 'worker', 'manager', 'analyst', 'command_line')),
    name         text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 300),
    release      text NOT NULL CHECK (release ~ '^[0-9]+\.[0-9]+\.[0-9]+$'),
    last_seen_at timestamptz NOT NULL,
    PRIMARY KEY (kind, name, release)
);
CREATE INDEX processes_by_time ON processes (last_seen_at);

-- Who can open a backup: age recipients; none for a passphrase.
ALTER TABLE backups ADD COLUMN recipients text[] NOT NULL DEFAULT '{}';
