//! Remotes: a project's repository on a forge. Its credential is sealed, opened in this process only, and goes to that forge only.

pub mod intake;
mod reading;

use std::{path::PathBuf, time::Duration};

use cynode_core::{
    delivery::Destination,
    events::EventKind,
    ids::{ProjectId, UserId},
    roles::Role,
};
use cynode_db::{
    DbError, models,
    remotes::{self, Remote},
    repositories::{self, Repository},
};
use cynode_forge::{Forge, ForgeError, ForgeKind, Site, git};
use cynode_wire::{
    accounts::SecretText,
    remotes::{Intake, RemoteView, SetRemote, WantedIssueView},
};
use data_encoding::HEXLOWER;
use secrecy::SecretString;
use serde_json::json;
use url::Url;

use crate::{
    Answer, App, Ctx, Error, Request, context::Told, error::complain, keys::Keys,
    models::is_private,
};

/// How often a remote is looked at when nobody says otherwise.
const USUAL_POLL: u32 = 120;

/// Commits that are this young are new enough to start work from.
const FRESH: time::Duration = time::Duration::seconds(30);

/// The longest that work waits for newer commits.
const PATIENCE: Duration = Duration::from_secs(20);

/// What else is known of a project's repository on a forge.
#[derive(Clone, Debug)]
pub struct RemoteInfo {
    /// The project.
    pub project: ProjectId,
    /// The kind of forge.
    pub kind: ForgeKind,
    /// Its name there.
    pub repository: String,
    /// The branch that pull requests are for.
    pub default_branch: String,
    /// How git reaches it.
    pub git: git::Remote,
    /// Our own copy of it.
    pub git_dir: PathBuf,
    /// Whose credential it is.
    pub login: Option<String>,
    /// Who connected it.
    pub set_by: UserId,
}

/// The kind of forge that a destination is.
pub(crate) const fn kind_of(destination: Destination) -> Option<ForgeKind> {
    match destination {
        Destination::Local => None,
        Destination::Github => Some(ForgeKind::Github),
        Destination::Gitlab => Some(ForgeKind::Gitlab),
        Destination::Gitea => Some(ForgeKind::Gitea),
    }
}

/// The words of a forge, for whoever asked.
impl From<ForgeError> for Error {
    fn from(error: ForgeError) -> Self {
        match error {
            ForgeError::Retry { after, why } => Self::Away { after, why },
            ForgeError::Refused(why)
            | ForgeError::Missing(why)
            | ForgeError::Conflict(why)
            | ForgeError::Failed(why) => Self::Clash(why),
        }
    }
}

/// The forge of a project, opened, if it has one.
pub async fn forge_of(
    app: &App,
    project: ProjectId,
) -> Result<Option<(Box<dyn Forge>, RemoteInfo)>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let found = remotes::get(&mut conn, project).await?;
    drop(conn);
    match found {
        Some(remote) => open(app, &remote).await.map(Some),
        None => Ok(None),
    }
}

/// Opens the way to a forge.
async fn open(app: &App, remote: &Remote) -> Result<(Box<dyn Forge>, RemoteInfo), Error> {
    let corrupt = |column| Error::from(DbError::Corrupt { table: "project_remotes", column });
    let kind = kind_of(remote.forge).ok_or_else(|| corrupt("forge"))?;
    let token = app.gate()?.keys.credential(remote)?;
    let api = remote.api.parse().map_err(|_| corrupt("api"))?;
    let url = remote.url.parse().map_err(|_| corrupt("url"))?;
    let (repository, private) = (remote.repository.clone(), remote.private);
    let site = Site { api, repository, token: token.clone(), private };
    let credential = Some(git::Credential::new(kind, token));
    let info = RemoteInfo {
        project: remote.project,
        kind,
        repository: remote.repository.clone(),
        default_branch: remote.default_branch.clone(),
        git: git::Remote { url, credential, files: false, private },
        git_dir: app.gate()?.repositories.directory(remote.project).await?,
        login: remote.login.clone(),
        set_by: remote.set_by,
    };
    Ok((kind.connect(site)?, info))
}

/// What a secret of a remote is sealed for.
fn place(what: &str, project: ProjectId) -> Vec<u8> {
    [b"remote/", what.as_bytes(), b"/", project.as_uuid().as_bytes()].concat()
}

