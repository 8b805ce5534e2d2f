//! Two nodes share jobs; one is cut off in the middle and reconnects.

use std::time::{Duration, Instant};

use clap::Args;
use cynode_e2e::{
    faults::TcpProxy,
    nodes::{Machine, Traces},
    world::World,
};
use cynode_testkit::pause;
use serde_json::{Value, json};

use super::scene::{
    Job, SceneOptions, enlist, final_state, heard_of, jobs, repository, unit, until, wrong,
};

/// Maximum number of concurrent jobs of each node.
const SLOTS: &str = "3";

/// Duration of a job's work.
const WORK: &str = "1.5";

/// A task whose only unit waits until it is released.
const STAY: &str = "stay";

/// Timeout of the first of them.
const HALFWAY: Duration = Duration::from_mins(3);

/// Timeout after which a task counts as stuck.
const STUCK: Duration = Duration::from_mins(10);

/// How long traces of ended jobs may remain.
const CLEAN: Duration = Duration::from_secs(10);

/// Two nodes share jobs.
#[derive(Args)]
pub(crate) struct Share {
    /// How many tasks.
    #[arg(long, default_value_t = 20)]
    tasks: usize,
    /// How many units each has, one after the other.
    #[arg(long, default_value_t = 10)]
    units: usize,
    /// For how many seconds one node is cut off. Until its jobs are given up when it is left out.
    #[arg(long)]
    cut: Option<u64>,
    /// How much the shares may differ while both are there, in hundredths of their jobs.
    #[arg(long, default_value_t = 10)]
    fair: usize,
}

/// Number of started jobs per node.
type Counts = [usize; 2];

struct ShareStage {
    // Dropped before the world.
    machines: [Machine; 2],
    #[expect(dead_code, reason = "connections through them end when they go")]
    links: Vec<TcpProxy>,
    world: World,
    tasks: Vec<String>,
    stay: Option<String>,
    mark: String,
}

/// The disconnection of a node.
struct Absence {
    /// Time of its begin.
    after: Duration,
    /// Its length.
    length: Duration,
    /// Time until the node's next heartbeat.
    back: Duration,
    /// Number of jobs on the node.
    held: usize,
    /// Number of them that were given up.
    lost: usize,
    /// How long after that their processes still ran.
    ran_on: Duration,
    /// Started jobs per node at its begin, at its end, and at the node's next heartbeat.
    begun: [Counts; 3],
}

pub(crate) async fn run(options: &SceneOptions, share: Share) -> bool {
    let mark = format!("share-{:016x}", rand::random::<u64>());
    let keys: Vec<String> = (1..=share.units).map(|number| format!("unit-{number:02}")).collect();
    let directory = tempfile::tempdir().unwrap();
    let world = options.world(&scripts(&keys, &mark), directory.path()).await;
    world.bring(&world.project, repository()).await;
    // Scripts decide about these tasks, and no pull requests are opened for them.
    let nothing = json!({ "value": "none", "expected_version": 0 });
    world.put("/v1/preferences/delivery.mode?scope_type=system", &nothing).await;
    let flags = ["--slots", SLOTS];
    let machines = ["left", "right"].map(|name| options.machine(&world, name, None, &flags));
    let mut links = Vec::new();
    for machine in &machines {
        let link = TcpProxy::start_at(world.tasks(), machine.cable.host, world.internal).await;
        enlist(&world, machine, &format!("http://{}", link.address)).await;
        links.push(link);
    }
    let mut stage = ShareStage { machines, links, world, tasks: Vec::new(), stay: None, mark };
    let begun = Instant::now();
    for _ in 0..share.tasks {
        stage.tasks.push(stage.world.task("chain").await);
    }
    let good = stage.play(&share, &keys, begun).await;
    if good {
        stage.world.keep_not();
    }
    good
}

/// Returns one task: a chain of units, each of which adds a file.
fn scripts(keys: &[String], mark: &str) -> Value {
    let work = |key: &String| format!("sleep {WORK}; echo {mark} > {key}");
    let before = std::iter::once(None).chain(keys.iter().map(|key| Some(key.as_str())));
    let steps: Vec<_> =
        keys.iter().zip(before).map(|(key, before)| unit(key, before, &work(key))).collect();
    // One unit whose command runs as long as it may, on the node that is cut off.
    let mut stay =
        unit(STAY, None, &format!("until [ -e ~/go ]; do sleep 0.1; done; echo {mark} > {STAY}"));
    stay["payload"]["work"]["placement"] = json!({ "node": "right" });
    json!({ "chain": { "plan": { "steps": steps } }, STAY: { "plan": { "steps": [stay] } } })
}

