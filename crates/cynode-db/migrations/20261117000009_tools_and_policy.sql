-- The gateway: agent tokens, tools, policy, approvals, and what agents stored and reported.

-- Tokens of agents, with everything that a token is bound to.
CREATE TABLE agent_tokens (
    agent_token_id uuid PRIMARY KEY,
    role           text NOT NULL CHECK (role IN ('project_manager', 'project_analyst', 'architect', 'designer',
                       'developer', 'reviewer', 'tester', 'fixer')),
    user_id        uuid NOT NULL REFERENCES users,
    project_id     uuid NOT NULL REFERENCES projects,
    task_id        uuid REFERENCES tasks ON DELETE CASCADE,
    run_id         uuid,
    job_id         uuid REFERENCES jobs ON DELETE CASCADE,
    handoff_id     uuid REFERENCES handoffs ON DELETE CASCADE,
    profile        text NOT NULL CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$'),
    network        boolean NOT NULL,
    tools          text[],                   -- null: all that the role may use
    models         text[],                   -- null: none
    token_hash     bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    issued_by      uuid REFERENCES users,    -- null: the orchestrator itself
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    revoked_at     timestamptz,
    -- Only the project manager works on more than one task.
    CONSTRAINT agent_tokens_bound CHECK (role = 'project_manager' OR task_id IS NOT NULL)
);
CREATE INDEX agent_tokens_by_task ON agent_tokens (task_id) WHERE revoked_at IS NULL;
CREATE INDEX agent_tokens_by_project ON agent_tokens (project_id, agent_token_id);
CREATE INDEX agent_tokens_by_job ON agent_tokens (job_id) WHERE revoked_at IS NULL AND job_id IS NOT NULL;
CREATE INDEX agent_tokens_by_handoff ON agent_tokens (handoff_id) WHERE revoked_at IS NULL AND handoff_id IS NOT NULL;
-- The tokens that a person issued are revoked when an admin resets the person's password.
CREATE INDEX agent_tokens_by_issuer ON agent_tokens (issued_by) WHERE revoked_at IS NULL AND issued_by IS NOT NULL;
CREATE INDEX agent_tokens_by_end ON agent_tokens (expires_at);

-- One row. Every change of policy raises the epoch in the same transaction; every replica polls it many times a second.
CREATE TABLE policy_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch    bigint NOT NULL
);
INSERT INTO policy_epoch (epoch) VALUES (1);

-- What people changed about tools, by name; a tool without a row has its defaults.
CREATE TABLE tool_overrides (
    name        text PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 64),
    enabled     boolean,
    disabled_by uuid REFERENCES users,       -- only this user or an admin may enable it
    scope       text CHECK (scope IN ('pm', 'sandbox', 'both')),
    updated_by  uuid NOT NULL REFERENCES users,
    updated_at  timestamptz NOT NULL
);

-- Policy rules of people, in Cedar. A rule can only deny.
CREATE TABLE policy_rules (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z0-9-]{1,60}$'),
    mode       text NOT NULL CHECK (mode IN ('refuse', 'approve', 'shadow')),
    text       text NOT NULL CHECK (octet_length(text) <= 16384),
    version    bigint NOT NULL CHECK (version >= 1),
    updated_by uuid REFERENCES users,        -- null: it came with the installation
    updated_at timestamptz NOT NULL
);

-- Whether an account may be used and is an admin of the installation, by itself or by a group.
CREATE FUNCTION is_active_admin(account uuid) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM users u WHERE u.user_id = account AND u.state = 'active')
        AND 'admin' = ANY (ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = account AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = account AND b.project_id IS NULL));
END;

-- The rules of a new installation: a person is asked before the project manager adds or ends a schedule, a skill, or a task
-- outside its own. An agent that a text has misled could otherwise outlive the conversation. Admins change or delete them.
INSERT INTO policy_rules (name, mode, text, version, updated_at) VALUES
    ('ask-before-schedules', 'approve',
        'forbid (principal, action in [Action::"schedule.create", Action::"schedule.delete"], resource);', 1, now()),
    ('ask-before-skills', 'approve',
        'forbid (principal, action in [Action::"skills.create", Action::"skills.update", Action::"skills.delete"], resource);', 1, now()),
    ('ask-before-tasks', 'approve',
        'forbid (principal == Role::"project_manager", action in [Action::"db.task.create", Action::"db.task.cancel", Action::"db.task.update_status",
    Action::"pm.instruct"], resource)
when { context.agent.task == "" && context.agent.handoff != "schedule" };', 1, now());

