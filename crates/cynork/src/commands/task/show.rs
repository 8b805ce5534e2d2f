//! Views of a task: read-only commands.

use std::io::IsTerminal;

use clap::Args;
use cynode_core::{
    budget::Currency,
    ids::ProjectId,
    tasks::TaskStateName,
    workflow::{
        handoffs::{HandoffAnswer, HandoffKind, HandoffState, PlanAnswer, TaskRefinement},
        reports::ReportView,
    },
};
use cynode_wire::{
    delivery::{ChangedFiles, DiffView, TaskDiff, evidence::TaskEvidence},
    manager::handoffs::HandoffView,
    models::UsageSum,
    tasks::{TaskView, projects::ProjectView},
    workflow::timeline::{PullRequestEntry, TaskTimeline},
};
use serde_json::json;

use super::{TaskSelector, fetch_project, paint_state};
use crate::{
    client::{ApiRequest, ListResponse},
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    format::escape_invisible,
    operations,
    output::{CliOutput, CliOutputFormat, print_line, print_stderr_line, render_record},
    terminal::{Colorizer, TextStyle, escape_for_terminal},
};

/// Fetches the timeline of a task.
pub(crate) async fn fetch_timeline(context: &CliContext, id: &str) -> Result<TaskTimeline> {
    context.client.send(&ApiRequest::with_path_params(operations::TASK_TIMELINE, [id])).await
}

