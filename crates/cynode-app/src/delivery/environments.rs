//! Environments of projects: detect, propose, accept, try, and assign to jobs.
//!
//! **Invariant**: jobs run only in a version that a person with the right accepted. The one exception is a trial, which gets no secrets.

use std::{collections::BTreeMap, time::Duration};

use cynode_core::{
    agents::AgentRole,
    environments::{
        EnvironmentCheck, EnvironmentOrigin, EnvironmentProposal, EnvironmentRef, EnvironmentSpec,
        EnvironmentState, PackagePolicy, REPOSITORY_FILE, SECRET_NAME_RULE, is_secret_name,
    },
    events::EventKind,
    evidence::EvidenceCheck,
    ids::{ProjectId, TaskId, UserId},
    names::{Prose, TaskName},
    policies::{ApprovalKind, PolicyKey, PolicySet},
    roles::UserRole,
    settings::registry::{
        ENVIRONMENT_SECRETS_SETTING, FORBIDDEN_LICENCES_SETTING, FORBIDDEN_PACKAGES_SETTING,
        MIN_PACKAGE_AGE_SETTING,
    },
    tasks::Task,
    workflow::{
        environments::SETUP_FAILURE_PREFIX,
        jobs::{CommitRule, JobSpec, PlacementSpec, SandboxNeeds, StructuredContext, WorkerChoice},
        plan::{Plan, PlanText, PlannedUnit},
    },
};
use cynode_db::{
    Conn,
    delivery::{
        environments::{self, EnvironmentDecision, NewEnvironment, SealedSecret},
        evidence, repositories,
    },
    tasks::policies,
};
use cynode_wire::{
    delivery::environments::{
        DecideEnvironment, DetectEnvironment, EnvironmentView, TryEnvironment,
    },
    identity::accounts::SecretText,
    nodes::AssignedEnvironment,
    tasks::CreateTask,
};
use data_encoding::HEXLOWER;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

pub use cynode_db::delivery::environments::{
    EnvironmentRecord, PackageFetchFilter, PackageFetchRecord, ProjectSecretInfo,
};

use super::require_person_with_role;
use crate::{
    App, Ctx, Error, OperationAnswer, OperationRequest,
    platform::{
        context::EventDraft, error::log_background_error, keys::InstallationKeys, operation,
        settings,
    },
};

/// Maximum number of paths that detection sees.
const MAX_DETECTION_PATHS: usize = 50_000;

/// Maximum size of a file that is read for detection. A longer one is cut off here and counts as unreadable there.
const MAX_DETECTION_FILE_BYTES: usize = cynode_detection::MAX_FILE_BYTES + 1;

/// Maximum size of all files that are read for one detection.
const MAX_DETECTION_BYTES: usize = 32 * 1024 * 1024;

/// Maximum size of the environment file of a repository.
const MAX_ENVIRONMENT_FILE_BYTES: usize = 64 * 1024;

/// Paths of a devcontainer file, the preferred one first.
const DEVCONTAINER_PATHS: [&str; 2] = [".devcontainer/devcontainer.json", ".devcontainer.json"];

/// Interval of the scan for repositories whose default branch has moved.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of repositories that one round of the scan reads.
const SCAN_BATCH_SIZE: i64 = 100;

/// Length of a secret's value, in bytes. Redaction would find shorter ones in ordinary words.
const SECRET_BYTES_RANGE: std::ops::RangeInclusive<usize> = 8..=4096;

/// Maximum length of a note on a decision, in characters.
const MAX_NOTE_CHARS: usize = 2000;

/// Maximum length of the reason why an environment file cannot be read, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Returns the digest of a specification: SHA-256 of its canonical JSON, in hexadecimal. Fields have a fixed order, and maps are sorted.
pub fn spec_digest(spec: &EnvironmentSpec) -> Result<String, Error> {
    let bytes = serde_json::to_vec(spec).map_err(|error| Error::Internal(error.into()))?;
    Ok(HEXLOWER.encode(&Sha256::digest(bytes)))
}

/// Returns the associated data of a sealed secret: it belongs to one name of one project.
pub(crate) fn secret_associated_data(project: ProjectId, name: &str) -> Vec<u8> {
    format!("project/secret/{project}\n{name}").into_bytes()
}

