-- Which process of a node may speak for it. Each process that starts takes the next generation and ends the tokens of the one before;
-- 0 is a node that joined and never ran. A job knows since when it is placed.
ALTER TABLE nodes ADD COLUMN generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0);
UPDATE nodes SET generation = 1;
ALTER TABLE jobs ADD COLUMN placed_at timestamptz;
UPDATE jobs SET placed_at = queued_at WHERE state = 'queued' AND node_id IS NOT NULL;

-- When a program of the installation asked for work last, noted every few seconds at most.
ALTER TABLE service_tokens ADD COLUMN last_seen_at timestamptz;
