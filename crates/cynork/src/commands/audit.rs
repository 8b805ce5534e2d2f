//! `cynork audit`: records of tool calls.

use std::{
    collections::BTreeSet, fmt::Write as _, fs::File, io::Write as _, path::PathBuf,
    time::Duration as Time,
};

use clap::{Args, Subcommand};
use cynode_wire::gate::{AuditProof, AuditReport, AuditView};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given::{self, Moment},
    look::{Look, number, plain},
    operations,
    output::{closed, put, record},
};

#[derive(Subcommand)]
pub(crate) enum Audit {
    /// Lists records of tool calls, newest first. They hold no arguments and no results.
    #[command(after_help = "Example: cynork audit search --project web --decision deny --since 2h")]
    Search {
        #[command(flatten)]
        which: Which,
        /// Most records, 1 to 1000.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Checks every record, chain and signature. It reads everything.
    #[command(after_help = "Example: cynork audit verify")]
    Verify,
    /// Proves that the records of a call are under the installation's signature, for somebody who has only its public key.
    #[command(
        after_help = "Example: cynork audit proof cal_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --json"
    )]
    Proof {
        /// The call.
        call: String,
    },
    /// Writes every record as a line of JSON, newest first, page by page.
    #[command(after_help = "Example: cynork audit export --since 2026-11-01 --output audit.jsonl")]
    Export {
        #[command(flatten)]
        which: Which,
        /// The file; standard output when it is left out.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Which records.
#[derive(Args)]
pub(crate) struct Which {
    /// Only of this project, by name or id; needed unless you may see the whole installation.
    #[arg(long, short)]
    project: Option<String>,
    /// Only of this task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Only of this call.
    #[arg(long, value_name = "ID")]
    call: Option<String>,
    /// Only of this tool.
    #[arg(long)]
    tool: Option<String>,
    /// Only with this decision.
    #[arg(long, value_parser = ["allow", "deny", "needs_approval"])]
    decision: Option<String>,
    /// Only since then: a time, a day, or `2h`, `3d` for so long ago.
    #[arg(long, value_name = "TIME", value_parser = given::moment)]
    since: Option<Moment>,
    /// Only before: a time, a day, or `2h`, `3d` for so long ago.
    #[arg(long, value_name = "TIME", value_parser = given::moment)]
    until: Option<Moment>,
}

/// Most records of a page.
const MOST: usize = 1000;

/// How long it may take to read every record.
const READING: Time = Time::from_mins(15);

/// How long it may take to find what proves one.
const PROVING: Time = Time::from_mins(2);

impl Which {
    /// The call without its end.
    async fn call(&self, context: &Context) -> Result<Call> {
        let project = self.project.as_deref();
        let since = self.since.map(|it| it.written(context.look().now)).transpose()?;
        Ok(Call::of(operations::SEARCH_AUDIT)
            .query("project_id", context.project_id_if(project).await?)
            .query("task_id", context.task_id_if(self.task.as_deref(), project).await?)
            .query("call_id", self.call.as_ref())
            .query("tool", self.tool.as_ref())
            .query("decision", self.decision.as_ref())
            .query("since", since))
    }

    fn until(&self, context: &Context) -> Result<Option<String>> {
        self.until.map(|it| it.written(context.look().now)).transpose()
    }
}

impl Audit {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::Search { which, limit } => {
                let call = which.call(context).await?;
                let call = call.query("until", which.until(context)?).query("limit", Some(limit));
                let heads = ["when", "decision", "tool", "by", "reason", "outcome", "took", "call"];
                context.list(&call, None, |it: &AuditView| it.call_id.to_string(), heads, row).await
            }
            Self::Verify => verify(context).await,
            Self::Proof { call } => {
                let call = Call::to(operations::PROVE_CALL, [&call]);
                let heads = ["record", "signed head", "public key"];
                let name = |it: &AuditProof| plain(&it.record["seq"]);
                let row = |it: &AuditProof, _: &Look| {
                    [plain(&it.record), plain(&it.checkpoint), it.public_key.clone()]
                };
                let value: Value = context.client.send_slowly(&call, PROVING).await?;
                context.table(&value, name, heads, row)
            }
            Self::Export { which, output } => export(context, &which, output).await,
        }
    }
}

