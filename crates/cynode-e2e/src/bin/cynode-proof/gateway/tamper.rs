//! Changes audit records behind the gateway's back, one value at a time: the verification must detect every change.

use std::{collections::BTreeSet, path::PathBuf, process::Stdio};

use anyhow::{Context, bail, ensure};
use clap::Args;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::Command;
use uuid::Uuid;

/// Changes records one value at a time and sees that the check finds each.
#[derive(Args)]
pub(crate) struct Tamper {
    /// The gateway's database. Nobody else may write to it meanwhile.
    #[arg(long)]
    database_url: String,
    /// The program whose `audit verify` is tried.
    #[arg(long)]
    cynode: PathBuf,
    /// A file that is given to it as `--key`.
    #[arg(long)]
    key: Option<PathBuf>,
    /// How many changes; every column has at least one.
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Decides what is changed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const TABLES: [&str; 3] = ["audit_records", "audit_checkpoints", "audit_chains"];

/// Possible values of columns with few values.
const WORDS: [&str; 16] = [
    "decision",
    "outcome",
    "allow",
    "deny",
    "needs_approval",
    "success",
    "tool_error",
    "protocol_error",
    "timeout",
    "cancelled",
    "disconnected",
    "revoked",
    "not_forwarded",
    "unknown",
    "other",
    "tools/list",
];

#[derive(Clone, Debug, sqlx::FromRow)]
struct Column {
    table: String,
    name: String,
    /// The SQL type, with `[]` for an array.
    kind: String,
    nullable: bool,
}

/// A changed value and its location.
struct Changed {
    partition: i64,
    place: String,
    before: Option<String>,
    after: Option<String>,
}

struct TamperRun {
    conn: PgConnection,
    rng: StdRng,
    tamper: Tamper,
}

pub(crate) async fn run(tamper: Tamper) -> anyhow::Result<bool> {
    let mut conn = PgConnection::connect(&tamper.database_url).await?;
    let columns: Vec<Column> = sqlx::query_as(
        "SELECT c.relname::text AS table, a.attname::text AS name, format_type(a.atttypid, NULL) AS kind,
             NOT a.attnotnull AS nullable
         FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
         WHERE c.oid = ANY ($1::text[]::regclass[]) AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY c.relname, a.attnum",
    )
    .bind(TABLES.map(str::to_owned).to_vec())
    .fetch_all(&mut conn)
    .await?;
    let rng = StdRng::seed_from_u64(tamper.seed);
    let count = tamper.count.max(columns.len());
    let mut attempt = TamperRun { conn, rng, tamper };
    ensure!(attempt.verified().await?, "the records do not pass before anything is changed");

    let mut order = columns.clone();
    order.shuffle(&mut attempt.rng);
    while order.len() < count {
        order.push(columns[attempt.rng.random_range(0..columns.len())].clone());
    }
    let (mut seen, mut problems) = (BTreeSet::new(), Vec::new());
    for column in &order {
        let name = format!("{}.{}", column.table, column.name);
        let changed = attempt.change(column).await.with_context(|| name.clone())?;
        let passed = attempt.verified().await;
        attempt.put_back(column, &changed).await.with_context(|| name.clone())?;
        if passed? {
            let (before, after) = (&changed.before, &changed.after);
            problems.push(format!("{name}: {before:?} became {after:?} and nothing was found"));
        }
        seen.insert(name);
    }
    if !attempt.verified().await? {
        problems.push("the records do not pass after everything was put back".to_owned());
    }
    let found = order.len() - problems.len().min(order.len());
    let report = json!({
        "changes": order.len(), "columns": seen.len(), "found": found, "problems": problems,
    });
    println!("{report}");
    Ok(problems.is_empty())
}

impl TamperRun {
    /// Returns whether `audit verify` finds no problem. A failure to run is an error, not an answer.
    async fn verified(&self) -> anyhow::Result<bool> {
        let mut command = Command::new(&self.tamper.cynode);
        command.args(["audit", "verify"]).env("DATABASE_URL", &self.tamper.database_url);
        if let Some(key) = &self.tamper.key {
            command.arg("--key").arg(key);
        }
        let done = command.stdin(Stdio::null()).output().await?;
        match done.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            other => bail!(
                "audit verify ended with {other:?}: {}",
                String::from_utf8_lossy(&done.stderr)
            ),
        }
    }

