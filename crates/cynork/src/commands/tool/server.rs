//! Tool servers: install, inspect, accept, annotate, delete.

use std::{collections::BTreeMap, fmt::Write as _};

use clap::Args;
use cynode_wire::tools::{ServerToolView, ServerTransport, ServerView};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};

use super::TOOL_SCOPES;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, escape_invisible, to_pretty_json},
    input::{self, SecretPrompt},
    names, operations,
    output::{CliOutputFormat, print_line, render_record, render_table},
    terminal::first_line,
};

/// One tool server.
#[derive(Args)]
pub(crate) struct ToolServerSelector {
    /// Tool server, by name or id.
    server: String,
}

#[derive(Args)]
pub(crate) struct ToolServerInstallArgs {
    /// Name, `[a-z][a-z0-9-]*`.
    name: String,
    /// URL of a server that speaks HTTP.
    #[arg(long, value_name = "URL", group = "transport")]
    http: Option<String>,
    /// Program and arguments of a server that runs in a sandbox; last on the line.
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true, group = "transport")]
    stdio: Option<Vec<String>>,
    /// `server.json` file of a registry; `-` reads standard input.
    #[arg(long, value_name = "FILE", group = "transport")]
    server_json: Option<String>,
    /// Host that the program of --stdio may reach over HTTPS, by name; may be repeated. Without any it has no network.
    #[arg(long, value_name = "HOST", requires = "stdio")]
    network_host: Vec<String>,
    /// Allow the server to be on that machine or in a private network; for admins.
    #[arg(long, conflicts_with = "stdio")]
    allow_private: bool,
    /// Who may call its tools: project managers, agents in sandboxes, or both.
    #[arg(long, value_parser = TOOL_SCOPES)]
    scope: String,
    /// Whose agents may use it; defaults to your own.
    #[arg(long, value_parser = ["everybody", "project", "user"])]
    audience: Option<String>,
    /// Project, by name or id; for `--audience project`.
    #[arg(long, short)]
    project: Option<String>,
    /// Prefix of its tool names; defaults to `ext.NAME`.
    #[arg(long)]
    prefix: Option<String>,
    /// Display name.
    #[arg(long)]
    title: Option<String>,
    /// Timeout of a call, 100 to 600000.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// Maximum number of concurrent calls, 1 to 1000.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// Name of a request header or environment variable whose value is typed; may be repeated.
    #[arg(long, value_name = "NAME")]
    with: Vec<String>,
    /// Read the values of --with from standard input, one per line.
    #[arg(long, requires = "with")]
    values_stdin: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Args)]
pub(crate) struct ToolServerUpdateArgs {
    #[command(flatten)]
    which: ToolServerSelector,
    /// Display name.
    #[arg(long)]
    title: Option<String>,
    /// Enable the server.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable the server.
    #[arg(long)]
    disable: bool,
    /// Allow the server to be on that machine or in a private network; for admins.
    #[arg(long, conflicts_with = "disallow_private")]
    allow_private: bool,
    /// No longer allow the server to be on that machine or in a private network.
    #[arg(long)]
    disallow_private: bool,
    /// Who may call its tools: project managers, agents in sandboxes, or both.
    #[arg(long, value_parser = TOOL_SCOPES)]
    scope: Option<String>,
    /// Timeout of a call, 100 to 600000.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// Maximum number of concurrent calls, 1 to 1000.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
}

#[derive(Args)]
pub(crate) struct ToolAcceptArgs {
    #[command(flatten)]
    which: ToolServerSelector,
    /// Tool to accept, by the name that the server uses; may be repeated. Defaults to all that are new or changed.
    #[arg(long)]
    tool: Vec<String>,
}

#[expect(clippy::struct_excessive_bools, reason = "the protocol names these four")]
#[derive(Args)]
pub(crate) struct ToolAnnotateArgs {
    #[command(flatten)]
    which: ToolServerSelector,
    /// Tool, by the name that the server uses.
    tool: String,
    /// The tool changes nothing.
    #[arg(long)]
    read_only: bool,
    /// The tool may destroy data.
    #[arg(long)]
    destructive: bool,
    /// Repeating a call has no further effect.
    #[arg(long)]
    idempotent: bool,
    /// The tool reaches external systems.
    #[arg(long)]
    open_world: bool,
}

fn server_name(server: &ServerView) -> String {
    server.name.clone()
}

/// Returns the tools that wait for acceptance.
fn pending_tools(server: &ServerView) -> Vec<&ServerToolView> {
    server.tools.iter().filter(|tool| matches!(tool.state.as_str(), "new" | "changed")).collect()
}

fn render_transport(transport: &ServerTransport) -> String {
    match transport {
        ServerTransport::Http { url } => url.clone(),
        ServerTransport::Stdio { command, args, .. } => {
            format!("{command} {}", args.join(" ")).trim().to_owned()
        }
    }
}

