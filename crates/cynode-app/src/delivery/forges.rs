//! Remotes: a project's repository on a forge. Its credential is stored sealed, unsealed in this process only and sent
//! to that forge only.

pub mod issue_sync;
mod pr_feedback;

use std::{path::PathBuf, time::Duration};

use cynode_core::{
    delivery::Destination,
    events::EventKind,
    ids::{ProjectId, UserId},
    roles::UserRole,
};
use cynode_db::{
    DbError,
    delivery::{
        forges::{self, ProjectRemote},
        repositories::{self, RepositoryRecord},
    },
};
use cynode_forge::{Forge, ForgeEndpoint, ForgeError, ForgeKind, git, webhook::MIN_SECRET_BYTES};
use cynode_wire::{
    delivery::forges::{IssueIntake, RemoteView, SetRemote, WantedIssueView},
    identity::accounts::SecretText,
};
use data_encoding::HEXLOWER;
use secrecy::SecretString;
use serde_json::json;
use url::Url;

use super::require_person_with_role;
use crate::{
    App, Ctx, Error, OperationAnswer, OperationRequest,
    models::registry::is_private,
    platform::{
        context::EventDraft, error::log_background_error, keys::InstallationKeys, operation,
    },
};

/// Default poll interval of a remote.
const DEFAULT_POLL_SECONDS: u32 = 120;

/// Maximum age of the mirrored commits at the start of work, before they are fetched again.
const MAX_MIRROR_AGE: time::Duration = time::Duration::seconds(30);

/// Maximum time that work waits for a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of a credential or a webhook secret.
const MAX_SECRET_BYTES: usize = 4096;

/// Configuration of a project's repository on a forge.
#[derive(Clone, Debug)]
pub struct RemoteInfo {
    /// Unique id of the project.
    pub project: ProjectId,
    /// Kind of the forge.
    pub kind: ForgeKind,
    /// Name of the repository on the forge.
    pub repository: String,
    /// Target branch of pull requests.
    pub default_branch: String,
    /// Git endpoint and credential.
    pub git: git::GitRemote,
    /// Directory of the local mirror.
    pub git_dir: PathBuf,
    /// Login of the account that the credential belongs to.
    pub login: Option<String>,
    /// User who connected the repository.
    pub set_by: UserId,
}

/// Returns the kind of forge of a destination.
pub(crate) const fn forge_kind_of(destination: Destination) -> Option<ForgeKind> {
    match destination {
        Destination::Local => None,
        Destination::Github => Some(ForgeKind::Github),
        Destination::Gitlab => Some(ForgeKind::Gitlab),
        Destination::Gitea => Some(ForgeKind::Gitea),
    }
}

/// Maps an error of a forge to one of the operation.
impl From<ForgeError> for Error {
    fn from(error: ForgeError) -> Self {
        match error {
            ForgeError::Retry { after, why } => Self::UpstreamUnavailable { after, why },
            ForgeError::Refused(why)
            | ForgeError::Missing(why)
            | ForgeError::Conflict(why)
            | ForgeError::Failed(why) => Self::UpstreamRejected(why),
        }
    }
}

/// Opens the forge of a project, if it has one.
#[operation]
pub async fn forge_of(
    app: &App,
    project: ProjectId,
) -> Result<Option<(Box<dyn Forge>, RemoteInfo)>, Error> {
    let mut conn = app.conn().await?;
    let found = forges::get_remote(&mut conn, project).await?;
    drop(conn);
    match found {
        Some(remote) => open_forge(app, &remote).await.map(Some),
        None => Ok(None),
    }
}

