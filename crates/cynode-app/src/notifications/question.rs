//! The exact question that a person is asked.

use std::fmt::Write as _;

use cynode_core::{
    budget::{Amount, Currency},
    ids::{ApprovalId, ProjectId, TaskId, UserId, WaitId},
    tasks::Criterion,
    workflow::{environments::PROPOSAL_QUESTION_START, plan::PlanText, waits::WaitReason},
};
use cynode_db::{
    Conn,
    identity::accounts,
    tasks::{self, projects},
    tools::approvals::{self, ApprovalState},
    workflow::{self, timeline, waits},
};
use cynode_notify::{escape_hidden_chars, to_single_line};
use serde_json::Value;
use time::OffsetDateTime;

use super::link_token::QuestionRef;
use crate::{Error, nodes::job_reports::PERMISSION_TOOL, platform::keys::InstallationKeys};

/// A question in its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanQuestion {
    /// Reference to the question.
    pub asked: QuestionRef,
    /// Project of the question.
    pub project: Option<ProjectId>,
    /// Task that asks.
    pub task: Option<TaskId>,
    /// Title in one line.
    pub title: String,
    /// Exact text that is to be decided about.
    pub exact: String,
    /// Who asks, and the cost so far.
    pub circumstances: QuestionContext,
    /// Whether it is unanswered and has not expired.
    pub open: bool,
    /// Expiry, if any.
    pub until: Option<OffsetDateTime>,
}

/// Context of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuestionContext {
    /// Name of the asking agent or user.
    pub who: String,
    /// Name of the task.
    pub task: Option<String>,
    /// Title of the project.
    pub project: Option<String>,
    /// Cost of the task so far, in millionths.
    pub cost_micros: i64,
    /// Budget of the task, in millionths.
    pub limit_micros: Option<i64>,
    /// Currency of the amounts.
    pub currency: Currency,
}

impl QuestionContext {
    /// Renders the spent amount and the budget with the currency.
    pub fn render_spending(&self) -> String {
        let (spent, currency) = (format_money(self.cost_micros), self.currency);
        match self.limit_micros {
            Some(limit) => format!("{spent} of {} {currency}", format_money(limit)),
            None => format!("{spent} {currency}"),
        }
    }
}

/// Returns the question, whether open or answered.
pub(crate) async fn find_question(
    conn: &mut Conn,
    keys: &InstallationKeys,
    asked: QuestionRef,
    now: OffsetDateTime,
) -> Result<Option<HumanQuestion>, Error> {
    match asked {
        QuestionRef::Approval(id) => load_approval_question(conn, keys, id, now).await,
        QuestionRef::Plan(id) => load_wait_question(conn, asked, id, WaitReason::Approval).await,
        QuestionRef::Answer(id) => {
            load_wait_question(conn, asked, id, WaitReason::HumanInput).await
        }
    }
}

async fn load_approval_question(
    conn: &mut Conn,
    keys: &InstallationKeys,
    id: ApprovalId,
    now: OffsetDateTime,
) -> Result<Option<HumanQuestion>, Error> {
    let Some(found) = approvals::get_approval(conn, id).await? else { return Ok(None) };
    let arguments = crate::tools::approvals::unseal_arguments(&found, keys);
    let open = found.state == ApprovalState::Asked
        && found.expires_at > now
        && arguments.is_some()
        && approvals::is_requester_active(conn, found.asked.agent, now).await?;
    let (title, exact) = describe_call(&found.asked.tool, &arguments.unwrap_or_default());
    let who = if found.asked.rules.is_empty() {
        "an agent at work".to_owned()
    } else {
        to_single_line(&format!("an agent, held by the rules {}", found.asked.rules.join(", ")))
    };
    let (task, project) = (found.asked.task, found.asked.project);
    let circumstances = load_question_context(conn, who, task, project).await?;
    let asked = QuestionRef::Approval(id);
    let until = Some(found.expires_at);
    Ok(Some(HumanQuestion { asked, project, task, title, exact, circumstances, open, until }))
}

