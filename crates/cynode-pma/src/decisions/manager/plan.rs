//! Planning: the first plan by class, context, scope and one question for units; a later plan by new instructions and
//! findings.

use cynode_core::{
    evidence::EvidenceCheck,
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
use serde_json::{Value, json};

use super::{
    super::{
        answers::{self, FREE_ANSWER_HINT, PersonAnswer},
        context::{self, RepositoryTree},
        fence,
        observation::{self, Observation},
        planning_trace::{DecidedBy, PlanningStop, PlanningTrace},
        prompts::{self, PlanQuestion},
        types::{Classified, PlanProposal, Scoped},
        unit::UnitPayload,
    },
    criterion_texts, find_preference, review_options,
};
use crate::decision_context::{DecisionContext, DecisionError, DecisionKind};

mod build;
mod extend;

/// Validation error for a proposal that asks again instead of planning.
const REPEATED_QUESTION_COMPLAINT: &str = "a person was asked already: give at least one unit, and say in `assumptions` what you take for granted";

/// Validation error for a proposal without units.
const NO_UNITS_COMPLAINT: &str = "there is no plan yet: give at least one unit, or a question";

/// Validation error for a proposal that wants to read what it has seen or what does not exist.
const NOTHING_TO_READ_COMPLAINT: &str =
    "`look_at` names nothing new: give at least one unit from what you know";

/// Maximum number and length of the requirements that are stored with a task.
const MAX_REQUIREMENTS: usize = 50;
const MAX_REQUIREMENT_CHARS: usize = 500;

/// Maximum number of files that are read because a proposal asks for them, in one step.
const MAX_FILES_PER_STEP: usize = 3;
/// Maximum length of such a file in a prompt.
const MAX_FILE_CHARS: usize = 3_000;
/// Maximum number of steps that begin with such files, and the maximum length of all observations in a prompt.
const MAX_LOOKS: u32 = 4;
const MAX_OBSERVED_CHARS: usize = 24_000;

/// Maximum length of the name of a profile in the trace.
const MAX_PROFILE_CHARS: usize = 100;

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
    /// Checks of the project's environment.
    environment_checks: Vec<EvidenceCheck>,
    tree: RepositoryTree,
    brief: String,
    /// What was looked up, in this order.
    observations: Vec<Observation>,
}

impl PlanningFacts {
    /// Returns what checks the final result of a plan.
    fn project_checks(&self) -> build::ProjectChecks<'_> {
        build::ProjectChecks {
            environment: &self.environment_checks,
            commands: &self.project.build_commands,
        }
    }
}

enum PlanningResult {
    Plan { plan: Plan, known: Box<PlanningFacts>, stop: PlanningStop },
    Ask(String),
}

/// Makes a plan in steps. Each step observes, reasons and acts; the trace has each of them when it happens.
pub(super) async fn plan_task(
    desk: &DecisionContext<'_>,
    request: PlanningRequest<'_>,
) -> Result<HandoffAnswer, DecisionError> {
    let task = super::handoff_task(desk)?;
    let context = &desk.handoff.context;
    let preferred = ["agents.project_manager.profile", "memory.profile"]
        .into_iter()
        .find_map(|key| find_preference(&context.preferences, key)?.as_str());
    let profile = context
        .profile
        .as_deref()
        .or(preferred)
        .map(|name| fence::sanitize_line(name, MAX_PROFILE_CHARS))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned());
    let again = request.before.is_some();
    let trace = PlanningTrace::start_trace(desk, &profile, request.attempt, again);
    let made = match make_plan(desk, task, &request, &trace).await {
        Ok(made) => made,
        Err(trouble) => {
            // The workflow decides about a retry, not the planner. The error counts more than a lost event.
            let _ = trace.finish_trace(PlanningStop::from_error(&trouble), None).await;
            return Err(trouble);
        }
    };
    Ok(match made {
        PlanningResult::Ask(question) => {
            trace.finish_trace(PlanningStop::Question, None).await?;
            HandoffAnswer::Ask { question: format!("{question}\n{FREE_ANSWER_HINT}") }
        }
        PlanningResult::Plan { plan, known, stop } => {
            let blind = known.observations.is_empty() && known.tree.entries.is_empty();
            let stop = if blind && stop == PlanningStop::GoalMet {
                PlanningStop::NoRelevantTool
            } else {
                stop
            };
            trace.finish_trace(stop, Some(plan.planned_units().len())).await?;
            let PlanningFacts { class, scope, project, .. } = *known;
            HandoffAnswer::Planned(PlanAnswer { plan, class, scope, project })
        }
    })
}