/// Fetches the newest plan of a task, with its decisions; `None` if there is none yet, or the person may not see it.
pub(crate) async fn fetch_newest_plan(
    context: &CliContext,
    task: &TaskView,
) -> Result<Option<PlanAnswer>> {
    let mut cursor: Option<String> = None;
    loop {
        let call =
            ApiRequest::with_path_params(operations::LIST_HANDOFFS, [task.project_id.to_string()])
                .with_query("task_id", Some(task.id))
                .with_query("limit", Some(200))
                .with_query("cursor", cursor);
        let listed: ListResponse<HandoffView> = match context.client.send(&call).await {
            Ok(listed) => listed,
            Err(failure)
                if matches!(failure.kind, CliErrorKind::Refused | CliErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let made =
            |it: &&HandoffView| it.kind == HandoffKind::Plan && it.state == HandoffState::Done;
        for handoff in listed.items.iter().filter(made) {
            let call = ApiRequest::with_path_params(
                operations::GET_HANDOFF,
                [handoff.handoff_id.to_string()],
            );
            let whole: HandoffView = context.client.send(&call).await?;
            // The handoff may have ended with a question.
            if let Some(HandoffAnswer::Planned(planned)) = whole.answer.map(|answer| *answer) {
                return Ok(Some(planned));
            }
        }
        cursor = listed.next_cursor;
        if cursor.is_none() {
            return Ok(None);
        }
    }
}

pub(super) async fn show_task(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let task = named.fetch_whole_task(context).await?;
    let readable = context.out.form == CliOutputFormat::Readable;
    let timeline =
        if readable { Some(fetch_timeline(context, &task.id.to_string()).await?) } else { None };
    // If the name is not readable, the id is shown.
    let project = if readable {
        fetch_project(context, &task.project_id.to_string()).await.ok()
    } else {
        None
    };
    context.fetch_currency().await;
    let currency = context.currency();
    context.out.print_answer(
        &task,
        |task| vec![task.id.to_string()],
        |task, paint| render_task(task, project.as_ref(), timeline.as_ref(), currency, paint),
    )
}

/// Returns a project's name with its id; only the id if the name is not known.
fn project_label(project: Option<&ProjectView>, id: ProjectId, paint: Colorizer) -> String {
    let id = id.to_string();
    match project {
        Some(project) => format!("{} {}", project.slug, paint.apply_style(TextStyle::Dim, &id)),
        None => id,
    }
}

fn render_task(
    task: &TaskView,
    project: Option<&ProjectView>,
    timeline: Option<&TaskTimeline>,
    currency: Currency,
    paint: Colorizer,
) -> String {
    let criteria = task.acceptance_criteria.iter().map(|criterion| {
        let check =
            criterion.check.as_ref().map(|check| format!(", by `{}`", check.command_line()));
        escape_for_terminal(&format!("{}{}", criterion.text, check.unwrap_or_default()))
    });
    let delivered = timeline.and_then(|timeline| timeline.pull_request.as_ref());
    let after: Vec<String> = task.depends_on.iter().map(ToString::to_string).collect();
    render_record(
        paint,
        &[
            ("id", task.id.to_string()),
            ("name", paint.apply_style(TextStyle::Bold, task.name.as_str())),
            ("project", project_label(project, task.project_id, paint)),
            ("state", paint_state(task.state, paint)),
            ("stands", timeline.map(draw::describe_standing).unwrap_or_default()),
            ("review", review_note(task)),
            ("asked for", escape_for_terminal(task.description.as_str())),
            ("must hold", criteria.collect::<Vec<_>>().join("\n")),
            ("understood as", task.refinement.as_ref().map(render_refinement).unwrap_or_default()),
            ("limit", budget_text(task, currency)),
            (
                "cost",
                timeline.map(|it| draw::format_money(it.cost_micros, currency)).unwrap_or_default(),
            ),
            ("after", after.join("\n")),
            ("was given", timeline.map(|it| draw::describe_given(&it.given)).unwrap_or_default()),
            ("delivered", delivered.map(render_delivery).unwrap_or_default()),
            (
                "came of it",
                escape_for_terminal(
                    timeline.and_then(|it| it.summary.as_deref()).unwrap_or_default(),
                ),
            ),
        ],
    )
}

/// Returns what is said of a task that an agent wrote, until a person has reviewed it.
fn review_note(task: &TaskView) -> String {
    if task.unreviewed {
        "an agent wrote it, and nobody has reviewed it: `cynork task review` says that you did"
            .to_owned()
    } else {
        String::new()
    }
}

/// Renders how the project manager understood a task.
fn render_refinement(refinement: &TaskRefinement) -> String {
    let TaskRefinement { class, scope, requirements, assumptions } = refinement;
    let mut lines = vec![format!("{}, {}", class.as_str().replace('_', " "), scope.as_str())];
    lines.extend(requirements.iter().map(|text| format!("needs: {text}")));
    lines.extend(assumptions.iter().map(|text| format!("assumes: {text}")));
    escape_for_terminal(&lines.join("\n"))
}

/// Returns the budget of a task as text.
pub(crate) fn budget_text(task: &TaskView, currency: Currency) -> String {
    let money = task.budget.max_cost_micros.map(|most| draw::format_money(most.into(), currency));
    let tokens = task.budget.max_tokens.map(|most| format!("{} tokens", u64::from(most)));
    let most: Vec<String> = money.into_iter().chain(tokens).collect();
    if most.is_empty() {
        "none of its own (--budget sets one); those of project and installation hold".to_owned()
    } else {
        most.join(", ")
    }
}

fn render_delivery(entry: &PullRequestEntry) -> String {
    let failure = entry.failure.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    escape_for_terminal(&format!(
        "#{} {} ({}{failure}), {}",
        entry.number,
        entry.title,
        entry.state.as_str(),
        entry.id
    ))
}

#[derive(Args)]
pub(crate) struct TaskPlanArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Print a Mermaid flowchart.
    #[arg(long)]
    mermaid: bool,
}

impl TaskPlanArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let task = self.named.fetch_task(context).await?;
        let timeline = fetch_timeline(context, &task.id.to_string()).await?;
        let planned = fetch_newest_plan(context, &task).await?;
        if planned.is_none()
            && timeline.units.is_empty()
            && context.out.form == CliOutputFormat::Readable
        {
            return Err(CliError::new(CliErrorKind::NotFound, "it has no plan yet").with_fix(
                format!("follow it with `cynork task watch {}`", self.named.command_words()),
            ));
        }
        let value = json!({
            "task_id": task.id,
            "class": planned.as_ref().map(|it| it.class),
            "scope": planned.as_ref().map(|it| it.scope),
            "plan": planned.as_ref().map(|it| &it.plan),
            "units": timeline.units,
            "mermaid": timeline.plan_mermaid,
        });
        context.out.print_answer(
            &value,
            |_| timeline.units.iter().map(|unit| unit.key.to_string()).collect(),
            |_, paint| {
                if self.mermaid {
                    return escape_invisible(&timeline.plan_mermaid);
                }
                let Some(planned) = &planned else {
                    return draw::render_units(&timeline.units, paint).join("\n");
                };
                let head = format!(
                    "{} of scope {}",
                    paint.apply_style(TextStyle::Bold, planned.class.as_str()),
                    paint.apply_style(TextStyle::Bold, planned.scope.as_str())
                );
                let tree = draw::render_plan_status(&planned.plan, &timeline.units, paint);
                format!("{head}\n{}", tree.join("\n"))
            },
        )
    }
}