/// Returns the title and the exact text of a call.
pub(super) fn describe_call(tool: &str, arguments: &Value) -> (String, String) {
    if tool == PERMISSION_TOOL {
        let said = arguments["title"].as_str().unwrap_or("it wants to do something");
        return (
            to_single_line(&format!("May an agent do this? {said}")),
            render_fields(&arguments["input"]),
        );
    }
    let tool = to_single_line(tool);
    (format!("May an agent call {tool}?"), format!("{tool}\n{}", render_fields(arguments)))
}

/// Returns the title of a task's question. One about the environment says that nothing has begun: nobody may look at a task that a
/// schedule or an issue made.
pub(super) fn describe_asking_task(task: &str, question: &str) -> String {
    if question.contains(PROPOSAL_QUESTION_START) {
        format!("{task} does not begin until somebody decides about the environment of its project")
    } else {
        format!("{task} asks a question")
    }
}

/// Returns the exact text of a plan with the checks of the task, or the question if there is no plan.
pub(super) fn describe_plan(
    plan: Option<Value>,
    question: String,
    criteria: &[Criterion],
) -> String {
    let plan = plan.and_then(|plan| serde_json::from_value::<PlanText>(plan).ok());
    let exact = plan.map_or(question, |plan| render_plan(&plan));
    [exact, render_own_checks(criteria)].concat()
}

async fn load_wait_question(
    conn: &mut Conn,
    asked: QuestionRef,
    id: WaitId,
    reason: WaitReason,
) -> Result<Option<HumanQuestion>, Error> {
    let Some(wait) = waits::get_wait(conn, id).await?.filter(|wait| wait.reason == reason) else {
        return Ok(None);
    };
    let Some(task) = tasks::get_task(conn, wait.task).await? else { return Ok(None) };
    let question = escape_hidden_chars(
        wait.question.as_deref().unwrap_or("It did not say what it wants to know."),
    );
    let (title, exact) = match reason {
        WaitReason::Approval => {
            let standing = workflow::get_run_status(conn, task.id).await?;
            let state = standing.and_then(|standing| standing.checkpoint).map(|at| at.state);
            let plan = state.and_then(|mut state| state.get_mut("plan").map(Value::take));
            let exact = describe_plan(plan, question, &task.acceptance_criteria);
            (format!("May the plan of {} be carried out?", task.name), exact)
        }
        _ => (describe_asking_task(task.name.as_str(), &question), question),
    };
    let who = "the project manager".to_owned();
    let circumstances = load_question_context(conn, who, Some(task.id), Some(task.project)).await?;
    let (project, task, open) = (Some(task.project), Some(task.id), wait.open);
    let until = wait.expires_at;
    Ok(Some(HumanQuestion { asked, project, task, title, exact, circumstances, open, until }))
}

/// Loads the context of a task and a project.
pub(crate) async fn load_question_context(
    conn: &mut Conn,
    who: String,
    task: Option<TaskId>,
    project: Option<ProjectId>,
) -> Result<QuestionContext, Error> {
    let mut around = QuestionContext { who, ..QuestionContext::default() };
    around.currency = crate::platform::settings::currency_setting(conn).await?;
    if let Some(id) = task {
        if let Some(task) = tasks::get_task(conn, id).await? {
            around.limit_micros = task.budget.max_cost_micros.map(Amount::as_i64);
            around.task = Some(task.name.into());
        }
        around.cost_micros = timeline::run_cost_micros(conn, id).await?;
    }
    if let Some(id) = project {
        around.project = projects::get_project(conn, id)
            .await?
            .map(|project| to_single_line(project.title.as_str()));
    }
    Ok(around)
}

