-- When an identity provider last confirmed a person. API keys of people who log in by a provider alone need that word.

ALTER TABLE external_identities
    ADD COLUMN confirmed_at timestamptz; -- NULL when the provider has refused since, or has never confirmed

UPDATE external_identities e
SET confirmed_at = (SELECT max(g.confirmed_at) FROM provider_grants g WHERE g.external_identity_id = e.external_identity_id);
