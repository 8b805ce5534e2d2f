//! Evaluation of decisions: puts labelled inputs to a model twice and counts the correct answers. `docs/explanation/evaluation.md`
//! describes it.
//!
//! The structured method is the project manager's (its instructions, prompts, schemas, checks and retries). The plain method asks one
//! plain sentence.

pub mod picture;
pub mod plain;
pub mod recording;
pub mod replay;
pub mod rows;
pub mod run;
pub mod score;
pub mod show;
pub mod think;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use self::{
    recording::{CallRecorder, EvalRecording},
    rows::{EvalTable, RowHalf},
    run::{EvalRunner, SystemPrompts},
    score::{AskMethod, EvalAnswer, EvalReport, EvalRequirement, TokenPrices},
};
use crate::{
    instructions::{DEFAULT_INSTRUCTIONS_DIR, InstructionPaths},
    llm::LlmClient,
    mcp_client::RequestCredentials,
};

/// Evaluate the decisions of a model.
#[derive(Clone, Debug, Subcommand)]
pub enum EvalCommand {
    /// Ask a model about the labelled inputs.
    Run(EvalRun),
    /// Replay a recording without a model; every decision must be the same.
    Replay(EvalReplay),
}

/// Ask a model about the labelled inputs.
#[derive(Clone, Debug, Args)]
pub struct EvalRun {
    /// Base URL of a server with Chat Completions at `/v1/chat/completions`.
    #[arg(long)]
    url: String,
    /// Model to evaluate.
    #[arg(long)]
    model: String,
    /// File with the API key of the server.
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Directory of the labelled inputs.
    #[arg(long, default_value = "eval")]
    data: PathBuf,
    /// Directory of the instructions.
    #[arg(long, default_value = DEFAULT_INSTRUCTIONS_DIR)]
    instructions: PathBuf,
    /// Tables to evaluate; defaults to all.
    #[arg(long, value_delimiter = ',', default_values_t = EvalTable::ALL, hide_default_value = true)]
    tables: Vec<EvalTable>,
    /// Split of the rows to evaluate; use `tuning` while changing prompts.
    #[arg(long)]
    split: Option<RowHalf>,
    /// Maximum number of rows per table.
    #[arg(long)]
    limit: Option<usize>,
    /// Seed for the choice of rows with a limit; defaults to the first rows.
    #[arg(long)]
    seed: Option<u64>,
    /// Timeout of one answer, in seconds.
    #[arg(long, default_value_t = 60)]
    timeout_seconds: u64,
    /// Record every request and answer in this directory, which must not have a recording yet.
    #[arg(long)]
    record: Option<PathBuf>,
    #[command(flatten)]
    report: ReportOptions,
}

/// Replay a recording without a model.
#[derive(Clone, Debug, Args)]
pub struct EvalReplay {
    /// Directory of the recording.
    #[arg(long)]
    recording: PathBuf,
    #[command(flatten)]
    report: ReportOptions,
}

/// Output of the results.
#[derive(Clone, Debug, Args)]
struct ReportOptions {
    /// Write `report.txt`, `report.json` and `report.svg` to this directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Price per million input and output tokens, as `0.15,0.6`.
    #[arg(long, value_parser = parse_prices)]
    prices: Option<TokenPrices>,
    /// Fail unless every table meets this requirement.
    #[arg(long, value_delimiter = ',')]
    require: Vec<EvalRequirement>,
}

fn parse_prices(text: &str) -> Result<TokenPrices, String> {
    let number = |text: &str| {
        text.trim().parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0)
    };
    let (input, output) =
        text.split_once(',').ok_or("two prices are needed, with a comma between")?;
    number(input)
        .zip(number(output))
        .map(|(input, output)| TokenPrices { input, output })
        .ok_or_else(|| "a price is a number that is not negative".to_owned())
}