/// Renders the plan as a list of units with their dependencies.
fn render_plan(plan: &PlanText) -> String {
    let mut text = String::new();
    for (number, unit) in plan.steps.iter().enumerate() {
        let title = indent_lines(&escape_hidden_chars(unit.title.as_str()));
        let _ = write!(text, "{}. {} ({})", number + 1, title, unit.key);
        if !unit.depends_on.is_empty() {
            let before: Vec<_> = unit.depends_on.iter().map(ToString::to_string).collect();
            let _ = write!(text, ", after {}", before.join(", "));
        }
        text.push('\n');
    }
    for taken in &plan.assumptions {
        let _ = writeln!(
            text,
            "Taken for granted: {}",
            indent_lines(&escape_hidden_chars(taken.as_str()))
        );
    }
    text.truncate(text.trim_end().len());
    text
}

/// Renders the checks of the task's own criteria. They always run at the end, regardless of the plan.
fn render_own_checks(criteria: &[Criterion]) -> String {
    let checks = criteria.iter().filter_map(|criterion| criterion.check.as_ref());
    checks
        .map(|check| {
            format!(
                "\nRun in the end: {}",
                indent_lines(&escape_hidden_chars(&check.command_line()))
            )
        })
        .collect()
}

/// Renders arguments field by field: a text as it is, everything else as JSON. Continuation lines are indented, so
/// that no value can pass for another field.
pub(super) fn render_fields(arguments: &Value) -> String {
    let Value::Object(all) = arguments else {
        return escape_hidden_chars(&to_pretty_json(arguments));
    };
    let lines = all.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => to_pretty_json(other),
        };
        let (name, value) = (to_single_line(name), indent_lines(&escape_hidden_chars(&value)));
        if value.contains('\n') {
            format!("{name}:\n    {value}")
        } else {
            format!("{name}: {value}")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn to_pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn indent_lines(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// Formats an amount of money.
pub(crate) fn format_money(micros: i64) -> String {
    format!("{}.{:04}", micros / 1_000_000, (micros % 1_000_000).unsigned_abs() / 100)
}

/// Returns the display name of a user.
pub(crate) async fn display_name_of(conn: &mut Conn, user: UserId) -> Result<String, Error> {
    let found = accounts::get_user(conn, user).await?;
    Ok(found.map_or_else(|| user.to_string(), |user| to_single_line(user.display_name.as_str())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_shown_to_the_letter_and_none_passes_for_another() {
        let arguments = json!({
            "command": "git push\ncwd: /tmp",
            "argv": ["a", "b\u{202e}c"],
            "cwd": "/work",
        });
        assert_eq!(
            render_fields(&arguments),
            "command:\n    git push\n    cwd: /tmp\nargv:\n    [\n      \"a\",\n      \"b\\u{202e}c\"\n    ]\ncwd: /work"
        );
        assert_eq!(render_fields(&json!("rm -rf build")), "\"rm -rf build\"");
    }

    #[test]
    fn a_question_about_an_environment_says_in_its_title_that_nothing_has_begun() {
        let question = format!("`hm` is none of the answers.\n{PROPOSAL_QUESTION_START} Version 1");
        let titles = [question.as_str(), "Which colour?"]
            .map(|question| describe_asking_task("nightly-20261116-0730", question));
        assert_eq!(
            titles,
            [
                "nightly-20261116-0730 does not begin until somebody decides about the environment of its project",
                "nightly-20261116-0730 asks a question",
            ]
        );
    }

    #[test]
    fn a_plan_is_a_list_with_what_comes_before_what() {
        let plan = json!({
            "steps": [
                { "key": "api", "title": "Write the API\nand its docs" },
                { "key": "ui", "title": "Write the page", "depends_on": ["api"] },
            ],
            "assumptions": ["The port is free"],
        });
        let plan: PlanText = serde_json::from_value(plan).unwrap();
        assert_eq!(
            render_plan(&plan),
            "1. Write the API\n    and its docs (api)\n2. Write the page (ui), after api\nTaken for granted: The port is free"
        );
    }

    #[test]
    fn money_is_written_to_the_hundredth_of_a_cent() {
        assert_eq!([0, 1_234_567, 90_000].map(format_money), ["0.0000", "1.2345", "0.0900"]);
    }
}
