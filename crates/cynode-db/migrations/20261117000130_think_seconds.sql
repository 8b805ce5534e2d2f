-- How long a model may take for one answer, where it is not what holds for all.
ALTER TABLE models ADD COLUMN think_seconds integer CHECK (think_seconds BETWEEN 1 AND 3600);