-- Tool servers that people installed. `transport` holds no secret.
CREATE TABLE tool_servers (
    server_id          uuid PRIMARY KEY,
    name               text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,30}$'),
    title              text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    transport          jsonb NOT NULL CHECK (jsonb_typeof(transport) = 'object'),
    private_allowed_by uuid REFERENCES users, -- the admin who allows a private address, as long as they are one
    sealed_credentials bytea,
    prefix             text NOT NULL CHECK (char_length(prefix) <= 40), -- empty: tools keep their bare names
    audience           text NOT NULL CHECK (audience IN ('everybody', 'project', 'user')),
    project_id         uuid REFERENCES projects,
    owner_id           uuid NOT NULL REFERENCES users,
    scope              text NOT NULL CHECK (scope IN ('pm', 'sandbox', 'both')),
    timeout_ms         integer NOT NULL CHECK (timeout_ms BETWEEN 100 AND 600000),
    max_in_flight      integer NOT NULL CHECK (max_in_flight BETWEEN 1 AND 1000),
    enabled            boolean NOT NULL,
    disabled_by        uuid REFERENCES users, -- only this user or an admin may enable it
    listed_at          timestamptz,          -- when its tools were last read
    failure            text CHECK (char_length(failure) <= 1000), -- why that failed
    created_at         timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL,
    CONSTRAINT tool_servers_audience CHECK ((audience = 'project') = (project_id IS NOT NULL))
);

-- The tools of a server. `definition` is the last one that the server sent; only `accepted_definition` is used. Their sizes are
-- those of the text that is read: a number such as 1e300 is short when it is sent and long when it is read.
CREATE TABLE server_tools (
    server_id           uuid NOT NULL REFERENCES tool_servers ON DELETE CASCADE,
    tool                text NOT NULL CHECK (char_length(tool) BETWEEN 1 AND 128),
    name                text NOT NULL CONSTRAINT server_tools_name_unique UNIQUE CHECK (char_length(name) BETWEEN 1 AND 64),
    definition          jsonb NOT NULL
                        CONSTRAINT server_tools_definition_size CHECK (octet_length(definition::text) <= 262144),
    accepted_definition jsonb
                        CONSTRAINT server_tools_accepted_size CHECK (octet_length(accepted_definition::text) <= 262144),
    annotations         jsonb NOT NULL,      -- set by people; the most restrictive until then
    withdrawn           boolean NOT NULL DEFAULT false,
    accepted_by         uuid REFERENCES users,
    accepted_at         timestamptz,
    seen_at             timestamptz NOT NULL,
    PRIMARY KEY (server_id, tool)
);

-- Approvals: the decision of a person about one exact call. Each is used once.
CREATE TABLE approvals (
    approval_id      uuid PRIMARY KEY,
    agent_token_id   uuid NOT NULL,
    project_id       uuid REFERENCES projects,
    task_id          uuid REFERENCES tasks ON DELETE CASCADE,
    tool             text NOT NULL,
    arguments_digest bytea NOT NULL CHECK (octet_length(arguments_digest) = 32),
    policy_hash      bytea NOT NULL CHECK (octet_length(policy_hash) = 32),
    rules            text[] NOT NULL,
    arguments_sealed bytea,                  -- shown to the person who decides; null once decided
    state            text NOT NULL CHECK (state IN ('asked', 'approved', 'refused', 'used')),
    requested_at     timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL,
    decided_by       uuid REFERENCES users,
    decided_at       timestamptz,
    used_at          timestamptz,
    call_id          uuid
) WITH (fillfactor = 70);
-- The same call has at most one open request.
CREATE UNIQUE INDEX approvals_open ON approvals (agent_token_id, tool, arguments_digest, policy_hash)
    WHERE state IN ('asked', 'approved', 'refused');
CREATE INDEX approvals_waiting ON approvals (requested_at) WHERE state = 'asked';
-- Earlier decisions about the same call.
CREATE INDEX approvals_decided ON approvals (agent_token_id, arguments_digest) WHERE state IN ('used', 'refused');
CREATE INDEX approvals_by_end ON approvals (expires_at);

-- Whether an agent can still use an answer: its token is valid, and its job, if it has one, has not ended.
CREATE FUNCTION agent_is_active(agent uuid, now timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT NOT EXISTS (SELECT FROM agent_tokens t LEFT JOIN jobs j USING (job_id) WHERE t.agent_token_id = agent
        AND (t.revoked_at IS NOT NULL OR t.expires_at <= now OR j.ended_at IS NOT NULL));
END;

-- How many calls each task has made in its current hour.
CREATE TABLE task_call_quotas (
    task_id    uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    hour       timestamptz NOT NULL,
    used_calls bigint NOT NULL CHECK (used_calls >= 0)
) WITH (fillfactor = 50);

-- How many calls each token without a task has made in its current hour.
CREATE TABLE token_call_quotas (
    agent_token_id uuid PRIMARY KEY REFERENCES agent_tokens ON DELETE CASCADE,
    hour           timestamptz NOT NULL,
    used_calls     bigint NOT NULL CHECK (used_calls >= 0)
) WITH (fillfactor = 50);

-- Artifacts. The bytes are in the object store, under their digest.
CREATE TABLE artifacts (
    artifact_id uuid PRIMARY KEY,
    project_id  uuid NOT NULL REFERENCES projects,
    task_id     uuid REFERENCES tasks ON DELETE CASCADE,
    job_id      uuid,
    name        text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 200),
    media_type  text NOT NULL CHECK (char_length(media_type) BETWEEN 1 AND 100),
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),
    size        bigint NOT NULL CHECK (size >= 0),
    created_by  uuid NOT NULL,               -- the agent token
    created_at  timestamptz NOT NULL,
    CONSTRAINT artifacts_unique UNIQUE (task_id, name, digest)
);
CREATE INDEX artifacts_by_task ON artifacts (task_id, artifact_id);
CREATE INDEX artifacts_by_digest ON artifacts (digest);
CREATE INDEX artifacts_by_project ON artifacts (project_id);

