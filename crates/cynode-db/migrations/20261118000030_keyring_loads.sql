-- Which keys each server process has loaded.

-- A rotation goes on only when every live process has the new key. A process renews its row with every refresh of its keyring, and deletes
-- it at its end; the row of a process that died expires.
CREATE TABLE keyring_loads (
    process_id   uuid PRIMARY KEY,
    process_name text NOT NULL CHECK (char_length(process_name) BETWEEN 1 AND 200),
    key_ids      uuid[] NOT NULL,            -- the keys in its memory
    seen_at      timestamptz NOT NULL
);
