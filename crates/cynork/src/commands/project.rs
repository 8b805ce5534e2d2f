//! `cynork project`: projects, their members, repositories and environments.

use clap::{Args, Subcommand};
use cynode_wire::{
    nodes::RepositoryView,
    tasks::projects::{MemberView, ProjectView},
};
use serde_json::json;

use crate::{
    answers::PageArgs,
    client::ApiRequest,
    commands::{ROLES, ROLES_OR_NONE},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    names::{self, ProjectSelector},
    operations,
};

mod environment;
mod import;
mod packages;
mod pull;
mod secret;

#[derive(Subcommand)]
pub(crate) enum ProjectCommand {
    /// List the projects you may see.
    #[command(after_help = "Example: cynork project list --archived")]
    List {
        /// Include archived projects.
        #[arg(long)]
        archived: bool,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Create a project; you become its first admin.
    #[command(after_help = "Example: cynork project create web --title \"The web site\"")]
    Create(ProjectCreateArgs),
    /// Show a project.
    #[command(after_help = "Example: cynork project show web")]
    Show {
        /// Project, by name or id; defaults to the project of the current repository, then to the one chosen with `cynork
        /// project use`.
        project: Option<String>,
    },
    /// Update the title and description of a project.
    #[command(after_help = "Example: cynork project update web --title \"The new web site\"")]
    Update(ProjectUpdateArgs),
    /// Archive a project: new tasks are refused, its models, schedules and forge are inactive, and lists omit it.
    #[command(
        after_help = "Example: cynork project archive web\nArchiving fails while tasks are open; `cynork project unarchive web` restores the project."
    )]
    Archive {
        /// Project, by name or id.
        project: String,
    },
    /// Restore an archived project.
    #[command(after_help = "Example: cynork project unarchive web")]
    Unarchive {
        /// Project, by name or id.
        project: String,
    },
    /// Delete an archived project permanently: its tasks, repository, models, budgets, schedules and preferences.
    #[command(
        after_help = "Example: cynork project delete web\nAudit records, events and model usage stay. Without --yes, the command asks for the name of the project."
    )]
    Delete {
        /// Project, by name or id.
        project: String,
    },
    /// List the members of a project.
    #[command(after_help = "Example: cynork project members --project web")]
    Members {
        #[command(flatten)]
        place: ProjectSelector,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Grant a user a role in a project.
    #[command(after_help = "Example: cynork project grant bob operator --project web")]
    Grant {
        /// User, by handle or id.
        user: String,
        /// Role of the user in the project.
        #[arg(value_parser = ROLES)]
        role: String,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// Revoke a user's role in a project.
    #[command(after_help = "Example: cynork project revoke bob --project web")]
    Revoke {
        /// User, by handle or id.
        user: String,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// Grant a group a role in a project; `none` revokes it.
    #[command(after_help = "Example: cynork project grant-group reviewers viewer --project web")]
    GrantGroup {
        /// Project, by name or id.
        group: String,
        /// Role of the group's members in the project.
        #[arg(value_parser = ROLES_OR_NONE)]
        role: String,
        #[command(flatten)]
        place: ProjectSelector,
    },
    /// Show the repository of a project.
    #[command(after_help = "Example: cynork project repository --project web")]
    Repository(ProjectSelector),
    /// Import a local repository, or its newer commits, into a project.
    #[command(after_help = "Example: cynork project import . --project web")]
    Import(import::ImportArgs),
    /// Fast-forward the branch of a working copy to the project's head, with git.
    #[command(after_help = "Example: cynork project pull --project web")]
    Pull(pull::PullArgs),
    /// Clone a project's repository, with git.
    #[command(after_help = "Example: cynork project clone web")]
    Clone(pull::CloneArgs),
    /// Manage the environment of a project: what its build and its tests need.
    #[command(subcommand)]
    Environment(environment::EnvironmentCommand),
    /// Manage the secrets that the set-up of an environment may use.
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// List the packages that jobs of a project fetched or were refused.
    #[command(after_help = "Example: cynork project packages --project web --refused")]
    Packages(packages::PackagesArgs),
    /// Set the default project, used when none is named and the current repository has none.
    #[command(after_help = "Example: cynork project use web")]
    Use {
        /// Project, by name or id.
        project: String,
    },
}

#[derive(Args)]
pub(crate) struct ProjectCreateArgs {
    /// Name in URLs and on the command line: `[a-z0-9-]`.
    name: String,
    /// Title; defaults to the name.
    #[arg(long)]
    title: Option<String>,
    /// Description.
    #[arg(long)]
    description: Option<String>,
    /// Make it the default project, used when none is named and the current repository has none.
    #[arg(long = "use")]
    chosen: bool,
}

#[derive(Args)]
pub(crate) struct ProjectUpdateArgs {
    /// Project, by name or id; defaults to the project of the current repository, then to the one chosen with `cynork project
    /// use`.
    project: Option<String>,
    /// Title.
    #[arg(long)]
    title: Option<String>,
    /// Description.
    #[arg(long)]
    description: Option<String>,
}

impl ProjectCommand {
    pub(crate) async fn run(self, context: &mut CliContext) -> Result<()> {
        match self {
            Self::List { archived, pages } => list_projects(context, archived, &pages).await,
            Self::Create(create) => create.run(context).await,
            Self::Show { project } => {
                let call = ApiRequest::with_path_params(
                    operations::GET_PROJECT,
                    [context.require_project(project)?],
                );
                context.show_item(&call, project_slug, project_fields).await
            }
            Self::Update(update) => update.run(context).await,
            Self::Archive { project } => {
                context.confirm_action(&format!(
                    "Archive {project}? No task can be asked for in it then."
                ))?;
                let call = ApiRequest::with_path_params(operations::ARCHIVE_PROJECT, [&project]);
                let sentence = |it: &ProjectView, _: &ValueFormatter| {
                    format!("{0} is archived; `cynork project unarchive {0}` restores it", it.slug)
                };
                context.show_outcome(&call, project_slug, sentence).await
            }
            Self::Unarchive { project } => {
                let call = ApiRequest::with_path_params(operations::UNARCHIVE_PROJECT, [&project]);
                let sentence = |it: &ProjectView, _: &ValueFormatter| {
                    format!("{} is worked on again", it.slug)
                };
                context.show_outcome(&call, project_slug, sentence).await
            }
            Self::Delete { project } => delete_project(context, &project).await,
            Self::Members { place, pages } => list_members(context, place, &pages).await,
            Self::Grant { user, role, place } => grant_role(context, &user, &role, place).await,
            Self::Revoke { user, place } => revoke_role(context, &user, place).await,
            Self::GrantGroup { group, role, place } => {
                let project = context.require_project(place.project)?;
                let id = names::GROUP.resolve_id(context, &group).await?;
                let call =
                    ApiRequest::with_path_params(operations::SET_GROUP_ROLE, [&project, &id]);
                let sentence = format!("{group} in {project}: {role}");
                context
                    .send_and_confirm(&call.with_json_body(&json!({ "role": role })), &sentence)
                    .await
            }
            Self::Repository(place) => {
                let call = ApiRequest::with_path_params(
                    operations::GET_REPOSITORY,
                    [context.require_project(place.project)?],
                );
                context.show_item(&call, repository_head, repository_fields).await
            }
            Self::Import(import) => import.run(context).await,
            Self::Pull(pull) => pull.run(context).await,
            Self::Clone(clone) => clone.run(context).await,
            Self::Environment(command) => command.run(context).await,
            Self::Secret(command) => command.run(context).await,
            Self::Packages(packages) => packages.run(context).await,
            Self::Use { project } => select_default_project(context, &project).await,
        }
    }
}

fn project_slug(project: &ProjectView) -> String {
    project.slug.to_string()
}

fn project_fields(project: &ProjectView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    vec![
        ("name", look.style_bold(project.slug.as_str())),
        ("title", project.title.to_string()),
        ("about", project.description.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("made", look.format_relative_time(project.created_at)),
        ("archived", look.format_optional_time(project.archived_at)),
        ("id", project.id.to_string()),
    ]
}

fn repository_head(repository: &RepositoryView) -> String {
    repository.head.clone()
}

/// Returns the fields of a repository.
fn repository_fields(
    repository: &RepositoryView,
    look: &ValueFormatter,
) -> Vec<(&'static str, String)> {
    vec![
        ("branch", look.style_bold(&repository.default_branch)),
        ("commit", repository.head.clone()),
        ("brought", look.format_relative_time(repository.imported_at)),
    ]
}

/// Deletes a project after the person typed its name or gave `--yes`.
async fn delete_project(context: &CliContext, project: &str) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::GET_PROJECT, [project]);
    let found: ProjectView = context.client.send(&call).await?;
    if !context.yes {
        if !context.is_interactive() {
            return Err(CliError::new(
                CliErrorKind::Usage,
                "it is deleted for good, and nobody is there to ask",
            )
            .with_fix("say it with --yes"));
        }
        let typed = dialoguer::Input::<String>::new()
            .with_prompt(format!("{} is deleted for good. Type its name", found.slug))
            .interact_text();
        let typed = typed.map_err(|error| CliError::invalid_input(error.to_string()))?;
        if typed.trim() != found.slug.as_str() {
            return Err(CliError::new(
                CliErrorKind::Failed,
                "nothing was done: that is not its name",
            ));
        }
    }
    let call = ApiRequest::with_path_params(operations::DELETE_PROJECT, [found.id.to_string()]);
    let sentence = format!("{} is deleted; its files are removed within about an hour", found.slug);
    context.send_and_confirm(&call, &sentence).await
}

async fn list_projects(context: &CliContext, archived: bool, pages: &PageArgs) -> Result<()> {
    let chosen = context.file.kept.project.clone();
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_PROJECTS)
                .with_query("archived", archived.then_some("true")),
            Some(pages),
            project_slug,
            ["name", "title", "made", "id"],
            |project: &ProjectView, look| {
                let meant = chosen.as_deref() == Some(project.slug.as_str());
                let mark = match (meant, project.archived_at.is_some()) {
                    (_, true) => " (archived)",
                    (true, false) => " (chosen)",
                    (false, false) => "",
                };
                [
                    format!("{}{mark}", look.style_bold(project.slug.as_str())),
                    project.title.to_string(),
                    look.format_relative_time(project.created_at),
                    look.style_dim(&project.id.to_string()),
                ]
            },
        )
        .await
}

