//! Asks for a piece of work.

use std::path::PathBuf;

use clap::Args;
use cynode_core::{
    budget::{Amount, Budget},
    evidence::Check,
    ids::{ProjectId, TaskId},
    names::{Prose, TaskName},
    tasks::Criterion,
};
use cynode_wire::tasks::{CreateTask, TaskView};

use super::Named;
use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given, operations,
};

/// What is wanted, and what shows that it was done.
#[derive(Args)]
pub(crate) struct Wish {
    /// What you want, in your own words.
    words: Option<String>,
    /// A file that says it, behind the words if there are any; `-` is standard input.
    #[arg(long, value_name = "BRIEF")]
    file: Option<PathBuf>,
    /// Something that must hold in the end; may be given several times.
    #[arg(long, value_name = "TEXT")]
    criterion: Vec<String>,
    /// A command that must succeed in the end; may be given several times.
    #[arg(long, value_name = "COMMAND")]
    check: Vec<String>,
    /// The most that it may cost, in the installation's currency, such as `0.50`.
    #[arg(long, value_name = "AMOUNT", value_parser = micros)]
    budget: Option<Amount>,
    /// The most model tokens that it may use, in and out together.
    #[arg(long, value_name = "NUMBER")]
    max_tokens: Option<u64>,
    /// Its name in the project; made from the words when it is left out.
    #[arg(long)]
    name: Option<String>,
}

#[derive(Args)]
pub(crate) struct Create {
    #[command(flatten)]
    wish: Wish,
    /// The project, by id or name; else that of this directory's repository, else the one you use.
    #[arg(long, short)]
    project: Option<String>,
    /// A task that must be completed before, by id; may be given several times.
    #[arg(long, value_name = "TASK")]
    after: Vec<String>,
}

/// Money as people write it, in millionths.
pub(super) fn micros(text: &str) -> Result<Amount, String> {
    Amount::try_from(given::money(text)?).map_err(|error| error.to_string())
}

/// What is wanted, as it is sent.
#[derive(Debug)]
pub(crate) struct Wanted {
    name: Option<TaskName>,
    description: Prose,
    acceptance_criteria: Vec<Criterion>,
    budget: Budget,
}

impl Wanted {
    /// In a project, when other tasks are completed.
    pub(crate) fn task(self, project_id: ProjectId, depends_on: Vec<TaskId>) -> CreateTask {
        let Self { name, description, acceptance_criteria, budget } = self;
        CreateTask { project_id, name, description, acceptance_criteria, budget, depends_on }
    }
}

impl Wish {
    /// Reads it, and checks it before anything is done.
    pub(crate) fn read(&self) -> Result<Wanted> {
        let name = self.name.as_deref().map(str::parse::<TaskName>).transpose();
        let statements = self.criterion.iter().map(|text| {
            let text = prose("a criterion", text)?;
            Ok(Criterion { text, check: None })
        });
        let commands = self.check.iter().map(|line| {
            let text = prose("a check", &format!("`{line}` succeeds"))?;
            let check = Check::line(line);
            match check.complaint() {
                Some(why) => Err(Failure::invalid(why)),
                None => Ok(Criterion { text, check: Some(check) }),
            }
        });
        let max_tokens = self.max_tokens.map(Amount::try_from).transpose();
        Ok(Wanted {
            name: name.map_err(|error| Failure::invalid(error.to_string()))?,
            description: self.description()?,
            acceptance_criteria: statements.chain(commands).collect::<Result<_>>()?,
            budget: Budget {
                max_cost_micros: self.budget,
                max_tokens: max_tokens.map_err(|error| Failure::invalid(error.to_string()))?,
            },
        })
    }

    /// The words, and the file behind them.
    fn description(&self) -> Result<Prose> {
        let file = match &self.file {
            None => None,
            Some(path) if path.as_os_str() == "-" => {
                Some(std::io::read_to_string(std::io::stdin()))
            }
            Some(path) => Some(std::fs::read_to_string(path)),
        };
        let file = file.transpose().map_err(|error| {
            let name = self.file.as_deref().unwrap_or_else(|| "-".as_ref()).display();
            Failure::new(Kind::Usage, format!("{name} cannot be read: {error}"))
        })?;
        let parts = [self.words.as_deref(), file.as_deref()].into_iter().flatten().map(str::trim);
        let text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
        if text.is_empty() {
            return Err(Failure::new(Kind::Usage, "what do you want?").fix(
                "say it in quotes, such as `cynork run \"add a dark mode switch\"`, or name a file with --file",
            ));
        }
        prose("what you want", &text)
    }
}

