-- Ingests: files, repositories at a commit and pages that become records of memory.

-- An ingest is due at `due_at`: a worker that claims it raises the token and moves `due_at` to the end of its lease. Null: files are still
-- sent, or it has ended. What is read of a file is stored in one transaction with the progress, so that another worker goes on after it.
CREATE TABLE memory_ingests (
    ingest_id       uuid PRIMARY KEY,
    project_id      uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    profile         text NOT NULL CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$'),
    kind            text NOT NULL CHECK (kind IN ('files', 'repository', 'page')),
    source          text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 500),
    commit_hash     text CHECK (commit_hash ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    state           text NOT NULL,
    uploaded_at     timestamptz,             -- when the client had sent the last file
    listed_at       timestamptz,             -- when the files were counted
    file_count      bigint NOT NULL DEFAULT 0 CHECK (file_count >= 0),
    read_count      bigint NOT NULL DEFAULT 0 CHECK (read_count >= 0),
    unchanged_count bigint NOT NULL DEFAULT 0 CHECK (unchanged_count >= 0),
    skipped_count   bigint NOT NULL DEFAULT 0 CHECK (skipped_count >= 0),
    removed_count   bigint NOT NULL DEFAULT 0 CHECK (removed_count >= 0),
    record_count    bigint NOT NULL DEFAULT 0 CHECK (record_count >= 0),
    error           text CHECK (char_length(error) BETWEEN 1 AND 2000),
    requested_by    uuid NOT NULL REFERENCES users,
    trace_id        text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    fencing_token   bigint NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
    attempts        integer NOT NULL DEFAULT 0 CHECK (attempts >= 0), -- in a row without progress
    due_at          timestamptz,
    created_at      timestamptz NOT NULL,
    finished_at     timestamptz,
    CONSTRAINT memory_ingests_commit CHECK ((kind = 'repository') = (commit_hash IS NOT NULL)),
    -- Mirrors `IngestState` in cynode-core.
    CONSTRAINT memory_ingests_state_shape CHECK (CASE state
        WHEN 'queued'    THEN finished_at IS NULL AND (due_at IS NULL) = (uploaded_at IS NULL)
        WHEN 'running'   THEN finished_at IS NULL AND num_nonnulls(due_at, uploaded_at) = 2
        WHEN 'done'      THEN due_at IS NULL AND num_nonnulls(finished_at, uploaded_at) = 2 AND error IS NULL
        WHEN 'failed'    THEN due_at IS NULL AND num_nonnulls(finished_at, error) = 2
        WHEN 'cancelled' THEN due_at IS NULL AND finished_at IS NOT NULL
        ELSE false END)
) WITH (fillfactor = 80);
CREATE INDEX memory_ingests_by_project ON memory_ingests (project_id, ingest_id);
CREATE INDEX memory_ingests_due ON memory_ingests (due_at) WHERE due_at IS NOT NULL;
-- Uploads that nobody has completed.
CREATE INDEX memory_ingests_uploading ON memory_ingests (created_at) WHERE state = 'queued' AND uploaded_at IS NULL;
-- Ingests whose end is long ago.
CREATE INDEX memory_ingests_by_end ON memory_ingests (finished_at) WHERE finished_at IS NOT NULL;
-- One ingest of a source at a time.
CREATE UNIQUE INDEX memory_ingests_source_unique ON memory_ingests (project_id, profile, source) WHERE state IN ('queued', 'running');

-- Files that a client has sent and no worker has read yet.
CREATE TABLE memory_ingest_files (
    ingest_id    uuid NOT NULL REFERENCES memory_ingests ON DELETE CASCADE,
    path         text NOT NULL CHECK (char_length(path) BETWEEN 1 AND 1000),
    partition_no bigint NOT NULL REFERENCES memory_partitions ON DELETE CASCADE,
    content      text NOT NULL CHECK (octet_length(content) BETWEEN 1 AND 1048576),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    PRIMARY KEY (ingest_id, path)
);
CREATE INDEX memory_ingest_files_by_partition ON memory_ingest_files (partition_no);

-- What the records of a source were made from: one row for each file or page, with the digest that it had. `record_count` 0: it was skipped.
CREATE TABLE memory_sources (
    partition_no bigint NOT NULL REFERENCES memory_partitions ON DELETE CASCADE,
    source       text NOT NULL CHECK (char_length(source) BETWEEN 1 AND 500),
    path         text NOT NULL CHECK (char_length(path) BETWEEN 1 AND 1000),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    record_count integer NOT NULL CHECK (record_count >= 0),
    ingest_id    uuid NOT NULL,              -- that saw it last
    read_at      timestamptz NOT NULL,
    PRIMARY KEY (partition_no, source, path)
);

-- A statement outside of a partition sees no file and no source.
ALTER TABLE memory_ingest_files ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_partition ON memory_ingest_files USING (partition_no = current_memory_partition());
ALTER TABLE memory_sources ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_partition ON memory_sources USING (partition_no = current_memory_partition());

-- Whether what an ended task has left was recorded in memory, or passed over. Tasks that ended before have nothing to do with it.
ALTER TABLE tasks ADD COLUMN remembered_at timestamptz;
UPDATE tasks SET remembered_at = ended_at WHERE ended_at IS NOT NULL;
CREATE INDEX tasks_not_remembered ON tasks (ended_at) WHERE ended_at IS NOT NULL AND remembered_at IS NULL;
