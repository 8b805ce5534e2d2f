-- A model may be there for one project only, and goes with it.
ALTER TABLE models ADD COLUMN project_id uuid REFERENCES projects ON DELETE CASCADE;
