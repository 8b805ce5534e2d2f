//! Requests to the server: each topic as some requests, each action as one.

use cynode_core::{
    delivery::ANSWER_RETRY,
    ids::{ProjectId, PullRequestId, TaskId},
    workflow::handoffs::{HandoffAnswer, HandoffKind, HandoffState, PlanAnswer},
};
use cynode_wire::{
    delivery::{DiffView, PullRequestView},
    identity::accounts::{MeView, SessionView},
    manager::handoffs::HandoffView,
    tasks::{CreateTask, TaskView, projects::ProjectView},
};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    cache::{FetchTopic, TaskListQuery},
    state::ScreenAction,
    store::TopicAnswer,
};
use crate::{
    client::{ApiClient, ApiRequest, ListResponse, MERGE_TIMEOUT},
    commands::{chat, run::fetch_plan_preview},
    failure::{CliError, CliErrorKind, Result},
    operations::{self, Operation},
};

/// Page size of tasks.
const TASK_PAGE_SIZE: u32 = 50;

/// Maximum number of items of a list.
const MAX_LIST_ITEMS: u32 = 200;

/// Maximum number of projects whose pull requests are listed.
const MAX_PULL_PROJECTS: u32 = 30;

/// Page size of job events.
const JOB_EVENT_PAGE_SIZE: usize = 500;

/// Builds a request without path parameters.
fn call_without_params(operation: Operation) -> ApiRequest {
    ApiRequest::with_path_params(operation, [""; 0])
}

/// Fetches a whole list.
async fn fetch_list<T: DeserializeOwned>(client: &ApiClient, call: ApiRequest) -> Result<Vec<T>> {
    let items: ListResponse<T> = client.send(&call).await?;
    Ok(items.items)
}

fn task_list_call(query: &TaskListQuery, cursor: Option<&String>) -> ApiRequest {
    call_without_params(operations::LIST_TASKS)
        .with_query("state", query.state.as_ref())
        .with_query("project", query.project.as_ref())
        .with_query("cursor", cursor)
        .with_query("limit", Some(TASK_PAGE_SIZE))
}

/// Fetches a topic.
pub(super) async fn fetch_topic(
    client: &ApiClient,
    topic: &FetchTopic,
    from: u64,
) -> Result<TopicAnswer> {
    let sums = |by: &str| call_without_params(operations::SUM_USAGE).with_query("by", Some(by));
    Ok(match topic {
        FetchTopic::Me => {
            TopicAnswer::Me(Box::new(client.send(&call_without_params(operations::ME)).await?))
        }
        FetchTopic::Projects => {
            let call = call_without_params(operations::LIST_PROJECTS)
                .with_query("limit", Some(MAX_LIST_ITEMS));
            TopicAnswer::Projects(fetch_list(client, call).await?)
        }
        FetchTopic::Tasks(query) => {
            TopicAnswer::Tasks(client.send(&task_list_call(query, None)).await?)
        }
        FetchTopic::More(query, cursor) => {
            TopicAnswer::Tasks(client.send(&task_list_call(query, Some(cursor))).await?)
        }
        FetchTopic::Running => {
            let call =
                call_without_params(operations::LIST_TASKS).with_query("state", Some("running"));
            TopicAnswer::Tasks(client.send(&call.with_query("limit", Some(MAX_LIST_ITEMS))).await?)
        }
        FetchTopic::Costs => TopicAnswer::Sums(fetch_list(client, sums("task")).await?),
        FetchTopic::ByProject => TopicAnswer::Sums(fetch_list(client, sums("project")).await?),
        FetchTopic::ByModel => TopicAnswer::Sums(fetch_list(client, sums("model")).await?),
        FetchTopic::Timeline(task) => {
            let call = call_with_id(operations::TASK_TIMELINE, task);
            TopicAnswer::Timeline(Box::new(client.send(&call).await?))
        }
        FetchTopic::Plan(project, task, _) => {
            TopicAnswer::Plan(fetch_plan(client, *project, *task).await?)
        }
        FetchTopic::Before(project, task, _) => {
            let Some(planned) = fetch_plan(client, *project, *task).await? else {
                return Ok(TopicAnswer::Before(Vec::new()));
            };
            let task = call_with_id(operations::GET_TASK, task);
            let task: TaskView = client.send(&task).await?;
            let me: MeView = client.send(&call_without_params(operations::ME)).await?;
            TopicAnswer::Before(fetch_plan_preview(client, me.currency, &task, &planned).await?)
        }
        FetchTopic::Evidence(task) => {
            let call = call_with_id(operations::TASK_EVIDENCE, task);
            TopicAnswer::Evidence(Box::new(client.send(&call).await?))
        }
        FetchTopic::Log(job) => {
            let call = call_with_id(operations::JOB_EVENTS, job);
            let call =
                call.with_query("from", Some(from)).with_query("limit", Some(JOB_EVENT_PAGE_SIZE));
            let events: Vec<_> = fetch_list(client, call).await?;
            let more = events.len() >= JOB_EVENT_PAGE_SIZE;
            TopicAnswer::Log(events, more)
        }
        FetchTopic::Files(id) => {
            let call = call_with_id(operations::PULL_REQUEST_FILES, id);
            TopicAnswer::Files(client.send(&call).await?)
        }
        FetchTopic::Diff(id, path) => {
            let call = call_with_id(operations::DIFF_PULL_REQUEST, id);
            TopicAnswer::Diff(client.send(&call.with_query("path", Some(path))).await?)
        }
        FetchTopic::Work(task) => {
            let call = call_with_id(operations::TASK_DIFF, task);
            TopicAnswer::Work(none_if_missing(client.send(&call).await)?.map(Box::new))
        }
        FetchTopic::Approvals => TopicAnswer::Approvals(
            fetch_list(client, call_without_params(operations::LIST_APPROVALS)).await?,
        ),
        FetchTopic::Approval(id) => {
            let call = call_with_id(operations::GET_APPROVAL, id);
            TopicAnswer::Approval(Box::new(client.send(&call).await?))
        }
        FetchTopic::Pulls(project) => {
            TopicAnswer::Pulls(fetch_pull_requests(client, *project).await?)
        }
        FetchTopic::Pull(id) => {
            let call = call_with_id(operations::GET_PULL_REQUEST, id);
            TopicAnswer::Pull(Box::new(client.send(&call).await?))
        }
        FetchTopic::Repository(project) => {
            let call = call_with_id(operations::GET_REPOSITORY, project);
            TopicAnswer::Repository(none_if_missing(client.send(&call).await)?)
        }
        FetchTopic::Models => TopicAnswer::Models(
            fetch_list(client, call_without_params(operations::LIST_REGISTRY)).await?,
        ),
        FetchTopic::Nodes => TopicAnswer::Nodes(
            fetch_list(client, call_without_params(operations::LIST_NODES)).await?,
        ),
        FetchTopic::Readiness => {
            TopicAnswer::Readiness(client.send(&call_without_params(operations::READINESS)).await?)
        }
        FetchTopic::Budgets => TopicAnswer::Budgets(
            fetch_list(client, call_without_params(operations::LIST_BUDGETS)).await?,
        ),
    })
}