/// Opens a client of a forge.
async fn open_forge(
    app: &App,
    remote: &ProjectRemote,
) -> Result<(Box<dyn Forge>, RemoteInfo), Error> {
    let corrupt = |column| Error::from(DbError::Corrupt { table: "project_remotes", column });
    let kind = forge_kind_of(remote.forge).ok_or_else(|| corrupt("forge"))?;
    let token = app.gateway_parts()?.keys.forge_credential(remote)?;
    let api = remote.api.parse().map_err(|_| corrupt("api"))?;
    let url = remote.url.parse().map_err(|_| corrupt("url"))?;
    let (repository, private) = (remote.repository.clone(), remote.private);
    let site = ForgeEndpoint { api, repository, token: token.clone(), private };
    let credential = Some(git::GitCredential::new(kind, token));
    let info = RemoteInfo {
        project: remote.project,
        kind,
        repository: remote.repository.clone(),
        default_branch: remote.default_branch.clone(),
        git: git::GitRemote { url, credential, files: false, private },
        git_dir: app.gateway_parts()?.repositories.repository_directory(remote.project).await?,
        login: remote.login.clone(),
        set_by: remote.set_by,
    };
    Ok((kind.connect_repository(site)?, info))
}

/// Returns the associated data of the sealed credential of a remote: it belongs to one repository and to the person who
/// gave it. No part contains a line break.
pub(crate) fn credential_associated_data(remote: &ProjectRemote) -> Vec<u8> {
    let ProjectRemote { project, set_by, url, api, repository, .. } = remote;
    format!("remote/credential/{project}/{set_by}\n{url}\n{api}\n{repository}").into_bytes()
}

/// Returns the associated data of the sealed webhook secret of a remote.
pub(crate) fn webhook_associated_data(project: ProjectId) -> Vec<u8> {
    [b"remote/webhook/".as_slice(), project.as_uuid().as_bytes()].concat()
}

impl InstallationKeys {
    pub(crate) fn forge_credential(&self, remote: &ProjectRemote) -> Result<SecretString, Error> {
        self.unseal_text(&credential_associated_data(remote), &remote.credential)
    }

    pub(crate) fn webhook_secret(&self, remote: &ProjectRemote) -> Result<SecretString, Error> {
        self.unseal_text(&webhook_associated_data(remote.project), &remote.webhook_secret)
    }
}

/// The person who connects a remote.
#[derive(Clone, Copy)]
struct RemoteSetter {
    user: UserId,
    /// Whether the person is an admin of the installation.
    runs_all: bool,
}

/// A validated request to connect a remote.
struct ValidatedRemote {
    kind: ForgeKind,
    url: Url,
    api: Url,
    credential: SecretString,
    webhook_secret: SecretString,
    /// Whether the secret was generated here.
    made: bool,
    /// SSRF guard: whether the forge may be on this machine or in a private network.
    private: bool,
}