/// Returns the text by which tools are ranked.
fn planning_goal(task: &TaskFacts) -> String {
    format!("{} {}", task.name.replace('-', " "), fence::truncate_middle(&task.description, 6_000))
}

async fn make_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    request: &PlanningRequest<'_>,
    trace: &PlanningTrace<'_>,
) -> Result<PlanningResult, DecisionError> {
    if let Some(PersonAnswer::Stop(why)) = answers::parse_free_answer(request.answer) {
        let why = format!("a person gave it up: {}", fence::sanitize_line(&why, 300));
        return Err(DecisionError::Permanent(why));
    }
    // A plan that was rejected before any unit was started is made anew, with the feedback.
    let refused = request.begun.is_empty()
        && request.answer.is_some_and(|wait| wait.resolution == WaitResolution::Rejected);
    match request.before {
        Some(before) if !refused => revise_plan(desk, task, before, request, trace).await,
        Some(_) | None => make_first_plan(desk, task, request, trace).await,
    }
}

/// Makes the first plan: reads the files, classifies, gathers context, assesses the scope, and requests units.
async fn make_first_plan(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    request: &PlanningRequest<'_>,
    trace: &PlanningTrace<'_>,
) -> Result<PlanningResult, DecisionError> {
    let mut known = gather_facts(desk, task, trace).await?;
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
    let (made, forced) =
        propose_in_steps(desk, task, &mut known, request, &[], most, useful, trace).await?;
    if let Some(question) = open_question(&made, request.answer) {
        return Ok(PlanningResult::Ask(question));
    }
    if made.units.is_empty() {
        return Err(DecisionError::Permanent("the plan has no units".into()));
    }
    let stop = stop_of_proposal(&made, most, forced);
    let plan = build::build_plan(desk, task, &known, &made, most, steps).await?;
    refine_task(desk, task, &known, &plan, trace).await?;
    Ok(PlanningResult::Plan { plan, known: Box::new(known), stop })
}

/// Stores how the task is understood, so that people and later work see it with the task.
async fn refine_task(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &PlanningFacts,
    plan: &Plan,
    trace: &PlanningTrace<'_>,
) -> Result<(), DecisionError> {
    let mut requirements: Vec<String> = Vec::new();
    for brief in plan.planned_units().iter().filter_map(UnitPayload::from_unit).map(|it| it.brief) {
        for text in brief.requirements {
            let text = fence::sanitize_line(&text, MAX_REQUIREMENT_CHARS);
            if !text.is_empty() && !requirements.contains(&text) {
                requirements.push(text);
            }
        }
    }
    requirements.truncate(MAX_REQUIREMENTS);
    let assumptions: Vec<_> = plan.assumptions().iter().map(|it| it.as_str()).collect();
    let arguments = json!({
        "task_id": task.id, "class": known.class, "scope": known.scope,
        "requirements": requirements, "assumptions": assumptions,
    });
    desk.call_tool("db.task.refine", arguments).await?;
    trace.record_action("refine_task", &json!({ "requirements": requirements.len() }));
    Ok(())
}

