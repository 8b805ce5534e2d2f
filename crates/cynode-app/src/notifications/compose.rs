//! Composes a notification when it is delivered. A question that was answered meanwhile is not sent, and a user who
//! lost access gets nothing.

use cynode_core::{
    ids::{ApprovalId, WaitId},
    notifications::TEST_NOTIFICATION_KIND,
    roles::UserRole,
    workflow::waits::WaitReason,
};
use cynode_db::{
    Conn,
    identity::authentication,
    notifications::{
        self, ChannelOwner, NotificationChannel, NotificationRecord, NotificationTopic,
    },
    workflow::waits,
};
use cynode_notify::{
    NotificationLink, NotificationMessage, escape_hidden_chars, to_single_line, truncate_to_bytes,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use super::{
    NotificationParts,
    link_token::{LINK_TTL, LinkToken, QuestionRef},
    question::{self, HumanQuestion, QuestionContext},
};
use crate::{Error, notifications::answer_links, platform::keys::InstallationKeys};

/// Maximum size of the question text in a notification. The page behind the link shows all of it.
const MAX_EXACT_BYTES: usize = 64 * 1024;

/// Outcome of composing a notification.
pub(crate) enum ComposeOutcome {
    /// The notification is delivered.
    Tell(Box<NotificationMessage>),
    /// The notification is dropped, for this reason.
    Drop(&'static str),
}

/// Composes the message of a notification for a channel.
pub(crate) async fn compose_notification(
    conn: &mut Conn,
    (keys, parts): (&InstallationKeys, &NotificationParts),
    row: &NotificationRecord,
    channel: &NotificationChannel,
    now: OffsetDateTime,
) -> Result<ComposeOutcome, Error> {
    if row.kind == TEST_NOTIFICATION_KIND {
        return Ok(ComposeOutcome::Tell(Box::new(compose_test(row))));
    }
    let about = NotificationTopic { kind: &row.kind, project: row.project, subject: row.subject };
    let told = notifications::list_subscribed_channels(conn, about, Some(channel.id), now).await?;
    if told.is_empty() {
        return Ok(ComposeOutcome::Drop("the channel may not be told of this any more"));
    }
    let Some(asked) = question_of(row) else {
        if let Some(wait) = wait_of(row)
            && !waits::get_wait(conn, wait).await?.is_some_and(|wait| wait.open)
        {
            return Ok(ComposeOutcome::Drop("it is not paused any more"));
        }
        let around =
            question::load_question_context(conn, String::new(), row.task, row.project).await?;
        return Ok(ComposeOutcome::Tell(Box::new(compose_event(row, &around))));
    };
    match question::find_question(conn, keys, asked, now).await? {
        Some(question) if question.open => {
            let link = build_answer_link(conn, (keys, parts), row, channel, &question, now).await?;
            Ok(ComposeOutcome::Tell(Box::new(compose_question(row, &question, link))))
        }
        Some(_) | None => Ok(ComposeOutcome::Drop("it was answered, or it is too late to answer")),
    }
}

/// Returns the wait of an event.
fn wait_of(row: &NotificationRecord) -> Option<WaitId> {
    let wait = row.data.get("wait_id").and_then(Value::as_str);
    wait.filter(|_| row.kind == "task.waiting")?.parse().ok()
}

/// Returns the question of an event.
fn question_of(row: &NotificationRecord) -> Option<QuestionRef> {
    let text = |name: &str| row.data.get(name).and_then(Value::as_str);
    match row.kind.as_str() {
        "approval.requested" => {
            text("approval_id")?.parse::<ApprovalId>().ok().map(QuestionRef::Approval)
        }
        "task.waiting" => {
            let wait = wait_of(row)?;
            match WaitReason::from_name(text("reason")?)? {
                WaitReason::Approval => Some(QuestionRef::Plan(wait)),
                WaitReason::HumanInput => Some(QuestionRef::Answer(wait)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Builds the URL where this user answers this question. A user who may not answer gets none, and neither does a
/// shared channel.
async fn build_answer_link(
    conn: &mut Conn,
    (keys, parts): (&InstallationKeys, &NotificationParts),
    row: &NotificationRecord,
    channel: &NotificationChannel,
    question: &HumanQuestion,
    now: OffsetDateTime,
) -> Result<Option<Url>, Error> {
    let (ChannelOwner::User(user), Some(base)) = (channel.owner, &parts.public_url) else {
        return Ok(None);
    };
    // A link never outlives its question.
    let most = row.occurred_at + LINK_TTL;
    let expires_at = question.until.map_or(most, |until| until.min(most));
    let caller = authentication::find_link_caller(conn, user, now).await?;
    let Some(caller) = caller.filter(|_| expires_at > now) else { return Ok(None) };
    let (role, needed) = match question.project {
        Some(project) => {
            let own = authentication::project_role(conn, user, project).await?;
            (own.max(caller.role), UserRole::Operator)
        }
        None => (caller.role, UserRole::Admin),
    };
    if role < Some(needed) {
        return Ok(None);
    }
    let token = LinkToken { asked: question.asked, user, expires_at, made_at: now }
        .encode_token(&keys.tag_key());
    let mut url = base.clone();
    url.set_path(&format!("{}/answer/{token}", base.path().trim_end_matches('/')));
    Ok(Some(url))
}

fn compose_question(
    row: &NotificationRecord,
    question: &HumanQuestion,
    link: Option<Url>,
) -> NotificationMessage {
    let around = &question.circumstances;
    let QuestionContext { who, task, project, .. } = around;
    let place = |words: &str, name: &Option<String>| match name {
        Some(name) => format!("{words} {name}"),
        None => String::new(),
    };
    let (task, project) = (place(", for task", task), place(" in", project));
    let next =
        if link.is_some() { "" } else { " Answer it through the API, or ask somebody who may." };
    let spent = around.render_spending();
    let text = format!("Asked by {who}{task}{project}. Spent so far: {spent}.{next}");
    let way = |label: &str, post: Option<&str>, url: &Url| NotificationLink {
        label: label.to_owned(),
        url: url.to_string(),
        post: post.map(str::to_owned),
    };
    let part = truncate_to_bytes(&question.exact, MAX_EXACT_BYTES);
    let links = link.map(|url| match question.asked {
        // Without the complete text in the message, there is no link that approves directly.
        QuestionRef::Approval(_) | QuestionRef::Plan(_) if part.is_none() => vec![
            way("Look and answer", None, &url),
            way("Approve", Some(answer_links::APPROVE_FORM), &url),
            way("Refuse", Some(answer_links::REFUSE_FORM), &url),
        ],
        QuestionRef::Approval(_) | QuestionRef::Plan(_) | QuestionRef::Answer(_) => {
            vec![way("Look and answer", None, &url)]
        }
    });
    let exact = part.map(|part| format!("{part}\n… (cut off: the page behind the link shows all)"));
    NotificationMessage {
        title: to_single_line(&question.title),
        text,
        exact: Some(exact.unwrap_or_else(|| question.exact.clone())),
        links: links.unwrap_or_default(),
        ..empty_message(row)
    }
}

fn empty_message(row: &NotificationRecord) -> NotificationMessage {
    let about = json!({
        "project_id": row.project,
        "task_id": row.task,
        "trace_id": row.trace,
        "data": row.data,
    });
    NotificationMessage {
        id: row.id.to_string(),
        kind: row.kind.clone(),
        title: String::new(),
        text: String::new(),
        exact: None,
        links: Vec::new(),
        path: console_path(row),
        about,
        at: row.occurred_at,
    }
}

/// Returns the page of the web console that an event is about.
fn console_path(row: &NotificationRecord) -> String {
    match question_of(row) {
        Some(QuestionRef::Approval(id)) => return format!("/?item={id}"),
        Some(QuestionRef::Plan(id) | QuestionRef::Answer(id)) => return format!("/?item={id}"),
        None => {}
    }
    match (row.kind.as_str(), row.task, row.project) {
        (TEST_NOTIFICATION_KIND, ..) => "/settings/notifications".to_owned(),
        ("budget.exhausted", ..) => "/spend".to_owned(),
        ("provider_key.parked", ..) => "/models?tab=providers".to_owned(),
        ("reconciler.halted", ..) => "/nodes".to_owned(),
        ("schedule.refused", _, Some(project)) => format!("/schedules?project={project}"),
        ("environment.proposed" | "environment.unreadable", _, Some(project)) => {
            format!("/projects/{project}?tab=environment")
        }
        ("pull_request.opened", Some(task), _) => format!("/tasks/{task}?tab=changes"),
        (_, Some(task), _) => format!("/tasks/{task}"),
        (_, None, Some(project)) => format!("/projects/{project}"),
        (_, None, None) => "/".to_owned(),
    }
}

/// Composes a test message. It contains nothing of the sender, because the channel may lead to anybody.
fn compose_test(row: &NotificationRecord) -> NotificationMessage {
    let title = "CyNode can reach you here".to_owned();
    let text = "Somebody tried this channel. There is nothing to do.".to_owned();
    NotificationMessage { title, text, ..empty_message(row) }
}

/// Composes a message that asks nothing.
fn compose_event(row: &NotificationRecord, around: &QuestionContext) -> NotificationMessage {
    let said = |name: &str| row.data.get(name).and_then(Value::as_str).map(escape_hidden_chars);
    let task = around.task.clone().or_else(|| said("name")).unwrap_or_else(|| "A task".to_owned());
    let spent = format!("Spent: {}.", around.render_spending());
    let with = |first: Option<String>, rest: String| match first {
        Some(first) => format!("{first}\n\n{rest}"),
        None => rest,
    };
    let (title, text) = match row.kind.as_str() {
        "task.waiting" => {
            let goes_on = "It goes on when somebody resumes it.".to_owned();
            (format!("{task} is paused"), with(said("question"), goes_on))
        }
        "task.completed" => (format!("{task} is done"), with(said("summary"), spent)),
        "task.failed" => (format!("{task} was given up"), with(said("failure"), spent)),
        "task.cancelled" => (format!("{task} was stopped"), spent),
        "task.parked" => {
            let goes_on =
                "It may not think until somebody lets it, or its time has come.".to_owned();
            (format!("{task} is parked"), with(said("reason"), goes_on))
        }
        "budget.exhausted" => {
            let which = said("budget_id").unwrap_or_default();
            let text = format!("Calls are refused until {which} is raised or its period is over.");
            ("A ceiling on spending is reached".to_owned(), text)
        }
        "provider_key.parked" => {
            let (provider, until) =
                (said("provider").unwrap_or_default(), said("until").unwrap_or_default());
            let text = format!("Its quota is used up. It is used again from {until}.");
            (format!("A key of {provider} rests"), text)
        }
        "reconciler.halted" => {
            let text = "No job is given up before they are heard of, or an admin sets workflow.force_reclaim.";
            ("Most workers look dead at once".to_owned(), text.to_owned())
        }
        "schedule.refused" => {
            let name = said("name").unwrap_or_default();
            (format!("The schedule {name} came to nothing"), said("reason").unwrap_or_default())
        }
        "pull_request.opened" => {
            let title = said("title").unwrap_or_else(|| task.clone());
            (format!("Pull request: {title}"), with(said("url"), spent))
        }
        "environment.proposed" => {
            let number = row.data.get("version").and_then(Value::as_u64).unwrap_or_default();
            let text = format!(
                "It takes effect when an admin of the project accepts it: `cynork project environment show {number}`, then \
                 `cynork project environment accept {number}`."
            );
            (format!("Environment {number} is proposed"), text)
        }
        "environment.unreadable" => (
            "The environment file of a repository cannot be read".to_owned(),
            said("reason").unwrap_or_default(),
        ),
        other => (other.to_owned(), escape_hidden_chars(&row.data.to_string())),
    };
    let place = around.project.as_ref().map(|project| format!(" ({project})"));
    let title = to_single_line(&format!("{title}{}", place.unwrap_or_default()));
    let links = said("url").filter(|_| row.kind == "pull_request.opened").and_then(parse_web_link);
    NotificationMessage { title, text, links: links.into_iter().collect(), ..empty_message(row) }
}

/// Returns a link if the URL is a web address.
fn parse_web_link(url: String) -> Option<NotificationLink> {
    let good = url.parse::<Url>().is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    good.then(|| NotificationLink { label: "Open".to_owned(), url, post: None })
}