fn prose(what: &str, text: &str) -> Result<Prose> {
    text.replace("\r\n", "\n")
        .parse()
        .map_err(|error| Failure::invalid(format!("{what} cannot be taken: {error}")))
}

/// Asks for a task, once: sent again after a server was killed it is known by its key.
pub(crate) async fn made(context: &Context, body: &CreateTask) -> Result<TaskView> {
    let body = serde_json::to_value(body).map_err(|error| Failure::internal(error.to_string()))?;
    let key = format!("{:032x}", rand::random::<u128>());
    context
        .client
        .for_a_while(&Call::to(operations::CREATE_TASK, [""; 0]).body(&body).key(key))
        .await
}

impl Create {
    pub(super) async fn run(self, context: &mut Context) -> Result<()> {
        let wanted = self.wish.read()?;
        let project = context.project(self.project.clone())?;
        let project = super::project(context, &project).await?;
        let mut after = Vec::new();
        for task in self.after {
            let named = Named { task, project: Some(project.id.to_string()) };
            after.push(named.view(context).await?.id);
        }
        let task = made(context, &wanted.task(project.id, after)).await?;
        context.out.show(
            &task,
            |task| vec![task.id.to_string()],
            |task, paint| {
                let tick = paint.dye(crate::terminal::Style::Green, "✓");
                format!(
                    "{tick} {} was accepted in {} ({})\n  follow it with: cynork task watch {}",
                    task.name, project.slug, task.id, task.id
                )
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_as_it_is_written() {
        for (text, wanted) in [
            ("0.50", 500_000),
            ("2", 2_000_000),
            (".5", 500_000),
            ("1.000001", 1_000_001),
            ("3.", 3_000_000),
        ] {
            assert_eq!(micros(text).map(u64::from), Ok(wanted), "{text}");
        }
        for text in
            ["", ".", "-1", "1,5", "0.1234567", "1e3", "99999999999999999999", "9999999999999999.0"]
        {
            assert!(micros(text).is_err(), "{text}");
        }
    }

    fn wish(words: Option<&str>) -> Wish {
        Wish {
            words: words.map(str::to_owned),
            file: None,
            criterion: vec!["It is dark".to_owned()],
            check: vec!["make test".to_owned()],
            budget: Some(micros("0.5").unwrap()),
            max_tokens: None,
            name: None,
        }
    }

    #[test]
    fn each_statement_and_each_command_must_hold() {
        let project = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap();
        let wanted = wish(Some(" Dark mode \r\n please ")).read().unwrap();
        let body = wanted.task(project, Vec::new());
        assert_eq!(body.description.as_str(), "Dark mode \n please");
        let told = |criterion: &Criterion| {
            (criterion.text.as_str().to_owned(), criterion.check.as_ref().map(Check::told))
        };
        assert_eq!(
            body.acceptance_criteria.iter().map(told).collect::<Vec<_>>(),
            [
                ("It is dark".to_owned(), None),
                ("`make test` succeeds".to_owned(), Some("make test".to_owned()))
            ]
        );
        assert_eq!(body.budget.max_cost_micros.map(u64::from), Some(500_000));
    }

    #[test]
    fn nothing_is_asked_for_without_words() {
        let failure = wish(Some("  ")).read().unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
    }

    #[test]
    fn the_words_come_before_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "More of it.\n").unwrap();
        let wish = Wish { file: Some(file.path().to_owned()), ..wish(Some("Dark mode")) };
        assert_eq!(wish.description().unwrap().as_str(), "Dark mode\n\nMore of it.");
        let gone = Wish { file: Some("/nowhere/at/all".into()), ..wish };
        assert_eq!(gone.description().unwrap_err().kind, Kind::Usage);
    }
}
