//! `cynork audit`: records of tool calls.

use std::{fs::File, io::Write as _, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use cynode_wire::gate::{AuditProof, AuditReport, AuditView};
use serde_json::{Value, json};

use crate::{
    answers::Pages,
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
        #[command(flatten)]
        pages: Pages,
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
const READING: Duration = Duration::from_mins(15);

/// How long it may take to find what proves one.
const PROVING: Duration = Duration::from_mins(2);

impl Which {
    /// The call, without which part of the list.
    async fn call(&self, context: &Context) -> Result<Call> {
        let project = self.project.as_deref();
        let written =
            |moment: Option<Moment>| moment.map(|it| it.written(context.look().now)).transpose();
        Ok(Call::of(operations::SEARCH_AUDIT)
            .query("project_id", context.project_id_if(project).await?)
            .query("task_id", context.task_id_if(self.task.as_deref(), project).await?)
            .query("call_id", self.call.as_ref())
            .query("tool", self.tool.as_ref())
            .query("decision", self.decision.as_ref())
            .query("since", written(self.since)?)
            .query("until", written(self.until)?))
    }
}

impl Audit {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::Search { which, pages } => {
                let call = which.call(context).await?;
                let heads = ["when", "decision", "tool", "by", "reason", "outcome", "took", "call"];
                let name = |it: &AuditView| it.call_id.to_string();
                context.list(&call, Some(&pages), name, heads, row).await
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
    context.show(&value, names, |it: &AuditReport, look| record(look.paint, &found(it)))?;
    match value["problems"].as_array().map_or(0, Vec::len) {
        0 => Ok(()),
        wrong => {
            let what = format!("{wrong} things are wrong with the records");
            Err(Failure::new(Kind::EndedBadly, what).fix("keep a copy of the database and of the gate's directory, and look who could write there"))
        }
    }
}

/// What was found, and what it comes to.
fn found(report: &AuditReport) -> Vec<(&'static str, String)> {
    let AuditReport { chains, pruned, closed, records, covered, tip, problems } = report;
    let mut sides = vec![
        ("chains", format!("{chains}, {closed} closed, {pruned} pruned")),
        ("records", format!("{records}, {covered} under a signature")),
        ("tip", format!("{tip}\nkeep it elsewhere to notice a chain that is cut off")),
    ];
    if problems.is_empty() {
        sides.push(("so", "everything is there and unchanged".to_owned()));
    }
    sides.extend(problems.iter().map(|problem| ("WRONG", problem.clone())));
    sides
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

/// Writes all records, page by page.
async fn export(context: &Context, which: &Which, output: Option<PathBuf>) -> Result<()> {
    let failed = |error: std::io::Error| {
        Failure::new(Kind::Usage, format!("the records cannot be written: {error}"))
    };
    let mut file = output.map(File::create).transpose().map_err(failed)?;
    let call = which.call(context).await?.query("limit", Some(MOST));
    let (mut written, mut cursor) = (0, None::<String>);
    loop {
        let page: Value = context.ask(&call.clone().query("cursor", cursor.as_ref())).await?;
        let records = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        match &mut file {
            Some(file) => file.write_all(lines.as_bytes()).map_err(failed)?,
            None => put(&lines),
        }
        if closed() {
            return Ok(());
        }
        written += records.len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    if file.is_some() {
        return context.out.done(&json!({ "records": written }), &format!("{written} records"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_checked_has_a_verdict() {
        let report = |problems: &[&str]| AuditReport {
            chains: 1,
            pruned: 0,
            closed: 0,
            records: 252,
            covered: 148,
            tip: "1:08a0".to_owned(),
            problems: problems.iter().map(|it| (*it).to_owned()).collect(),
        };
        let same = [
            ("chains", "1, 0 closed, 0 pruned".to_owned()),
            ("records", "252, 148 under a signature".to_owned()),
            ("tip", "1:08a0\nkeep it elsewhere to notice a chain that is cut off".to_owned()),
        ];
        let with = |name: &'static str, text: &str| {
            let mut sides = same.to_vec();
            sides.push((name, text.to_owned()));
            sides
        };
        assert_eq!(found(&report(&[])), with("so", "everything is there and unchanged"));
        assert_eq!(
            found(&report(&["record 7 was changed"])),
            with("WRONG", "record 7 was changed")
        );
    }
}
