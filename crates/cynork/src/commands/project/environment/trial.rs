//! `cynork project environment try`: follows a trial and shows what came of it.

use cynode_core::{
    environments::EnvironmentSpec,
    evidence::test_results::TestReport,
    nodes::CommandOutcome,
    tasks::TaskStateName,
    workflow::{timeline::WaitEntry, waits::WaitReason},
};
use cynode_wire::{
    delivery::environments::EnvironmentView, nodes::JobEventView, tasks::TaskView,
    workflow::timeline::TaskTimeline,
};
use serde::Serialize;
use serde_json::json;

use super::{fetch_environment, find_proposal};
use crate::{
    client::ApiRequest,
    context::CliContext,
    draw::render_stalls,
    failure::{CliError, CliErrorKind, Result},
    follow::{TaskUpdate, TaskUpdateStream},
    operations,
    output::{CliOutput, CliOutputFormat, print_line, print_stderr_line},
    terminal::{Colorizer, TextStyle, first_line, sanitize_text},
};

/// Maximum number of bytes of a step's output that are kept to suggest a fix.
const MAX_TAIL_BYTES: usize = 16 * 1024;

/// Maximum number of lines of a failed command's output that are shown.
const MAX_SHOWN_LINES: usize = 20;

/// What came of a trial.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct TrialReport {
    task_id: String,
    version: u32,
    succeeded: bool,
    setup: Vec<SetupReport>,
    checks: Vec<CheckReport>,
    /// Why it could not be done as a whole.
    failure: Option<String>,
}

/// What came of a step of the set-up.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
struct SetupReport {
    step: String,
    succeeded: Option<bool>,
    milliseconds: u64,
    fix: Option<String>,
}

/// What came of a check.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct CheckReport {
    command: String,
    exit_code: Option<i32>,
    milliseconds: u64,
    passed: Option<u32>,
    failed: Option<u32>,
    skipped: Option<u32>,
    fix: Option<String>,
}

/// Tries a version and follows its task to the end.
pub(super) async fn try_environment(
    context: &CliContext,
    project: &str,
    number: Option<u32>,
) -> Result<()> {
    let proposal = if number.is_none() { find_proposal(context, project).await? } else { None };
    let value = match proposal {
        Some(proposal) => proposal,
        None => fetch_environment(context, project, number).await?,
    };
    let environment: EnvironmentView = serde_json::from_value(value).map_err(|error| {
        CliError::internal_error(format!("the answer cannot be read: {error}"))
            .with_fix("is this `cynork` as new as the server?")
    })?;
    let call = ApiRequest::with_path_params(operations::TRY_ENVIRONMENT, [project])
        .with_json_body(&json!({ "version": environment.version }));
    let task: TaskView = context.fetch_as(&call).await?;
    let paint = context.out.paint;
    let readable = context.out.form == CliOutputFormat::Readable;
    if readable {
        let line = format!("environment {} is tried by task {}", environment.version, task.name);
        print_line(&paint.apply_style(TextStyle::Dim, &line));
    }
    let mut progress = TrialProgress::default();
    let mut updates = TaskUpdateStream::follow_task(context.client.clone(), task.id.to_string());
    let mut ended = None;
    let mut stalls = Vec::new();
    while let Some(update) = updates.next().await {
        let (lines, alerts) = match update?.news {
            TaskUpdate::Job(update) => (progress.record_event(&update.event, paint), Vec::new()),
            TaskUpdate::Wait(wait) => {
                (Vec::new(), describe_wait(&wait, task.id.to_string().as_str()))
            }
            TaskUpdate::Away(why) => {
                (Vec::new(), vec![format!("the server does not respond: {why}")])
            }
            TaskUpdate::Standing(timeline) => {
                let now = render_stalls(&timeline, paint);
                let is_new = now != stalls;
                stalls.clone_from(&now);
                (Vec::new(), if is_new { now } else { Vec::new() })
            }
            TaskUpdate::Ended(timeline) => {
                ended = Some(timeline);
                break;
            }
            _ => (Vec::new(), Vec::new()),
        };
        for line in lines.iter().filter(|_| readable) {
            print_line(line);
        }
        // A person must see what keeps the trial from its end, in every output mode.
        for line in &alerts {
            if readable {
                print_line(line);
            } else {
                print_stderr_line(&format!("cynork: {line}"));
            }
        }
    }
    let Some(timeline) = ended else {
        return Err(CliError::internal_error("the trial ended without a result"));
    };
    let report = build_report(&environment, &task, &timeline, progress);
    show_report(context, &report)?;
    if report.succeeded {
        return Ok(());
    }
    let number = environment.version;
    Err(CliError::new(CliErrorKind::Failed, format!("environment {number} does not work yet"))
        .with_fix(format!(
            "write it down with `cynork project environment show {number} --json`, mend it and propose it with \
             `cynork project environment set FILE`; `cynork task logs {}` has all output",
            task.id
        )))
}

