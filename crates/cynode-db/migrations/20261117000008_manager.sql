-- The project manager: conversations, handoffs and decisions.

-- Conversations with the project manager. At most one of a person and a project is open.
CREATE TABLE chat_threads (
    thread_id  uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users,
    project_id uuid NOT NULL REFERENCES projects,
    title      text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX chat_threads_newest ON chat_threads (user_id, project_id, updated_at DESC);

-- What was said, without secrets. `state` of what the manager says: whole, cut off, or still being said.
CREATE TABLE chat_messages (
    thread_id uuid NOT NULL REFERENCES chat_threads ON DELETE CASCADE,
    number    bigint NOT NULL CHECK (number >= 1),
    role      text NOT NULL CHECK (role IN ('user', 'assistant')),
    content   text NOT NULL,
    state     text NOT NULL CHECK (state IN ('whole', 'interrupted', 'failed')),
    at        timestamptz NOT NULL,
    PRIMARY KEY (thread_id, number)
);

-- Work that is given to the project manager or an analyst. It is stored before anybody hears of it, and answered once.
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
    driven           boolean NOT NULL,       -- a run asked, and waits for the answer
    about            text NOT NULL,          -- names the question, so that its run knows the answer
    request          jsonb NOT NULL,
    answer           jsonb,
    failure          text,
    attempt          integer NOT NULL DEFAULT 0,
    lost             integer NOT NULL DEFAULT 0, -- how often nothing was heard of whoever worked on it
    fencing_token    bigint NOT NULL DEFAULT 0,
    worker           text,
    claim_id         uuid,
    lease_expires_at timestamptz,
    due_at           timestamptz NOT NULL,
    trace_id         text NOT NULL,
    created_at       timestamptz NOT NULL,
    ended_at         timestamptz,
    taken_at         timestamptz,            -- when its run took the answer
    CONSTRAINT handoffs_role CHECK ((role = 'project_analyst') = (kind = 'analyse')),
    CONSTRAINT handoffs_answered CHECK ((state = 'done') = (answer IS NOT NULL)),
    CONSTRAINT handoffs_ended CHECK ((state IN ('done', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX handoffs_due ON handoffs (role, due_at) WHERE state = 'queued';
CREATE INDEX handoffs_silent ON handoffs (lease_expires_at) WHERE state = 'claimed';
CREATE INDEX handoffs_of_task ON handoffs (task_id, created_at) WHERE task_id IS NOT NULL;
CREATE INDEX handoffs_of_project ON handoffs (project_id, handoff_id);
CREATE INDEX handoffs_of_parent ON handoffs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX handoffs_of_claim ON handoffs (claim_id) WHERE state = 'claimed';
CREATE INDEX handoffs_of_job ON handoffs (job_id) WHERE job_id IS NOT NULL;
-- A run asks one question at a time.
CREATE UNIQUE INDEX handoffs_of_run ON handoffs (task_id) WHERE driven AND taken_at IS NULL AND state <> 'cancelled';
-- The plan that a run was given.
CREATE INDEX handoffs_planned ON handoffs (run_id) WHERE kind = 'plan' AND state = 'done';
-- Chats that have ended and still hold what was said.
CREATE INDEX handoffs_chats_held ON handoffs (ended_at) WHERE kind = 'chat' AND request -> 'messages' <> '[]'::jsonb;

-- Decisions that a model was asked for. No text of the question is here. `begun_at` is when the handoff was stored: all thoughts
-- of one are in one partition, and each is kept once.
CREATE TABLE think_calls (
    handoff_id    uuid NOT NULL,
    step          integer NOT NULL CHECK (step BETWEEN 0 AND 999),
    begun_at      timestamptz NOT NULL,
    claim         bigint NOT NULL,           -- the fencing token under which it was thought
    project_id    uuid NOT NULL,
    task_id       uuid,
    kind          text NOT NULL,
    prompt_digest text NOT NULL CHECK (prompt_digest ~ '^[0-9a-f]{64}$'),
    schema_digest text NOT NULL CHECK (schema_digest ~ '^[0-9a-f]{64}$'),
    model         text NOT NULL,
    output        jsonb,
    attempts      integer NOT NULL CHECK (attempts >= 1),
    complaints    text[] NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micros   bigint NOT NULL,
    latency_ms    bigint NOT NULL,
    calls         uuid[] NOT NULL,           -- at the model egress
    trace_id      text NOT NULL,
    at            timestamptz NOT NULL,
    PRIMARY KEY (handoff_id, step, begun_at)
) PARTITION BY RANGE (begun_at);
CREATE INDEX think_calls_by_task ON think_calls (task_id, begun_at) WHERE task_id IS NOT NULL;

-- The questions, for replay; removed after their time.
CREATE TABLE think_prompts (
    handoff_id uuid NOT NULL,
    step       integer NOT NULL,
    prompt     jsonb NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (handoff_id, step)
);
CREATE INDEX think_prompts_by_time ON think_prompts (at);
