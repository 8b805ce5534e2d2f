-- Client certificates that the certificate authority of the installation issued to nodes and services. The internal port takes a certificate
-- only if it is here and is not revoked. A node whose key is removed has no certificate that works.
CREATE TABLE issued_certificates (
    serial     text PRIMARY KEY CHECK (serial ~ '^[0-9a-f]{16,40}$'),
    kind       text NOT NULL CHECK (kind IN ('node', 'runner', 'worker', 'manager', 'analyst')),
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    node_id    uuid REFERENCES nodes,
    not_before timestamptz NOT NULL,
    not_after  timestamptz NOT NULL CHECK (not_after > not_before),
    issued_at  timestamptz NOT NULL,
    revoked_at timestamptz,
    CHECK ((kind = 'node') = (node_id IS NOT NULL))
);
CREATE INDEX issued_certificates_of_node ON issued_certificates (node_id) WHERE node_id IS NOT NULL;
CREATE INDEX issued_certificates_in_use ON issued_certificates (kind, name) WHERE revoked_at IS NULL;