impl InstallationKeys {
    /// Unseals a secret of a project.
    pub(crate) fn project_secret(&self, secret: &SealedSecret) -> Result<SecretString, Error> {
        let place = secret_associated_data(secret.project, &secret.name);
        self.unseal_text(&place, &secret.sealed)
    }
}

/// Returns a version as it is shown.
pub fn to_environment_view(record: EnvironmentRecord) -> EnvironmentView {
    EnvironmentView {
        version: record.version,
        digest: record.digest,
        state: record.state,
        origin: record.origin,
        source_commit: record.source_commit,
        spec: record.spec,
        reasons: record.reasons,
        warnings: record.warnings,
        proposed_by: record.proposed_by,
        proposed_at: record.proposed_at,
        decided_by: record.decided_by,
        decided_at: record.decided_at,
        note: record.decision_note,
    }
}

/// Lists the versions of a project's environment, the newest first.
#[tracing::instrument(name = "app.environments.list_environments", skip_all)]
#[operation]
pub async fn list_environments(
    ctx: &mut Ctx,
    project: ProjectId,
) -> Result<Vec<EnvironmentRecord>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    Ok(environments::list_environments(ctx.conn(), project).await?)
}

/// Returns a version of a project's environment.
#[tracing::instrument(name = "app.environments.get_environment", skip_all)]
#[operation]
pub async fn get_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    version: u32,
) -> Result<EnvironmentRecord, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    require_version(ctx.conn(), project, version).await
}

/// Returns the version that jobs of a project run in.
#[tracing::instrument(name = "app.environments.get_accepted_environment", skip_all)]
#[operation]
pub async fn get_accepted_environment(
    ctx: &mut Ctx,
    project: ProjectId,
) -> Result<EnvironmentRecord, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = environments::get_accepted_environment(ctx.conn(), project).await?;
    found.ok_or_else(|| Error::not_found("accepted environment of project", project))
}

async fn require_version(
    conn: &mut Conn,
    project: ProjectId,
    version: u32,
) -> Result<EnvironmentRecord, Error> {
    let found = environments::get_environment(conn, project, version).await?;
    found.ok_or_else(|| Error::not_found("environment version", version))
}

/// Proposes an environment that a person wrote. A proposal or an accepted version with the same content is returned as it is.
#[tracing::instrument(name = "app.environments.propose_environment", skip_all, fields(project.id = %project))]
#[operation]
pub async fn propose_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    spec: EnvironmentSpec,
) -> Result<EnvironmentRecord, Error> {
    let user = require_person_with_role(ctx, project, UserRole::Operator).await?;
    let draft = ProposalDraft {
        proposal: EnvironmentProposal { spec, ..EnvironmentProposal::default() },
        origin: EnvironmentOrigin::Person,
        commit: None,
        by: Some(user),
    };
    store_proposal(ctx, project, &draft).await
}

/// A proposal that is about to be stored.
struct ProposalDraft {
    proposal: EnvironmentProposal,
    origin: EnvironmentOrigin,
    commit: Option<String>,
    by: Option<UserId>,
}

/// Stores a proposal as the next version, unless the same content is accepted or proposed already.
async fn store_proposal(
    ctx: &mut Ctx,
    project: ProjectId,
    draft: &ProposalDraft,
) -> Result<EnvironmentRecord, Error> {
    let EnvironmentProposal { spec, reasons, warnings } = &draft.proposal;
    if let Some(why) = spec.validation_error() {
        return Err(Error::Invalid(why));
    }
    let digest = spec_digest(spec)?;
    environments::lock_environments(ctx.conn(), project).await?;
    let accepted = environments::get_accepted_environment(ctx.conn(), project).await?;
    if let Some(accepted) = accepted.filter(|accepted| accepted.digest == digest) {
        return Ok(accepted);
    }
    let newest = environments::find_environment(ctx.conn(), project, &digest).await?;
    if let Some(open) = newest.filter(|it| it.state == EnvironmentState::Proposed) {
        return Ok(open);
    }
    let new = NewEnvironment {
        digest: &digest,
        spec,
        origin: draft.origin,
        source_commit: draft.commit.as_deref(),
        reasons,
        warnings,
        proposed_by: draft.by,
    };
    let now = ctx.now;
    let stored = environments::insert_proposal(ctx.conn(), project, &new, now).await;
    let version = match stored {
        Err(error) if error.is_refused_by("project_environments_project_id_fkey") => {
            return Err(Error::not_found("project", project));
        }
        stored => stored?,
    };
    let data = json!({ "version": version, "origin": draft.origin.as_str(), "digest": digest });
    ctx.record_event(EventDraft::new(EventKind::EnvironmentProposed, data).with_project(project))
        .await?;
    require_version(ctx.conn(), project, version).await
}

