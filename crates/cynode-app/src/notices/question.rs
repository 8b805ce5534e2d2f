//! What a person is asked, word for word.

use std::fmt::Write as _;

use cynode_core::{
    ids::{ApprovalId, ProjectId, TaskId, UserId, WaitId},
    workflow::{plan::PlanText, waits::WaitReason},
};
use cynode_db::{
    Conn, accounts,
    approvals::{self, ApprovalState},
    projects, tasks, timeline, waits, workflow,
};
use cynode_notify::{line, shown};
use serde_json::Value;
use time::OffsetDateTime;

use crate::{Error, keys::Keys, nodes::telling::PERMISSION};

/// Which question is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Whether a call may be made.
    Approval(ApprovalId),
    /// Whether a plan may be carried out.
    Plan(WaitId),
    /// What a task wants to know.
    Answer(WaitId),
}

/// A question as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which.
    pub asked: Asked,
    /// In which project.
    pub project: Option<ProjectId>,
    /// By which task.
    pub task: Option<TaskId>,
    /// What it is, in a line.
    pub title: String,
    /// What is to be decided about, word for word.
    pub exact: String,
    /// Who asks, and what it has cost so far.
    pub circumstances: Circumstances,
    /// Whether nobody has answered it, and it is not too late.
    pub open: bool,
    /// When it is too late, if it ever is.
    pub until: Option<OffsetDateTime>,
}

/// Around a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Who asks.
    pub who: String,
    /// The task's name.
    pub task: Option<String>,
    /// The project's title.
    pub project: Option<String>,
    /// What the task has cost so far, in millionths.
    pub cost_micros: i64,
}

/// The question, if there is or was such a one.
pub(crate) async fn find(
    conn: &mut Conn,
    keys: &Keys,
    asked: Asked,
    now: OffsetDateTime,
) -> Result<Option<Question>, Error> {
    match asked {
        Asked::Approval(id) => call(conn, keys, id, now).await,
        Asked::Plan(id) => waited(conn, asked, id, WaitReason::Approval).await,
        Asked::Answer(id) => waited(conn, asked, id, WaitReason::HumanInput).await,
    }
}

async fn call(
    conn: &mut Conn,
    keys: &Keys,
    id: ApprovalId,
    now: OffsetDateTime,
) -> Result<Option<Question>, Error> {
    let Some(found) = approvals::get(conn, id).await? else { return Ok(None) };
    let arguments = crate::approvals::arguments(&found, keys);
    let open = found.state == ApprovalState::Asked
        && found.expires_at > now
        && arguments.is_some()
        && approvals::asker_lives(conn, found.asked.agent, now).await?;
    let arguments = arguments.unwrap_or_default();
    let permission = found.asked.tool == PERMISSION;
    let (title, exact) = if permission {
        let said = arguments["title"].as_str().unwrap_or("it wants to do something");
        (line(&format!("May an agent do this? {said}")), fields(&arguments["input"]))
    } else {
        let tool = line(&found.asked.tool);
        (format!("May an agent call {tool}?"), format!("{tool}\n{}", fields(&arguments)))
    };
    let who = if found.asked.rules.is_empty() {
        "an agent at work".to_owned()
    } else {
        line(&format!("an agent, held by the rules {}", found.asked.rules.join(", ")))
    };
    let (task, project) = (found.asked.task, found.asked.project);
    let circumstances = around(conn, who, task, project).await?;
    let asked = Asked::Approval(id);
    let until = Some(found.expires_at);
    Ok(Some(Question { asked, project, task, title, exact, circumstances, open, until }))
}

