-- The project manager: conversations, handoffs and decisions.

-- Conversations of people with the project manager.
CREATE TABLE chat_threads (
    thread_id  uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users,
    project_id uuid NOT NULL REFERENCES projects,
    title      text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX chat_threads_newest ON chat_threads (user_id, project_id, updated_at DESC);

-- Messages, with secrets redacted. `state` says whether the message is complete, was interrupted, or failed.
CREATE TABLE chat_messages (
    thread_id  uuid NOT NULL REFERENCES chat_threads ON DELETE CASCADE,
    number     bigint NOT NULL CHECK (number >= 1),
    role       text NOT NULL CHECK (role IN ('user', 'assistant')),
    content    text NOT NULL,
    state      text NOT NULL CHECK (state IN ('whole', 'interrupted', 'failed')),
    created_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id, number)
);

-- Work for the project manager or an analyst. It is stored before it can be claimed, and answered once.
CREATE TABLE handoffs (
    handoff_id       uuid PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('chat', 'plan', 'dispatch', 'verify', 'analyse', 'failure', 'report',
                         'summarise', 'schedule')),
    role             text NOT NULL CHECK (role IN ('project_manager', 'project_analyst')),
    state            text NOT NULL CHECK (state IN ('queued', 'claimed', 'delegated', 'done', 'failed', 'cancelled')),
    parent_id        uuid REFERENCES handoffs ON DELETE CASCADE,
    user_id          uuid NOT NULL REFERENCES users,
    project_id       uuid NOT NULL REFERENCES projects,
    task_id          uuid REFERENCES tasks ON DELETE CASCADE,
    run_id           uuid,
    job_id           uuid REFERENCES jobs ON DELETE CASCADE,
    thread_id        uuid REFERENCES chat_threads ON DELETE CASCADE,
    blocks_run       boolean NOT NULL,       -- a run waits for the answer
    question_key     text NOT NULL,          -- by which the run finds the answer to its question
    request          jsonb NOT NULL,
    answer           jsonb,
    failure          text,
    attempt          integer NOT NULL DEFAULT 0,
    expired_leases   integer NOT NULL DEFAULT 0, -- how many leases on it have expired
    fencing_token    bigint NOT NULL DEFAULT 0,
    worker           text,
    claim_id         uuid,
    lease_expires_at timestamptz,
    due_at           timestamptz NOT NULL,
    trace_id         text NOT NULL,
    created_at       timestamptz NOT NULL,
    ended_at         timestamptz,
    consumed_at      timestamptz,            -- when its run read the answer
    CONSTRAINT handoffs_role CHECK ((role = 'project_analyst') = (kind = 'analyse')),
    CONSTRAINT handoffs_answered CHECK ((state = 'done') = (answer IS NOT NULL)),
    CONSTRAINT handoffs_ended CHECK ((state IN ('done', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX handoffs_due ON handoffs (role, due_at) WHERE state = 'queued';
CREATE INDEX handoffs_lease_expiry ON handoffs (lease_expires_at) WHERE state = 'claimed';
CREATE INDEX handoffs_of_task ON handoffs (task_id, created_at) WHERE task_id IS NOT NULL;
CREATE INDEX handoffs_of_project ON handoffs (project_id, handoff_id);
CREATE INDEX handoffs_of_parent ON handoffs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX handoffs_of_claim ON handoffs (claim_id) WHERE state = 'claimed';
CREATE INDEX handoffs_of_job ON handoffs (job_id) WHERE job_id IS NOT NULL;
-- A run has one open question at a time.
CREATE UNIQUE INDEX handoffs_of_run ON handoffs (task_id) WHERE blocks_run AND consumed_at IS NULL AND state <> 'cancelled';
-- The plans of a run.
CREATE INDEX handoffs_planned ON handoffs (run_id) WHERE kind = 'plan' AND state = 'done';
-- Chats that have ended and still hold their messages, until retention removes these.
CREATE INDEX handoffs_unredacted_chats ON handoffs (ended_at) WHERE kind = 'chat' AND request -> 'messages' <> '[]'::jsonb;

-- Decisions of models (think calls), without the text of the prompt. `handoff_created_at` is the partition key, so that all
-- decisions of a handoff are in one partition and each is stored once.
CREATE TABLE think_calls (
    handoff_id         uuid NOT NULL,
    step               integer NOT NULL CHECK (step BETWEEN 0 AND 999),
    handoff_created_at timestamptz NOT NULL,
    fencing_token      bigint NOT NULL,      -- of the claim under which it was made
    project_id         uuid NOT NULL,
    task_id            uuid,
    kind               text NOT NULL,
    prompt_digest      text NOT NULL CHECK (prompt_digest ~ '^[0-9a-f]{64}$'),
    schema_digest      text NOT NULL CHECK (schema_digest ~ '^[0-9a-f]{64}$'),
    model              text NOT NULL,
    output             jsonb,
    attempts           integer NOT NULL CHECK (attempts >= 1),
    validation_errors  text[] NOT NULL,
    input_tokens       bigint NOT NULL,
    output_tokens      bigint NOT NULL,
    cost_micros        bigint NOT NULL,
    latency_ms         bigint NOT NULL,
    model_call_ids     uuid[] NOT NULL,      -- in `model_calls`
    trace_id           text NOT NULL,
    decided_at         timestamptz NOT NULL,
    PRIMARY KEY (handoff_id, step, handoff_created_at)
) PARTITION BY RANGE (handoff_created_at);
CREATE INDEX think_calls_by_task ON think_calls (task_id, handoff_created_at) WHERE task_id IS NOT NULL;

-- The prompts, for replay; retention removes them.
CREATE TABLE think_prompts (
    handoff_id uuid NOT NULL,
    step       integer NOT NULL,
    prompt     jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (handoff_id, step)
);
CREATE INDEX think_prompts_by_time ON think_prompts (created_at);

-- Events of planning, stored when they happen: what the planner called, what it learned, how it decided and why it ended. `number` counts
-- within a claim, so that a repeated report has no effect and a lost one leaves a gap that can be seen.
CREATE TABLE planning_events (
    handoff_id    uuid NOT NULL REFERENCES handoffs ON DELETE CASCADE,
    fencing_token bigint NOT NULL,           -- of the claim under which it happened
    number        integer NOT NULL CHECK (number BETWEEN 1 AND 9999),
    event         text NOT NULL CHECK (event IN ('plan:start', 'plan:tools', 'plan:call', 'plan:observe', 'plan:reason', 'plan:act',
                      'plan:stop', 'plan:finish')),
    step          integer NOT NULL CHECK (step BETWEEN 0 AND 999),
    profile       text NOT NULL CHECK (char_length(profile) BETWEEN 1 AND 200),
    data          jsonb NOT NULL,
    recorded_at   timestamptz NOT NULL,
    PRIMARY KEY (handoff_id, fencing_token, number)
);

-- How the project manager understood a task when it planned it: its newest refinement.
CREATE TABLE task_refinements (
    task_id    uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    refinement jsonb NOT NULL CHECK (jsonb_typeof(refinement) = 'object'),
    refined_at timestamptz NOT NULL
);
