//! One task from its words to its merge, told as it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, bail};
use cynode_core::{delivery::PullRequestState, tasks::TaskStateName, workflow::waits::WaitReason};
use cynode_wire::{
    delivery::{DiffView, PullRequestDetail, PullRequestView},
    evidence::{EvidenceState, TaskEvidence},
    handoffs::{HandoffAnswer, HandoffKind, HandoffState, HandoffView},
    nodes::JobEventView,
    reports::ReportView,
    timeline::{JobEntry, Timeline, WaitEntry},
};
use cynork::{
    client::{Call, Client, Items},
    draw, follow, operations, sample,
    terminal::{Screen, Style, clock},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::task::TaskTracker;

use super::house::{ALL, House, Members, ORCHESTRATOR};

/// How often it is looked for what has died.
const LOOK: Duration = Duration::from_millis(250);

/// How often the task is looked at though nothing was heard of it.
const POLL: Duration = Duration::from_secs(1);

/// How long it may take in all when nobody is there who could lose patience.
const PATIENCE: Duration = Duration::from_mins(8);

/// What is known of the task's own words and marks.
pub(super) struct Scene<'a> {
    pub(super) client: Client,
    pub(super) screen: &'a mut Screen,
    pub(super) house: &'a House,
    /// What the person types; none when every question is answered with yes.
    pub(super) lines: Option<mpsc::UnboundedReceiver<String>>,
    pub(super) begun: Instant,
    pub(super) project: String,
    pub(super) members: Members,
}

/// How the story ended.
pub(super) enum Ended {
    Merged,
    /// The person did not want it.
    Refused,
}

/// What was told already.
#[expect(clippy::struct_excessive_bools, reason = "each is told once, in any order")]
#[derive(Default)]
struct Told {
    class: bool,
    scope: bool,
    plan: bool,
    working: bool,
    answered: BTreeSet<String>,
    evidence: BTreeSet<String>,
    reports: BTreeSet<String>,
    steps: i64,
    /// How many events of each job.
    events: BTreeMap<String, u64>,
    number: usize,
}

