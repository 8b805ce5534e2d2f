//! The way to the server: each topic as calls, each deed as one.

use cynode_core::ids::{ProjectId, TaskId};
use cynode_wire::{
    accounts::SessionView,
    handoffs::{HandoffAnswer, HandoffKind, HandoffState, HandoffView, Planned},
};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    known::Answer,
    shelf::{Query, Topic},
    state::Deed,
};
use crate::{
    client::{Call, Client, Items, MERGING},
    failure::Result,
    operations::{self, Operation},
};

/// How many tasks are asked for at once.
const PAGE: u32 = 50;

/// The most that a list gives.
const MOST: u32 = 200;

/// How many events of a job are asked for at once.
const EVENTS: usize = 500;

/// A call without places in its path.
fn plain(operation: Operation) -> Call {
    Call::to(operation, [""; 0])
}

/// A whole list.
async fn all<T: DeserializeOwned>(client: &Client, call: Call) -> Result<Vec<T>> {
    let items: Items<T> = client.send(&call).await?;
    Ok(items.items)
}

fn tasks(query: &Query, cursor: Option<&String>) -> Call {
    plain(operations::LIST_TASKS)
        .query("state", query.state.as_ref())
        .query("project", query.project.as_ref())
        .query("cursor", cursor)
        .query("limit", Some(PAGE))
}

/// Asks for a topic.
pub(super) async fn fetch(client: &Client, topic: &Topic, from: u64) -> Result<Answer> {
    let sums = |by: &str| plain(operations::SUM_USAGE).query("by", Some(by));
    Ok(match topic {
        Topic::Me => Answer::Me(Box::new(client.send(&plain(operations::ME)).await?)),
        Topic::Projects => {
            let call = plain(operations::LIST_PROJECTS).query("limit", Some(MOST));
            Answer::Projects(all(client, call).await?)
        }
        Topic::Tasks(query) => Answer::Tasks(client.send(&tasks(query, None)).await?),
        Topic::More(query, cursor) => {
            Answer::Tasks(client.send(&tasks(query, Some(cursor))).await?)
        }
        Topic::Running => {
            let call = plain(operations::LIST_TASKS).query("state", Some("running"));
            Answer::Tasks(client.send(&call.query("limit", Some(MOST))).await?)
        }
        Topic::Costs => Answer::Sums(all(client, sums("task")).await?),
        Topic::ByProject => Answer::Sums(all(client, sums("project")).await?),
        Topic::ByModel => Answer::Sums(all(client, sums("model")).await?),
        Topic::Timeline(task) => {
            let call = Call::to(operations::TASK_TIMELINE, [task.to_string()]);
            Answer::Timeline(Box::new(client.send(&call).await?))
        }
        Topic::Plan(project, task, _) => Answer::Plan(plan(client, *project, *task).await?),
        Topic::Evidence(task) => {
            let call = Call::to(operations::TASK_EVIDENCE, [task.to_string()]);
            Answer::Evidence(Box::new(client.send(&call).await?))
        }
        Topic::Log(job) => {
            let call = Call::to(operations::JOB_EVENTS, [job.to_string()]);
            let call = call.query("from", Some(from)).query("limit", Some(EVENTS));
            let events: Vec<_> = all(client, call).await?;
            let more = events.len() >= EVENTS;
            Answer::Log(events, more)
        }
        Topic::Files(id) => {
            let call = Call::to(operations::PULL_REQUEST_FILES, [id.to_string()]);
            Answer::Files(client.send(&call).await?)
        }
        Topic::Diff(id, path) => {
            let call = Call::to(operations::DIFF_PULL_REQUEST, [id.to_string()]);
            Answer::Diff(client.send(&call.query("path", Some(path))).await?)
        }
        Topic::Approvals => {
            Answer::Approvals(all(client, plain(operations::LIST_APPROVALS)).await?)
        }
        Topic::Approval(id) => {
            let call = Call::to(operations::GET_APPROVAL, [id.to_string()]);
            Answer::Approval(Box::new(client.send(&call).await?))
        }
        Topic::Nodes => Answer::Nodes(all(client, plain(operations::LIST_NODES)).await?),
        Topic::Budgets => Answer::Budgets(all(client, plain(operations::LIST_BUDGETS)).await?),
    })
}

