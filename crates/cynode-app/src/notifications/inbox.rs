//! The inbox: everything that waits for a decision which the caller may make, in one list.

use cynode_core::{
    events::EventKind,
    ids::{ApprovalId, PullRequestId, ServerId, TaskId, UserId, WaitId},
    notifications::InboxKind,
    policies::ApprovalKind,
    roles::UserRole,
    tasks::Criterion,
};
use cynode_db::{
    notifications::inbox::{self, InboxRecord},
    tasks::policies,
};
use cynode_notify::{escape_hidden_chars, to_single_line};
use cynode_wire::notifications::inbox::{InboxAction, InboxCounts, InboxItem, InboxView};
use serde_json::{Value, json};

use super::question::{describe_asking_task, describe_call, describe_plan, render_fields};
use crate::{
    Ctx, Error,
    platform::{context::EventDraft, keys::InstallationKeys, operation},
    tasks::policies::require_second_person,
    tools::approvals,
};

/// Maximum number of items in the answer. The counts are of all.
const MAX_INBOX_ITEMS: i64 = 200;

/// How long a person counts as looking at an item after they said so.
const VIEWER_TTL_SECONDS: i64 = 30;

/// Lists what waits for the caller. The cost is two queries, and two more for each plan and each call where four eyes are
/// demanded.
#[tracing::instrument(name = "app.inbox.list_inbox", skip_all)]
#[operation]
pub async fn list_inbox(ctx: &mut Ctx, keys: &InstallationKeys) -> Result<InboxView, Error> {
    let (caller, now) = (ctx.caller()?, ctx.now);
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents decide nothing"));
    }
    let found =
        inbox::list_inbox(ctx.conn(), caller.user, caller.role, now, MAX_INBOX_ITEMS).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for record in found.items {
        let denied = found.four_eyes && !may_approve(ctx, &record, caller.user).await?;
        let mut item = to_inbox_item(record, keys);
        item.actions.retain(|action| !(denied && *action == InboxAction::Approve));
        items.push(item);
    }
    if !items.is_empty() {
        let viewers = inbox::list_viewers(ctx.conn(), caller.user, VIEWER_TTL_SECONDS).await?;
        for item in &mut items {
            let own = viewers.iter().filter(|viewer| viewer.item == item.id);
            item.viewers = own.map(|viewer| viewer.name.clone()).collect();
        }
    }
    Ok(InboxView { items, counts: sum_counts(&found.counts) })
}

/// Records that the caller looks at an item of their inbox, until they have not said so for a while. The others are told when somebody
/// begins to look.
#[tracing::instrument(name = "app.inbox.view_inbox_item", skip_all)]
#[operation]
pub async fn view_inbox_item(ctx: &mut Ctx, item: &str) -> Result<(), Error> {
    let (caller, now) = (ctx.caller()?, ctx.now);
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents decide nothing"));
    }
    let found =
        inbox::list_inbox(ctx.conn(), caller.user, caller.role, now, MAX_INBOX_ITEMS).await?;
    let record = found.items.iter().find(|record| item_id(record) == item);
    let record = record.ok_or_else(|| Error::not_found("item of your inbox", item))?;
    if !inbox::touch_viewer(ctx.conn(), item, caller.user, VIEWER_TTL_SECONDS).await? {
        return Ok(());
    }
    let data = json!({ "item": item, "user_id": caller.user });
    let mut event = EventDraft::new(EventKind::InboxViewed, data);
    if let Some((project, _)) = &record.project {
        event = event.with_project(*project);
    }
    ctx.record_event(event).await
}

