//! Planning: the first plan by class, context, scope and one question for units; a later plan by new instructions and
//! findings.

use cynode_core::{
    models::Tier,
    tuning::PLANNER_MAX_STEPS,
    workflow::{
        decisions::{IssueScope, StageUnits, WorkClass, workflow_stages},
        handoffs::{HandoffAnswer, PlanAnswer, ProjectContext},
        plan::{Plan, PlanFeedback, UnitKey},
        waits::{EndedWait, WaitResolution},
    },
};
use cynode_wire::manager::handoffs::{PlanRevision, TaskFacts};

use super::{
    super::{
        answers::{self, FREE_ANSWER_HINT, PersonAnswer},
        context::{self, RepositoryTree},
        fence,
        prompts::{self, PlanQuestion},
        rank::{MANAGER_TOOLS, rank_tools},
        types::{Classified, PlanProposal, Scoped},
        unit::UnitPayload,
    },
    criterion_texts, review_options,
    trace::{PlanningStop, PlanningTrace},
};
use crate::decision_context::{DecisionContext, DecisionError};

mod build;
mod extend;

/// Validation error for a proposal that asks again instead of planning.
const REPEATED_QUESTION_COMPLAINT: &str = "a person was asked already: give at least one unit, and say in `assumptions` what you take for granted";

/// Validation error for a proposal without units.
const NO_UNITS_COMPLAINT: &str = "there is no plan yet: give at least one unit, or a question";

/// Maximum number of tools in the trace.
const MAX_TRACED_TOOLS: usize = 5;

/// Input of planning.
pub(super) struct PlanningRequest<'a> {
    pub(super) before: Option<&'a Plan>,
    pub(super) feedback: &'a [PlanFeedback],
    pub(super) answer: Option<&'a EndedWait>,
    pub(super) attempt: u32,
    pub(super) begun: &'a [UnitKey],
}

/// Facts for the proposal of units.
struct PlanningFacts {
    class: WorkClass,
    scope: IssueScope,
    project: ProjectContext,
    tree: RepositoryTree,
    brief: String,
}

enum PlanningResult {
    Plan { plan: Plan, known: Box<PlanningFacts>, stop: PlanningStop },
    Ask(String),
}

pub(super) async fn plan_task(
    desk: &DecisionContext<'_>,
    request: PlanningRequest<'_>,
) -> Result<HandoffAnswer, DecisionError> {
    let task = super::handoff_task(desk)?;
    let mut trace = PlanningTrace::start_trace(desk, request.attempt, request.before.is_some());
    let goal = format!(
        "{} {}",
        task.name.replace('-', " "),
        fence::truncate_middle(&task.description, 6_000)
    );
    let ranked = rank_tools(&goal, MANAGER_TOOLS, MAX_TRACED_TOOLS);
    trace.record_tools(&ranked, MANAGER_TOOLS.len());
    let made = match make_plan(desk, task, &request).await {
        Ok(made) => made,
        Err(trouble) => {
            // The workflow decides about a retry, not the planner.
            trace.record_failure();
            return Err(trouble);
        }
    };
    Ok(match made {
        PlanningResult::Ask(question) => {
            HandoffAnswer::Ask { question: format!("{question}\n{FREE_ANSWER_HINT}") }
        }
        PlanningResult::Plan { plan, known, stop } => {
            let blind = ranked.is_empty() && known.tree.entries.is_empty();
            let stop = if blind && stop == PlanningStop::GoalMet {
                PlanningStop::NoRelevantTool
            } else {
                stop
            };
            let trace = trace.finish_trace(&plan, stop);
            let PlanningFacts { class, scope, project, .. } = *known;
            HandoffAnswer::Planned(PlanAnswer { plan, class, scope, project, trace })
        }
    })
}

async fn make_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    request: &PlanningRequest<'_>,
) -> Result<PlanningResult, DecisionError> {
    if let Some(PersonAnswer::Stop(why)) = answers::parse_free_answer(request.answer) {
        let why = format!("a person gave it up: {}", fence::sanitize_line(&why, 300));
        return Err(DecisionError::Permanent(why));
    }
    // A plan that was rejected before any unit was started is made anew, with the feedback.
    let refused = request.begun.is_empty()
        && request.answer.is_some_and(|wait| wait.resolution == WaitResolution::Rejected);
    match request.before {
        Some(before) if !refused => revise_plan(desk, task, before, request).await,
        Some(_) | None => make_first_plan(desk, task, request).await,
    }
}

