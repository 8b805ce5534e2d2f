//! Compares the budgets with the calls: in every snapshot no budget is exceeded and every amount is the sum of its calls.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::storm::StreamLine;
use crate::gateway::pause;

/// Looks at all ceilings all the time, and in the end compares them with the calls.
#[derive(Args)]
pub(crate) struct Ledger {
    #[arg(long)]
    database_url: String,
    /// Ends the looking when it is there.
    #[arg(long)]
    stop_file: PathBuf,
    /// The log of the storm, to find each of its calls again.
    #[arg(long)]
    log: PathBuf,
    /// How many calls must have been lost, when it is written in this file.
    #[arg(long)]
    lost_file: Option<PathBuf>,
    /// For how many seconds after that calls may still be settled.
    #[arg(long, default_value_t = 60)]
    wait: u64,
}

/// One budget in one period, and the sums of the calls in its scope.
#[derive(Debug, sqlx::FromRow)]
struct Look {
    scope_type: String,
    period: String,
    max_cost_micros: Option<i64>,
    max_tokens: Option<i64>,
    spent_micros: i64,
    reserved_micros: i64,
    spent_tokens: i64,
    reserved_tokens: i64,
    open_calls: i64,
    open_micros: i64,
    open_tokens: i64,
    calls_micros: i64,
    calls_tokens: i64,
}

/// One statement, so that all values come from one snapshot.
const LOOK: &str = "
    SELECT b.scope_type, b.period, b.max_cost_micros, b.max_tokens,
        c.spent_micros, c.reserved_micros, c.spent_tokens, c.reserved_tokens,
        r.open_calls, r.micros AS open_micros, r.tokens AS open_tokens,
        m.micros AS calls_micros, m.tokens AS calls_tokens
    FROM budget_counters c JOIN budgets b USING (budget_id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS open_calls, coalesce(sum(r.cost_micros), 0)::bigint AS micros, coalesce(sum(r.tokens), 0)::bigint AS tokens
        FROM model_reservations r WHERE EXISTS (
            SELECT FROM unnest(r.budget_ids, r.period_starts) AS u (id, start) WHERE u.id = c.budget_id AND u.start = c.period_start)) r
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(m.cost_micros), 0)::bigint AS micros,
            coalesce(sum(m.input_tokens + m.output_tokens), 0)::bigint AS tokens
        FROM model_calls m
        WHERE budget_period_start(b.period, m.started_at) = c.period_start AND CASE b.scope_type
            WHEN 'user' THEN m.user_id = b.scope_id WHEN 'project' THEN m.project_id = b.scope_id
            WHEN 'task' THEN m.task_id = b.scope_id ELSE true END) m";

impl Look {
    /// Returns the inconsistency of the budget, if any.
    fn problem(&self) -> Option<&'static str> {
        let above = |spent: i64, reserved: i64, max: Option<i64>| {
            max.is_some_and(|max| spent + reserved > max)
        };
        if above(self.spent_micros, self.reserved_micros, self.max_cost_micros)
            || above(self.spent_tokens, self.reserved_tokens, self.max_tokens)
        {
            Some("it is above its limit")
        } else if (self.reserved_micros, self.reserved_tokens)
            != (self.open_micros, self.open_tokens)
        {
            Some("what is reserved is not what open calls may cost")
        } else if (self.spent_micros, self.spent_tokens) != (self.calls_micros, self.calls_tokens) {
            Some("what is spent is not what calls have cost")
        } else {
            None
        }
    }
}

#[derive(Default)]
struct LedgerCheck {
    looks: u64,
    /// Maximum reserved amount at one time.
    most_reserved: i64,
    problems: Vec<String>,
}

const SHOWN: usize = 20;

async fn look(conn: &mut PgConnection, seen: &mut LedgerCheck) -> anyhow::Result<Vec<Look>> {
    let looks: Vec<Look> = sqlx::query_as(LOOK).fetch_all(conn).await?;
    seen.looks += 1;
    for look in &looks {
        seen.most_reserved = seen.most_reserved.max(look.open_calls);
        if let Some(problem) = look.problem()
            && seen.problems.len() < SHOWN
        {
            seen.problems.push(format!("{problem}: {look:?}"));
        }
    }
    Ok(looks)
}