impl Keys {
    pub(crate) fn credential(&self, remote: &Remote) -> Result<SecretString, Error> {
        self.secret("credential", remote.project, &remote.credential)
    }

    pub(crate) fn webhook_secret(&self, remote: &Remote) -> Result<SecretString, Error> {
        self.secret("webhook", remote.project, &remote.webhook_secret)
    }

    fn secret(&self, what: &str, project: ProjectId, sealed: &[u8]) -> Result<SecretString, Error> {
        let opened = self.open(&place(what, project), sealed)?;
        let text = String::from_utf8(opened).map_err(|error| Error::Internal(error.into()))?;
        Ok(text.into())
    }
}

/// Only a person who runs the project decides where its work goes.
async fn admin(ctx: &mut Ctx, project: ProjectId) -> Result<UserId, Error> {
    let caller = ctx.require_in(project, Role::Admin).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Admin, "as a person"));
    }
    Ok(caller.user)
}

/// What was asked for, checked.
struct Wish {
    kind: ForgeKind,
    url: Url,
    api: Url,
    credential: SecretString,
    webhook_secret: SecretString,
    /// Whether the secret was made here.
    made: bool,
    /// Whether the forge may be on this machine or in a private network.
    private: bool,
}

/// Connects a project with its repository on a forge, and brings its newest commits. What does not work yet is said.
#[tracing::instrument(name = "app.remotes.set", skip_all, fields(project.id = %project))]
pub async fn set(
    app: &App,
    request: &Request,
    project: ProjectId,
    body: SetRemote,
) -> Result<Answer, Error> {
    let before = app.read(request, |ctx| {
        Box::pin(async move {
            admin(ctx, project).await?;
            let runs_all = ctx.caller()?.role >= Some(Role::Admin);
            Ok((remotes::get(ctx.conn(), project).await?, runs_all))
        })
    });
    let (before, runs_all) = before.await?;
    let keys = app.gate()?.keys.clone();
    let wish = wish(app, &keys, before.as_ref(), &body, runs_all)?;
    // What is only reached from here is shown only to whoever runs the installation. What a name leads to is seen when it is asked.
    if !runs_all && (is_private(&wish.url) || is_private(&wish.api)) {
        return Err(Error::forbidden(
            Role::Admin,
            "in the installation: the forge is on a private address",
        ));
    }
    let site = Site {
        api: wish.api.clone(),
        repository: body.repository.clone(),
        token: wish.credential.clone(),
        private: wish.private,
    };
    let forge = wish.kind.connect(site).map_err(|error| Error::Invalid(error.to_string()))?;
    let mut missing = Vec::new();
    let (mut login, mut head) = (None, None);
    if body.check.unwrap_or(true) {
        login = asked(forge.as_ref(), &body.repository, &mut missing).await;
        let credential = Some(git::Credential::new(wish.kind, wish.credential.clone()));
        let (url, private) = (wish.url.clone(), wish.private);
        let from = git::Remote { url, credential, files: false, private };
        match app.gate()?.repositories.mirror(project, &from, &body.default_branch).await {
            Ok(commit) => head = Some(commit),
            Err(error) => missing.push(format!("its commits could not be brought: {error}")),
        }
    } else if let Some(before) = before.as_ref().filter(|before| before.url == wish.url.as_str()) {
        login.clone_from(&before.login);
    }
    if body.intake.assign_to_us && login.is_none() {
        missing.push(
            "whose token it is is not known: issues that are assigned to us are not found".into(),
        );
    }
    app.mutate_secret(request, |ctx| {
        Box::pin(store(ctx, keys, project, body, wish, before, Found { login, head, missing }))
    })
    .await
}

struct Found {
    login: Option<String>,
    head: Option<String>,
    missing: Vec<String>,
}

