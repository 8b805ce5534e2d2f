-- Results per test of the runs of checks.

ALTER TABLE evidence_results
    ADD COLUMN tests      jsonb, -- the report of the run: result by name of the test; null when it has none
    ADD COLUMN comparison jsonb; -- the runs until then compared with the run before the change; null when the run has no report