/// Builds a request about one object, by its id.
fn call_with_id(operation: operations::Operation, id: &impl ToString) -> ApiRequest {
    ApiRequest::with_path_params(operation, [id.to_string()])
}

/// Returns `None` if the object does not exist.
fn none_if_missing<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.kind == CliErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Fetches the newest pull requests of one project, or of each visible project.
async fn fetch_pull_requests(
    client: &ApiClient,
    project: Option<ProjectId>,
) -> Result<Vec<PullRequestView>> {
    let (projects, limit) = match project {
        Some(project) => (vec![project], MAX_LIST_ITEMS),
        None => {
            let call = call_without_params(operations::LIST_PROJECTS)
                .with_query("limit", Some(MAX_PULL_PROJECTS));
            let projects: Vec<ProjectView> = fetch_list(client, call).await?;
            (projects.into_iter().map(|it| it.id).collect(), TASK_PAGE_SIZE)
        }
    };
    let mut found: Vec<PullRequestView> = Vec::new();
    for project in projects {
        let call =
            ApiRequest::with_path_params(operations::LIST_PULL_REQUESTS, [project.to_string()]);
        found.extend(
            fetch_list::<PullRequestView>(client, call.with_query("limit", Some(limit))).await?,
        );
    }
    found.sort_by_key(|it| std::cmp::Reverse(it.updated_at));
    Ok(found)
}

/// Fetches the whole diff of a pull request, as text.
pub(super) async fn fetch_diff(client: &ApiClient, id: PullRequestId) -> Result<String> {
    let call = ApiRequest::with_path_params(operations::DIFF_PULL_REQUEST, [id.to_string()]);
    let diff: DiffView = client.send(&call).await?;
    let more = if diff.truncated { "\n… there is more than is shown\n" } else { "" };
    Ok(format!("{}{more}", diff.text))
}

/// Asks the project manager and reports its answer chunk by chunk.
pub(super) async fn ask_manager(
    client: &ApiClient,
    project: Option<ProjectId>,
    messages: &[Value],
    tell: impl FnMut(&str),
) -> Result<()> {
    let project = project.map(|it| it.to_string());
    let call = chat::build_completion_call(chat::MANAGER_MODEL_ID, messages, project.as_deref());
    chat::stream_completion(client, &call, chat::MANAGER_MODEL_ID, tell).await.map(drop)
}

/// Creates a task, once: a new one, or a retry that starts from the best commit so far.
pub(super) async fn submit_task(
    client: &ApiClient,
    key: String,
    ended: Option<TaskId>,
    body: &CreateTask,
) -> Result<TaskView> {
    let body =
        serde_json::to_value(body).map_err(|error| CliError::internal_error(error.to_string()))?;
    let call = match ended {
        Some(task) => ApiRequest::with_path_params(operations::RETRY_TASK, [task.to_string()]),
        None => call_without_params(operations::CREATE_TASK),
    };
    client.send(&call.with_json_body(&body).with_idempotency_key(key)).await
}

