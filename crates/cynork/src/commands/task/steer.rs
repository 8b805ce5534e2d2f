//! What a person tells a task: yes, no, an answer, to stop, to go on, to do it otherwise.

use clap::Args;
use cynode_core::{
    budget::Budget, delivery::AGAIN, ids::WaitId, names::Prose, tasks::TaskStateName,
    workflow::waits::WaitReason,
};
use cynode_wire::{
    models::ParkView,
    tasks::{CreateTask, TaskView},
    timeline::{Instructed, Timeline, WaitEntry},
};
use serde_json::{Value, json};

use super::{Named, made, plan_of, timeline_of};
use crate::{
    client::Call,
    context::Context,
    draw,
    failure::{Failure, Kind, Result},
    look::visible,
    operations,
    output::{Form, say},
    terminal::{Style, first_line, shown},
};

/// Says yes or no to the plan that one wait is about: when another one is open by then, nothing is said.
pub(crate) async fn approved(
    context: &Context,
    id: &str,
    wait: WaitId,
    yes: bool,
    note: Option<&str>,
) -> Result<TaskView> {
    let body = json!({ "approved": yes, "note": note, "wait_id": wait });
    sent(context, Call::to(operations::APPROVE_TASK, [id]).body(&body)).await
}

/// Answers the question of one wait, or without it the one that is open.
pub(crate) async fn answered(
    context: &Context,
    id: &str,
    wait: Option<WaitId>,
    text: &str,
) -> Result<TaskView> {
    let body = answer(wait, text);
    sent(context, Call::to(operations::ANSWER_TASK, [id]).body(&body)).await
}

fn answer(wait: Option<WaitId>, text: &str) -> Value {
    match wait {
        Some(wait) => json!({ "text": text, "wait_id": wait }),
        None => json!({ "text": text }),
    }
}

/// Tells it something.
pub(crate) async fn instructed(
    context: &Context,
    id: &str,
    kind: &str,
    text: Option<&str>,
) -> Result<Instructed> {
    let body = json!({ "kind": kind, "text": text });
    sent(context, Call::to(operations::INSTRUCT_TASK, [id]).body(&body)).await
}

/// Sends it once, under one key, however often a server is killed over it.
async fn sent<T: serde::de::DeserializeOwned>(context: &Context, call: Call) -> Result<T> {
    let key = format!("{:032x}", rand::random::<u128>());
    context.client.for_a_while(&call.key(key)).await
}

/// What a task waits for a person with, if it does.
fn open(timeline: &Timeline) -> Option<&WaitEntry> {
    timeline.waits.last().filter(|wait| wait.resolved_at.is_none())
}

#[derive(Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    named: Named,
    /// Says no, and why: the plan is made anew with it.
    #[arg(long, value_name = "WHY")]
    no: Option<String>,
    /// What you want to say with your yes.
    #[arg(long, conflicts_with = "no")]
    note: Option<String>,
}

impl Approve {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let task = self.named.view(context).await?;
        let id = task.id.to_string();
        // The wait is looked at before the plan: a plan that comes in between is another wait's.
        let timeline = timeline_of(context, &id).await?;
        let asked = |wait: &&WaitEntry| wait.reason == WaitReason::Approval;
        let wait = open(&timeline).filter(asked).ok_or_else(|| {
            Failure::new(Kind::Conflict, "the task does not wait for a yes")
                .fix(format!("see where it stands: `cynork task show {id}`"))
        })?;
        if context.out.form == Form::Readable {
            let plan = plan_of(context, &task).await?;
            let paint = context.out.paint;
            let lines = match &plan {
                Some(planned) => draw::plan(&planned.plan, paint),
                None => draw::units(&timeline.units, paint),
            };
            for line in &lines {
                say(line);
            }
        }
        if self.no.is_none() {
            context.sure("May it be carried out?")?;
        }
        let task = match &self.no {
            Some(why) => approved(context, &id, wait.wait_id, false, Some(why)).await?,
            None => approved(context, &id, wait.wait_id, true, self.note.as_deref()).await?,
        };
        let words = match &self.no {
            Some(_) => format!("{} is planned anew with what you said", task.name),
            None => format!("{} is carried out", task.name),
        };
        context.out.done(&task, &words)
    }
}

