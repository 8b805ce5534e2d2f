//! Records what ended tasks leave: their summary and the findings of their reviews, under the profile of the task.
//!
//! A task is marked in the transaction that stores its records, so that each task is recorded once. Agents wrote these texts: they are
//! untrusted.

use cynode_core::{
    agents::AgentRole,
    memory::{
        MAX_CONTENT_BYTES, MAX_TITLE_CHARS, MemoryAuthor, MemoryKind, MemoryScope, MemoryText,
    },
    profiles::ProfileName,
    settings::registry::MEMORY_AUTO_SETTING,
    workflow::findings::{FindingSeverity, VerificationFinding},
};
use cynode_db::memory::{
    ended_tasks::{self, EndedTask},
    records::MemoryOrigin,
};
use serde_json::Value;

use crate::{
    App, Ctx, Error, OperationRequest,
    memory::records::{
        PreparedMemory, find_redactor, prepare_records, redact_whole, store_records,
    },
    platform::{error::log_background_error, operation, settings},
    tools::profiles::profile_of_agent,
};

/// Maximum number of tasks of one round.
const MAX_ROUND_TASKS: i64 = 20;

/// Maximum number of findings of one task that are recorded.
const MAX_TASK_FINDINGS: usize = 20;

/// Maximum number of characters of the title of a record.
const TITLE_CHARS: usize = 120;

/// Records what ended tasks have left. Returns the number of tasks. A task that fails is logged, and tried again in the next round.
#[tracing::instrument(name = "app.memory.record_task_memories", skip_all)]
#[operation]
pub async fn record_task_memories(app: &App) -> Result<usize, Error> {
    let mut conn = app.conn().await?;
    let ended = ended_tasks::list_unrecorded_tasks(&mut conn, MAX_ROUND_TASKS).await?;
    if ended.is_empty() {
        return Ok(0);
    }
    let set = settings::setting_value(&mut conn, MEMORY_AUTO_SETTING).await?;
    drop(conn);
    // A switch that nobody has set is on.
    let is_on = set != Some(Value::Bool(false));
    let mut count = 0;
    for task in ended {
        match record_task(app, &task, is_on).await {
            Ok(true) => count += 1,
            Ok(false) => {}
            Err(error) => {
                let message = "what a task left was not recorded; it is retried";
                log_background_error("memory.task_record_failed", &error, message);
            }
        }
    }
    Ok(count)
}