/// Detects the environment of a project from the head of its default branch and stores it as a proposal. An accepted version or an
/// open proposal with the same content is returned as it is.
#[tracing::instrument(name = "app.environments.detect_environment", skip_all, fields(project.id = %project))]
#[operation]
pub async fn detect_environment(
    app: &App,
    request: &OperationRequest,
    project: ProjectId,
    body: DetectEnvironment,
) -> Result<OperationAnswer, Error> {
    let look = app.read(request, |ctx| {
        Box::pin(async move {
            let user = require_person_with_role(ctx, project, UserRole::Operator).await?;
            Ok((user, repositories::get_repository(ctx.conn(), project).await?))
        })
    });
    let (user, repository) = look.await?;
    let repository =
        repository.ok_or_else(|| Error::not_found("repository of project", project))?;
    let (proposal, origin) = detect_at(app, project, &repository.head, body.devcontainer).await?;
    let draft = ProposalDraft { proposal, origin, commit: Some(repository.head), by: Some(user) };
    app.mutate(request, |ctx| {
        Box::pin(async move {
            require_person_with_role(ctx, project, UserRole::Operator).await?;
            Ok(to_environment_view(store_proposal(ctx, project, &draft).await?))
        })
    })
    .await
}

/// Detects the environment of a project on behalf of the installation, when work on it begins. A proposal is stored if jobs need
/// set-up and its content is new: nobody is asked twice about what was rejected. Returns the newest proposal that waits for a
/// decision.
#[operation]
pub async fn propose_detected(
    app: &App,
    project: ProjectId,
) -> Result<Option<EnvironmentRecord>, Error> {
    let mut conn = app.conn().await?;
    let Some(repository) = repositories::get_repository(&mut conn, project).await? else {
        return Ok(None);
    };
    let open = environments::get_newest_proposal(&mut conn, project).await?;
    drop(conn);
    // What people or the repository itself wrote comes before what detection would propose.
    let is_written = |it: &EnvironmentRecord| {
        matches!(it.origin, EnvironmentOrigin::Person | EnvironmentOrigin::Repository)
            && it.spec.needs_setup()
    };
    let is_fresh = |it: &EnvironmentRecord| it.source_commit.as_ref() == Some(&repository.head);
    if open.as_ref().is_some_and(|it| is_written(it) || is_fresh(it)) {
        return Ok(open);
    }
    let (proposal, origin) = detect_at(app, project, &repository.head, false).await?;
    if !proposal.spec.needs_setup() || proposal.spec.validation_error().is_some() {
        return Ok(open);
    }
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    let digest = spec_digest(&proposal.spec)?;
    let known = environments::find_environment(ctx.conn(), project, &digest).await?;
    if known.is_none_or(|it| it.state == EnvironmentState::Superseded && !it.was_accepted()) {
        let draft = ProposalDraft { proposal, origin, commit: Some(repository.head), by: None };
        store_proposal(&mut ctx, project, &draft).await?;
    }
    let newest = environments::get_newest_proposal(ctx.conn(), project).await?;
    app.commit_operation(ctx).await?;
    Ok(newest)
}

/// Returns a request of the installation itself.
fn system_request(app: &App) -> OperationRequest {
    OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None }
}