/// Fetches the latest plan, if the project manager made it.
async fn fetch_plan(
    client: &ApiClient,
    project: ProjectId,
    task: TaskId,
) -> Result<Option<Box<PlanAnswer>>> {
    let call = ApiRequest::with_path_params(operations::LIST_HANDOFFS, [project.to_string()]);
    let call = call.with_query("task_id", Some(task)).with_query("limit", Some(TASK_PAGE_SIZE));
    let handoffs: ListResponse<HandoffView> = client.send(&call).await?;
    let made = |it: &&HandoffView| it.kind == HandoffKind::Plan && it.state == HandoffState::Done;
    let Some(handoff) = handoffs.items.iter().find(made) else { return Ok(None) };
    let call =
        ApiRequest::with_path_params(operations::GET_HANDOFF, [handoff.handoff_id.to_string()]);
    let handoff: HandoffView = client.send(&call).await?;
    Ok(match handoff.answer.map(|it| *it) {
        Some(HandoffAnswer::Planned(planned)) => Some(Box::new(planned)),
        _ => None,
    })
}

/// Builds the request of an action.
fn build_action_call(deed: &ScreenAction, words: Option<&str>) -> ApiRequest {
    match deed {
        ScreenAction::Approve { task, wait, yes } => {
            let mut body = json!({ "approved": yes, "wait_id": wait });
            if let Some(words) = words {
                body["note"] = words.into();
            }
            ApiRequest::with_path_params(operations::APPROVE_TASK, [task.to_string()])
                .with_json_body(&body)
        }
        ScreenAction::Answer { task, wait } => {
            let body = json!({ "text": words.unwrap_or_default(), "wait_id": wait });
            ApiRequest::with_path_params(operations::ANSWER_TASK, [task.to_string()])
                .with_json_body(&body)
        }
        ScreenAction::Decide { approval, yes } => {
            let body = json!({ "approved": yes });
            ApiRequest::with_path_params(operations::DECIDE_APPROVAL, [approval.to_string()])
                .with_json_body(&body)
        }
        ScreenAction::Instruct { task, kind } => {
            let mut body = json!({ "kind": kind });
            if let Some(words) = words {
                body["text"] = words.into();
            }
            ApiRequest::with_path_params(operations::INSTRUCT_TASK, [task.to_string()])
                .with_json_body(&body)
        }
        ScreenAction::TryAgain { task, wait } => {
            let body = json!({ "text": words.unwrap_or(ANSWER_RETRY), "wait_id": wait });
            ApiRequest::with_path_params(operations::ANSWER_TASK, [task.to_string()])
                .with_json_body(&body)
        }
        ScreenAction::Cancel { task } => {
            ApiRequest::with_path_params(operations::CANCEL_TASK, [task.to_string()])
                .with_json_body(&Value::Null)
        }
        ScreenAction::Merge { pull_request, .. } => {
            let call = ApiRequest::with_path_params(
                operations::MERGE_PULL_REQUEST,
                [pull_request.to_string()],
            );
            call.with_json_body(&Value::Null)
        }
    }
}

/// Performs an action, once.
pub(super) async fn perform_action(
    client: &ApiClient,
    key: String,
    deed: &ScreenAction,
    words: Option<&str>,
) -> Result<()> {
    let call = build_action_call(deed, words).with_idempotency_key(key);
    let _: Value = match deed {
        ScreenAction::Merge { .. } => client.send_with_timeout(&call, MERGE_TIMEOUT).await?,
        _ => client.send(&call).await?,
    };
    Ok(())
}

/// Creates a session.
pub(super) async fn create_session(
    client: &ApiClient,
    handle: &str,
    password: &SecretString,
) -> Result<SessionView> {
    let body = json!({ "handle": handle, "password": password.expose_secret() });
    client.send(&call_without_params(operations::LOGIN).with_json_body(&body)).await
}

/// Builds the request for the event stream.
pub(super) fn event_stream_call(after: Option<&String>) -> ApiRequest {
    call_without_params(operations::FOLLOW_EVENTS).with_query("after", after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_wait_that_was_shown() {
        let task = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap();
        let id = "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let wait = id.parse().unwrap();
        let yes = ScreenAction::Approve { task, wait, yes: true };
        assert_eq!(
            build_action_call(&yes, None).carried(),
            json!({ "approved": true, "wait_id": id })
        );
        let no = ScreenAction::Approve { task, wait, yes: false };
        let body = json!({ "approved": false, "wait_id": id, "note": "smaller" });
        assert_eq!(build_action_call(&no, Some("smaller")).carried(), body);
        let answer = ScreenAction::Answer { task, wait };
        assert_eq!(
            build_action_call(&answer, Some("a")).carried(),
            json!({ "text": "a", "wait_id": id })
        );
    }
}