/// Whose token it is, whether it may write, and whether it is told who else may; what stands in the way goes to the list.
async fn asked(forge: &dyn Forge, repository: &str, missing: &mut Vec<String>) -> Option<String> {
    let login = match forge.whoami().await {
        Ok(login) => login,
        Err(error) => {
            missing.push(format!("the forge does not say whose token it is: {error}"));
            return None;
        }
    };
    match forge.may_write(&login).await {
        Ok(true) => {}
        Ok(false) => missing
            .push(format!("`{login}` may not write to the repository: no branch can be pushed")),
        Err(error) => missing.push(format!("whether `{login}` may write is not known: {error}")),
    }
    // What one may oneself every forge says; of others some tell only admins.
    let owner = repository.split('/').next().unwrap_or_default();
    if let Err(ForgeError::Refused(why)) = forge.may_write(owner).await {
        missing.push(format!(
            "`{login}` is not told who else may write, so nobody else's issues and remarks are taken: {why}"
        ));
    }
    Some(login)
}

/// Whether two addresses are of one host.
fn same_host(old: &str, new: &Url) -> bool {
    old.parse::<Url>().is_ok_and(|old| old.origin() == new.origin())
}

fn wish(
    app: &App,
    keys: &Keys,
    before: Option<&Remote>,
    body: &SetRemote,
    runs_all: bool,
) -> Result<Wish, Error> {
    let invalid = |why: &str| Error::Invalid(why.into());
    let kind = kind_of(body.forge).ok_or_else(|| {
        invalid(
            "`forge` is `github`, `gitlab` or `gitea`; without a remote pull requests are local",
        )
    })?;
    let url = address("url", &body.url)?;
    let api = match &body.api {
        Some(text) => address("api", text)?,
        None => kind.usual_api(&url),
    };
    let parts = body.repository.split('/');
    let plain = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-~".contains(c))
            && part != ".."
    };
    if parts.clone().count() < 2 || !parts.clone().all(plain) || body.repository.len() > 300 {
        return Err(invalid("`repository` is `owner/name`, as the forge has it"));
    }
    if !git::is_branch(&body.default_branch) || body.default_branch.starts_with(git::OURS) {
        return Err(invalid("`default_branch` is the name of a branch, and not one of ours"));
    }
    if body.poll_seconds.is_some_and(|seconds| !(10..=86_400).contains(&seconds)) {
        return Err(invalid("`poll_seconds` is 10 to 86400"));
    }
    if body
        .intake
        .label
        .as_ref()
        .is_some_and(|label| !(1..=100).contains(&label.trim().chars().count()))
    {
        return Err(invalid("`label` has 1 to 100 characters"));
    }
    let visible =
        |text: &str| text.bytes().all(|b| (0x21..0x7f).contains(&b)) && text.len() <= 4096;
    let credential = match (&body.credential, before) {
        (Some(given), _) if visible(&given.0) && !given.0.is_empty() => given.0.clone().into(),
        (Some(_), _) => {
            return Err(invalid(
                "`credential` has 1 to 4096 visible ASCII characters and no space",
            ));
        }
        (None, Some(before)) => {
            // A secret that was given for one host goes to no other.
            if !same_host(&before.url, &url) || !same_host(&before.api, &api) {
                return Err(invalid("`credential` is needed again: the host is another one"));
            }
            keys.credential(before)?
        }
        (None, None) => return Err(invalid("`credential` is missing")),
    };
    let (webhook_secret, made) = match (&body.webhook_secret, before) {
        (Some(given), _)
            if visible(&given.0) && given.0.len() >= cynode_forge::webhook::SHORTEST_SECRET =>
        {
            (given.0.clone().into(), false)
        }
        (Some(_), _) => {
            return Err(invalid(
                "`webhook_secret` has at least 16 visible ASCII characters and no space",
            ));
        }
        (None, Some(before)) => (keys.webhook_secret(before)?, false),
        (None, None) => (HEXLOWER.encode(&app.environment().bytes::<32>()).into(), true),
    };
    // What whoever runs the installation has opened stays open for these hosts, and for no other. Hosts that somebody else named
    // stay closed when the rest is changed, unless their addresses say themselves where they are.
    let same = |it: &&Remote| same_host(&it.url, &url) && same_host(&it.api, &api);
    let private = match before.filter(same) {
        Some(before) => before.private || (runs_all && (is_private(&url) || is_private(&api))),
        None => runs_all,
    };
    Ok(Wish { kind, url, api, credential, webhook_secret, made, private })
}

fn address(field: &str, text: &str) -> Result<Url, Error> {
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
    // A token must not travel in the open.
    if url.scheme() == "http" && !is_private(&url) {
        return Err(Error::Invalid(format!("a public `{field}` is https")));
    }
    Ok(url)
}

