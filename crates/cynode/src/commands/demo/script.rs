//! One task from its description to its merge, with its progress.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, bail};
use cynode_core::{
    budget::Currency,
    delivery::PullRequestState,
    tasks::TaskStateName,
    workflow::{
        evidence::EvidenceState,
        handoffs::{HandoffAnswer, HandoffKind, HandoffState},
        reports::ReportView,
        timeline::{JobEntry, WaitEntry},
        waits::WaitReason,
    },
};
use cynode_wire::{
    delivery::{DiffView, PullRequestDetail, PullRequestView, evidence::TaskEvidence},
    manager::handoffs::HandoffView,
    nodes::JobEventView,
    workflow::timeline::TaskTimeline,
};
use cynork::{
    client::{ApiClient, ApiRequest, ListResponse},
    draw, follow, operations, sample,
    terminal::{LiveTerminal, TextStyle, format_clock},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::task::TaskTracker;

use super::installation::{DemoInstallation, ORCHESTRATOR, PROGRAM_NAMES, ProgramPids};

/// The marker that the checks before any change were printed.
const BASE_CHECKS_KEY: &str = "base";

/// Interval of the check for dead processes.
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which the task is read without an event.
const TASK_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of the whole demo in non-interactive mode.
const DEMO_TIMEOUT: Duration = Duration::from_mins(8);

/// Input and output of the demo's task.
pub(super) struct DemoScript<'a> {
    pub(super) client: ApiClient,
    pub(super) screen: &'a mut LiveTerminal,
    pub(super) house: &'a DemoInstallation,
    /// The lines that the person types; `None` if every question is answered with yes.
    pub(super) lines: Option<mpsc::UnboundedReceiver<String>>,
    pub(super) begun: Instant,
    pub(super) project: String,
    pub(super) members: ProgramPids,
}

/// Outcome of the demo.
pub(super) enum DemoOutcome {
    Merged,
    /// The person declined.
    Refused,
}

/// What was already printed.
#[expect(clippy::struct_excessive_bools, reason = "each is told once, in any order")]
#[derive(Default)]
struct DemoProgress {
    class: bool,
    scope: bool,
    plan: bool,
    working: bool,
    answered: BTreeSet<String>,
    evidence: BTreeSet<String>,
    reports: BTreeSet<String>,
    steps: i64,
    /// Number of printed events of each job.
    events: BTreeMap<String, u64>,
    number: usize,
}

