-- Ways to what is looked up by something else than its key: none of these questions reads a whole table that grows.

-- The jobs of a unit: what it needs of earlier attempts, what is cancelled with it, what came out of it.
CREATE INDEX jobs_by_unit ON jobs (unit_id, attempt);
-- The plan that a run was given.
CREATE INDEX handoffs_planned ON handoffs (run_id) WHERE kind = 'plan' AND state = 'done';
-- What was said to the same call before, and what nobody can say anything to any more.
CREATE INDEX approvals_said ON approvals (agent_token_id, arguments_digest) WHERE state IN ('used', 'refused');
CREATE INDEX approvals_by_end ON approvals (expires_at);
-- Where the agents of a task were.
CREATE INDEX agent_states_of_task ON agent_states (task_id);
CREATE INDEX pull_requests_by_task ON pull_requests (task_id, number);
CREATE INDEX forge_deliveries_done ON forge_deliveries (done_at) WHERE done_at IS NOT NULL;
