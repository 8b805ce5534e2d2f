//! Injects a fault in every state of a job on a node, and checks the outcome.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use cynode_e2e::{
    faults::Phase,
    node_proxy::{Hold, NodeProxy, Release},
    nodes::{Machine, Traces, kill},
    world::{Victim, World},
};
use cynode_testkit::pause;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use super::scene::{
    Job, SceneOptions, enlist, final_state, jobs, repository, unit, unit_of, until, wrong,
};

/// Name of the agent that asks a person, as the node knows it.
const ASKER: &str = "asker";
const ASKER_PROGRAM: &str = include_str!("agent.py");

/// Timeout until a state is reached.
const REACHED: Duration = Duration::from_mins(1);

/// Timeout, after everything is restored, after which a task counts as stuck.
const STUCK: Duration = Duration::from_mins(3);

/// How long traces of ended jobs may remain after everything is restored.
const CLEAN: Duration = Duration::from_secs(10);

/// How long a full disk stays full, unless the job ends before.
const FULL: Duration = Duration::from_secs(10);

/// Size of the node's disk, and how much of it must be free for jobs.
const DISK_MIB: u32 = 512;
const FLOOR_MIB: &str = "64";

/// How far the clock jumps.
const STEP: &str = "+3d";
const NO_STEP: &str = "+0d";

/// Breaks something at every state of a job.
#[derive(Args)]
pub(crate) struct NodeFaults {
    /// Brings a job into every state at once and breaks them together, instead of one after the other.
    #[arg(long)]
    together: bool,
    /// For how many seconds the node is cut off.
    #[arg(long, default_value_t = 60)]
    cut: u64,
    /// Only faults whose name holds this.
    #[arg(long)]
    only: Option<String>,
    /// Only this state.
    #[arg(long)]
    state: Option<String>,
    /// libfaketime, which lets the node's wall clock jump and no other.
    #[arg(long)]
    faketime: PathBuf,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its repository is being fetched.
    Preparing,
    /// Its command runs.
    Working,
    /// Its agent waits for a person.
    Asking,
    /// Its commit is being made.
    Finishing,
    /// Its result is on the node's disk, and the orchestrator has not received it.
    Written,
    /// The orchestrator has its result, and the node has no acknowledgement.
    Unanswered,
}

impl State {
    const ALL: [Self; 6] = [
        Self::Preparing,
        Self::Working,
        Self::Asking,
        Self::Finishing,
        Self::Written,
        Self::Unanswered,
    ];

    /// Returns its name in tables; its script and its only unit have the same name.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Working => "working",
            Self::Asking => "asking",
            Self::Finishing => "finishing",
            Self::Written => "written",
            Self::Unanswered => "unanswered",
        }
    }

    /// Returns whether processes of the job run in this state.
    const fn has_processes(self) -> bool {
        !matches!(self, Self::Written | Self::Unanswered)
    }
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillNode,
    KillOrchestrator,
    KillSandbox,
    Cut,
    Clock,
    Disk,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::KillNode,
        Self::KillOrchestrator,
        Self::KillSandbox,
        Self::Cut,
        Self::Clock,
        Self::Disk,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::KillNode => "node killed",
            Self::KillOrchestrator => "orchestrator killed",
            Self::KillSandbox => "sandbox killed",
            Self::Cut => "cut off",
            Self::Clock => "clock jumps",
            Self::Disk => "disk full",
        }
    }

    /// Returns whether the fault applies to the state.
    const fn concerns(self, state: State) -> bool {
        !matches!(self, Self::KillSandbox) || state.has_processes()
    }

    /// Returns whether the fault may lose a stored result: only if the node is cut off for as long as a lease lasts.
    const fn may_lose(self, cut: Duration) -> bool {
        matches!(self, Self::Cut) && cut.as_secs() >= 55
    }
}

/// A job that was brought into a state.
struct FaultCase {
    state: State,
    project: String,
    task: String,
    job: String,
}

