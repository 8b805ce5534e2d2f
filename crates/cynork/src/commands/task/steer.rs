//! Instructions to a task: approve, reject, answer, pause, resume, revise, abort.

use clap::Args;
use cynode_core::{
    budget::Budget,
    delivery::ANSWER_RETRY,
    ids::WaitId,
    names::Prose,
    tasks::TaskStateName,
    workflow::{timeline::WaitEntry, waits::WaitReason},
};
use cynode_wire::{
    models::ParkView,
    tasks::{CreateTask, TaskView},
    workflow::timeline::{InstructionReceipt, TaskTimeline},
};
use serde_json::{Value, json};

use super::{TaskSelector, fetch_newest_plan, fetch_timeline};
use crate::{
    client::ApiRequest,
    commands::run::fetch_plan_preview,
    context::CliContext,
    draw,
    failure::{CliError, CliErrorKind, Result},
    format::escape_invisible,
    operations,
    output::{CliOutputFormat, print_line},
    terminal::{TextStyle, escape_for_terminal, first_line},
};

/// Approves or rejects the plan of one wait. If another wait is open by then, it has no effect.
pub(crate) async fn send_approval(
    context: &CliContext,
    id: &str,
    wait: WaitId,
    yes: bool,
    note: Option<&str>,
) -> Result<TaskView> {
    let body = json!({ "approved": yes, "note": note, "wait_id": wait });
    send_idempotent(
        context,
        ApiRequest::with_path_params(operations::APPROVE_TASK, [id]).with_json_body(&body),
    )
    .await
}

/// Answers the question of one wait, or of the open one if none is given.
pub(crate) async fn send_answer(
    context: &CliContext,
    id: &str,
    wait: Option<WaitId>,
    text: &str,
) -> Result<TaskView> {
    let body = answer_body(wait, text);
    send_idempotent(
        context,
        ApiRequest::with_path_params(operations::ANSWER_TASK, [id]).with_json_body(&body),
    )
    .await
}

fn answer_body(wait: Option<WaitId>, text: &str) -> Value {
    match wait {
        Some(wait) => json!({ "text": text, "wait_id": wait }),
        None => json!({ "text": text }),
    }
}

/// Sends an instruction.
pub(crate) async fn send_instruction(
    context: &CliContext,
    id: &str,
    kind: &str,
    text: Option<&str>,
) -> Result<InstructionReceipt> {
    let body = json!({ "kind": kind, "text": text });
    send_idempotent(
        context,
        ApiRequest::with_path_params(operations::INSTRUCT_TASK, [id]).with_json_body(&body),
    )
    .await
}

/// Sends a request under one idempotency key, with retries.
async fn send_idempotent<T: serde::de::DeserializeOwned>(
    context: &CliContext,
    call: ApiRequest,
) -> Result<T> {
    let key = format!("{:032x}", rand::random::<u128>());
    context.client.send_with_retry_timeout(&call.with_idempotency_key(key)).await
}

/// Returns the open wait for a person, if there is one.
fn open_wait(timeline: &TaskTimeline) -> Option<&WaitEntry> {
    timeline.waits.last().filter(|wait| wait.resolved_at.is_none())
}

#[derive(Args)]
pub(crate) struct TaskApproveArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Reject the plan with a reason; it is made again with that feedback.
    #[arg(long, value_name = "REASON")]
    reject: Option<String>,
    /// Note for the approval.
    #[arg(long, conflicts_with = "reject")]
    note: Option<String>,
}