/// Returns why the steps ended with this proposal.
fn stop_of_proposal(
    made: &PlanProposal,
    most: usize,
    forced: Option<PlanningStop>,
) -> PlanningStop {
    if made.units.len() > most {
        PlanningStop::MaxSteps
    } else {
        forced.unwrap_or(PlanningStop::GoalMet)
    }
}

/// Returns the maximum number of units of a first plan: the limit, with room below the hard maximum for revisions
/// by reviews and tests.
fn max_plan_units(desk: &DecisionContext<'_>) -> usize {
    let hard = usize::try_from(PLANNER_MAX_STEPS.max).unwrap_or(1);
    let rounds = usize::try_from(review_options(desk).max_review_iterations).unwrap_or(0);
    let room = rounds * 4 + 1;
    usize::try_from(desk.max_steps).unwrap_or(hard).clamp(1, hard).min(hard - room)
}

/// Gathers the facts of a plan in three steps: what the input asks for, what the project is, how much of it is affected.
async fn gather_facts(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    trace: &PlanningTrace<'_>,
) -> Result<PlanningFacts, DecisionError> {
    trace.begin_step();
    let tree = context::load_tree(desk, task.id).await?;
    let brief = context::find_brief(desk, task.id, &tree, &task.description).await?;
    trace.record_observation(&format!("the repository has {} files", tree.file_count()));
    let class = match &brief {
        Some(_) => {
            let (class, why) = (WorkClass::NewProject, "there is a project brief");
            trace.record_reason(DecisionKind::Classify, DecidedBy::Rule, &json!(class), why);
            class
        }
        None => {
            let question =
                prompts::classify_prompt(&task.description, Some(&tree.render_listing()));
            let Classified { class, reason } = desk.make_decision(&question).await?;
            trace.record_reason(DecisionKind::Classify, DecidedBy::Model, &json!(class), &reason);
            class
        }
    };
    trace.record_action("set_class", &json!(class));

    trace.begin_step();
    let goal = planning_goal(task);
    let observations = observation::observe_by_tools(desk, &goal, trace).await?;
    let mut project = context::gather_project_context(desk, task.id, &tree, trace).await?;
    let environment_checks = super::environment_checks(desk);
    project.build_commands =
        super::join_commands(&environment_checks, std::mem::take(&mut project.build_commands));
    let commands = json!({ "build_commands": project.build_commands.len() });
    trace.record_action("keep_project_context", &commands);

    trace.begin_step();
    trace.record_observation("nothing new is read: the scope follows from what is known");
    let scope = match class {
        WorkClass::QuickFix => {
            let (scope, why) = (IssueScope::Small, "a quick fix is small");
            trace.record_reason(DecisionKind::AssessScope, DecidedBy::Rule, &json!(scope), why);
            scope
        }
        WorkClass::FeatureRequest | WorkClass::NewProject => {
            let facts =
                format!("{}\n{}", prompts::render_project_facts(&project), tree.render_listing());
            let question = prompts::assess_scope_prompt(&task.description, &facts);
            let Scoped { scope, reason, .. } = desk.make_decision(&question).await?;
            let kind = DecisionKind::AssessScope;
            trace.record_reason(kind, DecidedBy::Model, &json!(scope), &reason);
            scope
        }
    };
    trace.record_action("set_scope", &json!(scope));
    let brief = brief.unwrap_or_default();
    Ok(PlanningFacts { class, scope, project, environment_checks, tree, brief, observations })
}

