//! What agents are given beside their questions: records of memory are searched when a handoff or a job is claimed, and what was given is
//! recorded by id.
//!
//! **Invariant**: memory never stands in the way of work. A search runs outside of the claim's transaction and for a bounded time; when it
//! fails, the agent is given nothing and the record says so.

use std::{fmt::Write as _, time::Duration};

use cynode_core::{
    ids::{AgentTokenId, HandoffId, JobId, ProjectId},
    memory::{MAX_QUERY_CHARS, MemoryScope, PromptMemory, prompts::DEFAULT_PROMPT_TOKENS},
    profiles::{ProfileName, ProfileVersion},
    settings::registry::MEMORY_PROMPT_TOKENS_SETTING,
    skills::SelectedSkill,
    workflow::{
        given_context::{GivenContext, GivenMemory, GivenSkill},
        handoffs::{ChatRole, HandoffRequest},
        jobs::{JobSpec, WorkerChoice},
    },
};
use cynode_db::{manager::given_context, tools::agent_tokens};
use cynode_wire::{
    manager::handoffs::{HandoffAssignment, HandoffContext},
    nodes::JobAssignment,
};
use serde_json::Value;

use crate::{
    App, Error, OperationRequest, memory,
    platform::{error::log_background_error, settings},
    tasks::profiles,
};

/// Maximum duration of a search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of the last turns of a chat by which memory is searched.
const RANKED_TURN_COUNT: usize = 3;

/// Searches memory for a handoff that was just claimed, adds what it finds to the handoff's context, and records what the handoff is given.
pub(crate) async fn give_to_handoff(
    app: &App,
    request: &OperationRequest,
    project: ProjectId,
    handoff: &mut HandoffAssignment,
) {
    let claim = ContextClaim {
        project,
        receiver: ContextReceiver::Handoff(handoff.handoff_id),
        fencing_token: handoff.fencing_token,
    };
    let text = handoff_text(&handoff.request, &handoff.context);
    let found = search_for_claim(app, claim, text).await;
    let skills = to_given_skills(&handoff.context.skills);
    record_claim(app, request, claim, &found, skills).await;
    handoff.context.profile = Some(found.profile.to_string());
    handoff.context.memories = found.memories;
}

/// Searches memory for a job that a node just claimed, adds what it finds to the job's context, and records what the job is given.
pub(crate) async fn give_to_job(
    app: &App,
    request: &OperationRequest,
    assignment: &mut JobAssignment,
) {
    // Nobody but this search says what is known: a plan could make it up.
    assignment.work.context.memories = Vec::new();
    let claim = ContextClaim {
        project: assignment.project_id,
        receiver: ContextReceiver::Job(assignment.job_id, assignment.agent_token_id),
        fencing_token: assignment.fencing_token,
    };
    let Some(text) = job_text(&assignment.title, &assignment.work) else { return };
    let found = search_for_claim(app, claim, Some(text)).await;
    let skills = to_given_skills(&assignment.work.context.skills);
    record_claim(app, request, claim, &found, skills).await;
    assignment.work.context.memories = found.memories;
}

/// Claim of a handoff or a job.
#[derive(Clone, Copy)]
struct ContextClaim {
    project: ProjectId,
    receiver: ContextReceiver,
    fencing_token: i64,
}

/// Receiver of what is given. The profile is that of its token.
#[derive(Clone, Copy)]
enum ContextReceiver {
    Handoff(HandoffId),
    Job(JobId, AgentTokenId),
}

/// Result of a search. A failed one found nothing.
struct SearchOutcome {
    profile: ProfileName,
    /// 0 if the profile is not there any more.
    profile_version: u32,
    memories: Vec<PromptMemory>,
    searched: bool,
    failure: Option<String>,
}

impl SearchOutcome {
    /// Logs a failure. The agent is given nothing.
    fn from_error(profile: ProfileName, profile_version: u32, error: &Error) -> Self {
        log_background_error(
            "memory.search_failed",
            error,
            "memory could not be searched: an agent is given none",
        );
        Self {
            profile,
            profile_version,
            memories: Vec::new(),
            searched: true,
            failure: Some(error.to_string()),
        }
    }
}