impl TaskApproveArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let task = self.named.fetch_task(context).await?;
        let id = task.id.to_string();
        // The wait is read before the plan: a plan that arrives in between belongs to another wait.
        let timeline = fetch_timeline(context, &id).await?;
        let asked = |wait: &&WaitEntry| wait.reason == WaitReason::Approval;
        let wait = open_wait(&timeline).filter(asked).ok_or_else(|| {
            CliError::new(CliErrorKind::Conflict, "the task does not wait for a yes").with_fix(
                format!("see where it stands: `cynork task show {}`", self.named.command_words()),
            )
        })?;
        if context.out.form == CliOutputFormat::Readable {
            let plan = fetch_newest_plan(context, &task).await?;
            let paint = context.out.paint;
            let lines = match &plan {
                Some(planned) => {
                    context.fetch_currency().await;
                    let (client, currency) = (&context.client, context.currency());
                    for (name, words) in
                        fetch_plan_preview(client, currency, &task, planned).await?
                    {
                        print_line(&format!(
                            "{} {words}",
                            paint.apply_style(TextStyle::Dim, &format!("{name:<9}"))
                        ));
                    }
                    draw::render_plan(&planned.plan, paint)
                }
                None => draw::render_units(&timeline.units, paint),
            };
            for line in &lines {
                print_line(line);
            }
        }
        if self.reject.is_none() {
            context.confirm_action("May it be carried out?")?;
        }
        let task = match &self.reject {
            Some(why) => send_approval(context, &id, wait.wait_id, false, Some(why)).await?,
            None => send_approval(context, &id, wait.wait_id, true, self.note.as_deref()).await?,
        };
        let words = match &self.reject {
            Some(_) => format!("{} is planned anew with what you said", task.name),
            None => format!("{} is carried out", task.name),
        };
        context.out.print_success(&task, &words)
    }
}

#[derive(Args)]
pub(crate) struct TaskAnswerArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Answer; without it, show the question and ask.
    text: Option<String>,
}

impl TaskAnswerArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.named.resolve_task_id(context).await?;
        let (wait, text) = match self.text {
            Some(text) => (None, text),
            None => {
                let timeline = fetch_timeline(context, &id).await?;
                let asked = |wait: &&WaitEntry| wait.reason == WaitReason::HumanInput;
                let wait = open_wait(&timeline).filter(asked).ok_or_else(|| {
                    CliError::new(CliErrorKind::Conflict, "the task does not wait for an answer")
                        .with_fix(format!(
                            "see where it stands: `cynork task show {}`",
                            self.named.command_words()
                        ))
                })?;
                let question =
                    escape_invisible(wait.question.as_deref().unwrap_or("What is to be done?"));
                if !context.is_interactive() {
                    return Err(CliError::new(CliErrorKind::Usage, question)
                        .with_fix("give the answer: `cynork task answer TASK \"…\"`"));
                }
                print_line(&context.out.paint.apply_style(TextStyle::Yellow, &question));
                let typed = dialoguer::Input::<String>::new().with_prompt("Your answer");
                let typed = typed.interact_text();
                let text = typed.map_err(|error| CliError::invalid_input(error.to_string()))?;
                (Some(wait.wait_id), text)
            }
        };
        let task = send_answer(context, &id, wait, &text).await?;
        context.out.print_success(&task, &format!("{} was answered", task.name))
    }
}

/// An instruction whose text is optional.
#[derive(Args)]
pub(crate) struct OptionalInstructionArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Reason or further instructions.
    text: Option<String>,
}

/// An instruction with a text.
#[derive(Args)]
pub(crate) struct InstructionArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// Instruction.
    text: String,
}

async fn instruct_task(
    context: &CliContext,
    named: &TaskSelector,
    (kind, text): (&str, Option<&str>),
    done: &str,
) -> Result<()> {
    let task = named.fetch_task(context).await?;
    let answer = send_instruction(context, &task.id.to_string(), kind, text).await?;
    context.out.print_success(&answer, &format!("{} {done}", task.name))
}

impl OptionalInstructionArgs {
    pub(super) async fn pause_task(self, context: &CliContext) -> Result<()> {
        instruct_task(
            context,
            &self.named,
            ("pause", self.text.as_deref()),
            "stops at its next step",
        )
        .await
    }

    pub(super) async fn resume_task(self, context: &CliContext) -> Result<()> {
        instruct_task(context, &self.named, ("resume", self.text.as_deref()), "goes on").await
    }

    pub(super) async fn abort_task(self, context: &CliContext) -> Result<()> {
        let task = self.named.fetch_task(context).await?;
        context.confirm_action(&format!("{} is given up for good. Sure?", task.name))?;
        let id = task.id.to_string();
        let answer = send_instruction(context, &id, "abort", self.text.as_deref()).await?;
        context.out.print_success(&answer, &format!("{} was given up", task.name))
    }
}

impl InstructionArgs {
    pub(super) async fn revise_plan(self, context: &CliContext) -> Result<()> {
        instruct_task(context, &self.named, ("revise", Some(&self.text)), "is planned anew").await
    }