impl DemoScript<'_> {
    /// Prints a line with the time.
    fn print_timed(&mut self, words: &str) {
        let at = self
            .screen
            .paint
            .apply_style(TextStyle::Dim, &format!("{:>5}", format_clock(self.begun.elapsed())));
        self.screen.print_line(&format!("{at}  {words}"));
    }

    fn apply_style(&self, style: TextStyle, words: &str) -> String {
        self.screen.paint.apply_style(style, words)
    }

    fn print_heading(&mut self, told: &mut DemoProgress, title: &str) {
        told.number += 1;
        self.screen.print_heading(told.number, title);
    }

    /// Sends a request. While there is no answer, it reports the missing processes.
    async fn fetch_while_watching<T: DeserializeOwned>(
        &mut self,
        call: ApiRequest,
    ) -> anyhow::Result<T> {
        let client = self.client.clone();
        let asked = client.send_with_retry(&call);
        tokio::pin!(asked);
        let mut turn = tokio::time::interval(PROCESS_POLL_INTERVAL);
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return Ok(answer?),
                _ = turn.tick() => self.report_process_changes(),
            }
        }
    }

    /// Creates the task and follows it until it is merged.
    pub(super) async fn run_task(&mut self) -> anyhow::Result<DemoOutcome> {
        let mut told = DemoProgress::default();
        self.print_heading(&mut told, "What is asked for");
        self.print_timed(&format!("“{}”", sample::TASK_DESCRIPTION));
        let (criterion, check) = sample::ACCEPTANCE_CRITERION;
        self.print_timed(&format!("must be shown: {criterion}, by `{}`", check.join(" ")));
        let body = sample::task_request(&self.project);
        let call = ApiRequest::with_path_params(operations::CREATE_TASK, super::NO_PATH_PARAMS)
            .with_json_body(&body)
            .with_idempotency_key("demo-task");
        let task: Value = self.client.send_with_retry(&call).await?;
        let task = task["id"].as_str().context("the task has no id")?.to_owned();
        let (tell, mut heard) = mpsc::unbounded_channel();
        TaskTracker::new().spawn(follow::forward_task_events(
            self.client.clone(),
            task.clone(),
            tell,
        ));
        let mut turn = tokio::time::interval(PROCESS_POLL_INTERVAL);
        let mut looked: Option<Instant> = None;
        loop {
            let mut news = tokio::select! {
                signal = heard.recv() => signal.is_some(),
                _ = turn.tick() => false,
            };
            while heard.try_recv().is_ok() {
                news = true;
            }
            self.report_process_changes();
            if self.lines.is_none() && self.begun.elapsed() > DEMO_TIMEOUT {
                bail!("it did not end within {} minutes", DEMO_TIMEOUT.as_secs() / 60);
            }
            if !news && looked.is_some_and(|at| at.elapsed() < TASK_POLL_INTERVAL) {
                continue;
            }
            looked = Some(Instant::now());
            let call = ApiRequest::with_path_params(operations::TASK_TIMELINE, [&task]);
            let timeline: TaskTimeline = self.fetch_while_watching(call).await?;
            self.report_progress(&mut told, &task, &timeline).await?;
            match timeline.state {
                TaskStateName::Completed => {
                    return self.deliver_pull_request(&mut told, &task).await;
                }
                TaskStateName::Failed | TaskStateName::Cancelled => {
                    bail!("the task ended otherwise: {}", timeline.standing)
                }
                TaskStateName::Queued | TaskStateName::Running => {}
            }
            if let Some(wait) = timeline.waits.last().filter(|wait| wait.resolved_at.is_none())
                && !self.answer_wait(&mut told, &task, wait).await?
            {
                return Ok(DemoOutcome::Refused);
            }
        }
    }

    /// Reports processes that died and processes that are back.
    pub(super) fn report_process_changes(&mut self) {
        let now = self.house.running_programs();
        if now == self.members {
            return;
        }
        if self.members.contains_key(ORCHESTRATOR) && !now.contains_key(ORCHESTRATOR) {
            let words =
                "the orchestrator died, and with it all that it had started; it is started again";
            let words = self.apply_style(TextStyle::Yellow, words);
            self.print_timed(&words);
        } else {
            let before = std::mem::take(&mut self.members);
            for (name, pid) in before.iter().filter(|(name, pid)| now.get(*name) != Some(*pid)) {
                let words =
                    self.apply_style(TextStyle::Yellow, &format!("{name} (pid {pid}) died"));
                self.print_timed(&words);
            }
            self.members = before;
        }
        let fresh: Vec<String> = PROGRAM_NAMES
            .into_iter()
            .filter_map(|name| now.get(name).map(|pid| (name, *pid)))
            .filter(|(name, pid)| self.members.get(name) != Some(pid))
            .map(|(name, pid)| format!("{name} {pid}"))
            .collect();
        if !fresh.is_empty() {
            let words = self.apply_style(TextStyle::Green, &format!("runs: {}", fresh.join(", ")));
            self.print_timed(&words);
        }
        self.members = now;
    }

    /// Prints the progress of the task.
    async fn report_progress(
        &mut self,
        told: &mut DemoProgress,
        task: &str,
        timeline: &TaskTimeline,
    ) -> anyhow::Result<()> {
        if !told.plan {
            self.print_decisions(told).await?;
        }
        for step in timeline.steps.iter().filter(|step| step.sequence > told.steps) {
            if let Some(note) = step.note.as_deref()
                && matches!(step.verdict.as_str(), "redo" | "revise" | "fail")
            {
                let note = note.lines().next().unwrap_or_default().trim_end_matches(':');
                let words = self.apply_style(TextStyle::Yellow, &format!("sent back: {note}"));
                self.print_timed(&words);
            }
        }
        told.steps = timeline.steps.last().map_or(told.steps, |step| step.sequence);
        let tried = |job: &JobEntry| job.attempt == 0 && job.ended_at.is_some();
        if timeline.jobs.iter().any(tried) {
            self.print_base_checks(told, task).await?;
        }
        let works: Vec<&JobEntry> = timeline.jobs.iter().filter(|job| job.attempt > 0).collect();
        if !told.working && !works.is_empty() {
            told.working = true;
            self.print_heading(told, "Work in sandboxes, evidence, review");
        }
        for (at, job) in works.iter().enumerate() {
            // The job after the work of an attempt runs its checks.
            let same = |it: &&JobEntry| it.unit == job.unit && it.attempt == job.attempt;
            let name = if works.iter().take(at).any(same) {
                format!("checks of {}", job.unit)
            } else {
                job.unit.clone()
            };
            self.print_job_events(told, &job.job_id.to_string(), &name).await?;
        }
        if told.working {
            self.print_reports(told, task).await?;
            self.print_evidence(told, task).await?;
        }
        let below = self.status_lines(timeline);
        self.screen.set_status_lines(below);
        Ok(())
    }

    /// Returns the lines that are redrawn: state, cost, each unit.
    fn status_lines(&self, timeline: &TaskTimeline) -> Vec<String> {
        let cost = cynork::draw::format_amount(timeline.cost_micros);
        let cap = draw::format_money(sample::BUDGET_MICROS, Currency::USD);
        let mut lines = vec![format!(
            "{}  {}  ·  cost {cost} of {cap}",
            format_clock(self.begun.elapsed()),
            timeline.standing
        )];
        for unit in &timeline.units {
            let attempts = if unit.attempts > 1 {
                format!(", attempt {}", unit.attempts)
            } else {
                String::new()
            };
            lines.push(format!("{:<10} {}{attempts}", unit.state.as_str(), unit.title.as_str()));
        }
        lines
    }

    /// Prints class, scope and plan, as soon as each is known.
    async fn print_decisions(&mut self, told: &mut DemoProgress) -> anyhow::Result<()> {
        let call = ApiRequest::with_path_params(operations::LIST_HANDOFFS, [&self.project]);
        let handoffs: ListResponse<HandoffView> = self.fetch_while_watching(call).await?;
        let planned = |it: &&HandoffView| it.kind == HandoffKind::Plan;
        let Some(handoff) = handoffs.items.iter().find(planned) else { return Ok(()) };
        for decision in &handoff.decisions {
            let Some(output) = &decision.output else { continue };
            let reason = output["reason"].as_str().unwrap_or_default();
            match decision.kind.as_str() {
                "classify" if !told.class => {
                    told.class = true;
                    self.print_heading(told, "What kind of work it is, and how much");
                    let class = output["class"].as_str().unwrap_or_default();
                    let class = self.apply_style(TextStyle::Bold, class);
                    self.print_timed(&format!("class {class}: {reason}"));
                }
                "assess_scope" if !told.scope => {
                    told.scope = true;
                    let scope = output["scope"].as_str().unwrap_or_default();
                    let scope = self.apply_style(TextStyle::Bold, scope);
                    self.print_timed(&format!("scope {scope}: {reason}"));
                }
                _ => {}
            }
        }
        if handoff.state != HandoffState::Done {
            return Ok(());
        }
        let call =
            ApiRequest::with_path_params(operations::GET_HANDOFF, [handoff.handoff_id.to_string()]);
        let handoff: HandoffView = self.fetch_while_watching(call).await?;
        if let Some(HandoffAnswer::Planned(planned)) = handoff.answer.as_deref() {
            told.plan = true;
            self.print_heading(told, "The plan");
            for line in draw::render_plan(&planned.plan, self.screen.paint) {
                self.screen.print_line(&format!("       {line}"));
            }
        }
        Ok(())
    }

    /// Prints the messages and actions of agents.
    async fn print_job_events(
        &mut self,
        told: &mut DemoProgress,
        id: &str,
        name: &str,
    ) -> anyhow::Result<()> {
        let from = told.events.get(id).copied().unwrap_or(0);
        let call = ApiRequest::with_path_params(operations::JOB_EVENTS, [id])
            .with_query("from", Some(from));
        let events: ListResponse<JobEventView> = self.fetch_while_watching(call).await?;
        for event in &events.items {
            told.events.insert(id.to_owned(), event.number + 1);
            let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
            match event.event.as_str() {
                "message" => self.print_timed(&format!("  {name}: “{}”", text("text"))),
                "tool" if event.data["status"] == "in_progress" => {
                    let title = text("title");
                    let words = self.apply_style(TextStyle::Dim, &format!("  {name}: {title}"));
                    self.print_timed(&words);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn print_reports(&mut self, told: &mut DemoProgress, task: &str) -> anyhow::Result<()> {
        let reports: ListResponse<ReportView> = self
            .fetch_while_watching(ApiRequest::with_path_params(operations::LIST_REPORTS, [task]))
            .await?;
        for report in &reports.items {
            if told.reports.insert(report.report_id.to_string()) {
                let role = self.apply_style(TextStyle::Cyan, report.agent_role.as_str());
                let words = format!("{role} reports {}: {}", report.kind.as_str(), report.summary);
                self.print_timed(&words);
            }
        }
        Ok(())
    }

    /// Prints the results of the checks before any change, once.
    async fn print_base_checks(
        &mut self,
        told: &mut DemoProgress,
        task: &str,
    ) -> anyhow::Result<()> {
        if told.evidence.contains(BASE_CHECKS_KEY) {
            return Ok(());
        }
        let shown: TaskEvidence = self
            .fetch_while_watching(ApiRequest::with_path_params(operations::TASK_EVIDENCE, [task]))
            .await?;
        if let Some(base) = shown.base.filter(|base| base.state != EvidenceState::Gathering) {
            told.evidence.insert(BASE_CHECKS_KEY.to_owned());
            let lines = draw::render_base_checks(&base, self.screen.paint);
            for (at, line) in lines.iter().enumerate() {
                if at == 0 {
                    self.print_timed(line);
                } else {
                    self.screen.print_line(&format!("       {line}"));
                }
            }
        }
        Ok(())
    }

    async fn print_evidence(&mut self, told: &mut DemoProgress, task: &str) -> anyhow::Result<()> {
        let shown: TaskEvidence = self
            .fetch_while_watching(ApiRequest::with_path_params(operations::TASK_EVIDENCE, [task]))
            .await?;
        for view in &shown.evidence {
            let name = format!("{} {}", view.evidence_id, view.ended_at.is_some());
            if view.state == EvidenceState::Gathering || !told.evidence.insert(name) {
                continue;
            }
            let lines = draw::render_evidence(view, self.screen.paint);
            for (at, line) in lines.iter().enumerate() {
                if at == 0 {
                    self.print_timed(line);
                } else {
                    self.screen.print_line(&format!("       {line}"));
                }
            }
        }
        Ok(())
    }

    /// Answers the question of a waiting task. Returns whether it may continue.
    async fn answer_wait(
        &mut self,
        told: &mut DemoProgress,
        task: &str,
        wait: &WaitEntry,
    ) -> anyhow::Result<bool> {
        let name = wait.opened_at.unix_timestamp_nanos().to_string();
        if told.answered.contains(&name) {
            return Ok(true);
        }
        let question = wait.question.as_deref().unwrap_or("May it go on?");
        match wait.reason {
            WaitReason::Approval if told.plan => {
                self.print_heading(told, "Your yes");
                let yes = self.ask_yes_no(question).await;
                told.answered.insert(name.clone());
                let call = if yes {
                    let body = json!({ "approved": true, "wait_id": wait.wait_id });
                    ApiRequest::with_path_params(operations::APPROVE_TASK, [task])
                        .with_json_body(&body)
                } else {
                    ApiRequest::with_path_params(operations::CANCEL_TASK, [task])
                };
                let call = call.with_idempotency_key(format!("demo-approve-{name}"));
                let _: Value = self.client.send_with_retry(&call).await?;
                Ok(yes)
            }
            WaitReason::HumanInput => {
                let words = self.apply_style(TextStyle::Yellow, question);
                self.print_timed(&words);
                let yes = self.ask_yes_no("Try again?").await;
                told.answered.insert(name.clone());
                if yes {
                    let call = ApiRequest::with_path_params(operations::ANSWER_TASK, [task])
                        .with_json_body(&json!({ "text": "again", "wait_id": wait.wait_id }))
                        .with_idempotency_key(format!("demo-answer-{name}"));
                    let _: Value = self.client.send_with_retry(&call).await?;
                }
                Ok(yes)
            }
            _ => Ok(true),
        }
    }

    /// Asks the person at the terminal a yes/no question.
    async fn ask_yes_no(&mut self, question: &str) -> bool {
        let Some(mut lines) = self.lines.take() else {
            self.print_timed(&format!("{question} yes (--yes)"));
            return true;
        };
        self.screen.show_prompt(&format!("       {question} [Y/n]"));
        let mut turn = tokio::time::interval(PROCESS_POLL_INTERVAL);
        let answer = loop {
            tokio::select! {
                line = lines.recv() => break line,
                _ = turn.tick() => self.report_process_changes(),
            }
        };
        self.lines = Some(lines);
        let answer = answer.unwrap_or_else(|| "n".to_owned()).trim().to_lowercase();
        answer.is_empty() || answer.starts_with('y')
    }

    /// Waits for Enter, so that the person can look around before everything ends.
    pub(super) async fn wait_for_enter(&mut self) {
        if let Some(mut lines) = self.lines.take() {
            self.screen.show_prompt("Everything still runs. Press Enter to end it.");
            let mut turn = tokio::time::interval(PROCESS_POLL_INTERVAL);
            loop {
                tokio::select! {
                    _ = lines.recv() => break,
                    _ = turn.tick() => self.report_process_changes(),
                }
            }
        }
    }

    /// Shows the pull request, merges it, and prints the result.
    async fn deliver_pull_request(
        &mut self,
        told: &mut DemoProgress,
        task: &str,
    ) -> anyhow::Result<DemoOutcome> {
        self.print_heading(told, "The pull request");
        let call = ApiRequest::with_path_params(operations::TASK_TIMELINE, [&task]);
        let timeline: TaskTimeline = self.fetch_while_watching(call).await?;
        let entry = timeline.pull_request.as_ref().context("the task left no pull request")?;
        let id = entry.id.to_string();
        let detail: PullRequestDetail = self
            .fetch_while_watching(ApiRequest::with_path_params(operations::GET_PULL_REQUEST, [&id]))
            .await?;
        let offered = &detail.pull_request;
        self.screen.set_status_lines(Vec::new());
        let title =
            self.apply_style(TextStyle::Bold, &format!("#{} {}", offered.number, offered.title));
        self.print_timed(&format!("{title}  {} → {}", offered.branch, offered.base_branch));
        for line in offered.body.lines().filter(|line| !line.trim().is_empty()).take(12) {
            let line = self.apply_style(TextStyle::Dim, &format!("       {line}"));
            self.screen.print_line(&line);
        }
        let diff: DiffView = self
            .fetch_while_watching(ApiRequest::with_path_params(
                operations::DIFF_PULL_REQUEST,
                [&id],
            ))
            .await?;
        for line in draw::render_diff(&diff.text, self.screen.paint) {
            self.screen.print_line(&format!("       {line}"));
        }
        if offered.state != PullRequestState::Merged {
            self.print_heading(told, "The merge");
            if !self.ask_yes_no(&format!("Merge it into {}?", offered.base_branch)).await {
                return Ok(DemoOutcome::Refused);
            }
            let call = ApiRequest::with_path_params(operations::MERGE_PULL_REQUEST, [&id])
                .with_idempotency_key("demo-merge");
            let merged: PullRequestView = self.client.send_with_retry(&call).await?;
            let commit = merged.merge_commit.unwrap_or_default();
            let words = format!("merged into {} as {}", merged.base_branch, short_commit(&commit));
            let words = self.apply_style(TextStyle::Green, &words);
            self.print_timed(&words);
        }
        self.print_heading(told, "What happened");
        for line in draw::render_timeline(&timeline, self.screen.paint) {
            self.screen.print_line(&format!("  {line}"));
        }
        for line in timeline.summary.as_deref().unwrap_or_default().lines() {
            self.screen.print_line(&format!("       {line}"));
        }
        let cost = cynork::draw::format_amount(timeline.cost_micros);
        let cap = draw::format_money(sample::BUDGET_MICROS, Currency::USD);
        self.screen.print_line(&format!(
            "       cost {cost} of {cap} (a scripted model at an invented price)"
        ));
        Ok(DemoOutcome::Merged)
    }
}

pub(super) fn short_commit(commit: &str) -> &str {
    &commit[..commit.len().min(10)]
}