-- Blobs that nodes stored for jobs, recorded before the bytes are there: the quota of a project counts them, and a result names only
-- those of its own job. A digest alone is no proof of possession.
CREATE TABLE job_blobs (
    job_id     uuid NOT NULL REFERENCES jobs ON DELETE CASCADE,
    project_id uuid NOT NULL REFERENCES projects,
    digest     bytea NOT NULL CHECK (octet_length(digest) = 32),
    size       bigint NOT NULL CHECK (size >= 0),
    stored_at  timestamptz NOT NULL,
    PRIMARY KEY (job_id, digest)
);
CREATE INDEX job_blobs_by_project ON job_blobs (project_id);
CREATE INDEX job_blobs_by_digest ON job_blobs (digest);

-- Blobs that a task had until its files expired. Maintenance removes the bytes that nothing else refers to.
CREATE TABLE expired_blobs (
    digest     bytea PRIMARY KEY,
    expired_at timestamptz NOT NULL
);

-- Skills: instructions that agents can load.
CREATE TABLE skills (
    skill_id    uuid PRIMARY KEY,
    project_id  uuid NOT NULL REFERENCES projects,
    name        text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    description text NOT NULL CHECK (char_length(description) BETWEEN 1 AND 1000),
    body        text NOT NULL CHECK (octet_length(body) <= 65536),
    version     bigint NOT NULL CHECK (version >= 1),
    unreviewed  boolean NOT NULL DEFAULT false, -- an agent wrote it last, and no person has looked at it
    created_by  uuid NOT NULL REFERENCES users,
    updated_by  uuid NOT NULL REFERENCES users,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT skills_name_unique UNIQUE (project_id, name)
);

-- The last heartbeat and checkpoint of each agent.
CREATE TABLE agent_states (
    agent_token_id uuid PRIMARY KEY REFERENCES agent_tokens ON DELETE CASCADE,
    task_id        uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    job_id         uuid,
    heartbeat_at   timestamptz,
    note           text CHECK (char_length(note) <= 2000),
    checkpoint     jsonb,
    checkpoint_at  timestamptz,
    completed_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX agent_states_of_task ON agent_states (task_id);

CREATE TABLE agent_reports (
    report_id      uuid PRIMARY KEY,
    agent_token_id uuid NOT NULL,
    agent_role     text NOT NULL,
    project_id     uuid NOT NULL REFERENCES projects,
    task_id        uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    job_id         uuid,
    kind           text NOT NULL CHECK (kind IN ('work_completed', 'review_approved', 'review_changes_requested',
                       'tests_passed', 'tests_failed', 'work_blocked', 'needs_clarification', 'request_human_input')),
    summary        text NOT NULL CHECK (char_length(summary) BETWEEN 1 AND 20000),
    details        jsonb NOT NULL CHECK (jsonb_typeof(details) = 'object'),
    reported_at    timestamptz NOT NULL,
    -- The handoff with the question of the report; identical reports share one. Null: none was created yet.
    handoff_id     uuid REFERENCES handoffs ON DELETE SET NULL
);
CREATE INDEX agent_reports_by_task ON agent_reports (task_id, report_id);
CREATE INDEX agent_reports_by_job ON agent_reports (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX agent_reports_of_handoff ON agent_reports (handoff_id) WHERE handoff_id IS NOT NULL;
CREATE INDEX agent_reports_without_handoff ON agent_reports (job_id, reported_at)
    WHERE handoff_id IS NULL AND kind IN ('work_blocked', 'needs_clarification', 'request_human_input');

-- Results of verifying units.
CREATE TABLE verifications (
    verification_id uuid PRIMARY KEY,
    task_id         uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    unit_key        text CHECK (char_length(unit_key) <= 63),
    status          text NOT NULL CHECK (status IN ('pass', 'fail', 'needs_clarification')),
    findings        jsonb NOT NULL CHECK (jsonb_typeof(findings) = 'array'),
    recorded_by     uuid NOT NULL,           -- the agent token
    agent_role      text NOT NULL,
    recorded_at     timestamptz NOT NULL
);
CREATE INDEX verifications_by_task ON verifications (task_id, verification_id);

-- Images that sandboxes may use.
CREATE TABLE allowed_images (
    image    text PRIMARY KEY CHECK (char_length(image) BETWEEN 1 AND 300),
    added_by uuid NOT NULL REFERENCES users,
    added_at timestamptz NOT NULL
);
