-- Memory: what a project knows under a profile, and the inverted index that finds it.
--
-- A partition is one project under one profile. Every row names its partition, every query names it too, and row-level security admits
-- only the partition of the transaction-local setting `cynode.memory_partition`: a statement of the server without it sees nothing.

-- The partition that this transaction entered; null when it entered none.
CREATE FUNCTION current_memory_partition() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
    $$ SELECT nullif(current_setting('cynode.memory_partition', true), '')::bigint $$;

CREATE TABLE memory_partitions (
    partition_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id     uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    profile        text NOT NULL CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$'),
    records        bigint NOT NULL DEFAULT 0 CHECK (records >= 0),        -- that are in the index
    total_length   bigint NOT NULL DEFAULT 0 CHECK (total_length >= 0),   -- lexemes of those
    last_record_no integer NOT NULL DEFAULT 0 CHECK (last_record_no >= 0),
    CONSTRAINT memory_partitions_unique UNIQUE (project_id, profile),
    CONSTRAINT memory_partitions_scope UNIQUE (partition_no, project_id, profile)
) WITH (fillfactor = 50);

CREATE TABLE memories (
    memory_id     uuid PRIMARY KEY,
    partition_no  bigint NOT NULL,
    project_id    uuid NOT NULL,
    profile       text NOT NULL,
    record_no     integer CHECK (record_no >= 1), -- its number in the index; null: it is not found
    kind          text NOT NULL CHECK (kind IN ('fact', 'decision', 'convention', 'finding', 'document', 'code', 'summary')),
    state         text NOT NULL CHECK (state IN ('proposed', 'accepted', 'rejected')),
    title         text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 300),
    content       text NOT NULL CHECK (octet_length(content) BETWEEN 1 AND 16384),
    source        text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 500),
    path          text CHECK (char_length(path) BETWEEN 1 AND 1000),
    url           text CHECK (char_length(url) BETWEEN 1 AND 2000),
    commit_hash   text CHECK (commit_hash ~ '^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$'),
    author        text NOT NULL CHECK (author IN ('person', 'agent', 'system')),
    user_id       uuid REFERENCES users,
    agent_role    text CHECK (agent_role IN ('project_manager', 'project_analyst', 'architect', 'designer', 'developer', 'reviewer',
                      'tester', 'fixer')),
    task_id       uuid,                           -- the task may be gone
    pinned        boolean NOT NULL DEFAULT false,
    untrusted     boolean NOT NULL DEFAULT false,
    supersedes    uuid,
    superseded_by uuid,
    digest        bytea NOT NULL CHECK (octet_length(digest) = 32),
    lexemes       text NOT NULL,                  -- `lexeme:count`, separated by spaces
    length        integer NOT NULL CHECK (length >= 0),
    lexer_version smallint NOT NULL CHECK (lexer_version >= 1),
    ingest_id     uuid,
    created_at    timestamptz NOT NULL,
    decided_by    uuid REFERENCES users,
    decided_at    timestamptz,
    CONSTRAINT memories_partition FOREIGN KEY (partition_no, project_id, profile)
        REFERENCES memory_partitions (partition_no, project_id, profile) ON DELETE CASCADE,
    -- The same text of the same source is there once. A person's correction may say what another record said before.
    CONSTRAINT memories_digest_unique UNIQUE (partition_no, source, digest),
    CONSTRAINT memories_number_unique UNIQUE (partition_no, record_no),
    CONSTRAINT memories_found CHECK ((record_no IS NOT NULL) = (state = 'accepted' AND superseded_by IS NULL)),
    CONSTRAINT memories_author CHECK (CASE author WHEN 'person' THEN user_id IS NOT NULL AND agent_role IS NULL
        WHEN 'system' THEN agent_role IS NULL ELSE true END),
    CONSTRAINT memories_decided CHECK (CASE state
        WHEN 'proposed' THEN num_nonnulls(decided_by, decided_at) = 0
        WHEN 'rejected' THEN decided_at IS NOT NULL
        ELSE true END)
);
CREATE INDEX memories_by_place ON memories (partition_no, memory_id);
CREATE INDEX memories_by_age ON memories (partition_no, created_at);
CREATE INDEX memories_by_path ON memories (partition_no, source, md5(path)) WHERE path IS NOT NULL;
CREATE INDEX memories_by_proposal ON memories (partition_no, task_id) WHERE state = 'proposed';
CREATE INDEX memories_undecided ON memories (created_at) WHERE state = 'proposed';

-- The lexemes of the partition: in how many records each is, and its newest postings. A posting is 8 bytes: number of the record (4),
-- count in it (2), length of it (2). What the tail has too much of moves into a block.
CREATE TABLE memory_lexemes (
    partition_no bigint NOT NULL,
    term         text NOT NULL CHECK (octet_length(term) BETWEEN 1 AND 256),
    df           integer NOT NULL CHECK (df >= 1),
    blocks       integer NOT NULL DEFAULT 0 CHECK (blocks >= 0), -- number of the next block
    tail         bytea NOT NULL CHECK (octet_length(tail) % 8 = 0),
    PRIMARY KEY (partition_no, term)
) WITH (fillfactor = 70, toast_tuple_target = 8160);
ALTER TABLE memory_lexemes ALTER COLUMN tail SET STORAGE EXTERNAL;

