//! Tool servers: installed, looked at, accepted, judged, removed.

use std::{collections::BTreeMap, fmt::Write as _};

use clap::Args;
use cynode_wire::gate::{ServerToolView, ServerTransport, ServerView};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};

use super::SCOPES;
use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given::{self, Ask},
    look::{Look, pretty, visible},
    names, operations,
    output::{Form, record, say, table},
    terminal::first_line,
};

/// One tool server.
#[derive(Args)]
pub(crate) struct Which {
    /// By name or id.
    server: String,
}

#[derive(Args)]
pub(crate) struct Install {
    /// What it is called, `[a-z][a-z0-9-]*`.
    name: String,
    /// Its address, for one that is reached by HTTP.
    #[arg(long, value_name = "URL", group = "transport")]
    http: Option<String>,
    /// The program and its arguments, for one that is started in a sandbox; last on the line.
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true, group = "transport")]
    stdio: Option<Vec<String>>,
    /// The `server.json` of a registry: a file, `-` for standard input.
    #[arg(long, value_name = "FILE", group = "transport")]
    server_json: Option<String>,
    /// Lets the program of --stdio use the network.
    #[arg(long, requires = "stdio")]
    network: bool,
    /// Who may call its tools: managers, agents in sandboxes, or both.
    #[arg(long, value_parser = SCOPES)]
    scope: String,
    /// Whose agents may use it; your own when it is left out.
    #[arg(long, value_parser = ["everybody", "project", "user"])]
    audience: Option<String>,
    /// The project, when the audience is one.
    #[arg(long, short)]
    project: Option<String>,
    /// What its tools' names begin with; `ext.NAME` when it is left out.
    #[arg(long)]
    prefix: Option<String>,
    /// What people read.
    #[arg(long)]
    title: Option<String>,
    /// How long a call may take, 100 to 600000.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// Most calls at once, 1 to 1000.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// The name of a header of each request, or of a variable of the program, whose value is typed; may be repeated.
    #[arg(long, value_name = "NAME")]
    with: Vec<String>,
    /// Reads the values of --with from standard input, a line for each.
    #[arg(long, requires = "with")]
    values_stdin: bool,
}

#[derive(Args)]
pub(crate) struct Change {
    #[command(flatten)]
    which: Which,
    /// What people read.
    #[arg(long)]
    title: Option<String>,
    /// It is used.
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// It is not used.
    #[arg(long)]
    off: bool,
    /// Who may call its tools.
    #[arg(long, value_parser = SCOPES)]
    scope: Option<String>,
    /// How long a call may take, 100 to 600000.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// Most calls at once, 1 to 1000.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
}

#[derive(Args)]
pub(crate) struct Accept {
    #[command(flatten)]
    which: Which,
    /// Only this tool, by the name that the server uses; may be repeated. Else all that are new or changed.
    #[arg(long)]
    tool: Vec<String>,
}

#[expect(clippy::struct_excessive_bools, reason = "the protocol names these four")]
#[derive(Args)]
pub(crate) struct Judge {
    #[command(flatten)]
    which: Which,
    /// The tool, by the name that the server uses.
    tool: String,
    /// It changes nothing.
    #[arg(long)]
    read_only: bool,
    /// What it changes may be lost.
    #[arg(long)]
    destructive: bool,
    /// Twice is the same as once.
    #[arg(long)]
    idempotent: bool,
    /// It reaches what we do not control.
    #[arg(long)]
    open_world: bool,
}

fn name(server: &ServerView) -> String {
    server.name.clone()
}

/// Tools that wait for a person.
fn waiting(server: &ServerView) -> Vec<&ServerToolView> {
    server.tools.iter().filter(|tool| matches!(tool.state.as_str(), "new" | "changed")).collect()
}

fn reached(transport: &ServerTransport) -> String {
    match transport {
        ServerTransport::Http { url } => url.clone(),
        ServerTransport::Stdio { command, args, .. } => {
            format!("{command} {}", args.join(" ")).trim().to_owned()
        }
    }
}

