//! The words of a notice, made when it is told: what was answered meanwhile is not told any more, and nobody is told what they may
//! not see any more.

use cynode_core::{
    ids::{ApprovalId, WaitId},
    notices::TEST,
    roles::Role,
    workflow::waits::WaitReason,
};
use cynode_db::{
    Conn, authentication,
    notices::{self, Channel, Concerns, Notification, Owner},
    waits,
};
use cynode_notify::{Link, Notice, cut, line, shown};
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::Url;

use super::{
    Parts,
    question::{self, Asked, Circumstances, Question, money},
};
use crate::{Error, keys::Keys, links};

/// Most bytes of what is asked. The page behind the link shows all of it.
const MOST_EXACT: usize = 64 * 1024;

/// What is to be done with a notice.
pub(crate) enum Composed {
    /// It is told.
    Tell(Box<Notice>),
    /// It is not, and why.
    Drop(&'static str),
}

/// Makes the words of a notice for a channel.
pub(crate) async fn compose(
    conn: &mut Conn,
    (keys, parts): (&Keys, &Parts),
    row: &Notification,
    channel: &Channel,
    now: OffsetDateTime,
) -> Result<Composed, Error> {
    if row.kind == TEST {
        return Ok(Composed::Tell(Box::new(tried(row))));
    }
    let about = Concerns { kind: &row.kind, project: row.project, subject: row.subject };
    if notices::listeners(conn, about, Some(channel.id)).await?.is_empty() {
        return Ok(Composed::Drop("the channel may not be told of this any more"));
    }
    let Some(asked) = asked(row) else {
        if let Some(wait) = wait_of(row)
            && !waits::get(conn, wait).await?.is_some_and(|wait| wait.open)
        {
            return Ok(Composed::Drop("it is not paused any more"));
        }
        let around = question::around(conn, String::new(), row.task, row.project).await?;
        return Ok(Composed::Tell(Box::new(plain(row, &around))));
    };
    match question::find(conn, keys, asked, now).await? {
        Some(question) if question.open => {
            let link = link(conn, (keys, parts), row, channel, &question, now).await?;
            Ok(Composed::Tell(Box::new(asking(row, &question, link))))
        }
        Some(_) | None => Ok(Composed::Drop("it was answered, or it is too late to answer")),
    }
}

/// The wait that an event tells of.
fn wait_of(row: &Notification) -> Option<WaitId> {
    let wait = row.data.get("wait_id").and_then(Value::as_str);
    wait.filter(|_| row.kind == "task.waiting")?.parse().ok()
}

/// The question that an event tells of.
fn asked(row: &Notification) -> Option<Asked> {
    let text = |name: &str| row.data.get(name).and_then(Value::as_str);
    match row.kind.as_str() {
        "approval.asked" => text("approval_id")?.parse::<ApprovalId>().ok().map(Asked::Approval),
        "task.waiting" => {
            let wait = wait_of(row)?;
            match WaitReason::from_name(text("reason")?)? {
                WaitReason::Approval => Some(Asked::Plan(wait)),
                WaitReason::HumanInput => Some(Asked::Answer(wait)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The address where this user answers this question. Nobody has one who may not answer, and nothing that many people read.
async fn link(
    conn: &mut Conn,
    (keys, parts): (&Keys, &Parts),
    row: &Notification,
    channel: &Channel,
    question: &Question,
    now: OffsetDateTime,
) -> Result<Option<Url>, Error> {
    let (Owner::User(user), Some(base)) = (channel.owner, &parts.public_url) else {
        return Ok(None);
    };
    // A link does not outlive what it answers.
    let most = row.occurred_at + links::LIFETIME;
    let expires_at = question.until.map_or(most, |until| until.min(most));
    let caller = authentication::by_link(conn, user).await?;
    let Some(caller) = caller.filter(|_| expires_at > now) else { return Ok(None) };
    let (role, needed) = match question.project {
        Some(project) => {
            let own = authentication::project_role(conn, user, project).await?;
            (own.max(caller.role), Role::Operator)
        }
        None => (caller.role, Role::Admin),
    };
    if role < Some(needed) {
        return Ok(None);
    }
    let token =
        links::Token { asked: question.asked, user, expires_at, made_at: now }.written(keys);
    let mut url = base.clone();
    url.set_path(&format!("{}/answer/{token}", base.path().trim_end_matches('/')));
    Ok(Some(url))
}

fn asking(row: &Notification, question: &Question, link: Option<Url>) -> Notice {
    let Circumstances { who, task, project, cost_micros } = &question.circumstances;
    let place = |words: &str, name: &Option<String>| match name {
        Some(name) => format!("{words} {name}"),
        None => String::new(),
    };
    let (task, project) = (place(", for task", task), place(" in", project));
    let next =
        if link.is_some() { "" } else { " Answer it through the API, or ask somebody who may." };
    let text =
        format!("Asked by {who}{task}{project}. Spent so far: {}.{next}", money(*cost_micros));
    let way = |label: &str, post: Option<&str>, url: &Url| Link {
        label: label.to_owned(),
        url: url.to_string(),
        post: post.map(str::to_owned),
    };
    let part = cut(&question.exact, MOST_EXACT);
    let links = link.map(|url| match question.asked {
        // Nobody says yes at once to what they were not shown to the end.
        Asked::Approval(_) | Asked::Plan(_) if part.is_none() => vec![
            way("Look and answer", None, &url),
            way("Approve", Some(links::YES), &url),
            way("Refuse", Some(links::NO), &url),
        ],
        Asked::Approval(_) | Asked::Plan(_) | Asked::Answer(_) => {
            vec![way("Look and answer", None, &url)]
        }
    });
    let exact = part.map(|part| format!("{part}\n… (cut off: the page behind the link shows all)"));
    Notice {
        title: line(&question.title),
        text,
        exact: Some(exact.unwrap_or_else(|| question.exact.clone())),
        links: links.unwrap_or_default(),
        ..empty(row)
    }
}

fn empty(row: &Notification) -> Notice {
    let about = json!({
        "project_id": row.project,
        "task_id": row.task,
        "trace_id": row.trace,
        "data": row.data,
    });
    Notice {
        id: row.id.to_string(),
        kind: row.kind.clone(),
        title: String::new(),
        text: String::new(),
        exact: None,
        links: Vec::new(),
        about,
        at: row.occurred_at,
    }
}

/// Nothing in it is of whoever tries the channel, which may lead to anybody.
fn tried(row: &Notification) -> Notice {
    let title = "CyNode can reach you here".to_owned();
    let text = "Somebody tried this channel. There is nothing to do.".to_owned();
    Notice { title, text, ..empty(row) }
}

/// A notice that asks nothing.
fn plain(row: &Notification, around: &Circumstances) -> Notice {
    let said = |name: &str| row.data.get(name).and_then(Value::as_str).map(shown);
    let task = around.task.clone().or_else(|| said("name")).unwrap_or_else(|| "A task".to_owned());
    let spent = format!("Spent: {}.", money(around.cost_micros));
    let with = |first: Option<String>, rest: String| match first {
        Some(first) => format!("{first}\n\n{rest}"),
        None => rest,
    };
    let (title, text) = match row.kind.as_str() {
        "task.waiting" => {
            let goes_on = "It goes on when somebody tells it to continue.".to_owned();
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
        "sweep.halted" => {
            let text = "No job is given up before they are heard of, or an admin sets workflow.sweep_anyway.";
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
        other => (other.to_owned(), shown(&row.data.to_string())),
    };
    let place = around.project.as_ref().map(|project| format!(" ({project})"));
    let title = line(&format!("{title}{}", place.unwrap_or_default()));
    let links = said("url").filter(|_| row.kind == "pull_request.opened").and_then(opened);
    Notice { title, text, links: links.into_iter().collect(), ..empty(row) }
}

/// A way to a page of the web, if that is what it is.
fn opened(url: String) -> Option<Link> {
    let good = url.parse::<Url>().is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    good.then(|| Link { label: "Open".to_owned(), url, post: None })
}
