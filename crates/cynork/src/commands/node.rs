//! `cynork node`: the machines that run jobs.

use clap::{Args, Subcommand};
use cynode_wire::nodes::{IssuedJoinToken, NodeView};
use serde_json::{Value, json};

use crate::{
    client::Call,
    context::Context,
    failure::Result,
    given,
    look::{Look, number},
    names, operations,
    output::record,
};

#[derive(Subcommand)]
pub(crate) enum Node {
    /// Lists the nodes, by name.
    #[command(after_help = "Example: cynork node list")]
    List,
    /// Shows a node and what it can do.
    #[command(after_help = "Example: cynork node show build-1")]
    Show(Which),
    /// Lets one machine join as a node. The token is shown once.
    #[command(after_help = "Example: cynork node join-token --label gpu --expires-in 600")]
    JoinToken(JoinToken),
    /// Lets a node end what it has and get no more jobs.
    #[command(after_help = "Example: cynork node drain build-1")]
    Drain(Which),
    /// Gives a node jobs again.
    #[command(after_help = "Example: cynork node undrain build-1")]
    Undrain(Which),
    /// Gives a node other labels, in place of those it has.
    #[command(after_help = "Example: cynork node label build-1 gpu large")]
    Label {
        #[command(flatten)]
        which: Which,
        /// All its labels from now on; none takes them away.
        labels: Vec<String>,
    },
    /// Removes a node: it is not ours any more.
    #[command(after_help = "Example: cynork node remove build-1")]
    Remove(Which),
}

/// One node.
#[derive(Args)]
pub(crate) struct Which {
    /// By name or id.
    node: String,
}

#[derive(Args)]
pub(crate) struct JoinToken {
    /// A label that the node will have; may be repeated.
    #[arg(long)]
    label: Vec<String>,
    /// For how long the token works, 60 to 86400; an hour when it is left out.
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u32>,
}

fn name(node: &NodeView) -> String {
    node.name.clone()
}

/// What a person wants to know: whether it gets jobs, and whether it is there at all.
fn standing(node: &NodeView, look: &Look) -> String {
    if node.alive || node.state.as_str() == "removed" {
        return look.state(node.state.as_str());
    }
    format!("{} ({})", look.state("silent"), node.state.as_str())
}

impl Node {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => list(context).await,
            Self::Show(which) => {
                let call = Call::to(operations::GET_NODE, [which.id(context).await?]);
                context.one(&call, name, sides).await
            }
            Self::JoinToken(token) => token.run(context).await,
            Self::Drain(which) => which.change(context, json!({ "draining": true })).await,
            Self::Undrain(which) => which.change(context, json!({ "draining": false })).await,
            Self::Label { which, labels } => {
                which.change(context, json!({ "labels": labels })).await
            }
            Self::Remove(which) => {
                let id = which.id(context).await?;
                context.sure(&format!(
                    "Remove the node {}? Its jobs are tried elsewhere.",
                    which.node
                ))?;
                let call = Call::to(operations::REMOVE_NODE, [id]);
                context.done(&call, &format!("{} is removed", which.node)).await
            }
        }
    }
}

async fn list(context: &Context) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_NODES),
            None,
            name,
            ["name", "state", "jobs", "labels", "cores", "memory", "seen", "id"],
            |node: &NodeView, look| {
                [
                    look.bold(&node.name),
                    standing(node, look),
                    format!("{} of {}", node.jobs, node.report.slots),
                    node.labels.join(" "),
                    node.report.cores.to_string(),
                    mebibytes(node.report.memory_mib),
                    look.when(node.last_seen_at),
                    look.dim(&node.node_id.to_string()),
                ]
            },
        )
        .await
}

fn mebibytes(amount: u64) -> String {
    format!("{} MiB", number(i64::try_from(amount).unwrap_or(i64::MAX)))
}

fn sides(node: &NodeView, look: &Look) -> Vec<(&'static str, String)> {
    let report = &node.report;
    let lines = |pairs: Vec<String>| pairs.join("\n");
    let backends = report.backends.iter().map(|it| it.version.clone());
    vec![
        ("name", look.bold(&node.name)),
        ("state", standing(node, look)),
        ("jobs", format!("{} of {}", node.jobs, report.slots)),
        ("labels", node.labels.join(" ")),
        ("cores", report.cores.to_string()),
        ("memory", mebibytes(report.memory_mib)),
        ("free disk", mebibytes(report.disk_free_mib)),
        ("sandboxes", lines(backends.collect())),
        (
            "agents",
            lines(report.agents.iter().map(|it| format!("{} {}", it.agent, it.version)).collect()),
        ),
        (
            "facts",
            lines(report.facts.iter().map(|(name, fact)| format!("{name}: {fact}")).collect()),
        ),
        ("version", report.version.clone()),
        ("joined", look.when(node.joined_at)),
        ("seen", look.when(node.last_seen_at)),
        ("id", node.node_id.to_string()),
    ]
}

impl Which {
    async fn id(&self, context: &Context) -> Result<String> {
        names::NODE.id(context, &self.node).await
    }

    async fn change(&self, context: &Context, body: Value) -> Result<()> {
        let call = Call::to(operations::CHANGE_NODE, [self.id(context).await?]).body(&body);
        let sentence = |node: &NodeView, look: &Look| {
            let labels =
                if node.labels.is_empty() { "none".to_owned() } else { node.labels.join(" ") };
            format!("{} is {}; labels: {labels}", node.name, standing(node, look))
        };
        context.told(&call, name, sentence).await
    }
}

impl JoinToken {
    async fn run(self, context: &Context) -> Result<()> {
        let body =
            given::said(json!({ "labels": self.label, "expires_in_seconds": self.expires_in }));
        let value = context.ask(&Call::of(operations::ISSUE_JOIN_TOKEN).body(&body)).await?;
        context.show(
            &value,
            |it: &IssuedJoinToken| vec![it.join_token.0.clone()],
            |it, look| {
                let sides = [
                    ("token", look.bold(&it.join_token.0)),
                    ("works", format!("once, ends {}", look.when(it.expires_at))),
                ];
                let next = "On that machine, with the address of the internal port:\n  \
                cynode-node join --url ADDRESS --token-stdin --name NAME";
                record(look.paint, &sides) + &look.dim(next)
            },
        )
    }
}