/// Requests units in steps. A proposal may name files to read first: they are read, and the units are requested again, until there are
/// units or a question, or nothing new can be read, or the steps are used up. Returns what ended the steps early, if something did.
#[expect(clippy::too_many_arguments, reason = "the facts of one planning, used here only")]
async fn propose_in_steps(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &mut PlanningFacts,
    request: &PlanningRequest<'_>,
    before: &[String],
    most: usize,
    useful: impl Fn(&PlanProposal) -> Result<(), String> + Send + Sync,
    trace: &PlanningTrace<'_>,
) -> Result<(PlanProposal, Option<PlanningStop>), DecisionError> {
    let (mut round, mut wanted, mut forced) = (1, Vec::new(), None);
    let max_rounds = desk.max_steps.min(MAX_LOOKS + 1);
    loop {
        trace.begin_step();
        let read = read_wanted_files(desk, task, known, &wanted).await?;
        let learned = match (wanted.len(), read) {
            (0, _) => "the plan is made from what is known".to_owned(),
            (_, read) => format!("{read} of {} files could be read", wanted.len()),
        };
        trace.record_observation(&learned);
        if !wanted.is_empty() && read == 0 {
            forced = Some(PlanningStop::NothingNew);
        } else if round >= max_rounds {
            // A plan that is made with the last step is no forced one, unless the planner wanted another.
            forced = (round > 1).then_some(PlanningStop::MaxSteps);
        }
        let may_look = forced.is_none() && round < max_rounds;
        let rule = |made: &PlanProposal| {
            let asks = open_question(made, request.answer).is_some();
            if made.units.is_empty()
                && made.leave_out.is_empty()
                && !asks
                && !made.look_at.is_empty()
            {
                let new = may_look && !new_paths(known, &made.look_at).is_empty();
                return if new { Ok(()) } else { Err(NOTHING_TO_READ_COMPLAINT.to_owned()) };
            }
            useful(made)
        };
        let made = propose_units(desk, task, known, request, before, most, may_look, rule).await?;
        let decided = json!({
            "units": made.units.len(), "leave_out": made.leave_out.len(), "look_at": made.look_at.len(),
        });
        trace.record_reason(DecisionKind::Plan, DecidedBy::Model, &decided, &made.reason);
        if open_question(&made, request.answer).is_some() {
            trace.record_action("ask", &Value::Null);
            return Ok((made, None));
        }
        if !made.units.is_empty() || !made.leave_out.is_empty() || made.look_at.is_empty() {
            trace.record_action("propose", &json!(made.units.len()));
            return Ok((made, forced));
        }
        wanted = new_paths(known, &made.look_at);
        trace.record_action("look", &json!(wanted));
        round += 1;
    }
}

/// Returns the files that are wanted, exist and were not read yet.
fn new_paths(known: &PlanningFacts, wanted: &[String]) -> Vec<String> {
    let mut new: Vec<String> = Vec::new();
    for path in wanted {
        let seen = known.observations.iter().any(|seen| seen.source == *path);
        if known.tree.has_file(path) && !seen && !new.contains(path) {
            new.push(path.clone());
        }
    }
    new.truncate(MAX_FILES_PER_STEP);
    new
}

/// Reads the files that a proposal asked for. Returns how many could be read.
async fn read_wanted_files(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &mut PlanningFacts,
    wanted: &[String],
) -> Result<usize, DecisionError> {
    let mut count = 0;
    for path in wanted {
        let text = match context::read_file(desk, task.id, path).await {
            Ok(text) => text,
            Err(
                trouble @ (DecisionError::Refused { .. }
                | DecisionError::Untraced(_)
                | DecisionError::Paused),
            ) => return Err(trouble),
            // It is recorded as failed; the plan is made without it.
            Err(_) => None,
        };
        // An empty file teaches nothing.
        if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
            let seen: usize = known.observations.iter().map(|seen| seen.text.len()).sum();
            let room = MAX_OBSERVED_CHARS.saturating_sub(seen).min(MAX_FILE_CHARS);
            let text = fence::truncate_middle(&text, room);
            known.observations.push(Observation { source: path.clone(), text });
            count += 1;
        }
    }
    Ok(count)
}

