-- Whether an agent that asked can still use an answer: its token is good, and its job, if it has one, goes on.
CREATE FUNCTION asker_lives(asker uuid, now timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT NOT EXISTS (SELECT FROM agent_tokens t LEFT JOIN jobs j USING (job_id) WHERE t.agent_token_id = asker
        AND (t.revoked_at IS NOT NULL OR t.expires_at <= now OR j.ended_at IS NOT NULL));
END;
