-- How many calls each token that is tied to no task has made in its present hour. A task has its own count, in `call_quotas`.
CREATE TABLE token_quotas (
    agent_token_id uuid PRIMARY KEY REFERENCES agent_tokens ON DELETE CASCADE,
    hour           timestamptz NOT NULL,
    taken          bigint NOT NULL CHECK (taken >= 0)
) WITH (fillfactor = 50);