pub(super) async fn list(context: &Context) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_SERVERS),
            None,
            name,
            ["name", "in use", "scope", "tools", "wait", "read", "reached"],
            |it: &ServerView, look| {
                [
                    look.bold(&it.name),
                    look.yes(it.enabled),
                    it.scope.as_str().to_owned(),
                    it.tools.len().to_string(),
                    Some(waiting(it).len())
                        .filter(|it| *it > 0)
                        .map(|it| it.to_string())
                        .unwrap_or_default(),
                    it.failure.as_ref().map_or_else(
                        || look.when_ever(it.listed_at),
                        |why| format!("{}: {why}", look.state("failed")),
                    ),
                    reached(&it.transport),
                ]
            },
        )
        .await
}

fn shown(server: &ServerView, look: &Look) -> String {
    let mut text = record(
        look.paint,
        &[
            ("name", look.bold(&server.name)),
            ("title", server.title.clone()),
            ("reached", reached(&server.transport)),
            ("in use", look.yes(server.enabled)),
            ("scope", server.scope.as_str().to_owned()),
            ("names begin", server.prefix.clone()),
            ("given", server.secrets.join(", ")),
            (
                "a call takes",
                format!("at most {} ms, {} at once", server.timeout_ms, server.max_in_flight),
            ),
            ("read", look.when_ever(server.listed_at)),
            ("failure", server.failure.clone().unwrap_or_default()),
            ("id", server.server_id.to_string()),
        ],
    );
    let rows = server.tools.iter().map(|tool| {
        let what = tool.definition["description"].as_str().unwrap_or_default();
        [tool.tool.clone(), look.state(&tool.state), tool.name.clone(), first_line(what)]
    });
    let _ = write!(
        text,
        "\n{}",
        table(look.paint, ["tool", "state", "called", "what"], rows.collect())
    );
    text
}

impl Which {
    async fn id(&self, context: &Context) -> Result<String> {
        names::SERVER.id(context, &self.server).await
    }

    pub(super) async fn show(&self, context: &Context) -> Result<()> {
        let value =
            context.ask(&Call::to(operations::GET_SERVER, [self.id(context).await?])).await?;
        context.show(
            &value,
            |it: &ServerView| it.tools.iter().map(|it| it.name.clone()).collect(),
            shown,
        )
    }

    pub(super) async fn refresh(&self, context: &Context) -> Result<()> {
        let call = Call::to(operations::REFRESH_SERVER, [self.id(context).await?]);
        let value = context.ask(&call).await?;
        context.show(
            &value,
            |it: &ServerView| it.tools.iter().map(|it| it.name.clone()).collect(),
            |it, look| {
                let mut text = shown(it, look);
                if !waiting(it).is_empty() {
                    let _ = write!(text, "\nnext: cynork tool accept {}", it.name);
                }
                text
            },
        )
    }

    pub(super) async fn remove(&self, context: &Context) -> Result<()> {
        let id = self.id(context).await?;
        context.sure(&format!("Remove the tool server {} and its tools?", self.server))?;
        let call = Call::to(operations::REMOVE_SERVER, [id]);
        context.done(&call, &format!("{} is removed", self.server)).await
    }
}

impl Install {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let transport = match (self.http, self.stdio) {
            (Some(url), _) => Some(json!({ "type": "http", "url": url })),
            (None, Some(words)) => words.split_first().map(|(command, args)| {
                json!({ "type": "stdio", "command": command, "args": args, "network": self.network })
            }),
            (None, None) => None,
        };
        let server_json = self.server_json.as_deref().map(given::json).transpose()?;
        if transport.is_none() && server_json.is_none() {
            return Err(Failure::new(Kind::Usage, "how is it reached?")
                .fix("say it with --http URL, --stdio PROGRAM … or --server-json FILE"));
        }
        let mut values = Map::new();
        for name in &self.with {
            let ask = Ask { prompt: name, flag: "--values-stdin", stdin: self.values_stdin };
            values.insert(name.clone(), given::secret(context, ask)?.expose_secret().into());
        }
        let body = given::said(json!({
            "name": self.name, "title": self.title, "transport": transport, "server_json": server_json,
            "secrets": values, "audience": self.audience, "scope": self.scope, "prefix": self.prefix,
            "project_id": context.project_id_if(self.project.as_deref()).await?,
            "timeout_ms": self.timeout_ms, "max_in_flight": self.max_in_flight,
        }));
        let call = Call::of(operations::INSTALL_SERVER).body(&body);
        let sentence = |it: &ServerView, _: &Look| {
            format!("{0} is installed; read what it offers: cynork tool refresh {0}", it.name)
        };
        context.told(&call, name, sentence).await
    }
}

