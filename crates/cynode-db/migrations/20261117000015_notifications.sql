-- Notifications: channels, the transactional outbox, attempts, and answer links.

-- A way to tell somebody. A secret is sealed and cannot be read back; while it is replaced, the old one signs too.
CREATE TABLE notification_channels (
    channel_id      uuid PRIMARY KEY,
    scope           text NOT NULL CHECK (scope IN ('user', 'project', 'installation')),
    user_id         uuid REFERENCES users ON DELETE CASCADE,
    project_id      uuid REFERENCES projects ON DELETE CASCADE,
    name            text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    kind            text NOT NULL CHECK (kind IN ('webhook', 'mail', 'ntfy')),
    address         text NOT NULL CHECK (char_length(address) BETWEEN 3 AND 2000),
    sealed          bytea,
    old_sealed      bytea,
    old_until       timestamptz,
    kinds           text[] NOT NULL CHECK (cardinality(kinds) BETWEEN 1 AND 100),
    min_gap_seconds integer NOT NULL CHECK (min_gap_seconds BETWEEN 0 AND 3600),
    quiet_until     timestamptz,             -- nothing is told before, so that there is a gap
    enabled         boolean NOT NULL,
    disabled_reason text,
    created_by      uuid NOT NULL REFERENCES users,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    CONSTRAINT notification_channels_scope_shape CHECK (CASE scope
        WHEN 'user'         THEN user_id IS NOT NULL AND project_id IS NULL
        WHEN 'project'      THEN user_id IS NULL AND project_id IS NOT NULL
        WHEN 'installation' THEN num_nonnulls(user_id, project_id) = 0
        ELSE false END),
    CONSTRAINT notification_channels_old_shape CHECK ((old_sealed IS NULL) = (old_until IS NULL)),
    CONSTRAINT notification_channels_reason_shape CHECK (NOT enabled OR disabled_reason IS NULL)
);
CREATE INDEX notification_channels_by_user ON notification_channels (user_id, channel_id) WHERE user_id IS NOT NULL;

-- Written with the event that it tells of. The words are made when it is told, so that nothing is kept here that an agent said.
CREATE TABLE notifications (
    notification_id uuid PRIMARY KEY,
    channel_id      uuid NOT NULL REFERENCES notification_channels ON DELETE CASCADE,
    event_xact      bigint,                  -- the place of the event; none when somebody tries the channel
    event_seq       bigint,
    kind            text NOT NULL CHECK (kind ~ '^[a-z_]+\.[a-z_]+$'),
    subject_id      uuid,
    project_id      uuid,
    task_id         uuid,
    trace_id        text NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    data            jsonb NOT NULL CHECK (jsonb_typeof(data) = 'object'),
    occurred_at     timestamptz NOT NULL,
    state           text NOT NULL,
    queued_at       timestamptz NOT NULL,    -- since when it is tried, by the database's clock
    due_at          timestamptz,             -- when it is next tried, or when a claim ends
    claim           uuid,                    -- who tells it now
    attempts        integer NOT NULL CHECK (attempts >= 0),
    tries           integer NOT NULL CHECK (tries >= attempts),
    reason          text,
    ended_at        timestamptz,
    CONSTRAINT notifications_once UNIQUE (channel_id, event_xact, event_seq),
    CONSTRAINT notifications_event_shape CHECK ((event_xact IS NULL) = (event_seq IS NULL)),
    CONSTRAINT notifications_state_shape CHECK (CASE state
        WHEN 'pending' THEN due_at IS NOT NULL AND ended_at IS NULL
        WHEN 'sent'    THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim) = 0
        WHEN 'failed'  THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim) = 0
        WHEN 'dropped' THEN ended_at IS NOT NULL AND num_nonnulls(due_at, claim) = 0
        ELSE false END)
) WITH (fillfactor = 70);
CREATE INDEX notifications_next ON notifications (channel_id, due_at, notification_id) WHERE state = 'pending';
CREATE INDEX notifications_claimed ON notifications (channel_id) WHERE state = 'pending' AND claim IS NOT NULL;
CREATE INDEX notifications_by_channel ON notifications (channel_id, notification_id);
CREATE INDEX notifications_by_end ON notifications (ended_at) WHERE ended_at IS NOT NULL;

-- Every attempt, with what the other side said.
CREATE TABLE notification_attempts (
    notification_id uuid NOT NULL REFERENCES notifications ON DELETE CASCADE,
    number          integer NOT NULL CHECK (number >= 1),
    at              timestamptz NOT NULL,
    sent            boolean NOT NULL,
    answer          text NOT NULL,
    PRIMARY KEY (notification_id, number)
);

-- How often a person tried channels of late. It stays when a channel is removed, so that a new one does not begin anew.
CREATE TABLE channel_tests (
    user_id uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    since   timestamptz NOT NULL,   -- when the counting began; after an hour it begins anew
    tests   integer NOT NULL CHECK (tests > 0)
);

-- Links that were used. The token itself is kept by nobody.
CREATE TABLE used_links (
    token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    used_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX used_links_by_expiry ON used_links (expires_at);
