-- The workflow of a task: where it stands, who drives it, what it waits for. docs/explanation/workflow.md says what each column means.

-- Programs that work for the installation. As with people, only a hash of a token is kept.
CREATE TABLE service_tokens (
    service_token_id uuid PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('runner', 'worker')),
    name             text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    token_hash       bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_at       timestamptz NOT NULL,
    revoked_at       timestamptz
);

-- One workflow for each task. `due_at` says when somebody must drive it; `wakes` counts what happened to it from
-- outside, so that a run that is about to wait cannot miss what happened meanwhile.
CREATE TABLE workflow_runs (
    task_id              uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    run_id               uuid NOT NULL,
    trace_id             text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    wakes                bigint NOT NULL DEFAULT 0 CHECK (wakes >= 0),
    due_at               timestamptz,
    sent_at              timestamptz,
    sent_wakes           bigint,
    retries_used         integer NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    instructions_waiting integer NOT NULL DEFAULT 0 CHECK (instructions_waiting >= 0),
    created_at           timestamptz NOT NULL,
    ended_at             timestamptz,
    outcome              text,
    CONSTRAINT workflow_runs_outcome_shape CHECK (
        (ended_at IS NULL AND outcome IS NULL)
        OR (ended_at IS NOT NULL AND due_at IS NULL AND outcome IN ('completed', 'failed', 'cancelled')))
) WITH (fillfactor = 70);
CREATE INDEX workflow_runs_due ON workflow_runs (due_at) WHERE due_at IS NOT NULL;

-- Who may drive a task, until when, by the database's clock. The row is made with the first grant and never removed:
-- the fencing token only rises.
CREATE TABLE task_workflow_lease (
    task_id       uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    lease_id      text NOT NULL CHECK (char_length(lease_id) BETWEEN 1 AND 200),
    holder        text NOT NULL CHECK (char_length(holder) BETWEEN 1 AND 200),
    instance      text NOT NULL CHECK (char_length(instance) BETWEEN 1 AND 200),
    fencing_token bigint NOT NULL CHECK (fencing_token >= 1),
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Where a run stands: the node that was last, what it left, and the node that is next (none: the run has ended).
CREATE TABLE workflow_checkpoints (
    task_id       uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    run_id        uuid NOT NULL,
    sequence      bigint NOT NULL CHECK (sequence >= 0),
    last_node     text,
    next_node     text,
    state         jsonb NOT NULL CHECK (jsonb_typeof(state) = 'object'),
    fencing_token bigint NOT NULL,
    trace_id      text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    updated_at    timestamptz NOT NULL,
    CONSTRAINT workflow_checkpoints_nodes CHECK (
        (last_node IS NULL) = (sequence = 0)
        AND coalesce(last_node, 'mark_failed') IN ('load_task_context', 'plan_steps', 'dispatch_step', 'collect_result',
            'verify_step_result', 'finalize_summary', 'mark_failed')
        AND coalesce(next_node, 'mark_failed') IN ('load_task_context', 'plan_steps', 'dispatch_step', 'collect_result',
            'verify_step_result', 'finalize_summary', 'mark_failed'))
) WITH (fillfactor = 50);

-- The history of checkpoints; nothing here is ever changed.
CREATE TABLE workflow_transitions (
    task_id       uuid NOT NULL,
    run_id        uuid NOT NULL,
    sequence      bigint NOT NULL CHECK (sequence >= 1),
    node          text NOT NULL,
    verdict       text NOT NULL CHECK (verdict IN ('pass', 'done', 'redo', 'revise', 'wait', 'fail')),
    next_node     text,
    unit_key      text,
    attempt       integer NOT NULL CHECK (attempt >= 1),
    actor         text NOT NULL,
    fencing_token bigint NOT NULL,
    duration_ms   bigint NOT NULL CHECK (duration_ms >= 0),
    cost_micros   bigint NOT NULL CHECK (cost_micros >= 0),
    note          text,
    trace_id      text NOT NULL,
    at            timestamptz NOT NULL,
    PRIMARY KEY (task_id, sequence, at)
) PARTITION BY RANGE (at);

-- The steps of the plan.
CREATE TABLE work_units (
    unit_id    uuid PRIMARY KEY,
    task_id    uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    key        text NOT NULL CHECK (key ~ '^[a-z][a-z0-9-]{0,62}$'),
    title      text NOT NULL,
    position   integer NOT NULL CHECK (position >= 0),
    depends_on text[] NOT NULL,
    payload    jsonb NOT NULL,
    state      text NOT NULL CHECK (state IN ('pending', 'dispatched', 'collected', 'done', 'failed', 'cancelled')),
    attempts   integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    findings   jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(findings) = 'array'),
    updated_at timestamptz NOT NULL,
    CONSTRAINT work_units_key_once UNIQUE (task_id, key)
) WITH (fillfactor = 70);

