//! Skills: instructions for agents, of the installation, a project or a person. The same checks apply to people and agents who write
//! one, to its files, and to what is imported.
//!
//! **Invariant**: what an agent wrote is given to nobody before a person has reviewed that version.

mod ranking;

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, SkillId, UserId},
    roles::UserRole,
    settings::registry::{DEFAULT_SKILLS_PER_UNIT, SKILLS_PER_UNIT_SETTING},
    skills::{
        SelectedSkill, SkillContent, SkillFile, SkillFolder, SkillOwner, SkillScope,
        validate_skill_name,
    },
};
use cynode_db::{Conn, manager::skills};
use cynode_wire::manager::skills::{
    CreateSkill, ImportSkill, SkillExport, SkillSummary, SkillVersionSummary, SkillVersionView,
    SkillView, UpdateSkill,
};
use serde_json::json;

pub use cynode_db::manager::skills::{Skill, SkillHead};

use self::ranking::{MAX_RANKED_TEXT_BYTES, RankedSkill, rank_skills};
use crate::{
    App, AuthenticatedCaller, Ctx, Error,
    platform::{context::EventDraft, operation, settings},
};

/// Maximum number of skills of one owner.
const MAX_SKILLS_PER_OWNER: i64 = 500;

/// Maximum bytes of the instructions and files that one agent is given.
const MAX_GIVEN_BYTES: usize = 512 * 1024;

/// What changes of a skill. What is left out stays.
#[derive(Clone, Debug, Default)]
pub struct SkillChange {
    /// Description of when to use the skill.
    pub description: String,
    /// Instructions for the agent.
    pub body: String,
    /// License.
    pub license: Option<String>,
    /// Tools that its author says it needs.
    pub allowed_tools: Option<Vec<String>>,
    /// Files beside `SKILL.md`.
    pub files: Option<Vec<SkillFile>>,
}

/// Converts a skill to its summary, without its instructions.
pub fn to_skill_summary(head: &SkillHead) -> SkillSummary {
    SkillSummary {
        skill_id: head.id,
        scope: head.owner.scope(),
        project_id: head.owner.project(),
        user_id: head.owner.person(),
        name: head.name.clone(),
        description: head.description.clone(),
        version: head.version,
        unreviewed: head.unreviewed,
        by_agent: head.by_agent,
        created_by: head.created_by,
        updated_at: head.updated_at,
    }
}

/// Converts a skill to its API view.
pub fn to_skill_view(skill: &Skill) -> SkillView {
    let Skill { head, content } = skill;
    SkillView {
        summary: to_skill_summary(head),
        body: content.body.clone(),
        license: content.license.clone(),
        allowed_tools: content.allowed_tools.clone(),
        files: content.files.clone(),
    }
}

/// Redacts known and recognized secrets in a skill, before it is stored and given to agents. The caller must not have
/// an open transaction.
#[operation]
pub async fn redact_content(app: &App, content: &mut SkillContent) -> Result<(), Error> {
    let SkillContent { description, body, license, allowed_tools, files } = content;
    let texts = [description, body];
    let texts = texts.into_iter().chain(license).chain(allowed_tools);
    redact_texts(app, texts.chain(files.iter_mut().map(|file| &mut file.text)).collect()).await
}

/// Redacts known and recognized secrets in a change, as [`redact_content`] does.
#[operation]
pub async fn redact_change(app: &App, change: &mut SkillChange) -> Result<(), Error> {
    let SkillChange { description, body, license, allowed_tools, files } = change;
    let texts = [description, body];
    let texts = texts.into_iter().chain(license).chain(allowed_tools.iter_mut().flatten());
    let files = files.iter_mut().flatten().map(|file| &mut file.text);
    redact_texts(app, texts.chain(files).collect()).await
}

async fn redact_texts(app: &App, texts: Vec<&mut String>) -> Result<(), Error> {
    // A process without models has neither provider secrets nor redaction rules.
    if app.inference_runtime().is_err() {
        return Ok(());
    }
    for text in texts {
        *text = crate::platform::redaction::redact_text(app, std::mem::take(text)).await?;
    }
    Ok(())
}