    /// Changes the column in some row to a value that the table accepts.
    async fn change(&mut self, column: &Column) -> anyhow::Result<Changed> {
        let Column { table, name, .. } = column;
        let query = format!(
            "SELECT tableoid::bigint, ctid::text, {name}::text FROM {table} ORDER BY random() LIMIT 1"
        );
        let row: Option<(i64, String, Option<String>)> =
            sqlx::query_as(AssertSqlSafe(query)).fetch_optional(&mut self.conn).await?;
        let (partition, place, before) = row.with_context(|| format!("{table} is empty"))?;
        for after in self.candidates(column, before.as_deref()).await? {
            if after == before {
                continue;
            }
            let row = Changed { partition, place: place.clone(), before: before.clone(), after };
            match self.write(column, &row, row.after.as_deref()).await {
                Ok((partition, place)) => return Ok(Changed { partition, place, ..row }),
                // A value that this column cannot have, or not in this row: try the next one.
                Err(sqlx::Error::Database(refused))
                    if refused
                        .code()
                        .is_some_and(|code| code.starts_with("23") || code.starts_with("22")) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("the table takes no other value than {before:?}")
    }

    async fn put_back(&mut self, column: &Column, changed: &Changed) -> anyhow::Result<()> {
        self.write(column, changed, changed.before.as_deref()).await?;
        Ok(())
    }

    /// Writes the value into the row. Returns the row's new location.
    async fn write(
        &mut self,
        column: &Column,
        row: &Changed,
        value: Option<&str>,
    ) -> Result<(i64, String), sqlx::Error> {
        let Column { table, name, kind, .. } = column;
        let query = format!(
            "UPDATE {table} SET {name} = $1::text::{kind} WHERE tableoid::bigint = $2 AND ctid = $3::text::tid
             RETURNING tableoid::bigint, ctid::text"
        );
        sqlx::query_as(AssertSqlSafe(query))
            .bind(value)
            .bind(row.partition)
            .bind(&row.place)
            .fetch_one(&mut self.conn)
            .await
    }

    /// Returns other values that differ as little as possible, in random order.
    async fn candidates(
        &mut self,
        column: &Column,
        before: Option<&str>,
    ) -> anyhow::Result<Vec<Option<String>>> {
        let mut values = match before {
            None => self.instead_of_nothing(&column.kind)?,
            Some(before) => self.near(column, before).await?,
        };
        values.shuffle(&mut self.rng);
        let mut values: Vec<_> = values.into_iter().map(Some).collect();
        if column.nullable && before.is_some() {
            let place = self.rng.random_range(0..=values.len().min(3));
            values.insert(place, None);
        }
        Ok(values)
    }

    fn instead_of_nothing(&mut self, kind: &str) -> anyhow::Result<Vec<String>> {
        let mut bytes = |length| hex(&(0..length).map(|_| self.rng.random()).collect::<Vec<u8>>());
        Ok(match kind {
            "uuid" => vec![Uuid::from_u128(self.rng.random()).to_string()],
            "bigint" => vec!["0".to_owned(), "1".to_owned()],
            "bytea" => vec![bytes(32), bytes(64)],
            "text" => WORDS.map(str::to_owned).to_vec(),
            "timestamp with time zone" => vec!["2026-11-15 12:00:00.000001+00".to_owned()],
            other => bail!("nothing is known of the type {other}"),
        })
    }

    async fn near(&mut self, column: &Column, before: &str) -> anyhow::Result<Vec<String>> {
        Ok(match column.kind.as_str() {
            "uuid" => {
                let bit = self.rng.random_range(0..128);
                vec![Uuid::from_u128(Uuid::parse_str(before)?.as_u128() ^ (1 << bit)).to_string()]
            }
            "bigint" => {
                let number: i64 = before.parse()?;
                [number + 1, number - 1, number + 1_000_000].iter().map(i64::to_string).collect()
            }
            "boolean" => vec![if before == "true" { "false" } else { "true" }.to_owned()],
            "bytea" => (0..3).map(|_| self.flipped(before)).collect(),
            "timestamp with time zone" => {
                let query = "SELECT ($1::text::timestamptz + step)::text
                    FROM unnest('{1 microsecond,-1 microsecond}'::interval[]) AS step";
                sqlx::query_scalar(query).bind(before).fetch_all(&mut self.conn).await?
            }
            "text" => {
                let query = format!(
                    "SELECT DISTINCT {0} FROM {1} WHERE {0} IS NOT NULL LIMIT 20",
                    column.name, column.table
                );
                let mut words: Vec<String> =
                    sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&mut self.conn).await?;
                words.extend(WORDS.map(str::to_owned));
                words.extend((0..8).map(|_| self.letter_changed(before)));
                words
            }
            "text[]" => {
                let query = "SELECT unnest(ARRAY[array_append(list, 'other')::text, trim_array(list, least(1, cardinality(list)))::text,
                    array_append(list, list[1])::text]) FROM (SELECT $1::text::text[] AS list) AS given";
                let lists: Vec<Option<String>> =
                    sqlx::query_scalar(query).bind(before).fetch_all(&mut self.conn).await?;
                lists.into_iter().flatten().filter(|list| !list.contains("NULL")).collect()
            }
            other => bail!("nothing is known of the type {other}"),
        })
    }

    /// Changes one bit of a `\x…` value.
    fn flipped(&mut self, before: &str) -> String {
        let mut digits = before.as_bytes().to_vec();
        let place = self.rng.random_range(2..digits.len());
        let digit = char::from(digits[place]).to_digit(16).unwrap_or_default();
        let other = char::from_digit(digit ^ (1 << self.rng.random_range(0..4)), 16);
        digits[place] = u8::try_from(other.unwrap_or('0')).unwrap_or(b'0');
        String::from_utf8_lossy(&digits).into_owned()
    }

    /// Replaces a letter or digit at a random position by its successor.
    fn letter_changed(&mut self, before: &str) -> String {
        let mut letters = before.as_bytes().to_vec();
        if letters.is_empty() {
            return "a".to_owned();
        }
        let place = self.rng.random_range(0..letters.len());
        letters[place] = match letters[place] {
            b'9' => b'a',
            b'f' => b'0',
            b'z' => b'a',
            letter @ (b'0'..=b'8' | b'a'..=b'e' | b'g'..=b'y') => letter + 1,
            _ => b'a',
        };
        String::from_utf8_lossy(&letters).into_owned()
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\\x{digits}")
}
