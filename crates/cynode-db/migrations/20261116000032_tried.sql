-- How often a person tried channels of late. It stays when a channel is removed, so that a new one does not begin anew.
CREATE TABLE channel_tests (
    user_id uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    since   timestamptz NOT NULL,   -- when the counting began; after an hour it begins anew
    tests   integer NOT NULL CHECK (tests > 0)
);

-- The tokens that a person gave out by hand end with what else the person had when an admin sets a new password.
CREATE INDEX agent_tokens_by_issuer ON agent_tokens (issued_by) WHERE revoked_at IS NULL AND issued_by IS NOT NULL;
