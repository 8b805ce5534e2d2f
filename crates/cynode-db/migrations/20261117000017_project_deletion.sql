-- Deletion of projects.

-- Files of deleted projects, until maintenance has removed them. The entry is written in the transaction that deletes the rows.
CREATE TABLE deleted_project_files (
    project_id uuid PRIMARY KEY,
    digests    bytea[] NOT NULL,             -- of artifacts that no other project had
    deleted_at timestamptz NOT NULL
);

-- Deletes a project with everything in it. Its events, audit records and model calls stay.
CREATE FUNCTION delete_project(deleted uuid, moment timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    own_tasks uuid[];
    own_pulls uuid[];
    own_handoffs uuid[];
BEGIN
    SELECT coalesce(array_agg(task_id), '{}') INTO own_tasks FROM tasks WHERE project_id = deleted;
    SELECT coalesce(array_agg(pull_request_id), '{}') INTO own_pulls FROM pull_requests WHERE project_id = deleted;
    SELECT coalesce(array_agg(handoff_id), '{}') INTO own_handoffs FROM handoffs WHERE project_id = deleted;
    INSERT INTO deleted_project_files (project_id, digests, deleted_at)
    SELECT deleted, coalesce(array_agg(DISTINCT a.digest), '{}'), moment
    FROM (
        SELECT digest FROM artifacts WHERE project_id = deleted
        UNION
        SELECT digest FROM job_blobs WHERE project_id = deleted
    ) a
    WHERE NOT EXISTS (SELECT FROM artifacts o WHERE o.digest = a.digest AND o.project_id <> deleted)
        AND NOT EXISTS (SELECT FROM job_blobs o WHERE o.digest = a.digest AND o.project_id <> deleted);
    DELETE FROM deliveries WHERE task_id = ANY (own_tasks) OR pull_request_id = ANY (own_pulls);
    DELETE FROM pull_request_feedback WHERE task_id = ANY (own_tasks) OR pull_request_id = ANY (own_pulls);
    DELETE FROM pull_request_followups WHERE task_id = ANY (own_tasks) OR pull_request_id = ANY (own_pulls);
    DELETE FROM pull_request_comments WHERE pull_request_id = ANY (own_pulls);
    DELETE FROM pull_request_reviews WHERE pull_request_id = ANY (own_pulls);
    DELETE FROM pull_requests WHERE project_id = deleted;
    DELETE FROM forge_issues WHERE project_id = deleted;
    DELETE FROM project_remotes WHERE project_id = deleted;
    DELETE FROM job_events WHERE task_id = ANY (own_tasks);
    DELETE FROM workflow_transitions WHERE task_id = ANY (own_tasks);
    DELETE FROM think_prompts WHERE handoff_id = ANY (own_handoffs);
    DELETE FROM think_calls WHERE project_id = deleted;
    DELETE FROM agent_reports WHERE project_id = deleted;
    DELETE FROM approvals WHERE project_id = deleted;
    DELETE FROM artifacts WHERE project_id = deleted;
    DELETE FROM skills WHERE project_id = deleted;
    DELETE FROM agent_tokens WHERE project_id = deleted;
    DELETE FROM handoffs WHERE project_id = deleted;
    DELETE FROM chat_threads WHERE project_id = deleted;
    DELETE FROM tool_servers WHERE project_id = deleted;
    DELETE FROM notifications WHERE project_id = deleted;
    DELETE FROM budgets
    WHERE scope_type = 'project' AND scope_id = deleted OR scope_type = 'task' AND scope_id = ANY (own_tasks);
    DELETE FROM preferences
    WHERE scope_type = 'project' AND scope_id = deleted OR scope_type = 'task' AND scope_id = ANY (own_tasks);
    DELETE FROM preferences_history
    WHERE scope_type = 'project' AND scope_id = deleted OR scope_type = 'task' AND scope_id = ANY (own_tasks);
    DELETE FROM preference_epochs
    WHERE scope_type = 'project' AND scope_id = deleted OR scope_type = 'task' AND scope_id = ANY (own_tasks);
    DELETE FROM mandatory_policies WHERE scope_type = 'project' AND scope_id = deleted;
    DELETE FROM tasks WHERE project_id = deleted;
    DELETE FROM projects WHERE project_id = deleted;
END $$;