/// Connects a project with its repository on a forge and fetches the newest commits. The answer lists the problems
/// that remain.
#[tracing::instrument(name = "app.remotes.set_remote", skip_all, fields(project.id = %project))]
#[operation]
pub async fn set_remote(
    app: &App,
    request: &OperationRequest,
    project: ProjectId,
    body: SetRemote,
) -> Result<OperationAnswer, Error> {
    let before = app.read(request, |ctx| {
        Box::pin(async move {
            let user = require_person_with_role(ctx, project, UserRole::Admin).await?;
            let runs_all = ctx.caller()?.role >= Some(UserRole::Admin);
            let before = forges::get_remote(ctx.conn(), project).await?;
            Ok((before, RemoteSetter { user, runs_all }))
        })
    });
    let (before, setter) = before.await?;
    let runs_all = setter.runs_all;
    let keys = app.gateway_parts()?.keys.clone();
    let validated = validate_remote(app, &keys, before.as_ref(), &body, setter)?;
    // SSRF guard: only an admin of the installation may name a private address. The address that a name resolves to
    // is checked at the request.
    if !runs_all && (is_private(&validated.url) || is_private(&validated.api)) {
        return Err(Error::forbidden(
            UserRole::Admin,
            "in the installation: the forge is on a private address",
        ));
    }
    let site = ForgeEndpoint {
        api: validated.api.clone(),
        repository: body.repository.clone(),
        token: validated.credential.clone(),
        private: validated.private,
    };
    let forge = validated
        .kind
        .connect_repository(site)
        .map_err(|error| Error::Invalid(error.to_string()))?;
    let mut missing = Vec::new();
    let (mut login, mut head) = (None, None);
    if body.check.unwrap_or(true) {
        login = check_forge_access(forge.as_ref(), &body.repository, &mut missing).await;
        let credential =
            Some(git::GitCredential::new(validated.kind, validated.credential.clone()));
        let (url, private) = (validated.url.clone(), validated.private);
        let from = git::GitRemote { url, credential, files: false, private };
        match app
            .gateway_parts()?
            .repositories
            .mirror_branch(project, &from, &body.default_branch)
            .await
        {
            Ok(commit) => head = Some(commit),
            Err(error) => missing.push(format!("its commits could not be brought: {error}")),
        }
    } else if let Some(before) =
        before.as_ref().filter(|before| before.url == validated.url.as_str())
    {
        login.clone_from(&before.login);
    }
    if body.intake.assigned_to_bot && login.is_none() {
        missing.push(
            "whose token it is is not known: issues that are assigned to the bot are not found"
                .into(),
        );
    }
    app.run_secret_mutation(request, |ctx| {
        Box::pin(store_remote(
            ctx,
            keys,
            project,
            body,
            validated,
            before,
            RemoteCheckResult { login, head, missing },
        ))
    })
    .await
}

struct RemoteCheckResult {
    login: Option<String>,
    head: Option<String>,
    missing: Vec<String>,
}

/// Checks whose token it is, whether it may write, and whether the forge tells it the permissions of others. Problems
/// are added to the list.
async fn check_forge_access(
    forge: &dyn Forge,
    repository: &str,
    missing: &mut Vec<String>,
) -> Option<String> {
    let login = match forge.fetch_own_login().await {
        Ok(login) => login,
        Err(error) => {
            missing.push(format!("the forge does not say whose token it is: {error}"));
            return None;
        }
    };
    match forge.can_write(&login).await {
        Ok(true) => {}
        Ok(false) => missing
            .push(format!("`{login}` may not write to the repository: no branch can be pushed")),
        Err(error) => missing.push(format!("whether `{login}` may write is not known: {error}")),
    }
    // Every forge reports the own permissions of an account; some report those of others only to admins.
    let owner = repository.split('/').next().unwrap_or_default();
    if let Err(ForgeError::Refused(why)) = forge.can_write(owner).await {
        missing.push(format!(
            "`{login}` is not told who else may write, so nobody else's issues and remarks are taken: {why}"
        ));
    }
    Some(login)
}

/// Returns whether two URLs have the same origin.
fn same_host(old: &str, new: &Url) -> bool {
    old.parse::<Url>().is_ok_and(|old| old.origin() == new.origin())
}

/// Validates a request to connect a remote. A stored secret stays if the request has none.
fn validate_remote(
    app: &App,
    keys: &InstallationKeys,
    before: Option<&ProjectRemote>,
    body: &SetRemote,
    setter: RemoteSetter,
) -> Result<ValidatedRemote, Error> {
    let runs_all = setter.runs_all;
    let kind = forge_kind_of(body.forge).ok_or_else(|| {
        invalid(
            "`forge` is `github`, `gitlab` or `gitea`; without a remote pull requests are local",
        )
    })?;
    let url = parse_forge_url("url", &body.url)?;
    let api = match &body.api {
        Some(text) => parse_forge_url("api", text)?,
        None => kind.default_api_url(&url),
    };
    check_remote_fields(body)?;
    let same_hosts = before.is_some_and(|it| same_host(&it.url, &url) && same_host(&it.api, &api));
    let reuse = before.map(|before| {
        let same_repository = before.url == url.as_str()
            && before.api == api.as_str()
            && before.repository == body.repository;
        match (same_hosts, same_repository, before.set_by == setter.user) {
            (false, _, _) => CredentialReuse::Refused("the host is another one"),
            (true, false, _) => CredentialReuse::Refused("the repository is another one"),
            (true, true, false) => CredentialReuse::Refused("somebody else gave the stored one"),
            (true, true, true) => CredentialReuse::Allowed(before),
        }
    });
    let credential = choose_credential(keys, body.credential.as_ref(), reuse)?;
    let (webhook_secret, made) =
        choose_webhook_secret(app, keys, body.webhook_secret.as_ref(), before)?;
    // SSRF guard: private access that an admin of the installation has allowed stays allowed for these hosts only.
    // Hosts that somebody else named stay public-only after an update, unless their own addresses are private.
    let private = match before {
        Some(before) if same_hosts => {
            before.private || (runs_all && (is_private(&url) || is_private(&api)))
        }
        _ => runs_all,
    };
    Ok(ValidatedRemote { kind, url, api, credential, webhook_secret, made, private })
}