/// Outcome of a case.
struct FaultRow {
    state: State,
    fault: Fault,
    outcome: String,
    attempts: usize,
    ended: Duration,
    clean: Duration,
    wrong: Vec<String>,
}

struct FaultStage {
    // Dropped before the world.
    machine: Machine,
    way: NodeProxy,
    world: World,
    mark: String,
    clock: PathBuf,
    cut: Duration,
}

pub(crate) async fn run(options: &SceneOptions, faults: NodeFaults) -> bool {
    let mark = format!("faults-{:016x}", rand::random::<u64>());
    let directory = tempfile::tempdir().unwrap();
    let world = options.world(&scripts(&mark), directory.path()).await;
    world.bring(&world.project, repository()).await;
    // Scripts decide about these tasks, and no pull requests are opened for them.
    let nothing = json!({ "value": "none", "expected_version": 0 });
    world.put("/v1/preferences/delivery.mode?scope_type=system", &nothing).await;
    let recipes = directory.path().join("recipes");
    let flags =
        ["--slots", "8", "--min-free-disk-mib", FLOOR_MIB, "--recipes", recipes.to_str().unwrap()];
    let machine = options.machine(&world, "node", Some(DISK_MIB), &flags);
    install_asker(&recipes, &machine.state);
    let way = NodeProxy::start(world.tasks(), machine.cable.host, world.internal).await;
    enlist(&world, &machine, &format!("http://{}", way.address)).await;
    let (clock, cut) = (directory.path().join("clock"), Duration::from_secs(faults.cut));
    let mut stage = FaultStage { machine, way, world, mark, clock, cut };
    let good = stage.play(&faults).await;
    if good {
        stage.world.keep_not();
    }
    good
}

/// Returns one task for each state; its only unit creates a file of its name.
fn scripts(mark: &str) -> Value {
    let wait = "touch ~/begun; until [ -e ~/go ]; do sleep 0.05; done";
    // `git add` of everything reads the ignore file, and a pipe blocks it.
    let late = "mkfifo .gitignore";
    let script = |state: State| {
        let name = state.as_str();
        let work = match state {
            State::Asking => unit_of(name, None, &json!({ "kind": "acp", "agent": ASKER })),
            State::Preparing => unit(name, None, &format!("echo {mark} > {name}")),
            State::Finishing => unit(name, None, &format!("echo {mark} > {name}; {late}")),
            State::Working | State::Written | State::Unanswered => {
                unit(name, None, &format!("{wait}; echo {mark} > {name}"))
            }
        };
        (name.to_owned(), json!({ "plan": { "steps": [work] } }))
    };
    State::ALL.map(script).into_iter().collect::<serde_json::Map<_, _>>().into()
}

/// Returns whether this is the command line of a fetching git itself, not of its supervisor.
fn fetches(line: &str) -> bool {
    line.starts_with("git ") || line.contains("git-remote")
}

/// Installs the agent where the node looks for installed ones.
fn install_asker(recipes: &Path, state: &Path) {
    let (package, version) = ("cynode-asker", "1.0.0");
    let program = r#"["/usr/bin/python3", "{agent}/agent.py""#;
    let recipe = format!(
        "name = \"{ASKER}\"\ntitle = \"Asker\"\nlicence = \"MIT\"\ndialect = \"chat\"\nprogram = {program}]\n\
         version = {program}, \"--version\"]\n[packages]\n{package} = \"{version}\"\n"
    );
    fs::create_dir_all(recipes).unwrap();
    fs::write(recipes.join(format!("{ASKER}.toml")), recipe).unwrap();
    let place = state.join("agents").join(ASKER);
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("agent.py"), ASKER_PROGRAM).unwrap();
    let made_of = json!({ "packages": { package: version }, "native": {} });
    let mark = json!({ "agent": ASKER, "made_of": made_of }).to_string();
    fs::write(place.join("cynode-agent.json"), mark).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
}

