//! `cynork memory`: what a project knows under a profile.

mod ingest;

use std::path::PathBuf;

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use cynode_core::{
    memory::{MemoryKind, MemoryState},
    profiles::ProfileName,
};
use cynode_wire::memory::{
    ingests::IngestView,
    records::{ForgottenView, MemoryHitView, MemoryHitsView, MemoryView},
};
use serde_json::{Value, json};

use self::ingest::{MemoryIngestArgs, ingest_fields};
use crate::{
    answers::PageArgs,
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input,
    names::ProjectSelector,
    operations::{self, Operation},
    output::{CliOutput, CliOutputFormat, print_line, render_record, write_stdout},
};

/// Maximum number of characters of a text in a table.
const EXCERPT_CHARS: usize = 100;

#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    /// Ingest files, a repository at a commit, or a page; what has not changed since is not read again.
    #[command(after_help = "Example: cynork memory ingest docs --project web")]
    Ingest(MemoryIngestArgs),
    /// List ingests with their progress, newest first.
    #[command(after_help = "Example: cynork memory ingests --project web")]
    Ingests {
        #[command(flatten)]
        place: MemoryPlace,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Stop an ingest; what was read until then stays.
    #[command(
        after_help = "Example: cynork memory cancel-ingest ing_0192d5c8b6f07cc1a1a3c2b4d5e6f708"
    )]
    CancelIngest {
        /// Ingest, by id.
        ingest: String,
    },
    /// Search memory; scores are from 0 to 1, the best first.
    #[command(
        visible_alias = "query",
        after_help = "Example: cynork memory search \"how long do we wait between retries?\" --project web"
    )]
    Search(MemorySearchArgs),
    /// List records, newest first.
    #[command(after_help = "Example: cynork memory list --state proposed --project web")]
    List(MemoryListArgs),
    /// Show a record with its text.
    #[command(after_help = "Example: cynork memory show mem_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Record, by id.
        memory: String,
    },
    /// Remember something; agents find it at once.
    #[command(
        after_help = "Example: cynork memory remember \"Retries\" \"Wait twice as long before each retry.\" --kind convention --project web"
    )]
    Remember(MemoryRememberArgs),
    /// Correct a record; the correction takes its place.
    #[command(
        after_help = "Example: cynork memory correct mem_0192d5c8b6f07cc1a1a3c2b4d5e6f708 --text @retries.md"
    )]
    Correct(MemoryCorrectArgs),
    /// Accept what an agent proposed: searches find it.
    #[command(after_help = "Example: cynork memory accept mem_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Accept {
        /// Record, by id.
        memory: String,
    },
    /// Reject a record: no search finds it, and it is not proposed again.
    #[command(after_help = "Example: cynork memory reject mem_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Reject {
        /// Record, by id.
        memory: String,
    },
    /// Pin a record, so that it outlives its age.
    #[command(after_help = "Example: cynork memory pin mem_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Pin {
        /// Record, by id.
        memory: String,
        /// Unpin it.
        #[arg(long)]
        off: bool,
    },
    /// Forget one record, or all of a source, of an age or of a profile.
    #[command(
        after_help = "Example: cynork memory forget --source files:docs --older-than 30d --project web"
    )]
    Forget(MemoryForgetArgs),
    /// Export all records of a profile, one line of JSON each.
    #[command(after_help = "Example: cynork memory export --output memory.ndjson --project web")]
    Export {
        #[command(flatten)]
        place: MemoryPlace,
        /// File to write; standard output by default.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Project and profile of records.
#[derive(Args)]
pub(crate) struct MemoryPlace {
    /// Profile of the records; defaults to `default`.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    #[command(flatten)]
    project: ProjectSelector,
}

impl MemoryPlace {
    fn require_project(&self, context: &CliContext) -> Result<String> {
        context.require_project(self.project.project.clone())
    }

    /// Builds a request about the project.
    fn request(&self, context: &CliContext, operation: Operation) -> Result<ApiRequest> {
        let project = self.require_project(context)?;
        Ok(ApiRequest::with_path_params(operation, [project]))
    }

    /// Returns the profile that a request names.
    fn profile_name(&self) -> ProfileName {
        self.profile.clone().unwrap_or_default()
    }
}

fn kind_names() -> PossibleValuesParser {
    PossibleValuesParser::new(MemoryKind::ALL.iter().map(|kind| kind.as_str()))
}

fn state_names() -> PossibleValuesParser {
    PossibleValuesParser::new(MemoryState::ALL.iter().map(|state| state.as_str()))
}

#[derive(Args)]
pub(crate) struct MemorySearchArgs {
    /// What is searched for.
    #[arg(required = true)]
    query: Vec<String>,
    /// Only records of this kind; may be repeated.
    #[arg(long, value_parser = kind_names())]
    kind: Vec<String>,
    /// Only records whose path begins so.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Maximum number of hits, 1 to 50.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=50))]
    limit: Option<u16>,
    #[command(flatten)]
    place: MemoryPlace,
}

#[derive(Args)]
pub(crate) struct MemoryListArgs {
    /// Only records of this kind.
    #[arg(long, value_parser = kind_names())]
    kind: Option<String>,
    /// Only records in this state.
    #[arg(long, value_parser = state_names())]
    state: Option<String>,
    /// Only records of this source, such as `files:docs`.
    #[arg(long)]
    source: Option<String>,
    /// Only records whose path begins so.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    place: MemoryPlace,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Args)]
pub(crate) struct MemoryRememberArgs {
    /// What it is about, on one line.
    title: String,
    /// The text; `@FILE` reads a file, `@-` reads standard input.
    text: String,
    /// What it is.
    #[arg(long, default_value = "fact", value_parser = kind_names())]
    kind: String,
    /// Where it comes from; defaults to `note`.
    #[arg(long)]
    source: Option<String>,
    /// Path of the file that it is about.
    #[arg(long)]
    path: Option<String>,
    #[command(flatten)]
    place: MemoryPlace,
}

#[derive(Args)]
pub(crate) struct MemoryCorrectArgs {
    /// Record, by id.
    memory: String,
    /// What it is about; unchanged by default.
    #[arg(long)]
    title: Option<String>,
    /// The text; `@FILE` reads a file, `@-` reads standard input. Unchanged by default.
    #[arg(long)]
    text: Option<String>,
    /// What it is; unchanged by default.
    #[arg(long, value_parser = kind_names())]
    kind: Option<String>,
}

#[derive(Args)]
pub(crate) struct MemoryForgetArgs {
    /// Record, by id.
    #[arg(required_unless_present_any = ["source", "older_than", "all"], conflicts_with_all = ["source", "older_than", "all"])]
    memory: Option<String>,
    /// Records of this source, such as `files:docs` or `task:tsk_…`.
    #[arg(long)]
    source: Option<String>,
    /// Records that are older, such as `30d`. Pinned ones stay.
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    older_than: Option<u32>,
    /// All records of the profile.
    #[arg(long, conflicts_with_all = ["source", "older_than"])]
    all: bool,
    #[command(flatten)]
    place: MemoryPlace,
}

/// Parses a number of days such as `30d`.
fn parse_days(text: &str) -> std::result::Result<u32, String> {
    let digits = text.strip_suffix('d').unwrap_or(text);
    digits.parse().map_err(|_| "write it like 30d, in whole days".to_owned())
}

impl MemoryCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Ingest(ingest) => ingest.run(context).await,
            Self::Ingests { place, page } => list_ingests(context, &place, &page).await,
            Self::CancelIngest { ingest } => {
                let call = ApiRequest::with_path_params(operations::CANCEL_INGEST, [&ingest]);
                let name = |it: &IngestView| it.ingest_id.to_string();
                let sentence = |it: &IngestView, _: &ValueFormatter| {
                    format!("{} is {}", it.ingest_id, it.state.as_str())
                };
                context.show_outcome(&call, name, sentence).await
            }
            Self::Search(search) => search.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show { memory } => show_record(context, &memory).await,
            Self::Remember(remember) => remember.run(context).await,
            Self::Correct(correct) => correct.run(context).await,
            Self::Accept { memory } => decide(context, operations::ACCEPT_MEMORY, &memory).await,
            Self::Reject { memory } => decide(context, operations::REJECT_MEMORY, &memory).await,
            Self::Pin { memory, off } => {
                let call = ApiRequest::with_path_params(operations::UPDATE_MEMORY, [&memory])
                    .with_json_body(&json!({ "pinned": !off }));
                show_written(context, &call).await
            }
            Self::Forget(forget) => forget.run(context).await,
            Self::Export { place, output } => export(context, &place, output).await,
        }
    }
}