impl Change {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let enabled = (self.on || self.off).then_some(self.on);
        let body =
            given::changes(json!({ "title": self.title, "enabled": enabled, "scope": self.scope,
            "timeout_ms": self.timeout_ms, "max_in_flight": self.max_in_flight }))?;
        let call = Call::to(operations::UPDATE_SERVER, [self.which.id(context).await?]).body(&body);
        let sentence = |it: &ServerView, _: &Look| {
            let on = if it.enabled { "in use" } else { "not in use" };
            format!("{} is {on}", it.name)
        };
        context.told(&call, name, sentence).await
    }
}

/// What a person must see before saying yes: what the server says now, and what was accepted before.
fn offered(tool: &ServerToolView, look: &Look) -> String {
    let mut text = format!(
        "{}  {}  {}\n",
        look.bold(&visible(&tool.tool)),
        look.state(&tool.state),
        look.dim(&tool.definition_digest)
    );
    if let Some(before) = &tool.accepted {
        let _ = writeln!(text, "accepted before:\n{}\nnow:", visible(&pretty(before)));
    }
    text.push_str(&visible(&pretty(&tool.definition)));
    text
}

impl Accept {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let id = self.which.id(context).await?;
        let server: ServerView = context.read(&Call::to(operations::GET_SERVER, [&id])).await?;
        let chosen = self.chosen(&server)?;
        if chosen.is_empty() {
            let value = context.ask(&Call::to(operations::GET_SERVER, [&id])).await?;
            return context
                .out
                .done(&value, &format!("{} offers nothing that is not accepted", server.name));
        }
        if context.out.form == Form::Readable {
            let look = context.look();
            for tool in &chosen {
                say(&offered(tool, &look));
            }
        }
        context.sure(&format!(
            "Accept {} of {}, exactly as shown?",
            counted(chosen.len()),
            server.name
        ))?;
        // The digests of what was shown: what the server says meanwhile is not accepted.
        let digests: BTreeMap<&str, &str> =
            chosen.iter().map(|it| (it.tool.as_str(), it.definition_digest.as_str())).collect();
        let call = Call::to(operations::ACCEPT_TOOLS, [&id]).body(&json!({ "tools": digests }));
        let sentence = |it: &ServerView, _: &Look| {
            format!("{} of {} accepted", counted(chosen.len()), it.name)
        };
        context.told(&call, name, sentence).await
    }

    fn chosen<'a>(&self, server: &'a ServerView) -> Result<Vec<&'a ServerToolView>> {
        if self.tool.is_empty() {
            return Ok(waiting(server));
        }
        let find = |name: &String| {
            server.tools.iter().find(|tool| tool.tool == *name || tool.name == *name).ok_or_else(
                || Failure::new(Kind::NotFound, format!("{} offers no tool {name}", server.name)),
            )
        };
        self.tool.iter().map(find).collect()
    }
}

fn counted(number: usize) -> String {
    if number == 1 { "1 tool".to_owned() } else { format!("{number} tools") }
}

impl Judge {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let body = json!({ "readOnlyHint": self.read_only, "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent, "openWorldHint": self.open_world });
        let id = self.which.id(context).await?;
        let call = Call::to(operations::JUDGE_TOOL, [&id, &self.tool]).body(&body);
        let holds = |hints: &Value| {
            let said = hints
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, holds)| **holds == Value::Bool(true));
            let said = said.map(|(name, _)| name.trim_end_matches("Hint")).collect::<Vec<_>>();
            if said.is_empty() { "none of it".to_owned() } else { said.join(", ") }
        };
        let sentence =
            |_: &ServerView, _: &Look| format!("{} is judged: {}", self.tool, holds(&body));
        context.told(&call, name, sentence).await
    }
}
