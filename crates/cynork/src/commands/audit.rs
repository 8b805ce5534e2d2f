//! `cynork audit`: audit records of tool calls and privileged events.

use std::{fs::File, io::Write as _, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use cynode_wire::tools::{
    AuditProof, AuditReport, AuditView,
    audit::{AuditConsistency, AuditHead, AuditHeads},
};
use serde_json::{Value, json};

use super::audit_sink::AuditSinkCommand;
use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, group_digits, to_plain_text},
    input::{self, TimeArgument},
    operations::{self, Operation},
    output::{is_stdout_closed, render_record, render_table, write_stdout},
};

#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Search audit records of tool calls, newest first. Records hold neither arguments nor results.
    #[command(after_help = "Example: cynork audit search --project web --decision deny --since 2h")]
    Search {
        #[command(flatten)]
        which: AuditSearchArgs,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Verify every record, hash chain and signature; reads the whole log.
    #[command(after_help = "Example: cynork audit verify")]
    Verify,
    /// Print a proof that the records of a call are signed, which anyone can check with the public key.
    #[command(
        after_help = "Example: cynork audit prove cal_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --json"
    )]
    Prove {
        /// Call id.
        call: String,
    },
    /// Export every record as a line of JSON, newest first.
    #[command(after_help = "Example: cynork audit export --since 2026-11-01 --output audit.jsonl")]
    Export {
        #[command(flatten)]
        which: AuditSearchArgs,
        /// Output file; defaults to standard output.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show the newest signed head of each chain of records, and the public key. Keep them elsewhere to notice what is cut off.
    #[command(after_help = "Example: cynork audit head --json")]
    Head {
        /// Filter by chain id.
        #[arg(long, value_name = "ID")]
        chain: Option<String>,
    },
    /// Print a proof that a chain was only appended to since an earlier head; fails when it was cut off.
    #[command(
        after_help = "Example: cynork audit consistency chn_0192d5c8b6f07cc1a1a3c2b4d5e6f708 1200 --json"
    )]
    Consistency {
        /// Chain id.
        chain: String,
        /// Number of records of the earlier head.
        from: u64,
        /// Number of records of the later head; defaults to the newest.
        #[arg(long)]
        to: Option<u64>,
    },
    /// Export records with the signed heads and proofs that cover them, as lines of JSON that anyone can check with the public key.
    #[command(after_help = "Example: cynork audit bundle --since 2026-11-01 --output audit.ndjson")]
    Bundle {
        #[command(flatten)]
        which: AuditSearchArgs,
        /// Maximum number of records, 1 to 5000; the newest are exported.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=5000))]
        limit: u16,
        /// Output file; defaults to standard output.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Manage sinks: receivers of audit records outside of the installation.
    #[command(subcommand)]
    Sink(AuditSinkCommand),
}

/// Filters of records.
#[derive(Args)]
pub(crate) struct AuditSearchArgs {
    /// Filter by project, by name or id; required unless you may see the whole installation.
    #[arg(long, short)]
    project: Option<String>,
    /// Filter by task, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Filter by call id.
    #[arg(long, value_name = "ID")]
    call: Option<String>,
    /// Filter by tool.
    #[arg(long)]
    tool: Option<String>,
    /// Filter by policy decision.
    #[arg(long, value_parser = ["allow", "deny", "needs_approval"])]
    decision: Option<String>,
    /// Start time: a time, a day, or a duration ago such as `2h` or `3d`.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    since: Option<TimeArgument>,
    /// End time, exclusive: a time, a day, or a duration ago such as `2h` or `3d`.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    until: Option<TimeArgument>,
}

/// Maximum number of records on a page.
const MAX_PAGE_RECORDS: usize = 1000;

/// Timeout of the verification, which reads every record.
const VERIFY_TIMEOUT: Duration = Duration::from_mins(15);

/// Timeout of a proof of inclusion.
const PROOF_TIMEOUT: Duration = Duration::from_mins(2);

impl AuditSearchArgs {
    /// Builds the request of an operation that searches, without its page.
    async fn build_search_call(
        &self,
        context: &CliContext,
        operation: Operation,
    ) -> Result<ApiRequest> {
        let project = self.project.as_deref();
        let written = |moment: Option<TimeArgument>| {
            moment.map(|it| it.to_rfc3339(context.value_formatter().now)).transpose()
        };
        Ok(ApiRequest::for_operation(operation)
            .with_query("project_id", context.optional_project_id(project).await?)
            .with_query("task_id", context.optional_task_id(self.task.as_deref(), project).await?)
            .with_query("call_id", self.call.as_ref())
            .with_query("tool", self.tool.as_ref())
            .with_query("decision", self.decision.as_ref())
            .with_query("since", written(self.since)?)
            .with_query("until", written(self.until)?))
    }
}