/// Detects the environment of a commit. The devcontainer file is used on request, and where the build files say nothing.
async fn detect_at(
    app: &App,
    project: ProjectId,
    commit: &str,
    devcontainer: bool,
) -> Result<(EnvironmentProposal, EnvironmentOrigin), Error> {
    let store = &app.gateway_parts()?.repositories;
    let (files, cut) = store.list_tree(project, commit, MAX_DETECTION_PATHS).await?;
    let paths: Vec<String> = files.into_iter().map(|file| file.path).collect();
    let container = DEVCONTAINER_PATHS.into_iter().find(|path| paths.iter().any(|it| it == path));
    let container = match container {
        Some(path) => read_devcontainer_file(app, project, commit, path).await?,
        None => None,
    };
    if devcontainer {
        return match container {
            Some(Ok(proposal)) => Ok((proposal, EnvironmentOrigin::Devcontainer)),
            Some(Err(why)) => Err(Error::Invalid(why)),
            None => Err(Error::not_found("devcontainer file", DEVCONTAINER_PATHS[0])),
        };
    }
    let (mut texts, mut left) = (BTreeMap::new(), MAX_DETECTION_BYTES);
    for path in cynode_detection::files_to_read(&paths) {
        let limit = MAX_DETECTION_FILE_BYTES.min(left);
        if let Some((text, _)) = store.read_file(project, commit, &path, limit).await? {
            left -= text.len();
            texts.insert(path, text);
        }
    }
    let mut proposal = cynode_detection::detect_environment(&paths, &texts);
    let says_nothing = !proposal.spec.needs_setup() && proposal.spec.checks.is_empty();
    match container {
        Some(Ok(found)) if says_nothing => return Ok((found, EnvironmentOrigin::Devcontainer)),
        Some(Ok(_)) => proposal.warnings.push(
            "the repository has a devcontainer file: `cynork project environment detect --devcontainer` proposes it instead".into(),
        ),
        Some(Err(why)) => proposal.warnings.push(why),
        None => {}
    }
    if cut {
        proposal
            .warnings
            .push(format!("only the first {MAX_DETECTION_PATHS} files were looked at"));
    }
    Ok((proposal, EnvironmentOrigin::Detected))
}

/// Reads a devcontainer file. The inner error says why it cannot be used.
async fn read_devcontainer_file(
    app: &App,
    project: ProjectId,
    commit: &str,
    path: &str,
) -> Result<Option<Result<EnvironmentProposal, String>>, Error> {
    let store = &app.gateway_parts()?.repositories;
    let found = store.read_file(project, commit, path, MAX_DETECTION_FILE_BYTES).await?;
    Ok(found.map(|(text, _)| {
        let proposal = cynode_detection::read_devcontainer(&text)
            .map_err(|why| format!("`{path}` cannot be used: {why}"))?;
        match proposal.spec.validation_error() {
            Some(why) => Err(format!("`{path}` cannot be used: {why}")),
            None => Ok(proposal),
        }
    }))
}

/// Accepts a version: jobs that are planned from now on run in it. The version that was accepted before is superseded.
#[tracing::instrument(name = "app.environments.accept_environment", skip_all, fields(project.id = %project))]
#[operation]
pub async fn accept_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    version: u32,
    body: DecideEnvironment,
) -> Result<EnvironmentRecord, Error> {
    decide_environment(ctx, project, version, true, body.note).await
}

/// Rejects a version. If it was the accepted one, the project has no environment any more.
#[tracing::instrument(name = "app.environments.reject_environment", skip_all, fields(project.id = %project))]
#[operation]
pub async fn reject_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    version: u32,
    body: DecideEnvironment,
) -> Result<EnvironmentRecord, Error> {
    decide_environment(ctx, project, version, false, body.note).await
}

async fn decide_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    version: u32,
    accepted: bool,
    note: Option<String>,
) -> Result<EnvironmentRecord, Error> {
    let user = require_person_with_role(ctx, project, UserRole::Admin).await?;
    let note = note.map(|note| note.trim().to_owned()).filter(|note| !note.is_empty());
    if note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE_CHARS) {
        return Err(Error::Invalid(format!("`note` has at most {MAX_NOTE_CHARS} characters")));
    }
    environments::lock_environments(ctx.conn(), project).await?;
    let there = require_version(ctx.conn(), project, version).await?;
    if accepted {
        let authors: Vec<UserId> = there.proposed_by.into_iter().collect();
        let (held, kind) = (PolicySet::default(), ApprovalKind::Environment);
        crate::tasks::policies::require_second_person(ctx, &held, &authors, user, kind).await?;
    }
    let decision = EnvironmentDecision { accepted, decided_by: user, note: note.as_deref() };
    let now = ctx.now;
    if !environments::decide_environment(ctx.conn(), project, version, &decision, now).await? {
        return Err(Error::Conflict(if accepted {
            "this version is accepted already"
        } else {
            "this version is rejected already"
        }));
    }
    let record = require_version(ctx.conn(), project, version).await?;
    let kind =
        if accepted { EventKind::EnvironmentAccepted } else { EventKind::EnvironmentRejected };
    let data =
        json!({ "version": version, "origin": record.origin.as_str(), "digest": record.digest });
    ctx.record_event(EventDraft::new(kind, data).with_project(project)).await?;
    Ok(record)
}