/// Makes the first plan: reads the files, classifies, gathers context, assesses the scope, and requests units.
async fn make_first_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    request: &PlanningRequest<'_>,
) -> Result<PlanningResult, DecisionError> {
    let known = gather_facts(desk, task).await?;
    let stages = workflow_stages(known.class, known.scope);
    let fixed = stages.iter().filter(|stage| stage.units == StageUnits::One).count();
    let several = stages.iter().any(|stage| stage.units == StageUnits::Several);
    let most = max_plan_units(desk);
    let steps = most;
    let least = fixed + usize::from(several);
    if most < least {
        let why = format!("this workflow needs {least} steps, and only {most} may be planned");
        return Err(DecisionError::Permanent(why));
    }
    let most = if several { most - fixed } else { 1 };
    let useful = |made: &PlanProposal| {
        if !made.units.is_empty() || open_question(made, request.answer).is_some() {
            return Ok(());
        }
        let asked = answers::parse_free_answer(request.answer).is_some();
        Err(if asked { REPEATED_QUESTION_COMPLAINT } else { NO_UNITS_COMPLAINT }.to_owned())
    };
    let made = propose_units(desk, task, &known, request, &[], most, useful).await?;
    if let Some(question) = open_question(&made, request.answer) {
        return Ok(PlanningResult::Ask(question));
    }
    if made.units.is_empty() {
        return Err(DecisionError::Permanent("the plan has no units".into()));
    }
    let stop = if made.units.len() > most { PlanningStop::MaxSteps } else { PlanningStop::GoalMet };
    let plan = build::build_plan(desk, task, &known, &made, most, steps).await?;
    Ok(PlanningResult::Plan { plan, known: Box::new(known), stop })
}

/// Returns the maximum number of units of a first plan: the limit, with room below the hard maximum for revisions
/// by reviews and tests.
fn max_plan_units(desk: &DecisionContext<'_>) -> usize {
    let hard = usize::try_from(PLANNER_MAX_STEPS.max).unwrap_or(1);
    let rounds = usize::try_from(review_options(desk).max_review_iterations).unwrap_or(0);
    let room = rounds * 4 + 1;
    usize::try_from(desk.max_steps).unwrap_or(hard).clamp(1, hard).min(hard - room)
}

async fn gather_facts(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
) -> Result<PlanningFacts, DecisionError> {
    let tree = context::load_tree(desk, task.id).await?;
    let brief = context::find_brief(desk, task.id, &tree, &task.description).await?;
    let class = match &brief {
        Some(_) => WorkClass::NewProject,
        None => {
            let question =
                prompts::classify_prompt(&task.description, Some(&tree.render_listing()));
            desk.make_decision::<Classified>(&question).await?.class
        }
    };
    let project = context::gather_project_context(desk, task.id, &tree).await?;
    let scope = match class {
        WorkClass::QuickFix => IssueScope::Small,
        WorkClass::FeatureRequest | WorkClass::NewProject => {
            let facts =
                format!("{}\n{}", prompts::render_project_facts(&project), tree.render_listing());
            desk.make_decision::<Scoped>(&prompts::assess_scope_prompt(&task.description, &facts))
                .await?
                .scope
        }
    };
    Ok(PlanningFacts { class, scope, project, tree, brief: brief.unwrap_or_default() })
}