impl FaultStage {
    async fn play(&self, faults: &NodeFaults) -> bool {
        let only = |name: &str| faults.only.as_deref().is_none_or(|only| name.contains(only));
        let wanted = |state: &State| faults.state.as_deref().is_none_or(|it| it == state.as_str());
        let begun = Instant::now();
        let (mut cells, mut bad) = (0, 0);
        println!(
            "{:<12}{:<21}{:>8}{:>9}{:>9}  what came of it",
            "state", "fault", "attempts", "ended", "clean"
        );
        for fault in Fault::ALL.into_iter().filter(|fault| only(fault.as_str())) {
            let states: Vec<_> = State::ALL
                .into_iter()
                .filter(|state| wanted(state) && fault.concerns(*state))
                .collect();
            // A minute for each would be long: one cut serves all states.
            let rounds: Vec<_> = if faults.together || fault == Fault::Cut {
                vec![states]
            } else {
                states.into_iter().map(|state| vec![state]).collect()
            };
            self.get_ready(fault, &faults.faketime).await;
            for states in rounds {
                for row in self.round(fault, &states).await {
                    cells += 1;
                    bad += usize::from(!row.wrong.is_empty());
                    row.print();
                }
            }
        }
        println!("\n{cells} cells in {:.0} s: {bad} bad", begun.elapsed().as_secs_f64());
        bad == 0 && cells > 0
    }

    /// Prepares the node. The clock can only jump for a node that was started with the fake clock.
    async fn get_ready(&self, fault: Fault, faketime: &Path) {
        let environment = if fault == Fault::Clock {
            fs::write(&self.clock, NO_STEP).unwrap();
            let text = |path: &Path| path.display().to_string();
            let pairs = [
                ("LD_PRELOAD", text(faketime)),
                ("FAKETIME_TIMESTAMP_FILE", text(&self.clock)),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ];
            pairs.map(|(name, value)| (name.to_owned(), value)).into()
        } else {
            Vec::new()
        };
        self.machine.set_environment(environment);
        assert!(
            self.machine.stop(Duration::from_secs(20)).await,
            "the node does not end when asked"
        );
        self.machine.start();
    }

    /// Brings jobs into states, injects the fault, and checks the outcome.
    async fn round(&self, fault: Fault, states: &[State]) -> Vec<FaultRow> {
        let mut cases = Vec::new();
        // The fetching job comes last, because it blocks later jobs of its project.
        for state in states.iter().rev() {
            cases.push(self.bring_into(*state).await);
        }
        let log_before = self.log_lines();
        let mut wrongs = self.break_it(fault, &cases).await;
        let back = Instant::now();
        let mut rows = self.follow(fault, &cases, back).await;
        if fault == Fault::Clock && !self.step_back(log_before) {
            wrongs.push("the node did not see its clock jump".to_owned());
        }
        for (row, case) in rows.iter_mut().zip(&cases) {
            row.wrong.append(&mut wrongs.clone());
            row.wrong.extend(self.wrong_answers(case).await);
            if case.state.is_settled() && row.attempts != 1 && !fault.may_lose(self.cut) {
                row.wrong.push("its result was there, and it was done again".to_owned());
            }
        }
        rows.reverse();
        rows
    }

    /// Returns the job of a task once its node has it.
    async fn claimed(&self, task: &str) -> Job {
        let begun = Instant::now();
        loop {
            let running = jobs(&self.world.pool, task).await;
            if let Some(job) = running.into_iter().find(|job| job.state == "running") {
                return job;
            }
            assert!(begun.elapsed() < REACHED, "nobody claims the job of {task}");
            assert!(!self.machine.has_ended(), "the node has ended by itself");
            pause(Duration::from_millis(10)).await;
        }
    }