/// Describes a wait that needs a person.
fn describe_wait(wait: &WaitEntry, task: &str) -> Vec<String> {
    if wait.resolved_at.is_some() {
        return Vec::new();
    }
    match wait.reason {
        WaitReason::Approval => {
            vec![format!("a policy asks for approval: `cynork task approve {task}`")]
        }
        WaitReason::HumanInput => vec![format!("a person is asked: `cynork task answer {task}`")],
        WaitReason::Paused => vec![format!("it is paused: `cynork task resume {task}`")],
        WaitReason::Job | WaitReason::Retry | WaitReason::Quota | WaitReason::Agent => Vec::new(),
    }
}

/// Progress of a trial, from the events of its job.
#[derive(Default)]
struct TrialProgress {
    setup: Vec<SetupReport>,
    /// End of the output of the present step.
    tail: String,
}

impl TrialProgress {
    /// Records an event. Returns the lines that show it.
    fn record_event(&mut self, event: &JobEventView, paint: Colorizer) -> Vec<String> {
        let text = |name: &str| sanitize_text(event.data[name].as_str().unwrap_or_default());
        match event.event.as_str() {
            "setup" => self.record_setup(event, paint),
            "output" => {
                self.tail.push_str(&text("text"));
                let start = self.tail.len().saturating_sub(MAX_TAIL_BYTES);
                let start = self.tail.ceil_char_boundary(start);
                self.tail.drain(..start);
                Vec::new()
            }
            "note" => vec![paint.apply_style(TextStyle::Yellow, &first_line(&text("text")))],
            _ => Vec::new(),
        }
    }

    fn record_setup(&mut self, event: &JobEventView, paint: Colorizer) -> Vec<String> {
        let step = sanitize_text(event.data["step"].as_str().unwrap_or_default());
        let (number, of) = (&event.data["number"], &event.data["of"]);
        let milliseconds = event.data["milliseconds"].as_u64().unwrap_or_default();
        let place = format!("set-up {number} of {of}: {}", first_line(&step));
        let Some(succeeded) = event.data["succeeded"].as_bool() else {
            self.tail.clear();
            return vec![format!("{} {place}", paint.apply_style(TextStyle::Cyan, "▸"))];
        };
        // The result of the job has the whole end of the output; the fix is found there.
        self.setup.push(SetupReport { step, succeeded: Some(succeeded), milliseconds, fix: None });
        let sign = if succeeded {
            paint.apply_style(TextStyle::Green, "✓")
        } else {
            paint.apply_style(TextStyle::Red, "✗")
        };
        let mut lines = vec![format!("{sign} {place} ({})", format_seconds(milliseconds))];
        if !succeeded {
            lines.extend(last_lines(&self.tail));
        }
        lines
    }
}

/// Formats milliseconds as seconds with one decimal.
fn format_seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100)
}

/// Returns the last lines of an output, indented.
fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.len().saturating_sub(MAX_SHOWN_LINES);
    lines.iter().skip(start).map(|line| format!("    {line}")).collect()
}