/// Returns the beginning of a text on one line.
fn excerpt(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= EXCERPT_CHARS {
        return line;
    }
    format!("{}…", line.chars().take(EXCERPT_CHARS).collect::<String>())
}

/// Returns where a record comes from: its path, else its address, else its source.
fn origin_of(memory: &MemoryView) -> String {
    memory.path.clone().or_else(|| memory.url.clone()).unwrap_or_else(|| memory.source.clone())
}

fn record_row(it: &MemoryView, look: &ValueFormatter) -> [String; 6] {
    [
        it.memory_id.to_string(),
        it.kind.as_str().to_owned(),
        look.style_state(it.state.as_str()),
        look.style_bold(&it.title),
        origin_of(it),
        look.format_relative_time(it.created_at),
    ]
}

fn record_fields(it: &MemoryView, look: &ValueFormatter) -> Vec<(&'static str, String)> {
    let optional = |id: Option<String>| id.unwrap_or_default();
    vec![
        ("title", look.style_bold(&it.title)),
        ("id", it.memory_id.to_string()),
        ("kind", it.kind.as_str().to_owned()),
        ("state", look.style_state(it.state.as_str())),
        ("profile", it.profile.to_string()),
        ("source", it.source.clone()),
        ("path", it.path.clone().unwrap_or_default()),
        ("url", it.url.clone().unwrap_or_default()),
        ("commit", it.commit.clone().unwrap_or_default()),
        ("author", it.role.clone().unwrap_or_else(|| it.author.as_str().to_owned())),
        ("task", optional(it.task_id.map(|id| id.to_string()))),
        ("pinned", look.format_yes_no(it.pinned)),
        ("trusted", look.format_yes_no(!it.untrusted)),
        ("supersedes", optional(it.supersedes.map(|id| id.to_string()))),
        ("superseded by", optional(it.superseded_by.map(|id| id.to_string()))),
        ("written", look.format_relative_time(it.created_at)),
        ("decided", look.format_optional_time(it.decided_at)),
    ]
}

