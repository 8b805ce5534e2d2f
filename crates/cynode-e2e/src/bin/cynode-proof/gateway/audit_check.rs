//! Compares the log of a storm with the audit records: each answered call has exactly the records that it must have.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{BufRead, BufReader},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{
    pause,
    storm::{CallEnd, CallKind, CallLine},
};

/// Compares the log of a storm with the records.
#[derive(Args)]
pub(crate) struct AuditCheck {
    /// The log.
    #[arg(long)]
    log: PathBuf,
    /// The gateway's database.
    #[arg(long)]
    database_url: String,
    /// Only calls with this token: `agt_…`.
    #[arg(long)]
    agent_token: Option<String>,
    /// An outcome that must have come up: `unknown`, say. May be given again.
    #[arg(long)]
    expect: Vec<String>,
    /// For how many seconds records may still come in.
    #[arg(long, default_value_t = 10)]
    wait: u64,
}

/// Maximum number of problems that are printed.
const SHOWN: usize = 50;

/// The compared part of an audit record.
#[derive(Clone, Debug, sqlx::FromRow)]
struct Record {
    call_id: Uuid,
    phase: String,
    decision: String,
    reason: String,
    outcome: Option<String>,
}

/// All sequence numbers of one chain.
#[derive(Debug, sqlx::FromRow)]
struct Chain {
    id: Uuid,
    records: i64,
    different: i64,
    first: i64,
    last: i64,
}

struct Table {
    calls: HashMap<Uuid, Vec<Record>>,
    chains: Vec<Chain>,
}

pub(crate) async fn run(check: AuditCheck) -> anyhow::Result<bool> {
    let mut lines = Vec::new();
    for line in BufReader::new(std::fs::File::open(&check.log)?).lines() {
        lines.push(serde_json::from_str::<CallLine>(&line?)?);
    }
    let token = check.agent_token.as_deref().map(|id| parse(id, "agt_")).transpose()?;
    let end = Instant::now() + Duration::from_secs(check.wait);
    let mut conn = PgConnection::connect(&check.database_url).await?;
    loop {
        let table = Table::read(&mut conn, token).await?;
        let mut found = compare(&lines, &table);
        for outcome in check.expect.iter().filter(|outcome| !found.outcomes.contains_key(*outcome))
        {
            found.problems.push(format!("S003-15: no call ended as {outcome}"));
        }
        if found.problems.is_empty() || Instant::now() > end {
            println!("{}", found.report());
            return Ok(found.problems.is_empty());
        }
        pause(Duration::from_millis(500)).await;
    }
}

fn parse(id: &str, prefix: &str) -> anyhow::Result<Uuid> {
    let digits = id.strip_prefix(prefix).filter(|digits| digits.len() == 32);
    digits
        .and_then(|digits| Uuid::parse_str(digits).ok())
        .with_context(|| format!("an id is `{prefix}` and 32 digits, not `{id}`"))
}

impl Table {
    async fn read(conn: &mut PgConnection, token: Option<Uuid>) -> anyhow::Result<Self> {
        let records: Vec<Record> = sqlx::query_as(
            "SELECT call_id, phase, decision, reason, outcome FROM audit_records
             WHERE method = 'tools/call' AND ($1::uuid IS NULL OR agent_token_id = $1)",
        )
        .bind(token)
        .fetch_all(&mut *conn)
        .await?;
        let chains = sqlx::query_as(
            "SELECT chain_id AS id, count(*) AS records, count(DISTINCT seq) AS different, min(seq) AS first, max(seq) AS last
             FROM audit_records GROUP BY chain_id",
        )
        .fetch_all(&mut *conn)
        .await?;
        let mut calls: HashMap<Uuid, Vec<Record>> = HashMap::new();
        for record in records {
            calls.entry(record.call_id).or_default().push(record);
        }
        Ok(Self { calls, chains })
    }
}

#[derive(Default)]
struct AuditComparison {
    answered: usize,
    cut_off: usize,
    never_sent: usize,
    /// Refusals and failures that state themselves that nothing could be recorded.
    unrecorded: usize,
    in_table: usize,
    unknown: usize,
    outcomes: BTreeMap<String, usize>,
    problems: Vec<String>,
}

impl AuditComparison {
    fn report(&self) -> serde_json::Value {
        json!({
            "answered": self.answered, "in_table": self.in_table, "cut_off": self.cut_off,
            "never_sent": self.never_sent, "unrecorded": self.unrecorded, "unknown": self.unknown,
            "outcomes": self.outcomes, "problem_count": self.problems.len(),
            "problems": self.problems.iter().take(SHOWN).collect::<Vec<_>>(),
        })
    }
}

