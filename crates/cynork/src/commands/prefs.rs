//! `cynork prefs`: what people prefer; the more specific scope holds.

use clap::{Args, Subcommand};
use cynode_wire::preferences::EffectiveView;
use serde_json::Value;

use crate::{
    client::Call,
    commands::values::{self, NewValue, OldValue},
    context::Context,
    failure::Result,
    look::all_visible,
    names, operations,
    output::table,
};

#[derive(Subcommand)]
pub(crate) enum Prefs {
    /// Lists the preferences of one scope.
    #[command(after_help = "Example: cynork prefs list --project web")]
    List(Scope),
    /// Shows a preference of one scope.
    #[command(after_help = "Example: cynork prefs get chat.default_project --quiet")]
    Get {
        /// What it is about.
        key: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Writes a preference, if nobody wrote it in between.
    #[command(
        after_help = "Example: cynork prefs set agents.project_manager.additional_context \"Answer in Dutch.\" --project web"
    )]
    Set {
        #[command(flatten)]
        set: NewValue,
        #[command(flatten)]
        scope: Scope,
    },
    /// Deletes a preference, if nobody wrote it in between.
    #[command(after_help = "Example: cynork prefs delete chat.default_project")]
    Delete {
        #[command(flatten)]
        delete: OldValue,
        #[command(flatten)]
        scope: Scope,
    },
    /// Lists the writes of a preference, newest first.
    #[command(after_help = "Example: cynork prefs history chat.default_project")]
    History {
        /// What it is about.
        key: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Says what holds and who said it: task before project before user before group before system.
    #[command(
        after_help = "Example: cynork prefs effective --project web --agent-role project_manager"
    )]
    Effective(Effective),
}

/// Whose preferences: your own when nothing is said.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct Scope {
    /// Of the whole installation.
    #[arg(long)]
    system: bool,
    /// Of a group, by name or id.
    #[arg(long)]
    group: Option<String>,
    /// Of a user, by handle or id; `me` is you.
    #[arg(long)]
    user: Option<String>,
    /// Of a project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Of a task, by its id.
    #[arg(long)]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct Effective {
    /// In this project, for you; by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// For this task, whose project and author count; by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Only what may reach this agent.
    #[arg(long, value_parser = ["project_manager", "project_analyst"])]
    agent_role: Option<String>,
}

impl Scope {
    async fn of(&self, context: &Context, call: Call) -> Result<Call> {
        let (kind, id) = match (&self.group, &self.user, &self.project, &self.task) {
            _ if self.system => ("system", None),
            (Some(group), ..) => ("group", Some(names::GROUP.id(context, group).await?)),
            (_, _, Some(project), _) => ("project", Some(context.project_id(project).await?)),
            (.., Some(task)) => ("task", Some(context.task_id(task, None).await?)),
            (_, user, ..) => ("user", Some(context.user(user.as_deref().unwrap_or("me")).await?)),
        };
        Ok(call.query("scope_type", Some(kind)).query("scope_id", id))
    }
}

impl Prefs {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(scope) => {
                let call = scope.of(context, Call::of(operations::LIST_PREFERENCES)).await?;
                values::list(context, &call).await
            }
            Self::Get { key, scope } => {
                let call = scope.of(context, Call::to(operations::GET_PREFERENCE, [key])).await?;
                values::get(context, &call).await
            }
            Self::Set { set, scope } => {
                let get =
                    scope.of(context, Call::to(operations::GET_PREFERENCE, [&set.key])).await?;
                let put =
                    scope.of(context, Call::to(operations::SET_PREFERENCE, [&set.key])).await?;
                values::set(context, &get, put, &set).await
            }
            Self::Delete { delete, scope } => {
                let get =
                    scope.of(context, Call::to(operations::GET_PREFERENCE, [&delete.key])).await?;
                let call = scope
                    .of(context, Call::to(operations::DELETE_PREFERENCE, [&delete.key]))
                    .await?;
                values::delete(context, &get, call, &delete).await
            }
            Self::History { key, scope } => {
                let call =
                    scope.of(context, Call::to(operations::PREFERENCE_HISTORY, [key])).await?;
                values::history(context, &call).await
            }
            Self::Effective(effective) => effective.run(context).await,
        }
    }
}

impl Effective {
    async fn run(self, context: &Context) -> Result<()> {
        let project = self.project.as_deref();
        let task = context.task_id_if(self.task.as_deref(), project).await?;
        // A task is in its project.
        let project = if task.is_some() { None } else { context.project_id_if(project).await? };
        let call = Call::of(operations::EFFECTIVE_PREFERENCES)
            .query("task_id", task)
            .query("project_id", project)
            .query("agent_role", self.agent_role);
        let value: Value = context.ask(&call).await?;
        let seen = all_visible(value.clone());
        context.show(
            &value,
            |it: &EffectiveView| it.effective.keys().cloned().collect(),
            |it, look| {
                let rows = values::held(&seen["effective"], &seen["sources"], look);
                let mut text = table(look.paint, ["key", "value", "said by"], rows);
                for entry in &it.invalid {
                    let passed = format!(
                        "\npassed over, it does not fit: {} of {:?}",
                        entry.key, entry.source.scope_type
                    );
                    text.push_str(&passed);
                }
                text
            },
        )
    }
}
