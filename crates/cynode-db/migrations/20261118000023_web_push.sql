-- Web push: browsers as notification channels.

ALTER TABLE notification_channels
    DROP CONSTRAINT notification_channels_kind_check,
    ADD CONSTRAINT notification_channels_kind_check CHECK (kind IN ('webhook', 'mail', 'ntfy', 'web_push')),
    -- The session that subscribed the browser. The subscription ends when somebody ends the session, and stays when the session expires.
    ADD COLUMN session_id uuid REFERENCES user_sessions ON DELETE SET NULL,
    ADD CONSTRAINT notification_channels_web_push_shape
        CHECK (kind <> 'web_push' OR (scope = 'user' AND sealed_secret IS NOT NULL)),
    ADD CONSTRAINT notification_channels_session_shape CHECK (kind = 'web_push' OR session_id IS NULL);
-- A browser belongs to the user who subscribed it last.
CREATE UNIQUE INDEX notification_channels_browser_unique ON notification_channels (address) WHERE kind = 'web_push';
CREATE INDEX notification_channels_by_session ON notification_channels (session_id) WHERE session_id IS NOT NULL;

-- The private key that identifies this installation to push services (VAPID, RFC 8292). Every subscription is bound to it.
CREATE TABLE web_push_keys (
    only_row           boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    sealed_private_key bytea NOT NULL,
    created_at         timestamptz NOT NULL
);