fn compare(lines: &[CallLine], table: &Table) -> AuditComparison {
    let mut found = AuditComparison { in_table: table.calls.len(), ..AuditComparison::default() };
    let mut named = HashSet::new();
    for line in lines {
        match line.result {
            CallEnd::NeverSent => found.never_sent += 1,
            CallEnd::CutOff => found.cut_off += 1,
            CallEnd::Answered => {
                found.answered += 1;
                match answered(line, table, &mut named) {
                    Ok(Recorded::Yes) => {}
                    Ok(Recorded::CouldNot) => found.unrecorded += 1,
                    Err(problem) => found.problems.push(format!("call {}: {problem}", line.n)),
                }
            }
        }
    }
    for (call, records) in &table.calls {
        if let Err(problem) = consistent(records) {
            found.problems.push(format!("cal_{}: {problem}", call.simple()));
        }
        for record in records {
            let Some(outcome) = &record.outcome else { continue };
            found.unknown += usize::from(outcome == "unknown");
            *found.outcomes.entry(outcome.clone()).or_default() += 1;
        }
    }
    // Calls without an answer were cut off; some of them arrived too late to be recorded at all.
    let rest = table.calls.keys().filter(|call| !named.contains(*call)).count();
    if rest > found.cut_off {
        let more =
            format!("{rest} calls got no answer in the log, where {} were cut off", found.cut_off);
        found.problems.push(more);
    }
    for chain in &table.chains {
        let whole =
            chain.first == 0 && chain.last == chain.records - 1 && chain.different == chain.records;
        if !whole {
            found.problems.push(format!(
                "chain {}: {} records at {} places from {} to {}",
                chain.id, chain.records, chain.different, chain.first, chain.last
            ));
        }
    }
    found
}

/// Whether an answer implies records.
enum Recorded {
    Yes,
    CouldNot,
}

fn answered(line: &CallLine, table: &Table, named: &mut HashSet<Uuid>) -> Result<Recorded, String> {
    let answer = line.answer.as_deref().unwrap_or_default();
    let Some(id) = &line.call_id else {
        // Only an answer that reports unavailability may lack a call id.
        let may = matches!(answer, "refused:audit_unavailable" | "error:503");
        return if may { Ok(Recorded::CouldNot) } else { Err(format!("{answer} without a name")) };
    };
    let call = parse(id, "cal_").map_err(|error| error.to_string())?;
    if !named.insert(call) {
        return Err(format!("{id} is the name of two calls"));
    }
    let Some(records) = table.calls.get(&call) else {
        let may = answer == "refused:audit_unavailable";
        return if may {
            Ok(Recorded::CouldNot)
        } else {
            Err(format!("S003-03, S003-13: {answer}, and no record of {id}"))
        };
    };
    let wrong = || {
        format!(
            "S003-14, S003-15: {:?} was answered with {answer}, and recorded is {}",
            line.kind,
            describe_records(records)
        )
    };
    let decision = records.iter().find(|record| record.phase == "decision").ok_or_else(wrong)?;
    let outcome = records.iter().find(|record| record.phase == "outcome");
    let right = match answer.split_once(':') {
        // A call may also be refused after it has started.
        Some(("refused", code)) => match outcome {
            None => decision.decision != "allow" && decision.reason == code,
            Some(outcome) => decision.decision == "allow" && is(outcome, &["revoked"]),
        },
        _ => match outcome {
            None => false,
            Some(outcome) => decision.decision == "allow" && fits(line.kind, answer, outcome),
        },
    };
    if right { Ok(Recorded::Yes) } else { Err(wrong()) }
}

/// Returns whether a recorded outcome matches the answer to the caller.
fn fits(kind: CallKind, answer: &str, outcome: &Record) -> bool {
    match (kind, answer) {
        (_, "success") => is(outcome, &["success"]),
        (CallKind::Timeout, _) => is(outcome, &["timeout"]),
        (_, error) if error.starts_with("error:") => is(outcome, &["protocol_error", "timeout"]),
        _ => is(outcome, &["tool_error"]),
    }
}

fn is(record: &Record, outcomes: &[&str]) -> bool {
    record.outcome.as_deref().is_some_and(|outcome| outcomes.contains(&outcome))
}

/// Checks that these can be all records of one call: a refusal alone, or a permission and its outcome.
fn consistent(records: &[Record]) -> Result<(), String> {
    let (decisions, outcomes): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.phase == "decision");
    let good = match (&decisions[..], &outcomes[..]) {
        ([refused], []) => refused.decision != "allow" && is(refused, &["not_forwarded"]),
        ([allowed], [ended]) => {
            allowed.decision == "allow"
                && allowed.outcome.is_none()
                && ended.decision == "allow"
                && ended.outcome.is_some()
        }
        _ => false,
    };
    if good { Ok(()) } else { Err(format!("its records are {}", describe_records(records))) }
}

fn describe_records(records: &[Record]) -> String {
    let each = records.iter().map(|record| {
        let outcome = record.outcome.as_deref().unwrap_or("-");
        format!("{} {} {} {outcome}", record.phase, record.decision, record.reason)
    });
    each.collect::<Vec<_>>().join(", ")
}