/// Checks the fields that depend neither on the stored remote nor on each other.
fn check_remote_fields(body: &SetRemote) -> Result<(), Error> {
    if !is_repository_name(&body.repository) {
        return Err(invalid("`repository` is `owner/name`, as the forge has it"));
    }
    let branch = &body.default_branch;
    if !git::is_branch_name(branch) || branch.starts_with(git::BRANCH_PREFIX) {
        return Err(invalid("`default_branch` is the name of a branch, and not one of ours"));
    }
    if body.poll_seconds.is_some_and(|seconds| !(10..=86_400).contains(&seconds)) {
        return Err(invalid("`poll_seconds` is 10 to 86400"));
    }
    let label_length = body.intake.label.as_ref().map(|label| label.trim().chars().count());
    if label_length.is_some_and(|length| !(1..=100).contains(&length)) {
        return Err(invalid("`label` has 1 to 100 characters"));
    }
    Ok(())
}

/// Whether the stored credential may be used for a changed remote. It was given for one repository, by one person.
enum CredentialReuse<'a> {
    Allowed(&'a ProjectRemote),
    /// The reason is a clause.
    Refused(&'static str),
}

/// Returns the credential of the request, or the stored one.
fn choose_credential(
    keys: &InstallationKeys,
    given: Option<&SecretText>,
    reuse: Option<CredentialReuse<'_>>,
) -> Result<SecretString, Error> {
    match (given, reuse) {
        (Some(SecretText(text)), _) if is_plain_secret(text, 1) => Ok(text.clone().into()),
        (Some(_), _) => {
            Err(invalid("`credential` has 1 to 4096 visible ASCII characters and no space"))
        }
        (None, Some(CredentialReuse::Refused(why))) => {
            Err(Error::Invalid(format!("`credential` is needed again: {why}")))
        }
        (None, Some(CredentialReuse::Allowed(before))) => keys.forge_credential(before),
        (None, None) => Err(invalid("`credential` is missing")),
    }
}

/// Returns the webhook secret of the request, the stored one, or a new one. The second part says whether it is new.
fn choose_webhook_secret(
    app: &App,
    keys: &InstallationKeys,
    given: Option<&SecretText>,
    before: Option<&ProjectRemote>,
) -> Result<(SecretString, bool), Error> {
    match (given, before) {
        (Some(SecretText(text)), _) if is_plain_secret(text, MIN_SECRET_BYTES) => {
            Ok((text.clone().into(), false))
        }
        (Some(_), _) => {
            Err(invalid("`webhook_secret` has at least 16 visible ASCII characters and no space"))
        }
        (None, Some(before)) => Ok((keys.webhook_secret(before)?, false)),
        (None, None) => Ok((HEXLOWER.encode(&app.environment().random_bytes::<32>()).into(), true)),
    }
}

/// Returns whether the text is the name of a repository on a forge: `owner/name`, or a longer path.
fn is_repository_name(name: &str) -> bool {
    let is_segment = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-~".contains(c))
            && part != ".."
    };
    name.len() <= 300 && name.contains('/') && name.split('/').all(is_segment)
}

