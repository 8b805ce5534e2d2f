//! `cynork project`: who may do what where, and which repository.

use clap::{Args, Subcommand};
use cynode_wire::{
    nodes::RepositoryView,
    projects::{MemberView, ProjectView},
};
use serde_json::json;

use crate::{
    answers::Pages,
    client::Call,
    commands::{ROLES, ROLES_OR_NONE},
    context::Context,
    failure::Result,
    given,
    look::Look,
    names::{self, In},
    operations,
};

mod import;
mod pull;

#[derive(Subcommand)]
pub(crate) enum Project {
    /// Lists the projects you may see.
    #[command(after_help = "Example: cynork project list")]
    List(Pages),
    /// Makes a project; you become its first admin.
    #[command(after_help = "Example: cynork project create web --title \"The web site\"")]
    Create(Create),
    /// Shows a project.
    #[command(after_help = "Example: cynork project show web")]
    Show {
        /// By name or id; else that of the repository one is in, else the one chosen with `cynork project use`.
        project: Option<String>,
    },
    /// Changes what a project is called and what it is about.
    #[command(after_help = "Example: cynork project change web --title \"The new web site\"")]
    Change(Change),
    /// Lists the members of a project.
    #[command(after_help = "Example: cynork project members --project web")]
    Members {
        #[command(flatten)]
        place: In,
        #[command(flatten)]
        pages: Pages,
    },
    /// Gives a user a role in a project.
    #[command(after_help = "Example: cynork project grant bob operator --project web")]
    Grant {
        /// By handle or id.
        user: String,
        /// What the user may do there.
        #[arg(value_parser = ROLES)]
        role: String,
        #[command(flatten)]
        place: In,
    },
    /// Takes a user out of a project.
    #[command(after_help = "Example: cynork project revoke bob --project web")]
    Revoke {
        /// By handle or id.
        user: String,
        #[command(flatten)]
        place: In,
    },
    /// Gives a group a role in a project; `none` takes it away.
    #[command(after_help = "Example: cynork project grant-group reviewers viewer --project web")]
    GrantGroup {
        /// By name or id.
        group: String,
        /// What its members may do there.
        #[arg(value_parser = ROLES_OR_NONE)]
        role: String,
        #[command(flatten)]
        place: In,
    },
    /// Shows the repository that work in a project starts from.
    #[command(after_help = "Example: cynork project repository --project web")]
    Repository(In),
    /// Brings a repository of this machine into a project, or newer commits of it.
    #[command(after_help = "Example: cynork project import . --project web")]
    Import(import::Import),
    /// Brings the branch that a working copy is on up to what the project has, with git.
    #[command(after_help = "Example: cynork project pull --project web")]
    Pull(pull::Pull),
    /// Makes a working copy of a project's repository, with git.
    #[command(after_help = "Example: cynork project clone web")]
    Clone(pull::Clone),
    /// Chooses the project that is meant when none is named and the repository one is in has none.
    #[command(after_help = "Example: cynork project use web")]
    Use {
        /// By name or id.
        project: String,
    },
}

#[derive(Args)]
pub(crate) struct Create {
    /// Its name in addresses and on the command line: `[a-z0-9-]`.
    name: String,
    /// Its name for people; the short one when it is left out.
    #[arg(long)]
    title: Option<String>,
    /// What it is about.
    #[arg(long)]
    description: Option<String>,
    /// Means this project from now on when none is named and the repository one is in has none.
    #[arg(long = "use")]
    chosen: bool,
}

#[derive(Args)]
pub(crate) struct Change {
    /// By name or id; else that of the repository one is in, else the one chosen with `cynork project use`.
    project: Option<String>,
    /// Its name for people.
    #[arg(long)]
    title: Option<String>,
    /// What it is about.
    #[arg(long)]
    description: Option<String>,
}

impl Project {
    pub(crate) async fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::List(pages) => list(context, &pages).await,
            Self::Create(create) => create.run(context).await,
            Self::Show { project } => {
                let call = Call::to(operations::GET_PROJECT, [context.project(project)?]);
                context.one(&call, slug, sides).await
            }
            Self::Change(change) => change.run(context).await,
            Self::Members { place, pages } => members(context, place, &pages).await,
            Self::Grant { user, role, place } => grant(context, &user, &role, place).await,
            Self::Revoke { user, place } => revoke(context, &user, place).await,
            Self::GrantGroup { group, role, place } => {
                let project = context.project(place.project)?;
                let id = names::GROUP.id(context, &group).await?;
                let call = Call::to(operations::SET_GROUP_ROLE, [&project, &id]);
                let sentence = format!("{group} in {project}: {role}");
                context.done(&call.body(&json!({ "role": role })), &sentence).await
            }
            Self::Repository(place) => {
                let call = Call::to(operations::GET_REPOSITORY, [context.project(place.project)?]);
                context.one(&call, head, repository).await
            }
            Self::Import(import) => import.run(context).await,
            Self::Pull(pull) => pull.run(context).await,
            Self::Clone(clone) => clone.run(context).await,
            Self::Use { project } => choose(context, &project).await,
        }
    }
}

