-- Budgets, reservations and usage of model calls, and the loop guard.

-- Ceilings. What a part leaves out is limited by the others only.
CREATE TABLE budgets (
    budget_id       uuid PRIMARY KEY,
    scope_type      text NOT NULL CHECK (scope_type IN ('installation', 'user', 'project', 'task')),
    scope_id        uuid NOT NULL,           -- all zeroes: the installation
    period          text NOT NULL CHECK (period IN ('total', 'day', 'month')),
    max_cost_micros bigint CHECK (max_cost_micros >= 0),
    max_tokens      bigint CHECK (max_tokens >= 0),
    updated_by      uuid REFERENCES users,   -- null: it came with the task or the installation
    updated_at      timestamptz NOT NULL,
    CONSTRAINT budgets_once UNIQUE (scope_type, scope_id, period),
    CONSTRAINT budgets_limit CHECK (num_nonnulls(max_cost_micros, max_tokens) > 0)
);
-- An installation begins with a ceiling that an admin may change: 20 units of the currency in a month.
INSERT INTO budgets (budget_id, scope_type, scope_id, period, max_cost_micros, updated_at)
VALUES (gen_random_uuid(), 'installation', '00000000-0000-0000-0000-000000000000', 'month', 20000000, now());

-- What was spent and what is held back, in each period of each ceiling.
CREATE TABLE budget_counters (
    budget_id       uuid NOT NULL REFERENCES budgets ON DELETE CASCADE,
    period_start    timestamptz NOT NULL,
    spent_micros    bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
    held_micros     bigint NOT NULL DEFAULT 0 CHECK (held_micros >= 0),
    spent_tokens    bigint NOT NULL DEFAULT 0 CHECK (spent_tokens >= 0),
    held_tokens     bigint NOT NULL DEFAULT 0 CHECK (held_tokens >= 0),
    PRIMARY KEY (budget_id, period_start)
) WITH (fillfactor = 50);

