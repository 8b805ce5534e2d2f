//! What became of a task: looked at, nothing is changed.

use std::io::IsTerminal;

use clap::Args;
use cynode_core::ids::ProjectId;
use cynode_wire::{
    delivery::{ChangedFiles, DiffView},
    evidence::TaskEvidence,
    handoffs::{HandoffAnswer, HandoffKind, HandoffState, HandoffView, Planned},
    models::UsageSum,
    projects::ProjectView,
    reports::ReportView,
    tasks::TaskView,
    timeline::{PullRequestEntry, Timeline},
};
use serde_json::json;

use super::{Named, project, state};
use crate::{
    client::{Call, Items},
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    look::visible,
    operations,
    output::{Form, Output, record, say},
    terminal::{Paint, Style, shown},
};

/// What happened to a task.
pub(crate) async fn timeline_of(context: &Context, id: &str) -> Result<Timeline> {
    context.client.send(&Call::to(operations::TASK_TIMELINE, [id])).await
}

/// The newest plan of a task, with how it came about; none when there is none yet, or not for this person.
pub(crate) async fn plan_of(context: &Context, task: &TaskView) -> Result<Option<Planned>> {
    let mut cursor: Option<String> = None;
    loop {
        let call = Call::to(operations::LIST_HANDOFFS, [task.project_id.to_string()])
            .query("task_id", Some(task.id))
            .query("limit", Some(200))
            .query("cursor", cursor);
        let listed: Items<HandoffView> = match context.client.send(&call).await {
            Ok(listed) => listed,
            Err(failure) if matches!(failure.kind, Kind::Refused | Kind::NotFound) => {
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let made =
            |it: &&HandoffView| it.kind == HandoffKind::Plan && it.state == HandoffState::Done;
        for handoff in listed.items.iter().filter(made) {
            let call = Call::to(operations::GET_HANDOFF, [handoff.handoff_id.to_string()]);
            let whole: HandoffView = context.client.send(&call).await?;
            // It may have ended with a question.
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

pub(super) async fn show(named: &Named, context: &Context) -> Result<()> {
    let task = named.view(context).await?;
    let readable = context.out.form == Form::Readable;
    let timeline =
        if readable { Some(timeline_of(context, &task.id.to_string()).await?) } else { None };
    // Without its name it has its id.
    let project =
        if readable { project(context, &task.project_id.to_string()).await.ok() } else { None };
    context.out.show(
        &task,
        |task| vec![task.id.to_string()],
        |task, paint| described(task, project.as_ref(), timeline.as_ref(), paint),
    )
}

/// A project by its name, with its id behind it; where the name is not known, by its id.
fn called(project: Option<&ProjectView>, id: ProjectId, paint: Paint) -> String {
    let id = id.to_string();
    match project {
        Some(project) => format!("{} {}", project.slug, paint.dye(Style::Dim, &id)),
        None => id,
    }
}

fn described(
    task: &TaskView,
    project: Option<&ProjectView>,
    timeline: Option<&Timeline>,
    paint: Paint,
) -> String {
    let criteria = task.acceptance_criteria.iter().map(|criterion| {
        let check = criterion.check.as_ref().map(|check| format!(", by `{}`", check.told()));
        shown(&format!("{}{}", criterion.text, check.unwrap_or_default()))
    });
    let money = task.budget.max_cost_micros.map(|most| draw::money(most.into()));
    let tokens = task.budget.max_tokens.map(|most| format!("{} tokens", u64::from(most)));
    let most: Vec<String> = money.into_iter().chain(tokens).collect();
    let delivered = timeline.and_then(|timeline| timeline.pull_request.as_ref());
    let after: Vec<String> = task.depends_on.iter().map(ToString::to_string).collect();
    record(
        paint,
        &[
            ("id", task.id.to_string()),
            ("name", paint.dye(Style::Bold, task.name.as_str())),
            ("project", called(project, task.project_id, paint)),
            ("state", state(task.state, paint)),
            ("stands", timeline.map(draw::stands).unwrap_or_default()),
            ("asked for", shown(task.description.as_str())),
            ("must hold", criteria.collect::<Vec<_>>().join("\n")),
            ("at most", most.join(", ")),
            (
                "cost",
                timeline.map(|timeline| draw::money(timeline.cost_micros)).unwrap_or_default(),
            ),
            ("after", after.join("\n")),
            ("delivered", delivered.map(delivery).unwrap_or_default()),
            (
                "came of it",
                shown(timeline.and_then(|it| it.summary.as_deref()).unwrap_or_default()),
            ),
        ],
    )
}

fn delivery(entry: &PullRequestEntry) -> String {
    let failure = entry.failure.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    shown(&format!(
        "#{} {} ({}{failure}), {}",
        entry.number,
        entry.title,
        entry.state.as_str(),
        entry.id
    ))
}

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    named: Named,
    /// As a mermaid flowchart.
    #[arg(long)]
    mermaid: bool,
}

impl Plan {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let task = self.named.view(context).await?;
        let timeline = timeline_of(context, &task.id.to_string()).await?;
        let planned = plan_of(context, &task).await?;
        if planned.is_none() && timeline.units.is_empty() && context.out.form == Form::Readable {
            return Err(Failure::new(Kind::NotFound, "it has no plan yet")
                .fix(format!("follow it with `cynork task watch {}`", task.id)));
        }
        let value = json!({
            "task_id": task.id,
            "class": planned.as_ref().map(|it| it.class),
            "scope": planned.as_ref().map(|it| it.scope),
            "plan": planned.as_ref().map(|it| &it.plan),
            "units": timeline.units,
            "mermaid": timeline.plan_mermaid,
        });
        context.out.show(
            &value,
            |_| timeline.units.iter().map(|unit| unit.key.to_string()).collect(),
            |_, paint| {
                if self.mermaid {
                    return visible(&timeline.plan_mermaid);
                }
                let Some(planned) = &planned else {
                    return draw::units(&timeline.units, paint).join("\n");
                };
                let head = format!(
                    "{} of scope {}",
                    paint.dye(Style::Bold, planned.class.as_str()),
                    paint.dye(Style::Bold, planned.scope.as_str())
                );
                let tree = draw::planned(&planned.plan, &timeline.units, paint);
                format!("{head}\n{}", tree.join("\n"))
            },
        )
    }
}

#[derive(Args)]
pub(crate) struct TimelineOf {
    #[command(flatten)]
    named: Named,
    /// The graph of the workflow as a mermaid flowchart, the present node marked.
    #[arg(long)]
    mermaid: bool,
}

impl TimelineOf {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let id = self.named.id(context).await?;
        let call = Call::to(operations::TASK_TIMELINE, [&id]);
        let timeline: Timeline = context.client.send(&call).await?;
        context.out.show(
            &timeline,
            |timeline| timeline.steps.iter().map(|step| step.node.clone()).collect(),
            |timeline, paint| {
                if self.mermaid {
                    return visible(&timeline.mermaid);
                }
                let mut lines = draw::timeline(timeline, paint);
                lines.push(String::new());
                let name = state(timeline.state, paint);
                let stands = draw::stands(timeline);
                let ended = stands == timeline.state.as_str();
                lines.push(if ended { name } else { format!("{name}: {stands}") });
                lines.join("\n")
            },
        )
    }
}

#[derive(Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    named: Named,
    /// Only which files, and how many lines came and went.
    #[arg(long)]
    stat: bool,
    /// Only of this file.
    #[arg(long, conflicts_with = "stat", value_name = "FILE")]
    path: Option<String>,
}

impl Diff {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let id = self.named.id(context).await?;
        let timeline = timeline_of(context, &id).await?;
        let offered = timeline.pull_request.ok_or_else(|| {
            Failure::new(Kind::NotFound, "it has no pull request, so there is nothing to compare")
                .fix(format!("see where it stands: `cynork task show {id}`"))
        })?;
        let offered = offered.id.to_string();
        if self.stat {
            let call = Call::to(operations::PULL_REQUEST_FILES, [&offered]);
            let changed: ChangedFiles = context.client.send(&call).await?;
            return context.out.show(
                &changed,
                |changed| changed.files.iter().map(|file| file.path.clone()).collect(),
                |changed, paint| draw::files(changed, paint).join("\n"),
            );
        }
        let call = Call::to(operations::DIFF_PULL_REQUEST, [&offered]).query("path", self.path);
        let diff: DiffView = context.client.send(&call).await?;
        if context.out.form == Form::Json {
            return Output::json(&diff);
        }
        let person = std::io::stdout().is_terminal();
        if person {
            say(&draw::diff(&diff.text, context.out.paint).join("\n"));
        } else {
            say(diff.text.trim_end_matches('\n'));
        }
        if diff.truncated {
            let what = "there is more than is shown: at most a mebibyte";
            return Err(Failure::new(Kind::EndedBadly, what)
                .fix("see `--stat`, and one file at a time with `--path FILE`"));
        }
        if diff.inexact && !person {
            let what =
                "this is not exact, so `git apply` does not take it: a file is binary or not UTF-8";
            return Err(Failure::new(Kind::EndedBadly, what).fix(format!(
                "take it with git: `cynork project clone PROJECT`, and there `git diff --binary {} {}`",
                diff.base, diff.head
            )));
        }
        Ok(())
    }
}

