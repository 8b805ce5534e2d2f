//! `cynork tool`: the tools of agents, and tool servers.

use clap::{Args, Subcommand};
use cynode_wire::tools::{
    AllowlistView, PolicyExplanation, ToolView, audit::ToolStats, rules::CallExplanation,
};
use serde_json::{Map, Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input::{self, TimeArgument},
    operations,
    output::{render_record, render_table},
};

mod server;

#[derive(Subcommand)]
pub(crate) enum ToolCommand {
    /// List tools with their scope and state.
    #[command(after_help = "Example: cynork tool list --role developer")]
    List {
        /// Filter by role that may call the tool.
        #[arg(long)]
        role: Option<String>,
    },
    /// Count the calls of each tool: allowed, refused and failed ones, and how long they took.
    #[command(after_help = "Example: cynork tool stats --since 7d")]
    Stats(ToolStatsArgs),
    /// Enable a tool for all agents.
    #[command(after_help = "Example: cynork tool enable web.fetch")]
    Enable {
        /// Name of the tool.
        tool: String,
    },
    /// Disable a tool for all agents.
    #[command(after_help = "Example: cynork tool disable web.fetch")]
    Disable {
        /// Name of the tool.
        tool: String,
    },
    /// Set which agents may call a tool.
    #[command(after_help = "Example: cynork tool scope web.fetch sandbox")]
    Scope {
        /// Name of the tool.
        tool: String,
        /// Project managers, agents in sandboxes, or both.
        #[arg(value_parser = TOOL_SCOPES)]
        scope: String,
    },
    /// List the tool allowlist of each role.
    #[command(after_help = "Example: cynork tool allowlists")]
    Allowlists,
    /// Explain the policy decision about a call, without making it.
    #[command(
        after_help = "Example: cynork tool explain web.fetch --agent agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    Explain(ToolExplainArgs),
    /// Explain the policy decision about a recorded call, as it was and as it would be now.
    #[command(
        after_help = "Example: cynork tool explain-call cal_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    ExplainCall {
        /// Call id; see `cynork audit search`.
        call: String,
        /// Arguments of the call, as JSON, which are not recorded; `@FILE` reads a file, `@-` reads standard input.
        #[arg(long, value_name = "JSON")]
        arguments: Option<String>,
    },
    /// Install a tool server; its tools wait for `cynork tool accept`.
    #[command(
        after_help = "Example: cynork tool install search --http https://tools.example.com/mcp --scope both"
    )]
    Install(Box<server::ToolServerInstallArgs>),
    /// List tool servers.
    #[command(after_help = "Example: cynork tool servers")]
    Servers,
    /// Show a tool server and its tools.
    #[command(after_help = "Example: cynork tool server search")]
    Server(server::ToolServerSelector),
    /// Update a tool server.
    #[command(after_help = "Example: cynork tool update search --timeout-ms 60000")]
    Update(server::ToolServerUpdateArgs),
    /// Accept the tools of a tool server, exactly as shown.
    #[command(after_help = "Example: cynork tool accept search --tool query")]
    Accept(server::ToolAcceptArgs),
    /// Refresh the tool list of a tool server.
    #[command(after_help = "Example: cynork tool refresh search")]
    Refresh(server::ToolServerSelector),
    /// Annotate a tool with its effects, overriding the hints of its server.
    #[command(
        after_help = "Example: cynork tool annotate search query --read-only --idempotent --open-world"
    )]
    Annotate(server::ToolAnnotateArgs),
    /// Uninstall a tool server and its tools.
    #[command(after_help = "Example: cynork tool uninstall search")]
    Uninstall(server::ToolServerSelector),
}

/// The possible scopes of a tool.
const TOOL_SCOPES: [&str; 3] = ["pm", "sandbox", "both"];

#[derive(Args)]
pub(crate) struct ToolStatsArgs {
    /// Filter by project, by name or id; all projects that you may see by default.
    #[arg(long)]
    project: Option<String>,
    /// Start time: a time, a day, or a duration ago such as `2h` or `3d`; a day ago by default.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    since: Option<TimeArgument>,
    /// End time, exclusive: a time, a day, or a duration ago such as `2h` or `3d`.
    #[arg(long, value_name = "TIME", value_parser = input::parse_time_argument)]
    until: Option<TimeArgument>,
}