    async fn bring_into(&self, state: State) -> FaultCase {
        let fetch = Hold { path: "/git/".to_owned(), phase: Phase::Before };
        let project = if state == State::Preparing {
            // Only a repository that is new to the node must be fetched.
            let project = self.world.project().await;
            self.world.bring(&project, repository()).await;
            self.way.hold(fetch.clone());
            project
        } else {
            self.world.project.clone()
        };
        let task = self.world.task_in(&project, state.as_str()).await;
        let job = self.claimed(&task).await.id();
        let directory = self.machine.job(&job);
        let begun = || directory.join("home/begun").exists();
        let result = |phase| Hold { path: format!("{job}/result"), phase };
        let reached = |what: &str| format!("{}: {what}", state.as_str());
        match state {
            State::Preparing => {
                let why = reached("its repository is not fetched");
                until(&why, REACHED, async || self.way.holds(&fetch)).await;
            }
            State::Working => {
                until(&reached("its command does not run"), REACHED, async || begun()).await;
            }
            State::Asking => {
                until(&reached("nobody is asked"), REACHED, async || {
                    let now = jobs(&self.world.pool, &task).await;
                    now.iter().any(|job| job.phase.as_deref() == Some("asking"))
                })
                .await;
            }
            State::Finishing => {
                until(&reached("no commit is made"), REACHED, async || self.is_finishing(&job))
                    .await;
            }
            State::Written | State::Unanswered => {
                until(&reached("its command does not run"), REACHED, async || begun()).await;
                let phase = if state == State::Written { Phase::Before } else { Phase::After };
                let hold = result(phase);
                self.way.hold(hold.clone());
                self.let_go(&job);
                let why = reached("no result is sent");
                until(&why, REACHED, async || self.way.holds(&hold)).await;
                assert!(
                    directory.join("result.json").exists(),
                    "a result was sent that was not kept"
                );
            }
        }
        // A search for leftovers is only valid if it found the processes before.
        if matches!(state, State::Working | State::Asking | State::Finishing) {
            let there = self.machine.traces(std::slice::from_ref(&job), "");
            let all = !there.processes.is_empty() && !there.groups.is_empty();
            assert!(all && !there.directories.is_empty(), "traces are not found: {there:?}");
        }
        FaultCase { state, project, task, job }
    }

    /// Returns whether the run that makes the commit is in progress.
    fn is_finishing(&self, job: &str) -> bool {
        let directory = self.machine.job(job);
        directory.join("turn.json").exists()
            && !directory.join("result.json").exists()
            && !self.machine.members(job).is_empty()
    }

    /// Releases a job, whatever it waits for. Idempotent.
    fn let_go(&self, job: &str) {
        let directory = self.machine.job(job);
        let _ = fs::write(directory.join("home/go"), "");
        // A reader of the pipe finds it empty; without a reader this fails.
        let pipe = directory.join("workspace/.gitignore");
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        let _ = OpenOptions::new().write(true).custom_flags(flags).open(pipe);
    }

    /// Releases every waiting job.
    async fn let_all_go(&self) {
        for entry in fs::read_dir(self.machine.state.join("jobs")).into_iter().flatten().flatten() {
            self.let_go(&entry.file_name().to_string_lossy());
        }
        let open = self.world.try_get("/v1/approvals").await.unwrap_or_default();
        for approval in open["items"].as_array().into_iter().flatten() {
            if approval["state"] == "asked"
                && let Some(id) = approval["approval_id"].as_str()
            {
                self.world.post(&format!("/v1/approvals/{id}"), json!({ "approved": true })).await;
            }
        }
    }

