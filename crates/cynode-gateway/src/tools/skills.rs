//! `skills.*` and `sandbox.allowed_images.*`: skills and sandbox images, with the same checks as for users.

use cynode_app::manager::{
    reports,
    skills::{self, Skill, SkillChange, SkillHead},
};
use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, SkillId},
    skills::{SkillContent, SkillOwner},
    tools::ToolAnnotations,
};
use cynode_policy::catalogue::IdBinding;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec, answer_value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateSkillArgs {
    /// Name of the skill, such as `run-the-tests`.
    name: String,
    /// Situations in which the skill is useful.
    description: String,
    /// The instructions.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListSkillsArgs {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SkillArgs {
    /// The skill.
    #[schema(value_type = String)]
    skill_id: SkillId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GetSkillArgs {
    /// The skill.
    #[schema(value_type = String)]
    skill_id: SkillId,
    /// A file of the skill to read instead of its instructions, by its path.
    #[serde(default)]
    file: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct UpdateSkillArgs {
    /// The skill.
    #[schema(value_type = String)]
    skill_id: SkillId,
    /// The version you read.
    version: i64,
    /// Situations in which the skill is useful.
    description: String,
    /// The instructions.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AddImageArgs {
    /// The image, with its tag or digest.
    image: String,
}

pub(super) fn skill_tools() -> Vec<NativeTool> {
    let about = |name, title, description, scope, annotations| ToolSpec {
        name,
        title,
        description,
        scope,
        binding: IdBinding::NONE,
        annotations,
    };
    let (both, pm) = (ToolScope::Both, ToolScope::Pm);
    vec![
        about(
            "skills.create",
            "Write a skill",
            "Writes instructions that agents of the project may be given.",
            pm,
            ToolAnnotations::ADDITIVE_WRITE,
        )
        .with_handler(create_skill),
        about(
            "skills.list",
            "List skills",
            "The skills of the project and of the installation, and those of the person you work for.",
            both,
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(list_skills),
        about(
            "skills.get",
            "Read a skill",
            "The instructions of a skill and the names of its files, or one of the files.",
            both,
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(get_skill),
        about(
            "skills.update",
            "Change a skill",
            "Writes a skill anew, if nobody did in between.",
            pm,
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(update_skill),
        about(
            "skills.delete",
            "Remove a skill",
            "Removes a skill.",
            pm,
            ToolAnnotations::DESTRUCTIVE_WRITE,
        )
        .with_handler(delete_skill),
        about(
            "sandbox.allowed_images.list",
            "List allowed images",
            "The images that sandboxes may be made from.",
            pm,
            ToolAnnotations::READ_ONLY,
        )
        .with_handler(list_images),
        about(
            "sandbox.allowed_images.add",
            "Allow an image",
            "Adds an image that sandboxes may be made from.",
            pm,
            ToolAnnotations::IDEMPOTENT_WRITE,
        )
        .with_handler(add_image),
    ]
}

fn project_of_caller(call: &ToolInvocation) -> Result<ProjectId, ToolError> {
    call.agent.project.ok_or_else(|| ToolError::invalid_arguments("you work in no project"))
}

/// What an agent is told instead of the instructions of a skill that an agent wrote.
const UNREVIEWED_NOTICE: &str = "An agent wrote this, and no person has reviewed it yet. Nobody is given its description and instructions before.";

/// Renders the head of a skill. The description that an agent wrote is text for other agents as its instructions are.
fn head_view(head: &SkillHead) -> Value {
    let mut view = json!({
        "skill_id": head.id, "scope": head.owner.scope(), "name": head.name, "version": head.version,
    });
    if head.unreviewed {
        view["unreviewed"] = json!(UNREVIEWED_NOTICE);
    } else {
        view["description"] = json!(head.description);
    }
    view
}

/// Renders a skill that was reviewed, or for the agent that wrote it.
fn skill_view(skill: &Skill) -> Value {
    let mut view = head_view(&skill.head);
    view["description"] = json!(skill.head.description);
    view["body"] = json!(skill.content.body);
    view["files"] = skill
        .content
        .files
        .iter()
        .map(|file| json!({ "path": file.path, "bytes": file.text.len() }))
        .collect();
    view
}

async fn create_skill(call: ToolInvocation, body: CreateSkillArgs) -> Result<Value, ToolError> {
    let owner = SkillOwner::Project(project_of_caller(&call)?);
    let CreateSkillArgs { name, description, body } = body;
    let mut content = SkillContent { description, body, ..SkillContent::default() };
    skills::redact_content(&call.app, &mut content).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(
            async move { Ok(skill_view(&skills::create_skill(ctx, owner, name, content).await?)) },
        )
    });
    answer_value(&answer.await?)
}

async fn list_skills(
    call: ToolInvocation,
    ListSkillsArgs {}: ListSkillsArgs,
) -> Result<Value, ToolError> {
    let project = project_of_caller(&call)?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let mut found = skills::list_skills(ctx, project).await?;
            found.extend(skills::list_common_skills(ctx).await?);
            Ok(found)
        })
    });
    let items: Vec<Value> = found.await?.iter().map(head_view).collect();
    Ok(json!({ "items": items }))
}

async fn get_skill(
    call: ToolInvocation,
    GetSkillArgs { skill_id, file }: GetSkillArgs,
) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| skills::get_skill(ctx, skill_id)).await?;
    if found.head.unreviewed {
        return Ok(head_view(&found.head));
    }
    let Some(path) = file else { return Ok(skill_view(&found)) };
    let there = found.content.files.into_iter().find(|file| file.path == path);
    let there = there
        .ok_or_else(|| ToolError::invalid_arguments(format!("the skill has no file `{path}`")))?;
    Ok(
        json!({ "skill_id": skill_id, "version": found.head.version, "path": there.path, "text": there.text }),
    )
}

async fn update_skill(call: ToolInvocation, body: UpdateSkillArgs) -> Result<Value, ToolError> {
    let UpdateSkillArgs { skill_id, version, description, body } = body;
    let mut change = SkillChange { description, body, ..SkillChange::default() };
    skills::redact_change(&call.app, &mut change).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            Ok(skill_view(&skills::update_skill(ctx, skill_id, version, change).await?))
        })
    });
    answer_value(&answer.await?)
}

async fn delete_skill(
    call: ToolInvocation,
    SkillArgs { skill_id }: SkillArgs,
) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| skills::delete_skill(ctx, skill_id));
    answer.await?;
    Ok(json!({ "deleted": true }))
}

async fn list_images(
    call: ToolInvocation,
    ListSkillsArgs {}: ListSkillsArgs,
) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| reports::list_images(ctx)).await?;
    Ok(json!({ "items": found }))
}

async fn add_image(
    call: ToolInvocation,
    AddImageArgs { image }: AddImageArgs,
) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::add_image(ctx, &image).await?;
            Ok(json!({ "image": image, "allowed": true }))
        })
    });
    answer_value(&answer.await?)
}