/// Sets a secret of a project.
#[tracing::instrument(name = "app.environments.set_secret", skip_all, fields(project.id = %project))]
#[operation]
pub async fn set_secret(
    ctx: &mut Ctx,
    keys: InstallationKeys,
    project: ProjectId,
    name: String,
    value: SecretText,
) -> Result<ProjectSecretInfo, Error> {
    let user = require_person_with_role(ctx, project, UserRole::Admin).await?;
    if !is_secret_name(&name) {
        return Err(Error::Invalid(format!("the name of a secret has {SECRET_NAME_RULE}")));
    }
    if !SECRET_BYTES_RANGE.contains(&value.0.len()) || value.0.chars().any(char::is_control) {
        let (min, max) = (SECRET_BYTES_RANGE.start(), SECRET_BYTES_RANGE.end());
        return Err(Error::Invalid(format!(
            "`value` has {min} to {max} bytes and no control characters"
        )));
    }
    let place = secret_associated_data(project, &name);
    let sealed = keys.seal_secret(ctx.environment(), &place, value.0.as_bytes())?;
    let (secret, now) = (SealedSecret { project, name: name.clone(), sealed }, ctx.now);
    match environments::set_secret(ctx.conn(), &secret, user, now).await {
        Err(error) if error.is_refused_by("project_secrets_project_id_fkey") => {
            return Err(Error::not_found("project", project));
        }
        result => result?,
    }
    record_secret_event(ctx, project, &name, "set").await?;
    Ok(ProjectSecretInfo { name, created_by: user, created_at: now })
}

/// Deletes a secret of a project.
#[tracing::instrument(name = "app.environments.delete_secret", skip_all, fields(project.id = %project))]
#[operation]
pub async fn delete_secret(ctx: &mut Ctx, project: ProjectId, name: &str) -> Result<(), Error> {
    require_person_with_role(ctx, project, UserRole::Admin).await?;
    if !environments::delete_secret(ctx.conn(), project, name).await? {
        return Err(Error::not_found("secret", name));
    }
    record_secret_event(ctx, project, name, "deleted").await
}

/// Records a change of a secret. Every redactor loads the secrets again.
async fn record_secret_event(
    ctx: &mut Ctx,
    project: ProjectId,
    name: &str,
    change: &str,
) -> Result<(), Error> {
    ctx.invalidate_models().await?;
    let data = json!({ "name": name, "change": change });
    ctx.record_event(EventDraft::new(EventKind::ProjectSecretSet, data).with_project(project)).await
}

/// Lists the secrets of a project by name. Their values are never shown.
#[tracing::instrument(name = "app.environments.list_secrets", skip_all)]
#[operation]
pub async fn list_secrets(
    ctx: &mut Ctx,
    project: ProjectId,
) -> Result<Vec<ProjectSecretInfo>, Error> {
    require_person_with_role(ctx, project, UserRole::Admin).await?;
    Ok(environments::list_secrets(ctx.conn(), project).await?)
}

/// Lists the packages that jobs of a project fetched or were refused, the newest first.
#[tracing::instrument(name = "app.environments.list_package_fetches", skip_all)]
#[operation]
pub async fn list_package_fetches(
    ctx: &mut Ctx,
    project: ProjectId,
    filter: PackageFetchFilter,
) -> Result<Vec<PackageFetchRecord>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    Ok(environments::list_package_fetches(ctx.conn(), project, filter).await?)
}

