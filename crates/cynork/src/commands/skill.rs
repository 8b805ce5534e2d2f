//! `cynork skill`: instructions for agents, of the installation, a project or a person.

mod folder;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cynode_core::skills::{SkillFolder, SkillScope};
use cynode_wire::manager::skills::{
    SkillExport, SkillSummary, SkillVersionSummary, SkillVersionView, SkillView,
};
use serde_json::{Value, json};

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
    /// List the skills of a project, or those of the installation and your own, without their instructions.
    #[command(after_help = "Example: cynork skill list --project web")]
    List(SkillListArgs),
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
    /// Import a folder with a SKILL.md in the open format. Malicious content is refused.
    #[command(after_help = "Example: cynork skill import ./run-the-tests --project web")]
    Import(SkillImportArgs),
    /// Export a skill as a folder with a SKILL.md.
    #[command(after_help = "Example: cynork skill export run-the-tests --to /tmp --project web")]
    Export(SkillExportArgs),
    /// List the versions of a skill.
    #[command(after_help = "Example: cynork skill versions run-the-tests --project web")]
    Versions {
        #[command(flatten)]
        which: SkillSelector,
    },
    /// Show what a version of a skill says.
    #[command(after_help = "Example: cynork skill version run-the-tests 2 --project web")]
    Version(SkillVersionArgs),
    /// Mark a skill that an agent wrote as reviewed by you. From then on agents may be given it.
    #[command(
        after_help = "Example: cynork skill review run-the-tests --expected-version 2 --project web"
    )]
    Review(SkillReviewArgs),
    /// Delete a skill.
    #[command(after_help = "Example: cynork skill delete run-the-tests --project web")]
    Delete {
        #[command(flatten)]
        which: SkillSelector,
    },
}

/// Whose skills are meant.
#[derive(Args)]
pub(crate) struct SkillOwnerSelector {
    /// Skills of the installation, for agents of every project.
    #[arg(long, conflicts_with_all = ["mine", "project"])]
    installation: bool,
    /// Your own skills, for agents that work for you.
    #[arg(long, conflicts_with = "project")]
    mine: bool,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct SkillListArgs {
    /// The skills of the installation and your own, instead of those of a project.
    #[arg(long, conflicts_with = "project")]
    common: bool,
    #[command(flatten)]
    place: ProjectSelector,
}

#[derive(Args)]
pub(crate) struct SkillSelector {
    /// Skill, by id or by name.
    skill: String,
    #[command(flatten)]
    owner: SkillOwnerSelector,
}

#[derive(Args)]
pub(crate) struct SkillCreateArgs {
    /// Name, unique where the skill belongs.
    name: String,
    /// When agents should use it. Skills are chosen by it.
    #[arg(long)]
    about: String,
    /// Instructions; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long)]
    body: String,
    #[command(flatten)]
    owner: SkillOwnerSelector,
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

#[derive(Args)]
pub(crate) struct SkillImportArgs {
    /// Folder with a SKILL.md.
    folder: PathBuf,
    /// Replace the skill of the same name.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    owner: SkillOwnerSelector,
}

#[derive(Args)]
pub(crate) struct SkillExportArgs {
    #[command(flatten)]
    which: SkillSelector,
    /// Directory in which the folder is made.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    to: PathBuf,
}

#[derive(Args)]
pub(crate) struct SkillVersionArgs {
    /// Skill, by id or by name.
    skill: String,
    /// Version.
    version: i64,
    #[command(flatten)]
    owner: SkillOwnerSelector,
}

#[derive(Args)]
pub(crate) struct SkillReviewArgs {
    #[command(flatten)]
    which: SkillSelector,
    /// Version that you looked at; defaults to the current one. The review is refused if somebody wrote in between.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<i64>,
}

impl SkillOwnerSelector {
    const fn scope(&self) -> SkillScope {
        if self.installation {
            SkillScope::Installation
        } else if self.mine {
            SkillScope::Person
        } else {
            SkillScope::Project
        }
    }