impl ShareStage {
    async fn all(&self) -> Vec<Job> {
        let mut all = Vec::new();
        for task in self.tasks.iter().chain(&self.stay) {
            all.extend(jobs(&self.world.pool, task).await);
        }
        all
    }

    async fn count(&self, condition: &str) -> usize {
        let query = format!("SELECT count(*) FROM jobs WHERE {condition}");
        let count = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(query));
        usize::try_from(count.fetch_one(&self.world.pool).await.unwrap()).unwrap()
    }

    /// Returns the number of jobs that each node has started.
    async fn begun(&self) -> Counts {
        let mut counts = [0, 0];
        let counted = |job: &&Job| job.state != "queued" && job.unit != STAY;
        for job in self.all().await.iter().filter(counted) {
            let at =
                self.machines.iter().position(|machine| Some(&machine.name) == job.node.as_ref());
            counts[at.unwrap()] += 1;
        }
        counts
    }

    /// Cuts one node off in the middle, and reconnects it.
    async fn absence(&mut self, share: &Share, begun: Instant) -> Absence {
        let held =
            "state = 'running' AND node_id = (SELECT node_id FROM nodes WHERE name = 'right')";
        let total = share.tasks * share.units;
        until("too few jobs are done", HALFWAY, async || {
            let done = self.count("state = 'succeeded'").await * 10 >= total * 3;
            done && self.count(held).await > 1
        })
        .await;
        let stay = self.world.task(STAY).await;
        until("nobody takes the job that stays", HALFWAY, async || {
            let jobs = jobs(&self.world.pool, &stay).await;
            let right = &self.machines[1];
            jobs.iter().any(|job| right.job(&job.id()).join("home").exists())
        })
        .await;
        self.stay = Some(stay);
        // A search for leftovers is only valid on a machine where the processes were seen before.
        for machine in &self.machines {
            let there = self.own_traces(machine).await;
            assert!(!there.directories.is_empty(), "no job is found on {}", machine.name);
        }
        let [_, right] = &self.machines;
        let (after, first, cut) = (begun.elapsed(), self.begun().await, Instant::now());
        right.cable.cut();
        let out = self.count(held).await;
        let mut ran_on = Duration::ZERO;
        if let Some(seconds) = share.cut {
            pause(Duration::from_secs(seconds)).await;
        } else {
            until("its jobs are not given up", STUCK, async || self.count(held).await == 0).await;
            // The node was cut off for as long as the lease of its jobs: it must end them by itself.
            let given_up = Instant::now();
            until("its jobs go on", CLEAN, async || {
                self.own_traces(right).await.processes.is_empty()
            })
            .await;
            ran_on = given_up.elapsed();
        }
        let (lost, second) = (self.count("state = 'lost'").await, self.begun().await);
        right.cable.mend();
        let (length, mended) = (cut.elapsed(), Instant::now());
        until("it does not come back", STUCK, async || {
            heard_of(&self.world.pool, "right", 1.0).await
        })
        .await;
        let begun = [first, second, self.begun().await];
        Absence { after, length, back: mended.elapsed(), held: out, lost, ran_on, begun }
    }

    async fn play(&mut self, share: &Share, keys: &[String], begun: Instant) -> bool {
        let absence = self.absence(share, begun).await;
        let (mut stuck, mut completed) = (0, 0);
        let stayed = self.let_go().await;
        for task in &self.tasks {
            stuck += usize::from(!self.ends(task, STUCK.saturating_sub(begun.elapsed())).await);
            let state = final_state(&self.world.pool, task).await;
            completed += usize::from(state.as_deref() == Some("completed"));
        }
        let took = begun.elapsed();
        let (last, clean) = (self.begun().await, self.clean().await);
        let units: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut wrongs = stayed;
        for task in &self.tasks {
            wrongs.extend(wrong(&self.world, &self.world.project, task, &units).await);
        }
        let (all, total) = (self.all().await, share.tasks * share.units);
        let tally = |state: &str| all.iter().filter(|job| job.state == state).count();
        println!(
            "{total} units of {} tasks, and one that stays, in {:.0} s: {completed} tasks completed, {stuck} stuck; {} jobs: {} succeeded, {} failed, {} \
             lost",
            share.tasks,
            took.as_secs_f64(),
            all.len(),
            tally("succeeded"),
            tally("failed"),
            tally("lost"),
        );
        let fair = absence.tell(last, share.fair);
        for text in wrongs.iter().take(20) {
            println!("WRONG {text}");
        }
        match &clean {
            Ok(after) => {
                println!("nothing was left of any job {:.1} s after the last", after.as_secs_f64());
            }
            Err(traces) => println!("LEFT {traces:?}"),
        }
        let done = stuck == 0 && completed == share.tasks && tally("succeeded") == total + 1;
        if !done {
            println!("WRONG S002-26: not every dispatched unit was done by a node");
        }
        done && wrongs.is_empty() && clean.is_ok() && fair && absence.is_as_meant(share)
    }

    /// Releases the waiting unit, and checks its outcome.
    async fn let_go(&self) -> Vec<String> {
        let Some(stay) = &self.stay else { return Vec::new() };
        let [_, right] = &self.machines;
        until("the one that stays does not end", STUCK, async || {
            for job in jobs(&self.world.pool, stay).await {
                let _ = std::fs::write(right.job(&job.id()).join("home/go"), "");
            }
            final_state(&self.world.pool, stay).await.is_some()
        })
        .await;
        wrong(&self.world, &self.world.project, stay, &[STAY]).await
    }

    async fn ends(&self, task: &str, timeout: Duration) -> bool {
        let begun = Instant::now();
        while final_state(&self.world.pool, task).await.is_none() {
            if begun.elapsed() > timeout {
                return false;
            }
            pause(Duration::from_millis(50)).await;
        }
        true
    }

    /// Returns the traces on a machine of the jobs that were assigned to it.
    async fn own_traces(&self, machine: &Machine) -> Traces {
        let own = |job: &Job| job.node.as_ref() == Some(&machine.name);
        let ids: Vec<_> = self.all().await.iter().filter(|job| own(job)).map(Job::id).collect();
        machine.traces(&ids, "")
    }

    /// Returns the time until no trace of any job is left, or the traces after the timeout.
    async fn clean(&self) -> Result<Duration, Traces> {
        let ids: Vec<_> = self.all().await.iter().map(Job::id).collect();
        let begun = Instant::now();
        loop {
            let left = self.machines.iter().map(|machine| machine.traces(&ids, &self.mark));
            let Some(left) = left.into_iter().find(|traces| !traces.is_none()) else {
                return Ok(begun.elapsed());
            };
            if begun.elapsed() > CLEAN {
                return Err(left);
            }
            pause(Duration::from_millis(100)).await;
        }
    }
}

