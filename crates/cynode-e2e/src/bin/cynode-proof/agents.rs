//! Real coding agents on a real node. Each changes a file of a real repository in its sandbox, through the real gateway and
//! egress, against a scripted model: undisturbed, killed in the middle of its turn, and with the node killed in that moment.

mod script;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use clap::Args;
use cynode_core::ids::TaskId;
use cynode_e2e::{
    faults::TcpProxy,
    nodes::{Machine, Traces, kill},
    world::{Victim, World},
};
use cynode_testkit::pause;
use serde_json::{Value, json};
use uuid::Uuid;

use self::script::{Errand, Tools};
use crate::{
    Places,
    nodes::scene::{Job, SceneOptions, enlist, final_state, git, jobs},
};

/// Timeout until the command runs during which a process is killed.
const REACHED: Duration = Duration::from_mins(2);

/// Timeout after which a task counts as stuck.
const STUCK: Duration = Duration::from_mins(4);

/// How long traces of an ended job may remain.
const CLEAN: Duration = Duration::from_secs(10);

/// The file that the agent changes.
const FILE: &str = "README.md";

/// The agent's unit, and the unit after it.
const UNIT: &str = "line";
const NEXT: &str = "next";

/// Real coding agents on a real node.
#[derive(Args)]
pub(crate) struct Agents {
    #[command(flatten)]
    places: Places,
    /// `cynode-node`.
    #[arg(long)]
    node: PathBuf,
    /// What namespaces that are made are called; whoever starts this can so find and remove them.
    #[arg(long)]
    tag: String,
    /// Keeps the world's directory when something is wrong.
    #[arg(long)]
    keep: bool,
    /// The folder of installed agents.
    #[arg(long)]
    installed: PathBuf,
    /// What the tools of each agent are called.
    #[arg(long)]
    tools: PathBuf,
    /// The repository, as a git bundle.
    #[arg(long)]
    repository: PathBuf,
    /// Only these agents.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Kills something for these agents only.
    #[arg(long, value_delimiter = ',')]
    kill: Option<Vec<String>>,
}

/// The process that is killed while the agent's command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Nothing,
    Agent,
    Node,
}

impl Killed {
    const ALL: [Self; 3] = [Self::Nothing, Self::Agent, Self::Node];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Agent => "agent",
            Self::Node => "node",
        }
    }
}

/// One case: an agent and the process that is killed.
struct AgentCase<'a> {
    agent: &'a str,
    tools: &'a Tools,
    killed: Killed,
}

impl AgentCase<'_> {
    /// Returns the name of its script, model and provider.
    fn name(&self) -> String {
        format!("{}-{}", self.agent, self.killed.as_str())
    }

    /// Returns the line that the agent adds.
    fn line(&self) -> String {
        format!("Added by {} ({} was killed).", self.agent, self.killed.as_str())
    }

    /// Returns the plan: one unit for this agent, and one that starts from its commit.
    fn plan(&self) -> Value {
        let work = json!({
            "role": "developer",
            "worker": { "kind": "acp", "agent": self.agent },
            "models": [self.name()],
            "context": {
                "task_summary": format!("Add the line \"{}\" to the end of {FILE}.", self.line()),
                "requirements": ["The line is there once."],
                "files_to_modify": [FILE],
            },
            "commit": "required",
        });
        // The worker that continues must find the line.
        let steps = json!([{ "argv": ["grep", "-qxF", self.line(), FILE] }]);
        let next = json!({
            "role": "tester",
            "worker": { "kind": "command", "steps": steps },
            "commit": "never",
        });
        json!({ "plan": { "steps": [
            { "key": UNIT, "title": "Add a line", "depends_on": [], "payload": { "work": work } },
            { "key": NEXT, "title": "Find the line", "depends_on": [UNIT], "payload": { "work": next } },
        ] } })
    }
}

/// Result of a case.
#[derive(Default)]
struct AgentRow {
    /// Time from the start of the sandbox to a session.
    start: Duration,
    /// Time from the last message to the agent to the end of its turn.
    turn: Duration,
    how: String,
    commits: usize,
    reports: usize,
    calls: usize,
    took: Duration,
    wrong: Vec<String>,
}

/// The installation on which the cases run.
struct AgentStage {
    // Dropped before the world.
    machine: Machine,
    way: TcpProxy,
    world: World,
}