#[derive(Args)]
pub(crate) struct TaskTimelineArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Print the workflow graph as a Mermaid flowchart, with the current step marked.
    #[arg(long)]
    mermaid: bool,
}

impl TaskTimelineArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.named.resolve_task_id(context).await?;
        let call = ApiRequest::with_path_params(operations::TASK_TIMELINE, [&id]);
        let timeline: TaskTimeline = context.client.send(&call).await?;
        context.out.print_answer(
            &timeline,
            |timeline| timeline.steps.iter().map(|step| step.node.clone()).collect(),
            |timeline, paint| {
                if self.mermaid {
                    return escape_invisible(&timeline.mermaid);
                }
                let mut lines = draw::render_timeline(timeline, paint);
                lines.push(String::new());
                let name = paint_state(timeline.state, paint);
                let stands = draw::describe_standing(timeline);
                let ended = stands == timeline.state.as_str();
                lines.push(if ended { name } else { format!("{name}: {stands}") });
                lines.extend(draw::render_stalls(timeline, paint));
                lines.join("\n")
            },
        )
    }
}

#[derive(Args)]
pub(crate) struct TaskDiffShowArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Show only the changed files and line counts.
    #[arg(long)]
    stat: bool,
    /// Filter by file.
    #[arg(long, conflicts_with = "stat", value_name = "FILE")]
    path: Option<String>,
}

impl TaskDiffShowArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.named.resolve_task_id(context).await?;
        let timeline = fetch_timeline(context, &id).await?;
        let Some(offered) = timeline.pull_request else {
            return self.show_unfinished_work(context, &id).await;
        };
        let offered = offered.id.to_string();
        if self.stat {
            let call = ApiRequest::with_path_params(operations::PULL_REQUEST_FILES, [&offered]);
            let changed: ChangedFiles = context.client.send(&call).await?;
            return context.out.print_answer(
                &changed,
                |changed| changed.files.iter().map(|file| file.path.clone()).collect(),
                |changed, paint| draw::render_changed_files(changed, paint).join("\n"),
            );
        }
        let call = ApiRequest::with_path_params(operations::DIFF_PULL_REQUEST, [&offered])
            .with_query("path", self.path);
        let diff: DiffView = context.client.send(&call).await?;
        print_diff(context, &diff)
    }

    /// Shows the changes of a task that are not offered, marked as such.
    async fn show_unfinished_work(self, context: &CliContext, id: &str) -> Result<()> {
        let call =
            ApiRequest::with_path_params(operations::TASK_DIFF, [id]).with_query("path", self.path);
        let found: Result<TaskDiff> = context.client.send(&call).await;
        let found = found.map_err(|failure| match failure.kind {
            CliErrorKind::NotFound => {
                CliError::new(CliErrorKind::NotFound, "no work on it has left a commit yet")
                    .with_fix(format!("see where it stands: `cynork task show {id}`"))
            }
            _ => failure,
        })?;
        if context.out.form == CliOutputFormat::Readable {
            print_stderr_line(
                &context.out.paint.apply_style(TextStyle::Yellow, &describe_unfinished(&found)),
            );
        }
        if self.stat {
            return context.out.print_answer(
                &found.files,
                |changed| changed.files.iter().map(|file| file.path.clone()).collect(),
                |changed, paint| draw::render_changed_files(changed, paint).join("\n"),
            );
        }
        print_diff(context, &found.diff)
    }
}

/// Describes unoffered work: its attempt, and how many checks pass.
fn describe_unfinished(found: &TaskDiff) -> String {
    let kind = match found.state {
        TaskStateName::Failed => "work of a task that failed",
        TaskStateName::Cancelled => "work of a task that was stopped",
        TaskStateName::Completed => "work that was not offered as a pull request",
        TaskStateName::Queued | TaskStateName::Running => "unfinished work",
    };
    let checks = match found.checks {
        0 => "no check has run on it".to_owned(),
        checks => format!("{} of {checks} checks hold", found.checks_passed),
    };
    format!("This is {kind}: attempt {} of {}; {checks}.", found.attempt, found.unit)
}