pub(super) async fn list_servers(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_SERVERS),
            None,
            server_name,
            ["name", "in use", "scope", "tools", "wait", "read", "reached"],
            |it: &ServerView, look| {
                [
                    look.style_bold(&it.name),
                    look.format_yes_no(it.enabled),
                    it.scope.as_str().to_owned(),
                    it.tools.len().to_string(),
                    Some(pending_tools(it).len())
                        .filter(|it| *it > 0)
                        .map(|it| it.to_string())
                        .unwrap_or_default(),
                    it.failure.as_ref().map_or_else(
                        || look.format_optional_time(it.listed_at),
                        |why| format!("{}: {why}", look.style_state("failed")),
                    ),
                    render_transport(&it.transport),
                ]
            },
        )
        .await
}

fn render_server(server: &ServerView, look: &ValueFormatter) -> String {
    let mut text = render_record(
        look.paint,
        &[
            ("name", look.style_bold(&server.name)),
            ("title", server.title.clone()),
            ("reached", render_transport(&server.transport)),
            ("private address", look.format_yes_no(server.allow_private)),
            ("in use", look.format_yes_no(server.enabled)),
            ("scope", server.scope.as_str().to_owned()),
            ("names begin", server.prefix.clone()),
            ("given", server.secrets.join(", ")),
            (
                "a call takes",
                format!("at most {} ms, {} at once", server.timeout_ms, server.max_in_flight),
            ),
            ("read", look.format_optional_time(server.listed_at)),
            ("failure", server.failure.clone().unwrap_or_default()),
            ("id", server.server_id.to_string()),
        ],
    );
    let rows = server.tools.iter().map(|tool| {
        let what = tool.definition["description"].as_str().unwrap_or_default();
        [tool.tool.clone(), look.style_state(&tool.state), tool.name.clone(), first_line(what)]
    });
    let _ = write!(
        text,
        "\n{}",
        render_table(look.paint, ["tool", "state", "called", "what"], rows.collect())
    );
    text
}

impl ToolServerSelector {
    async fn resolve_server_id(&self, context: &CliContext) -> Result<String> {
        names::SERVER.resolve_id(context, &self.server).await
    }

    pub(super) async fn show_server(&self, context: &CliContext) -> Result<()> {
        let value = context
            .send_request(&ApiRequest::with_path_params(
                operations::GET_SERVER,
                [self.resolve_server_id(context).await?],
            ))
            .await?;
        context.show_answer(
            &value,
            |it: &ServerView| it.tools.iter().map(|it| it.name.clone()).collect(),
            render_server,
        )
    }

    pub(super) async fn refresh_server(&self, context: &CliContext) -> Result<()> {
        let call = ApiRequest::with_path_params(
            operations::REFRESH_SERVER,
            [self.resolve_server_id(context).await?],
        );
        let value = context.send_request(&call).await?;
        context.show_answer(
            &value,
            |it: &ServerView| it.tools.iter().map(|it| it.name.clone()).collect(),
            |it, look| {
                let mut text = render_server(it, look);
                if !pending_tools(it).is_empty() {
                    let _ = write!(text, "\nnext: cynork tool accept {}", it.name);
                }
                text
            },
        )
    }

    pub(super) async fn uninstall_server(&self, context: &CliContext) -> Result<()> {
        let id = self.resolve_server_id(context).await?;
        context
            .confirm_action(&format!("Uninstall the tool server {} and its tools?", self.server))?;
        let call = ApiRequest::with_path_params(operations::UNINSTALL_SERVER, [id]);
        context.send_and_confirm(&call, &format!("{} is uninstalled", self.server)).await
    }
}

impl ToolServerInstallArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let transport = match (self.http, self.stdio) {
            (Some(url), _) => Some(json!({ "type": "http", "url": url })),
            (None, Some(words)) => words.split_first().map(|(command, args)| {
                json!({ "type": "stdio", "command": command, "args": args,
                "network": !self.network_host.is_empty(), "network_hosts": self.network_host })
            }),
            (None, None) => None,
        };
        let server_json = self.server_json.as_deref().map(input::read_file_json).transpose()?;
        if transport.is_none() && server_json.is_none() {
            return Err(CliError::new(CliErrorKind::Usage, "how is it reached?")
                .with_fix("say it with --http URL, --stdio PROGRAM … or --server-json FILE"));
        }
        let mut values = Map::new();
        for name in &self.with {
            let ask =
                SecretPrompt { prompt: name, flag: "--values-stdin", stdin: self.values_stdin };
            values.insert(name.clone(), input::read_secret(context, ask)?.expose_secret().into());
        }
        let body = input::without_nulls(json!({
            "name": self.name, "title": self.title, "transport": transport, "server_json": server_json,
            "allow_private": self.allow_private.then_some(true),
            "secrets": values, "audience": self.audience, "scope": self.scope, "prefix": self.prefix,
            "project_id": context.optional_project_id(self.project.as_deref()).await?,
            "timeout_ms": self.timeout_ms, "max_in_flight": self.max_in_flight,
        }));
        let call = ApiRequest::for_operation(operations::INSTALL_SERVER).with_json_body(&body);
        let sentence = |it: &ServerView, _: &ValueFormatter| {
            format!("{0} is installed; read what it offers: cynork tool refresh {0}", it.name)
        };
        context.show_outcome(&call, server_name, sentence).await
    }
}

