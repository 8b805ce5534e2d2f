//! `cynork schedule`: work that is asked for at its time.

use clap::{Args, Subcommand};
use cynode_wire::schedules::{FiringView, ScheduleView};
use serde_json::{Value, json};

use crate::{
    answers::Pages,
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given::{self, Moment},
    look::{Look, plain},
    names::{In, SCHEDULE},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum Schedule {
    /// Lists the schedules you may see, newest first.
    #[command(after_help = "Example: cynork schedule list --project web")]
    List {
        /// Only of this project, by name or id.
        #[arg(long, short)]
        project: Option<String>,
        #[command(flatten)]
        pages: Pages,
    },
    /// Shows a schedule, its next time and what came of the last.
    #[command(after_help = "Example: cynork schedule show weekly-updates")]
    Show {
        /// Its name or id.
        schedule: String,
    },
    /// Makes a schedule. It acts in your name.
    #[command(
        after_help = "Example: cynork schedule create weekly-updates --cron \"0 9 * * mon\" --zone Europe/Berlin --words \"look for outdated dependencies\" --project web"
    )]
    Create(Create),
    /// Changes a schedule; it acts in your name from then on.
    #[command(after_help = "Example: cynork schedule change weekly-updates --off")]
    Change(Change),
    /// Does not wait for its time.
    #[command(after_help = "Example: cynork schedule run weekly-updates")]
    Run {
        /// Its name or id.
        schedule: String,
    },
    /// Removes a schedule; what it asked for stays.
    #[command(after_help = "Example: cynork schedule remove weekly-updates")]
    Remove {
        /// Its name or id.
        schedule: String,
    },
}

/// When it is due.
#[derive(Args)]
pub(crate) struct When {
    /// Again and again: minute, hour, day of the month, month, day of the week.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "at")]
    cron: Option<String>,
    /// The time zone whose clock it goes by; `UTC` when it is left out.
    #[arg(long, requires = "cron")]
    zone: Option<String>,
    /// One time.
    #[arg(long, value_name = "TIME", value_parser = given::moment)]
    at: Option<Moment>,
}

/// What it asks for.
#[derive(Args)]
pub(crate) struct What {
    /// Words, which the project manager makes tasks of each time; `@FILE` takes them from a file.
    #[arg(long, value_name = "TEXT", conflicts_with = "task")]
    words: Option<String>,
    /// The same task each time, by its description; `@FILE` takes it from a file.
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Its name, unique in the project.
    name: String,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    what: What,
    /// What is done about times at which CyNode did not run.
    #[arg(long, value_parser = ["skip", "once"])]
    missed: Option<String>,
    #[command(flatten)]
    place: In,
}

#[derive(Args)]
pub(crate) struct Change {
    /// Its name or id.
    schedule: String,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    what: What,
    /// What is done about times at which CyNode did not run.
    #[arg(long, value_parser = ["skip", "once"])]
    missed: Option<String>,
    /// Switches it on.
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// Switches it off.
    #[arg(long)]
    off: bool,
    /// The version that you looked at; else the present one.
    #[arg(long, value_name = "VERSION")]
    expect: Option<u32>,
}

impl When {
    fn body(self, look: &Look) -> Result<Option<Value>> {
        Ok(match (self.cron, self.at) {
            (Some(expression), _) => {
                let zone = self.zone;
                Some(given::said(json!({ "kind": "cron", "expression": expression, "zone": zone })))
            }
            (None, Some(at)) => Some(json!({ "kind": "once", "at": at.written(look.now)? })),
            (None, None) => None,
        })
    }
}

impl What {
    fn body(self) -> Result<Option<Value>> {
        Ok(match (self.words, self.task) {
            (Some(words), _) => Some(json!({ "kind": "words", "text": given::words(&words)? })),
            (None, Some(task)) => {
                Some(json!({ "kind": "task", "description": given::words(&task)? }))
            }
            (None, None) => None,
        })
    }
}