    /// Injects a fault and repairs it. Returns the problems that it found meanwhile.
    async fn break_it(&self, fault: Fault, cases: &[FaultCase]) -> Vec<String> {
        let mut wrong = Vec::new();
        match fault {
            Fault::KillNode => {
                self.machine.kill();
                // No node is there to clean up: the processes must end by themselves.
                let begun = Instant::now();
                let ids: Vec<_> = cases.iter().map(|case| case.job.clone()).collect();
                loop {
                    let mut left = self.machine.traces(&ids, &self.mark).processes;
                    left.extend(self.machine.companions());
                    if left.is_empty() {
                        break;
                    }
                    if begun.elapsed() > CLEAN {
                        wrong.push(format!("outlived the node: {left:?}"));
                        break;
                    }
                    pause(Duration::from_millis(20)).await;
                }
                self.way.release(Release::Lose);
                self.machine.start();
            }
            Fault::KillOrchestrator => {
                self.world.processes.kill(Victim::Orchestrator);
                self.way.release(Release::Lose);
                self.world.processes.start(Victim::Orchestrator);
                self.world.wait_until_it_works().await;
            }
            Fault::KillSandbox => {
                for case in cases {
                    let victims = self.victims(case);
                    if victims.is_empty() {
                        wrong.push(format!(
                            "{}: nothing ran that could be killed",
                            case.state.as_str()
                        ));
                    }
                    for pid in victims {
                        kill(pid);
                    }
                }
                self.way.release(Release::Pass);
            }
            Fault::Cut => {
                self.machine.cable.cut();
                self.way.release(Release::Pass);
                pause(self.cut).await;
                self.machine.cable.mend();
            }
            Fault::Clock => {
                fs::write(&self.clock, STEP).unwrap();
                self.way.release(Release::Pass);
            }
            Fault::Disk => {
                self.machine.fill();
                self.way.release(Release::Pass);
                let begun = Instant::now();
                while begun.elapsed() < FULL && !self.all_over(cases).await {
                    self.let_all_go().await;
                    pause(Duration::from_millis(50)).await;
                }
                self.machine.unfill();
            }
        }
        wrong
    }

    /// Returns the processes of a job: its sandbox, or the node's host processes for it.
    fn victims(&self, case: &FaultCase) -> Vec<i32> {
        if case.state == State::Preparing {
            let all = self.machine.companions().into_iter();
            return all
                .filter_map(|(pid, line)| fetches(&line).then(|| i32::try_from(pid).ok())?)
                .collect();
        }
        self.machine.members(&case.job).into_iter().collect()
    }

    async fn all_over(&self, cases: &[FaultCase]) -> bool {
        for case in cases {
            let now = jobs(&self.world.pool, &case.task).await;
            if now.iter().any(|job| job.id() == case.job && !job.is_final()) {
                return false;
            }
        }
        true
    }

    /// Moves the clock back, which must have no effect either. Returns `false` if the node had never seen the jump.
    fn step_back(&self, log_before: usize) -> bool {
        let log = fs::read_to_string(self.machine.log()).unwrap_or_default();
        let format = &time::format_description::well_known::Rfc3339;
        let stamps: Vec<_> = log
            .lines()
            .skip(log_before.saturating_sub(1))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter_map(|line| {
                time::OffsetDateTime::parse(line["timestamp"].as_str()?, format).ok()
            })
            .collect();
        fs::write(&self.clock, NO_STEP).unwrap();
        // From the last line before the jump to the first one after it.
        stamps.windows(2).any(|pair| (pair[1] - pair[0]).whole_days() >= 2)
    }

    fn log_lines(&self) -> usize {
        fs::read_to_string(self.machine.log()).unwrap_or_default().lines().count()
    }

    /// Releases everything until every task has ended and no traces are left.
    async fn follow(&self, fault: Fault, cases: &[FaultCase], back: Instant) -> Vec<FaultRow> {
        let mut rows: Vec<Option<FaultRow>> = cases.iter().map(|_| None).collect();
        // When each ended job was first seen to have ended.
        let mut over = BTreeMap::new();
        while rows.iter().any(Option::is_none) {
            self.let_all_go().await;
            if self.machine.has_ended() {
                // A supervisor would restart it.
                println!("the node has ended by itself and is started again");
                self.machine.kill();
                self.machine.start();
            }
            for (row, case) in rows.iter_mut().zip(cases).filter(|(row, _)| row.is_none()) {
                *row = self.look(fault, case, back, &mut over).await;
            }
            pause(Duration::from_millis(50)).await;
        }
        rows.into_iter().flatten().collect()
    }

