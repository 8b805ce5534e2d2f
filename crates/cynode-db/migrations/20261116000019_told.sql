-- An answer to what one agent reported is for the job that reported; what people say is for everybody who works on the task.
ALTER TABLE task_instructions ADD COLUMN job_id uuid REFERENCES jobs ON DELETE CASCADE;
CREATE INDEX task_instructions_of_job ON task_instructions (job_id) WHERE job_id IS NOT NULL;

-- The handoff that asks what a report asks; reports in the same words share one. None: nobody was asked yet.
ALTER TABLE agent_reports ADD COLUMN handoff_id uuid REFERENCES handoffs ON DELETE SET NULL;
UPDATE agent_reports r SET handoff_id = h.handoff_id
FROM handoffs h WHERE h.kind = 'report' AND h.request -> 'report' ->> 'report_id' = r.report_id::text;
CREATE INDEX agent_reports_of_handoff ON agent_reports (handoff_id) WHERE handoff_id IS NOT NULL;
CREATE INDEX agent_reports_unasked ON agent_reports (job_id, reported_at)
    WHERE handoff_id IS NULL AND kind IN ('work_blocked', 'needs_clarification', 'request_human_input');
CREATE INDEX handoffs_of_job ON handoffs (job_id) WHERE job_id IS NOT NULL;

-- Chats that have ended and still hold what was said.
CREATE INDEX handoffs_chats_held ON handoffs (ended_at) WHERE kind = 'chat' AND request -> 'messages' <> '[]'::jsonb;