impl Absence {
    /// Returns whether jobs were given up exactly when they should be. A result in flight at the cut may have arrived.
    const fn is_as_meant(&self, share: &Share) -> bool {
        if share.cut.is_some() { self.lost == 0 } else { self.lost > 0 && self.lost <= self.held }
    }

    /// Prints the disconnection. Returns whether the shares were fair while both nodes were connected; `last` is the final
    /// number of started jobs.
    fn tell(&self, last: Counts, fair: usize) -> bool {
        let [first, second, third] = self.begun;
        let less = |more: Counts, less: Counts| [more[0] - less[0], more[1] - less[1]];
        let after = less(last, third);
        let both = [first[0] + after[0], first[1] + after[1]];
        let apart = both[0].abs_diff(both[1]) * 100 / (both[0] + both[1]).max(1);
        println!(
            "right was cut off after {:.0} s for {:.0} s with {} jobs, and heard of again {:.1} s after its cable was mended",
            self.after.as_secs_f64(),
            self.length.as_secs_f64(),
            self.held,
            self.back.as_secs_f64(),
        );
        if self.lost > 0 {
            let later = self.ran_on.as_secs_f64();
            println!(
                "{} of them were given up; {later:.1} s later it had ended all of them by itself",
                self.lost
            );
        }
        if apart > fair {
            println!("WRONG S001-80: the shares of two nodes that claim at once are not equal");
        }
        println!(
            "begun by left and right: {first:?} before, {:?} meanwhile, {after:?} after; while both were there {both:?}, {apart} % \
             apart (at most {fair} %)",
            less(second, first),
        );
        apart <= fair
    }
}
