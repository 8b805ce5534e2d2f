//! `cynork approval`: calls of agents that wait for a person.

use clap::Subcommand;
use cynode_wire::gate::ApprovalView;
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::Result,
    look::{Look, pretty},
    operations,
    output::Form,
};

#[derive(Subcommand)]
pub(crate) enum Approval {
    /// Lists the calls that wait for your answer.
    #[command(after_help = "Example: cynork approval list")]
    List,
    /// Shows a call that waits or waited, with its arguments.
    #[command(after_help = "Example: cynork approval show apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Its id.
        approval: String,
    },
    /// Lets a call be made, once: shows it and asks.
    #[command(after_help = "Example: cynork approval approve apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Approve {
        /// Its id.
        approval: String,
    },
    /// Refuses a call.
    #[command(after_help = "Example: cynork approval deny apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Deny {
        /// Its id.
        approval: String,
    },
}

fn id(approval: &ApprovalView) -> String {
    approval.approval_id.to_string()
}

fn sides(it: &ApprovalView, look: &Look) -> Vec<(&'static str, String)> {
    vec![
        ("tool", look.bold(&it.tool)),
        ("state", look.state(&it.state)),
        ("arguments", it.arguments.as_ref().map(pretty).unwrap_or_default()),
        ("wanted by", it.rules.join(", ")),
        ("asked", look.when(it.asked_at)),
        ("too late", look.when(it.expires_at)),
        ("agent", it.agent_token_id.to_string()),
        ("task", it.task_id.map(|id| id.to_string()).unwrap_or_default()),
        ("project", it.project_id.map(|id| id.to_string()).unwrap_or_default()),
        ("id", it.approval_id.to_string()),
    ]
}

impl Approval {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => {
                let heads = ["id", "tool", "asked", "too late", "wanted by", "task"];
                context
                    .list(
                        &Call::of(operations::LIST_APPROVALS),
                        None,
                        id,
                        heads,
                        |it: &ApprovalView, look| {
                            [
                                id(it),
                                look.bold(&it.tool),
                                look.when(it.asked_at),
                                look.when(it.expires_at),
                                it.rules.join(", "),
                                it.task_id.map(|id| id.to_string()).unwrap_or_default(),
                            ]
                        },
                    )
                    .await
            }
            Self::Show { approval } => {
                context.one(&Call::to(operations::GET_APPROVAL, [&approval]), id, sides).await
            }
            Self::Approve { approval } => {
                // Nobody says yes to what they were not shown.
                if context.out.form == Form::Readable {
                    context
                        .one(&Call::to(operations::GET_APPROVAL, [&approval]), id, sides)
                        .await?;
                }
                context.sure("Let this call be made, once?")?;
                decide(context, &approval, true).await
            }
            Self::Deny { approval } => decide(context, &approval, false).await,
        }
    }
}

async fn decide(context: &Context, approval: &str, approved: bool) -> Result<()> {
    let call =
        Call::to(operations::DECIDE_APPROVAL, [approval]).body(&json!({ "approved": approved }));
    let sentence =
        |it: &ApprovalView, look: &Look| format!("{} is {}", it.tool, look.state(&it.state));
    context.told(&call, id, sentence).await
}