#[derive(Args)]
pub(crate) struct Answer {
    #[command(flatten)]
    named: Named,
    /// What you answer; without it, the question is shown and you are asked.
    text: Option<String>,
}

impl Answer {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let id = self.named.id(context).await?;
        let (wait, text) = match self.text {
            Some(text) => (None, text),
            None => {
                let timeline = timeline_of(context, &id).await?;
                let asked = |wait: &&WaitEntry| wait.reason == WaitReason::HumanInput;
                let wait = open(&timeline).filter(asked).ok_or_else(|| {
                    Failure::new(Kind::Conflict, "the task does not wait for an answer")
                        .fix(format!("see where it stands: `cynork task show {id}`"))
                })?;
                let question = visible(wait.question.as_deref().unwrap_or("What is to be done?"));
                if !context.person() {
                    return Err(Failure::new(Kind::Usage, question)
                        .fix("give the answer: `cynork task answer TASK \"…\"`"));
                }
                say(&context.out.paint.dye(Style::Yellow, &question));
                let typed = dialoguer::Input::<String>::new().with_prompt("Your answer");
                let typed = typed.interact_text();
                let text = typed.map_err(|error| Failure::invalid(error.to_string()))?;
                (Some(wait.wait_id), text)
            }
        };
        let task = answered(context, &id, wait, &text).await?;
        context.out.done(&task, &format!("{} was answered", task.name))
    }
}

/// Says something, if there is something to say.
#[derive(Args)]
pub(crate) struct Maybe {
    #[command(flatten)]
    named: Named,
    /// Why, or what else.
    text: Option<String>,
}

/// Says something.
#[derive(Args)]
pub(crate) struct Words {
    #[command(flatten)]
    named: Named,
    /// What is meant.
    text: String,
}

async fn told(
    context: &Context,
    named: &Named,
    (kind, text): (&str, Option<&str>),
    done: &str,
) -> Result<()> {
    let id = named.id(context).await?;
    let answer = instructed(context, &id, kind, text).await?;
    context.out.done(&answer, &format!("{id} {done}"))
}

impl Maybe {
    pub(super) async fn pause(self, context: &Context) -> Result<()> {
        told(context, &self.named, ("pause", self.text.as_deref()), "stops at its next step").await
    }

    pub(super) async fn resume(self, context: &Context) -> Result<()> {
        told(context, &self.named, ("continue", self.text.as_deref()), "goes on").await
    }

    pub(super) async fn abort(self, context: &Context) -> Result<()> {
        context.sure("It is given up for good. Sure?")?;
        told(context, &self.named, ("abort", self.text.as_deref()), "was given up").await
    }
}

impl Words {
    pub(super) async fn revise(self, context: &Context) -> Result<()> {
        told(context, &self.named, ("revise", Some(&self.text)), "is planned anew").await
    }

    pub(super) async fn expand(self, context: &Context) -> Result<()> {
        told(context, &self.named, ("expand_scope", Some(&self.text)), "does that too").await
    }

    pub(super) async fn reduce(self, context: &Context) -> Result<()> {
        told(context, &self.named, ("reduce_scope", Some(&self.text)), "leaves that out").await
    }
}

#[derive(Args)]
pub(crate) struct Retry {
    #[command(flatten)]
    named: Named,
    /// What is to be done otherwise this time.
    text: Option<String>,
}

/// What trying again means for a task as it stands.
#[derive(Debug, PartialEq, Eq)]
enum Again {
    /// It asks what to do about what came to nothing, with this wait.
    Answer(WaitId),
    /// It is paused.
    Resume,
    /// It was given up: it is asked for once more.
    Anew,
    /// There is nothing to try again.
    Nothing(String),
}

fn again(timeline: &Timeline) -> Again {
    let open = open(timeline).map(|wait| (wait.reason, wait.wait_id));
    match (timeline.state, open) {
        (TaskStateName::Failed | TaskStateName::Cancelled, _) => Again::Anew,
        (TaskStateName::Completed, _) => Again::Nothing("it was completed".to_owned()),
        (_, Some((WaitReason::HumanInput, wait))) => Again::Answer(wait),
        (_, Some((WaitReason::Paused, _))) => Again::Resume,
        (_, Some((WaitReason::Approval, _))) => {
            Again::Nothing("it waits for a yes to its plan".to_owned())
        }
        (TaskStateName::Queued | TaskStateName::Running, _) => {
            Again::Nothing(format!("it goes on by itself: {}", first_line(&timeline.standing)))
        }
    }
}