impl Scene<'_> {
    /// Says something with the time.
    fn say(&mut self, words: &str) {
        let at = self.screen.paint.dye(Style::Dim, &format!("{:>5}", clock(self.begun.elapsed())));
        self.screen.say(&format!("{at}  {words}"));
    }

    fn dye(&self, style: Style, words: &str) -> String {
        self.screen.paint.dye(style, words)
    }

    fn head(&mut self, told: &mut Told, title: &str) {
        told.number += 1;
        self.screen.head(told.number, title);
    }

    /// Asks for something; while nobody answers it is said who is missing.
    async fn fetch<T: DeserializeOwned>(&mut self, call: Call) -> anyhow::Result<T> {
        let client = self.client.clone();
        let asked = client.until_taken(&call);
        tokio::pin!(asked);
        let mut turn = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return Ok(answer?),
                _ = turn.tick() => self.watch(),
            }
        }
    }

    /// Asks for the task and follows it until it is merged.
    pub(super) async fn play(&mut self) -> anyhow::Result<Ended> {
        let mut told = Told::default();
        self.head(&mut told, "What is asked for");
        self.say(&format!("“{}”", sample::WORDS));
        let (criterion, check) = sample::CRITERION;
        self.say(&format!("must be shown: {criterion}, by `{}`", check.join(" ")));
        let body = sample::task(&self.project);
        let call = Call::to(operations::CREATE_TASK, super::NONE).body(&body).key("demo-task");
        let task: Value = self.client.until_taken(&call).await?;
        let task = task["id"].as_str().context("the task has no id")?.to_owned();
        let (tell, mut heard) = mpsc::unbounded_channel();
        TaskTracker::new().spawn(follow::listen(self.client.clone(), task.clone(), tell));
        let mut turn = tokio::time::interval(LOOK);
        let mut looked: Option<Instant> = None;
        loop {
            let mut news = tokio::select! {
                kind = heard.recv() => kind.is_some(),
                _ = turn.tick() => false,
            };
            while heard.try_recv().is_ok() {
                news = true;
            }
            self.watch();
            if self.lines.is_none() && self.begun.elapsed() > PATIENCE {
                bail!("it did not end within {} minutes", PATIENCE.as_secs() / 60);
            }
            if !news && looked.is_some_and(|at| at.elapsed() < POLL) {
                continue;
            }
            looked = Some(Instant::now());
            let call = Call::to(operations::TASK_TIMELINE, [&task]);
            let timeline: Timeline = self.fetch(call).await?;
            self.tell(&mut told, &task, &timeline).await?;
            match timeline.state {
                TaskStateName::Completed => return self.deliver(&mut told, &task).await,
                TaskStateName::Failed | TaskStateName::Cancelled => {
                    bail!("the task ended otherwise: {}", timeline.standing)
                }
                TaskStateName::Queued | TaskStateName::Running => {}
            }
            if let Some(wait) = timeline.waits.last().filter(|wait| wait.resolved_at.is_none())
                && !self.answer(&mut told, &task, wait).await?
            {
                return Ok(Ended::Refused);
            }
        }
    }

    /// Says who died and who is back. Nobody has to ask.
    pub(super) fn watch(&mut self) {
        let now = self.house.members();
        if now == self.members {
            return;
        }
        if self.members.contains_key(ORCHESTRATOR) && !now.contains_key(ORCHESTRATOR) {
            let words =
                "the orchestrator died, and with it all that it had started; it is started again";
            let words = self.dye(Style::Yellow, words);
            self.say(&words);
        } else {
            let before = std::mem::take(&mut self.members);
            for (name, pid) in before.iter().filter(|(name, pid)| now.get(*name) != Some(*pid)) {
                let words = self.dye(Style::Yellow, &format!("{name} (pid {pid}) died"));
                self.say(&words);
            }
            self.members = before;
        }
        let fresh: Vec<String> = ALL
            .into_iter()
            .filter_map(|name| now.get(name).map(|pid| (name, *pid)))
            .filter(|(name, pid)| self.members.get(name) != Some(pid))
            .map(|(name, pid)| format!("{name} {pid}"))
            .collect();
        if !fresh.is_empty() {
            let words = self.dye(Style::Green, &format!("runs: {}", fresh.join(", ")));
            self.say(&words);
        }
        self.members = now;
    }

    /// Tells what is new about the task.
    async fn tell(
        &mut self,
        told: &mut Told,
        task: &str,
        timeline: &Timeline,
    ) -> anyhow::Result<()> {
        if !told.plan {
            self.judgement(told).await?;
        }
        for step in timeline.steps.iter().filter(|step| step.sequence > told.steps) {
            if let Some(note) = step.note.as_deref()
                && matches!(step.verdict.as_str(), "redo" | "revise" | "fail")
            {
                let note = note.lines().next().unwrap_or_default().trim_end_matches(':');
                let words = self.dye(Style::Yellow, &format!("sent back: {note}"));
                self.say(&words);
            }
        }
        told.steps = timeline.steps.last().map_or(told.steps, |step| step.sequence);
        if !told.working && !timeline.jobs.is_empty() {
            told.working = true;
            self.head(told, "Work in sandboxes, evidence, review");
        }
        for (at, job) in timeline.jobs.iter().enumerate() {
            // What comes after the work of an attempt are its checks.
            let same = |it: &JobEntry| it.unit == job.unit && it.attempt == job.attempt;
            let name = if timeline.jobs.iter().take(at).any(same) {
                format!("checks of {}", job.unit)
            } else {
                job.unit.clone()
            };
            self.job(told, &job.job_id.to_string(), &name).await?;
        }
        if told.working {
            self.reports(told, task).await?;
            self.evidence(told, task).await?;
        }
        let below = self.standing(timeline);
        self.screen.below(below);
        Ok(())
    }

    /// The lines that are drawn anew: where it stands, what it costs, each unit.
    fn standing(&self, timeline: &Timeline) -> Vec<String> {
        let cost = draw::money(timeline.cost_micros);
        let cap = draw::money(sample::CAP_MICROS);
        let mut lines = vec![format!(
            "{}  {}  ·  cost {cost} of {cap}",
            clock(self.begun.elapsed()),
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

    /// Class, scope and plan, as soon as each is known.
    async fn judgement(&mut self, told: &mut Told) -> anyhow::Result<()> {
        let call = Call::to(operations::LIST_HANDOFFS, [&self.project]);
        let handoffs: Items<HandoffView> = self.fetch(call).await?;
        let planned = |it: &&HandoffView| it.kind == HandoffKind::Plan;
        let Some(handoff) = handoffs.items.iter().find(planned) else { return Ok(()) };
        for thought in &handoff.thoughts {
            let Some(output) = &thought.output else { continue };
            let reason = output["reason"].as_str().unwrap_or_default();
            match thought.kind.as_str() {
                "classify" if !told.class => {
                    told.class = true;
                    self.head(told, "What kind of work it is, and how much");
                    let class = output["class"].as_str().unwrap_or_default();
                    let class = self.dye(Style::Bold, class);
                    self.say(&format!("class {class}: {reason}"));
                }
                "assess_scope" if !told.scope => {
                    told.scope = true;
                    let scope = output["scope"].as_str().unwrap_or_default();
                    let scope = self.dye(Style::Bold, scope);
                    self.say(&format!("scope {scope}: {reason}"));
                }
                _ => {}
            }
        }
        if handoff.state != HandoffState::Done {
            return Ok(());
        }
        let call = Call::to(operations::GET_HANDOFF, [handoff.handoff_id.to_string()]);
        let handoff: HandoffView = self.fetch(call).await?;
        if let Some(HandoffAnswer::Planned(planned)) = handoff.answer.as_deref() {
            told.plan = true;
            self.head(told, "The plan");
            for line in draw::plan(&planned.plan, self.screen.paint) {
                self.screen.say(&format!("       {line}"));
            }
        }
        Ok(())
    }

    /// What agents say and do.
    async fn job(&mut self, told: &mut Told, id: &str, name: &str) -> anyhow::Result<()> {
        let from = told.events.get(id).copied().unwrap_or(0);
        let call = Call::to(operations::JOB_EVENTS, [id]).query("from", Some(from));
        let events: Items<JobEventView> = self.fetch(call).await?;
        for event in &events.items {
            told.events.insert(id.to_owned(), event.number + 1);
            let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
            match event.event.as_str() {
                "said" => self.say(&format!("  {name}: “{}”", text("text"))),
                "tool" if event.data["status"] == "in_progress" => {
                    let title = text("title");
                    let words = self.dye(Style::Dim, &format!("  {name}: {title}"));
                    self.say(&words);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn reports(&mut self, told: &mut Told, task: &str) -> anyhow::Result<()> {
        let reports: Items<ReportView> =
            self.fetch(Call::to(operations::LIST_REPORTS, [task])).await?;
        for report in &reports.items {
            if told.reports.insert(report.report_id.to_string()) {
                let role = self.dye(Style::Cyan, report.agent_role.as_str());
                let words = format!("{role} reports {}: {}", report.kind.as_str(), report.summary);
                self.say(&words);
            }
        }
        Ok(())
    }

    async fn evidence(&mut self, told: &mut Told, task: &str) -> anyhow::Result<()> {
        let shown: TaskEvidence = self.fetch(Call::to(operations::TASK_EVIDENCE, [task])).await?;
        for view in &shown.evidence {
            let name = format!("{} {}", view.evidence_id, view.ended_at.is_some());
            if view.state == EvidenceState::Gathering || !told.evidence.insert(name) {
                continue;
            }
            let lines = draw::evidence(view, self.screen.paint);
            for (at, line) in lines.iter().enumerate() {
                if at == 0 { self.say(line) } else { self.screen.say(&format!("       {line}")) }
            }
        }
        Ok(())
    }

    /// Answers whatever the task asks a person; whether it may go on.
    async fn answer(
        &mut self,
        told: &mut Told,
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
                self.head(told, "Your yes");
                let yes = self.ask(question).await;
                told.answered.insert(name.clone());
                let call = if yes {
                    let body = json!({ "approved": true, "wait_id": wait.wait_id });
                    Call::to(operations::APPROVE_TASK, [task]).body(&body)
                } else {
                    Call::to(operations::CANCEL_TASK, [task])
                };
                let call = call.key(format!("demo-approve-{name}"));
                let _: Value = self.client.until_taken(&call).await?;
                Ok(yes)
            }
            WaitReason::HumanInput => {
                let words = self.dye(Style::Yellow, question);
                self.say(&words);
                let yes = self.ask("Try again?").await;
                told.answered.insert(name.clone());
                if yes {
                    let call = Call::to(operations::ANSWER_TASK, [task])
                        .body(&json!({ "text": "again", "wait_id": wait.wait_id }))
                        .key(format!("demo-answer-{name}"));
                    let _: Value = self.client.until_taken(&call).await?;
                }
                Ok(yes)
            }
            _ => Ok(true),
        }
    }

    /// A question to the person at the terminal.
    async fn ask(&mut self, question: &str) -> bool {
        let Some(mut lines) = self.lines.take() else {
            self.say(&format!("{question} yes (--yes)"));
            return true;
        };
        self.screen.ask(&format!("       {question} [Y/n]"));
        let mut turn = tokio::time::interval(LOOK);
        let answer = loop {
            tokio::select! {
                line = lines.recv() => break line,
                _ = turn.tick() => self.watch(),
            }
        };
        self.lines = Some(lines);
        let answer = answer.unwrap_or_else(|| "n".to_owned()).trim().to_lowercase();
        answer.is_empty() || answer.starts_with('y')
    }

    /// Lets the person look around before everything ends.
    pub(super) async fn linger(&mut self) {
        if let Some(mut lines) = self.lines.take() {
            self.screen.ask("Everything still runs. Press Enter to end it.");
            let mut turn = tokio::time::interval(LOOK);
            loop {
                tokio::select! {
                    _ = lines.recv() => break,
                    _ = turn.tick() => self.watch(),
                }
            }
        }
    }

    /// The pull request: what it changes, the merge, what it was.
    async fn deliver(&mut self, told: &mut Told, task: &str) -> anyhow::Result<Ended> {
        self.head(told, "The pull request");
        let call = Call::to(operations::TASK_TIMELINE, [&task]);
        let timeline: Timeline = self.fetch(call).await?;
        let entry = timeline.pull_request.as_ref().context("the task left no pull request")?;
        let id = entry.id.to_string();
        let detail: PullRequestDetail =
            self.fetch(Call::to(operations::GET_PULL_REQUEST, [&id])).await?;
        let offered = &detail.pull_request;
        self.screen.below(Vec::new());
        let title = self.dye(Style::Bold, &format!("#{} {}", offered.number, offered.title));
        self.say(&format!("{title}  {} → {}", offered.branch, offered.base_branch));
        for line in offered.body.lines().filter(|line| !line.trim().is_empty()).take(12) {
            let line = self.dye(Style::Dim, &format!("       {line}"));
            self.screen.say(&line);
        }
        let diff: DiffView = self.fetch(Call::to(operations::DIFF_PULL_REQUEST, [&id])).await?;
        for line in draw::diff(&diff.text, self.screen.paint) {
            self.screen.say(&format!("       {line}"));
        }
        if offered.state != PullRequestState::Merged {
            self.head(told, "The merge");
            if !self.ask(&format!("Merge it into {}?", offered.base_branch)).await {
                return Ok(Ended::Refused);
            }
            let call = Call::to(operations::MERGE_PULL_REQUEST, [&id]).key("demo-merge");
            let merged: PullRequestView = self.client.until_taken(&call).await?;
            let commit = merged.merge_commit.unwrap_or_default();
            let words = format!("merged into {} as {}", merged.base_branch, short(&commit));
            let words = self.dye(Style::Green, &words);
            self.say(&words);
        }
        self.head(told, "What happened");
        for line in draw::timeline(&timeline, self.screen.paint) {
            self.screen.say(&format!("  {line}"));
        }
        for line in timeline.summary.as_deref().unwrap_or_default().lines() {
            self.screen.say(&format!("       {line}"));
        }
        let (cost, cap) = (draw::money(timeline.cost_micros), draw::money(sample::CAP_MICROS));
        self.screen
            .say(&format!("       cost {cost} of {cap} (a scripted model at an invented price)"));
        Ok(Ended::Merged)
    }
}

pub(super) fn short(commit: &str) -> &str {
    &commit[..commit.len().min(10)]
}