#[derive(Args)]
pub(crate) struct ToolExplainArgs {
    /// Tool, by its dotted name or its MCP name.
    tool: String,
    /// Agent, by the id of its token; see `cynork agent-token list`.
    #[arg(long, value_name = "ID")]
    agent: String,
    /// Arguments of the call, as JSON; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long, value_name = "JSON")]
    arguments: Option<String>,
    /// Rule to evaluate instead of the stored ones, with mode `refuse`; may be repeated.
    #[arg(long, value_name = "NAME=FILE", value_parser = input::parse_name_value)]
    rule: Vec<(String, String)>,
}

impl ToolCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List { role } => list_tools(context, role).await,
            Self::Stats(stats) => stats.run(context).await,
            Self::Enable { tool } => update_tool(context, &tool, json!({ "enabled": true })).await,
            Self::Disable { tool } => {
                update_tool(context, &tool, json!({ "enabled": false })).await
            }
            Self::Scope { tool, scope } => {
                update_tool(context, &tool, json!({ "scope": scope })).await
            }
            Self::Allowlists => list_allowlists(context).await,
            Self::Explain(explain) => explain.run(context).await,
            Self::ExplainCall { call, arguments } => {
                explain_recorded_call(context, &call, arguments.as_deref()).await
            }
            Self::Install(install) => install.run(context).await,
            Self::Servers => server::list_servers(context).await,
            Self::Server(which) => which.show_server(context).await,
            Self::Update(update) => update.run(context).await,
            Self::Accept(accept) => accept.run(context).await,
            Self::Refresh(which) => which.refresh_server(context).await,
            Self::Annotate(annotate) => annotate.run(context).await,
            Self::Uninstall(which) => which.uninstall_server(context).await,
        }
    }
}

async fn list_tools(context: &CliContext, role: Option<String>) -> Result<()> {
    let mut value =
        context.send_request(&ApiRequest::for_operation(operations::LIST_TOOLS)).await?;
    if let (Some(role), Some(items)) = (role, value["items"].as_array_mut()) {
        items.retain(|tool| {
            tool["roles"]
                .as_array()
                .is_some_and(|roles| roles.iter().any(|it| *it == role.as_str()))
        });
    }
    let heads = ["name", "on", "scope", "from", "network", "what"];
    context.show_table(
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
                look.style_bold(&tool.name),
                look.format_yes_no(tool.enabled),
                tool.scope.as_str().to_owned(),
                origin,
                look.format_yes_no(tool.network),
                tool.title.clone(),
            ]
        },
    )
}

impl ToolStatsArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let now = context.value_formatter().now;
        let written =
            |moment: Option<TimeArgument>| moment.map(|it| it.to_rfc3339(now)).transpose();
        let call = ApiRequest::for_operation(operations::TOOL_STATS)
            .with_query("project_id", context.optional_project_id(self.project.as_deref()).await?)
            .with_query("since", written(self.since)?)
            .with_query("until", written(self.until)?);
        let value = context.send_request(&call).await?;
        let names =
            |it: &ToolStats| it.items.iter().map(|tool| tool.tool.clone()).collect::<Vec<_>>();
        context.show_answer(&value, names, |it: &ToolStats, look| {
            let rows = it.items.iter().map(|tool| {
                [
                    look.style_bold(&tool.tool),
                    tool.allowed.to_string(),
                    tool.refused.to_string(),
                    tool.needs_approval.to_string(),
                    tool.failed.to_string(),
                    format_duration_us(tool.p50_us),
                    format_duration_us(tool.p95_us),
                    look.format_relative_time(tool.last_at),
                ]
            });
            let heads = ["tool", "allowed", "refused", "asked", "failed", "p50", "p95", "last"];
            render_table(look.paint, heads, rows.collect())
        })
    }
}