/// Tries a version: a task sets it up and runs its checks, by a plan that is given with it. No model is asked.
#[tracing::instrument(name = "app.environments.try_environment", skip_all, fields(project.id = %project))]
#[operation]
pub async fn try_environment(
    ctx: &mut Ctx,
    project: ProjectId,
    body: TryEnvironment,
) -> Result<Task, Error> {
    let user = require_person_with_role(ctx, project, UserRole::Operator).await?;
    if repositories::get_repository(ctx.conn(), project).await?.is_none() {
        return Err(Error::not_found("repository of project", project));
    }
    let record = match body.version {
        Some(version) => require_version(ctx.conn(), project, version).await?,
        None => match environments::get_newest_proposal(ctx.conn(), project).await? {
            Some(record) => record,
            None => get_accepted_environment(ctx, project).await?,
        },
    };
    if record.state == EnvironmentState::Rejected {
        return Err(Error::Conflict("this version is rejected: accept it, or try another one"));
    }
    let plan = trial_plan(&record)?;
    let held = policies::load_policies(ctx.conn(), user, Some(project)).await?;
    let text = format!(
        "Try version {} of the project's environment: set it up, then run its checks.",
        record.version
    );
    let task = CreateTask {
        project_id: project,
        name: None,
        description: parse_prose(&text)?,
        acceptance_criteria: Vec::new(),
        budget: cynode_core::budget::Budget::default(),
        depends_on: Vec::new(),
        // A person asked for exactly this plan. A policy that demands approvals still holds.
        approve_plan: held.find_demand(PolicyKey::PlanApproval).is_none().then_some(false),
        profile: None,
    };
    let name = format!("try-environment-{}", record.version);
    let name: TaskName = name.parse().map_err(|_| Error::Conflict("a task's name is wrong"))?;
    let task = crate::tasks::accept_named_task(ctx, task, name, user).await?;
    let plan = serde_json::to_value(&plan).map_err(|error| Error::Internal(error.into()))?;
    environments::insert_task_plan(ctx.conn(), task.id, &plan).await?;
    Ok(task)
}

fn parse_prose(text: &str) -> Result<Prose, Error> {
    text.parse().map_err(|_| Error::Conflict("a text of a trial is wrong"))
}

/// Returns the plan of a trial: one unit that runs every check of the environment, whatever the ones before came to.
fn trial_plan(record: &EnvironmentRecord) -> Result<Plan, Error> {
    let mut checks: Vec<EvidenceCheck> =
        record.spec.checks.iter().map(EnvironmentCheck::to_evidence_check).collect();
    if checks.is_empty() {
        // The set-up alone is tried.
        checks.push(EvidenceCheck::from_shell_line("true"));
    }
    let work = JobSpec {
        role: AgentRole::Tester,
        worker: WorkerChoice::Checks { checks, pinned_from: None },
        context: StructuredContext::default(),
        models: Vec::new(),
        tools: Some(Vec::new()),
        sandbox: SandboxNeeds::in_environment(
            record.reference(),
            &record.spec.base,
            record.spec.limits,
        ),
        placement: PlacementSpec::default(),
        commit: CommitRule::Never,
    };
    let unit = PlannedUnit {
        key: "try".parse().map_err(|_| Error::Conflict("a unit's name is wrong"))?,
        title: parse_prose(&format!("Set up environment {} and run its checks", record.version))?,
        depends_on: Vec::new(),
        payload: json!({ "work": work }),
    };
    Plan::try_from(PlanText { steps: vec![unit], assumptions: Vec::new() })
        .map_err(|error| Error::Internal(error.into()))
}

/// Returns the environment that a job names, with all that a node needs to set it up. `Invalid` says why the job cannot run in it, and
/// begins as a set-up that failed does.
pub(crate) async fn assign_environment(
    app: &App,
    project: ProjectId,
    task: TaskId,
    wanted: &EnvironmentRef,
) -> Result<AssignedEnvironment, Error> {
    load_assigned_environment(app, project, task, wanted).await.map_err(|error| match error {
        Error::Invalid(why) => Error::Invalid(format!("{SETUP_FAILURE_PREFIX}{why}")),
        error => error,
    })
}