-- Calls under way: the worst that each may cost, and what its row will say. Whoever makes a call renews its row; one that is
-- not renewed was cut off, and counts as the worst.
CREATE TABLE model_reservations (
    call_id    uuid PRIMARY KEY,
    budgets    uuid[] NOT NULL,
    periods    timestamptz[] NOT NULL,
    micros     bigint NOT NULL CHECK (micros >= 0),
    tokens     bigint NOT NULL CHECK (tokens >= 0),
    facts      jsonb NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX model_reservations_expiry ON model_reservations (expires_at);

-- One row for each call that was settled. No column can hold what was said.
CREATE TABLE model_calls (
    call_id            uuid NOT NULL,
    at                 timestamptz NOT NULL,
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
) PARTITION BY RANGE (at);
CREATE INDEX model_calls_by_project ON model_calls (project_id, at);
CREATE INDEX model_calls_by_user ON model_calls (user_id, at);
CREATE INDEX model_calls_by_task ON model_calls (task_id, at) WHERE task_id IS NOT NULL;

-- Tasks that may not think now, and why. With `until` the clock ends it, without a person does.
CREATE TABLE task_parks (
    task_id   uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    kind      text NOT NULL CHECK (kind IN ('quota', 'repeats', 'no_progress', 'spend_rate')),
    reason    text NOT NULL CHECK (char_length(reason) BETWEEN 1 AND 500),
    until     timestamptz,
    parked_at timestamptz NOT NULL,
    told_at   timestamptz                      -- when people were notified and the task was paused, in one transaction
);
CREATE INDEX task_parks_until ON task_parks (until) WHERE until IS NOT NULL;
CREATE INDEX task_parks_untold ON task_parks (task_id) WHERE told_at IS NULL;

-- How a task has been thinking lately, to notice one that goes in circles.
CREATE TABLE task_thinking (
    task_id       uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    digest        bytea NOT NULL,
    repeats       integer NOT NULL,
    progress      bigint NOT NULL,           -- where the task stood when `calls` began
    calls         integer NOT NULL,
    minute        timestamptz NOT NULL,
    minute_micros bigint NOT NULL
) WITH (fillfactor = 50);

-- The beginning of the period that a moment is in.
CREATE FUNCTION budget_period(period text, moment timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE period
        WHEN 'total' THEN timestamptz '2000-01-01 00:00:00+00'
        ELSE date_trunc(period, moment AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' END
$$;

-- Holds back the worst that calls may cost, each or not at all, and says for each which ceiling or park refused it, or that
-- it was routed by what does not hold any more. What is not asked because a ceiling is reached is no turn of a circle: a task
-- that waits for a new period asks the same all the while.
-- Counters are locked in the order of their ids before anything is decided, here and in `settle_calls`.
CREATE FUNCTION reserve_calls(
    calls uuid[], epochs bigint[], users uuid[], projects uuid[], tasks uuid[], digests bytea[], costs bigint[],
    sizes bigint[], facts jsonb[], moment timestamptz, lease interval, most_repeats integer, most_calls integer, most_per_minute bigint
) RETURNS TABLE (stale boolean, budget uuid, park text, park_reason text, park_until timestamptz, park_new boolean)
LANGUAGE plpgsql AS $$
DECLARE
    nowhere CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    latest timestamptz;
    now_epoch bigint;
    stands bigint;
    thinking task_thinking;
    ids uuid[];
    starts timestamptz[];
    full_budget uuid;
BEGIN
    SELECT m.epoch + g.epoch INTO now_epoch FROM models_state m, gate_state g;
    INSERT INTO budgets AS b (budget_id, scope_type, scope_id, period, max_cost_micros, max_tokens, updated_at)
    SELECT gen_random_uuid(), 'task', t.task_id, 'total', t.max_cost_micros, t.max_tokens, moment
    FROM tasks t
    WHERE t.task_id = ANY (reserve_calls.tasks) AND num_nonnulls(t.max_cost_micros, t.max_tokens) > 0
        AND NOT EXISTS (SELECT FROM budgets o
            WHERE o.scope_type = 'task' AND o.scope_id = t.task_id AND o.period = 'total')
    ORDER BY t.task_id
    ON CONFLICT DO NOTHING;
    INSERT INTO budget_counters (budget_id, period_start)
    SELECT b.budget_id, budget_period(b.period, moment) FROM budgets b
    WHERE (b.scope_type, b.scope_id) IN (
            SELECT 'installation', nowhere UNION SELECT 'user', unnest(users)
            UNION SELECT 'project', unnest(projects) UNION SELECT 'task', unnest(reserve_calls.tasks))
        AND NOT EXISTS (SELECT FROM budget_counters c
            WHERE c.budget_id = b.budget_id AND c.period_start = budget_period(b.period, moment))
    ORDER BY b.budget_id
    ON CONFLICT DO NOTHING;
    PERFORM FROM budget_counters c JOIN budgets b USING (budget_id)
    WHERE c.period_start = budget_period(b.period, moment) AND (b.scope_type, b.scope_id) IN (
        SELECT 'installation', nowhere UNION SELECT 'user', unnest(users)
        UNION SELECT 'project', unnest(projects) UNION SELECT 'task', unnest(reserve_calls.tasks))
    ORDER BY c.budget_id
    FOR NO KEY UPDATE OF c;
    FOR i IN 1 .. cardinality(calls) LOOP
        stale := epochs[i] <> now_epoch;
        budget := NULL; park := NULL; park_reason := NULL; park_until := NULL; park_new := false;
        latest := clock_timestamp();
        IF stale THEN
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF tasks[i] IS NOT NULL THEN
            DELETE FROM task_parks p WHERE p.task_id = tasks[i] AND p.until <= moment;
            SELECT p.kind, p.reason, p.until, p.told_at IS NULL INTO park, park_reason, park_until, park_new
            FROM task_parks p WHERE p.task_id = tasks[i];
            IF park IS NOT NULL THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
            park_new := false;
        END IF;
        SELECT array_agg(b.budget_id ORDER BY b.budget_id), array_agg(c.period_start ORDER BY b.budget_id),
            (array_agg(b.budget_id ORDER BY b.budget_id) FILTER (
                WHERE c.spent_micros + c.held_micros + costs[i] > b.max_cost_micros
                    OR c.spent_tokens + c.held_tokens + sizes[i] > b.max_tokens))[1]
        INTO ids, starts, full_budget
        FROM budgets b JOIN budget_counters c ON c.budget_id = b.budget_id
            AND c.period_start = budget_period(b.period, moment)
        WHERE (b.scope_type, b.scope_id) IN (('installation', nowhere), ('user', users[i]),
            ('project', projects[i]), ('task', tasks[i]));
        IF full_budget IS NOT NULL THEN
            budget := full_budget;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF tasks[i] IS NOT NULL THEN
            SELECT coalesce(max(c.sequence), 0) INTO stands FROM workflow_checkpoints c WHERE c.task_id = tasks[i];
            INSERT INTO task_thinking AS t (task_id, digest, repeats, progress, calls, minute, minute_micros)
            VALUES (tasks[i], digests[i], 1, stands, 1, date_trunc('minute', moment), 0)
            ON CONFLICT (task_id) DO UPDATE SET
                repeats = CASE WHEN t.digest = excluded.digest THEN t.repeats + 1 ELSE 1 END,
                digest = excluded.digest,
                calls = CASE WHEN t.progress = excluded.progress THEN t.calls + 1 ELSE 1 END,
                progress = excluded.progress,
                minute_micros = CASE WHEN t.minute = excluded.minute THEN t.minute_micros ELSE 0 END,
                minute = excluded.minute
            RETURNING t.* INTO thinking;
            IF thinking.repeats > most_repeats THEN
                park := 'repeats';
                park_reason := format('the same question was asked %s times in a row', thinking.repeats);
            ELSIF thinking.calls > most_calls THEN
                park := 'no_progress';
                park_reason := format('%s model calls without a step forward', thinking.calls);
            ELSIF thinking.minute_micros > most_per_minute THEN
                park := 'spend_rate';
                park_reason := format('%s millionths were spent within a minute', thinking.minute_micros);
            END IF;
            IF park IS NOT NULL THEN
                park_new := true;
                INSERT INTO task_parks (task_id, kind, reason, parked_at) VALUES (tasks[i], park, park_reason, moment);
                -- Whoever lets it go on begins anew.
                DELETE FROM task_thinking t WHERE t.task_id = tasks[i];
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        UPDATE budget_counters c
        SET held_micros = c.held_micros + costs[i], held_tokens = c.held_tokens + sizes[i]
        FROM unnest(ids, starts) AS held (id, start)
        WHERE c.budget_id = held.id AND c.period_start = held.start;
        INSERT INTO model_reservations (call_id, budgets, periods, micros, tokens, facts, expires_at)
        VALUES (calls[i], coalesce(ids, '{}'), coalesce(starts, '{}'), costs[i], sizes[i], facts[i], latest + lease);
        RETURN NEXT;
    END LOOP;
END
$$;

-- Ends calls: what each held back is given free, what it cost is spent, and its row is written; all of it once. Gives the
-- calls that were still open.
CREATE FUNCTION settle_calls(calls uuid[], costs bigint[], sizes bigint[], ends jsonb[]) RETURNS SETOF uuid
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM budget_counters c
    WHERE (c.budget_id, c.period_start) IN (
        SELECT u.id, u.start FROM model_reservations r, unnest(r.budgets, r.periods) AS u (id, start)
        WHERE r.call_id = ANY (calls))
    ORDER BY c.budget_id, c.period_start
    FOR NO KEY UPDATE;
    RETURN QUERY
    WITH ended AS (
        SELECT * FROM unnest(calls, costs, sizes, ends) AS given (call_id, micros, tokens, facts)
    ), gone AS (
        DELETE FROM model_reservations r USING ended WHERE r.call_id = ended.call_id
        RETURNING r.call_id, r.budgets, r.periods, r.micros AS held_micros, r.tokens AS held_tokens,
            ended.micros, ended.tokens, r.facts || ended.facts AS facts
    ), spent AS (
        UPDATE budget_counters c
        SET spent_micros = c.spent_micros + s.micros, held_micros = c.held_micros - s.held_micros,
            spent_tokens = c.spent_tokens + s.tokens, held_tokens = c.held_tokens - s.held_tokens
        FROM (
            SELECT u.id, u.start, sum(g.micros)::bigint AS micros, sum(g.held_micros)::bigint AS held_micros,
                sum(g.tokens)::bigint AS tokens, sum(g.held_tokens)::bigint AS held_tokens
            FROM gone g, unnest(g.budgets, g.periods) AS u (id, start)
            GROUP BY u.id, u.start
        ) s
        WHERE c.budget_id = s.id AND c.period_start = s.start
    ), thought AS (
        UPDATE task_thinking t SET minute_micros = t.minute_micros + s.micros
        FROM (SELECT (g.facts ->> 'task_id')::uuid AS task_id, sum(g.micros)::bigint AS micros FROM gone g
            WHERE g.facts ->> 'task_id' IS NOT NULL GROUP BY 1) s
        WHERE t.task_id = s.task_id
    ), kept AS (
        INSERT INTO model_calls
        SELECT (jsonb_populate_record(NULL::model_calls, g.facts)).* FROM gone g
    )
    SELECT g.call_id FROM gone g;
END
$$;

-- Ends calls of which nothing was heard: each counts as the worst that it could have cost.
CREATE FUNCTION settle_lost_calls(most integer) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
DECLARE
    lost uuid[];
BEGIN
    SELECT array_agg(call_id) INTO lost FROM (
        SELECT r.call_id FROM model_reservations r WHERE r.expires_at < clock_timestamp()
        ORDER BY r.expires_at LIMIT most) r;
    IF lost IS NULL THEN RETURN; END IF;
    RETURN QUERY SELECT settle_calls(
        array_agg(r.call_id), array_agg(r.micros), array_agg(r.tokens),
        array_agg(jsonb_build_object('outcome', 'lost', 'basis', 'worst_case', 'cost_micros', r.micros,
            'input_tokens', r.facts -> 'input_tokens', 'output_tokens', r.facts -> 'output_tokens')))
    FROM model_reservations r WHERE r.call_id = ANY (lost) AND r.expires_at < clock_timestamp();
END
$$;