impl EvalCommand {
    /// Executes the evaluation command.
    pub async fn run_command(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(run) => run.run_evaluation().await,
            Self::Replay(replay) => replay.replay_recording().await,
        }
    }
}

impl EvalRun {
    async fn run_evaluation(self) -> anyhow::Result<ExitCode> {
        let places =
            InstructionPaths { root: self.instructions.clone(), ..InstructionPaths::default() };
        let asker = EvalRunner {
            voice: self.build_llm_client()?,
            model: self.model.clone(),
            systems: SystemPrompts::load_prompts(&places)?,
        };
        let mut recorder =
            self.record.as_deref().map(CallRecorder::create_recording).transpose()?;
        let mut answers = Vec::new();
        for table in &self.tables {
            let mut rows = rows::load_rows(&self.data, *table)?;
            rows.retain(|row| self.split.is_none_or(|split| row.row_half() == split));
            let rows = run::sample_rows(rows, self.limit, self.seed);
            for way in AskMethod::ALL {
                let mut done = 0;
                let mut tell = |answer: &EvalAnswer| {
                    done += 1;
                    print_progress(answer, done, rows.len());
                };
                answers.extend(asker.ask_rows(&rows, way, recorder.as_mut(), &mut tell).await?);
            }
        }
        if let Some(recorder) = recorder {
            recorder.finish_recording()?;
        }
        self.report.write_report(&EvalReport::from_answers(
            &self.model,
            &answers,
            self.report.prices,
        ))
    }

    fn build_llm_client(&self) -> anyhow::Result<LlmClient> {
        let key = match &self.key_file {
            Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
            None => "none".to_owned(),
        };
        let root = self.url.trim_end_matches('/').trim_end_matches("/v1");
        let endpoint = format!("{root}/v1/chat/completions");
        // Requests go only to the given server: no proxy and no redirects.
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        let pass = RequestCredentials::new(key.trim().to_owned().into());
        Ok(LlmClient::new(http, endpoint, pass, Duration::from_secs(self.timeout_seconds)))
    }
}

impl EvalReplay {
    async fn replay_recording(self) -> anyhow::Result<ExitCode> {
        let recording = EvalRecording::load_recording(&self.recording)?;
        let Some(first) = recording.calls.first() else { bail!("the recording is empty") };
        let differences = replay::find_differences(&recording).await;
        let answers: Vec<EvalAnswer> =
            recording.calls.iter().map(|call| call.outcome.clone()).collect();
        let told = self.report.write_report(&EvalReport::from_answers(
            &first.model,
            &answers,
            self.report.prices,
        ))?;
        for difference in &differences {
            print_to_stderr(difference);
        }
        if differences.is_empty() {
            print_to_stderr(&format!(
                "{} calls were gone through again, all decisions are the same",
                answers.len()
            ));
            return Ok(told);
        }
        bail!("{} of {} decisions are not the same", differences.len(), answers.len())
    }
}

impl ReportOptions {
    fn write_report(&self, report: &EvalReport) -> anyhow::Result<ExitCode> {
        let json = serde_json::to_string_pretty(report)?;
        let text = show::render_report(report);
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| out.display().to_string())?;
            write_report_file(out, "report.json", &json)?;
            write_report_file(out, "report.txt", &text)?;
            write_report_file(out, "report.svg", &picture::render_svg(report)?)?;
        }
        // A closed standard output is not an error.
        let _ = writeln!(io::stdout(), "{}", if self.json { &json } else { &text });
        let mut failed = false;
        for (requirement, shortfall) in report.find_shortfalls() {
            failed |= self.require.contains(&requirement);
            print_to_stderr(&shortfall);
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn write_report_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| file.display().to_string())
}

fn print_progress(answer: &EvalAnswer, done: usize, all: usize) {
    if done == all || done.is_multiple_of(10) {
        print_to_stderr(&format!(
            "{}, {}: {done} of {all}",
            answer.table.as_str(),
            answer.way.as_str()
        ));
    }
}

fn print_to_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
