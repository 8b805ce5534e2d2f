//! `skills.*` and `sandbox.allowed_images.*`: what agents may be given and run in, checked as for people.

use cynode_app::{
    reports,
    skills::{self, Skill, SkillText},
};
use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, SkillId},
};
use cynode_policy::catalogue::{Annotations, Binding};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError, value};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// What it is called, as `run-the-tests`.
    name: String,
    /// When it is of use.
    description: String,
    /// The instructions.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct List {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct One {
    /// The skill.
    #[schema(value_type = String)]
    skill_id: SkillId,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Update {
    /// The skill.
    #[schema(value_type = String)]
    skill_id: SkillId,
    /// The version you read.
    version: i64,
    /// When it is of use.
    description: String,
    /// The instructions.
    body: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Image {
    /// The image, with its tag or digest.
    image: String,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description, scope, annotations| About {
        name,
        title,
        description,
        scope,
        binding: Binding::NONE,
        annotations,
    };
    let (both, pm) = (ToolScope::Both, ToolScope::Pm);
    vec![
        about(
            "skills.create",
            "Write a skill",
            "Writes instructions that agents of the project may be given.",
            pm,
            Annotations::ADDS,
        )
        .does(create),
        about("skills.list", "List skills", "The skills of the project.", both, Annotations::READS)
            .does(list),
        about(
            "skills.get",
            "Read a skill",
            "The instructions of a skill.",
            both,
            Annotations::READS,
        )
        .does(get),
        about(
            "skills.update",
            "Change a skill",
            "Writes a skill anew, if nobody did in between.",
            pm,
            Annotations::WRITES,
        )
        .does(update),
        about("skills.delete", "Remove a skill", "Removes a skill.", pm, Annotations::ENDS)
            .does(delete),
        about(
            "sandbox.allowed_images.list",
            "List allowed images",
            "The images that sandboxes may be made from.",
            pm,
            Annotations::READS,
        )
        .does(images),
        about(
            "sandbox.allowed_images.add",
            "Allow an image",
            "Adds an image that sandboxes may be made from.",
            pm,
            Annotations::WRITES,
        )
        .does(add_image),
    ]
}

fn project(call: &Invocation) -> Result<ProjectId, ToolError> {
    call.agent.project.ok_or_else(|| ToolError::invalid("you work in no project"))
}

fn view(skill: &Skill) -> Value {
    json!({
        "skill_id": skill.id, "name": skill.name, "description": skill.description, "body": skill.body,
        "version": skill.version,
    })
}

async fn create(call: Invocation, mut body: Create) -> Result<Value, ToolError> {
    let project = project(&call)?;
    skills::without_secrets(&call.app, &mut body.description, &mut body.body).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let text = SkillText { description: body.description, body: body.body };
            Ok(view(&skills::create(ctx, project, body.name, text).await?))
        })
    });
    value(&answer.await?)
}

async fn list(call: Invocation, List {}: List) -> Result<Value, ToolError> {
    let project = project(&call)?;
    let found = call.app.read(&call.request, |ctx| Box::pin(skills::list(ctx, project))).await?;
    let items = found.iter().map(|skill| {
        json!({ "skill_id": skill.id, "name": skill.name, "description": skill.description, "version": skill.version })
    });
    Ok(json!({ "items": items.collect::<Vec<_>>() }))
}

async fn get(call: Invocation, One { skill_id }: One) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(skills::get(ctx, skill_id))).await?;
    Ok(view(&found))
}

async fn update(call: Invocation, mut body: Update) -> Result<Value, ToolError> {
    skills::without_secrets(&call.app, &mut body.description, &mut body.body).await?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let text = SkillText { description: body.description, body: body.body };
            Ok(view(&skills::update(ctx, body.skill_id, body.version, text).await?))
        })
    });
    value(&answer.await?)
}

async fn delete(call: Invocation, One { skill_id }: One) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| Box::pin(skills::delete(ctx, skill_id)));
    answer.await?;
    Ok(json!({ "deleted": true }))
}

async fn images(call: Invocation, List {}: List) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(reports::images(ctx))).await?;
    Ok(json!({ "items": found }))
}

async fn add_image(call: Invocation, Image { image }: Image) -> Result<Value, ToolError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            reports::add_image(ctx, &image).await?;
            Ok(json!({ "image": image, "allowed": true }))
        })
    });
    value(&answer.await?)
}