/// The plan that the project manager made last, if it was the project manager.
async fn plan(client: &Client, project: ProjectId, task: TaskId) -> Result<Option<Box<Planned>>> {
    let call = Call::to(operations::LIST_HANDOFFS, [project.to_string()]);
    let call = call.query("task_id", Some(task)).query("limit", Some(PAGE));
    let handoffs: Items<HandoffView> = client.send(&call).await?;
    let made = |it: &&HandoffView| it.kind == HandoffKind::Plan && it.state == HandoffState::Done;
    let Some(handoff) = handoffs.items.iter().find(made) else { return Ok(None) };
    let call = Call::to(operations::GET_HANDOFF, [handoff.handoff_id.to_string()]);
    let handoff: HandoffView = client.send(&call).await?;
    Ok(match handoff.answer.map(|it| *it) {
        Some(HandoffAnswer::Planned(planned)) => Some(Box::new(planned)),
        _ => None,
    })
}

/// The call of a deed.
fn call(deed: &Deed, words: Option<&str>) -> Call {
    match deed {
        Deed::Approve { task, wait, yes } => {
            let mut body = json!({ "approved": yes, "wait_id": wait });
            if let Some(words) = words {
                body["note"] = words.into();
            }
            Call::to(operations::APPROVE_TASK, [task.to_string()]).body(&body)
        }
        Deed::Answer { task, wait } => {
            let body = json!({ "text": words.unwrap_or_default(), "wait_id": wait });
            Call::to(operations::ANSWER_TASK, [task.to_string()]).body(&body)
        }
        Deed::Decide { approval, yes } => {
            let body = json!({ "approved": yes });
            Call::to(operations::DECIDE_APPROVAL, [approval.to_string()]).body(&body)
        }
        Deed::Instruct { task, kind } => {
            let mut body = json!({ "kind": kind });
            if let Some(words) = words {
                body["text"] = words.into();
            }
            Call::to(operations::INSTRUCT_TASK, [task.to_string()]).body(&body)
        }
        Deed::Cancel { task } => {
            Call::to(operations::CANCEL_TASK, [task.to_string()]).body(&Value::Null)
        }
        Deed::Merge { pull_request, .. } => {
            let call = Call::to(operations::MERGE_PULL_REQUEST, [pull_request.to_string()]);
            call.body(&Value::Null)
        }
    }
}

/// Does a deed, once.
pub(super) async fn act(
    client: &Client,
    key: String,
    deed: &Deed,
    words: Option<&str>,
) -> Result<()> {
    let call = call(deed, words).key(key);
    let _: Value = match deed {
        Deed::Merge { .. } => client.send_slowly(&call, MERGING).await?,
        _ => client.send(&call).await?,
    };
    Ok(())
}

/// Asks for a session.
pub(super) async fn log_in(
    client: &Client,
    handle: &str,
    password: &SecretString,
) -> Result<SessionView> {
    let body = json!({ "handle": handle, "password": password.expose_secret() });
    client.send(&plain(operations::LOGIN).body(&body)).await
}

/// What is asked for to hear what happens.
pub(super) fn events(after: Option<&String>) -> Call {
    plain(operations::FOLLOW_EVENTS).query("after", after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_wait_that_was_shown() {
        let task = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap();
        let id = "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let wait = id.parse().unwrap();
        let yes = Deed::Approve { task, wait, yes: true };
        assert_eq!(call(&yes, None).carried(), json!({ "approved": true, "wait_id": id }));
        let no = Deed::Approve { task, wait, yes: false };
        let body = json!({ "approved": false, "wait_id": id, "note": "smaller" });
        assert_eq!(call(&no, Some("smaller")).carried(), body);
        let answer = Deed::Answer { task, wait };
        assert_eq!(call(&answer, Some("a")).carried(), json!({ "text": "a", "wait_id": id }));
    }
}
