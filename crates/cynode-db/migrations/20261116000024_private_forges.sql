-- Forges in private networks: only whoever runs the installation leads the orchestrator there.

-- Whether the forge may be on this machine or in a private network, whatever its name leads to.
ALTER TABLE project_remotes ADD COLUMN private boolean NOT NULL DEFAULT false;
-- What an admin of the installation connected stays connected, and so does what is named by an address or as this machine: if
-- that is private, nobody else could connect it.
UPDATE project_remotes r SET private = true
WHERE (r.url ~ '^https?://(localhost|[0-9.]+|\[[0-9a-f:.]+\])[:/]' AND r.api ~ '^https?://(localhost|[0-9.]+|\[[0-9a-f:.]+\])[:/]')
    OR EXISTS (SELECT FROM role_bindings b WHERE b.project_id IS NULL AND b.role = 'admin' AND (b.user_id = r.set_by
        OR b.group_id IN (SELECT m.group_id FROM group_members m WHERE m.user_id = r.set_by)));