-- Full blocks of postings, in the order of the records' numbers.
CREATE TABLE memory_postings (
    partition_no bigint NOT NULL,
    term         text NOT NULL CHECK (octet_length(term) BETWEEN 1 AND 256),
    block_no     integer NOT NULL CHECK (block_no >= 0),
    first_no     integer NOT NULL CHECK (first_no >= 1),
    last_no      integer NOT NULL CHECK (last_no >= first_no),
    packed       bytea NOT NULL CHECK (octet_length(packed) BETWEEN 8 AND 1048576 AND octet_length(packed) % 8 = 0),
    PRIMARY KEY (partition_no, term, block_no)
) WITH (toast_tuple_target = 8160);
ALTER TABLE memory_postings ALTER COLUMN packed SET STORAGE EXTERNAL;

ALTER TABLE memory_partitions ENABLE ROW LEVEL SECURITY;
ALTER TABLE memories ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_lexemes ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_postings ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_partition ON memory_partitions USING (partition_no = current_memory_partition());
CREATE POLICY own_partition ON memories USING (partition_no = current_memory_partition());
CREATE POLICY own_partition ON memory_lexemes USING (partition_no = current_memory_partition());
CREATE POLICY own_partition ON memory_postings USING (partition_no = current_memory_partition());

-- The index of a partition goes with it, also when its project is deleted.
CREATE FUNCTION delete_memory_index() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM memory_postings WHERE partition_no = OLD.partition_no;
    DELETE FROM memory_lexemes WHERE partition_no = OLD.partition_no;
    RETURN OLD;
END $$;
REVOKE ALL ON FUNCTION delete_memory_index() FROM PUBLIC;
CREATE TRIGGER memory_index_goes BEFORE DELETE ON memory_partitions FOR EACH ROW EXECUTE FUNCTION delete_memory_index();

-- Enters the partition of a project and profile until the end of the transaction, and says what it holds. Mode `read` only looks; `lock`
-- locks the partition, so that its writers take turns; `create` makes it where it is missing. It runs with the rights of the owner, since
-- the row rules hide a partition until it is entered.
CREATE FUNCTION enter_memory_partition(wanted_project uuid, wanted_profile text, mode text)
RETURNS TABLE (number bigint, record_count bigint, length_sum bigint, last_number integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    entered memory_partitions;
BEGIN
    PERFORM set_config('cynode.memory_partition', '', true);
    IF mode = 'create' THEN
        INSERT INTO memory_partitions (project_id, profile) VALUES (wanted_project, wanted_profile)
        ON CONFLICT ON CONSTRAINT memory_partitions_unique DO NOTHING;
    END IF;
    IF mode = 'read' THEN
        SELECT * INTO entered FROM memory_partitions p WHERE p.project_id = wanted_project AND p.profile = wanted_profile;
    ELSE
        SELECT * INTO entered FROM memory_partitions p WHERE p.project_id = wanted_project AND p.profile = wanted_profile FOR UPDATE;
    END IF;
    IF entered.partition_no IS NULL THEN
        RETURN;
    END IF;
    PERFORM set_config('cynode.memory_partition', entered.partition_no::text, true);
    RETURN QUERY SELECT entered.partition_no, entered.records, entered.total_length, entered.last_record_no;
END $$;
REVOKE ALL ON FUNCTION enter_memory_partition(uuid, text, text) FROM PUBLIC;

-- The project and profile of a record whose id the caller knows.
CREATE FUNCTION find_memory_scope(wanted uuid) RETURNS TABLE (scope_project uuid, scope_profile text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS
    $$ SELECT m.project_id, m.profile FROM memories m WHERE m.memory_id = wanted $$;
REVOKE ALL ON FUNCTION find_memory_scope(uuid) FROM PUBLIC;

-- Removes proposals, of every partition, that nobody decided. They are in no index and no count.
CREATE FUNCTION prune_memory_proposals(before timestamptz, max_rows bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    removed bigint;
BEGIN
    -- What somebody accepts at this moment stays: the state is looked at again when that transaction has ended.
    DELETE FROM memories WHERE state = 'proposed' AND memory_id IN (
        SELECT memory_id FROM memories WHERE state = 'proposed' AND created_at < before ORDER BY created_at LIMIT max_rows);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
REVOKE ALL ON FUNCTION prune_memory_proposals(timestamptz, bigint) FROM PUBLIC;

-- API keys can be limited to memory.
ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes CHECK (scopes <@ ARRAY['accounts', 'delivery', 'events', 'manager', 'memory', 'models',
    'nodes', 'notifications', 'operation', 'projects', 'schedules', 'settings', 'skills', 'tasks', 'tools']);

-- Gives a role what the server needs at run time: rows, no tables. Records of the audit log are written and pruned, never changed, and
-- not even by way of a partition. It runs with the rights of its caller, the owner, after every migration.
CREATE OR REPLACE FUNCTION grant_runtime_privileges(role_name text) RETURNS void LANGUAGE plpgsql AS $$
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
    EXECUTE format('GRANT EXECUTE ON FUNCTION enter_memory_partition(uuid, text, text), find_memory_scope(uuid), '
        'prune_memory_proposals(timestamptz, bigint) TO %I', role_name);
    EXECUTE format('REVOKE UPDATE ON audit_records, audit_checkpoints FROM %I', role_name);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON _sqlx_migrations, schema_requirements, installation_epochs FROM %I', role_name);
END $$;
