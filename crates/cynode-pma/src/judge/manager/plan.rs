//! Plans: the first one by class, context, scope and one question for units; a later one by what was said or found since.

use cynode_core::{
    judgement::{IssueScope, Units, WorkClass, workflow},
    models::Tier,
    tuning::PLANNER_MAX_STEPS,
    workflow::plan::{Plan, UnitKey},
};
use cynode_wire::{
    handoffs::{HandoffAnswer, Planned, ProjectContext, Revision, TaskFacts},
    workflow::{EndedWait, Feedback, Resolution},
};

use super::{
    super::{
        answers::{self, OWN_WORDS, Said},
        context::{self, Tree},
        decisions::{Classified, PlanMade, Scoped},
        fence,
        prompts::{self, PlanQuestion},
        rank::{MANAGER_TOOLS, rank},
        unit::UnitPayload,
    },
    criteria, options,
    trace::{Stop, Trace},
};
use crate::desk::{Desk, Trouble};

mod build;
mod extend;

/// What a model is told that asks again instead of planning.
const ASSUME: &str = "a person was asked already: give at least one unit, and say in `assumptions` what you take for granted";

/// What a model is told that leaves out what is not there.
const BEGIN: &str = "there is no plan yet: give at least one unit, or a question";

/// Most tools that a plan is said to be about.
const MOST_TOOLS: usize = 5;

/// What a plan is asked from.
pub(super) struct Request<'a> {
    pub(super) before: Option<&'a Plan>,
    pub(super) feedback: &'a [Feedback],
    pub(super) answer: Option<&'a EndedWait>,
    pub(super) attempt: u32,
    pub(super) begun: &'a [UnitKey],
}

/// What is known when units are asked for.
struct Known {
    class: WorkClass,
    scope: IssueScope,
    project: ProjectContext,
    tree: Tree,
    brief: String,
}

enum Made {
    Plan { plan: Plan, known: Box<Known>, stop: Stop },
    Ask(String),
}

pub(super) async fn plan(desk: &Desk<'_>, request: Request<'_>) -> Result<HandoffAnswer, Trouble> {
    let task = super::task(desk)?;
    let mut trace = Trace::start(desk, request.attempt, request.before.is_some());
    let goal = format!("{} {}", task.name.replace('-', " "), fence::cut(&task.description, 6_000));
    let ranked = rank(&goal, MANAGER_TOOLS, MOST_TOOLS);
    trace.tools(&ranked, MANAGER_TOOLS.len());
    let made = match make(desk, task, &request).await {
        Ok(made) => made,
        Err(trouble) => {
            // Whether it is tried again is for the workflow, not for the planner.
            trace.failed();
            return Err(trouble);
        }
    };
    Ok(match made {
        Made::Ask(question) => HandoffAnswer::Ask { question: format!("{question}\n{OWN_WORDS}") },
        Made::Plan { plan, known, stop } => {
            let blind = ranked.is_empty() && known.tree.entries.is_empty();
            let stop = if blind && stop == Stop::GoalMet { Stop::NoRelevantTool } else { stop };
            let trace = trace.finish(&plan, stop);
            let Known { class, scope, project, .. } = *known;
            HandoffAnswer::Planned(Planned { plan, class, scope, project, trace })
        }
    })
}

async fn make(desk: &Desk<'_>, task: &TaskFacts, request: &Request<'_>) -> Result<Made, Trouble> {
    if let Some(Said::Stop(why)) = answers::in_own_words(request.answer) {
        let why = format!("a person gave it up: {}", fence::line(&why, 300));
        return Err(Trouble::Permanent(why));
    }
    // A plan that was refused before anything of it was begun is made afresh, with what was said.
    let refused = request.begun.is_empty()
        && request.answer.is_some_and(|wait| wait.resolution == Resolution::Rejected);
    match request.before {
        Some(before) if !refused => again(desk, task, before, request).await,
        Some(_) | None => first(desk, task, request).await,
    }
}

/// The first plan: looks at the files, classifies, gathers context, assesses the scope, and asks for units.
async fn first(desk: &Desk<'_>, task: &TaskFacts, request: &Request<'_>) -> Result<Made, Trouble> {
    let known = know(desk, task).await?;
    let stages = workflow(known.class, known.scope);
    let fixed = stages.iter().filter(|stage| stage.units == Units::One).count();
    let several = stages.iter().any(|stage| stage.units == Units::Several);
    let most = most_steps(desk);
    let steps = most;
    let least = fixed + usize::from(several);
    if most < least {
        let why = format!("this workflow needs {least} steps, and only {most} may be planned");
        return Err(Trouble::Permanent(why));
    }
    let most = if several { most - fixed } else { 1 };
    let useful = |made: &PlanMade| {
        if !made.units.is_empty() || question(made, request.answer).is_some() {
            return Ok(());
        }
        let asked = answers::in_own_words(request.answer).is_some();
        Err(if asked { ASSUME } else { BEGIN }.to_owned())
    };
    let made = ask(desk, task, &known, request, &[], most, useful).await?;
    if let Some(question) = question(&made, request.answer) {
        return Ok(Made::Ask(question));
    }
    if made.units.is_empty() {
        return Err(Trouble::Permanent("the plan has no units".into()));
    }
    let stop = if made.units.len() > most { Stop::MaxSteps } else { Stop::GoalMet };
    let plan = build::plan(desk, task, &known, &made, most, steps).await?;
    Ok(Made::Plan { plan, known: Box::new(known), stop })
}