    /// Returns the fields of a request that say whose skill it is.
    async fn to_fields(&self, context: &CliContext) -> Result<Value> {
        let scope = self.scope();
        if scope != SkillScope::Project {
            return Ok(json!({ "scope": scope }));
        }
        let project = context.require_project(self.place.project.clone())?;
        Ok(json!({ "scope": scope, "project_id": context.project_id(&project).await? }))
    }

    /// Returns the summary of the skill of that name.
    async fn find_skill(&self, context: &CliContext, name: &str) -> Result<Option<SkillSummary>> {
        let scope = self.scope();
        let call = ApiRequest::for_operation(operations::LIST_SKILLS);
        let call = if scope == SkillScope::Project {
            let project = context.require_project(self.place.project.clone())?;
            call.with_query("project", Some(project))
        } else {
            call
        };
        let mut listed = context.send_request(&call).await?;
        let items: Vec<SkillSummary> = serde_json::from_value(listed["items"].take())
            .map_err(|error| CliError::internal_error(error.to_string()))?;
        Ok(items.into_iter().find(|it| it.name == name && it.scope == scope))
    }

    async fn resolve_skill_id(&self, context: &CliContext, skill: &str) -> Result<String> {
        if skill.starts_with("skl_") {
            return Ok(skill.to_owned());
        }
        let found = self.find_skill(context, skill).await?;
        found.map(|it| it.skill_id.to_string()).ok_or_else(|| {
            CliError::new(CliErrorKind::NotFound, format!("there is no skill {skill}"))
                .with_fix("see `cynork skill list`, or `cynork skill list --common`")
        })
    }
}

impl SkillSelector {
    /// Resolves the id of a name.
    async fn resolve_skill_id(&self, context: &CliContext) -> Result<String> {
        self.owner.resolve_skill_id(context, &self.skill).await
    }
}

impl SkillCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(list) => list.run(context).await,
            Self::Show { which } => {
                let call = ApiRequest::with_path_params(
                    operations::GET_SKILL,
                    [which.resolve_skill_id(context).await?],
                );
                let value = context.send_request(&call).await?;
                let name = |it: &SkillView| vec![it.summary.skill_id.to_string()];
                context.show_answer(&value, name, render_skill)
            }
            Self::Create(write) => write.run(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Import(import) => import.run(context).await,
            Self::Export(export) => export.run(context).await,
            Self::Versions { which } => show_versions(&which, context).await,
            Self::Version(version) => version.run(context).await,
            Self::Review(review) => review.run(context).await,
            Self::Delete { which } => {
                let id = which.resolve_skill_id(context).await?;
                context.confirm_action(&format!("Delete the skill {}?", which.skill))?;
                let call = ApiRequest::with_path_params(operations::DELETE_SKILL, [&id]);
                context.send_and_confirm(&call, &format!("{} is deleted", which.skill)).await
            }
        }
    }
}

fn render_skill(it: &SkillView, look: &ValueFormatter) -> String {
    let summary = &it.summary;
    let files: Vec<&str> = it.files.iter().map(|file| file.path.as_str()).collect();
    let sides = [
        ("name", look.style_bold(&summary.name)),
        ("id", summary.skill_id.to_string()),
        ("of use", summary.description.clone()),
        ("scope", summary.scope.as_str().to_owned()),
        ("version", summary.version.to_string()),
        ("reviewed", look.format_yes_no(!summary.unreviewed)),
        ("license", it.license.clone().unwrap_or_default()),
        ("files", files.join(", ")),
    ];
    format!("{}\n{}", render_record(look.paint, &sides), it.body)
}

fn render_written_version(it: &SkillView, _: &ValueFormatter) -> String {
    format!("{} is written, version {}", it.summary.name, it.summary.version)
}