impl ProjectCreateArgs {
    async fn run(self, context: &mut CliContext) -> Result<()> {
        let title = self.title.unwrap_or_else(|| self.name.clone());
        let body = input::without_nulls(
            json!({ "slug": self.name, "title": title, "description": self.description }),
        );
        let call = ApiRequest::for_operation(operations::CREATE_PROJECT).with_json_body(&body);
        context
            .show_outcome(&call, project_slug, |project, _| {
                format!("the project {} is made; you are its admin", project.slug)
            })
            .await?;
        if self.chosen {
            context.file.kept.project = Some(self.name);
            context.file.write_config()?;
        }
        Ok(())
    }
}

impl ProjectUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let body = input::require_changes(
            json!({ "title": self.title, "description": self.description }),
        )?;
        let call = ApiRequest::with_path_params(
            operations::UPDATE_PROJECT,
            [context.require_project(self.project)?],
        );
        context
            .show_outcome(&call.with_json_body(&body), project_slug, |it, _| {
                format!("{} is now “{}”", it.slug, it.title)
            })
            .await
    }
}

async fn list_members(
    context: &CliContext,
    place: ProjectSelector,
    pages: &PageArgs,
) -> Result<()> {
    context
        .show_list(
            &ApiRequest::with_path_params(
                operations::LIST_MEMBERS,
                [context.require_project(place.project)?],
            ),
            Some(pages),
            |member: &MemberView| member.handle.to_string(),
            ["handle", "role", "since", "id"],
            |member, look| {
                [
                    look.style_bold(member.handle.as_str()),
                    member.role.as_str().to_owned(),
                    look.format_relative_time(member.added_at),
                    look.style_dim(&member.user_id.to_string()),
                ]
            },
        )
        .await
}