async fn load_assigned_environment(
    app: &App,
    project: ProjectId,
    task: TaskId,
    wanted: &EnvironmentRef,
) -> Result<AssignedEnvironment, Error> {
    let mut conn = app.conn().await?;
    let number = wanted.version;
    let found = environments::get_environment(&mut conn, project, number).await?;
    let record = found.filter(|record| record.digest == wanted.digest).ok_or_else(|| {
        Error::Invalid(format!(
            "version {number} of the project's environment is not the one that the job names"
        ))
    })?;
    let is_trial = environments::get_task_plan(&mut conn, task).await?.is_some();
    let usable = record.was_accepted() || is_trial && record.state != EnvironmentState::Rejected;
    if !usable {
        return Err(Error::Invalid(format!(
            "version {number} of the project's environment is not accepted: `cynork project environment accept {number}`"
        )));
    }
    let trusted_commit = evidence::load_change_baseline(&mut conn, task).await?.base;
    let package_policy = load_package_policy(&mut conn).await?;
    let secrets = if record.was_accepted() {
        load_setup_secrets(app, &mut conn, project, &record.spec).await?
    } else {
        BTreeMap::new()
    };
    let reference = record.reference();
    Ok(AssignedEnvironment {
        reference,
        spec: record.spec,
        secrets,
        package_policy,
        trusted_commit,
    })
}

/// Returns what the settings say about packages.
async fn load_package_policy(conn: &mut Conn) -> Result<PackagePolicy, Error> {
    let days = settings::setting_number(conn, MIN_PACKAGE_AGE_SETTING, 0).await?;
    Ok(PackagePolicy {
        forbidden: settings::setting_names(conn, FORBIDDEN_PACKAGES_SETTING).await?,
        min_age_days: u32::try_from(days).unwrap_or_default(),
        forbidden_licences: settings::setting_names(conn, FORBIDDEN_LICENCES_SETTING).await?,
    })
}

/// Returns the secrets that set-up gets, by variable. `Invalid` names what is missing.
async fn load_setup_secrets(
    app: &App,
    conn: &mut Conn,
    project: ProjectId,
    spec: &EnvironmentSpec,
) -> Result<BTreeMap<String, SecretText>, Error> {
    if spec.secrets.is_empty() {
        return Ok(BTreeMap::new());
    }
    let allowed = settings::setting_value(conn, ENVIRONMENT_SECRETS_SETTING).await?;
    if allowed != Some(json!(true)) {
        return Err(Error::Invalid(format!(
            "the environment names secrets, and the setting `{ENVIRONMENT_SECRETS_SETTING}` does not allow them: ask an admin to set it, \
             or take them out"
        )));
    }
    let keys = &app.gateway_parts()?.keys;
    let sealed = environments::list_sealed_secrets(conn, Some(project)).await?;
    let mut secrets = BTreeMap::new();
    for (variable, name) in &spec.secrets {
        let found = sealed.iter().find(|secret| secret.name == *name).ok_or_else(|| {
            Error::Invalid(format!(
                "the environment needs the secret `{name}`: `cynork project secret set {name}`"
            ))
        })?;
        let value = keys.project_secret(found)?.expose_secret().to_owned();
        secrets.insert(variable.clone(), SecretText(value));
    }
    Ok(secrets)
}

/// Scans repositories whose default branch has moved for their environment file, until shutdown.
#[operation]
pub async fn run_repository_scan(app: App, stop: CancellationToken) {
    let mut turn = tokio::time::interval(SCAN_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        if let Err(error) = scan_repositories(&app).await {
            log_background_error(
                "environment.scan_failed",
                &error,
                "environment files could not be looked up; it is retried",
            );
        }
    }
}

/// Reads the environment file of every repository whose default branch has moved. A new content becomes a proposal; it takes effect
/// only when a person accepts it. Returns the number of repositories that were read.
#[operation]
pub async fn scan_repositories(app: &App) -> Result<usize, Error> {
    let mut conn = app.conn().await?;
    let moved = environments::list_unread_repositories(&mut conn, SCAN_BATCH_SIZE).await?;
    drop(conn);
    let mut read = 0;
    for (project, head) in moved {
        match scan_repository(app, project, &head).await {
            Ok(()) => read += 1,
            // The other repositories do not wait for this one.
            Err(error) => log_background_error(
                "environment.read_failed",
                &error,
                "the environment file of a repository could not be read; it is retried",
            ),
        }
    }
    Ok(read)
}