/// Builds the report from the result of the trial's job.
fn build_report(
    environment: &EnvironmentView,
    task: &TaskView,
    timeline: &TaskTimeline,
    progress: TrialProgress,
) -> TrialReport {
    let result = timeline.units.iter().find_map(|unit| unit.job.as_ref()?.result.clone());
    let result = result.unwrap_or_default();
    let outcomes: Vec<CommandOutcome> =
        serde_json::from_value(result["steps"].clone()).unwrap_or_default();
    let checks: Vec<CheckReport> =
        outcomes.iter().map(|outcome| report_check(&environment.spec, outcome)).collect();
    let succeeded = timeline.state == TaskStateName::Completed;
    let summary = result["summary"].as_str().filter(|it| !it.is_empty()).map(sanitize_text);
    let standing = sanitize_text(&timeline.standing);
    // Failed checks speak for themselves.
    let explained = checks.iter().any(|check| check.exit_code != Some(0));
    let mut setup = progress.setup;
    if let Some(failed) = setup.last_mut().filter(|it| it.succeeded == Some(false)) {
        let said = summary.as_deref().unwrap_or_default();
        failed.fix = suggest_setup_fix(&environment.spec, &failed.step, said);
    }
    let failure = (!succeeded && !explained).then(|| summary.unwrap_or(standing));
    TrialReport {
        task_id: task.id.to_string(),
        version: environment.version,
        succeeded,
        setup,
        checks,
        failure,
    }
}

/// Suggests what would mend the step at which the set-up failed, from the summary of the job: the step, how it ended, and the end of its
/// output.
fn suggest_setup_fix(spec: &EnvironmentSpec, step: &str, summary: &str) -> Option<String> {
    let ended = summary.split_once("`: it ").map_or(summary, |(_, ended)| ended);
    let exit_code = if ended.starts_with("took too long") {
        None
    } else if ended.starts_with("needed too much memory") {
        // As if the kernel had killed it.
        Some(137)
    } else {
        let code = ended.strip_prefix("failed with exit code ").unwrap_or_default();
        let code = code.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
        Some(code.parse().unwrap_or(1))
    };
    cynode_detection::suggest_fix(spec, step, exit_code, ended)
}

fn report_check(spec: &EnvironmentSpec, outcome: &CommandOutcome) -> CheckReport {
    let command = match outcome.argv.as_slice() {
        [shell, flag, line] if shell == "sh" && flag == "-c" => line.clone(),
        argv => argv.join(" "),
    };
    let counts = outcome.tests.as_ref().map(TestReport::counts);
    let fix = if outcome.exit_code == Some(0) {
        None
    } else {
        cynode_detection::suggest_fix(spec, &command, outcome.exit_code, &outcome.output)
    };
    CheckReport {
        command: sanitize_text(&command),
        exit_code: outcome.exit_code,
        milliseconds: outcome.milliseconds,
        passed: counts.map(|it| it.passed),
        failed: counts.map(|it| it.failed),
        skipped: counts.map(|it| it.skipped),
        fix,
    }
}

fn show_report(context: &CliContext, report: &TrialReport) -> Result<()> {
    match context.out.form {
        CliOutputFormat::Json => CliOutput::print_json(report)?,
        CliOutputFormat::Quiet => print_line(&report.task_id),
        CliOutputFormat::Readable => {
            for line in render_report(report, context.out.paint) {
                print_line(&line);
            }
        }
    }
    Ok(())
}