/// Runs every case. Returns whether every agent meets its expectations.
pub(crate) async fn run(options: Agents) -> bool {
    let tools = Tools::read(&options.tools);
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|it| it == name);
    let may_kill =
        |name: &str| options.kill.as_ref().is_none_or(|it| it.iter().any(|it| it == name));
    let cases: Vec<_> = tools
        .iter()
        .filter(|(agent, _)| wanted(agent))
        .flat_map(|(agent, tools)| Killed::ALL.map(|killed| AgentCase { agent, tools, killed }))
        .filter(|case| case.killed == Killed::Nothing || may_kill(case.agent))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let scripts: serde_json::Map<_, _> =
        cases.iter().map(|case| (case.name(), case.plan())).collect();
    let Agents { places, node, tag, keep, installed, repository, .. } = options;
    let options = SceneOptions { places, node, tag, keep };
    let world = options.world(&scripts.into(), directory.path()).await;
    world.bring(&world.project, fs::read(&repository).unwrap()).await;
    // Scripts decide about these tasks, and no pull requests are opened for them.
    let nothing = json!({ "value": "none", "expected_version": 0 });
    world.put("/v1/preferences/delivery.mode?scope_type=system", &nothing).await;
    let machine = options.machine(&world, "node", None, &["--slots", "2"]);
    link(&installed, &machine.state.join("agents"));
    let way = TcpProxy::start_at(world.tasks(), machine.cable.host, world.internal).await;
    enlist(&world, &machine, &format!("http://{}", way.address)).await;
    let mut stage = AgentStage { machine, way, world };
    let good = stage.play(&cases).await;
    if good {
        stage.world.keep_not();
    }
    good
}

/// Links the installed agents to the place where the node looks for them; copies them only where a link is impossible.
pub(crate) fn link(from: &Path, to: &Path) {
    let copied = |how: &str| {
        let _ = fs::remove_dir_all(to);
        let mut copy = Command::new("cp");
        copy.args(["--archive", how]).arg(from).arg(to).output().unwrap().status.success()
    };
    assert!(copied("--link") || copied("--reflink=auto"), "{} cannot be copied", from.display());
}