async fn show_record(context: &CliContext, memory: &str) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::GET_MEMORY, [memory]);
    let value = context.send_request(&call).await?;
    let name = |it: &MemoryView| vec![it.memory_id.to_string()];
    context.show_answer(&value, name, |it: &MemoryView, look| {
        format!("{}\n{}", render_record(look.paint, &record_fields(it, look)), it.content)
    })
}

/// Sends a change of a record, and says what it is now.
async fn show_written(context: &CliContext, call: &ApiRequest) -> Result<()> {
    let name = |it: &MemoryView| it.memory_id.to_string();
    let sentence = |it: &MemoryView, _: &ValueFormatter| {
        let pinned = if it.pinned { ", pinned" } else { "" };
        format!("{} `{}` is {}{pinned}", it.memory_id, it.title, it.state.as_str())
    };
    context.show_outcome(call, name, sentence).await
}

async fn decide(context: &CliContext, operation: Operation, memory: &str) -> Result<()> {
    show_written(context, &ApiRequest::with_path_params(operation, [memory])).await
}

async fn list_ingests(context: &CliContext, place: &MemoryPlace, page: &PageArgs) -> Result<()> {
    let call = place
        .request(context, operations::LIST_INGESTS)?
        .with_query("profile", place.profile.as_ref());
    let heads = ["id", "source", "state", "files", "records", "asked"];
    let row = |it: &IngestView, look: &ValueFormatter| {
        let [files, records] = ingest_fields(it);
        [
            it.ingest_id.to_string(),
            look.style_bold(&it.source),
            look.style_state(it.state.as_str()),
            files,
            records,
            look.format_relative_time(it.created_at),
        ]
    };
    context
        .show_list(&call, Some(page), |it: &IngestView| it.ingest_id.to_string(), heads, row)
        .await
}