/// Renders the checks of a trial, and what would mend what failed. The set-up was shown as it happened.
fn render_report(report: &TrialReport, paint: Colorizer) -> Vec<String> {
    let mut lines = Vec::new();
    for check in &report.checks {
        let good = check.exit_code == Some(0);
        let sign = if good {
            paint.apply_style(TextStyle::Green, "✓")
        } else {
            paint.apply_style(TextStyle::Red, "✗")
        };
        let counts = match (check.passed, check.failed, check.skipped) {
            (Some(passed), Some(failed), Some(skipped)) => {
                format!(": {passed} passed, {failed} failed, {skipped} skipped")
            }
            _ => String::new(),
        };
        let code = match check.exit_code {
            Some(0) => String::new(),
            Some(code) => format!(", exit code {code}"),
            None => ", a limit ended it".to_owned(),
        };
        lines.push(format!(
            "{sign} {}{counts} ({}{code})",
            first_line(&check.command),
            format_seconds(check.milliseconds)
        ));
    }
    lines.extend(report.failure.iter().map(|failure| paint.apply_style(TextStyle::Red, failure)));
    let fixes = report.setup.iter().map(|it| &it.fix).chain(report.checks.iter().map(|it| &it.fix));
    let mend = |fix: &String| format!("{} {fix}", paint.apply_style(TextStyle::Bold, "mend:"));
    lines.extend(fixes.flatten().map(mend));
    if report.succeeded {
        let tick = paint.apply_style(TextStyle::Green, "✓");
        lines.push(format!("{tick} environment {} works", report.version));
    }
    lines
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    fn setup_event(succeeded: Option<bool>) -> JobEventView {
        JobEventView {
            number: 0,
            at: OffsetDateTime::UNIX_EPOCH,
            at_ms: 0,
            event: "setup".to_owned(),
            data: json!({ "step": "npm ci", "number": 1, "of": 2, "succeeded": succeeded, "milliseconds": 1250 }),
            profile: None,
            trace_id: String::new(),
        }
    }

    #[test]
    fn a_step_of_the_set_up_is_shown_when_it_begins_and_when_it_ends() {
        let paint = Colorizer(false);
        let mut progress = TrialProgress::default();
        assert_eq!(progress.record_event(&setup_event(None), paint), ["▸ set-up 1 of 2: npm ci"]);
        assert!(progress.setup.is_empty());
        assert_eq!(
            progress.record_event(&setup_event(Some(true)), paint),
            ["✓ set-up 1 of 2: npm ci (1.2 s)"]
        );
        let step = SetupReport {
            step: "npm ci".to_owned(),
            succeeded: Some(true),
            milliseconds: 1250,
            fix: None,
        };
        assert_eq!(progress.setup, [step]);
    }

    #[test]
    fn a_failed_set_up_is_mended_by_what_its_output_says_and_not_by_more_time() {
        let spec = EnvironmentSpec { setup: vec!["make".to_owned()], ..EnvironmentSpec::default() };
        let failed = |how: &str| {
            let summary = format!(
                "The set-up of the environment failed at step 1 of 1, `make`: it {how}.\n\nerror: linker `cc` not found"
            );
            suggest_setup_fix(&spec, "make", &summary).unwrap_or_default()
        };
        assert!(failed("failed with exit code 101").contains("build-essential"));
        assert!(failed("took too long").contains("setup_seconds"));
        assert!(failed("needed too much memory").contains("memory_mib"));
    }

    #[test]
    fn checks_are_shown_with_their_counts_and_what_would_mend_them() {
        let check =
            |command: &str, exit_code, counts: Option<u32>, fix: Option<&str>| CheckReport {
                command: command.to_owned(),
                exit_code,
                milliseconds: 2000,
                passed: counts,
                failed: counts.map(|_| 0),
                skipped: counts.map(|_| 1),
                fix: fix.map(str::to_owned),
            };
        let report = TrialReport {
            task_id: "tsk_1".to_owned(),
            version: 3,
            succeeded: false,
            setup: Vec::new(),
            checks: vec![
                check("make test", Some(0), Some(12), None),
                check("make lint", Some(127), None, Some("add the package `lint`")),
                check("make slow", None, None, None),
            ],
            failure: None,
        };
        assert_eq!(
            render_report(&report, Colorizer(false)),
            [
                "✓ make test: 12 passed, 0 failed, 1 skipped (2.0 s)",
                "✗ make lint (2.0 s, exit code 127)",
                "✗ make slow (2.0 s, a limit ended it)",
                "mend: add the package `lint`",
            ]
        );
    }
}