async fn store(
    ctx: &mut Ctx,
    keys: Keys,
    project: ProjectId,
    body: SetRemote,
    wish: Wish,
    before: Option<Remote>,
    found: Found,
) -> Result<RemoteView, Error> {
    use secrecy::ExposeSecret;
    let set_by = admin(ctx, project).await?;
    let seal = |what: &str, secret: &SecretString| {
        keys.seal(ctx.environment(), &place(what, project), secret.expose_secret().as_bytes())
    };
    let credential = seal("credential", &wish.credential)?;
    let webhook_secret = seal("webhook", &wish.webhook_secret)?;
    // The same name on another host is another repository: its issues have times of their own.
    let same = before.filter(|it| {
        it.forge == body.forge
            && it.repository == body.repository
            && same_host(&it.url, &wish.url)
            && same_host(&it.api, &wish.api)
    });
    // All open issues that are wanted are looked at once, the old ones as well.
    let issues_since = same.as_ref().map_or(time::OffsetDateTime::UNIX_EPOCH, |it| {
        let wants = |label: &Option<String>, us: bool, anyone: bool| (label.clone(), us, anyone);
        let (old, new) = (wants(&it.label, it.assign_to_us, it.from_anyone), &body.intake);
        let unchanged = old == wants(&new.label, new.assign_to_us, new.from_anyone);
        if unchanged { it.issues_since } else { time::OffsetDateTime::UNIX_EPOCH }
    });
    let remote = Remote {
        project,
        forge: body.forge,
        url: wish.url.into(),
        api: wish.api.into(),
        repository: body.repository,
        default_branch: body.default_branch,
        credential,
        webhook_secret,
        login: found.login,
        label: body.intake.label.map(|label| label.trim().to_owned()),
        assign_to_us: body.intake.assign_to_us,
        from_anyone: body.intake.from_anyone,
        poll_seconds: i32::try_from(body.poll_seconds.unwrap_or(USUAL_POLL)).unwrap_or(i32::MAX),
        private: wish.private,
        set_by,
        set_at: ctx.now,
        fetched_at: found.head.as_ref().map(|_| ctx.now),
        issues_since,
        failure: None,
        looked_at: None,
        refused: 0,
    };
    match remotes::set(ctx.conn(), &remote).await {
        Err(error) if error.refused_by("project_remotes_project_id_fkey") => {
            return Err(Error::not_found("project", project));
        }
        result => result?,
    }
    // Whoever asks models knows the new secrets from now on.
    models::changed(ctx.conn()).await?;
    if let Some(head) = found.head {
        let default_branch = remote.default_branch.clone();
        let (imported_by, imported_at) = (set_by, ctx.now);
        let repository = Repository { project, default_branch, head, imported_by, imported_at };
        repositories::set(ctx.conn(), &repository).await?;
        let data = json!({ "branch": repository.default_branch, "head": repository.head });
        ctx.record(Told::new(EventKind::RepositoryImported, data).project(project)).await?;
    }
    let data = json!({ "change": "set", "forge": remote.forge, "repository": remote.repository, "url": remote.url });
    ctx.record(Told::new(EventKind::RemoteSet, data).project(project)).await?;
    let secret = wish.made.then(|| SecretText(wish.webhook_secret.expose_secret().to_owned()));
    Ok(RemoteView { webhook_secret: secret, missing: found.missing, ..view(remote) })
}

fn view(remote: Remote) -> RemoteView {
    RemoteView {
        webhook_path: format!("/v1/hooks/{}/{}", remote.project, remote.forge.as_str()),
        project_id: remote.project,
        forge: remote.forge,
        url: remote.url,
        api: remote.api,
        repository: remote.repository,
        default_branch: remote.default_branch,
        login: remote.login,
        intake: Intake {
            label: remote.label,
            assign_to_us: remote.assign_to_us,
            from_anyone: remote.from_anyone,
        },
        poll_seconds: remote.poll_seconds,
        webhook_secret: None,
        missing: Vec::new(),
        set_by: remote.set_by,
        set_at: remote.set_at,
        fetched_at: remote.fetched_at,
        looked_at: remote.looked_at,
        failure: remote.failure,
        refused_deliveries: remote.refused,
    }
}

