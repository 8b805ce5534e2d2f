-- Jobs, the evidence that checks gather, and instructions to running tasks.

CREATE TABLE evidence (
    evidence_id     uuid PRIMARY KEY,
    task_id         uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    unit_id         uuid REFERENCES work_units ON DELETE CASCADE, -- null: the checks run on the base commit, before any work
    attempt         integer NOT NULL,
    -- The commit that is checked, and the commit that pinned files are taken from.
    commit          text CHECK (commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    pinned_from     text CHECK (pinned_from ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    checks          jsonb NOT NULL CHECK (jsonb_typeof(checks) = 'array'),
    state           text NOT NULL CHECK (state IN ('gathering', 'passed', 'failed', 'unable')),
    error           text,
    gather_attempts integer NOT NULL CHECK (gather_attempts >= 1),
    waiver_reason   text,
    opened_at       timestamptz NOT NULL,
    ended_at        timestamptz,
    CONSTRAINT evidence_attempt_check CHECK (CASE WHEN unit_id IS NULL THEN attempt = 0 ELSE attempt >= 1 END),
    CONSTRAINT evidence_unique UNIQUE (unit_id, attempt),
    CONSTRAINT evidence_shape CHECK ((state = 'gathering') = (ended_at IS NULL) AND (state = 'unable') = (error IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX evidence_by_task ON evidence (task_id);
-- A task has one base. Its commit is known when a node has claimed the first job.
CREATE UNIQUE INDEX evidence_of_base ON evidence (task_id) WHERE unit_id IS NULL;

-- One run of one check. Round 0 runs on the commit before the change.
CREATE TABLE evidence_results (
    evidence_id   uuid NOT NULL REFERENCES evidence ON DELETE CASCADE,
    number        integer NOT NULL CHECK (number >= 0),
    round         integer NOT NULL CHECK (round >= 0),
    job_id        uuid NOT NULL,
    passed        boolean NOT NULL,
    exit_code     integer,
    output_sha256 text NOT NULL,
    excerpt       text NOT NULL,
    duration_ms   bigint NOT NULL CHECK (duration_ms >= 0),
    recorded_at   timestamptz NOT NULL,
    PRIMARY KEY (evidence_id, number, round)
);

-- Attempts of units. `fencing_token` rises with every claim; a report with an older one is refused.
CREATE TABLE jobs (
    job_id            uuid PRIMARY KEY,
    task_id           uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    unit_id           uuid REFERENCES work_units ON DELETE CASCADE, -- null: it checks the base commit of the task
    attempt           integer NOT NULL,
    evidence_id       uuid REFERENCES evidence ON DELETE CASCADE, -- the evidence it gathers; null for work
    state             text NOT NULL,
    payload           jsonb NOT NULL,
    fencing_token     bigint NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
    worker            text,
    claim_id          uuid,
    lease_expires_at  timestamptz,
    deadline_at       timestamptz,
    result            jsonb,
    trace_id          text NOT NULL,
    queued_at         timestamptz NOT NULL,
    started_at        timestamptz,
    ended_at          timestamptz,
    collected_at      timestamptz,
    -- Where it was placed, and when. A queued job may be placed elsewhere; a running one never is.
    node_id           uuid REFERENCES nodes,
    placed_at         timestamptz,
    -- The commit that it starts from, and the commits that are merged into that.
    base_commit       text,
    merge_commits     text[] NOT NULL DEFAULT '{}',
    phase             text CHECK (phase IN ('preparing', 'setting_up', 'working', 'asking', 'finishing')),
    -- The number of the event that is expected next.
    next_event_number bigint NOT NULL DEFAULT 0,
    -- Whether it needs a sandbox, which only nodes have.
    requires_node     boolean NOT NULL GENERATED ALWAYS AS (coalesce(payload -> 'unit' ? 'work', false)) STORED,
    -- Why a person or a policy accepted the result in spite of findings.
    accepted_reason   text CHECK (char_length(accepted_reason) BETWEEN 1 AND 500),
    CONSTRAINT jobs_attempt_check CHECK (
        CASE WHEN unit_id IS NULL THEN attempt = 0 AND evidence_id IS NOT NULL ELSE attempt >= 1 END),
    CONSTRAINT jobs_state_shape CHECK (CASE state
        WHEN 'queued'    THEN num_nonnulls(worker, claim_id, started_at, ended_at, result, lease_expires_at) = 0
        WHEN 'running'   THEN num_nonnulls(worker, claim_id, started_at, lease_expires_at, deadline_at) = 5
                              AND num_nonnulls(ended_at, result) = 0
        WHEN 'succeeded' THEN num_nonnulls(worker, started_at, ended_at, result) = 4
        WHEN 'failed'    THEN num_nonnulls(worker, started_at, ended_at, result) = 4
        WHEN 'lost'      THEN num_nonnulls(worker, started_at, ended_at) = 3
        WHEN 'cancelled' THEN ended_at IS NOT NULL
        ELSE false END)
) WITH (fillfactor = 70);
CREATE INDEX jobs_by_task ON jobs (task_id);
-- The jobs of a unit, by attempt.
CREATE INDEX jobs_by_unit ON jobs (unit_id, attempt);
CREATE INDEX jobs_queued ON jobs (queued_at) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX jobs_by_claim ON jobs (claim_id) WHERE state = 'running';
CREATE UNIQUE INDEX jobs_attempt_unique ON jobs (unit_id, attempt) WHERE evidence_id IS NULL;
CREATE INDEX jobs_of_evidence ON jobs (evidence_id) WHERE evidence_id IS NOT NULL;
CREATE INDEX jobs_of_nodes ON jobs (node_id) WHERE state IN ('queued', 'running') AND node_id IS NOT NULL;
CREATE INDEX jobs_unplaced ON jobs (queued_at) WHERE state = 'queued' AND requires_node AND node_id IS NULL;

-- Events of jobs, as nodes reported them. Text is redacted before it is stored.
CREATE TABLE job_events (
    job_id      uuid NOT NULL,
    task_id     uuid NOT NULL,
    number      bigint NOT NULL CHECK (number >= 0),
    recorded_at timestamptz NOT NULL,
    elapsed_ms  bigint NOT NULL CHECK (elapsed_ms >= 0),
    event       text NOT NULL,
    data        jsonb NOT NULL,
    PRIMARY KEY (job_id, number, recorded_at)
) PARTITION BY RANGE (recorded_at);
CREATE INDEX job_events_by_task ON job_events (task_id, recorded_at);
CREATE INDEX job_events_by_time ON job_events USING brin (recorded_at);

-- Instructions of people to running tasks; applied before the next step.
CREATE TABLE task_instructions (
    instruction_id uuid PRIMARY KEY,
    task_id        uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('pause', 'resume', 'abort', 'revise', 'expand_scope', 'reduce_scope')),
    text           text CHECK (char_length(text) BETWEEN 1 AND 20000),
    issued_by      uuid NOT NULL REFERENCES users,
    issued_at      timestamptz NOT NULL,
    number         bigint GENERATED ALWAYS AS IDENTITY,
    applied_at     timestamptz,
    sequence       bigint,
    -- An answer to an agent's report is for the job of that agent; without a job an instruction is for every agent of the task.
    job_id         uuid REFERENCES jobs ON DELETE CASCADE
);
CREATE INDEX task_instructions_by_task ON task_instructions (task_id);
CREATE INDEX task_instructions_pending ON task_instructions (task_id) WHERE applied_at IS NULL;
CREATE INDEX task_instructions_of_job ON task_instructions (job_id) WHERE job_id IS NOT NULL;

-- Which job received which instruction.
CREATE TABLE instruction_deliveries (
    job_id         uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    instruction_id uuid NOT NULL REFERENCES task_instructions ON DELETE CASCADE,
    delivered_at   timestamptz NOT NULL,
    PRIMARY KEY (job_id, instruction_id)
);