/// Searches memory under the profile of a claim. Without a text nothing is searched.
async fn search_for_claim(app: &App, claim: ContextClaim, text: Option<String>) -> SearchOutcome {
    let name = match load_profile_name(app, claim).await {
        Ok(name) => name,
        Err(error) => return SearchOutcome::from_error(ProfileName::default(), 0, &error),
    };
    let (profile, max_tokens) = match load_profile(app, claim.project, &name).await {
        Ok(loaded) => loaded,
        Err(error) => return SearchOutcome::from_error(name, 0, &error),
    };
    let profile_version = profile.version;
    let text = text.filter(|_| profile.spec.reads_memory() && max_tokens > 0);
    let Some(text) = text else {
        return SearchOutcome {
            profile: name,
            profile_version,
            memories: Vec::new(),
            searched: false,
            failure: None,
        };
    };
    let scope = MemoryScope { project: claim.project, profile: name.clone() };
    let search = Box::pin(search_memory(app, claim, &scope, &text, max_tokens));
    let found = tokio::time::timeout(SEARCH_TIMEOUT, search).await;
    match found.unwrap_or(Err(Error::Overloaded)) {
        Ok(memories) => SearchOutcome {
            profile: name,
            profile_version,
            memories,
            searched: true,
            failure: None,
        },
        Err(error) => SearchOutcome::from_error(name, profile_version, &error),
    }
}

/// Searches memory. A later claim of a handoff gets what the handoff was given before, as far as it is still there: with other records in
/// its prompts it could not use the decisions that are recorded.
async fn search_memory(
    app: &App,
    claim: ContextClaim,
    scope: &MemoryScope,
    text: &str,
    max_tokens: u32,
) -> Result<Vec<PromptMemory>, Error> {
    if let ContextReceiver::Handoff(id) = claim.receiver {
        let mut conn = app.conn().await?;
        let profile = scope.profile.as_str();
        let before = given_context::find_given_to_handoff(&mut conn, id, profile).await?;
        drop(conn);
        if let Some(before) = before {
            return memory::read_given_memories(app, scope, &before.memories, max_tokens).await;
        }
    }
    memory::best_for_prompt(app, scope, text, max_tokens).await
}

/// Returns the name of the profile under which the claim's token works.
async fn load_profile_name(app: &App, claim: ContextClaim) -> Result<ProfileName, Error> {
    let mut conn = app.conn().await?;
    let name = match claim.receiver {
        ContextReceiver::Handoff(id) => {
            given_context::profile_of_handoff_token(&mut conn, id).await?
        }
        ContextReceiver::Job(_, token) => agent_tokens::profile_of_token(&mut conn, token).await?,
    };
    let name = name.unwrap_or_default();
    name.parse().map_err(|_| unknown_profile(&name))
}

/// Returns the present version of a profile, and how many tokens of a prompt memory may take.
async fn load_profile(
    app: &App,
    project: ProjectId,
    name: &ProfileName,
) -> Result<(ProfileVersion, u32), Error> {
    let mut conn = app.conn().await?;
    let default = DEFAULT_PROMPT_TOKENS.into();
    let max_tokens =
        settings::setting_number(&mut conn, MEMORY_PROMPT_TOKENS_SETTING, default).await?;
    let found = profiles::find_profile(&mut conn, Some(project), name).await?;
    let profile = found.ok_or_else(|| unknown_profile(name.as_str()))?;
    Ok((profile, u32::try_from(max_tokens).unwrap_or_default()))
}

fn unknown_profile(name: &str) -> Error {
    Error::Invalid(format!("there is no profile `{name}` any more"))
}

/// Records what was given under a claim. Of a job that was given nothing there is nothing to record.
async fn record_claim(
    app: &App,
    request: &OperationRequest,
    claim: ContextClaim,
    found: &SearchOutcome,
    skills: Vec<GivenSkill>,
) {
    let (handoff_id, job_id) = match claim.receiver {
        ContextReceiver::Handoff(id) => (Some(id), None),
        ContextReceiver::Job(id, _) => (None, Some(id)),
    };
    let is_repeatable = handoff_id.is_some() && found.searched;
    let is_empty = found.memories.is_empty() && skills.is_empty() && found.failure.is_none();
    if is_empty && !is_repeatable {
        return;
    }
    let memories = found.memories.iter();
    let given = GivenContext {
        handoff_id,
        job_id,
        fencing_token: claim.fencing_token,
        profile: found.profile.to_string(),
        profile_version: found.profile_version,
        memories: memories
            .map(|memory| GivenMemory { memory_id: memory.memory_id, score: memory.score })
            .collect(),
        skills,
        failure: found.failure.clone(),
        given_at: app.environment().now(),
    };
    let record = async {
        let mut ctx = app.begin_transaction(request).await?;
        given_context::record_given_context(ctx.conn(), &given).await?;
        app.commit_operation(ctx).await
    };
    if let Err(error) = record.await {
        log_background_error(
            "given_context.record_failed",
            &error,
            "what an agent is given could not be recorded",
        );
    }
}