impl Schedule {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { project, pages } => {
                let call = Call::of(operations::LIST_SCHEDULES).query("project", project);
                let heads = ["name", "when", "what", "next", "on"];
                let name = |it: &ScheduleView| it.name.as_str().to_owned();
                context.list(&call, Some(&pages), name, heads, row).await
            }
            Self::Show { schedule } => {
                let id = SCHEDULE.id(context, &schedule).await?;
                let call = Call::to(operations::GET_SCHEDULE, [&id]);
                context.one(&call, |it: &ScheduleView| it.schedule_id.to_string(), sides).await
            }
            Self::Create(create) => create.run(context).await,
            Self::Change(change) => change.run(context).await,
            Self::Run { schedule } => {
                let id = SCHEDULE.id(context, &schedule).await?;
                let call = Call::to(operations::RUN_SCHEDULE, [&id]);
                let name = |it: &FiringView| it.number.to_string();
                let words =
                    |it: &FiringView, _: &Look| format!("{schedule} was asked for; {}", it.outcome);
                context.told(&call, name, words).await
            }
            Self::Remove { schedule } => {
                let id = SCHEDULE.id(context, &schedule).await?;
                context.sure(&format!("Remove the schedule {schedule}?"))?;
                let call = Call::to(operations::DELETE_SCHEDULE, [&id]);
                context.done(&call, &format!("{schedule} is removed")).await
            }
        }
    }
}

/// A time or a rule, in a word or two.
fn due(it: &ScheduleView) -> String {
    let when = json!(it.when);
    match when["expression"].as_str() {
        Some(expression) => {
            format!("{expression} {}", when["zone"].as_str().unwrap_or_default()).trim().to_owned()
        }
        None => plain(&when["at"]),
    }
}

/// What it asks for, its first line.
fn wanted(it: &ScheduleView) -> String {
    let what = json!(it.what);
    let text = what["text"].as_str().or(what["description"].as_str()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn row(it: &ScheduleView, look: &Look) -> [String; 5] {
    [
        look.bold(it.name.as_str()),
        due(it),
        wanted(it),
        look.when_ever(it.next_at),
        look.yes(it.enabled),
    ]
}

fn sides(it: &ScheduleView, look: &Look) -> Vec<(&'static str, String)> {
    let last = it.last.as_ref();
    let last = last.map(|it| format!("{}: {}", look.when(it.fired_at), it.outcome));
    vec![
        ("name", look.bold(it.name.as_str())),
        ("id", it.schedule_id.to_string()),
        ("when", due(it)),
        ("what", wanted(it)),
        ("on", look.yes(it.enabled)),
        ("next", look.when_ever(it.next_at)),
        ("fired", it.firings.to_string()),
        ("last", last.unwrap_or_default()),
        ("version", it.version.to_string()),
    ]
}

impl Create {
    async fn run(self, context: &Context) -> Result<()> {
        let lacks = |what: &str, fix: &str| Failure::new(Kind::Usage, what.to_owned()).fix(fix);
        let when = self.when.body(&context.look())?;
        let when = when.ok_or_else(|| lacks("when?", "say it with --cron or --at"))?;
        let what = self.what.body()?;
        let what = what.ok_or_else(|| lacks("what?", "say it with --words or --task"))?;
        let project = context.project_id(&context.project(self.place.project)?).await?;
        let body = json!({ "project_id": project, "name": self.name, "when": when, "what": what,
            "missed": self.missed });
        let call = Call::of(operations::CREATE_SCHEDULE).body(&given::said(body));
        let name = |it: &ScheduleView| it.schedule_id.to_string();
        let words = |it: &ScheduleView, look: &Look| {
            format!("{} is due {}", it.name.as_str(), look.when_ever(it.next_at))
        };
        context.told(&call, name, words).await
    }
}

impl Change {
    async fn run(self, context: &Context) -> Result<()> {
        let id = SCHEDULE.id(context, &self.schedule).await?;
        let version = match self.expect {
            Some(version) => json!(version),
            None => {
                context.ask(&Call::to(operations::GET_SCHEDULE, [&id])).await?["version"].take()
            }
        };
        let enabled = (self.on || self.off).then_some(self.on);
        let body = given::changes(json!({ "when": self.when.body(&context.look())?,
            "what": self.what.body()?, "missed": self.missed, "enabled": enabled }))?;
        let mut body = body;
        body["expected_version"] = version;
        let call = Call::to(operations::UPDATE_SCHEDULE, [&id]).body(&body);
        let name = |it: &ScheduleView| it.schedule_id.to_string();
        let words = |it: &ScheduleView, look: &Look| {
            if it.enabled {
                format!("{} is due {}", it.name.as_str(), look.when_ever(it.next_at))
            } else {
                format!("{} is switched off", it.name.as_str())
            }
        };
        context.told(&call, name, words).await
    }
}
