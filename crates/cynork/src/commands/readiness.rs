//! Readiness: `cynork status` shows it, and `cynork run` checks it before it creates a task.

use std::{fmt::Write as _, time::Duration};

use clap::Args;
use cynode_core::ids::ProjectId;
use cynode_wire::platform::health::{
    Diagnosis, DiagnosisCheck, DiagnosisState, HealthStatus, Readiness, ReadinessCheck,
    ReadinessStatus,
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};

use super::task::fetch_project;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations,
    terminal::{Colorizer, TextStyle},
};

/// How long to wait for programs of a starting installation, and the interval of checks.
const START_TIMEOUT: Duration = Duration::from_secs(8);
const READINESS_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Checks that pass by themselves within seconds while an installation starts, or after an agent was installed.
const STARTUP_CHECKS: [&str; 6] = ["engine", "runner", "manager", "analyst", "nodes", "agents"];

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Project to check, by id or name; defaults to the project of the current repository, then to the installation alone.
    #[arg(long, short)]
    project: Option<String>,
}

impl StatusArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let health: HealthStatus =
            context.client.send(&ApiRequest::for_operation(operations::HEALTHZ)).await?;
        let named = self.project.is_some();
        let meant = context.resolve_project(self.project, std::path::Path::new("."));
        let project = match meant.filter(|_| context.client.has_token()) {
            Some(meant) => match fetch_project(context, &meant).await {
                Ok(found) => Some(found),
                Err(failure) if named => return Err(failure),
                // In a repository without a named project, the subject is the installation.
                Err(_) => None,
            },
            None => None,
        };
        let (ready, whole) = poll_until_settled(context, project.as_ref().map(|it| it.id)).await?;
        let slug = project.map(|project| project.slug.to_string());
        let value = json!({ "url": context.client.base_url(), "version": health.version, "ready": ready.ready,
            "project": slug, "checks": ready.checks, "logged_in": context.client.has_token() });
        context.out.print_answer(
            &value,
            |_| vec![if ready.ready { "ready" } else { "not ready" }.to_owned()],
            |_, paint| {
                let word = if ready.ready {
                    paint.apply_style(TextStyle::Green, "ready")
                } else {
                    paint.apply_style(TextStyle::Red, "not ready")
                };
                let about = slug.as_ref().map(|slug| format!(", project {slug}"));
                let (version, base) = (&health.version, context.client.base_url());
                let mut text =
                    format!("CyNode {version} at {base}{}: {word}\n", about.unwrap_or_default());
                for check in &ready.checks {
                    text.push_str(&render_check(check, paint));
                }
                if !whole {
                    text.push_str(
                        "   only what everybody may see; log in with `cynork login` for the rest\n",
                    );
                }
                text
            },
        )?;
        if ready.ready {
            return Ok(());
        }
        let failed = ready.checks.iter().filter(|check| check.status == ReadinessStatus::Failed);
        let names: Vec<_> = failed.map(|check| check.name.as_str()).collect();
        let failure = format!("the installation is not ready: {}", names.join(", "));
        Err(CliError::new(CliErrorKind::Failed, failure))
    }
}

