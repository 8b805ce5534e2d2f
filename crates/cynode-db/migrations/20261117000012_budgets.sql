-- Budgets, reservations and usage of model calls, and the loop guard.

-- Budgets: upper limits of spending. A limit that is null does not limit.
CREATE TABLE budgets (
    budget_id       uuid PRIMARY KEY,
    scope_type      text NOT NULL CHECK (scope_type IN ('installation', 'user', 'project', 'task')),
    scope_id        uuid NOT NULL,           -- all zeroes: the installation
    period          text NOT NULL CHECK (period IN ('total', 'day', 'month')),
    max_cost_micros bigint CHECK (max_cost_micros >= 0),
    max_tokens      bigint CHECK (max_tokens >= 0),
    updated_by      uuid REFERENCES users,   -- null: it came with the task or the installation
    updated_at      timestamptz NOT NULL,
    CONSTRAINT budgets_unique UNIQUE (scope_type, scope_id, period),
    CONSTRAINT budgets_limit CHECK (num_nonnulls(max_cost_micros, max_tokens) > 0)
);
-- An installation begins with a budget that an admin may change: 20 units of the currency in a month.
INSERT INTO budgets (budget_id, scope_type, scope_id, period, max_cost_micros, updated_at)
VALUES (gen_random_uuid(), 'installation', '00000000-0000-0000-0000-000000000000', 'month', 20000000, now());

-- What is spent and reserved in each period of each budget.
CREATE TABLE budget_counters (
    budget_id       uuid NOT NULL REFERENCES budgets ON DELETE CASCADE,
    period_start    timestamptz NOT NULL,
    spent_micros    bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
    reserved_micros bigint NOT NULL DEFAULT 0 CHECK (reserved_micros >= 0),
    spent_tokens    bigint NOT NULL DEFAULT 0 CHECK (spent_tokens >= 0),
    reserved_tokens bigint NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
    PRIMARY KEY (budget_id, period_start)
) WITH (fillfactor = 50);