/// Returns whether the policies about four eyes let the user approve a plan or a call.
async fn may_approve(ctx: &mut Ctx, record: &InboxRecord, user: UserId) -> Result<bool, Error> {
    let project = record.project.as_ref().map(|(id, _)| *id);
    let allowed = match (record.kind, &record.task, &record.call) {
        (InboxKind::Plan, Some(task), _) => {
            let held = policies::load_policies(ctx.conn(), task.created_by, project).await?;
            let authors = policies::list_task_authors(ctx.conn(), task.id).await?;
            require_second_person(ctx, &held, &authors, user, ApprovalKind::Plan).await
        }
        (InboxKind::Call, task, Some(call)) => {
            let task = task.as_ref().map(|task| task.id);
            approvals::require_other_approver(ctx, call.agent, (project, task), user).await
        }
        _ => Ok(()),
    };
    match allowed {
        Ok(()) => Ok(true),
        Err(Error::PolicyDenied(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn sum_counts(counts: &[(InboxKind, u32)]) -> InboxCounts {
    let mut sum = InboxCounts::default();
    for (kind, number) in counts {
        let place = match kind {
            InboxKind::Plan => &mut sum.plan,
            InboxKind::Question => &mut sum.question,
            InboxKind::Call => &mut sum.call,
            InboxKind::Environment => &mut sum.environment,
            InboxKind::ToolDefinition => &mut sum.tool_definition,
            InboxKind::Delivery => &mut sum.delivery,
            InboxKind::Parked => &mut sum.parked,
        };
        *place = *number;
        sum.total = sum.total.saturating_add(*number);
    }
    sum
}

fn to_inbox_item(record: InboxRecord, keys: &InstallationKeys) -> InboxItem {
    let (title, text) = describe_item(&record, keys);
    let (id, actions) = (item_id(&record), item_actions(&record));
    let (project_id, project_slug) = record.project.unzip();
    let (task_id, task_name) = record.task.map(|task| (task.id, task.name)).unzip();
    InboxItem {
        id,
        kind: record.kind,
        project_id,
        project_slug,
        task_id,
        task_name,
        version: record.version,
        title,
        text,
        since: record.since,
        expires_at: record.until,
        blocked_units: record.blocked_units,
        blocked_tasks: record.blocked_tasks,
        actions,
        viewers: Vec::new(),
    }
}

fn item_id(record: &InboxRecord) -> String {
    match record.kind {
        InboxKind::Plan | InboxKind::Question => WaitId::from_uuid(record.id).to_string(),
        InboxKind::Call => ApprovalId::from_uuid(record.id).to_string(),
        InboxKind::Environment => {
            let slug = record.project.as_ref().map_or("", |(_, slug)| slug.as_str());
            format!("{slug}/{}", record.version.unwrap_or_default())
        }
        InboxKind::ToolDefinition => ServerId::from_uuid(record.id).to_string(),
        InboxKind::Delivery => PullRequestId::from_uuid(record.id).to_string(),
        InboxKind::Parked => TaskId::from_uuid(record.id).to_string(),
    }
}

fn item_actions(record: &InboxRecord) -> Vec<InboxAction> {
    match record.kind {
        InboxKind::Plan => vec![InboxAction::Approve, InboxAction::SendBack, InboxAction::Cancel],
        InboxKind::Question => vec![InboxAction::Answer, InboxAction::Cancel],
        InboxKind::Call => vec![InboxAction::Approve, InboxAction::Deny],
        InboxKind::Environment => vec![InboxAction::Accept, InboxAction::Reject],
        InboxKind::ToolDefinition => vec![InboxAction::Accept],
        InboxKind::Delivery if record.task.as_ref().is_some_and(|task| task.can_retry) => {
            vec![InboxAction::Retry, InboxAction::Close]
        }
        InboxKind::Delivery => vec![InboxAction::Close],
        InboxKind::Parked => vec![InboxAction::Unpark, InboxAction::Cancel],
    }
}

/// Returns the title and the exact text of an item.
fn describe_item(record: &InboxRecord, keys: &InstallationKeys) -> (String, String) {
    let task = record.task.as_ref().map_or("a task", |task| task.name.as_str());
    let detail = escape_hidden_chars(&record.detail);
    match record.kind {
        InboxKind::Plan => {
            let criteria = record.notes.clone().map(serde_json::from_value::<Vec<Criterion>>);
            let criteria = criteria.and_then(Result::ok).unwrap_or_default();
            let text = describe_plan(record.payload.clone(), detail, &criteria);
            (format!("May the plan of {task} be carried out?"), text)
        }
        InboxKind::Question => (describe_asking_task(task, &detail), detail),
        InboxKind::Call => {
            let arguments = record.call.as_ref().and_then(|call| {
                let (agent, tool) = (call.agent, &record.subject);
                approvals::unseal_call(keys, agent, &call.arguments, tool, &call.sealed)
            });
            describe_call(&record.subject, &arguments.unwrap_or_default())
        }
        InboxKind::Environment => {
            let slug = record.project.as_ref().map_or("the project", |(_, slug)| slug.as_str());
            let version = record.version.unwrap_or_default();
            let mut text = render_fields(record.payload.as_ref().unwrap_or(&Value::Null));
            for warning in record.notes.as_ref().and_then(Value::as_array).into_iter().flatten() {
                let warning = warning.as_str().unwrap_or_default();
                text = format!("{text}\nWarning: {}", to_single_line(warning));
            }
            (format!("May jobs of {slug} run in environment {version}?"), text)
        }
        InboxKind::ToolDefinition => {
            let server = to_single_line(&record.subject);
            (format!("{server} offers tools that nobody has accepted"), detail)
        }
        InboxKind::Delivery => (format!("The work of {task} could not be delivered"), detail),
        InboxKind::Parked => (format!("{task} is parked: it may not call models"), detail),
    }
}