async fn scan_repository(app: &App, project: ProjectId, head: &str) -> Result<(), Error> {
    let store = &app.gateway_parts()?.repositories;
    let found = store.read_file(project, head, REPOSITORY_FILE, MAX_ENVIRONMENT_FILE_BYTES).await;
    let parsed = match found.map_err(Error::from) {
        Ok(found) => found.map(|(text, cut)| parse_environment_file(&text, cut)),
        // A repeat would end the same way.
        Err(Error::Invalid(why)) => Some(Err(why)),
        Err(error) => return Err(error),
    };
    let mut ctx = app.begin_transaction(&system_request(app)).await?;
    environments::lock_environments(ctx.conn(), project).await?;
    // A slow process must not take an old commit for what the repository says now.
    let repository = repositories::get_repository(ctx.conn(), project).await?;
    if repository.is_none_or(|it| it.head != head)
        || !environments::mark_repository_read(ctx.conn(), project, head).await?
    {
        return Ok(());
    }
    match parsed {
        None => {}
        Some(Ok(spec)) => propose_from_repository(&mut ctx, project, spec, head).await?,
        Some(Err(why)) => {
            // The database takes no NUL, and a file may have one in a key.
            let plain = why.chars().map(|c| if c.is_control() { ' ' } else { c });
            let reason: String = plain.take(MAX_REASON_CHARS).collect();
            let data = json!({ "path": REPOSITORY_FILE, "commit": head, "reason": reason });
            let told = EventDraft::new(EventKind::EnvironmentUnreadable, data);
            ctx.record_event(told.with_project(project)).await?;
        }
    }
    app.commit_operation(ctx).await
}

/// Parses the environment file of a repository. The error says where it is wrong.
fn parse_environment_file(text: &str, cut: bool) -> Result<EnvironmentSpec, String> {
    if cut {
        return Err(format!(
            "`{REPOSITORY_FILE}` has more than {MAX_ENVIRONMENT_FILE_BYTES} bytes"
        ));
    }
    let spec: EnvironmentSpec = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("`{REPOSITORY_FILE}`, line {line}: {}", error.message())
    })?;
    match spec.validation_error() {
        Some(why) => Err(format!("`{REPOSITORY_FILE}`: {why}")),
        None => Ok(spec),
    }
}

/// Stores the repository's own environment as a proposal if its content is new there.
async fn propose_from_repository(
    ctx: &mut Ctx,
    project: ProjectId,
    spec: EnvironmentSpec,
    head: &str,
) -> Result<(), Error> {
    let digest = spec_digest(&spec)?;
    let known = environments::has_repository_version(ctx.conn(), project, &digest).await?;
    if known {
        return Ok(());
    }
    let draft = ProposalDraft {
        proposal: EnvironmentProposal { spec, ..EnvironmentProposal::default() },
        origin: EnvironmentOrigin::Repository,
        commit: Some(head.to_owned()),
        by: None,
    };
    store_proposal(ctx, project, &draft).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_file_is_read_or_refused_with_the_line() {
        let good = parse_environment_file("setup = [\"npm ci\"]\n", false).unwrap();
        assert_eq!(good.setup, ["npm ci"]);
        let refusal = |text: &str, cut| parse_environment_file(text, cut).unwrap_err();
        assert!(
            refusal("setup = []\nsteps = []\n", false)
                .starts_with("`.cynode/environment.toml`, line 2: unknown field `steps`")
        );
        assert_eq!(
            refusal("setup = [\" \"]\n", false),
            "`.cynode/environment.toml`: a command has 1 to 4000 characters"
        );
        assert_eq!(refusal("", true), "`.cynode/environment.toml` has more than 65536 bytes");
    }

    #[test]
    fn the_same_environment_has_the_same_digest_however_it_was_written() {
        let parse = |text: &str| toml::from_str::<EnvironmentSpec>(text).unwrap();
        let one = parse("setup = [\"a\"]\n[variables]\nB = \"1\"\nA = \"2\"\n");
        let two = parse("[variables]\nA = \"2\"\nB = \"1\"\n");
        let two = EnvironmentSpec { setup: vec!["a".to_owned()], ..two };
        let digest = spec_digest(&one).unwrap();
        assert_eq!(digest, spec_digest(&two).unwrap());
        assert_eq!(digest.len(), 64);
        assert_ne!(digest, spec_digest(&EnvironmentSpec::default()).unwrap());
    }

    #[test]
    fn a_secret_has_a_plain_name() {
        for good in ["a", "npm-token", "token_2"] {
            assert!(is_secret_name(good), "{good}");
        }
        for bad in ["", "2a", "-a", "A", "a.b", "a/b", &"a".repeat(64)] {
            assert!(!is_secret_name(bad), "{bad}");
        }
    }
}