impl AuditCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Search { which, pages } => {
                let call = which.build_search_call(context, operations::SEARCH_AUDIT).await?;
                let heads = ["when", "decision", "tool", "by", "reason", "outcome", "took", "call"];
                let name = |it: &AuditView| it.call_id.to_string();
                context.show_list(&call, Some(&pages), name, heads, audit_row).await
            }
            Self::Verify => verify_records(context).await,
            Self::Prove { call } => {
                let call = ApiRequest::with_path_params(operations::PROVE_CALL, [&call]);
                let heads = ["record", "signed head", "public key"];
                let name = |it: &AuditProof| to_plain_text(&it.record["seq"]);
                let row = |it: &AuditProof, _: &ValueFormatter| {
                    [
                        to_plain_text(&it.record),
                        to_plain_text(&it.checkpoint),
                        it.public_key.clone(),
                    ]
                };
                let value: Value = context.client.send_with_timeout(&call, PROOF_TIMEOUT).await?;
                context.show_table(&value, name, heads, row)
            }
            Self::Export { which, output } => export_records(context, &which, output).await,
            Self::Head { chain } => {
                let call = ApiRequest::for_operation(operations::AUDIT_HEADS)
                    .with_query("chain", chain.as_ref());
                let value = context.send_request(&call).await?;
                let names = |it: &AuditHeads| {
                    it.heads.iter().map(|head| head.chain_id.clone()).collect::<Vec<_>>()
                };
                context.show_answer(&value, names, render_heads)
            }
            Self::Consistency { chain, from, to } => {
                let call = ApiRequest::for_operation(operations::AUDIT_CONSISTENCY)
                    .with_query("chain", Some(&chain))
                    .with_query("from", Some(from))
                    .with_query("to", to);
                let value: Value = context.client.send_with_timeout(&call, PROOF_TIMEOUT).await?;
                let names = |it: &AuditConsistency| vec![it.chain_id.clone()];
                context.show_answer(&value, names, |it: &AuditConsistency, look| {
                    render_record(look.paint, &consistency_fields(it))
                })
            }
            Self::Bundle { which, limit, output } => {
                let call = which.build_search_call(context, operations::EXPORT_AUDIT).await?;
                let text =
                    context.client.fetch_text(&call.with_query("limit", Some(limit))).await?;
                write_bundle(context, &text, output)
            }
            Self::Sink(command) => command.run(context).await,
        }
    }
}

async fn verify_records(context: &CliContext) -> Result<()> {
    let call = ApiRequest::for_operation(operations::VERIFY_AUDIT);
    let value: Value = context.client.send_with_timeout(&call, VERIFY_TIMEOUT).await?;
    let names = |it: &AuditReport| vec![it.head.clone()];
    context.show_answer(&value, names, |it: &AuditReport, look| {
        render_record(look.paint, &audit_report_fields(it))
    })?;
    match value["problems"].as_array().map_or(0, Vec::len) {
        0 => Ok(()),
        wrong => {
            let what = format!("{wrong} things are wrong with the records");
            Err(CliError::new(CliErrorKind::Failed, what).with_fix("keep a copy of the database and of the gate's directory, and look who could write there"))
        }
    }
}

/// Returns the findings and the conclusion of a verification.
fn audit_report_fields(report: &AuditReport) -> Vec<(&'static str, String)> {
    let AuditReport { chains, pruned, closed, records, covered, dropped_events, head, problems } =
        report;
    let mut sides = vec![
        ("chains", format!("{chains}, {closed} closed, {pruned} pruned")),
        ("records", format!("{records}, {covered} under a signature")),
    ];
    if *dropped_events > 0 {
        sides.push((
            "not compared",
            format!("{dropped_events} records of events in dropped months"),
        ));
    }
    sides.push(("head", format!("{head}\nkeep it elsewhere to notice a chain that is cut off")));
    if problems.is_empty() {
        sides.push(("so", "everything is there and unchanged".to_owned()));
    }
    sides.extend(problems.iter().map(|problem| ("WRONG", problem.clone())));
    sides
}

