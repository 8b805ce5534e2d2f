//! `cynork group`: people who have a role together.

use clap::{Args, Subcommand};
use cynode_wire::accounts::GroupView;
use serde_json::json;

use crate::{
    answers::Pages, client::Call, commands::ROLES_OR_NONE, context::Context, failure::Result,
    given, names, operations,
};

#[derive(Subcommand)]
pub(crate) enum Group {
    /// Lists the groups.
    #[command(after_help = "Example: cynork group list")]
    List(Pages),
    /// Makes a group.
    #[command(after_help = "Example: cynork group create reviewers")]
    Create {
        /// Its name.
        name: String,
    },
    /// Changes who is in a group and what its members may do in the whole installation.
    #[command(
        after_help = "Example: cynork group change reviewers --add ada --add bob --role viewer"
    )]
    Change(Change),
}

#[derive(Args)]
pub(crate) struct Change {
    /// The group, by name or id.
    group: String,
    /// A user to add, by handle; may be repeated.
    #[arg(long, value_name = "USER")]
    add: Vec<String>,
    /// A user to take out, by handle; may be repeated.
    #[arg(long, value_name = "USER")]
    remove: Vec<String>,
    /// What its members may do in the whole installation.
    #[arg(long, value_parser = ROLES_OR_NONE)]
    role: Option<String>,
}

impl Group {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List(pages) => list(context, &pages).await,
            Self::Create { name } => {
                let call = Call::of(operations::CREATE_GROUP).body(&json!({ "name": name }));
                context
                    .told(
                        &call,
                        |group: &GroupView| group.name.to_string(),
                        |group, _| {
                            format!("the group {} is made; it has no members yet", group.name)
                        },
                    )
                    .await
            }
            Self::Change(change) => change.run(context).await,
        }
    }
}

async fn list(context: &Context, pages: &Pages) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_GROUPS),
            Some(pages),
            |group: &GroupView| group.name.to_string(),
            ["name", "role", "members", "made", "id"],
            |group, look| {
                [
                    look.bold(group.name.as_str()),
                    group.role.map(|role| role.as_str()).unwrap_or_default().to_owned(),
                    group.members.len().to_string(),
                    look.when(group.created_at),
                    look.dim(&group.id.to_string()),
                ]
            },
        )
        .await
}

impl Change {
    async fn run(self, context: &Context) -> Result<()> {
        let group = names::GROUP.id(context, &self.group).await?;
        let mut ids = [Vec::new(), Vec::new()];
        for (ids, named) in ids.iter_mut().zip([&self.add, &self.remove]) {
            for user in named {
                ids.push(context.user(user).await?);
            }
        }
        let [add, remove] = ids.map(|ids| (!ids.is_empty()).then_some(ids));
        let body = given::changes(json!({ "add": add, "remove": remove, "role": self.role }))?;
        let call = Call::to(operations::UPDATE_GROUP, [group]).body(&body);
        context
            .told(
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