async fn grant_role(
    context: &CliContext,
    user: &str,
    role: &str,
    place: ProjectSelector,
) -> Result<()> {
    let project = context.require_project(place.project)?;
    let id = context.user_id(user).await?;
    let call = ApiRequest::with_path_params(operations::SET_MEMBER, [&project, &id])
        .with_json_body(&json!({ "role": role }));
    context.send_and_confirm(&call, &format!("{user} is {role} in {project}")).await
}

async fn revoke_role(context: &CliContext, user: &str, place: ProjectSelector) -> Result<()> {
    let project = context.require_project(place.project)?;
    let id = context.user_id(user).await?;
    context.confirm_action(&format!("Take {user} out of {project}?"))?;
    let call = ApiRequest::with_path_params(operations::REMOVE_MEMBER, [&project, &id]);
    context.send_and_confirm(&call, &format!("{user} is no member of {project} any more")).await
}

async fn select_default_project(context: &mut CliContext, project: &str) -> Result<()> {
    // The name must exist before it is confirmed.
    let value = context
        .send_request(&ApiRequest::with_path_params(operations::GET_PROJECT, [project]))
        .await?;
    context.file.kept.project = Some(project.to_owned());
    context.file.write_config()?;
    context.out.print_success(&value, &format!("{project} is meant from now on"))
}
