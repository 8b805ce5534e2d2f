//! `cynork skill`: instructions for the agents of a project.

use clap::{Args, Subcommand};
use cynode_wire::manager::skills::{SkillSummary, SkillView};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    names::ProjectSelector,
    operations,
    output::render_record,
};

#[derive(Subcommand)]
pub(crate) enum SkillCommand {
    /// List the skills of a project, without their instructions.
    #[command(after_help = "Example: cynork skill list --project web")]
    List {
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// Show a skill with its instructions.
    #[command(after_help = "Example: cynork skill show run-the-tests --project web")]
    Show {
        #[command(flatten)]
        which: SkillSelector,
    },
    /// Create a skill: instructions for agents. Malicious content is refused.
    #[command(
        after_help = "Example: cynork skill create run-the-tests --about \"Before anything is called done\" --body @skill.md --project web"
    )]
    Create(SkillCreateArgs),
    /// Update a skill.
    #[command(
        after_help = "Example: cynork skill update run-the-tests --body @skill.md --project web"
    )]
    Update(SkillUpdateArgs),
    /// Mark a skill that an agent wrote as reviewed by you.
    #[command(after_help = "Example: cynork skill review run-the-tests --project web")]
    Review {
        #[command(flatten)]
        which: SkillSelector,
    },
    /// Delete a skill.
    #[command(after_help = "Example: cynork skill delete run-the-tests --project web")]
    Delete {
        #[command(flatten)]
        which: SkillSelector,
    },
}

#[derive(Args)]
pub(crate) struct SkillSelector {
    /// Skill, by id or by name in the project.
    skill: String,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct SkillCreateArgs {
    /// Name, unique in the project.
    name: String,
    /// When agents should use it.
    #[arg(long)]
    about: String,
    /// Instructions; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long)]
    body: String,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct SkillUpdateArgs {
    #[command(flatten)]
    which: SkillSelector,
    /// When agents should use it; unchanged by default.
    #[arg(long)]
    about: Option<String>,
    /// Instructions; `@FILE` reads a file, `@-` reads standard input. Unchanged by default.
    #[arg(long)]
    body: Option<String>,
    /// Version that you expect; defaults to the current one.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<i64>,
}

impl SkillSelector {
    /// Resolves the id of a name.
    async fn resolve_skill_id(&self, context: &CliContext) -> Result<String> {
        if self.skill.starts_with("skl_") {
            return Ok(self.skill.clone());
        }
        let project = context.require_project(self.place.project.clone())?;
        let call = ApiRequest::for_operation(operations::LIST_SKILLS)
            .with_query("project", Some(&project));
        let listed = context.send_request(&call).await?;
        let listed = listed["items"].as_array().into_iter().flatten();
        let mut found = listed.filter(|it| it["name"] == self.skill.as_str());
        let found = found.find_map(|it| it["skill_id"].as_str());
        found.map(str::to_owned).ok_or_else(|| {
            CliError::new(CliErrorKind::NotFound, format!("{project} has no skill {}", self.skill))
                .with_fix(format!("see `cynork skill list --project {project}`"))
        })
    }
}

impl SkillCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { place } => {
                let project = context.require_project(place.project)?;
                let call = ApiRequest::for_operation(operations::LIST_SKILLS)
                    .with_query("project", Some(project));
                let row = |it: &SkillSummary, look: &ValueFormatter| {
                    [
                        look.style_bold(&it.name),
                        it.description.clone(),
                        it.version.to_string(),
                        look.format_relative_time(it.updated_at),
                        look.format_yes_no(!it.unreviewed),
                    ]
                };
                let heads = ["name", "of use", "version", "written", "reviewed"];
                context
                    .show_list(&call, None, |it: &SkillSummary| it.name.clone(), heads, row)
                    .await
            }
            Self::Show { which } => {
                let call = ApiRequest::with_path_params(
                    operations::GET_SKILL,
                    [which.resolve_skill_id(context).await?],
                );
                let value = context.send_request(&call).await?;
                let name = |it: &SkillView| vec![it.summary.skill_id.to_string()];
                context.show_answer(&value, name, |it: &SkillView, look| {
                    let sides = [
                        ("name", look.style_bold(&it.summary.name)),
                        ("id", it.summary.skill_id.to_string()),
                        ("of use", it.summary.description.clone()),
                        ("version", it.summary.version.to_string()),
                        ("reviewed", look.format_yes_no(!it.summary.unreviewed)),
                    ];
                    format!("{}\n{}", render_record(look.paint, &sides), it.body)
                })
            }
            Self::Create(write) => write.run(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Review { which } => {
                let body = json!({ "skill_id": which.resolve_skill_id(context).await? });
                let call =
                    ApiRequest::for_operation(operations::REVIEW_CONTENT).with_json_body(&body);
                context.send_and_confirm(&call, &format!("{} is reviewed", which.skill)).await
            }
            Self::Delete { which } => {
                let id = which.resolve_skill_id(context).await?;
                context.confirm_action(&format!("Delete the skill {}?", which.skill))?;
                let call = ApiRequest::with_path_params(operations::DELETE_SKILL, [&id]);
                context.send_and_confirm(&call, &format!("{} is deleted", which.skill)).await
            }
        }
    }
}

fn render_written_version(it: &SkillView, _: &ValueFormatter) -> String {
    format!("{} is written, version {}", it.summary.name, it.summary.version)
}

impl SkillCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.project_id(&context.require_project(self.place.project)?).await?;
        let body = json!({ "project_id": project, "name": self.name, "description": self.about,
            "body": input::read_text_argument(&self.body)? });
        let call = ApiRequest::for_operation(operations::CREATE_SKILL).with_json_body(&body);
        context
            .show_outcome(
                &call,
                |it: &SkillView| it.summary.skill_id.to_string(),
                render_written_version,
            )
            .await
    }
}

impl SkillUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.which.resolve_skill_id(context).await?;
        let mut now = context
            .send_request(&ApiRequest::with_path_params(operations::GET_SKILL, [&id]))
            .await?;
        let version = self.expected_version.map_or_else(|| now["version"].take(), |it| json!(it));
        let about = self.about.map_or_else(|| now["description"].take(), |it| json!(it));
        let body = match self.body {
            Some(body) => json!(input::read_text_argument(&body)?),
            None => now["body"].take(),
        };
        let body = json!({ "expected_version": version, "description": about, "body": body });
        let call =
            ApiRequest::with_path_params(operations::UPDATE_SKILL, [&id]).with_json_body(&body);
        context
            .show_outcome(
                &call,
                |it: &SkillView| it.summary.skill_id.to_string(),
                render_written_version,
            )
            .await
    }
}