/// How many units a first plan may have: the limit, and room for what reviews and tests send back.
fn most_steps(desk: &Desk<'_>) -> usize {
    let hard = usize::try_from(PLANNER_MAX_STEPS.max).unwrap_or(1);
    let rounds = usize::try_from(options(desk).max_review_iterations).unwrap_or(0);
    let room = rounds * 4 + 1;
    usize::try_from(desk.max_steps).unwrap_or(hard).clamp(1, hard).min(hard - room)
}

async fn know(desk: &Desk<'_>, task: &TaskFacts) -> Result<Known, Trouble> {
    let tree = context::look(desk, task.id).await?;
    let brief = context::brief(desk, task.id, &tree, &task.description).await?;
    let class = match &brief {
        Some(_) => WorkClass::NewProject,
        None => {
            let question = prompts::classify(&task.description, Some(&tree.listing()));
            desk.think::<Classified>(&question).await?.class
        }
    };
    let project = context::gather(desk, task.id, &tree).await?;
    let scope = match class {
        WorkClass::QuickFix => IssueScope::Small,
        WorkClass::FeatureRequest | WorkClass::NewProject => {
            let facts = format!("{}\n{}", prompts::facts(&project), tree.listing());
            desk.think::<Scoped>(&prompts::assess_scope(&task.description, &facts)).await?.scope
        }
    };
    Ok(Known { class, scope, project, tree, brief: brief.unwrap_or_default() })
}

/// Asks for units, and again where they are not `useful`.
async fn ask(
    desk: &Desk<'_>,
    task: &TaskFacts,
    known: &Known,
    request: &Request<'_>,
    before: &[String],
    most: usize,
    useful: impl Fn(&PlanMade) -> Result<(), String> + Send + Sync,
) -> Result<PlanMade, Trouble> {
    let feedback: Vec<String> = request
        .feedback
        .iter()
        .filter(|said| Revision::read(said).is_none())
        .map(|said| format!("{}: {}", said.kind.as_str(), said.text))
        .collect();
    let answer = match answers::in_own_words(request.answer) {
        Some(Said::Words(words) | Said::Stop(words)) => Some(words),
        Some(Said::Proceed) => Some("go on with what you assume".to_owned()),
        None => None,
    };
    let question = prompts::plan(&PlanQuestion {
        task: &task.description,
        criteria: &criteria(task),
        class: known.class,
        scope: known.scope,
        project: &known.project,
        listing: &known.tree.listing(),
        brief: &known.brief,
        most,
        before,
        feedback: &feedback,
        asked: answers::asked(request.answer).as_deref(),
        answer: answer.as_deref(),
    });
    let tier = match known.scope {
        IssueScope::Large => Tier::Deep,
        IssueScope::Trivial | IssueScope::Small | IssueScope::Medium => Tier::Standard,
    };
    desk.think_by::<PlanMade>(&question, tier, useful).await
}

/// What is to be asked, if anything. Once a person was asked, the plan goes by what it assumes.
fn question(made: &PlanMade, answer: Option<&EndedWait>) -> Option<String> {
    let question = fence::clean(&made.question, 1_000);
    (!question.is_empty() && answers::in_own_words(answer).is_none()).then_some(question)
}

/// A plan that is made anew: what reviews and tests found is added by rule; what people said is thought about.
async fn again(
    desk: &Desk<'_>,
    task: &TaskFacts,
    before: &Plan,
    request: &Request<'_>,
) -> Result<Made, Trouble> {
    let options = options(desk);
    let commands = super::project(desk).build_commands;
    let mut plan = before.clone();
    let mut said = false;
    for feedback in request.feedback {
        match Revision::read(feedback) {
            Some(revision) => {
                plan = extend::revised(&plan, &revision, options, task, &commands)?;
            }
            None => said = true,
        }
    }
    if !said {
        let known = remembered(desk, &plan);
        return Ok(Made::Plan { plan, known: Box::new(known), stop: Stop::GoalMet });
    }
    let known = match &desk.handoff.context.planned {
        Some(_) => {
            let tree = context::look(desk, task.id).await?;
            Known { tree, ..remembered(desk, &plan) }
        }
        None => know(desk, task).await?,
    };
    // Room for a review of what is added.
    let most = most_steps(desk).saturating_sub(plan.steps().len() + 1).max(1);
    let units: Vec<String> =
        plan.steps().iter().map(|unit| format!("{}: {}", unit.key, unit.title)).collect();
    let useful = |made: &PlanMade| {
        if !made.units.is_empty() || question(made, request.answer).is_some() {
            return Ok(());
        }
        if made.leave_out.is_empty() {
            return Err(ASSUME.to_owned());
        }
        let gone = build::left_out(&plan, made, request.begun).len();
        if gone < plan.steps().len() { Ok(()) } else { Err(build::NOTHING_LEFT.to_owned()) }
    };
    let made = ask(desk, task, &known, request, &units, most, useful).await?;
    if let Some(question) = question(&made, request.answer) {
        return Ok(Made::Ask(question));
    }
    let stop = if made.units.len() > most { Stop::MaxSteps } else { Stop::GoalMet };
    let plan = build::more(desk, &plan, &known, &made, most, request.begun).await?;
    Ok(Made::Plan { plan, known: Box::new(known), stop })
}

/// What was known when the plan was made.
fn remembered(desk: &Desk<'_>, plan: &Plan) -> Known {
    let scope = plan.steps().iter().find_map(UnitPayload::of).map(|payload| payload.scope);
    let planned = desk.handoff.context.planned.as_deref();
    Known {
        class: planned.map_or(WorkClass::FeatureRequest, |planned| planned.class),
        scope: planned.map(|planned| planned.scope).or(scope).unwrap_or(IssueScope::Medium),
        project: super::project(desk),
        tree: Tree::default(),
        brief: String::new(),
    }
}
