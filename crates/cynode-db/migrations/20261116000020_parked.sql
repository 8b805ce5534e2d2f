-- Tasks that may not think: counted by what was really asked, and told of also if a process dies.

-- When people were told and the task was paused, in one transaction.
ALTER TABLE task_parks ADD COLUMN told_at timestamptz;
UPDATE task_parks SET told_at = parked_at;
CREATE INDEX task_parks_untold ON task_parks (task_id) WHERE told_at IS NULL;

-- Holds back the worst that calls may cost, each or not at all, and says for each which ceiling or park refused it, or that
-- it was routed by what does not hold any more. What is not asked because a ceiling is reached is no turn of a circle: a task
-- that waits for a new period asks the same all the while.
-- Counters are locked in the order of their ids before anything is decided, here and in `settle_calls`.
CREATE OR REPLACE FUNCTION reserve_calls(
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