/// Splits the request of a person into the name and the content of the new skill.
pub fn content_of_request(body: &mut CreateSkill) -> SkillContent {
    SkillContent {
        description: std::mem::take(&mut body.description),
        body: std::mem::take(&mut body.body),
        license: body.license.take(),
        allowed_tools: std::mem::take(&mut body.allowed_tools),
        files: std::mem::take(&mut body.files),
    }
}

/// Returns the change that the request of a person asks for.
pub fn change_of_request(body: UpdateSkill) -> (i64, SkillChange) {
    let UpdateSkill { expected_version, description, body, license, allowed_tools, files } = body;
    (i64::from(expected_version), SkillChange { description, body, license, allowed_tools, files })
}

/// Reads an imported folder. What does not follow the format, or looks malicious, is refused with the reason.
pub fn read_folder(body: &mut ImportSkill) -> Result<SkillFolder, Error> {
    SkillFolder::from_files(std::mem::take(&mut body.files))
        .map_err(|error| Error::Invalid(error.to_string()))
}

/// Returns the owner that a request names.
fn owner_of_request(
    ctx: &Ctx,
    scope: SkillScope,
    project: Option<ProjectId>,
) -> Result<SkillOwner, Error> {
    match (scope, project) {
        (SkillScope::Installation, None) => Ok(SkillOwner::Installation),
        (SkillScope::Project, Some(project)) => Ok(SkillOwner::Project(project)),
        (SkillScope::Person, None) => Ok(SkillOwner::Person(ctx.caller()?.user)),
        (SkillScope::Project, None) => {
            Err(Error::Invalid("a skill of a project names its `project_id`".into()))
        }
        (SkillScope::Installation | SkillScope::Person, Some(_)) => {
            Err(Error::Invalid("only a skill of a project names a `project_id`".into()))
        }
    }
}

/// Requires the role that may write skills of an owner: admins those of the installation, operators those of their project, and everybody
/// their own. Agents write those of their project only.
async fn require_writer(ctx: &mut Ctx, owner: SkillOwner) -> Result<AuthenticatedCaller, Error> {
    match owner {
        SkillOwner::Project(project) => ctx.require_project_role(project, UserRole::Operator).await,
        SkillOwner::Installation | SkillOwner::Person(_) if ctx.is_agent() => {
            Err(Error::forbidden(UserRole::Operator, "as a person: agents write for their project"))
        }
        SkillOwner::Installation => ctx.require_role(UserRole::Admin),
        SkillOwner::Person(user) => {
            ctx.reject_limited_key()?;
            let caller = ctx.caller()?;
            if caller.user == user {
                Ok(caller)
            } else {
                Err(Error::forbidden(UserRole::Operator, "as the person whose skill it is"))
            }
        }
    }
}

/// Requires that the caller may read skills of an owner: everybody those of the installation and their own, members those of a project.
async fn require_reader(ctx: &mut Ctx, owner: SkillOwner) -> Result<(), Error> {
    let caller = ctx.caller()?;
    match owner {
        SkillOwner::Installation => Ok(()),
        SkillOwner::Project(project) => {
            ctx.require_project_role(project, UserRole::Viewer).await.map(drop)
        }
        SkillOwner::Person(user) if user == caller.user => {
            if ctx.is_agent() {
                Ok(())
            } else {
                ctx.reject_limited_key()
            }
        }
        SkillOwner::Person(user) => Err(Error::not_found("user", user)),
    }
}

fn validate(name: Option<&str>, content: &SkillContent) -> Result<(), Error> {
    let checked = name.map_or(Ok(()), validate_skill_name).and_then(|()| content.validate());
    checked.map_err(|error| Error::Invalid(error.to_string()))
}

/// Creates a skill from a request of a person, whose content was redacted.
#[operation]
pub async fn create_skill_from_body(
    ctx: &mut Ctx,
    body: CreateSkill,
    content: SkillContent,
) -> Result<SkillView, Error> {
    let owner = owner_of_request(ctx, body.scope, body.project_id)?;
    Ok(to_skill_view(&create_skill(ctx, owner, body.name, content).await?))
}