-- Attempts of units. `fencing_token` rises with every claim; a report with an older one is refused.
CREATE TABLE jobs (
    job_id           uuid PRIMARY KEY,
    task_id          uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    unit_id          uuid NOT NULL REFERENCES work_units ON DELETE CASCADE,
    attempt          integer NOT NULL CHECK (attempt >= 1),
    state            text NOT NULL,
    payload          jsonb NOT NULL,
    fencing_token    bigint NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
    worker           text,
    claim_id         uuid,
    lease_expires_at timestamptz,
    deadline_at      timestamptz,
    result           jsonb,
    trace_id         text NOT NULL,
    queued_at        timestamptz NOT NULL,
    started_at       timestamptz,
    ended_at         timestamptz,
    collected_at     timestamptz,
    CONSTRAINT jobs_attempt_once UNIQUE (unit_id, attempt),
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
CREATE INDEX jobs_queued ON jobs (queued_at) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX jobs_by_claim ON jobs (claim_id) WHERE state = 'running';

-- What runs wait or waited for. At most one wait of a run is open.
CREATE TABLE waits (
    wait_id     uuid PRIMARY KEY,
    task_id     uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    sequence    bigint NOT NULL,
    reason      text NOT NULL CHECK (reason IN ('job', 'approval', 'human_input', 'paused', 'retry', 'quota', 'agent')),
    owner       text NOT NULL CHECK (owner IN ('worker', 'person', 'clock', 'operator')),
    question    text,
    opened_at   timestamptz NOT NULL,
    expires_at  timestamptz,
    resolved_at timestamptz,
    resolution  text,
    answer      text,
    resolved_by uuid REFERENCES users,
    CONSTRAINT waits_resolution_shape CHECK (
        (resolved_at IS NULL AND num_nonnulls(resolution, answer, resolved_by) = 0)
        OR (resolved_at IS NOT NULL
            AND resolution IN ('woken', 'approved', 'rejected', 'answered', 'continued', 'expired', 'cancelled')))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX waits_one_open ON waits (task_id) WHERE resolved_at IS NULL;
CREATE INDEX waits_by_task ON waits (task_id, sequence);
CREATE INDEX waits_expiring ON waits (expires_at) WHERE resolved_at IS NULL AND expires_at IS NOT NULL;

-- What people told running tasks; taken up at the next step.
CREATE TABLE task_instructions (
    instruction_id uuid PRIMARY KEY,
    task_id        uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('pause', 'continue', 'abort', 'revise', 'expand_scope', 'reduce_scope')),
    text           text CHECK (char_length(text) BETWEEN 1 AND 20000),
    given_by       uuid NOT NULL REFERENCES users,
    given_at       timestamptz NOT NULL,
    number         bigint GENERATED ALWAYS AS IDENTITY,
    taken_up_at    timestamptz,
    sequence       bigint
);
CREATE INDEX task_instructions_waiting ON task_instructions (task_id) WHERE taken_up_at IS NULL;

-- A task changes its state twice: room for that beside it spares its indexes.
ALTER TABLE tasks SET (fillfactor = 80);

-- Tasks that were accepted before there were workflows.
INSERT INTO workflow_runs (task_id, run_id, trace_id, due_at, created_at)
SELECT task_id, gen_random_uuid(), replace(gen_random_uuid()::text, '-', ''),
    CASE WHEN EXISTS (SELECT FROM task_dependencies d WHERE d.task_id = t.task_id) THEN NULL ELSE now() END, now()
FROM tasks t
WHERE state = 'queued';