impl MemorySearchArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let profile = self.place.profile_name();
        let body = input::without_nulls(json!({
            "profile": profile, "query": self.query.join(" "), "kinds": self.kind, "path_prefix": self.path, "limit": self.limit,
        }));
        let call = self.place.request(context, operations::SEARCH_MEMORIES)?.with_json_body(&body);
        let value = context.send_request(&call).await?;
        if context.out.form == CliOutputFormat::Json {
            return CliOutput::print_json_line(&search_answer(context, &profile, &value));
        }
        let names = |it: &MemoryHitsView| {
            it.hits.iter().map(|hit| hit.memory.memory_id.to_string()).collect()
        };
        context.show_answer(&value, names, |it: &MemoryHitsView, look| {
            if it.hits.is_empty() {
                return look.style_dim("nothing was found");
            }
            let hits = it.hits.iter().map(|hit| render_hit(hit, look));
            hits.collect::<Vec<_>>().join("\n\n")
        })
    }
}

/// Returns what a program gets of a search, on one line: the trace, the profile and the hits.
fn search_answer(context: &CliContext, profile: &ProfileName, value: &Value) -> Value {
    json!({ "trace_id": context.client.trace_id().to_string(), "profile": profile, "hits": value["hits"] })
}

fn render_hit(hit: &MemoryHitView, look: &ValueFormatter) -> String {
    let MemoryHitView { score, memory } = hit;
    let trust = if memory.untrusted { ", untrusted" } else { "" };
    let facts =
        format!("{} · {} · {}{trust}", memory.kind.as_str(), origin_of(memory), memory.memory_id);
    format!(
        "{score:.3}  {}\n       {}\n       {}",
        look.style_bold(&memory.title),
        look.style_dim(&facts),
        excerpt(&memory.content)
    )
}

impl MemoryListArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let call = self
            .place
            .request(context, operations::LIST_MEMORIES)?
            .with_query("profile", self.place.profile.as_ref())
            .with_query("kind", self.kind)
            .with_query("state", self.state)
            .with_query("source", self.source)
            .with_query("path_prefix", self.path);
        let heads = ["id", "kind", "state", "title", "from", "written"];
        let name = |it: &MemoryView| it.memory_id.to_string();
        context.show_list(&call, Some(&self.page), name, heads, record_row).await
    }
}

impl MemoryRememberArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let body = input::without_nulls(json!({
            "profile": self.place.profile_name(), "kind": self.kind, "title": self.title,
            "content": input::read_text_argument(&self.text)?, "source": self.source, "path": self.path,
        }));
        let call = self.place.request(context, operations::CREATE_MEMORY)?.with_json_body(&body);
        show_written(context, &call).await
    }
}

impl MemoryCorrectArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let text = self.text.map(|text| input::read_text_argument(&text)).transpose()?;
        let body = json!({ "title": self.title, "content": text, "kind": self.kind });
        let body = input::require_changes(body)?;
        let call = ApiRequest::with_path_params(operations::UPDATE_MEMORY, [&self.memory])
            .with_json_body(&body);
        show_written(context, &call).await
    }
}