/// Creates a skill.
#[tracing::instrument(name = "app.skills.create_skill", skip_all)]
#[operation]
pub async fn create_skill(
    ctx: &mut Ctx,
    owner: SkillOwner,
    name: String,
    content: SkillContent,
) -> Result<Skill, Error> {
    let caller = require_writer(ctx, owner).await?;
    validate(Some(&name), &content)?;
    if skills::count_skills(ctx.conn(), owner).await? >= MAX_SKILLS_PER_OWNER {
        let rule = format!("there are {MAX_SKILLS_PER_OWNER} skills already: delete one first");
        return Err(Error::Invalid(rule));
    }
    let by_agent = caller.bounds.is_some();
    let head = SkillHead {
        id: SkillId::from_uuid(ctx.new_uuid()),
        owner,
        name,
        description: content.description.clone(),
        version: 1,
        unreviewed: by_agent,
        by_agent,
        created_by: caller.user,
        updated_at: ctx.now,
    };
    let skill = Skill { head, content };
    match skills::insert_skill(ctx.conn(), &skill).await {
        Err(error) if error.is_refused_by("skills_name_unique") => {
            let name = skill.head.name;
            return Err(Error::AlreadyExists { what: "a skill with the name", name });
        }
        result => result?,
    }
    record_skill_event(ctx, &skill.head, "created").await?;
    Ok(skill)
}

/// Updates a skill. Optimistic locking: a concurrent update is a version conflict.
#[tracing::instrument(name = "app.skills.update_skill", skip_all)]
#[operation]
pub async fn update_skill(
    ctx: &mut Ctx,
    id: SkillId,
    version: i64,
    change: SkillChange,
) -> Result<Skill, Error> {
    let Skill { head, content } = get_skill(ctx, id).await?;
    let SkillChange { description, body, license, allowed_tools, files } = change;
    let content = SkillContent {
        description,
        body,
        license: license.map_or(content.license, |text| Some(text).filter(|it| !it.is_empty())),
        allowed_tools: allowed_tools.unwrap_or(content.allowed_tools),
        files: files.unwrap_or(content.files),
    };
    replace_content(ctx, head, version, content).await
}

async fn replace_content(
    ctx: &mut Ctx,
    head: SkillHead,
    expected: i64,
    content: SkillContent,
) -> Result<Skill, Error> {
    let caller = require_writer(ctx, head.owner).await?;
    validate(None, &content)?;
    let (actual, by_agent) = (head.version, caller.bounds.is_some());
    let head = SkillHead {
        description: content.description.clone(),
        version: expected.saturating_add(1),
        unreviewed: by_agent,
        by_agent,
        updated_at: ctx.now,
        ..head
    };
    let skill = Skill { head, content };
    // An older version may be pruned already, so that it cannot be found by its number alone.
    if actual != expected
        || !skills::update_skill(ctx.conn(), &skill, expected, caller.user).await?
    {
        return Err(Error::VersionConflict { key: skill.head.name, expected, actual });
    }
    record_skill_event(ctx, &skill.head, "updated").await?;
    Ok(skill)
}

/// Creates a skill from an imported folder whose content was redacted, or replaces the one of that name at the version that the caller read.
#[tracing::instrument(name = "app.skills.import_skill", skip_all)]
#[operation]
pub async fn import_skill(
    ctx: &mut Ctx,
    body: ImportSkill,
    folder: SkillFolder,
) -> Result<SkillView, Error> {
    let owner = owner_of_request(ctx, body.scope, body.project_id)?;
    let SkillFolder { name, content } = folder;
    let Some(expected) = body.expected_version else {
        return Ok(to_skill_view(&create_skill(ctx, owner, name, content).await?));
    };
    require_writer(ctx, owner).await?;
    let id = skills::find_skill(ctx.conn(), owner, &name).await?;
    let id = id.ok_or_else(|| Error::not_found("skill", &name))?;
    let head = get_head(ctx, id).await?;
    Ok(to_skill_view(&replace_content(ctx, head, i64::from(expected), content).await?))
}