/// Returns whether the secret has only visible ASCII characters and an allowed length.
fn is_plain_secret(text: &str, min_bytes: usize) -> bool {
    text.bytes().all(|b| (0x21..0x7f).contains(&b))
        && (min_bytes..=MAX_SECRET_BYTES).contains(&text.len())
}

fn invalid(why: &str) -> Error {
    Error::Invalid(why.into())
}

fn parse_forge_url(field: &str, text: &str) -> Result<Url, Error> {
    let url: Url = text.parse().map_err(|_| Error::Invalid(format!("`{field}` is no address")))?;
    let good = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.as_str().len() <= 500;
    if !good {
        return Err(Error::Invalid(format!(
            "`{field}` is http(s)://host[:port]/path, without a password or a query"
        )));
    }
    // A token must not be sent without encryption.
    if url.scheme() == "http" && !is_private(&url) {
        return Err(Error::Invalid(format!("a public `{field}` is https")));
    }
    Ok(url)
}

async fn store_remote(
    ctx: &mut Ctx,
    keys: InstallationKeys,
    project: ProjectId,
    body: SetRemote,
    validated: ValidatedRemote,
    before: Option<ProjectRemote>,
    found: RemoteCheckResult,
) -> Result<RemoteView, Error> {
    use secrecy::ExposeSecret;
    let set_by = require_person_with_role(ctx, project, UserRole::Admin).await?;
    // The same name on another host is another repository, whose issues have other timestamps.
    let same = before.filter(|it| {
        it.forge == body.forge
            && it.repository == body.repository
            && same_host(&it.url, &validated.url)
            && same_host(&it.api, &validated.api)
    });
    // Every open issue that matches is read once, old ones included.
    let issues_since = same.as_ref().map_or(time::OffsetDateTime::UNIX_EPOCH, |it| {
        let stored = IssueIntake {
            label: it.label.clone(),
            assigned_to_bot: it.assigned_to_bot,
            allow_untrusted_authors: it.allow_untrusted_authors,
        };
        let unchanged = stored == body.intake;
        if unchanged { it.issues_since } else { time::OffsetDateTime::UNIX_EPOCH }
    });
    let mut remote = ProjectRemote {
        project,
        forge: body.forge,
        url: validated.url.into(),
        api: validated.api.into(),
        repository: body.repository,
        default_branch: body.default_branch,
        credential: Vec::new(),
        webhook_secret: Vec::new(),
        login: found.login,
        label: body.intake.label.map(|label| label.trim().to_owned()),
        assigned_to_bot: body.intake.assigned_to_bot,
        allow_untrusted_authors: body.intake.allow_untrusted_authors,
        poll_seconds: i32::try_from(body.poll_seconds.unwrap_or(DEFAULT_POLL_SECONDS))
            .unwrap_or(i32::MAX),
        private: validated.private,
        set_by,
        set_at: ctx.now,
        fetched_at: found.head.as_ref().map(|_| ctx.now),
        issues_since,
        failure: None,
        looked_at: None,
        refused: 0,
    };
    let seal = |place: &[u8], secret: &SecretString| {
        keys.seal_secret(ctx.environment(), place, secret.expose_secret().as_bytes())
    };
    remote.credential = seal(&credential_associated_data(&remote), &validated.credential)?;
    remote.webhook_secret = seal(&webhook_associated_data(project), &validated.webhook_secret)?;
    match forges::set_remote(ctx.conn(), &remote).await {
        Err(error) if error.is_refused_by("project_remotes_project_id_fkey") => {
            return Err(Error::not_found("project", project));
        }
        result => result?,
    }
    // Bumping the epoch makes every redactor load the new secrets.
    ctx.invalidate_models().await?;
    if let Some(head) = found.head {
        let default_branch = remote.default_branch.clone();
        let (imported_by, imported_at) = (set_by, ctx.now);
        let repository =
            RepositoryRecord { project, default_branch, head, imported_by, imported_at };
        repositories::set_repository(ctx.conn(), &repository).await?;
        let data = json!({ "branch": repository.default_branch, "head": repository.head });
        ctx.record_event(
            EventDraft::new(EventKind::RepositoryImported, data).with_project(project),
        )
        .await?;
    }
    let data = json!({ "change": "set", "forge": remote.forge, "repository": remote.repository, "url": remote.url });
    ctx.record_event(EventDraft::new(EventKind::RemoteSet, data).with_project(project)).await?;
    let secret =
        validated.made.then(|| SecretText(validated.webhook_secret.expose_secret().to_owned()));
    Ok(RemoteView { webhook_secret: secret, missing: found.missing, ..to_remote_view(remote) })
}

