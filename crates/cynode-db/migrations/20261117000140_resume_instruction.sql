-- The instruction that ends a pause is `resume`, as the command is, and the wait that it ends is `resumed`.
ALTER TABLE task_instructions DROP CONSTRAINT task_instructions_kind_check;
UPDATE task_instructions SET kind = 'resume' WHERE kind = 'continue';
ALTER TABLE task_instructions ADD CONSTRAINT task_instructions_kind_check
    CHECK (kind IN ('pause', 'resume', 'abort', 'revise', 'expand_scope', 'reduce_scope'));

ALTER TABLE waits DROP CONSTRAINT waits_resolution_shape;
UPDATE waits SET resolution = 'resumed' WHERE resolution = 'continued';
ALTER TABLE waits ADD CONSTRAINT waits_resolution_shape CHECK (
    (resolved_at IS NULL AND num_nonnulls(resolution, answer, resolved_by) = 0)
    OR (resolved_at IS NOT NULL
        AND resolution IN ('woken', 'approved', 'rejected', 'answered', 'resumed', 'expired', 'cancelled')));
