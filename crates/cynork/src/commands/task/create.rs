//! Creates a task.

use std::path::PathBuf;

use clap::Args;
use cynode_core::{
    budget::{Amount, Budget},
    evidence::EvidenceCheck,
    ids::{ProjectId, TaskId},
    names::{ProfileName, Prose, TaskName},
    tasks::Criterion,
};
use cynode_wire::tasks::{CreateTask, EstimateBasis, TaskEstimate, TaskView};

use super::TaskSelector;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input, operations,
    terminal::format_clock,
};

/// Description of a task and its acceptance criteria.
#[derive(Args)]
pub(crate) struct TaskRequestArgs {
    /// Description of the work, in your own words.
    description: Option<String>,
    /// File with the description, appended to the argument if both are given; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Acceptance criterion; may be repeated.
    #[arg(long, value_name = "TEXT")]
    criterion: Vec<String>,
    /// Command that must succeed in the end; may be repeated.
    #[arg(long, value_name = "COMMAND")]
    check: Vec<String>,
    /// Maximum cost, in the installation's currency, such as `0.50`.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_amount)]
    budget: Option<Amount>,
    /// Maximum number of model tokens, input and output together.
    #[arg(long, value_name = "NUMBER")]
    max_tokens: Option<u64>,
    /// Name in the project; derived from the description by default.
    #[arg(long)]
    name: Option<String>,
    /// Profile that its agents work under; defaults to that of the preferences, then to `default`.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

#[derive(Args)]
pub(crate) struct TaskCreateArgs {
    #[command(flatten)]
    wish: TaskRequestArgs,
    /// Project, by id or name; defaults to the project of the current repository, then to the one chosen with `cynork project
    /// use`.
    #[arg(long, short)]
    project: Option<String>,
    /// Task that must complete first, by id; may be repeated.
    #[arg(long, value_name = "TASK")]
    after: Vec<String>,
}

/// Parses an amount of money into millionths.
pub(super) fn parse_amount(text: &str) -> Result<Amount, String> {
    Amount::try_from(input::parse_money(text)?).map_err(|error| error.to_string())
}

/// The content of a new task.
#[derive(Debug)]
pub(crate) struct TaskDraft {
    name: Option<TaskName>,
    description: Prose,
    acceptance_criteria: Vec<Criterion>,
    budget: Budget,
    profile: Option<ProfileName>,
}

impl TaskDraft {
    /// Returns whether a budget was given.
    pub(crate) const fn has_limit(&self) -> bool {
        self.budget.is_limited()
    }

    /// Builds a draft from a description, with commands that must succeed in the end.
    pub(crate) fn from_words(words: &str, checks: &[&str], budget: Budget) -> Result<Self> {
        if words.trim().is_empty() {
            return Err(CliError::new(CliErrorKind::Usage, "what do you want?"));
        }
        Ok(Self {
            name: None,
            description: parse_prose("what you want", words.trim())?,
            acceptance_criteria: checks
                .iter()
                .map(|line| parse_check(line))
                .collect::<Result<_>>()?,
            budget,
            profile: None,
        })
    }

    /// Builds the request for a project, with the tasks it depends on.
    pub(crate) fn into_create_task(
        self,
        project_id: ProjectId,
        depends_on: Vec<TaskId>,
    ) -> CreateTask {
        let Self { name, description, acceptance_criteria, budget, profile } = self;
        let approve_plan = None;
        CreateTask {
            project_id,
            name,
            description,
            acceptance_criteria,
            budget,
            depends_on,
            approve_plan,
            profile,
        }
    }
}

impl TaskRequestArgs {
    /// Reads the arguments, and validates them before anything is sent.
    pub(crate) fn to_task_draft(&self) -> Result<TaskDraft> {
        let name = self.name.as_deref().map(str::parse::<TaskName>).transpose();
        let profile = self.profile.as_deref().map(str::parse::<ProfileName>).transpose();
        let statements = self.criterion.iter().map(|text| {
            let text = parse_prose("a criterion", text)?;
            Ok(Criterion { text, check: None })
        });
        let commands = self.check.iter().map(|line| parse_check(line));
        let max_tokens = self.max_tokens.map(Amount::try_from).transpose();
        Ok(TaskDraft {
            name: name.map_err(|error| CliError::invalid_input(error.to_string()))?,
            description: self.read_description()?,
            acceptance_criteria: statements.chain(commands).collect::<Result<_>>()?,
            budget: Budget {
                max_cost_micros: self.budget,
                max_tokens: max_tokens
                    .map_err(|error| CliError::invalid_input(error.to_string()))?,
            },
            profile: profile.map_err(|error| CliError::invalid_input(error.to_string()))?,
        })
    }

