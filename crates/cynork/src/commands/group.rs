//! `cynork group`: groups of users with a common role.

use clap::{Args, Subcommand};
use cynode_wire::identity::accounts::GroupView;
use serde_json::json;

use crate::{
    answers::PageArgs, client::ApiRequest, commands::ROLES_OR_NONE, context::CliContext,
    failure::Result, input, names, operations,
};

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups.
    #[command(after_help = "Example: cynork group list")]
    List(PageArgs),
    /// Create a group.
    #[command(after_help = "Example: cynork group create reviewers")]
    Create {
        /// Name of the group.
        name: String,
    },
    /// Update the members of a group and their role in the installation.
    #[command(
        after_help = "Example: cynork group update reviewers --add ada --add bob --role viewer"
    )]
    Update(GroupUpdateArgs),
}

#[derive(Args)]
pub(crate) struct GroupUpdateArgs {
    /// Group, by name or id.
    group: String,
    /// User to add, by handle; may be repeated.
    #[arg(long, value_name = "USER")]
    add: Vec<String>,
    /// User to remove, by handle; may be repeated.
    #[arg(long, value_name = "USER")]
    remove: Vec<String>,
    /// Role of the members in the installation.
    #[arg(long, value_parser = ROLES_OR_NONE)]
    role: Option<String>,
    /// Whether its members may create projects without being operators of the installation.
    #[arg(long, value_name = "BOOL")]
    can_create_projects: Option<bool>,
}

impl GroupCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List(pages) => list_groups(context, &pages).await,
            Self::Create { name } => {
                let call = ApiRequest::for_operation(operations::CREATE_GROUP)
                    .with_json_body(&json!({ "name": name }));
                context
                    .show_outcome(
                        &call,
                        |group: &GroupView| group.name.to_string(),
                        |group, _| {
                            format!("the group {} is made; it has no members yet", group.name)
                        },
                    )
                    .await
            }
            Self::Update(update) => update.run(context).await,
        }
    }
}

async fn list_groups(context: &CliContext, pages: &PageArgs) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_GROUPS),
            Some(pages),
            |group: &GroupView| group.name.to_string(),
            ["name", "role", "members", "made", "id"],
            |group, look| {
                [
                    look.style_bold(group.name.as_str()),
                    group.role.map(|role| role.as_str()).unwrap_or_default().to_owned(),
                    group.members.len().to_string(),
                    look.format_relative_time(group.created_at),
                    look.style_dim(&group.id.to_string()),
                ]
            },
        )
        .await
}

impl GroupUpdateArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let group = names::GROUP.resolve_id(context, &self.group).await?;
        let mut ids = [Vec::new(), Vec::new()];
        for (ids, named) in ids.iter_mut().zip([&self.add, &self.remove]) {
            for user in named {
                ids.push(context.user_id(user).await?);
            }
        }
        let [add, remove] = ids.map(|ids| (!ids.is_empty()).then_some(ids));
        let body =
            input::require_changes(json!({ "add": add, "remove": remove, "role": self.role,
            "can_create_projects": self.can_create_projects }))?;
        let call =
            ApiRequest::with_path_params(operations::UPDATE_GROUP, [group]).with_json_body(&body);
        context
            .show_outcome(
                &call,
                |group: &GroupView| group.name.to_string(),
                |group, _| {
                    let role = group.role.map_or("no role", |role| role.as_str());
                    format!("{} has {role}; members: {}", group.name, group.members.len())
                },
            )
            .await
    }
}
