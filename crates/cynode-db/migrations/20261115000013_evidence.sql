-- Evidence: checks of what units brought, run by the orchestrator's own jobs in sandboxes of their own.

CREATE TABLE evidence (
    evidence_id uuid PRIMARY KEY,
    task_id     uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    unit_id     uuid NOT NULL REFERENCES work_units ON DELETE CASCADE,
    attempt     integer NOT NULL CHECK (attempt >= 1),
    -- What the checks run on; and where the files are from that they go by.
    commit      text CHECK (commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    pinned_from text CHECK (pinned_from ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    checks      jsonb NOT NULL CHECK (jsonb_typeof(checks) = 'array'),
    state       text NOT NULL CHECK (state IN ('gathering', 'passed', 'failed', 'unable')),
    trouble     text,
    tries       integer NOT NULL CHECK (tries >= 1),
    waived      text,
    opened_at   timestamptz NOT NULL,
    ended_at    timestamptz,
    CONSTRAINT evidence_once UNIQUE (unit_id, attempt),
    CONSTRAINT evidence_shape CHECK ((state = 'gathering') = (ended_at IS NULL) AND (state = 'unable') = (trouble IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX evidence_by_task ON evidence (task_id);

-- One run of one check. Round 0 is the run on what was there before the change.
CREATE TABLE evidence_results (
    evidence_id  uuid NOT NULL REFERENCES evidence ON DELETE CASCADE,
    number       integer NOT NULL CHECK (number >= 0),
    round        integer NOT NULL CHECK (round >= 0),
    job_id       uuid NOT NULL,
    holds        boolean NOT NULL,
    exit_code    integer,
    sha256       text NOT NULL,
    excerpt      text NOT NULL,
    milliseconds bigint NOT NULL CHECK (milliseconds >= 0),
    at           timestamptz NOT NULL,
    PRIMARY KEY (evidence_id, number, round)
);

ALTER TABLE jobs
    -- The evidence it gathers; null for work.
    ADD COLUMN evidence_id uuid REFERENCES evidence ON DELETE CASCADE,
    -- Commits that it was told to put together with its base.
    ADD COLUMN merge text[] NOT NULL DEFAULT '{}';
-- An attempt has one job that works, and any number that check.
ALTER TABLE jobs DROP CONSTRAINT jobs_attempt_once;
CREATE UNIQUE INDEX jobs_attempt_once ON jobs (unit_id, attempt) WHERE evidence_id IS NULL;
CREATE INDEX jobs_of_evidence ON jobs (evidence_id) WHERE evidence_id IS NOT NULL;