fn slug(project: &ProjectView) -> String {
    project.slug.to_string()
}

fn sides(project: &ProjectView, look: &Look) -> Vec<(&'static str, String)> {
    vec![
        ("name", look.bold(project.slug.as_str())),
        ("title", project.title.to_string()),
        ("about", project.description.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("made", look.when(project.created_at)),
        ("id", project.id.to_string()),
    ]
}

fn head(repository: &RepositoryView) -> String {
    repository.head.clone()
}

/// The sides of a repository.
fn repository(repository: &RepositoryView, look: &Look) -> Vec<(&'static str, String)> {
    vec![
        ("branch", look.bold(&repository.default_branch)),
        ("commit", repository.head.clone()),
        ("brought", look.when(repository.imported_at)),
    ]
}

async fn list(context: &Context, pages: &Pages) -> Result<()> {
    let chosen = context.file.kept.project.clone();
    context
        .list(
            &Call::of(operations::LIST_PROJECTS),
            Some(pages),
            slug,
            ["name", "title", "made", "id"],
            |project: &ProjectView, look| {
                let meant = chosen.as_deref() == Some(project.slug.as_str());
                let mark = if meant { " (chosen)" } else { "" };
                [
                    format!("{}{mark}", look.bold(project.slug.as_str())),
                    project.title.to_string(),
                    look.when(project.created_at),
                    look.dim(&project.id.to_string()),
                ]
            },
        )
        .await
}

impl Create {
    async fn run(self, context: &mut Context) -> Result<()> {
        let title = self.title.unwrap_or_else(|| self.name.clone());
        let body = given::said(
            json!({ "slug": self.name, "title": title, "description": self.description }),
        );
        let call = Call::of(operations::CREATE_PROJECT).body(&body);
        context
            .told(&call, slug, |project, _| {
                format!("the project {} is made; you are its admin", project.slug)
            })
            .await?;
        if self.chosen {
            context.file.kept.project = Some(self.name);
            context.file.write()?;
        }
        Ok(())
    }
}

impl Change {
    async fn run(self, context: &Context) -> Result<()> {
        let body = given::changes(json!({ "title": self.title, "description": self.description }))?;
        let call = Call::to(operations::UPDATE_PROJECT, [context.project(self.project)?]);
        context
            .told(&call.body(&body), slug, |it, _| format!("{} is now “{}”", it.slug, it.title))
            .await
    }
}

async fn members(context: &Context, place: In, pages: &Pages) -> Result<()> {
    context
        .list(
            &Call::to(operations::LIST_MEMBERS, [context.project(place.project)?]),
            Some(pages),
            |member: &MemberView| member.handle.to_string(),
            ["handle", "role", "since", "id"],
            |member, look| {
                [
                    look.bold(member.handle.as_str()),
                    member.role.as_str().to_owned(),
                    look.when(member.added_at),
                    look.dim(&member.user_id.to_string()),
                ]
            },
        )
        .await
}

async fn grant(context: &Context, user: &str, role: &str, place: In) -> Result<()> {
    let project = context.project(place.project)?;
    let id = context.user(user).await?;
    let call = Call::to(operations::SET_MEMBER, [&project, &id]).body(&json!({ "role": role }));
    context.done(&call, &format!("{user} is {role} in {project}")).await
}

async fn revoke(context: &Context, user: &str, place: In) -> Result<()> {
    let project = context.project(place.project)?;
    let id = context.user(user).await?;
    context.sure(&format!("Take {user} out of {project}?"))?;
    let call = Call::to(operations::REMOVE_MEMBER, [&project, &id]);
    context.done(&call, &format!("{user} is no member of {project} any more")).await
}

async fn choose(context: &mut Context, project: &str) -> Result<()> {
    // Only what is there can be meant.
    let value = context.ask(&Call::to(operations::GET_PROJECT, [project])).await?;
    context.file.kept.project = Some(project.to_owned());
    context.file.write()?;
    context.out.done(&value, &format!("{project} is meant from now on"))
}