    /// Returns the description from the arguments and the file.
    fn read_description(&self) -> Result<Prose> {
        let file = match &self.file {
            None => None,
            Some(path) if path.as_os_str() == "-" => {
                Some(std::io::read_to_string(std::io::stdin()))
            }
            Some(path) => Some(std::fs::read_to_string(path)),
        };
        let file = file.transpose().map_err(|error| {
            let name = self.file.as_deref().unwrap_or_else(|| "-".as_ref()).display();
            CliError::new(CliErrorKind::Usage, format!("{name} cannot be read: {error}"))
        })?;
        let parts =
            [self.description.as_deref(), file.as_deref()].into_iter().flatten().map(str::trim);
        let text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
        if text.is_empty() {
            return Err(CliError::new(CliErrorKind::Usage, "what do you want?").with_fix(
                "say it in quotes, such as `cynork run \"add a dark mode switch\"`, or name a file with --file",
            ));
        }
        parse_prose("what you want", &text)
    }
}

/// Parses a command that must succeed in the end.
fn parse_check(line: &str) -> Result<Criterion> {
    let text = parse_prose("a check", &format!("`{line}` succeeds"))?;
    let check = EvidenceCheck::from_shell_line(line);
    match check.validation_error() {
        Some(why) => Err(CliError::invalid_input(why)),
        None => Ok(Criterion { text, check: Some(check) }),
    }
}

fn parse_prose(what: &str, text: &str) -> Result<Prose> {
    text.replace("\r\n", "\n")
        .parse()
        .map_err(|error| CliError::invalid_input(format!("{what} cannot be taken: {error}")))
}

/// Creates a task, once: a retry after a server failure has the same idempotency key.
pub(crate) async fn create_task(context: &CliContext, body: &CreateTask) -> Result<TaskView> {
    let body =
        serde_json::to_value(body).map_err(|error| CliError::internal_error(error.to_string()))?;
    let key = format!("{:032x}", rand::random::<u128>());
    context
        .client
        .send_with_retry_timeout(
            &ApiRequest::with_path_params(operations::CREATE_TASK, [""; 0])
                .with_json_body(&body)
                .with_idempotency_key(key),
        )
        .await
}

impl TaskCreateArgs {
    pub(super) async fn run(self, context: &mut CliContext) -> Result<()> {
        let wanted = self.wish.to_task_draft()?;
        let project = context.require_project(self.project.clone())?;
        let project = super::fetch_project(context, &project).await?;
        let mut after = Vec::new();
        for task in self.after {
            let named = TaskSelector { task, project: Some(project.id.to_string()) };
            after.push(named.fetch_task(context).await?.id);
        }
        context.record_project(&project);
        let task = create_task(context, &wanted.into_create_task(project.id, after)).await?;
        context.fetch_currency().await;
        let limit = super::budget_text(&task, context.currency());
        let words = context.task_reference(&task);
        context.out.print_answer(
            &task,
            |task| vec![task.id.to_string()],
            |task, paint| {
                let tick = paint.apply_style(crate::terminal::TextStyle::Green, "✓");
                format!(
                    "{tick} {} was accepted in {} ({}), limit {limit}\n  follow it with: cynork task watch {words}",
                    task.name, project.slug, task.id
                )
            },
        )
    }
}

#[derive(Args)]
pub(crate) struct TaskEstimateArgs {
    #[command(flatten)]
    wish: TaskRequestArgs,
    /// Project, by id or name; defaults to the project of the current repository, then to the one chosen with `cynork project
    /// use`.
    #[arg(long, short)]
    project: Option<String>,
}

impl TaskEstimateArgs {
    pub(super) async fn run(self, context: &mut CliContext) -> Result<()> {
        let draft = self.wish.to_task_draft()?;
        let project = context.require_project(self.project)?;
        let project = super::fetch_project(context, &project).await?;
        let body = serde_json::to_value(draft.into_create_task(project.id, Vec::new()))
            .map_err(|error| CliError::internal_error(error.to_string()))?;
        let call = ApiRequest::for_operation(operations::ESTIMATE_TASK).with_json_body(&body);
        let estimate: TaskEstimate = context.client.send(&call).await?;
        context.fetch_currency().await;
        let look = context.value_formatter();
        context.out.print_answer(
            &estimate,
            |it| it.cost_micros.iter().map(|cost| cost.p50.to_string()).collect(),
            |it, _| render_estimate(it, &look),
        )
    }
}

/// Renders an estimate: what half and what nine of ten tasks stayed below.
fn render_estimate(estimate: &TaskEstimate, look: &ValueFormatter) -> String {
    let samples = estimate.samples;
    let place = match estimate.basis {
        EstimateBasis::Project => "of this project",
        EstimateBasis::Installation => "of all projects",
        EstimateBasis::Unknown => {
            return format!(
                "nothing is known: only {samples} tasks of this project were completed"
            );
        }
    };
    let money = |micros: u64| look.format_money(i64::try_from(micros).unwrap_or(i64::MAX));
    let clock = |seconds: u64| format_clock(std::time::Duration::from_secs(seconds));
    let mut lines = vec![format!("from {samples} completed tasks {place}:")];
    if let Some(cost) = estimate.cost_micros {
        lines.push(format!("  cost  {} to {}", money(cost.p50), money(cost.p90)));
    }
    if let Some(time) = estimate.seconds {
        lines.push(format!("  time  {} to {}", clock(time.p50), clock(time.p90)));
    }
    lines.push("half stayed below the first number, nine of ten below the second".to_owned());
    lines.join("\n")
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
            assert_eq!(parse_amount(text).map(u64::from), Ok(wanted), "{text}");
        }
        for text in
            ["", ".", "-1", "1,5", "0.1234567", "1e3", "99999999999999999999", "9999999999999999.0"]
        {
            assert!(parse_amount(text).is_err(), "{text}");
        }
    }

    fn wish(words: Option<&str>) -> TaskRequestArgs {
        TaskRequestArgs {
            description: words.map(str::to_owned),
            file: None,
            criterion: vec!["It is dark".to_owned()],
            check: vec!["make test".to_owned()],
            budget: Some(parse_amount("0.5").unwrap()),
            max_tokens: None,
            name: None,
            profile: Some("offline".to_owned()),
        }
    }

    #[test]
    fn each_statement_and_each_command_must_hold() {
        let project = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap();
        let wanted = wish(Some(" Dark mode \r\n please ")).to_task_draft().unwrap();
        let body = wanted.into_create_task(project, Vec::new());
        assert_eq!(body.description.as_str(), "Dark mode \n please");
        let told = |criterion: &Criterion| {
            (
                criterion.text.as_str().to_owned(),
                criterion.check.as_ref().map(EvidenceCheck::command_line),
            )
        };
        assert_eq!(
            body.acceptance_criteria.iter().map(told).collect::<Vec<_>>(),
            [
                ("It is dark".to_owned(), None),
                ("`make test` succeeds".to_owned(), Some("make test".to_owned()))
            ]
        );
        assert_eq!(body.budget.max_cost_micros.map(u64::from), Some(500_000));
        assert_eq!(body.profile.as_ref().map(ProfileName::as_str), Some("offline"));
    }

    #[test]
    fn nothing_is_asked_for_without_words() {
        let failure = wish(Some("  ")).to_task_draft().unwrap_err();
        assert_eq!(failure.kind, CliErrorKind::Usage);
    }

    #[test]
    fn the_words_come_before_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "More of it.\n").unwrap();
        let wish =
            TaskRequestArgs { file: Some(file.path().to_owned()), ..wish(Some("Dark mode")) };
        assert_eq!(wish.read_description().unwrap().as_str(), "Dark mode\n\nMore of it.");
        let gone = TaskRequestArgs { file: Some("/nowhere/at/all".into()), ..wish };
        assert_eq!(gone.read_description().unwrap_err().kind, CliErrorKind::Usage);
    }
}