/// Requests units, and requests them again if `useful` rejects them.
async fn propose_units(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &PlanningFacts,
    request: &PlanningRequest<'_>,
    before: &[String],
    most: usize,
    useful: impl Fn(&PlanProposal) -> Result<(), String> + Send + Sync,
) -> Result<PlanProposal, DecisionError> {
    let feedback: Vec<String> = request
        .feedback
        .iter()
        .filter(|said| PlanRevision::from_feedback(said).is_none())
        .map(|said| format!("{}: {}", said.kind.as_str(), said.text))
        .collect();
    let answer = match answers::parse_free_answer(request.answer) {
        Some(PersonAnswer::Words(words) | PersonAnswer::Stop(words)) => Some(words),
        Some(PersonAnswer::Proceed) => Some("go on with what you assume".to_owned()),
        None => None,
    };
    let question = prompts::plan_prompt(&PlanQuestion {
        task: &task.description,
        criteria: &criterion_texts(task),
        class: known.class,
        scope: known.scope,
        project: &known.project,
        listing: &known.tree.render_listing(),
        brief: &known.brief,
        most,
        before,
        feedback: &feedback,
        asked: answers::question_text(request.answer).as_deref(),
        answer: answer.as_deref(),
    });
    let tier = match known.scope {
        IssueScope::Large => Tier::Deep,
        IssueScope::Trivial | IssueScope::Small | IssueScope::Medium => Tier::Standard,
    };
    desk.make_checked_decision::<PlanProposal>(&question, tier, useful).await
}

/// Returns the question to ask, if there is one. After one question, the plan uses its assumptions.
fn open_question(made: &PlanProposal, answer: Option<&EndedWait>) -> Option<String> {
    let question = fence::sanitize_text(&made.question, 1_000);
    (!question.is_empty() && answers::parse_free_answer(answer).is_none()).then_some(question)
}

/// Revises a plan. Findings of reviews and tests are applied by rule; for people's feedback a model is asked.
async fn revise_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    before: &Plan,
    request: &PlanningRequest<'_>,
) -> Result<PlanningResult, DecisionError> {
    let options = review_options(desk);
    let commands = super::planned_project(desk).build_commands;
    let mut plan = before.clone();
    let mut said = false;
    for feedback in request.feedback {
        match PlanRevision::from_feedback(feedback) {
            Some(revision) => {
                plan = extend::apply_revision(&plan, &revision, options, task, &commands)?;
            }
            None => said = true,
        }
    }
    if !said {
        let known = restore_facts(desk, &plan);
        return Ok(PlanningResult::Plan {
            plan,
            known: Box::new(known),
            stop: PlanningStop::GoalMet,
        });
    }
    let known = match &desk.handoff.context.planned {
        Some(_) => {
            let tree = context::load_tree(desk, task.id).await?;
            PlanningFacts { tree, ..restore_facts(desk, &plan) }
        }
        None => gather_facts(desk, task).await?,
    };
    // One unit is reserved for a review of the added units.
    let most = max_plan_units(desk).saturating_sub(plan.planned_units().len() + 1).max(1);
    let units: Vec<String> =
        plan.planned_units().iter().map(|unit| format!("{}: {}", unit.key, unit.title)).collect();
    let useful = |made: &PlanProposal| {
        if !made.units.is_empty() || open_question(made, request.answer).is_some() {
            return Ok(());
        }
        if made.leave_out.is_empty() {
            return Err(REPEATED_QUESTION_COMPLAINT.to_owned());
        }
        let gone = build::removable_units(&plan, made, request.begun).len();
        if gone < plan.planned_units().len() {
            Ok(())
        } else {
            Err(build::EMPTY_PLAN_COMPLAINT.to_owned())
        }
    };
    let made = propose_units(desk, task, &known, request, &units, most, useful).await?;
    if let Some(question) = open_question(&made, request.answer) {
        return Ok(PlanningResult::Ask(question));
    }
    let stop = if made.units.len() > most { PlanningStop::MaxSteps } else { PlanningStop::GoalMet };
    let plan = build::extend_plan(desk, &plan, &known, &made, most, request.begun).await?;
    Ok(PlanningResult::Plan { plan, known: Box::new(known), stop })
}

/// Restores the facts that were stored with the plan.
fn restore_facts(desk: &DecisionContext<'_>, plan: &Plan) -> PlanningFacts {
    let scope =
        plan.planned_units().iter().find_map(UnitPayload::from_unit).map(|payload| payload.scope);
    let planned = desk.handoff.context.planned.as_deref();
    PlanningFacts {
        class: planned.map_or(WorkClass::FeatureRequest, |planned| planned.class),
        scope: planned.map(|planned| planned.scope).or(scope).unwrap_or(IssueScope::Medium),
        project: super::planned_project(desk),
        tree: RepositoryTree::default(),
        brief: String::new(),
    }
}