-- Calls in progress: the highest cost of each, and the row that it becomes in `model_calls`. The process that makes the call
-- renews its reservation; a call whose reservation expires was cut off, and is settled at its highest cost.
CREATE TABLE model_reservations (
    call_id       uuid PRIMARY KEY,
    budget_ids    uuid[] NOT NULL,
    period_starts timestamptz[] NOT NULL,
    cost_micros   bigint NOT NULL CHECK (cost_micros >= 0),
    tokens        bigint NOT NULL CHECK (tokens >= 0),
    call_record   jsonb NOT NULL,
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX model_reservations_expiry ON model_reservations (expires_at);

-- Calls that wait until calls in progress are settled, because a budget has room for their highest cost only then. The lowest
-- number comes first. A call that waits asks again and again; one that no longer does loses its place at `expires_at`.
CREATE TABLE budget_waiters (
    waiter_id    uuid PRIMARY KEY,
    queue_number bigint GENERATED ALWAYS AS IDENTITY,
    budget_id    uuid NOT NULL,
    cost_micros  bigint NOT NULL,
    tokens       bigint NOT NULL,
    expires_at   timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX budget_waiters_queue ON budget_waiters (budget_id, queue_number);

-- One row for each settled call. No column can hold prompts or answers.
CREATE TABLE model_calls (
    call_id            uuid NOT NULL,
    started_at         timestamptz NOT NULL,
    user_id            uuid NOT NULL,
    project_id         uuid,
    task_id            uuid,
    run_id             uuid,
    job_id             uuid,
    agent_token_id     uuid,
    agent_role         text,
    credential         text NOT NULL,
    trace_id           text NOT NULL,
    dialect            text NOT NULL,
    model              text NOT NULL,
    provider           text NOT NULL,
    upstream           text NOT NULL,
    prompt_digest      bytea NOT NULL CHECK (octet_length(prompt_digest) = 32),
    redactions         integer NOT NULL,
    streamed           boolean NOT NULL,
    outcome            text NOT NULL CHECK (outcome IN ('answered', 'failed', 'given_up', 'lost')),
    error              text,
    basis              text NOT NULL CHECK (basis IN ('reported', 'bounded', 'worst_case', 'free')),
    input_tokens       bigint NOT NULL CHECK (input_tokens >= 0),
    cached_tokens      bigint NOT NULL CHECK (cached_tokens >= 0),
    cache_write_tokens bigint NOT NULL CHECK (cache_write_tokens >= 0),
    output_tokens      bigint NOT NULL CHECK (output_tokens >= 0),
    reasoning_tokens   bigint NOT NULL CHECK (reasoning_tokens >= 0),
    cost_micros        bigint NOT NULL CHECK (cost_micros >= 0),
    first_byte_ms      integer,
    duration_ms        integer
) PARTITION BY RANGE (started_at);
CREATE INDEX model_calls_by_project ON model_calls (project_id, started_at);
CREATE INDEX model_calls_by_user ON model_calls (user_id, started_at);
CREATE INDEX model_calls_by_task ON model_calls (task_id, started_at) WHERE task_id IS NOT NULL;

-- Tasks whose model calls are suspended, and why. A park ends at `parked_until`, or without it when a person ends it.
CREATE TABLE task_parks (
    task_id      uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    kind         text NOT NULL CHECK (kind IN ('quota', 'repeats', 'no_progress', 'spend_rate')),
    reason       text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500),
    parked_until timestamptz,
    parked_at    timestamptz NOT NULL,
    notified_at  timestamptz                 -- when people were notified and the task was paused, in one transaction
);
CREATE INDEX task_parks_expiring ON task_parks (parked_until) WHERE parked_until IS NOT NULL;
CREATE INDEX task_parks_unnotified ON task_parks (task_id) WHERE notified_at IS NULL;

-- The loop guard: counts the recent model calls of a task, to park a task that repeats itself.
CREATE TABLE loop_guard_counters (
    task_id                uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    digest                 bytea NOT NULL,
    identical_calls        integer NOT NULL,
    checkpoint_sequence    bigint NOT NULL,  -- when `calls_since_checkpoint` was 0
    calls_since_checkpoint integer NOT NULL,
    minute_start           timestamptz NOT NULL,
    minute_cost_micros     bigint NOT NULL
) WITH (fillfactor = 50);

-- The start of the period that a moment is in.
CREATE FUNCTION budget_period_start(period text, moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE period
        WHEN 'total' THEN timestamptz '2000-01-01 00:00:00+00'
        ELSE date_trunc(period, moment AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' END
$$;

-- Reserves the highest cost of calls, each whole or not at all. For each call it returns the budget or the park that refused it,
-- or that its route is stale. A call that a budget refuses does not count for the loop guard: a task that waits for a new period
-- repeats its call all the while.
-- A call that would fit if all calls in progress were settled at nothing gets a place in the queue of the budget, and `ahead` says
-- how many come before it. A call also waits while others wait for one of its budgets, but not for those that need at least twice
-- as much: large calls do not delay small ones.
-- Counters are locked in the order of their ids before anything is decided, here and in `settle_calls`.
CREATE FUNCTION reserve_calls(
    calls uuid[], epochs bigint[], users uuid[], projects uuid[], tasks uuid[], digests bytea[], costs bigint[],
    sizes bigint[], records jsonb[], moment timestamptz, lease interval, max_identical_calls integer,
    max_calls_since_checkpoint integer, max_micros_per_minute bigint, waiters uuid[], waiter_ttl interval
) RETURNS TABLE (stale boolean, budget uuid, ahead integer, park text, park_reason text, park_until timestamptz, park_new boolean)
LANGUAGE plpgsql AS $$
DECLARE
    nil CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    latest timestamptz;
    current_epoch bigint;
    current_sequence bigint;
    counters loop_guard_counters;
    ids uuid[];
    starts timestamptz[];
    anyone_waits boolean;
    own_number bigint;
    spent_budget uuid;
    full_budget uuid;
    families uuid[];
    lineage uuid[];
    full_ahead integer;
    queue_budget uuid;
    queue_ahead integer;
BEGIN
    -- A task spends from its own budget and from those of the tasks that it came from.
    SELECT coalesce(array_agg(DISTINCT f.task_id), '{}') INTO families
    FROM tasks t, unnest(t.ancestors || t.task_id) AS f (task_id)
    WHERE t.task_id = ANY (reserve_calls.tasks);
    SELECT m.epoch + g.epoch INTO current_epoch FROM routing_epoch m, policy_epoch g;
    INSERT INTO budgets AS b (budget_id, scope_type, scope_id, period, max_cost_micros, max_tokens, updated_at)
    SELECT gen_random_uuid(), 'task', t.task_id, 'total', t.max_cost_micros, t.max_tokens, moment
    FROM tasks t
    WHERE t.task_id = ANY (families) AND num_nonnulls(t.max_cost_micros, t.max_tokens) > 0
        AND NOT EXISTS (SELECT FROM budgets o
            WHERE o.scope_type = 'task' AND o.scope_id = t.task_id AND o.period = 'total')
    ORDER BY t.task_id
    ON CONFLICT DO NOTHING;
    INSERT INTO budget_counters (budget_id, period_start)
    SELECT b.budget_id, budget_period_start(b.period, moment) FROM budgets b
    WHERE (b.scope_type, b.scope_id) IN (
            SELECT 'installation', nil UNION SELECT 'user', unnest(users)
            UNION SELECT 'project', unnest(projects) UNION SELECT 'task', unnest(families))
        AND NOT EXISTS (SELECT FROM budget_counters c
            WHERE c.budget_id = b.budget_id AND c.period_start = budget_period_start(b.period, moment))
    ORDER BY b.budget_id
    ON CONFLICT DO NOTHING;
    PERFORM FROM budget_counters c JOIN budgets b USING (budget_id)
    WHERE c.period_start = budget_period_start(b.period, moment) AND (b.scope_type, b.scope_id) IN (
        SELECT 'installation', nil UNION SELECT 'user', unnest(users)
        UNION SELECT 'project', unnest(projects) UNION SELECT 'task', unnest(families))
    ORDER BY c.budget_id
    FOR NO KEY UPDATE OF c;
    anyone_waits := EXISTS (SELECT FROM budget_waiters);
    FOR i IN 1 .. cardinality(calls) LOOP
        stale := epochs[i] <> current_epoch + preference_epoch(users[i], projects[i], tasks[i]);
        budget := NULL; ahead := NULL; park := NULL; park_reason := NULL; park_until := NULL; park_new := false;
        latest := clock_timestamp();
        IF stale THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF tasks[i] IS NOT NULL THEN
            DELETE FROM task_parks p WHERE p.task_id = tasks[i] AND p.parked_until <= moment;
            SELECT p.kind, p.reason, p.parked_until, p.notified_at IS NULL INTO park, park_reason, park_until, park_new
            FROM task_parks p WHERE p.task_id = tasks[i];
            IF park IS NOT NULL THEN
                DELETE FROM budget_waiters w WHERE w.waiter_id = waiters[i];
                RETURN NEXT;
                CONTINUE;
            END IF;
            park_new := false;
        END IF;
        lineage := '{}';
        IF cardinality(families) > 1 THEN
            lineage := (SELECT t.ancestors FROM tasks t WHERE t.task_id = tasks[i]);
        END IF;
        SELECT array_agg(b.budget_id ORDER BY b.budget_id), array_agg(c.period_start ORDER BY b.budget_id),
            (array_agg(b.budget_id ORDER BY b.budget_id) FILTER (
                WHERE c.spent_micros + costs[i] > b.max_cost_micros OR c.spent_tokens + sizes[i] > b.max_tokens))[1],
            (array_agg(b.budget_id ORDER BY b.budget_id) FILTER (
                WHERE c.spent_micros + c.reserved_micros + costs[i] > b.max_cost_micros
                    OR c.spent_tokens + c.reserved_tokens + sizes[i] > b.max_tokens))[1]
        INTO ids, starts, spent_budget, full_budget
        FROM budgets b JOIN budget_counters c ON c.budget_id = b.budget_id
            AND c.period_start = budget_period_start(b.period, moment)
        WHERE (b.scope_type, b.scope_id) IN (('installation', nil), ('user', users[i]),
            ('project', projects[i]), ('task', tasks[i]), ('task', lineage[1]), ('task', lineage[2]),
            ('task', lineage[3]), ('task', lineage[4]));
        own_number := NULL; full_ahead := 0;
        IF anyone_waits THEN
            SELECT w.queue_number INTO own_number FROM budget_waiters w WHERE w.waiter_id = waiters[i];
            SELECT w.budget_id, count(*) INTO queue_budget, queue_ahead
            FROM budget_waiters w JOIN budgets b ON b.budget_id = w.budget_id
            WHERE w.budget_id = ANY (ids) AND w.waiter_id <> waiters[i] AND w.expires_at > latest
                AND (own_number IS NULL OR w.queue_number < own_number)
                AND CASE WHEN b.max_cost_micros IS NULL THEN w.tokens / 2 < sizes[i]
                    ELSE w.cost_micros / 2 < costs[i] END
            GROUP BY w.budget_id ORDER BY w.budget_id LIMIT 1;
            IF queue_budget IS NOT NULL AND (full_budget IS NULL OR queue_budget <= full_budget) THEN
                full_budget := queue_budget; full_ahead := queue_ahead;
            END IF;
        END IF;
        IF spent_budget IS NULL AND full_budget IS NOT NULL THEN
            INSERT INTO budget_waiters AS w (waiter_id, budget_id, cost_micros, tokens, expires_at)
            VALUES (waiters[i], full_budget, costs[i], sizes[i], latest + waiter_ttl)
            ON CONFLICT (waiter_id) DO UPDATE SET budget_id = excluded.budget_id, cost_micros = excluded.cost_micros,
                tokens = excluded.tokens, expires_at = excluded.expires_at;
            anyone_waits := true;
            budget := full_budget;
            ahead := full_ahead;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF own_number IS NOT NULL THEN
            DELETE FROM budget_waiters w WHERE w.waiter_id = waiters[i];
        END IF;
        IF spent_budget IS NOT NULL THEN
            budget := spent_budget;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF tasks[i] IS NOT NULL THEN
            SELECT coalesce(max(c.sequence), 0) INTO current_sequence FROM workflow_checkpoints c WHERE c.task_id = tasks[i];
            INSERT INTO loop_guard_counters AS t (
                task_id, digest, identical_calls, checkpoint_sequence, calls_since_checkpoint, minute_start, minute_cost_micros)
            VALUES (tasks[i], digests[i], 1, current_sequence, 1, date_trunc('minute', moment), 0)
            ON CONFLICT (task_id) DO UPDATE SET
                identical_calls = CASE WHEN t.digest = excluded.digest THEN t.identical_calls + 1 ELSE 1 END,
                digest = excluded.digest,
                calls_since_checkpoint = CASE WHEN t.checkpoint_sequence = excluded.checkpoint_sequence
                    THEN t.calls_since_checkpoint + 1 ELSE 1 END,
                checkpoint_sequence = excluded.checkpoint_sequence,
                minute_cost_micros = CASE WHEN t.minute_start = excluded.minute_start THEN t.minute_cost_micros ELSE 0 END,
                minute_start = excluded.minute_start
            RETURNING t.* INTO counters;
            IF counters.identical_calls > max_identical_calls THEN
                park := 'repeats';
                park_reason := format('the same question was asked %s times in a row', counters.identical_calls);
            ELSIF counters.calls_since_checkpoint > max_calls_since_checkpoint THEN
                park := 'no_progress';
                park_reason := format('%s model calls without a step forward', counters.calls_since_checkpoint);
            ELSIF counters.minute_cost_micros > max_micros_per_minute THEN
                park := 'spend_rate';
                park_reason := format('%s millionths were spent within a minute', counters.minute_cost_micros);
            END IF;
            IF park IS NOT NULL THEN
                park_new := true;
                INSERT INTO task_parks (task_id, kind, reason, parked_at) VALUES (tasks[i], park, park_reason, moment);
                -- A task that is unparked starts with new counters.
                DELETE FROM loop_guard_counters t WHERE t.task_id = tasks[i];
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        UPDATE budget_counters c
        SET reserved_micros = c.reserved_micros + costs[i], reserved_tokens = c.reserved_tokens + sizes[i]
        FROM unnest(ids, starts) AS reserved (id, start)
        WHERE c.budget_id = reserved.id AND c.period_start = reserved.start;
        INSERT INTO model_reservations (call_id, budget_ids, period_starts, cost_micros, tokens, call_record, expires_at)
        VALUES (calls[i], coalesce(ids, '{}'), coalesce(starts, '{}'), costs[i], sizes[i], records[i], latest + lease);
        RETURN NEXT;
    END LOOP;
END
$$;

-- Settles calls once: frees what each reserved, adds what it cost to the budgets, and writes its row. Returns the calls that
-- were still open.
CREATE FUNCTION settle_calls(calls uuid[], costs bigint[], sizes bigint[], ends jsonb[]) RETURNS SETOF uuid
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM budget_counters c
    WHERE (c.budget_id, c.period_start) IN (
        SELECT u.id, u.start FROM model_reservations r, unnest(r.budget_ids, r.period_starts) AS u (id, start)
        WHERE r.call_id = ANY (calls))
    ORDER BY c.budget_id, c.period_start
    FOR NO KEY UPDATE;
    RETURN QUERY
    WITH settlement AS (
        SELECT * FROM unnest(calls, costs, sizes, ends) AS s (call_id, cost_micros, tokens, call_record)
    ), settled AS (
        DELETE FROM model_reservations r USING settlement e WHERE r.call_id = e.call_id
        RETURNING r.call_id, r.budget_ids, r.period_starts, r.cost_micros AS reserved_micros, r.tokens AS reserved_tokens,
            e.cost_micros, e.tokens, r.call_record || e.call_record AS call_record
    ), counted AS (
        UPDATE budget_counters c
        SET spent_micros = c.spent_micros + s.cost_micros, reserved_micros = c.reserved_micros - s.reserved_micros,
            spent_tokens = c.spent_tokens + s.tokens, reserved_tokens = c.reserved_tokens - s.reserved_tokens
        FROM (
            SELECT u.id, u.start, sum(g.cost_micros)::bigint AS cost_micros, sum(g.reserved_micros)::bigint AS reserved_micros,
                sum(g.tokens)::bigint AS tokens, sum(g.reserved_tokens)::bigint AS reserved_tokens
            FROM settled g, unnest(g.budget_ids, g.period_starts) AS u (id, start)
            GROUP BY u.id, u.start
        ) s
        WHERE c.budget_id = s.id AND c.period_start = s.start
    ), guarded AS (
        UPDATE loop_guard_counters t SET minute_cost_micros = t.minute_cost_micros + s.cost_micros
        FROM (SELECT (g.call_record ->> 'task_id')::uuid AS task_id, sum(g.cost_micros)::bigint AS cost_micros FROM settled g
            WHERE g.call_record ->> 'task_id' IS NOT NULL GROUP BY 1) s
        WHERE t.task_id = s.task_id
    ), recorded AS (
        INSERT INTO model_calls
        SELECT (jsonb_populate_record(NULL::model_calls, g.call_record)).* FROM settled g
    )
    SELECT g.call_id FROM settled g;
END
$$;

-- Settles calls whose reservation has expired, at their highest cost. Removes the places of calls that stopped waiting long ago.
CREATE FUNCTION settle_expired_calls(max_calls integer) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
DECLARE
    expired uuid[];
BEGIN
    DELETE FROM budget_waiters w WHERE w.expires_at < clock_timestamp() - interval '1 minute';
    SELECT array_agg(call_id) INTO expired FROM (
        SELECT r.call_id FROM model_reservations r WHERE r.expires_at < clock_timestamp()
        ORDER BY r.expires_at LIMIT max_calls) r;
    IF expired IS NULL THEN RETURN; END IF;
    RETURN QUERY SELECT settle_calls(
        array_agg(r.call_id), array_agg(r.cost_micros), array_agg(r.tokens),
        array_agg(jsonb_build_object('outcome', 'lost', 'basis', 'worst_case', 'cost_micros', r.cost_micros,
            'input_tokens', r.call_record -> 'input_tokens', 'output_tokens', r.call_record -> 'output_tokens')))
    FROM model_reservations r WHERE r.call_id = ANY (expired) AND r.expires_at < clock_timestamp();
END
$$;