impl AgentStage {
    async fn play(&self, cases: &[AgentCase<'_>]) -> bool {
        let begun = Instant::now();
        println!(
            "{:<10}{:<9}{:>8}{:>8}  {:<10}{:>8}{:>9}{:>7}{:>9}",
            "agent",
            "killed",
            "start",
            "turn",
            "work was",
            "commits",
            "reports",
            "calls",
            "seconds"
        );
        let mut bad = 0;
        for case in cases {
            let row = self.case(case).await;
            println!(
                "{:<10}{:<9}{:>6.1} s{:>6.1} s  {:<10}{:>8}{:>9}{:>7}{:>9.1}",
                case.agent,
                case.killed.as_str(),
                row.start.as_secs_f64(),
                row.turn.as_secs_f64(),
                row.how,
                row.commits,
                row.reports,
                row.calls,
                row.took.as_secs_f64(),
            );
            for text in &row.wrong {
                println!("    WRONG {text}");
            }
            bad += usize::from(!row.wrong.is_empty());
        }
        println!("\n{} cases in {:.0} s: {bad} bad", cases.len(), begun.elapsed().as_secs_f64());
        bad == 0 && !cases.is_empty()
    }

    async fn case(&self, case: &AgentCase<'_>) -> AgentRow {
        let mut row = AgentRow::default();
        let begun = Instant::now();
        let task = self.begin(case).await;
        if case.killed != Killed::Nothing {
            match self.reached(&task).await {
                Some(job) => row.wrong.extend(self.kill(case, &job).await),
                None => {
                    row.wrong
                        .push("the command is not reached in which something is killed".into());
                }
            }
        }
        if !within(STUCK, async || final_state(&self.world.pool, &task).await.is_some()).await {
            row.wrong.push("the task does not end".into());
        }
        row.took = begun.elapsed();
        self.look(case, &task, &mut row).await;
        row
    }

    /// Creates the task. Its model knows which task it is before any work begins.
    async fn begin(&self, case: &AgentCase<'_>) -> String {
        let (world, name) = (&self.world, case.name());
        let rules = |task: &str| {
            let places = [self.way.address, world.user, world.internal];
            let errand = Errand {
                task,
                file: FILE,
                line: &case.line(),
                places: &places,
                waits: case.killed != Killed::Nothing,
            };
            json!({ "kind": "scripted", "script": case.tools.script(&errand) })
        };
        world.put(&format!("/v1/providers/{name}"), &rules("unknown")).await;
        let prices = json!({ "input": 1000, "cached": 100, "cache_write": 1000, "output": 2000 });
        let model = json!({
            "context_tokens": 200_000, "max_output_tokens": 4000, "tools": true, "json_schema": true,
            "routes": [{ "provider": name, "upstream": "scripted", "prices": prices }],
        });
        world.put(&format!("/v1/model-registry/{name}"), &model).await;
        world.processes.pause(Victim::Runner);
        let task = world.task(&name).await;
        world.put(&format!("/v1/providers/{name}"), &rules(&task)).await;
        world.processes.go_on(Victim::Runner);
        task
    }

    /// Returns the job of a task once its agent is in the middle of its turn.
    async fn reached(&self, task: &str) -> Option<String> {
        let waiting = async || {
            let jobs = jobs(&self.world.pool, task).await;
            jobs.iter().map(Job::id).find(|job| self.machine.job(job).join("home/begun").exists())
        };
        let reached = within(REACHED, async || waiting().await.is_some()).await;
        if reached { waiting().await } else { None }
    }

    /// Kills a process in the middle of a turn and restarts it. Returns the problems that it found meanwhile.
    async fn kill(&self, case: &AgentCase<'_>, job: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let agents = self.agent_processes(job);
        if agents.is_empty() {
            wrong.push("no process of the agent is found".to_owned());
        }
        let seen: Vec<_> = agents.iter().filter(|pid| interfaces(**pid) != ["lo"]).collect();
        if !seen.is_empty() {
            wrong.push(format!("there is a network: {:?}", interfaces(*seen[0])));
        }
        match case.killed {
            Killed::Nothing => {}
            Killed::Agent => agents.into_iter().for_each(kill),
            Killed::Node => self.machine.kill(),
        }
        // The agent's commands must not outlive it, even if no node is there to end them.
        let jobs = [job.to_owned()];
        let left = || self.machine.traces(&jobs, "").processes;
        if case.killed == Killed::Node {
            if !within(CLEAN, async || left().is_empty()).await {
                wrong.push(format!("outlived the node: {:?}", left()));
            }
            self.machine.start();
        }
        wrong
    }

    /// Returns the processes of a job that run a program of its agent.
    fn agent_processes(&self, job: &str) -> Vec<i32> {
        let is_agent = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"/opt/agents/")
        };
        self.machine.members(job).into_iter().filter(is_agent).collect()
    }

    /// Checks the outcome of a case.
    async fn look(&self, case: &AgentCase<'_>, task: &str, row: &mut AgentRow) {
        let state = final_state(&self.world.pool, task).await;
        if state.as_deref() != Some("completed") {
            row.wrong.push(format!("the task is {state:?}"));
        }
        let all = jobs(&self.world.pool, task).await;
        let ids: Vec<_> = all.iter().map(Job::id).collect();
        let (jobs, next): (Vec<_>, Vec<_>) = all.into_iter().partition(|job| job.unit == UNIT);
        let states: Vec<_> = jobs.iter().map(|job| job.state.as_str()).collect();
        let meant: &[_] =
            if case.killed == Killed::Agent { &["failed", "succeeded"] } else { &["succeeded"] };
        if states != meant {
            let words: Vec<_> = jobs.iter().map(Job::words).collect();
            row.wrong.push(format!("its jobs are {states:?} {words:?}"));
        }
        let made = self.look_at_commits(case, &jobs, row);
        let found = |job: &Job| job.state == "succeeded" && job.base_commit == made;
        if next.len() != 1 || !next.iter().all(found) {
            let next: Vec<_> = next.iter().map(|job| (&job.state, &job.base_commit)).collect();
            row.wrong.push(format!("the unit after it, which starts from {made:?}: {next:?}"));
        }
        self.look_at_network(&jobs, row);
        self.look_at_records(case, task, &jobs, row).await;
        let left = || self.machine.traces(&ids, "");
        if !within(CLEAN, async || left().is_none()).await {
            let Traces { processes, groups, directories } = left();
            row.wrong.push(format!("left: {processes:?} {groups:?} {directories:?}"));
        }
    }

    /// Checks that there is one commit on top of the project's own, with one more line. Returns it.
    fn look_at_commits(
        &self,
        case: &AgentCase<'_>,
        jobs: &[Job],
        row: &mut AgentRow,
    ) -> Option<String> {
        let repository = self.world.repository(&self.world.project);
        let run = |arguments: &[&str]| git(&repository, arguments).unwrap_or_default();
        let base = run(&["rev-parse", "refs/heads/main"]);
        if jobs.first().and_then(|job| job.base_commit.as_deref()) != Some(&base) {
            row.wrong.push("it did not start from the project's commit".into());
        }
        let stored: Vec<_> = jobs
            .iter()
            .filter_map(|job| {
                let reference = format!("refs/cynode/jobs/{}", job.id());
                git(&repository, &["rev-parse", "--verify", "--quiet", &reference])
            })
            .collect();
        // An attempt that found everything done has the commit of the attempt before it.
        let mut claimed: Vec<_> = jobs.iter().filter_map(Job::commit).collect();
        claimed.dedup();
        if stored != claimed {
            row.wrong.push(format!("{claimed:?} were made and {stored:?} are stored"));
        }
        let last = stored.last()?;
        let mut all = vec!["rev-list".to_owned(), format!("^{base}")];
        all.extend(stored.iter().cloned());
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        row.commits = run(&all).lines().count();
        if row.commits != 1 {
            row.wrong.push(format!("there are {} commits over the base", row.commits));
        }
        let changed = run(&["diff", "--numstat", &base, last]);
        let text = |commit: &str| run(&["show", &format!("{commit}:{FILE}")]);
        if changed != format!("1\t0\t{FILE}")
            || text(last) != format!("{}\n{}", text(&base), case.line())
        {
            row.wrong.push(format!("the change is {changed:?}"));
        }
        Some(last.clone())
    }

    /// Checks the network view that the agent recorded beside its commit.
    fn look_at_network(&self, jobs: &[Job], row: &mut AgentRow) {
        let first = jobs.first().and_then(|job| job.result.as_ref());
        let digest = first.and_then(|result| result["artifacts"]["network"]["sha256"].as_str());
        let seen = digest.and_then(|digest| self.world.artifact(digest)).unwrap_or_default();
        let seen = String::from_utf8_lossy(&seen);
        if seen != script::NO_NETWORK {
            row.wrong.push(format!("of the network it saw {seen:?}"));
        }
    }

    /// Checks for one report, model calls of each job, and how the agent was started or resumed.
    async fn look_at_records(
        &self,
        case: &AgentCase<'_>,
        task: &str,
        jobs: &[Job],
        row: &mut AgentRow,
    ) {
        let raw = task.parse::<TaskId>().unwrap().as_uuid();
        let id = |job: Uuid| cynode_core::ids::JobId::from_uuid(job).to_string();
        let last = jobs.last().map(Job::id).unwrap_or_default();
        let query = "SELECT job_id, kind, summary FROM agent_reports WHERE task_id = $1";
        let reports: Vec<(Uuid, String, String)> =
            sqlx::query_as(query).bind(raw).fetch_all(&self.world.pool).await.unwrap();
        let reports: Vec<_> =
            reports.into_iter().map(|(job, kind, text)| (id(job), kind, text)).collect();
        row.reports = reports.len();
        if reports != [(last.clone(), "work_completed".to_owned(), script::REPORT.to_owned())] {
            row.wrong.push(format!("its reports are {reports:?}"));
        }
        let query =
            "SELECT job_id, outcome, count(*) FROM model_calls WHERE task_id = $1 GROUP BY 1, 2";
        let calls: Vec<(Uuid, String, i64)> =
            sqlx::query_as(query).bind(raw).fetch_all(&self.world.pool).await.unwrap();
        row.calls = calls.iter().map(|(.., count)| usize::try_from(*count).unwrap()).sum();
        let answered = |job: &Job| {
            calls.iter().any(|(of, outcome, count)| {
                id(*of) == job.id() && outcome == "answered" && *count >= 2
            })
        };
        if !jobs.iter().all(answered) || calls.iter().any(|(_, outcome, _)| outcome != "answered") {
            row.wrong.push(format!("its model calls are {calls:?}"));
        }
        let query =
            "SELECT event, data, elapsed_ms FROM job_events WHERE job_id = $1 ORDER BY number";
        let mut sessions = Vec::new();
        for job in jobs {
            let raw = job.id().parse::<cynode_core::ids::JobId>().unwrap().as_uuid();
            let events: Vec<(String, Value, i64)> =
                sqlx::query_as(query).bind(raw).fetch_all(&self.world.pool).await.unwrap();
            let at = |event: &str, what: fn(&Value) -> bool| {
                let found = events.iter().filter(|(it, data, _)| it == event && what(data));
                found
                    .map(|(.., at)| Duration::from_millis(u64::try_from(*at).unwrap_or(0)))
                    .next_back()
            };
            let between =
                |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
            let working = at("phase", |data| data["phase"] == "working");
            row.start = between(working, at("session", |_| true)).unwrap_or_default();
            row.turn =
                between(at("told", |_| true), at("phase", |data| data["phase"] == "finishing"))
                    .unwrap_or_default();
            let of_job = events.iter().filter(|(event, ..)| event == "session");
            sessions.push(of_job.map(|(_, data, _)| data["resumed"] == true).collect::<Vec<_>>());
        }
        let (how, meant) = match case.killed {
            Killed::Nothing => ("done", vec![vec![false]]),
            Killed::Agent => ("retried", vec![vec![false], vec![false]]),
            Killed::Node => ("resumed", vec![vec![false, true]]),
        };
        how.clone_into(&mut row.how);
        if sessions != meant {
            row.wrong
                .push(format!("its sessions, and whether they were taken up again: {sessions:?}"));
        }
    }
}

/// Waits until a condition holds. Returns whether it did so in time.
pub(crate) async fn within(timeout: Duration, holds: impl AsyncFn() -> bool) -> bool {
    let begun = Instant::now();
    while !holds().await {
        if begun.elapsed() > timeout {
            return false;
        }
        pause(Duration::from_millis(20)).await;
    }
    true
}

/// Returns the network interfaces that a process can see.
fn interfaces(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}
