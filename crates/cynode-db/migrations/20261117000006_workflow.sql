-- The workflow of a task: its run, lease, checkpoint, units and waits. docs/explanation/workflow.md says what each column means.

-- One workflow run for each task. `due_at` says when a runner must drive it. `wake_count` counts signals from outside, so that a
-- run that is about to wait cannot miss one.
CREATE TABLE workflow_runs (
    task_id               uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    run_id                uuid NOT NULL,
    trace_id              text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    wake_count            bigint NOT NULL DEFAULT 0 CHECK (wake_count >= 0),
    due_at                timestamptz,
    dispatched_at         timestamptz,
    dispatched_wake_count bigint,
    retries_used          integer NOT NULL DEFAULT 0 CHECK (retries_used >= 0),
    pending_instructions  integer NOT NULL DEFAULT 0 CHECK (pending_instructions >= 0),
    created_at            timestamptz NOT NULL,
    ended_at              timestamptz,
    outcome               text,
    CONSTRAINT workflow_runs_outcome_shape CHECK (
        (ended_at IS NULL AND outcome IS NULL)
        OR (ended_at IS NOT NULL AND due_at IS NULL AND outcome IN ('completed', 'failed', 'cancelled')))
) WITH (fillfactor = 70);
CREATE INDEX workflow_runs_due ON workflow_runs (due_at) WHERE due_at IS NOT NULL;

-- Leases: which runner may drive a task, until when, by the database's clock. The row is inserted with the first grant and never
-- deleted: the fencing token only rises.
CREATE TABLE workflow_leases (
    task_id       uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    lease_id      text NOT NULL CHECK (char_length(lease_id) BETWEEN 1 AND 200),
    holder        text NOT NULL CHECK (char_length(holder) BETWEEN 1 AND 200),
    instance      text NOT NULL CHECK (char_length(instance) BETWEEN 1 AND 200),
    fencing_token bigint NOT NULL CHECK (fencing_token >= 1),
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Checkpoints: the last step of a run, its state, and the next step (null: the run has ended).
CREATE TABLE workflow_checkpoints (
    task_id       uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    run_id        uuid NOT NULL,
    sequence      bigint NOT NULL CHECK (sequence >= 0),
    last_step     text,
    next_step     text,
    state         jsonb NOT NULL CHECK (jsonb_typeof(state) = 'object'),
    fencing_token bigint NOT NULL,
    trace_id      text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    updated_at    timestamptz NOT NULL,
    CONSTRAINT workflow_checkpoints_steps CHECK (
        (last_step IS NULL) = (sequence = 0)
        AND coalesce(last_step, 'mark_failed') IN ('load_task_context', 'plan_steps', 'dispatch_step', 'collect_result',
            'verify_step_result', 'finalize_summary', 'mark_failed')
        AND coalesce(next_step, 'mark_failed') IN ('load_task_context', 'plan_steps', 'dispatch_step', 'collect_result',
            'verify_step_result', 'finalize_summary', 'mark_failed'))
) WITH (fillfactor = 50);

-- The append-only history of checkpoints.
CREATE TABLE workflow_transitions (
    task_id       uuid NOT NULL,
    run_id        uuid NOT NULL,
    sequence      bigint NOT NULL CHECK (sequence >= 1),
    step          text NOT NULL,
    verdict       text NOT NULL CHECK (verdict IN ('pass', 'done', 'redo', 'revise', 'wait', 'fail')),
    next_step     text,
    unit_key      text,
    attempt       integer NOT NULL CHECK (attempt >= 1),
    actor         text NOT NULL,
    fencing_token bigint NOT NULL,
    duration_ms   bigint NOT NULL CHECK (duration_ms >= 0),
    cost_micros   bigint NOT NULL CHECK (cost_micros >= 0),
    note          text,
    trace_id      text NOT NULL,
    recorded_at   timestamptz NOT NULL,
    PRIMARY KEY (task_id, sequence, recorded_at)
) PARTITION BY RANGE (recorded_at);

-- Units of work: the entries of the plan.
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
    CONSTRAINT work_units_key_unique UNIQUE (task_id, key)
) WITH (fillfactor = 70);

-- What runs wait for or waited for. At most one wait of a run is open.
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
            AND resolution IN ('woken', 'approved', 'rejected', 'answered', 'resumed', 'expired', 'cancelled')))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX waits_open_unique ON waits (task_id) WHERE resolved_at IS NULL;
CREATE INDEX waits_by_task ON waits (task_id, sequence);
CREATE INDEX waits_expiring ON waits (expires_at) WHERE resolved_at IS NULL AND expires_at IS NOT NULL;
