//! `cynork node`: the machines that run jobs.

use clap::{Args, Subcommand};
use cynode_wire::nodes::{IssuedJoinToken, NodeView};
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::{ValueFormatter, group_digits},
    input, names, operations,
    output::render_record,
    terminal::TextStyle,
};

#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    /// List nodes, by name.
    #[command(after_help = "Example: cynork node list")]
    List,
    /// Show a node and its capabilities.
    #[command(after_help = "Example: cynork node show build-1")]
    Show(NodeSelector),
    /// Issue a one-time token with which a machine joins as a node; printed once.
    #[command(after_help = "Example: cynork node join-token --label gpu --expires-in 600")]
    JoinToken(JoinTokenArgs),
    /// Drain a node: its running jobs finish and it gets no new ones.
    #[command(after_help = "Example: cynork node drain build-1")]
    Drain(NodeSelector),
    /// Let a drained node take jobs again.
    #[command(after_help = "Example: cynork node undrain build-1")]
    Undrain(NodeSelector),
    /// Replace the labels of a node.
    #[command(after_help = "Example: cynork node label build-1 gpu large")]
    Label {
        #[command(flatten)]
        which: NodeSelector,
        /// New labels; none removes all labels.
        labels: Vec<String>,
    },
    /// Delete a node and revoke its token.
    #[command(after_help = "Example: cynork node delete build-1")]
    Delete(NodeSelector),
}

/// One node.
#[derive(Args)]
pub(crate) struct NodeSelector {
    /// Node, by name or id.
    node: String,
}

#[derive(Args)]
pub(crate) struct JoinTokenArgs {
    /// Label for the node; may be repeated.
    #[arg(long)]
    label: Vec<String>,
    /// Lifetime of the token, 60 to 86400; defaults to an hour.
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u32>,
}

fn node_name(node: &NodeView) -> String {
    node.name.clone()
}

/// Returns the status of a node: whether it gets jobs, and whether it is online.
fn node_status(node: &NodeView, look: &ValueFormatter) -> String {
    if node.alive || node.state.as_str() == "removed" {
        return look.style_state(node.state.as_str());
    }
    let word = if node.started { "silent" } else { "never ran" };
    format!("{} ({})", look.style_state(word), node.state.as_str())
}

/// Renders the time of the last heartbeat.
fn render_last_seen(node: &NodeView, look: &ValueFormatter) -> String {
    if node.started { look.format_relative_time(node.last_seen_at) } else { "never".to_owned() }
}

/// Renders the number of problems that the node reports; `node show` names them.
fn render_warning_count(node: &NodeView, look: &ValueFormatter) -> String {
    match node.report.warnings.len() {
        0 => String::new(),
        count => look.paint.apply_style(TextStyle::Yellow, &count.to_string()),
    }
}

impl NodeCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_nodes(context).await,
            Self::Show(which) => {
                let call = ApiRequest::with_path_params(
                    operations::GET_NODE,
                    [which.resolve_node_id(context).await?],
                );
                context.show_item(&call, node_name, node_fields).await
            }
            Self::JoinToken(token) => token.run(context).await,
            Self::Drain(which) => which.update_node(context, json!({ "draining": true })).await,
            Self::Undrain(which) => which.update_node(context, json!({ "draining": false })).await,
            Self::Label { which, labels } => {
                which.update_node(context, json!({ "labels": labels })).await
            }
            Self::Delete(which) => {
                let id = which.resolve_node_id(context).await?;
                context.confirm_action(&format!(
                    "Delete the node {}? Its jobs are tried elsewhere.",
                    which.node
                ))?;
                let call = ApiRequest::with_path_params(operations::DELETE_NODE, [id]);
                context.send_and_confirm(&call, &format!("{} is deleted", which.node)).await
            }
        }
    }
}

async fn list_nodes(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_NODES),
            None,
            node_name,
            ["name", "state", "jobs", "labels", "cores", "memory", "warnings", "seen", "id"],
            |node: &NodeView, look| {
                [
                    look.style_bold(&node.name),
                    node_status(node, look),
                    format!("{} of {}", node.jobs, node.report.slots),
                    node.labels.join(" "),
                    node.report.cores.to_string(),
                    format_mebibytes(node.report.memory_mib),
                    render_warning_count(node, look),
                    render_last_seen(node, look),
                    look.style_dim(&node.node_id.to_string()),
                ]
            },
        )
        .await
}

fn format_mebibytes(amount: u64) -> String {
    format!("{} MiB", group_digits(i64::try_from(amount).unwrap_or(i64::MAX)))
}

fn node_fields(node: &NodeView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    let report = &node.report;
    let lines = |pairs: Vec<String>| pairs.join("\n");
    let backends = report.backends.iter().map(|it| it.version.clone());
    vec![
        ("name", look.style_bold(&node.name)),
        ("state", node_status(node, look)),
        ("jobs", format!("{} of {}", node.jobs, report.slots)),
        ("labels", node.labels.join(" ")),
        ("cores", report.cores.to_string()),
        ("memory", format_mebibytes(report.memory_mib)),
        ("free disk", format_mebibytes(report.disk_free_mib)),
        ("sandboxes", lines(backends.collect())),
        (
            "agents",
            lines(report.agents.iter().map(|it| format!("{} {}", it.agent, it.version)).collect()),
        ),
        (
            "facts",
            lines(report.facts.iter().map(|(name, fact)| format!("{name}: {fact}")).collect()),
        ),
        ("warnings", lines(report.warnings.clone())),
        ("version", report.version.clone()),
        ("joined", look.format_relative_time(node.joined_at)),
        ("seen", render_last_seen(node, look)),
        ("id", node.node_id.to_string()),
    ]
}

impl NodeSelector {
    async fn resolve_node_id(&self, context: &CliContext) -> Result<String> {
        names::NODE.resolve_id(context, &self.node).await
    }

    async fn update_node(&self, context: &CliContext, body: Value) -> Result<()> {
        let call = ApiRequest::with_path_params(
            operations::UPDATE_NODE,
            [self.resolve_node_id(context).await?],
        )
        .with_json_body(&body);
        let sentence = |node: &NodeView, look: &ValueFormatter| {
            let labels =
                if node.labels.is_empty() { "none".to_owned() } else { node.labels.join(" ") };
            format!("{} is {}; labels: {labels}", node.name, node_status(node, look))
        };
        context.show_outcome(&call, node_name, sentence).await
    }
}

impl JoinTokenArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let body = input::without_nulls(
            json!({ "labels": self.label, "expires_in_seconds": self.expires_in }),
        );
        let value = context
            .send_request(
                &ApiRequest::for_operation(operations::ISSUE_JOIN_TOKEN).with_json_body(&body),
            )
            .await?;
        context.show_answer(
            &value,
            |it: &IssuedJoinToken| vec![it.join_token.0.clone()],
            |it, look| {
                let sides = [
                    ("token", look.style_bold(&it.join_token.0)),
                    ("works", format!("once, ends {}", look.format_relative_time(it.expires_at))),
                ];
                let next = "On that machine, with the address of the internal port:\n  \
                cynode-node join --url ADDRESS --token-stdin --name NAME";
                render_record(look.paint, &sides) + &look.style_dim(next)
            },
        )
    }
}
