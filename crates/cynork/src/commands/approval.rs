//! `cynork approval`: tool calls of agents that wait for a person.

use clap::Subcommand;
use cynode_wire::tools::{ApprovalView, rules::RuleDraftView};
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::{ValueFormatter, to_pretty_json},
    operations,
    output::CliOutputFormat,
};

#[derive(Subcommand)]
pub(crate) enum ApprovalCommand {
    /// List tool calls that wait for your approval.
    #[command(after_help = "Example: cynork approval list")]
    List {
        /// List the calls that were approved or denied instead.
        #[arg(long)]
        decided: bool,
    },
    /// Show a tool call and its arguments.
    #[command(after_help = "Example: cynork approval show apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Approval id.
        approval: String,
    },
    /// Approve one tool call, after showing it and asking.
    #[command(after_help = "Example: cynork approval approve apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Approve {
        /// Approval id.
        approval: String,
    },
    /// Deny a tool call.
    #[command(after_help = "Example: cynork approval deny apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Deny {
        /// Approval id.
        approval: String,
    },
    /// Draft a rule in shadow mode that decides such calls alike; nothing is stored. Ask before you decide: then the arguments are known.
    #[command(
        after_help = "Example: cynork approval draft-rule apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708 deny"
    )]
    DraftRule {
        /// Approval id.
        approval: String,
        /// Decision that such calls are to get.
        #[arg(value_parser = ["approve", "deny"])]
        decision: String,
    },
}

fn approval_id(approval: &ApprovalView) -> String {
    approval.approval_id.to_string()
}

fn approval_fields(it: &ApprovalView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    vec![
        ("tool", look.style_bold(&it.tool)),
        ("state", look.style_state(&it.state)),
        ("arguments", it.arguments.as_ref().map(to_pretty_json).unwrap_or_default()),
        ("wanted by", it.rules.join(", ")),
        ("asked", look.format_relative_time(it.asked_at)),
        ("too late", look.format_relative_time(it.expires_at)),
        ("decided", look.format_optional_time(it.decided_at)),
        ("decided by", it.decided_by.map(|id| id.to_string()).unwrap_or_default()),
        ("agent", it.agent_token_id.to_string()),
        ("task", it.task_id.map(|id| id.to_string()).unwrap_or_default()),
        ("project", it.project_id.map(|id| id.to_string()).unwrap_or_default()),
        ("id", it.approval_id.to_string()),
    ]
}

impl ApprovalCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { decided } => {
                let heads = ["id", "tool", "asked", "too late", "wanted by", "task"];
                context
                    .show_list(
                        &ApiRequest::for_operation(operations::LIST_APPROVALS)
                            .with_query("decided", decided.then_some("true")),
                        None,
                        approval_id,
                        heads,
                        |it: &ApprovalView, look| {
                            [
                                approval_id(it),
                                look.style_bold(&it.tool),
                                look.format_relative_time(it.asked_at),
                                look.format_relative_time(it.expires_at),
                                it.rules.join(", "),
                                it.task_id.map(|id| id.to_string()).unwrap_or_default(),
                            ]
                        },
                    )
                    .await
            }
            Self::Show { approval } => {
                context
                    .show_item(
                        &ApiRequest::with_path_params(operations::GET_APPROVAL, [&approval]),
                        approval_id,
                        approval_fields,
                    )
                    .await
            }
            Self::Approve { approval } => {
                // A person must see the call before approving it.
                if context.out.form == CliOutputFormat::Readable {
                    context
                        .show_item(
                            &ApiRequest::with_path_params(operations::GET_APPROVAL, [&approval]),
                            approval_id,
                            approval_fields,
                        )
                        .await?;
                }
                context.confirm_action("Let this call be made, once?")?;
                decide_approval(context, &approval, true).await
            }
            Self::Deny { approval } => decide_approval(context, &approval, false).await,
            Self::DraftRule { approval, decision } => {
                let call = ApiRequest::with_path_params(operations::DRAFT_RULE, [&approval])
                    .with_json_body(&json!({ "approved": decision == "approve" }));
                context.show_item(&call, |it: &RuleDraftView| it.name.clone(), draft_fields).await
            }
        }
    }
}

fn draft_fields(it: &RuleDraftView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    vec![
        ("name", look.style_bold(&it.name)),
        ("mode", it.rule.mode.clone()),
        ("rule", it.rule.text.clone()),
        ("narrows", it.replaces.clone().unwrap_or_default()),
        ("arguments", look.format_yes_no(it.arguments_included)),
        ("left out", it.omitted_arguments.join(", ")),
        ("notes", it.notes.join("\n")),
    ]
}

async fn decide_approval(context: &CliContext, approval: &str, approved: bool) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::DECIDE_APPROVAL, [approval])
        .with_json_body(&json!({ "approved": approved }));
    let sentence = |it: &ApprovalView, look: &ValueFormatter| {
        format!("{} is {}", it.tool, look.style_state(&it.state))
    };
    context.show_outcome(&call, approval_id, sentence).await
}
