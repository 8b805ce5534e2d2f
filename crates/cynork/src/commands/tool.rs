//! `cynork tool`: what agents may call, and the servers that offer it.

use clap::{Args, Subcommand};
use cynode_wire::gate::{AllowlistView, Explanation, ToolView};
use serde_json::{Map, Value, json};

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::Look,
    operations,
    output::record,
};

mod server;

#[derive(Subcommand)]
pub(crate) enum Tool {
    /// Lists the tools, who may call them, and whether they are switched on.
    #[command(after_help = "Example: cynork tool list --role developer")]
    List {
        /// Only those that this role may call.
        #[arg(long)]
        role: Option<String>,
    },
    /// Switches a tool on, at once and for everybody.
    #[command(after_help = "Example: cynork tool enable web.fetch")]
    Enable {
        /// Its name.
        tool: String,
    },
    /// Switches a tool off, at once and for everybody.
    #[command(after_help = "Example: cynork tool disable web.fetch")]
    Disable {
        /// Its name.
        tool: String,
    },
    /// Says who may call a tool.
    #[command(after_help = "Example: cynork tool scope web.fetch sandbox")]
    Scope {
        /// Its name.
        tool: String,
        /// Managers, agents in sandboxes, or both.
        #[arg(value_parser = SCOPES)]
        scope: String,
    },
    /// Lists which tools each role may call.
    #[command(after_help = "Example: cynork tool allowlists")]
    Allowlists,
    /// Says why a call would be allowed or refused. Nothing is called.
    #[command(
        after_help = "Example: cynork tool explain web.fetch --agent agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Explain(Explain),
    /// Installs a tool server. What it offers waits for `cynork tool accept`.
    #[command(
        after_help = "Example: cynork tool install search --http http://127.0.0.1:9000/mcp --scope both"
    )]
    Install(Box<server::Install>),
    /// Lists the tool servers.
    #[command(after_help = "Example: cynork tool servers")]
    Servers,
    /// Shows a tool server and what it offers.
    #[command(after_help = "Example: cynork tool server search")]
    Server(server::Which),
    /// Changes a tool server.
    #[command(after_help = "Example: cynork tool change search --timeout-ms 60000")]
    Change(server::Change),
    /// Accepts what a tool server offers: shows it, asks, and accepts exactly that.
    #[command(after_help = "Example: cynork tool accept search --tool query")]
    Accept(server::Accept),
    /// Asks a tool server now what it offers.
    #[command(after_help = "Example: cynork tool refresh search")]
    Refresh(server::Which),
    /// Says what a tool does to the world, in place of its server's own word.
    #[command(
        after_help = "Example: cynork tool judge search query --read-only --idempotent --open-world"
    )]
    Judge(server::Judge),
    /// Removes a tool server and its tools.
    #[command(after_help = "Example: cynork tool uninstall search")]
    Uninstall(server::Which),
}

/// Who may call a tool.
const SCOPES: [&str; 3] = ["pm", "sandbox", "both"];

#[derive(Args)]
pub(crate) struct Explain {
    /// The tool, by its dotted name or the one on the wire.
    tool: String,
    /// The agent, by the id of its token; see `cynork token agent list`.
    #[arg(long, value_name = "ID")]
    agent: String,
    /// The arguments, as JSON; `@FILE` takes them from a file, `@-` from standard input.
    #[arg(long, value_name = "JSON")]
    arguments: Option<String>,
    /// A rule that is tried in place of those that hold; may be repeated. Its mode is `refuse`.
    #[arg(long, value_name = "NAME=FILE", value_parser = given::pair)]
    rule: Vec<(String, String)>,
}

impl Tool {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { role } => list(context, role).await,
            Self::Enable { tool } => set(context, &tool, json!({ "enabled": true })).await,
            Self::Disable { tool } => set(context, &tool, json!({ "enabled": false })).await,
            Self::Scope { tool, scope } => set(context, &tool, json!({ "scope": scope })).await,
            Self::Allowlists => allowlists(context).await,
            Self::Explain(explain) => explain.run(context).await,
            Self::Install(install) => install.run(context).await,
            Self::Servers => server::list(context).await,
            Self::Server(which) => which.show(context).await,
            Self::Change(change) => change.run(context).await,
            Self::Accept(accept) => accept.run(context).await,
            Self::Refresh(which) => which.refresh(context).await,
            Self::Judge(judge) => judge.run(context).await,
            Self::Uninstall(which) => which.remove(context).await,
        }
    }
}