    pub(super) async fn expand_scope(self, context: &CliContext) -> Result<()> {
        instruct_task(context, &self.named, ("expand_scope", Some(&self.text)), "does that too")
            .await
    }

    pub(super) async fn reduce_scope(self, context: &CliContext) -> Result<()> {
        instruct_task(context, &self.named, ("reduce_scope", Some(&self.text)), "leaves that out")
            .await
    }
}

#[derive(Args)]
pub(crate) struct TaskRetryArgs {
    #[command(flatten)]
    named: TaskSelector,
    /// What to do differently this time.
    text: Option<String>,
    /// Start over, without the work done so far.
    #[arg(long)]
    fresh: bool,
}

/// The meaning of a retry in the current state of a task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetryAction {
    /// The task asks what to do about a failure, with this wait.
    Answer(WaitId),
    /// The task is paused.
    Resume,
    /// The task has ended: a new one is created from it.
    Anew,
    /// There is nothing to retry.
    Nothing(String),
}

pub(crate) fn retry_action(timeline: &TaskTimeline) -> RetryAction {
    let open = open_wait(timeline).map(|wait| (wait.reason, wait.wait_id));
    match (timeline.state, open) {
        (TaskStateName::Failed | TaskStateName::Cancelled, _) => RetryAction::Anew,
        (TaskStateName::Completed, _) => RetryAction::Nothing("it was completed".to_owned()),
        (_, Some((WaitReason::HumanInput, wait))) => RetryAction::Answer(wait),
        (_, Some((WaitReason::Paused, _))) => RetryAction::Resume,
        (_, Some((WaitReason::Approval, _))) => {
            RetryAction::Nothing("it waits for a yes to its plan".to_owned())
        }
        (TaskStateName::Queued | TaskStateName::Running, _) => RetryAction::Nothing(format!(
            "it goes on by itself: {}",
            first_line(&timeline.standing)
        )),
    }
}

impl TaskRetryArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let task = self.named.fetch_task(context).await?;
        let id = task.id.to_string();
        let timeline = fetch_timeline(context, &id).await?;
        match retry_action(&timeline) {
            RetryAction::Answer(wait) => {
                let text = self.text.as_deref().unwrap_or(ANSWER_RETRY);
                let task = send_answer(context, &id, Some(wait), text).await?;
                context.out.print_success(&task, &format!("{} tries it again", task.name))
            }
            RetryAction::Resume => {
                send_instruction(context, &id, "resume", self.text.as_deref()).await?;
                let task = TaskSelector { task: id, project: None }.fetch_task(context).await?;
                context.out.print_success(&task, &format!("{} was paused and goes on", task.name))
            }
            RetryAction::Anew => {
                let body = serde_json::to_value(build_retry_task(&task, self.text.as_deref())?)
                    .map_err(|error| CliError::internal_error(error.to_string()))?;
                let call = ApiRequest::with_path_params(operations::RETRY_TASK, [&id])
                    .with_query("fresh", self.fresh.then_some(true))
                    .with_json_body(&body);
                let new: TaskView = send_idempotent(context, call).await?;
                let from = if self.fresh {
                    "and begins anew"
                } else {
                    "and begins with the best work that was left, if there is any"
                };
                let words = format!(
                    "{} has ended and stays so; {} asks for the same once more {from} ({})",
                    task.name, new.name, new.id
                );
                context.out.print_success(&new, &words)
            }
            RetryAction::Nothing(why) => Err(CliError::new(
                CliErrorKind::Conflict,
                format!("there is nothing to try again: {why}"),
            )
            .with_fix(format!("`cynork task revise {} \"…\"` has it done otherwise while it runs; `cynork run \"…\"` asks for something new", self.named.command_words()))),
        }
    }
}

/// Builds a task with the same description, and the requested differences.
pub(crate) fn build_retry_task(task: &TaskView, otherwise: Option<&str>) -> Result<CreateTask> {
    let description = match otherwise {
        None => task.description.clone(),
        Some(text) => format!("{}\n\n{text}", task.description)
            .parse::<Prose>()
            .map_err(|error| CliError::invalid_input(error.to_string()))?,
    };
    Ok(CreateTask {
        project_id: task.project_id,
        name: None,
        description,
        acceptance_criteria: task.acceptance_criteria.clone(),
        budget: Budget {
            max_cost_micros: task.budget.max_cost_micros,
            max_tokens: task.budget.max_tokens,
        },
        depends_on: task.depends_on.clone(),
        approve_plan: None,
        profile: task.profile.clone(),
    })
}

