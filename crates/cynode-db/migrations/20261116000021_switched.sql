-- Who switched a tool or a server off: only they, or an admin, undo it.
ALTER TABLE gate_tools ADD COLUMN disabled_by uuid REFERENCES users;
UPDATE gate_tools SET disabled_by = updated_by WHERE enabled IS FALSE;
-- Of servers that are off by now nobody knows it, so it is an admin who undoes it.
ALTER TABLE tool_servers ADD COLUMN disabled_by uuid REFERENCES users;