async fn list(context: &Context, role: Option<String>) -> Result<()> {
    let mut value = context.ask(&Call::of(operations::LIST_TOOLS)).await?;
    if let (Some(role), Some(items)) = (role, value["items"].as_array_mut()) {
        items.retain(|tool| {
            tool["roles"]
                .as_array()
                .is_some_and(|roles| roles.iter().any(|it| *it == role.as_str()))
        });
    }
    let heads = ["name", "on", "scope", "from", "network", "what"];
    context.table(
        &value,
        |tool: &ToolView| tool.name.clone(),
        heads,
        |tool, look| {
            let origin = if tool.accepted {
                tool.origin.clone()
            } else {
                format!("{} (not accepted)", tool.origin)
            };
            [
                look.bold(&tool.name),
                look.yes(tool.enabled),
                tool.scope.as_str().to_owned(),
                origin,
                look.yes(tool.network),
                tool.unavailable.clone().map_or_else(
                    || tool.title.clone(),
                    |why| format!("{}: {why}", look.state("unavailable")),
                ),
            ]
        },
    )
}

async fn set(context: &Context, tool: &str, body: Value) -> Result<()> {
    let call = Call::to(operations::SET_TOOL, [tool]).body(&body);
    let sentence = |it: &ToolView, _: &Look| {
        let on = if it.enabled { "on" } else { "off" };
        format!("{} is {on}, for {}", it.name, it.scope.as_str())
    };
    context.told(&call, |it: &ToolView| it.name.clone(), sentence).await
}

async fn allowlists(context: &Context) -> Result<()> {
    let heads = ["role", "kind", "tools"];
    context
        .list(
            &Call::of(operations::LIST_ALLOWLISTS),
            None,
            |it: &AllowlistView| it.role.as_str().to_owned(),
            heads,
            |it, look| {
                let lines = it.lines.iter().map(|line| match &line.setting {
                    Some(setting) => format!("{} (if {setting})", line.tools),
                    None => line.tools.clone(),
                });
                let lines: Vec<String> = lines.collect();
                [look.bold(it.role.as_str()), it.kind.as_str().to_owned(), lines.join("  ")]
            },
        )
        .await
}

impl Explain {
    async fn run(self, context: &Context) -> Result<()> {
        let arguments = self.arguments.as_deref().map(given::words).transpose()?;
        let arguments: Option<Value> =
            arguments.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| {
                Failure::new(Kind::Usage, format!("the arguments are not JSON: {error}"))
            })?;
        let mut rules = Map::new();
        for (name, file) in &self.rule {
            rules.insert(name.clone(), json!({ "mode": "refuse", "text": given::text(file)? }));
        }
        let rules = (!rules.is_empty()).then_some(rules);
        let body = given::said(json!({ "agent_token_id": self.agent, "tool": self.tool,
            "arguments": arguments, "rules": rules }));
        let call = Call::of(operations::EXPLAIN).body(&body);
        let value = context.ask(&call).await?;
        context.show(&value, |it: &Explanation| vec![it.decision.clone()], explained)
    }
}

fn explained(it: &Explanation, look: &Look) -> String {
    let steps = it.steps.iter().map(|step| {
        let mark = match step.result.as_str() {
            "passed" => look.state("passed"),
            "refused" => look.state("refused"),
            other => look.dim(other),
        };
        format!("{mark}  {}", step.step)
    });
    record(
        look.paint,
        &[
            ("decision", look.state(&it.decision)),
            ("reason", format!("{}: {}", it.reason, it.detail)),
            ("next", it.advice.clone().unwrap_or_default()),
            ("rules", it.rules.join(", ")),
            ("on trial", it.shadow.join(", ")),
            ("asked", steps.collect::<Vec<_>>().join("\n")),
        ],
    )
}