/// Requests units, and requests them again if `useful` rejects them.
#[expect(clippy::too_many_arguments, reason = "the facts of one planning, used here only")]
async fn propose_units(
    desk: &DecisionContext<'_>,
    task: &TaskFacts,
    known: &PlanningFacts,
    request: &PlanningRequest<'_>,
    before: &[String],
    most: usize,
    may_look: bool,
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
    let observations: Vec<(&str, &str)> =
        known.observations.iter().map(|seen| (seen.source.as_str(), seen.text.as_str())).collect();
    let question = prompts::plan_prompt(&PlanQuestion {
        task: &task.description,
        criteria: &criterion_texts(task),
        class: known.class,
        scope: known.scope,
        project: &known.project,
        listing: &known.tree.render_listing(),
        brief: &known.brief,
        observations: &observations,
        may_look,
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
    trace: &PlanningTrace<'_>,
) -> Result<PlanningResult, DecisionError> {
    let options = review_options(desk);
    let environment = super::environment_checks(desk);
    let commands = super::join_commands(&environment, super::planned_project(desk).build_commands);
    let checks = build::ProjectChecks { environment: &environment, commands: &commands };
    let mut plan = before.clone();
    let mut said = false;
    for feedback in request.feedback {
        match PlanRevision::from_feedback(feedback) {
            Some(revision) => {
                plan = extend::apply_revision(&plan, &revision, options, task, checks)?;
            }
            None => said = true,
        }
    }
    if !said {
        trace.begin_step();
        trace.record_observation("findings came with the request");
        let why = "findings of reviews and tests are applied by rule";
        let revised = json!({ "findings": request.feedback.len() });
        trace.record_reason(DecisionKind::Plan, DecidedBy::Rule, &revised, why);
        trace.record_action("propose", &json!(plan.planned_units().len()));
        let known = restore_facts(desk, &plan);
        return Ok(PlanningResult::Plan {
            plan,
            known: Box::new(known),
            stop: PlanningStop::GoalMet,
        });
    }
    let mut known = match &desk.handoff.context.planned {
        Some(_) => {
            trace.begin_step();
            let tree = context::load_tree(desk, task.id).await?;
            let observations =
                observation::observe_by_tools(desk, &planning_goal(task), trace).await?;
            trace.record_observation(&format!("the repository has {} files", tree.file_count()));
            let why = "class, scope and context were kept with the earlier plan";
            let known = PlanningFacts { tree, observations, ..restore_facts(desk, &plan) };
            let decided = json!({ "class": known.class, "scope": known.scope });
            trace.record_reason(DecisionKind::AssessScope, DecidedBy::Rule, &decided, why);
            trace.record_action("keep_facts", &Value::Null);
            known
        }
        None => gather_facts(desk, task, trace).await?,
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
    let (made, forced) =
        propose_in_steps(desk, task, &mut known, request, &units, most, useful, trace).await?;
    if let Some(question) = open_question(&made, request.answer) {
        return Ok(PlanningResult::Ask(question));
    }
    let stop = stop_of_proposal(&made, most, forced);
    let plan = build::extend_plan(desk, &plan, &known, &made, most, request.begun).await?;
    refine_task(desk, task, &known, &plan, trace).await?;
    Ok(PlanningResult::Plan { plan, known: Box::new(known), stop })
}

/// Restores the facts that were stored with the plan.
fn restore_facts(desk: &DecisionContext<'_>, plan: &Plan) -> PlanningFacts {
    let scope =
        plan.planned_units().iter().find_map(UnitPayload::from_unit).map(|payload| payload.scope);
    let planned = desk.handoff.context.planned.as_deref();
    let environment_checks = super::environment_checks(desk);
    let mut project = super::planned_project(desk);
    project.build_commands =
        super::join_commands(&environment_checks, std::mem::take(&mut project.build_commands));
    PlanningFacts {
        class: planned.map_or(WorkClass::FeatureRequest, |planned| planned.class),
        scope: planned.map(|planned| planned.scope).or(scope).unwrap_or(IssueScope::Medium),
        project,
        environment_checks,
        tree: RepositoryTree::default(),
        brief: String::new(),
        observations: Vec::new(),
    }
}