/// Deletes a skill and its versions.
#[tracing::instrument(name = "app.skills.delete_skill", skip_all)]
#[operation]
pub async fn delete_skill(ctx: &mut Ctx, id: SkillId) -> Result<(), Error> {
    let head = get_head(ctx, id).await?;
    require_writer(ctx, head.owner).await?;
    skills::delete_skill(ctx.conn(), id).await?;
    record_skill_event(ctx, &head, "deleted").await
}

/// Records that a person has looked at a version of a skill: the present one, unless another is named. From then on agents may be given it.
#[tracing::instrument(name = "app.skills.review_skill", skip_all)]
#[operation]
pub async fn review_skill(
    ctx: &mut Ctx,
    id: SkillId,
    version: Option<i64>,
) -> Result<SkillHead, Error> {
    let head = get_head(ctx, id).await?;
    let caller = require_writer(ctx, head.owner).await?;
    let (expected, now) = (version.unwrap_or(head.version), ctx.now);
    if !skills::mark_skill_reviewed(ctx.conn(), id, expected, caller.user, now).await? {
        return Err(Error::VersionConflict { key: head.name, expected, actual: head.version });
    }
    Ok(head)
}

async fn get_head(ctx: &mut Ctx, id: SkillId) -> Result<SkillHead, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("skill", id);
    let head = skills::get_skill_head(ctx.conn(), id).await?.ok_or_else(missing)?;
    require_reader(ctx, head.owner).await.map_err(|_| missing())?;
    Ok(head)
}

/// Returns one skill that the caller may see.
#[tracing::instrument(name = "app.skills.get_skill", skip_all)]
#[operation]
pub async fn get_skill(ctx: &mut Ctx, id: SkillId) -> Result<Skill, Error> {
    let head = get_head(ctx, id).await?;
    let content = skills::get_content(ctx.conn(), id).await?;
    Ok(Skill { head, content: content.ok_or_else(|| Error::not_found("skill", id))? })
}

/// Lists the skills of a project by name.
#[tracing::instrument(name = "app.skills.list_skills", skip_all)]
#[operation]
pub async fn list_skills(ctx: &mut Ctx, project: ProjectId) -> Result<Vec<SkillHead>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    Ok(skills::list_skills(ctx.conn(), SkillOwner::Project(project)).await?)
}

/// Lists the skills of the installation, then the caller's own, by name.
#[tracing::instrument(name = "app.skills.list_common_skills", skip_all)]
#[operation]
pub async fn list_common_skills(ctx: &mut Ctx) -> Result<Vec<SkillHead>, Error> {
    let caller = ctx.caller()?;
    let mut found = skills::list_skills(ctx.conn(), SkillOwner::Installation).await?;
    let own = SkillOwner::Person(caller.user);
    if require_reader(ctx, own).await.is_ok() {
        found.extend(skills::list_skills(ctx.conn(), own).await?);
    }
    Ok(found)
}

/// Returns a skill as a folder: its `SKILL.md` and its files.
#[tracing::instrument(name = "app.skills.export_skill", skip_all)]
#[operation]
pub async fn export_skill(ctx: &mut Ctx, id: SkillId) -> Result<SkillExport, Error> {
    let Skill { head, content } = get_skill(ctx, id).await?;
    let version = head.version;
    let folder = SkillFolder { name: head.name, content };
    Ok(SkillExport { files: folder.to_files(), name: folder.name, version })
}

/// Lists the versions of a skill that are kept, the newest first.
#[tracing::instrument(name = "app.skills.list_versions", skip_all)]
#[operation]
pub async fn list_versions(ctx: &mut Ctx, id: SkillId) -> Result<Vec<SkillVersionSummary>, Error> {
    get_head(ctx, id).await?;
    let found = skills::list_versions(ctx.conn(), id).await?;
    Ok(found.into_iter().map(to_version_summary).collect())
}

