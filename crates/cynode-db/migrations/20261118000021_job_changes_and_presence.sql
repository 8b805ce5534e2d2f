-- Events of jobs, and who looks at an item of the inbox.

-- Each change of a job's state is an event, in the transaction of the change, whatever statement makes it. Leases, phases and log lines
-- are no events: they change far too often.
CREATE FUNCTION record_job_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (occurred_at, kind, project_id, task_id, trace_id, data)
    SELECT clock_timestamp(), 'job.changed', t.project_id, NEW.task_id, NEW.trace_id,
        jsonb_strip_nulls(jsonb_build_object(
            'job_id', 'job_' || replace(NEW.job_id::text, '-', ''),
            'state', NEW.state,
            'attempt', NEW.attempt,
            'unit', (SELECT u.key FROM work_units u WHERE u.unit_id = NEW.unit_id),
            'checks', NEW.evidence_id IS NOT NULL,
            'node_id', 'nod_' || replace(NEW.node_id::text, '-', '')))
    FROM tasks t WHERE t.task_id = NEW.task_id;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_queued_event AFTER INSERT ON jobs
    FOR EACH ROW WHEN (NEW.state = 'queued') EXECUTE FUNCTION record_job_change();
CREATE TRIGGER jobs_changed_event AFTER UPDATE OF state ON jobs
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION record_job_change();

-- People who look at an item of the inbox. Nothing is lost with it: after a crash it is empty and fills again within seconds.
CREATE UNLOGGED TABLE inbox_viewers (
    item    text NOT NULL CHECK (char_length(item) BETWEEN 1 AND 200),
    user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (item, user_id)
);
CREATE INDEX inbox_viewers_by_time ON inbox_viewers (seen_at);

-- The calls of the last hour, for the health of providers. It costs next to nothing when a call is written.
CREATE INDEX model_calls_by_time ON model_calls USING brin (started_at);

-- Checks of an ended task can be run again: the evidence so far is kept, and the new one counts.
ALTER TABLE evidence ADD COLUMN superseded_at timestamptz;
ALTER TABLE evidence DROP CONSTRAINT evidence_unique;
CREATE UNIQUE INDEX evidence_current ON evidence (unit_id, attempt) WHERE superseded_at IS NULL;
CREATE INDEX evidence_by_unit ON evidence (unit_id) WHERE unit_id IS NOT NULL;