async fn verify(context: &Context) -> Result<()> {
    let call = Call::of(operations::VERIFY_AUDIT);
    let value: Value = context.client.send_slowly(&call, READING).await?;
    let names = |it: &AuditReport| vec![it.tip.clone()];
    context.show(&value, names, |it: &AuditReport, look| {
        let records = format!("{}, {} under a signature", it.records, it.covered);
        let mut sides = vec![
            ("chains", format!("{}, {} closed, {} pruned", it.chains, it.closed, it.pruned)),
            ("records", records),
            ("tip", it.tip.clone()),
        ];
        sides.extend(it.problems.iter().map(|problem| ("WRONG", problem.clone())));
        record(look.paint, &sides)
    })?;
    match value["problems"].as_array().map_or(0, Vec::len) {
        0 => Ok(()),
        wrong => {
            let what = format!("{wrong} things are wrong with the records");
            Err(Failure::new(Kind::EndedBadly, what).fix("keep a copy of the database and of the gate's directory, and look who could write there"))
        }
    }
}

fn row(it: &AuditView, look: &Look) -> [String; 8] {
    [
        look.when(it.at),
        look.state(&it.decision),
        look.bold(it.tool.as_deref().unwrap_or(&it.method)),
        it.agent_role.clone().unwrap_or_default(),
        it.reason.clone(),
        it.outcome.clone().unwrap_or_default(),
        match it.duration_us {
            short @ ..10_000 => format!("{} µs", number(short)),
            long => format!("{} ms", number(long / 1000)),
        },
        look.dim(&it.call_id.to_string()),
    ]
}

/// Writes all records. Pages end at times, and several records may have the same: the next page begins at the last time
/// again, and what was written is left out.
async fn export(context: &Context, which: &Which, output: Option<PathBuf>) -> Result<()> {
    let failed = |error: std::io::Error| {
        Failure::new(Kind::Usage, format!("the records cannot be written: {error}"))
    };
    let mut file = output.map(File::create).transpose().map_err(failed)?;
    let call = which.call(context).await?;
    let mut until = which.until(context)?;
    let (mut written, mut seen) = (0_u64, BTreeSet::new());
    loop {
        let page = call.clone().query("until", until.as_ref()).query("limit", Some(MOST));
        let page: Value = context.ask(&page).await?;
        let records = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (mut news, mut lines) = (0, String::new());
        for record in records {
            if seen.insert((record["chain_id"].to_string(), record["seq"].to_string())) {
                let _ = writeln!(lines, "{record}");
                news += 1;
            }
        }
        match &mut file {
            Some(file) => file.write_all(lines.as_bytes()).map_err(failed)?,
            None => put(&lines),
        }
        if closed() {
            return Ok(());
        }
        written += news;
        let last = records.last().and_then(|it| it["at"].as_str());
        let Some(last) = last.filter(|_| records.len() == MOST) else { break };
        if news == 0 {
            let what =
                format!("more than {MOST} records have the time {last}: not all could be read");
            return Err(Failure::new(Kind::EndedBadly, what)
                .fix("export less at once, by --project, --task or --tool"));
        }
        until = Some(behind(last)?);
        // Only records of the last time can come again.
        seen = records
            .iter()
            .filter(|it| it["at"] == last)
            .map(|it| (it["chain_id"].to_string(), it["seq"].to_string()))
            .collect();
    }
    if file.is_some() {
        return context.out.done(&json!({ "records": written }), &format!("{written} records"));
    }
    Ok(())
}

/// The end of the next page: just behind a time.
fn behind(time: &str) -> Result<String> {
    let wrong = |error: String| Failure::internal(format!("a time cannot be read: {error}"));
    let at = OffsetDateTime::parse(time, &Rfc3339).map_err(|error| wrong(error.to_string()))?;
    (at + Duration::microseconds(1)).format(&Rfc3339).map_err(|error| wrong(error.to_string()))
}