    /// Returns the outcome of a case, once it has ended without traces, or its timeout.
    async fn look(
        &self,
        fault: Fault,
        case: &FaultCase,
        back: Instant,
        over: &mut BTreeMap<String, Instant>,
    ) -> Option<FaultRow> {
        // Read the task first: an ended task gets no new jobs.
        let ending = final_state(&self.world.pool, &case.task).await;
        let all = jobs(&self.world.pool, &case.task).await;
        let now = Instant::now();
        let (mut left, mut late) = (Traces::default(), false);
        for job in all.iter().filter(|job| job.is_final()) {
            let since = *over.entry(job.id()).or_insert(now);
            let traces = self.machine.traces(&[job.id()], "");
            if !traces.is_none() {
                late |= since.elapsed() > CLEAN;
                left = traces;
            }
        }
        let done = ending.is_some() && left.is_none();
        if !done && !late && back.elapsed() < STUCK {
            return None;
        }
        let last = all.iter().filter_map(|job| over.get(&job.id())).max().copied().unwrap_or(now);
        let mut row = FaultRow {
            state: case.state,
            fault,
            outcome: ending.clone().unwrap_or_else(|| "STUCK".to_owned()),
            attempts: all.len(),
            ended: last.saturating_duration_since(back),
            clean: now.saturating_duration_since(last),
            wrong: Vec::new(),
        };
        if !left.is_none() {
            row.wrong.push(format!("left {left:?}"));
        }
        self.judge(case, ending.as_deref(), &all, &mut row).await;
        Some(row)
    }

    /// Checks the outcome of a task.
    async fn judge(&self, case: &FaultCase, ending: Option<&str>, all: &[Job], row: &mut FaultRow) {
        let failed: Vec<_> = all.iter().filter(|job| job.state != "succeeded").collect();
        if let Some(job) = failed.last() {
            let words: String = job.words().chars().take(90).collect();
            let before = format!("; before that {} {words}", job.state);
            row.outcome.push_str(before.trim_end());
        }
        match ending {
            Some("completed") => {
                let unit = [case.state.as_str()];
                row.wrong.extend(wrong(&self.world, &case.project, &case.task, &unit).await);
            }
            // A full disk may fail the task, if the error says so.
            Some("failed") if row.fault == Fault::Disk => {
                let said = all
                    .iter()
                    .all(|job| ["disk", "space"].iter().any(|word| job.words().contains(word)));
                if !said {
                    row.wrong.push("the task failed and nobody said why".to_owned());
                }
            }
            _ => row.wrong.push("the task did not complete".to_owned()),
        }
    }

    /// Checks the answers to results: each accepted result is stored.
    async fn wrong_answers(&self, case: &FaultCase) -> Vec<String> {
        let answered = self.way.answers();
        let taken = |job: &Job| answered.iter().any(|it| it.job == job.id() && it.status == 200);
        let kept = |job: &Job| ["succeeded", "failed"].contains(&job.state.as_str());
        let all = jobs(&self.world.pool, &case.task).await;
        let lost = all.iter().filter(|job| taken(job) && !kept(job));
        lost.map(|job| format!("a result was acknowledged, and the job is {}", job.state)).collect()
    }
}

impl State {
    /// Returns whether the result is already stored.
    const fn is_settled(self) -> bool {
        matches!(self, Self::Written | Self::Unanswered)
    }
}

impl FaultRow {
    fn print(&self) {
        println!(
            "{:<12}{:<21}{:>8}{:>7.1} s{:>7.1} s  {}{}",
            self.state.as_str(),
            self.fault.as_str(),
            self.attempts,
            self.ended.as_secs_f64(),
            self.clean.as_secs_f64(),
            if self.wrong.is_empty() { "" } else { "BAD " },
            self.outcome,
        );
        for text in &self.wrong {
            println!("    {text}");
        }
    }
}