/// Shows what the server found out about its installation. Fails when a check fails.
pub(crate) async fn show_diagnosis(context: &CliContext) -> Result<()> {
    let call = ApiRequest::for_operation(operations::DIAGNOSE);
    let diagnosis: Diagnosis = context.client.send(&call).await?;
    context.out.print_answer(
        &diagnosis,
        |it| it.checks.iter().map(|check| check.name.clone()).collect(),
        |it, paint| it.checks.iter().map(|check| render_diagnosis(check, paint)).collect(),
    )?;
    let failed = diagnosis.checks.iter().filter(|check| check.state == DiagnosisState::Fail);
    let names: Vec<_> = failed.map(|check| check.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(CliError::new(CliErrorKind::Failed, format!("checks fail: {}", names.join(", "))))
}

/// Renders a check of a diagnosis with its fix below it.
fn render_diagnosis(check: &DiagnosisCheck, paint: Colorizer) -> String {
    let (mark, style) = match check.state {
        DiagnosisState::Ok => ("✓", TextStyle::Green),
        DiagnosisState::Unknown => ("?", TextStyle::Dim),
        DiagnosisState::Warn => ("!", TextStyle::Yellow),
        DiagnosisState::Fail => ("✗", TextStyle::Red),
    };
    let head = format!(" {} {}  {}\n", paint.apply_style(style, mark), check.name, check.detail);
    head + &render_fix(check.fix.as_deref(), &check.commands, paint)
}

/// Polls until starting programs and newly installed agents had time to be noticed.
async fn poll_until_settled(
    context: &CliContext,
    project: Option<ProjectId>,
) -> Result<(Readiness, bool)> {
    let begun = Instant::now();
    let mut turn = tokio::time::interval(READINESS_POLL_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        let (ready, whole) = fetch_visible_readiness(context, project).await?;
        let mut failed =
            ready.checks.iter().filter(|check| check.status == ReadinessStatus::Failed);
        let passing = failed.all(|check| STARTUP_CHECKS.contains(&check.name.as_str()));
        if ready.ready || !passing || begun.elapsed() >= START_TIMEOUT {
            return Ok((ready, whole));
        }
    }
}

/// Fetches all visible checks, and whether these are all checks.
async fn fetch_visible_readiness(
    context: &CliContext,
    project: Option<ProjectId>,
) -> Result<(Readiness, bool)> {
    if context.client.has_token() {
        match fetch_readiness(context, project).await {
            Ok(ready) => return Ok((ready, true)),
            // The person lacks the permission, or the token has expired: the public checks are still visible.
            Err(CliError { kind: CliErrorKind::Refused | CliErrorKind::NotFound, .. }) => {}
            // Without a database the server cannot authenticate anyone.
            Err(failure) if failure.status.is_some_and(|status| status >= 500) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok((
        context.client.send_any_status(&ApiRequest::for_operation(operations::READYZ)).await?,
        false,
    ))
}

async fn fetch_readiness(context: &CliContext, project: Option<ProjectId>) -> Result<Readiness> {
    let call = ApiRequest::for_operation(operations::READINESS)
        .with_query("project_id", project.map(|project| project.to_string()));
    context.client.send(&call).await
}

/// Renders a check with its fix below it.
fn render_check(check: &ReadinessCheck, paint: Colorizer) -> String {
    let (mark, style) = match check.status {
        ReadinessStatus::Ok => ("✓", TextStyle::Green),
        ReadinessStatus::Warning => ("!", TextStyle::Yellow),
        ReadinessStatus::Failed => ("✗", TextStyle::Red),
    };
    let head = format!(" {} {}  {}\n", paint.apply_style(style, mark), check.name, check.detail);
    head + &render_fix(check.fix.as_deref(), &check.commands, paint)
}

/// Renders what to do about a check, and what to type.
fn render_fix(fix: Option<&str>, commands: &[String], paint: Colorizer) -> String {
    let mut text = String::new();
    if let Some(fix) = fix {
        let _ = writeln!(text, "   next: {fix}");
    }
    for command in commands {
        let _ = writeln!(text, "     {}", paint.apply_style(TextStyle::Bold, command));
    }
    text
}

/// Checks whether a task of the project could run, before it is created. Refuses it otherwise; returns warnings that deserve
/// attention all the same.
pub(crate) async fn check_run_readiness(
    context: &CliContext,
    project: ProjectId,
) -> Result<Vec<String>> {
    let begun = Instant::now();
    let mut turn = tokio::time::interval(READINESS_POLL_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        let ready = match fetch_readiness(context, Some(project)).await {
            Ok(ready) => ready,
            Err(CliError { kind: CliErrorKind::Refused | CliErrorKind::NotFound, .. }) => {
                return Ok(Vec::new());
            }
            Err(failure) => return Err(failure),
        };
        match blocking_failure(&ready) {
            None => return Ok(readiness_warnings(&ready, context.out.paint)),
            Some(_) if may_be_starting(&ready) && begun.elapsed() < START_TIMEOUT => {}
            Some(refused) => return Err(refused),
        }
    }
}

/// Returns whether every failed check passes by itself while an installation starts.
fn may_be_starting(ready: &Readiness) -> bool {
    let mut blocking = ready.checks.iter().filter(|check| check.blocks_work);
    blocking.all(|check| STARTUP_CHECKS.contains(&check.name.as_str()))
}

/// Returns the reason why no task can run now, with the fix.
fn blocking_failure(ready: &Readiness) -> Option<CliError> {
    let blocking: Vec<_> = ready.checks.iter().filter(|check| check.blocks_work).collect();
    let first = blocking.first()?;
    let details: Vec<_> = blocking.iter().map(|check| check.detail.as_str()).collect();
    let failure = CliError::new(
        CliErrorKind::Conflict,
        format!("no task can be done now: {}", details.join("; ")),
    );
    let mut commands: Vec<&str> =
        blocking.iter().flat_map(|check| &check.commands).map(String::as_str).collect();
    commands.push("cynork status");
    let fix = first.fix.as_deref().unwrap_or("mend it");
    let typed: Vec<_> = commands.iter().map(|command| format!("\n          {command}")).collect();
    Some(
        failure
            .with_fix(format!("{fix}; `--force` asks for the task all the same{}", typed.concat())),
    )
}

/// Returns the warnings of checks that do not block work.
fn readiness_warnings(ready: &Readiness, paint: Colorizer) -> Vec<String> {
    let odd = ready.checks.iter().filter(|check| check.status != ReadinessStatus::Ok);
    let line = |check: &ReadinessCheck| {
        let next = check.commands.first().cloned().or_else(|| check.fix.clone());
        let next = next.map(|next| format!("; next: {next}")).unwrap_or_default();
        paint.apply_style(TextStyle::Yellow, &format!("{}{next}", check.detail))
    };
    odd.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Colorizer = Colorizer(false);

    #[test]
    fn work_that_nobody_could_do_is_refused_with_what_to_type() {
        let ready: Readiness = vec![
            ReadinessCheck::passed_check("database", "PostgreSQL answers"),
            ReadinessCheck::failed_check(
                "models",
                "no model is offered to this project",
                "an admin offers one",
            )
            .with_commands(["cynork provider set local", "cynork model set coder"])
            .with_blocking(),
            ReadinessCheck::failed_check(
                "analyst",
                "no process of an analyst asks for work",
                "start it",
            ),
        ]
        .into();
        let refused = blocking_failure(&ready).unwrap();
        assert!(!may_be_starting(&ready), "a model does not come by itself");
        assert_eq!(refused.kind, CliErrorKind::Conflict);
        assert_eq!(refused.detail, "no task can be done now: no model is offered to this project");
        assert_eq!(
            refused.fix.unwrap(),
            "an admin offers one; `--force` asks for the task all the same\n          \
             cynork provider set local\n          cynork model set coder\n          cynork status"
        );
    }

    #[test]
    fn what_blocks_nothing_is_only_a_warning() {
        let ready: Readiness = vec![
            ReadinessCheck::passed_check("database", "PostgreSQL answers"),
            ReadinessCheck::failed_check("analyst", "none asks for work", "start it")
                .with_commands(["cynode up"]),
        ]
        .into();
        assert!(blocking_failure(&ready).is_none());
        assert_eq!(readiness_warnings(&ready, PLAIN), ["none asks for work; next: cynode up"]);
    }

    #[test]
    fn each_command_stands_on_a_line_of_its_own() {
        let check = ReadinessCheck::failed_check("nodes", "none has joined", "let one join")
            .with_commands(["cynork node join-token", "cynode-node run"]);
        let shown = " ✗ nodes  none has joined\n   next: let one join\n     cynork node join-token\n     cynode-node run\n";
        assert_eq!(render_check(&check, PLAIN), shown);
    }
}