/// Records what one task has left. Returns `false` when another process has done it.
async fn record_task(app: &App, task: &EndedTask, is_on: bool) -> Result<bool, Error> {
    let texts = if is_on { describe_task(&redact_task(app, task).await?) } else { Vec::new() };
    let mut prepared = Vec::new();
    for text in texts {
        match prepare_records(app, vec![text]).await {
            Ok(records) => prepared.extend(records),
            // A text that cannot be a record must not keep the others from being recorded.
            Err(Error::Invalid(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let trace = app.environment().new_trace_id();
    let mut ctx =
        app.begin_transaction(&OperationRequest { caller: None, trace, attempt: None }).await?;
    let now = ctx.now;
    if !ended_tasks::mark_task_recorded(ctx.conn(), task.id, now).await? {
        ctx.rollback().await?;
        return Ok(false);
    }
    let profile = writing_profile(&mut ctx, task).await?;
    if let Some(profile) = profile.filter(|_| !prepared.is_empty()) {
        match store_task_records(&mut ctx, task, profile, prepared).await {
            // A memory that is full refuses before it writes. The task is marked all the same.
            Ok(()) | Err(Error::LimitExceeded(_)) => {}
            Err(error) => return Err(error),
        }
    }
    app.commit_operation(ctx).await?;
    Ok(true)
}

/// Returns the profile of the task, if it may remember.
async fn writing_profile(ctx: &mut Ctx, task: &EndedTask) -> Result<Option<ProfileName>, Error> {
    let profile =
        profile_of_agent(ctx, AgentRole::Developer, task.created_by, task.project, Some(task.id))
            .await?;
    Ok(profile.spec.writes_memory().then_some(profile.name))
}

async fn store_task_records(
    ctx: &mut Ctx,
    task: &EndedTask,
    profile: ProfileName,
    prepared: Vec<PreparedMemory>,
) -> Result<(), Error> {
    let origin = MemoryOrigin {
        author: MemoryAuthor::System,
        user: Some(task.created_by),
        role: None,
        task: Some(task.id),
        ingest: None,
        untrusted: true,
    };
    let scope = MemoryScope { project: task.project, profile };
    store_records(ctx, &scope, &origin, prepared).await?;
    Ok(())
}

/// Returns the task without secrets. Its texts are cut for a record afterwards.
async fn redact_task(app: &App, task: &EndedTask) -> Result<EndedTask, Error> {
    let redactor = find_redactor(app).await?;
    let mut task = task.clone();
    let texts =
        [&mut task.description].into_iter().chain(&mut task.failure).chain(&mut task.summary);
    for text in texts.chain(task.findings.iter_mut().map(|finding| &mut finding.text)) {
        *text = redact_whole(redactor.as_deref(), std::mem::take(text));
    }
    Ok(task)
}

/// Returns the texts that a task leaves: what became of it, and what its reviews found.
fn describe_task(task: &EndedTask) -> Vec<(MemoryKind, MemoryText)> {
    let summary = task.summary.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let outcome = match (task.state.as_str(), task.failure.as_deref()) {
        ("completed", _) => "It was completed.".to_owned(),
        ("failed", Some(why)) => format!("It failed: {why}"),
        (state, _) => format!("It ended: {state}."),
    };
    let mut texts = Vec::new();
    // A task that was cancelled before it did anything has nothing to tell.
    if summary.is_some() || task.failure.is_some() {
        let content =
            format!("{}\n\n{outcome}\n\n{}", task.description.trim(), summary.unwrap_or_default());
        let title = to_title(&format!("Task {}: {}", task.name, task.description));
        texts.push((MemoryKind::Summary, to_text(task, title, content.trim(), None)));
    }
    let findings = worst_findings(task.findings.iter());
    texts.extend(findings.into_iter().map(|finding| {
        let title = to_title(&finding.text);
        let path = finding.at.as_deref().and_then(path_of_place);
        let content = format!("{}\n\nFound in task {}.", finding.describe_finding(), task.name);
        (MemoryKind::Finding, to_text(task, title, &content, path))
    }));
    texts
}

fn to_text(task: &EndedTask, title: String, content: &str, path: Option<String>) -> MemoryText {
    // Marks in place of secrets may be longer than these.
    let end = content.floor_char_boundary(MAX_CONTENT_BYTES / 2);
    MemoryText {
        title,
        content: content.get(..end).unwrap_or_default().to_owned(),
        source: format!("task:{}", task.id),
        path,
        url: None,
        commit: None,
    }
}

/// Returns the beginning of a text on one line.
fn to_title(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line: String = words.join(" ").chars().filter(|c| !c.is_control()).collect();
    let max = TITLE_CHARS.min(MAX_TITLE_CHARS);
    if line.chars().count() <= max {
        return line;
    }
    let cut: String = line.chars().take(max.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// Returns the file of a place such as `src/x.rs:42`.
fn path_of_place(at: &str) -> Option<String> {
    let path = at.split(':').next().unwrap_or_default().trim();
    cynode_core::memory::ingests::normalize_ingest_path(path)
}

/// Returns the findings that somebody should know, the worst first and each once.
fn worst_findings<'a>(
    findings: impl Iterator<Item = &'a VerificationFinding>,
) -> Vec<&'a VerificationFinding> {
    let matters = |finding: &&VerificationFinding| {
        matches!(finding.severity, FindingSeverity::Critical | FindingSeverity::Major)
            && !finding.text.trim().is_empty()
    };
    let mut worst: Vec<&VerificationFinding> = Vec::new();
    for finding in findings.filter(matters) {
        if !worst.iter().any(|known| known.text == finding.text && known.at == finding.at) {
            worst.push(finding);
        }
    }
    worst.sort_by_key(|finding| finding.severity);
    worst.truncate(MAX_TASK_FINDINGS);
    worst
}

#[cfg(test)]
mod tests {
    use cynode_core::ids::{ProjectId, TaskId, UserId};
    use uuid::Uuid;

    use super::*;

    fn task(summary: Option<&str>, findings: Vec<VerificationFinding>) -> EndedTask {
        EndedTask {
            id: TaskId::from_uuid(Uuid::from_u128(1)),
            project: ProjectId::from_uuid(Uuid::from_u128(2)),
            created_by: UserId::from_uuid(Uuid::from_u128(3)),
            name: "retry".to_owned(),
            description: "Retry\nfailed requests".to_owned(),
            state: "completed".to_owned(),
            failure: None,
            summary: summary.map(str::to_owned),
            findings,
        }
    }

    #[test]
    fn a_task_leaves_its_summary_and_its_worst_findings_once() {
        let finding = |severity, text: &str| VerificationFinding {
            at: Some("src/retry.rs:42".to_owned()),
            ..VerificationFinding::new(severity, text)
        };
        let findings = vec![
            finding(FindingSeverity::Minor, "A name is long"),
            finding(FindingSeverity::Major, "It never stops"),
            finding(FindingSeverity::Critical, "It loses data"),
            finding(FindingSeverity::Major, "It never stops"),
        ];
        let texts = describe_task(&task(Some("1 unit done"), findings));
        let told: Vec<_> = texts.iter().map(|(kind, text)| (*kind, text.title.as_str())).collect();
        let wanted = [
            (MemoryKind::Summary, "Task retry: Retry failed requests"),
            (MemoryKind::Finding, "It loses data"),
            (MemoryKind::Finding, "It never stops"),
        ];
        assert_eq!(told, wanted);
        assert_eq!(texts[1].1.path.as_deref(), Some("src/retry.rs"));
        for (_, text) in &texts {
            assert!(text.source.starts_with("task:tsk_"), "{}", text.source);
            text.validate().unwrap();
        }
        assert_eq!(describe_task(&task(None, Vec::new())), Vec::new());
    }

    #[test]
    fn a_title_is_one_line_and_not_too_long() {
        assert_eq!(to_title("a\n b\tc"), "a b c");
        let long = to_title(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), TITLE_CHARS);
        assert!(long.ends_with('…'));
    }
}