fn audit_row(it: &AuditView, look: &ValueFormatter) -> [String; 8] {
    [
        look.format_relative_time(it.at),
        look.style_state(&it.decision),
        look.style_bold(it.tool.as_deref().unwrap_or(&it.method)),
        it.agent_role.clone().unwrap_or_default(),
        it.reason.clone(),
        it.outcome.clone().unwrap_or_default(),
        match it.duration_us {
            short @ ..10_000 => format!("{} µs", group_digits(short)),
            long => format!("{} ms", group_digits(long / 1000)),
        },
        look.style_dim(&it.call_id.to_string()),
    ]
}

/// Writes all records, page by page.
async fn export_records(
    context: &CliContext,
    which: &AuditSearchArgs,
    output: Option<PathBuf>,
) -> Result<()> {
    let failed = |error: std::io::Error| {
        CliError::new(CliErrorKind::Usage, format!("the records cannot be written: {error}"))
    };
    let mut file = output.map(File::create).transpose().map_err(failed)?;
    let call = which
        .build_search_call(context, operations::SEARCH_AUDIT)
        .await?
        .with_query("limit", Some(MAX_PAGE_RECORDS));
    let (mut written, mut cursor) = (0, None::<String>);
    loop {
        let page: Value =
            context.send_request(&call.clone().with_query("cursor", cursor.as_ref())).await?;
        let records = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        match &mut file {
            Some(file) => file.write_all(lines.as_bytes()).map_err(failed)?,
            None => write_stdout(&lines),
        }
        if is_stdout_closed() {
            return Ok(());
        }
        written += records.len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    if file.is_some() {
        return context
            .out
            .print_success(&json!({ "records": written }), &format!("{written} records"));
    }
    Ok(())
}

/// Writes an export to a file or to standard output, unchanged.
fn write_bundle(context: &CliContext, text: &str, output: Option<PathBuf>) -> Result<()> {
    let Some(path) = output else {
        write_stdout(text);
        return Ok(());
    };
    std::fs::write(path, text).map_err(|error| {
        CliError::new(CliErrorKind::Usage, format!("the records cannot be written: {error}"))
    })?;
    let end: Value =
        text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let (records, proven) = (to_plain_text(&end["records"]), to_plain_text(&end["proven"]));
    context.out.print_success(&end, &format!("{records} records, {proven} with a proof"))
}

fn render_heads(it: &AuditHeads, look: &ValueFormatter) -> String {
    let row = |head: &AuditHead| {
        let signed = head.checkpoint.as_ref();
        [
            head.chain_id.clone(),
            look.format_relative_time(head.started_at),
            signed.map(|signed| signed.size.to_string()).unwrap_or_default(),
            signed.map(|signed| look.format_yes_no(signed.closed)).unwrap_or_default(),
            signed.map(|signed| look.format_relative_time(signed.at)).unwrap_or_default(),
            signed.map(|signed| signed.root.clone()).unwrap_or_default(),
        ]
    };
    let heads = ["chain", "began", "records", "closed", "signed", "root"];
    let table = render_table(look.paint, heads, it.heads.iter().map(row).collect());
    let keys = [("public key", it.public_key.clone()), ("head", it.registry_head.clone())];
    format!("{table}\n\n{}", render_record(look.paint, &keys))
}

fn consistency_fields(it: &AuditConsistency) -> Vec<(&'static str, String)> {
    vec![
        ("chain", it.chain_id.clone()),
        ("from", it.from.to_string()),
        ("to", it.to.to_string()),
        ("root", it.checkpoint.root.clone()),
        ("proof", it.path.join("\n")),
        ("public key", it.public_key.clone()),
        (
            "check it",
            "compute both roots from the proof: docs/reference/audit-proofs.md".to_owned(),
        ),
    ]
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
            dropped_events: 0,
            head: "1:08a0".to_owned(),
            problems: problems.iter().map(|it| (*it).to_owned()).collect(),
        };
        let same = [
            ("chains", "1, 0 closed, 0 pruned".to_owned()),
            ("records", "252, 148 under a signature".to_owned()),
            ("head", "1:08a0\nkeep it elsewhere to notice a chain that is cut off".to_owned()),
        ];
        let with = |name: &'static str, text: &str| {
            let mut sides = same.to_vec();
            sides.push((name, text.to_owned()));
            sides
        };
        assert_eq!(
            audit_report_fields(&report(&[])),
            with("so", "everything is there and unchanged")
        );
        assert_eq!(
            audit_report_fields(&report(&["record 7 was changed"])),
            with("WRONG", "record 7 was changed")
        );
    }
}