async fn waited(
    conn: &mut Conn,
    asked: Asked,
    id: WaitId,
    reason: WaitReason,
) -> Result<Option<Question>, Error> {
    let Some(wait) = waits::get(conn, id).await?.filter(|wait| wait.reason == reason) else {
        return Ok(None);
    };
    let Some(task) = tasks::get(conn, wait.task).await? else { return Ok(None) };
    let question =
        shown(wait.question.as_deref().unwrap_or("It did not say what it wants to know."));
    let (title, exact) = match reason {
        WaitReason::Approval => {
            let standing = workflow::standing(conn, task.id).await?;
            let state = standing.and_then(|standing| standing.checkpoint).map(|at| at.state);
            let plan = state.and_then(|mut state| state.get_mut("plan").map(Value::take));
            let plan = plan.and_then(|plan| serde_json::from_value::<PlanText>(plan).ok());
            let exact = plan.map_or(question, |plan| list(&plan));
            (format!("May the plan of {} be carried out?", task.name), exact)
        }
        _ => (format!("{} asks a question", task.name), question),
    };
    let who = "the project manager".to_owned();
    let circumstances = around(conn, who, Some(task.id), Some(task.project)).await?;
    let (project, task, open) = (Some(task.project), Some(task.id), wait.open);
    let until = wait.expires_at;
    Ok(Some(Question { asked, project, task, title, exact, circumstances, open, until }))
}

/// What is around a task and a project.
pub(crate) async fn around(
    conn: &mut Conn,
    who: String,
    task: Option<TaskId>,
    project: Option<ProjectId>,
) -> Result<Circumstances, Error> {
    let mut around = Circumstances { who, ..Circumstances::default() };
    if let Some(id) = task {
        around.task = tasks::get(conn, id).await?.map(|task| task.name.to_string());
        around.cost_micros = timeline::cost(conn, id).await?;
    }
    if let Some(id) = project {
        around.project = projects::get(conn, id).await?.map(|project| line(project.title.as_str()));
    }
    Ok(around)
}

/// The plan as a list: each unit in its own words, and what comes before it.
fn list(plan: &PlanText) -> String {
    let mut text = String::new();
    for (number, unit) in plan.steps.iter().enumerate() {
        let title = indented(&shown(unit.title.as_str()));
        let _ = write!(text, "{}. {} ({})", number + 1, title, unit.key);
        if !unit.depends_on.is_empty() {
            let before: Vec<_> = unit.depends_on.iter().map(ToString::to_string).collect();
            let _ = write!(text, ", after {}", before.join(", "));
        }
        text.push('\n');
    }
    for taken in &plan.assumptions {
        let _ = writeln!(text, "Taken for granted: {}", indented(&shown(taken.as_str())));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Arguments field by field: a text as it is, everything else as JSON. What follows a line of a field is set in, so that no
/// value can pass for another field.
fn fields(arguments: &Value) -> String {
    let Value::Object(all) = arguments else { return shown(&written(arguments)) };
    let lines = all.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => written(other),
        };
        let (name, value) = (line(name), indented(&shown(&value)));
        if value.contains('\n') {
            format!("{name}:\n    {value}")
        } else {
            format!("{name}: {value}")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn written(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// A sum of money, as people write it.
pub(crate) fn money(micros: i64) -> String {
    format!("{}.{:04}", micros / 1_000_000, (micros % 1_000_000).unsigned_abs() / 100)
}

/// What a user is called.
pub(crate) async fn name_of(conn: &mut Conn, user: UserId) -> Result<String, Error> {
    let found = accounts::user(conn, user).await?;
    Ok(found.map_or_else(|| user.to_string(), |user| line(user.display_name.as_str())))
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
            fields(&arguments),
            "command:\n    git push\n    cwd: /tmp\nargv:\n    [\n      \"a\",\n      \"b\\u{202e}c\"\n    ]\ncwd: /work"
        );
        assert_eq!(fields(&json!("rm -rf build")), "\"rm -rf build\"");
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
            list(&plan),
            "1. Write the API\n    and its docs (api)\n2. Write the page (ui), after api\nTaken for granted: The port is free"
        );
    }

    #[test]
    fn money_is_written_to_the_hundredth_of_a_cent() {
        assert_eq!([0, 1_234_567, 90_000].map(money), ["0.0000", "1.2345", "0.0900"]);
    }
}
