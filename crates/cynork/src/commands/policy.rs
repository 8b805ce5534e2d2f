//! `cynork policy`: mandatory policies, which nobody below can relax.

use clap::{Args, Subcommand};
use cynode_wire::tasks::policies::{EffectivePolicyView, PolicyList, PolicyView};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::{ValueFormatter, to_plain_text},
    input, names, operations,
};

#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the policies of a scope.
    #[command(after_help = "Example: cynork policy list --project web")]
    List(PolicyScopeArgs),
    /// Set a policy; a demand takes `true`, an allowlist takes a JSON list of names.
    #[command(
        after_help = "Example: cynork policy set placement.allowed_labels '[\"eu\"]' --project web"
    )]
    Set {
        /// Key, such as `workflow.approve_plan`.
        key: String,
        /// Value as JSON; `@FILE` reads a file, `@-` reads standard input.
        value: String,
        #[command(flatten)]
        scope: PolicyScopeArgs,
    },
    /// Delete a policy.
    #[command(after_help = "Example: cynork policy delete approvals.four_eyes --project web")]
    Delete {
        /// Key.
        key: String,
        #[command(flatten)]
        scope: PolicyScopeArgs,
    },
    /// Show the policies that hold, where each comes from and who set it.
    #[command(after_help = "Example: cynork policy explain --project web")]
    Explain(ExplainPolicyArgs),
}

/// Scope of a policy; defaults to the whole installation.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct PolicyScopeArgs {
    /// Scope: a group, by name or id.
    #[arg(long)]
    group: Option<String>,
    /// Scope: a project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
}

#[derive(Args)]
pub(crate) struct ExplainPolicyArgs {
    /// Project in which you would work, by name or id.
    #[arg(long, short)]
    project: Option<String>,
    /// Task whose project and author apply, by id, or by name with --project.
    #[arg(long)]
    task: Option<String>,
}

impl PolicyScopeArgs {
    async fn apply_to_call(&self, context: &CliContext, call: ApiRequest) -> Result<ApiRequest> {
        let (kind, id) = match (&self.group, &self.project) {
            (Some(group), _) => ("group", Some(names::GROUP.resolve_id(context, group).await?)),
            (None, Some(project)) => ("project", Some(context.project_id(project).await?)),
            (None, None) => ("system", None),
        };
        Ok(call.with_query("scope_type", Some(kind)).with_query("scope_id", id))
    }
}

impl PolicyCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(scope) => {
                let call = ApiRequest::for_operation(operations::LIST_POLICIES);
                let call = scope.apply_to_call(context, call).await?;
                context
                    .show_list(
                        &call,
                        None,
                        |it: &PolicyView| it.key.clone(),
                        ["key", "value", "set", "by"],
                        |it, look| {
                            [
                                look.style_bold(&it.key),
                                to_plain_text(&it.value),
                                look.format_relative_time(it.set_at),
                                it.set_by_handle.clone(),
                            ]
                        },
                    )
                    .await
            }
            Self::Set { key, value, scope } => {
                let value = input::parse_json_or_text(&input::read_text_argument(&value)?);
                let call = ApiRequest::with_path_params(operations::SET_POLICY, [&key]);
                let call = scope.apply_to_call(context, call).await?;
                let call = call.with_json_body(&json!({ "value": value }));
                let sentence = |_: &PolicyList, _: &ValueFormatter| {
                    format!("{key} holds from now on: {}", to_plain_text(&value))
                };
                context.show_outcome(&call, |_| key.clone(), sentence).await
            }
            Self::Delete { key, scope } => {
                context.confirm_action(&format!("Delete the policy {key}?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_POLICY, [&key]);
                let call = scope.apply_to_call(context, call).await?;
                context.send_and_confirm(&call, &format!("{key} is deleted")).await
            }
            Self::Explain(explain) => explain.run(context).await,
        }
    }
}

impl ExplainPolicyArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let project = self.project.as_deref();
        let task = context.optional_task_id(self.task.as_deref(), project).await?;
        // The project of a task follows from the task.
        let project =
            if task.is_some() { None } else { context.optional_project_id(project).await? };
        let call = ApiRequest::for_operation(operations::EFFECTIVE_POLICIES)
            .with_query("task_id", task)
            .with_query("project_id", project);
        context
            .show_list(
                &call,
                None,
                |it: &EffectivePolicyView| it.key.clone(),
                ["key", "value", "effect", "set by"],
                |it, look| {
                    [
                        look.style_bold(&it.key),
                        to_plain_text(&it.value),
                        it.effect.clone(),
                        it.sources.iter().map(describe_source).collect::<Vec<_>>().join("; "),
                    ]
                },
            )
            .await
    }
}

/// Says who set a policy for whom.
fn describe_source(source: &PolicyView) -> String {
    let scope = source.scope_type.as_str();
    match &source.scope_id {
        Some(id) => format!("{} for {scope} {id}", source.set_by_handle),
        None => format!("{} for {scope}", source.set_by_handle),
    }
}