pub(super) async fn evidence(named: &Named, context: &Context) -> Result<()> {
    let id = named.id(context).await?;
    let call = Call::to(operations::TASK_EVIDENCE, [&id]);
    let found: TaskEvidence = context.client.send(&call).await?;
    context.out.show(
        &found,
        |found| found.evidence.iter().map(|view| view.evidence_id.to_string()).collect(),
        |found, paint| {
            let mut lines = Vec::new();
            for view in &found.evidence {
                lines.extend(draw::evidence(view, paint));
            }
            if lines.is_empty() {
                lines.push(paint.dye(Style::Dim, "no check has run yet"));
            }
            lines.extend(draw::findings(&found.feedback, paint));
            lines.join("\n")
        },
    )
}

/// What models were used for a task, by model.
pub(crate) async fn usage(context: &Context, id: &str) -> Result<Vec<UsageSum>> {
    let call = Call::to(operations::SUM_USAGE, [""; 0])
        .query("task_id", Some(id))
        .query("by", Some("model"));
    let sums: Items<UsageSum> = context.client.send(&call).await?;
    Ok(sums.items)
}

pub(super) async fn cost(named: &Named, context: &Context) -> Result<()> {
    let task = named.view(context).await?;
    let id = task.id.to_string();
    let timeline = timeline_of(context, &id).await?;
    let models = usage(context, &id).await?;
    let steps = timeline.steps.iter().filter(|step| step.cost_micros > 0).map(|step| {
        json!({ "sequence": step.sequence, "node": step.node, "unit": step.unit,
            "cost_micros": step.cost_micros })
    });
    let value = json!({
        "task_id": task.id,
        "cost_micros": crate::follow::spent(&models).max(timeline.cost_micros),
        "budget": task.budget,
        "steps": steps.collect::<Vec<_>>(),
        "models": models,
    });
    context.out.show(
        &value,
        |value| vec![value["cost_micros"].to_string()],
        |_, paint| draw::cost(&task, &timeline, &models, paint),
    )
}

pub(super) async fn reports(named: &Named, context: &Context) -> Result<()> {
    let id = named.id(context).await?;
    let call = Call::to(operations::LIST_REPORTS, [&id]);
    let reports: Items<ReportView> = context.client.send(&call).await?;
    context.out.show(
        &reports,
        |reports| reports.items.iter().map(|report| report.report_id.to_string()).collect(),
        |reports, paint| match reports.items.as_slice() {
            [] => paint.dye(Style::Dim, "nobody has reported anything yet"),
            items => draw::reports(items, paint).join("\n"),
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
        assert_eq!(called(Some(&project), project.id, Paint(false)), format!("web {id}"));
        assert_eq!(called(None, project.id, Paint(false)), id);
    }
}