fn to_version_summary(version: skills::SkillVersion) -> SkillVersionSummary {
    SkillVersionSummary {
        version: version.version,
        description: version.description,
        by_agent: version.by_agent,
        written_by: version.written_by,
        written_at: version.written_at,
        reviewed_by: version.reviewed_by,
        files: u32::try_from(version.files).unwrap_or_default(),
    }
}

/// Returns what a version of a skill says.
#[tracing::instrument(name = "app.skills.get_version", skip_all)]
#[operation]
pub async fn get_version(
    ctx: &mut Ctx,
    id: SkillId,
    version: i64,
) -> Result<SkillVersionView, Error> {
    let name = get_head(ctx, id).await?.name;
    let content = skills::get_version_content(ctx.conn(), id, version).await?;
    let content = content.ok_or_else(|| Error::not_found("version", version))?;
    let SkillContent { description, body, license, allowed_tools, files } = content;
    Ok(SkillVersionView { name, version, description, body, license, allowed_tools, files })
}

async fn record_skill_event(ctx: &mut Ctx, head: &SkillHead, what: &str) -> Result<(), Error> {
    let data = json!({ "skill_id": head.id, "name": head.name, "scope": head.owner.scope(), "change": what,
        "version": head.version });
    let draft = EventDraft::new(EventKind::SkillChanged, data);
    ctx.record_event(match head.owner {
        SkillOwner::Installation => draft,
        SkillOwner::Project(project) => draft.with_project(project),
        SkillOwner::Person(user) => draft.with_subject(user),
    })
    .await
}

/// Returns the skills that fit a piece of work of a user in a project, the best first, at most as many as the setting allows: reviewed ones
/// of the installation, the project and this user. Of equal names the one of the user counts, then that of the project.
pub(crate) async fn skills_for(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
    text: &str,
) -> Result<Vec<SelectedSkill>, Error> {
    let candidates = load_candidates(conn, user, project).await?;
    // Most installations have none: then the setting is not read.
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let max =
        settings::setting_number(conn, SKILLS_PER_UNIT_SETTING, DEFAULT_SKILLS_PER_UNIT).await?;
    select_skills(conn, &candidates, text, usize::try_from(max).unwrap_or_default()).await
}

async fn load_candidates(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
) -> Result<Vec<SkillHead>, Error> {
    let mut found = skills::list_candidates(conn, user, project).await?;
    // The narrowest scope is last, and it counts.
    found.sort_by(|one, other| {
        (&one.name, one.owner.scope()).cmp(&(&other.name, other.owner.scope()))
    });
    let mut named: Vec<SkillHead> = Vec::with_capacity(found.len());
    for head in found {
        match named.last_mut() {
            Some(last) if last.name == head.name => *last = head,
            Some(_) | None => named.push(head),
        }
    }
    Ok(named)
}

async fn select_skills(
    conn: &mut Conn,
    candidates: &[SkillHead],
    text: &str,
    max: usize,
) -> Result<Vec<SelectedSkill>, Error> {
    let text = text.get(..text.floor_char_boundary(MAX_RANKED_TEXT_BYTES)).unwrap_or_default();
    let ranked: Vec<RankedSkill<'_>> = candidates
        .iter()
        .map(|head| RankedSkill { id: head.id, name: &head.name, description: &head.description })
        .collect();
    let (mut selected, mut room) = (Vec::new(), MAX_GIVEN_BYTES);
    for id in rank_skills(text, &ranked, max) {
        let Some(head) = candidates.iter().find(|head| head.id == id) else { continue };
        let Some(content) = skills::get_version_content(conn, id, head.version).await? else {
            continue;
        };
        let files: usize = content.files.iter().map(|file| file.text.len()).sum();
        let Some(left) = room.checked_sub(content.body.len() + files) else { continue };
        room = left;
        selected.push(SelectedSkill {
            skill_id: id,
            name: head.name.clone(),
            description: content.description,
            version: head.version,
            body: content.body,
            files: content.files,
            untrusted: head.by_agent,
        });
    }
    Ok(selected)
}