impl MemoryForgetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        if let Some(memory) = &self.memory {
            context.confirm_action(&format!("Forget {memory}?"))?;
            let call = ApiRequest::with_path_params(operations::DELETE_MEMORY, [memory]);
            context.send_request(&call).await?;
            return show_forgotten(context, 1);
        }
        let project = self.place.require_project(context)?;
        context.confirm_action(&format!("Forget {} in {project}?", self.describe()))?;
        let body = input::without_nulls(json!({
            "profile": self.place.profile_name(), "source": self.source, "older_than_days": self.older_than,
            "all": self.all.then_some(true),
        }));
        let mut total = 0_u64;
        loop {
            let call = ApiRequest::with_path_params(operations::FORGET_MEMORIES, [&project])
                .with_json_body(&body);
            let done: ForgottenView = context.fetch_as(&call).await?;
            total = total.saturating_add(done.forgotten);
            if !done.more {
                return show_forgotten(context, total);
            }
        }
    }

    /// Says which records are meant.
    fn describe(&self) -> String {
        let profile = self.place.profile_name();
        let source = self.source.as_ref().map(|source| format!(" of {source}")).unwrap_or_default();
        let age = self.older_than.map(|days| format!(" older than {days} days"));
        format!("all records{source}{} under the profile {profile}", age.unwrap_or_default())
    }
}

fn show_forgotten(context: &CliContext, count: u64) -> Result<()> {
    let noun = if count == 1 { "record is" } else { "records are" };
    context.out.print_success(&json!({ "forgotten": count }), &format!("{count} {noun} forgotten"))
}

/// Writes the records as lines of JSON, as they come.
async fn export(context: &CliContext, place: &MemoryPlace, output: Option<PathBuf>) -> Result<()> {
    let call = place
        .request(context, operations::EXPORT_MEMORIES)?
        .with_query("profile", place.profile.as_ref());
    let text = context.client.fetch_text(&call).await?;
    let Some(path) = output else {
        write_stdout(&text);
        return Ok(());
    };
    std::fs::write(&path, &text).map_err(|error| {
        let what = format!("{} cannot be written: {error}", path.display());
        CliError::new(CliErrorKind::Usage, what).with_fix("name another file with --output")
    })?;
    if context.out.form == CliOutputFormat::Readable {
        print_line(&format!("{} records are in {}", text.lines().count(), path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::{
        client::ApiClient,
        config::{CliEnvironment, ConfigFile},
    };

    #[test]
    fn a_search_is_one_line_of_json_with_the_trace_that_was_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let environment = CliEnvironment::default();
        let file = ConfigFile::load_config(Some(place.path().join("none")), &environment).unwrap();
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let client = ApiClient::new("http://127.0.0.1:1").unwrap();
        let context = CliContext {
            client: client.with_trace(trace.parse().unwrap()),
            out: CliOutput::new(CliOutputFormat::Json, false),
            file,
            environment,
            yes: false,
            currency: OnceLock::new(),
            subject: OnceLock::new(),
        };
        let found = json!({ "hits": [{ "score": 0.5, "memory": { "content": "two\nlines" } }] });
        let answer = search_answer(&context, &ProfileName::default(), &found);
        assert_eq!(answer["trace_id"], trace, "B001-11");
        assert_eq!(answer["profile"], "default", "B001-11");
        assert_eq!(answer["hits"], found["hits"]);
        let line = serde_json::to_string(&answer).unwrap();
        assert!(!line.contains('\n'), "B001-11: {line}");
    }

    #[test]
    fn an_age_is_given_in_days() {
        assert_eq!(parse_days("30d"), Ok(30));
        assert_eq!(parse_days("0"), Ok(0));
        for wrong in ["", "d", "30h", "-1d", "1.5d"] {
            assert!(parse_days(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_in_a_table_is_one_short_line() {
        assert_eq!(excerpt("a\n  b\tc "), "a b c");
        assert_eq!(excerpt(&"ä".repeat(1000)).chars().count(), EXCERPT_CHARS + 1);
    }
}
