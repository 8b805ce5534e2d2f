-- Replays of decisions, the processes that drive runs, and the calls of tools by time.

-- Replays of decisions: a person had the recorded prompt asked again. A replay changes nothing but its own row. A row that is still
-- `running` after `expires_at` was cut off; nobody changes it, and readers show it so.
CREATE TABLE decision_replays (
    replay_id     uuid PRIMARY KEY,
    handoff_id    uuid NOT NULL REFERENCES handoffs ON DELETE CASCADE,
    step          integer NOT NULL CHECK (step BETWEEN 0 AND 999),
    prompt_digest text NOT NULL CHECK (prompt_digest ~ '^[0-9a-f]{64}$'), -- of the decision that was replayed
    user_id       uuid NOT NULL REFERENCES users,
    model         text NOT NULL CHECK (char_length(model) BETWEEN 1 AND 200), -- that was asked for
    state         text NOT NULL CHECK (state IN ('running', 'answered', 'invalid', 'failed')),
    output        jsonb,
    answer_text   text,                      -- of an answer that is not of the form that was asked for
    error         text,
    call_id       uuid,                      -- in `model_calls`
    provider      text,
    upstream      text,
    input_tokens  bigint CHECK (input_tokens >= 0),
    output_tokens bigint CHECK (output_tokens >= 0),
    cost_micros   bigint CHECK (cost_micros >= 0),
    latency_ms    bigint CHECK (latency_ms >= 0),
    trace_id      text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    CONSTRAINT decision_replays_ended CHECK ((state = 'running') = (ended_at IS NULL)),
    CONSTRAINT decision_replays_answered CHECK ((state = 'answered') = (output IS NOT NULL)),
    CONSTRAINT decision_replays_failed CHECK ((error IS NOT NULL) = (state = 'invalid' OR state = 'failed'))
);
CREATE INDEX decision_replays_of_decision ON decision_replays (handoff_id, step, created_at DESC);
CREATE INDEX decision_replays_by_time ON decision_replays (created_at);
CREATE INDEX decision_replays_of_user ON decision_replays (user_id, created_at);

-- The process that drove a step; null for the steps of people, and for those of runners that do not name their process.
ALTER TABLE workflow_transitions ADD COLUMN instance text CHECK (char_length(instance) BETWEEN 1 AND 200);

-- When the holder of a lease was last heard of by a grant or a renewal, and when the lease was given back or ended.
ALTER TABLE workflow_leases ADD COLUMN seen_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE workflow_leases ADD COLUMN released_at timestamptz;
-- Of the leases so far only their checkpoints are known. One that is over counts as given back: nothing says that it expired.
UPDATE workflow_leases l
SET seen_at = coalesce((SELECT c.updated_at FROM workflow_checkpoints c WHERE c.task_id = l.task_id), least(l.expires_at, clock_timestamp())),
    released_at = CASE WHEN l.expires_at <= clock_timestamp() THEN l.expires_at END;

-- Grants of a lease to another process than the one before, or after a lease that nobody gave back.
CREATE TABLE lease_takeovers (
    task_id            uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    fencing_token      bigint NOT NULL CHECK (fencing_token >= 2), -- of the new grant
    sequence           bigint NOT NULL CHECK (sequence >= 0),      -- of the checkpoint that the new process went on from
    holder             text NOT NULL,
    instance           text,
    previous_holder    text NOT NULL,
    previous_instance  text,
    previous_seen_at   timestamptz NOT NULL,
    -- The lease before was given back, it expired, or another process took it while it was live.
    ended_by           text NOT NULL CHECK (ended_by IN ('released', 'expired', 'replaced')),
    lease_ended_at     timestamptz NOT NULL,
    taken_at           timestamptz NOT NULL,
    PRIMARY KEY (task_id, fencing_token)
);

-- Calls of tools by time, for their counts: all that is counted is in the index.
CREATE INDEX audit_records_of_tools ON audit_records (recorded_at)
    INCLUDE (project_id, tool, phase, decision, outcome, duration_us)
    WHERE method = 'tools/call' AND tool IS NOT NULL;