pub(super) async fn review_task(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let id = named.resolve_task_id(context).await?;
    let call = ApiRequest::for_operation(operations::REVIEW_CONTENT)
        .with_json_body(&json!({ "task_id": id }));
    context.send_and_confirm(&call, "it is reviewed").await
}

pub(super) async fn cancel_task(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let task = named.fetch_task(context).await?;
    let question =
        format!("{} is stopped for good, and so is what depends on it. Sure?", task.name);
    context.confirm_action(&question)?;
    let call = ApiRequest::with_path_params(operations::CANCEL_TASK, [task.id.to_string()]);
    let task: TaskView = send_idempotent(context, call).await?;
    context.out.print_success(&task, &format!("{} was stopped", task.name))
}

pub(super) async fn show_parking(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let id = named.resolve_task_id(context).await?;
    let park: Option<ParkView> =
        context.client.send(&ApiRequest::with_path_params(operations::GET_PARK, [&id])).await?;
    context.out.print_answer(
        &park,
        |park| park.iter().map(|park| park.kind.as_str().to_owned()).collect(),
        |park, paint| match park {
            None => "it may ask models".to_owned(),
            Some(park) => {
                let kind = paint.apply_style(TextStyle::Yellow, park.kind.as_str());
                let until = match park.until {
                    Some(until) => format!("until {until}"),
                    None => format!(
                        "until somebody lets it: cynork task unpark {}",
                        named.command_words()
                    ),
                };
                format!(
                    "it may not ask models, {until}\n{kind}: {}",
                    escape_for_terminal(&park.reason)
                )
            }
        },
    )
}

pub(super) async fn unpark_task(named: &TaskSelector, context: &CliContext) -> Result<()> {
    let task = named.fetch_task(context).await?;
    let call = ApiRequest::with_path_params(operations::UNPARK, [task.id.to_string()]);
    let none: Value = send_idempotent(context, call).await?;
    context.out.print_success(&none, &format!("{} may ask models again", task.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: &str = "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

    fn timeline(state: &str, wait: Option<&str>) -> TaskTimeline {
        let wait = wait.map(|reason| {
            json!({ "wait_id": WAIT, "reason": reason, "owner": "person", "opened_at": "2026-01-01T00:00:00Z" })
        });
        serde_json::from_value(json!({
            "task_id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "run_id": "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "trace_id": "", "state": state, "standing": "works at Plan Steps", "retries_used": 0,
            "cost_micros": 0, "steps": [], "waits": wait.into_iter().collect::<Vec<_>>(),
            "units": [], "jobs": [], "mermaid": "", "plan_mermaid": "",
        }))
        .unwrap()
    }

    #[test]
    fn trying_again_means_what_the_task_needs() {
        let nothing = |why: &str| RetryAction::Nothing(why.to_owned());
        for (state, wait, wanted) in [
            ("failed", None, RetryAction::Anew),
            ("cancelled", None, RetryAction::Anew),
            ("completed", None, nothing("it was completed")),
            ("running", Some("human_input"), RetryAction::Answer(WAIT.parse().unwrap())),
            ("running", Some("paused"), RetryAction::Resume),
            ("running", Some("approval"), nothing("it waits for a yes to its plan")),
            ("running", Some("job"), nothing("it goes on by itself: works at Plan Steps")),
            ("queued", None, nothing("it goes on by itself: works at Plan Steps")),
        ] {
            assert_eq!(retry_action(&timeline(state, wait)), wanted, "{state} {wait:?}");
        }
    }

    #[test]
    fn an_answer_names_the_wait_whose_question_was_shown() {
        let wait = Some(WAIT.parse().unwrap());
        assert_eq!(answer_body(wait, "yes"), json!({ "text": "yes", "wait_id": WAIT }));
        assert_eq!(answer_body(None, "yes"), json!({ "text": "yes" }));
    }
}