impl ToolServerUpdateArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let enabled = (self.enable || self.disable).then_some(self.enable);
        let private = (self.allow_private || self.disallow_private).then_some(self.allow_private);
        let body = input::require_changes(
            json!({ "title": self.title, "enabled": enabled, "scope": self.scope,
            "timeout_ms": self.timeout_ms, "max_in_flight": self.max_in_flight, "allow_private": private }),
        )?;
        let call = ApiRequest::with_path_params(
            operations::UPDATE_SERVER,
            [self.which.resolve_server_id(context).await?],
        )
        .with_json_body(&body);
        let sentence = |it: &ServerView, _: &ValueFormatter| {
            let on = if it.enabled { "in use" } else { "not in use" };
            format!("{} is {on}", it.name)
        };
        context.show_outcome(&call, server_name, sentence).await
    }
}

/// Renders a tool before its acceptance: its present description, and the accepted one.
fn render_offered_tool(tool: &ServerToolView, look: &ValueFormatter) -> String {
    let mut text = format!(
        "{}  {}  {}\n",
        look.style_bold(&escape_invisible(&tool.tool)),
        look.style_state(&tool.state),
        look.style_dim(&tool.definition_digest)
    );
    if let Some(before) = &tool.accepted {
        let _ =
            writeln!(text, "accepted before:\n{}\nnow:", escape_invisible(&to_pretty_json(before)));
    }
    text.push_str(&escape_invisible(&to_pretty_json(&tool.definition)));
    text
}

impl ToolAcceptArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let id = self.which.resolve_server_id(context).await?;
        let server: ServerView =
            context.fetch_as(&ApiRequest::with_path_params(operations::GET_SERVER, [&id])).await?;
        let chosen = self.select_tools(&server)?;
        if chosen.is_empty() {
            let value = context
                .send_request(&ApiRequest::with_path_params(operations::GET_SERVER, [&id]))
                .await?;
            return context.out.print_success(
                &value,
                &format!("{} offers nothing that is not accepted", server.name),
            );
        }
        if context.out.form == CliOutputFormat::Readable {
            let look = context.value_formatter();
            for tool in &chosen {
                print_line(&render_offered_tool(tool, &look));
            }
        }
        context.confirm_action(&format!(
            "Accept {} of {}, exactly as shown?",
            tool_count_text(chosen.len()),
            server.name
        ))?;
        // The digests of the displayed tools: a later change by the server is not accepted.
        let digests: BTreeMap<&str, &str> =
            chosen.iter().map(|it| (it.tool.as_str(), it.definition_digest.as_str())).collect();
        let call = ApiRequest::with_path_params(operations::ACCEPT_TOOLS, [&id])
            .with_json_body(&json!({ "tools": digests }));
        let sentence = |it: &ServerView, _: &ValueFormatter| {
            format!("{} of {} accepted", tool_count_text(chosen.len()), it.name)
        };
        context.show_outcome(&call, server_name, sentence).await
    }

    fn select_tools<'a>(&self, server: &'a ServerView) -> Result<Vec<&'a ServerToolView>> {
        if self.tool.is_empty() {
            return Ok(pending_tools(server));
        }
        let find = |name: &String| {
            server.tools.iter().find(|tool| tool.tool == *name || tool.name == *name).ok_or_else(
                || {
                    CliError::new(
                        CliErrorKind::NotFound,
                        format!("{} offers no tool {name}", server.name),
                    )
                },
            )
        };
        self.tool.iter().map(find).collect()
    }
}

fn tool_count_text(number: usize) -> String {
    if number == 1 { "1 tool".to_owned() } else { format!("{number} tools") }
}

impl ToolAnnotateArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<()> {
        let body = json!({ "readOnlyHint": self.read_only, "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent, "openWorldHint": self.open_world });
        let id = self.which.resolve_server_id(context).await?;
        let call = ApiRequest::with_path_params(operations::ANNOTATE_TOOL, [&id, &self.tool])
            .with_json_body(&body);
        let holds = |hints: &Value| {
            let said = hints
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, holds)| **holds == Value::Bool(true));
            let said = said.map(|(name, _)| name.trim_end_matches("Hint")).collect::<Vec<_>>();
            if said.is_empty() { "none of it".to_owned() } else { said.join(", ") }
        };
        let sentence = |_: &ServerView, _: &ValueFormatter| {
            format!("{} is annotated: {}", self.tool, holds(&body))
        };
        context.show_outcome(&call, server_name, sentence).await
    }
}
