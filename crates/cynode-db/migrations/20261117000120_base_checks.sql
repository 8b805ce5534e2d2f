-- Checks that are tried on the base commit before anybody works: evidence and jobs of a task that belong to no unit.

ALTER TABLE evidence
    ALTER COLUMN unit_id DROP NOT NULL,
    DROP CONSTRAINT evidence_attempt_check,
    ADD CONSTRAINT evidence_attempt_check CHECK (CASE WHEN unit_id IS NULL THEN attempt = 0 ELSE attempt >= 1 END);
-- A task has one base. Its commit is known as soon as a node has taken the first job.
CREATE UNIQUE INDEX evidence_of_base ON evidence (task_id) WHERE unit_id IS NULL;

ALTER TABLE jobs
    ALTER COLUMN unit_id DROP NOT NULL,
    DROP CONSTRAINT jobs_attempt_check,
    ADD CONSTRAINT jobs_attempt_check CHECK (
        CASE WHEN unit_id IS NULL THEN attempt = 0 AND evidence_id IS NOT NULL ELSE attempt >= 1 END);