/// Formats a duration in milliseconds.
fn format_duration_us(micros: Option<i64>) -> String {
    micros.map(|micros| format!("{}.{} ms", micros / 1000, micros % 1000 / 100)).unwrap_or_default()
}

async fn update_tool(context: &CliContext, tool: &str, body: Value) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::SET_TOOL, [tool]).with_json_body(&body);
    let sentence = |it: &ToolView, _: &ValueFormatter| {
        let on = if it.enabled { "on" } else { "off" };
        format!("{} is {on}, for {}", it.name, it.scope.as_str())
    };
    context.show_outcome(&call, |it: &ToolView| it.name.clone(), sentence).await
}

async fn list_allowlists(context: &CliContext) -> Result<()> {
    let heads = ["role", "kind", "tools"];
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_ALLOWLISTS),
            None,
            |it: &AllowlistView| it.role.as_str().to_owned(),
            heads,
            |it, look| {
                let lines = it.lines.iter().map(|line| match &line.setting {
                    Some(setting) => format!("{} (if {setting})", line.tools),
                    None => line.tools.clone(),
                });
                let lines: Vec<String> = lines.collect();
                [look.style_bold(it.role.as_str()), it.kind.as_str().to_owned(), lines.join("  ")]
            },
        )
        .await
}

impl ToolExplainArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let arguments = read_arguments(self.arguments.as_deref())?;
        let mut rules = Map::new();
        for (name, file) in &self.rule {
            rules.insert(
                name.clone(),
                json!({ "mode": "refuse", "text": input::read_file_text(file)? }),
            );
        }
        let rules = (!rules.is_empty()).then_some(rules);
        let body = input::without_nulls(json!({ "agent_token_id": self.agent, "tool": self.tool,
            "arguments": arguments, "rules": rules }));
        let call = ApiRequest::for_operation(operations::EXPLAIN).with_json_body(&body);
        let value = context.send_request(&call).await?;
        context.show_answer(
            &value,
            |it: &PolicyExplanation| vec![it.decision.clone()],
            render_explanation,
        )
    }
}

fn read_arguments(arguments: Option<&str>) -> Result<Option<Value>> {
    let text = arguments.map(input::read_text_argument).transpose()?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| {
        CliError::new(CliErrorKind::Usage, format!("the arguments are not JSON: {error}"))
    })
}

async fn explain_recorded_call(
    context: &CliContext,
    call: &str,
    arguments: Option<&str>,
) -> Result<()> {
    let arguments = read_arguments(arguments)?;
    let body = input::without_nulls(json!({ "call_id": call, "arguments": arguments }));
    let call = ApiRequest::for_operation(operations::EXPLAIN_RECORDED_CALL).with_json_body(&body);
    let value = context.send_request(&call).await?;
    let names = |it: &CallExplanation| vec![it.then.decision.clone()];
    context.show_answer(&value, names, |it: &CallExplanation, look| {
        let now = match (&it.now, &it.now_missing) {
            (Some(now), _) => render_explanation(now, look),
            (None, missing) => missing.clone().unwrap_or_default(),
        };
        let then = render_explanation(&it.then, look);
        let changed = look.format_yes_no(it.changed);
        format!("then\n{then}\n\nnow\n{now}\n\nchanged: {changed}")
    })
}

fn render_explanation(it: &PolicyExplanation, look: &ValueFormatter) -> String {
    let steps = it.steps.iter().map(|step| {
        let mark = match step.result.as_str() {
            "passed" => look.style_state("passed"),
            "refused" => look.style_state("refused"),
            other => look.style_dim(other),
        };
        format!("{mark}  {}", step.step)
    });
    render_record(
        look.paint,
        &[
            ("decision", look.style_state(&it.decision)),
            ("reason", format!("{}: {}", it.reason, it.detail)),
            ("next", it.advice.clone().unwrap_or_default()),
            ("rules", it.rules.join(", ")),
            ("on trial", it.shadow.join(", ")),
            ("asked", steps.collect::<Vec<_>>().join("\n")),
        ],
    )
}
