//! `cynork prefs`: preferences; the more specific scope takes precedence.

use clap::{Args, Subcommand};
use cynode_wire::tasks::preferences::EffectiveView;
use serde_json::Value;

use crate::{
    client::ApiRequest,
    commands::values::{self, NewValue, OldValue},
    context::CliContext,
    failure::Result,
    format::escape_invisible_in_json,
    names, operations,
    output::render_table,
};

#[derive(Subcommand)]
pub(crate) enum PreferencesCommand {
    /// List the preferences of a scope.
    #[command(after_help = "Example: cynork prefs list --project web")]
    List(PreferenceScopeArgs),
    /// Show a preference of a scope.
    #[command(after_help = "Example: cynork prefs get chat.default_project --quiet")]
    Get {
        /// Key of the preference.
        key: String,
        #[command(flatten)]
        scope: PreferenceScopeArgs,
    },
    /// Set a preference; fails on a version conflict.
    #[command(
        after_help = "Example: cynork prefs set agents.project_manager.additional_context \"Answer in Dutch.\" --project web"
    )]
    Set {
        #[command(flatten)]
        set: NewValue,
        #[command(flatten)]
        scope: PreferenceScopeArgs,
    },
    /// Delete a preference; fails on a version conflict.
    #[command(after_help = "Example: cynork prefs delete chat.default_project")]
    Delete {
        #[command(flatten)]
        delete: OldValue,
        #[command(flatten)]
        scope: PreferenceScopeArgs,
    },
    /// List the versions of a preference, newest first.
    #[command(after_help = "Example: cynork prefs history chat.default_project")]
    History {
        /// Key of the preference.
        key: String,
        #[command(flatten)]
        scope: PreferenceScopeArgs,
    },
    /// Show the effective preferences and their sources; a task overrides its project, then user, group and system.
    #[command(
        after_help = "Example: cynork prefs effective --project web --agent-role project_manager"
    )]
    Effective(EffectivePreferencesArgs),
}

/// Scope of a preference; defaults to your own.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct PreferenceScopeArgs {
    /// Scope: the whole installation.
    #[arg(long)]
    system: bool,
    /// Scope: a group, by name or id.
    #[arg(long)]
    group: Option<String>,
    /// Scope: a user, by handle or id; `me` is you.
    #[arg(long)]
    user: Option<String>,
    /// Scope: a project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Scope: a task, by id.
    #[arg(long)]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct EffectivePreferencesArgs {
    /// Project in which you would work, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Task whose project and author apply, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
    /// Filter by what this agent role may read.
    #[arg(long, value_parser = ["project_manager", "project_analyst"])]
    agent_role: Option<String>,
}

impl PreferenceScopeArgs {
    async fn apply_to_call(&self, context: &CliContext, call: ApiRequest) -> Result<ApiRequest> {
        let (kind, id) = match (&self.group, &self.user, &self.project, &self.task) {
            _ if self.system => ("system", None),
            (Some(group), ..) => ("group", Some(names::GROUP.resolve_id(context, group).await?)),
            (_, _, Some(project), _) => ("project", Some(context.project_id(project).await?)),
            (.., Some(task)) => ("task", Some(context.task_id(task, None).await?)),
            (_, user, ..) => {
                ("user", Some(context.user_id(user.as_deref().unwrap_or("me")).await?))
            }
        };
        Ok(call.with_query("scope_type", Some(kind)).with_query("scope_id", id))
    }
}

impl PreferencesCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(scope) => {
                let call = scope
                    .apply_to_call(context, ApiRequest::for_operation(operations::LIST_PREFERENCES))
                    .await?;
                values::list_values(context, &call).await
            }
            Self::Get { key, scope } => {
                let call = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::GET_PREFERENCE, [key]),
                    )
                    .await?;
                values::show_value(context, &call).await
            }
            Self::Set { set, scope } => {
                let get = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::GET_PREFERENCE, [&set.key]),
                    )
                    .await?;
                let put = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::SET_PREFERENCE, [&set.key]),
                    )
                    .await?;
                values::write_value(context, &get, put, &set).await
            }
            Self::Delete { delete, scope } => {
                let get = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::GET_PREFERENCE, [&delete.key]),
                    )
                    .await?;
                let call = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::DELETE_PREFERENCE, [&delete.key]),
                    )
                    .await?;
                values::delete_value(context, &get, call, &delete).await
            }
            Self::History { key, scope } => {
                let call = scope
                    .apply_to_call(
                        context,
                        ApiRequest::with_path_params(operations::PREFERENCE_HISTORY, [key]),
                    )
                    .await?;
                values::list_history(context, &call).await
            }
            Self::Effective(effective) => effective.run(context).await,
        }
    }
}

impl EffectivePreferencesArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = self.project.as_deref();
        let task = context.optional_task_id(self.task.as_deref(), project).await?;
        // The project of a task follows from the task.
        let project =
            if task.is_some() { None } else { context.optional_project_id(project).await? };
        let call = ApiRequest::for_operation(operations::EFFECTIVE_PREFERENCES)
            .with_query("task_id", task)
            .with_query("project_id", project)
            .with_query("agent_role", self.agent_role);
        let value: Value = context.send_request(&call).await?;
        let seen = escape_invisible_in_json(value.clone());
        context.show_answer(
            &value,
            |it: &EffectiveView| it.effective.keys().cloned().collect(),
            |it, look| {
                let rows = values::effective_rows(&seen["effective"], &seen["sources"], look);
                let mut text = render_table(look.paint, ["key", "value", "said by"], rows);
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
