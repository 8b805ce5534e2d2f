-- What an identity provider says about a person, for everything that acts in their name; who disabled an account; whom a provider admits.

-- `unneeded`: somebody else vouches for the person too, or no provider ever did. `confirmed`: the provider does. `due`: it has to be asked.
-- `lapsed`: it can be asked no more, and its last word is too old. `refused`: it said no. A password counts only where passwords work.
CREATE FUNCTION provider_word(person uuid, at timestamptz, default_hours bigint) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    is_open boolean;
    is_confirmed boolean;
    last_word timestamptz;
    hours bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM external_identities e WHERE e.user_id = person)
        OR EXISTS (SELECT FROM scim_users d WHERE d.user_id = person)
        OR (EXISTS (SELECT FROM password_credentials p WHERE p.user_id = person)
            AND NOT EXISTS (SELECT FROM system_settings s WHERE s.key = 'login.disable_local' AND s.value = 'true')) THEN
        RETURN 'unneeded';
    END IF;
    SELECT count(g.provider_grant_id) > 0, coalesce(bool_or(g.valid_until > at), false), max(e.confirmed_at)
    INTO is_open, is_confirmed, last_word
    FROM external_identities e
    LEFT JOIN provider_grants g ON g.external_identity_id = e.external_identity_id AND g.ended_at IS NULL
    WHERE e.user_id = person;
    IF is_confirmed THEN
        RETURN 'confirmed';
    ELSIF last_word IS NULL THEN
        RETURN 'refused';
    ELSIF is_open THEN
        RETURN 'due';
    END IF;
    SELECT (s.value #>> '{}')::bigint INTO hours FROM system_settings s WHERE s.key = 'auth.api_key_confirmation_hours';
    RETURN CASE WHEN last_word > at - interval '1 hour' * coalesce(hours, default_hours) THEN 'confirmed' ELSE 'lapsed' END;
END $$;

CREATE INDEX provider_grants_due ON provider_grants (valid_until) WHERE ended_at IS NULL;
CREATE INDEX agent_tokens_by_user ON agent_tokens (user_id, expires_at) WHERE revoked_at IS NULL;

-- The directory lifts only what it disabled itself.
ALTER TABLE users ADD COLUMN disabled_by_directory boolean NOT NULL DEFAULT false;
UPDATE users u SET disabled_by_directory = true
WHERE u.state = 'disabled' AND EXISTS (SELECT FROM scim_users d WHERE d.user_id = u.user_id);

-- The login that an account was made by. Others were linked to it later.
ALTER TABLE external_identities ADD COLUMN made_account boolean NOT NULL DEFAULT false;
UPDATE external_identities e SET made_account = true FROM users u WHERE u.user_id = e.user_id AND u.created_at = e.linked_at;

-- Whom a provider admits: people whose claims have these values, and only members of a mapped group if it says so.
ALTER TABLE identity_providers
    ADD COLUMN required_claims    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(required_claims) = 'object'),
    ADD COLUMN mapped_groups_only boolean NOT NULL DEFAULT false,
    -- The claim whose value is the external id of an account of the directory. It never changes.
    ADD COLUMN directory_claim    text NOT NULL DEFAULT 'sub' CHECK (char_length(directory_claim) BETWEEN 1 AND 200);