fn print_diff(context: &CliContext, diff: &DiffView) -> Result<()> {
    if context.out.form == CliOutputFormat::Json {
        return CliOutput::print_json(diff);
    }
    let person = std::io::stdout().is_terminal();
    if person {
        print_line(&draw::render_diff(&diff.text, context.out.paint).join("\n"));
    } else {
        print_line(diff.text.trim_end_matches('\n'));
    }
    if diff.truncated {
        let what = "there is more than is shown: at most a mebibyte";
        return Err(CliError::new(CliErrorKind::Failed, what)
            .with_fix("see `--stat`, and one file at a time with `--path FILE`"));
    }
    if diff.inexact && !person {
        let what =
            "this is not exact, so `git apply` does not take it: a file is binary or not UTF-8";
        return Err(CliError::new(CliErrorKind::Failed, what).with_fix(format!(
            "take it with git: `cynork project clone PROJECT`, and there `git diff --binary {} {}`",
            diff.base, diff.head
        )));
    }
    Ok(())
}

pub(super) async fn show_evidence(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let id = named.resolve_task_id(context).await?;
    let call = ApiRequest::with_path_params(operations::TASK_EVIDENCE, [&id]);
    let found: TaskEvidence = context.client.send(&call).await?;
    print_evidence(&found, context)
}

/// Runs the checks of an ended task again, and shows what there is so far.
pub(super) async fn rerun_checks(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let id = named.resolve_task_id(context).await?;
    let call = ApiRequest::with_path_params(operations::RERUN_EVIDENCE, [&id]);
    let found: TaskEvidence = context.client.send(&call).await?;
    print_evidence(&found, context)
}

fn print_evidence(found: &TaskEvidence, context: &CliContext) -> Result<()> {
    context.out.print_answer(
        found,
        |found| found.evidence.iter().map(|view| view.evidence_id.to_string()).collect(),
        |found, paint| {
            let mut lines = Vec::new();
            if let Some(base) = &found.base {
                lines.extend(draw::render_base_checks(base, paint));
            }
            for view in &found.evidence {
                lines.extend(draw::render_evidence(view, paint));
            }
            if lines.is_empty() {
                lines.push(paint.apply_style(TextStyle::Dim, "no check has run yet"));
            }
            lines.extend(draw::render_findings(&found.feedback, paint));
            lines.join("\n")
        },
    )
}

/// Fetches the usage of a task, by model.
pub(crate) async fn fetch_usage(context: &CliContext, id: &str) -> Result<Vec<UsageSum>> {
    let call = ApiRequest::with_path_params(operations::SUM_USAGE, [""; 0])
        .with_query("task_id", Some(id))
        .with_query("by", Some("model"));
    let sums: ListResponse<UsageSum> = context.client.send(&call).await?;
    Ok(sums.items)
}

pub(super) async fn show_cost(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let task = named.fetch_task(context).await?;
    let id = task.id.to_string();
    let timeline = fetch_timeline(context, &id).await?;
    let models = fetch_usage(context, &id).await?;
    let steps = timeline.steps.iter().filter(|step| step.cost_micros > 0).map(|step| {
        json!({ "sequence": step.sequence, "node": step.node, "unit": step.unit,
            "cost_micros": step.cost_micros })
    });
    let value = json!({
        "task_id": task.id,
        "cost_micros": crate::draw::sum_cost_micros(&models).max(timeline.cost_micros),
        "budget": task.budget,
        "steps": steps.collect::<Vec<_>>(),
        "models": models,
    });
    context.fetch_currency().await;
    let currency = context.currency();
    context.out.print_answer(
        &value,
        |value| vec![value["cost_micros"].to_string()],
        |_, paint| draw::render_task_cost(&task, &timeline, &models, currency, paint),
    )
}

pub(super) async fn show_reports(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let id = named.resolve_task_id(context).await?;
    let call = ApiRequest::with_path_params(operations::LIST_REPORTS, [&id]);
    let reports: ListResponse<ReportView> = context.client.send(&call).await?;
    context.out.print_answer(
        &reports,
        |reports| reports.items.iter().map(|report| report.report_id.to_string()).collect(),
        |reports, paint| match reports.items.as_slice() {
            [] => paint.apply_style(TextStyle::Dim, "nobody has reported anything yet"),
            items => draw::render_reports(items, paint).join("\n"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_called_by_its_name_where_that_is_known() {
        let id = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let project: ProjectView =
            serde_json::from_value(json!({ "id": id, "slug": "web", "title": "Web",
            "description": null, "created_by": "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "created_at": "2026-01-01T00:00:00Z" }))
            .unwrap();
        assert_eq!(
            project_label(Some(&project), project.id, Colorizer(false)),
            format!("web {id}")
        );
        assert_eq!(project_label(None, project.id, Colorizer(false)), id);
    }
}