pub(crate) async fn run(ledger: Ledger) -> anyhow::Result<bool> {
    let mut conn = PgConnection::connect(&ledger.database_url).await?;
    // JIT compilation takes longer than the query.
    sqlx::query("SET jit = off").execute(&mut conn).await?;
    let mut seen = LedgerCheck::default();
    while !ledger.stop_file.exists() {
        look(&mut conn, &mut seen).await?;
        pause(Duration::from_millis(5)).await;
    }
    let end = Instant::now() + Duration::from_secs(ledger.wait);
    let last = loop {
        let last = look(&mut conn, &mut seen).await?;
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM model_reservations")
            .fetch_one(&mut conn)
            .await?;
        if open == 0 {
            break last;
        }
        if Instant::now() > end {
            seen.problems.push(format!("{open} calls were never settled"));
            break last;
        }
        pause(Duration::from_millis(200)).await;
    };
    let last = if seen.problems.is_empty() { look(&mut conn, &mut seen).await? } else { last };
    for look in last.iter().filter(|it| (it.reserved_micros, it.reserved_tokens) != (0, 0)) {
        seen.problems.push(format!("something is still reserved: {look:?}"));
    }
    let kinds = ["installation", "user", "project", "task"];
    for kind in kinds {
        if !last.iter().any(|look| look.scope_type == kind && look.spent_micros > 0) {
            seen.problems.push(format!("no ceiling of a {kind} was used"));
        }
    }
    compare(&mut conn, &ledger, &mut seen).await?;
    let outcomes: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT outcome, basis, count(*) FROM model_calls GROUP BY 1, 2 ORDER BY 1, 2",
    )
    .fetch_all(&mut conn)
    .await?;
    let outcomes: BTreeMap<_, _> = outcomes
        .into_iter()
        .map(|(outcome, basis, count)| (format!("{outcome} {basis}"), count))
        .collect();
    if let Some(file) = &ledger.lost_file {
        let expected: i64 = std::fs::read_to_string(file)?.trim().parse()?;
        let lost = outcomes.get("lost worst_case").copied().unwrap_or_default();
        if lost != expected {
            seen.problems.push(format!(
                "{lost} calls are lost, and {expected} were under way when their process died"
            ));
        }
    }
    let ceilings: Vec<_> = last
        .iter()
        .map(|look| {
            json!({ "scope": look.scope_type, "period": look.period, "spent_micros": look.spent_micros,
                "max_cost_micros": look.max_cost_micros, "spent_tokens": look.spent_tokens, "max_tokens": look.max_tokens })
        })
        .collect();
    println!(
        "{}",
        json!({ "looks": seen.looks, "most_under_way": seen.most_reserved, "calls": outcomes, "ceilings": ceilings,
            "problems": seen.problems })
    );
    Ok(seen.problems.is_empty())
}

/// Checks that each call id that a client received has one row, and that no call has two.
async fn compare(
    conn: &mut PgConnection,
    ledger: &Ledger,
    seen: &mut LedgerCheck,
) -> anyhow::Result<()> {
    let rows: Vec<(Uuid, i64)> =
        sqlx::query_as("SELECT call_id, count(*) FROM model_calls GROUP BY 1")
            .fetch_all(conn)
            .await?;
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    for (call, _) in rows.iter().filter(|(_, count)| **count != 1) {
        seen.problems.push(format!("call {call} has several rows"));
    }
    let mut named = 0_u64;
    for line in BufReader::new(std::fs::File::open(&ledger.log)?).lines() {
        let line: StreamLine = serde_json::from_str(&line?)?;
        let Some(id) = line.call_id else { continue };
        named += 1;
        let known = id.split_once('_').and_then(|(_, digits)| Uuid::parse_str(digits).ok());
        if !known.is_some_and(|call| rows.contains_key(&call)) && seen.problems.len() < SHOWN {
            seen.problems.push(format!("{id}, which was {}, has no row", line.result));
        }
    }
    if named == 0 {
        seen.problems.push("no call was told its name".to_owned());
    }
    Ok(())
}