fn to_given_skills(skills: &[SelectedSkill]) -> Vec<GivenSkill> {
    let skills = skills.iter().map(|skill| GivenSkill {
        skill_id: skill.skill_id,
        name: skill.name.clone(),
        version: skill.version,
    });
    skills.collect()
}

/// Returns the text by which memory is searched for a handoff, the most specific first. `None` for work that is about the course of a task
/// and not about the project.
pub(super) fn handoff_text(request: &HandoffRequest, context: &HandoffContext) -> Option<String> {
    let mut text = SearchText::default();
    match request {
        HandoffRequest::Dispatch { .. } | HandoffRequest::Summarise { .. } => return None,
        HandoffRequest::Chat { messages } => {
            let turns = messages.iter().rev().filter(|turn| turn.role == ChatRole::User);
            turns.take(RANKED_TURN_COUNT).for_each(|turn| text.push(&turn.content));
        }
        HandoffRequest::Plan { feedback, .. } => {
            feedback.iter().rev().for_each(|said| text.push(&said.text));
        }
        HandoffRequest::Verify(judge) | HandoffRequest::Analyse(judge) => {
            text.push(&judge.title);
            text.push_values(&judge.payload["brief"]);
        }
        HandoffRequest::Failure { title, payload, reason, .. } => {
            text.push(title);
            text.push(reason);
            text.push_values(&payload["brief"]);
        }
        HandoffRequest::Report { report } => text.push(&report.summary),
        HandoffRequest::Schedule { text: schedule, .. } => text.push(schedule),
    }
    if let Some(task) = &context.task {
        text.push(&task.name.replace('-', " "));
        text.push(&task.description);
        task.acceptance_criteria.iter().for_each(|criterion| text.push(criterion.text.as_str()));
    }
    text.into_text()
}

/// Returns the text by which memory is searched for a job: what is to be done, and in which files. `None` for work that no agent does.
pub(crate) fn job_text(title: &str, work: &JobSpec) -> Option<String> {
    match &work.worker {
        WorkerChoice::Acp { .. } | WorkerChoice::Scripted { .. } => {}
        WorkerChoice::Command { .. } | WorkerChoice::Checks { .. } | WorkerChoice::Merge => {
            return None;
        }
    }
    let context = &work.context;
    let mut text = SearchText::default();
    text.push(title);
    text.push(&context.task_summary);
    let lists = [&context.files_to_modify, &context.requirements, &context.files_to_read_first];
    lists.into_iter().flatten().for_each(|line| text.push(line));
    if let Some(feedback) = &context.revision_feedback {
        feedback.findings.iter().for_each(|finding| text.push(&finding.text));
    }
    text.into_text()
}

/// Text of a search that is being put together. What does not fit is left out.
#[derive(Default)]
struct SearchText(String);

impl SearchText {
    fn push(&mut self, words: &str) {
        let room = MAX_QUERY_CHARS.saturating_sub(self.0.len());
        let end = words.floor_char_boundary(room);
        if let Some(words) = words.get(..end).filter(|words| !words.trim().is_empty()) {
            let _ = writeln!(self.0, "{words}");
        }
    }

    /// Adds the texts of a JSON value, without the names of its fields.
    fn push_values(&mut self, value: &Value) {
        match value {
            Value::String(words) => self.push(words),
            Value::Array(items) => items.iter().for_each(|item| self.push_values(item)),
            Value::Object(fields) => fields.values().for_each(|field| self.push_values(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn into_text(self) -> Option<String> {
        (!self.0.is_empty()).then_some(self.0)
    }
}

#[cfg(test)]
mod tests;