/// A project's repository on a forge, without its secrets.
#[tracing::instrument(name = "app.remotes.get", skip_all)]
pub async fn get(ctx: &mut Ctx, project: ProjectId) -> Result<RemoteView, Error> {
    admin(ctx, project).await?;
    let found = remotes::get(ctx.conn(), project).await?;
    found.map(view).ok_or_else(|| Error::not_found("remote of project", project))
}

/// Takes it away, with its credential. What is on the forge stays there.
#[tracing::instrument(name = "app.remotes.remove", skip_all)]
pub async fn remove(ctx: &mut Ctx, project: ProjectId) -> Result<(), Error> {
    admin(ctx, project).await?;
    if !remotes::remove(ctx.conn(), project).await? {
        return Err(Error::not_found("remote of project", project));
    }
    models::changed(ctx.conn()).await?;
    let told = Told::new(EventKind::RemoteSet, json!({ "change": "removed" }));
    ctx.record(told.project(project)).await
}

/// The issues that were wanted and what became of them, the newest first.
#[tracing::instrument(name = "app.remotes.issues", skip_all)]
pub async fn issues(ctx: &mut Ctx, project: ProjectId) -> Result<Vec<WantedIssueView>, Error> {
    ctx.require_in(project, Role::Viewer).await?;
    let found = remotes::issues(ctx.conn(), project).await?.into_iter();
    let view = found.map(|issue| WantedIssueView {
        number: issue.number,
        url: issue.url,
        author: issue.author,
        task_id: issue.task,
        refused: issue.refused,
        removed: issue.removed,
        seen_at: issue.seen_at,
    });
    Ok(view.collect())
}

/// Brings the newest commits of a project from its forge. Gives the commit that work starts from now, if there is a remote.
#[tracing::instrument(name = "app.remotes.fetch", skip_all, fields(project.id = %project))]
pub async fn fetch(app: &App, project: ProjectId) -> Result<Option<String>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let found = remotes::get(&mut conn, project).await?;
    drop(conn);
    match found {
        Some(remote) => fetch_from(app, &remote).await.map(Some),
        None => Ok(None),
    }
}

async fn fetch_from(app: &App, remote: &Remote) -> Result<String, Error> {
    let project = remote.project;
    let (_, info) = open(app, remote).await?;
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let before = repositories::get(&mut conn, project).await?;
    drop(conn);
    let mirrored = app.gate()?.repositories.mirror(project, &info.git, &remote.default_branch);
    let head = mirrored.await?;
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let now = ctx.now;
    remotes::fetched(ctx.conn(), project, now).await?;
    let moved = match before {
        Some(before) if before.default_branch == remote.default_branch => {
            // Whoever brought another commit meanwhile has the last word; the next look brings the newest.
            before.head != head
                && remotes::move_head(ctx.conn(), project, &before.head, &head, now).await?
        }
        _ => {
            let default_branch = remote.default_branch.clone();
            let (imported_by, imported_at) = (remote.set_by, now);
            let new = Repository {
                project,
                default_branch,
                head: head.clone(),
                imported_by,
                imported_at,
            };
            repositories::set(ctx.conn(), &new).await?;
            true
        }
    };
    if moved {
        let data = json!({ "branch": remote.default_branch, "head": head });
        ctx.record(Told::new(EventKind::RepositoryImported, data).project(project)).await?;
    }
    app.commit(ctx).await?;
    Ok(head)
}

/// Brings the newest commits before work starts from them, unless that was just done. Work never waits long for it, and goes on from
/// what is there when the forge does not answer.
pub(crate) async fn freshen(app: &App, project: ProjectId) {
    let bring = async {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        let found = remotes::get(&mut conn, project).await?;
        drop(conn);
        let now = app.environment().now();
        let old = |remote: &Remote| remote.fetched_at.is_none_or(|at| at + FRESH <= now);
        match found.filter(old) {
            Some(remote) => fetch_from(app, &remote).await.map(|_| ()),
            None => Ok(()),
        }
    };
    match tokio::time::timeout(PATIENCE, bring).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => complain(&error, "newer commits could not be brought from the forge"),
        Err(error) => complain(&error, "newer commits could not be brought from the forge in time"),
    }
}
