-- Backups and restores, the releases that a schema works with, and what the server may do with the database at run time.

-- Epochs of the installation. A restore begins a new one: work that the lost installation did after the backup is looked up outside
-- before it is repeated, and late writers of an older epoch are refused by the raised fencing tokens.
CREATE TABLE installation_epochs (
    epoch           bigint PRIMARY KEY CHECK (epoch >= 1),
    reason          text NOT NULL,
    began_at        timestamptz NOT NULL,
    backup_id       uuid,
    backup_taken_at timestamptz,
    CONSTRAINT installation_epochs_shape CHECK (CASE reason
        WHEN 'created'  THEN num_nonnulls(backup_id, backup_taken_at) = 0
        WHEN 'restored' THEN num_nonnulls(backup_id, backup_taken_at) = 2
        ELSE false END)
);
INSERT INTO installation_epochs (epoch, reason, began_at) VALUES (1, 'created', clock_timestamp());

-- Backups that were completed, and their last verification. `problems` is empty when the verification found none.
CREATE TABLE backups (
    backup_id       uuid PRIMARY KEY,
    taken_at        timestamptz NOT NULL,
    completed_at    timestamptz NOT NULL,
    location        text NOT NULL CHECK (char_length(location) BETWEEN 1 AND 4000),
    program_version text NOT NULL CHECK (char_length(program_version) BETWEEN 1 AND 100),
    bytes           bigint NOT NULL CHECK (bytes >= 0),
    verified_at     timestamptz,
    problems        text[] NOT NULL DEFAULT '{}',
    CONSTRAINT backups_verified CHECK (verified_at IS NOT NULL OR cardinality(problems) = 0)
);
CREATE INDEX backups_by_time ON backups (taken_at);

-- One row: the oldest release whose program works with this schema. A migration that takes something away raises it.
CREATE TABLE schema_requirements (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    min_release text NOT NULL CHECK (min_release ~ '^[0-9]+\.[0-9]+\.[0-9]+$')
);
INSERT INTO schema_requirements (min_release) VALUES ('0.1.0');

-- Makes the partition of one month. It runs with the rights of the owner, for a server that may not create tables; the names are fixed.
CREATE FUNCTION ensure_month_partition(parent text, month date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    partition text := parent || '_' || to_char(month, 'YYYY_MM');
BEGIN
    IF parent NOT IN ('events', 'workflow_transitions', 'audit_records', 'model_calls', 'job_events', 'think_calls')
        OR extract(day FROM month) <> 1 THEN
        RAISE EXCEPTION 'there are no partitions of % for %', parent, month;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('cynode.partitions'));
    IF to_regclass(partition) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', partition, parent,
            month::text || ' 00:00:00+00', (month + interval '1 month')::date::text || ' 00:00:00+00');
    END IF;
END $$;
REVOKE ALL ON FUNCTION ensure_month_partition(text, date) FROM PUBLIC;

-- Gives a role what the server needs at run time: rows, no tables. Records of the audit log are written and pruned, never changed, and
-- not even by way of a partition. It runs with the rights of its caller, the owner, after every migration.
CREATE FUNCTION grant_runtime_privileges(role_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    relation regclass;
BEGIN
    -- Two processes that grant at once would change the same rows of the catalogue.
    PERFORM pg_advisory_xact_lock(hashtext('cynode.grants'));
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    FOR relation IN
        SELECT c.oid::regclass FROM pg_class c
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND NOT EXISTS (SELECT FROM pg_depend d
                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', relation, role_name);
    END LOOP;
    EXECUTE format('GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA %I TO %I', current_schema(), role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION ensure_month_partition(text, date) TO %I', role_name);
    EXECUTE format('REVOKE UPDATE ON audit_records, audit_checkpoints FROM %I', role_name);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON _sqlx_migrations, schema_requirements, installation_epochs FROM %I', role_name);
END $$;
REVOKE ALL ON FUNCTION grant_runtime_privileges(text) FROM PUBLIC;