fn to_remote_view(remote: ProjectRemote) -> RemoteView {
    RemoteView {
        webhook_path: format!("/v1/hooks/{}/{}", remote.project, remote.forge.as_str()),
        project_id: remote.project,
        forge: remote.forge,
        url: remote.url,
        api: remote.api,
        repository: remote.repository,
        default_branch: remote.default_branch,
        login: remote.login,
        intake: IssueIntake {
            label: remote.label,
            assigned_to_bot: remote.assigned_to_bot,
            allow_untrusted_authors: remote.allow_untrusted_authors,
        },
        poll_seconds: remote.poll_seconds,
        webhook_secret: None,
        missing: Vec::new(),
        set_by: remote.set_by,
        set_at: remote.set_at,
        fetched_at: remote.fetched_at,
        polled_at: remote.looked_at,
        failure: remote.failure,
        refused_deliveries: remote.refused,
    }
}

/// Returns a project's remote, without its secrets.
#[tracing::instrument(name = "app.remotes.get_remote", skip_all)]
#[operation]
pub async fn get_remote(ctx: &mut Ctx, project: ProjectId) -> Result<RemoteView, Error> {
    require_person_with_role(ctx, project, UserRole::Admin).await?;
    let found = forges::get_remote(ctx.conn(), project).await?;
    found.map(to_remote_view).ok_or_else(|| Error::not_found("remote of project", project))
}

/// Deletes a remote with its credential. The data on the forge stays.
#[tracing::instrument(name = "app.remotes.delete_remote", skip_all)]
#[operation]
pub async fn delete_remote(ctx: &mut Ctx, project: ProjectId) -> Result<(), Error> {
    require_person_with_role(ctx, project, UserRole::Admin).await?;
    if !forges::remove_remote(ctx.conn(), project).await? {
        return Err(Error::not_found("remote of project", project));
    }
    ctx.invalidate_models().await?;
    let told = EventDraft::new(EventKind::RemoteSet, json!({ "change": "removed" }));
    ctx.record_event(told.with_project(project)).await
}

/// Lists the matching issues and their outcomes, newest first.
#[tracing::instrument(name = "app.remotes.list_wanted_issues", skip_all)]
#[operation]
pub async fn list_wanted_issues(
    ctx: &mut Ctx,
    project: ProjectId,
) -> Result<Vec<WantedIssueView>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = forges::list_wanted_issues(ctx.conn(), project).await?.into_iter();
    let view = found.map(|issue| WantedIssueView {
        number: issue.number,
        url: issue.url,
        author: issue.author,
        task_id: issue.task,
        rejection_reason: issue.refused,
        removed_content: issue.removed,
        seen_at: issue.seen_at,
    });
    Ok(view.collect())
}

