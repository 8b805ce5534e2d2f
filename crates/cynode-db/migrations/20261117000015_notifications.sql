-- Notifications: channels, the transactional outbox, attempts, and answer links.

-- Notification channels. Secrets are sealed; during rotation the old secret signs too.
CREATE TABLE notification_channels (
    channel_id        uuid PRIMARY KEY,
    scope             text NOT NULL CHECK (scope IN ('user', 'project', 'installation')),
    user_id           uuid REFERENCES users ON DELETE CASCADE,
    project_id        uuid REFERENCES projects ON DELETE CASCADE,
    name              text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    kind              text NOT NULL CHECK (kind IN ('webhook', 'mail', 'ntfy')),
    address           text NOT NULL CHECK (char_length(address) BETWEEN 3 AND 2000),
    sealed_secret     bytea,
    old_sealed_secret bytea,
    old_secret_until  timestamptz,
    event_kinds       text[] NOT NULL CHECK (cardinality(event_kinds) BETWEEN 1 AND 100),
    min_gap_seconds   integer NOT NULL CHECK (min_gap_seconds BETWEEN 0 AND 3600),
    quiet_until       timestamptz,           -- nothing is sent before, to keep the minimum gap
    enabled           boolean NOT NULL,
    disabled_reason   text,
    created_by        uuid NOT NULL REFERENCES users,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    CONSTRAINT notification_channels_scope_shape CHECK (CASE scope
        WHEN 'user'         THEN user_id IS NOT NULL AND project_id IS NULL
        WHEN 'project'      THEN user_id IS NULL AND project_id IS NOT NULL
        WHEN 'installation' THEN num_nonnulls(user_id, project_id) = 0
        ELSE false END),
    CONSTRAINT notification_channels_old_secret_shape CHECK ((old_sealed_secret IS NULL) = (old_secret_until IS NULL)),
    CONSTRAINT notification_channels_reason_shape CHECK (NOT enabled OR disabled_reason IS NULL)
);
CREATE INDEX notification_channels_by_user ON notification_channels (user_id, channel_id) WHERE user_id IS NOT NULL;

-- The outbox, written in the transaction of the event. The text is composed when it is sent, so that no text of an agent is stored
-- here.
CREATE TABLE notifications (
    notification_id uuid PRIMARY KEY,
    channel_id      uuid NOT NULL REFERENCES notification_channels ON DELETE CASCADE,
    event_xact      bigint,                  -- the position of the event; null for a test of the channel
    event_seq       bigint,
    kind            text NOT NULL CHECK (kind ~ '^[a-z_]+\.[a-z_]+$'),
    subject_id      uuid,
    project_id      uuid,
    task_id         uuid,
    trace_id        text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    data            jsonb NOT NULL CHECK (jsonb_typeof(data) = 'object'),
    occurred_at     timestamptz NOT NULL,
    state           text NOT NULL,
    queued_at       timestamptz NOT NULL,    -- by the database's clock
    due_at          timestamptz,             -- when it is next attempted, or when the claim expires
    claim_id        uuid,                    -- of the worker that is sending it
    attempts        integer NOT NULL CHECK (attempts >= 0),
    total_attempts  integer NOT NULL CHECK (total_attempts >= attempts),
    reason          text,
    ended_at        timestamptz,
    CONSTRAINT notifications_unique UNIQUE (channel_id, event_xact, event_seq),
    CONSTRAINT notifications_event_shape CHECK ((event_xact IS NULL) = (event_seq IS NULL)),
    CONSTRAINT notifications_state_shape CHECK (CASE state
        WHEN 'pending' THEN due_at IS NOT NULL AND ended_at IS NULL
        WHEN 'sent'    THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim_id) = 0
        WHEN 'failed'  THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim_id) = 0
        WHEN 'dropped' THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim_id) = 0
        ELSE false END)
) WITH (fillfactor = 70);
CREATE INDEX notifications_next ON notifications (channel_id, due_at, notification_id) WHERE state = 'pending';
CREATE INDEX notifications_claimed ON notifications (channel_id) WHERE state = 'pending' AND claim_id IS NOT NULL;
CREATE INDEX notifications_by_channel ON notifications (channel_id, notification_id);
CREATE INDEX notifications_by_end ON notifications (ended_at) WHERE ended_at IS NOT NULL;

-- Every attempt, with the response.
CREATE TABLE notification_attempts (
    notification_id uuid NOT NULL REFERENCES notifications ON DELETE CASCADE,
    number          integer NOT NULL CHECK (number >= 1),
    attempted_at    timestamptz NOT NULL,
    sent            boolean NOT NULL,
    response        text NOT NULL,
    PRIMARY KEY (notification_id, number)
);

-- Rate limit of channel tests, per user: it survives the deletion of a channel.
CREATE TABLE channel_tests (
    user_id      uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    window_start timestamptz NOT NULL,       -- a window lasts one hour
    tests        integer NOT NULL CHECK (tests > 0)
);

-- Answer links that were used. Only the hash of the token is stored.
CREATE TABLE used_answer_links (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    used_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX used_answer_links_by_expiry ON used_answer_links (expires_at);