impl Retry {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let task = self.named.view(context).await?;
        let id = task.id.to_string();
        let timeline = timeline_of(context, &id).await?;
        match again(&timeline) {
            Again::Answer(wait) => {
                let text = self.text.as_deref().unwrap_or(AGAIN);
                let task = answered(context, &id, Some(wait), text).await?;
                context.out.done(&task, &format!("{} tries it again", task.name))
            }
            Again::Resume => {
                instructed(context, &id, "continue", self.text.as_deref()).await?;
                let task = Named { task: id, project: None }.view(context).await?;
                context.out.done(&task, &format!("{} was paused and goes on", task.name))
            }
            Again::Anew => {
                let new = made(context, &anew(&task, self.text.as_deref())?).await?;
                let words = format!(
                    "{} has ended and stays so; {} asks for the same once more ({})",
                    task.name, new.name, new.id
                );
                context.out.done(&new, &words)
            }
            Again::Nothing(why) => Err(Failure::new(
                Kind::Conflict,
                format!("there is nothing to try again: {why}"),
            )
            .fix(format!("`cynork task revise {id} \"…\"` has it done otherwise while it runs; `cynork run \"…\"` asks for something new"))),
        }
    }
}

/// The same words again, and what is to be done otherwise.
fn anew(task: &TaskView, otherwise: Option<&str>) -> Result<CreateTask> {
    let description = match otherwise {
        None => task.description.clone(),
        Some(text) => format!("{}\n\n{text}", task.description)
            .parse::<Prose>()
            .map_err(|error| Failure::invalid(error.to_string()))?,
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
    })
}

pub(super) async fn cancel(named: &Named, context: &Context) -> Result<()> {
    let id = named.id(context).await?;
    context.sure("It is stopped for good, and so is what depends on it. Sure?")?;
    let task: TaskView = sent(context, Call::to(operations::CANCEL_TASK, [&id])).await?;
    context.out.done(&task, &format!("{} was stopped", task.name))
}

pub(super) async fn parked(named: &Named, context: &Context) -> Result<()> {
    let id = named.id(context).await?;
    let park: Option<ParkView> =
        context.client.send(&Call::to(operations::GET_PARK, [&id])).await?;
    context.out.show(
        &park,
        |park| park.iter().map(|park| park.kind.as_str().to_owned()).collect(),
        |park, paint| match park {
            None => "it may ask models".to_owned(),
            Some(park) => {
                let kind = paint.dye(Style::Yellow, park.kind.as_str());
                let until = match park.until {
                    Some(until) => format!("until {until}"),
                    None => format!("until somebody lets it: cynork task unpark {id}"),
                };
                format!("it may not ask models, {until}\n{kind}: {}", shown(&park.reason))
            }
        },
    )
}

pub(super) async fn unpark(named: &Named, context: &Context) -> Result<()> {
    let id = named.id(context).await?;
    let none: Value = sent(context, Call::to(operations::UNPARK, [&id])).await?;
    context.out.done(&none, &format!("{id} may ask models again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: &str = "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

    fn timeline(state: &str, wait: Option<&str>) -> Timeline {
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
        let nothing = |why: &str| Again::Nothing(why.to_owned());
        for (state, wait, wanted) in [
            ("failed", None, Again::Anew),
            ("cancelled", None, Again::Anew),
            ("completed", None, nothing("it was completed")),
            ("running", Some("human_input"), Again::Answer(WAIT.parse().unwrap())),
            ("running", Some("paused"), Again::Resume),
            ("running", Some("approval"), nothing("it waits for a yes to its plan")),
            ("running", Some("job"), nothing("it goes on by itself: works at Plan Steps")),
            ("queued", None, nothing("it goes on by itself: works at Plan Steps")),
        ] {
            assert_eq!(again(&timeline(state, wait)), wanted, "{state} {wait:?}");
        }
    }

    #[test]
    fn an_answer_names_the_wait_whose_question_was_shown() {
        let wait = Some(WAIT.parse().unwrap());
        assert_eq!(answer(wait, "yes"), json!({ "text": "yes", "wait_id": WAIT }));
        assert_eq!(answer(None, "yes"), json!({ "text": "yes" }));
    }
}