async fn show_versions(which: &SkillSelector, context: &CliContext) -> Result<()> {
    let id = which.resolve_skill_id(context).await?;
    let call = ApiRequest::with_path_params(operations::LIST_SKILL_VERSIONS, [&id]);
    let row = |it: &SkillVersionSummary, look: &ValueFormatter| {
        let by = if it.by_agent { "an agent" } else { "a person" };
        [
            it.version.to_string(),
            it.description.clone(),
            by.to_owned(),
            look.format_relative_time(it.written_at),
            look.format_yes_no(!it.by_agent || it.reviewed_by.is_some()),
            it.files.to_string(),
        ]
    };
    let heads = ["version", "of use", "by", "written", "reviewed", "files"];
    let name = |it: &SkillVersionSummary| it.version.to_string();
    context.show_list(&call, None, name, heads, row).await
}

impl SkillListArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let call = ApiRequest::for_operation(operations::LIST_SKILLS);
        let call = if self.common {
            call
        } else {
            call.with_query("project", Some(context.require_project(self.place.project)?))
        };
        let row = |it: &SkillSummary, look: &ValueFormatter| {
            [
                look.style_bold(&it.name),
                it.description.clone(),
                it.scope.as_str().to_owned(),
                it.version.to_string(),
                look.format_relative_time(it.updated_at),
                look.format_yes_no(!it.unreviewed),
            ]
        };
        let heads = ["name", "of use", "scope", "version", "written", "reviewed"];
        context.show_list(&call, None, |it: &SkillSummary| it.name.clone(), heads, row).await
    }
}

impl SkillCreateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let mut body = self.owner.to_fields(context).await?;
        body["name"] = json!(self.name);
        body["description"] = json!(self.about);
        body["body"] = json!(input::read_text_argument(&self.body)?);
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

impl SkillImportArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let files = folder::read_folder(&self.folder)?;
        let read = SkillFolder::from_files(files.clone())
            .map_err(|error| CliError::invalid_input(error.to_string()))?;
        let mut body = self.owner.to_fields(context).await?;
        if self.replace
            && let Some(found) = self.owner.find_skill(context, &read.name).await?
        {
            body["expected_version"] = json!(found.version);
        }
        body["files"] = json!(files);
        let call = ApiRequest::for_operation(operations::IMPORT_SKILL).with_json_body(&body);
        context
            .show_outcome(
                &call,
                |it: &SkillView| it.summary.skill_id.to_string(),
                render_written_version,
            )
            .await
    }
}

impl SkillExportArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.which.resolve_skill_id(context).await?;
        let call = ApiRequest::with_path_params(operations::EXPORT_SKILL, [&id]);
        let value = context.send_request(&call).await?;
        let export: SkillExport = serde_json::from_value(value.clone())
            .map_err(|error| CliError::internal_error(error.to_string()))?;
        let folder = folder::write_folder(&self.to, &export.name, &export.files)?;
        let folder = folder.display().to_string();
        context.show_answer(
            &value,
            |_: &SkillExport| vec![folder.clone()],
            |it, _| format!("{}, version {}, is in {folder}", it.name, it.version),
        )
    }
}

impl SkillVersionArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.owner.resolve_skill_id(context, &self.skill).await?;
        let call = ApiRequest::with_path_params(
            operations::GET_SKILL_VERSION,
            [id, self.version.to_string()],
        );
        let value = context.send_request(&call).await?;
        let name = |it: &SkillVersionView| vec![it.version.to_string()];
        context.show_answer(&value, name, |it: &SkillVersionView, look| {
            let files: Vec<&str> = it.files.iter().map(|file| file.path.as_str()).collect();
            let sides = [
                ("name", look.style_bold(&it.name)),
                ("version", it.version.to_string()),
                ("of use", it.description.clone()),
                ("files", files.join(", ")),
            ];
            format!("{}\n{}", render_record(look.paint, &sides), it.body)
        })
    }
}

impl SkillReviewArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let mut body = json!({ "skill_id": self.which.resolve_skill_id(context).await? });
        if let Some(version) = self.expected_version {
            body["version"] = json!(version);
        }
        let call = ApiRequest::for_operation(operations::REVIEW_CONTENT).with_json_body(&body);
        context.send_and_confirm(&call, &format!("{} is reviewed", self.which.skill)).await
    }
}