/// Fetches the newest commits of a project from its forge. Returns the commit that work starts from, if there is a
/// remote.
#[tracing::instrument(name = "app.remotes.fetch_commits", skip_all, fields(project.id = %project))]
#[operation]
pub async fn fetch_commits(app: &App, project: ProjectId) -> Result<Option<String>, Error> {
    let mut conn = app.conn().await?;
    let found = forges::get_remote(&mut conn, project).await?;
    drop(conn);
    match found {
        Some(remote) => fetch_commits_from(app, &remote).await.map(Some),
        None => Ok(None),
    }
}

async fn fetch_commits_from(app: &App, remote: &ProjectRemote) -> Result<String, Error> {
    let project = remote.project;
    let (_, info) = open_forge(app, remote).await?;
    let mut conn = app.conn().await?;
    let before = repositories::get_repository(&mut conn, project).await?;
    drop(conn);
    let mirrored =
        app.gateway_parts()?.repositories.mirror_branch(project, &info.git, &remote.default_branch);
    let head = mirrored.await?;
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let now = ctx.now;
    forges::record_fetch(ctx.conn(), project, now).await?;
    let moved = match before {
        Some(before) if before.default_branch == remote.default_branch => {
            // A concurrent fetch wins. The next poll fetches the newest commit.
            before.head != head
                && forges::move_repository_head(ctx.conn(), project, &before.head, &head, now)
                    .await?
        }
        _ => {
            let default_branch = remote.default_branch.clone();
            let (imported_by, imported_at) = (remote.set_by, now);
            let new = RepositoryRecord {
                project,
                default_branch,
                head: head.clone(),
                imported_by,
                imported_at,
            };
            repositories::set_repository(ctx.conn(), &new).await?;
            true
        }
    };
    if moved {
        let data = json!({ "branch": remote.default_branch, "head": head });
        ctx.record_event(
            EventDraft::new(EventKind::RepositoryImported, data).with_project(project),
        )
        .await?;
    }
    app.commit_operation(ctx).await?;
    Ok(head)
}

/// Fetches the newest commits before work starts, unless they are fresh. The wait is bounded, and work starts from
/// the mirrored commits when the forge does not answer.
pub(crate) async fn refresh_stale_commits(app: &App, project: ProjectId) {
    let bring = async {
        let mut conn = app.conn().await?;
        let found = forges::get_remote(&mut conn, project).await?;
        drop(conn);
        let now = app.environment().now();
        let old =
            |remote: &ProjectRemote| remote.fetched_at.is_none_or(|at| at + MAX_MIRROR_AGE <= now);
        match found.filter(old) {
            Some(remote) => fetch_commits_from(app, &remote).await.map(|_| ()),
            None => Ok(()),
        }
    };
    match tokio::time::timeout(FETCH_TIMEOUT, bring).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            log_background_error(
                "remote.fetch_failed",
                &error,
                "newer commits could not be fetched from the forge",
            );
        }
        Err(error) => log_background_error(
            "remote.fetch_timed_out",
            &error,
            "newer commits could not be fetched from the forge in time",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_has_an_owner_and_a_name() {
        for good in ["acme/web", "group/sub.group/web_1", "~acme/web-2"] {
            assert!(is_repository_name(good), "{good}");
        }
        let long = format!("acme/{}", "a".repeat(296));
        for bad in ["", "acme", "acme/", "/web", "acme//web", "acme/..", "a b/web", long.as_str()] {
            assert!(!is_repository_name(bad), "{bad}");
        }
        assert!(is_repository_name(&long[..300]));
    }

    #[test]
    fn a_secret_has_visible_characters_and_a_limited_length() {
        assert!(is_plain_secret("!~", 2));
        assert!(is_plain_secret(&"a".repeat(MAX_SECRET_BYTES), 1));
        for (bad, min_bytes) in [("", 1), ("a", 2), ("a b", 1), ("a\n", 1), ("\u{e4}", 1)] {
            assert!(!is_plain_secret(bad, min_bytes), "{bad:?}");
        }
        assert!(!is_plain_secret(&"a".repeat(MAX_SECRET_BYTES + 1), 1));
    }
}
