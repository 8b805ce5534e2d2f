//! Kills a process before or after a message. The outcome must be that of an undisturbed run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cynode_e2e::{
    faults::{Cut, Phase, Trigger},
    world::{Processes, Victim},
};
use cynode_testkit::pause;
use serde_json::json;

use super::{
    facts::{effort, observe},
    script::Unbroken,
    stage::Stage,
};
use crate::chaos::differences;

/// Timeout after which a task counts as stuck.
const STUCK: Duration = Duration::from_mins(1);

/// Error text for a message that was never sent.
const NEVER: &str = "the message never came by";

/// The fault points of the short form.
const FEW: [&str; 22] = [
    "manager after manager:claim:plan 1",
    "manager before manager:think:classify 1",
    "manager after manager:think:assess_scope 1",
    "manager after manager:record:plan 1",
    "manager before manager:complete:planned 1",
    "orchestrator after manager:complete:planned 1",
    "manager after manager:delegate 1",
    "orchestrator before manager:delegate 1",
    "analyst after analyst:think:review_artifact 1",
    "analyst after analyst:tool:verification.record 1",
    "orchestrator after manager:complete:judged 2",
    "manager after manager:record:choose_tests 1",
    "runner after checkpoint:plan_steps:wait 1",
    "runner before checkpoint:dispatch_step:pass 2",
    "orchestrator after checkpoint:finalize_summary:wait 1",
    "manager after manager:record:classify 1, other words",
    "manager before manager:tool:git.pull_request.open 1",
    "manager after manager:tool:git.pull_request.open 1",
    "orchestrator before manager:tool:git.pull_request.open 1",
    "orchestrator after manager:tool:git.pull_request.open 1",
    "orchestrator after sql:delivery:begin 1",
    "orchestrator before sql:delivery:offer 1",
];

/// One fault point and one victim.
#[derive(Clone, Debug)]
pub(super) struct KillPoint {
    victim: Victim,
    trigger: Trigger,
    /// How many occurrences of the message are skipped before.
    skip: u32,
    /// Whether the project manager's input is different after its restart.
    other_words: bool,
}

impl fmt::Display for KillPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { victim, trigger, skip, other_words } = self;
        write!(f, "{} {trigger} {}", victim.as_str(), skip + 1)?;
        if *other_words { f.write_str(", other words") } else { Ok(()) }
    }
}

impl KillPoint {
    /// Returns the sender of the message.
    fn sender(message: &str) -> Option<Victim> {
        match message.split_once(':')? {
            ("manager", _) => Some(Victim::Manager),
            ("analyst", _) => Some(Victim::Analyst),
            ("checkpoint", _) | ("workflow", "start") => Some(Victim::Runner),
            // Between the commit, the branch and the row that marks it as offered.
            ("sql", "delivery:begin" | "delivery:offer") => Some(Victim::Orchestrator),
            _ => None,
        }
    }
}

/// Returns the fault points of a run: before and after every message of the project manager, the analyst and the runner, for
/// the sender and for the orchestrator. Repeated heartbeats and claims without a result do not count.
pub(super) fn places(heard: &[Trigger], few: bool, only: Option<&str>) -> Vec<KillPoint> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut places = Vec::new();
    for trigger in heard {
        let Some(sender) = KillPoint::sender(&trigger.message) else { continue };
        let count = counts.entry(trigger.to_string()).or_default();
        let skip = *count;
        *count += 1;
        let claims = trigger.message.ends_with(":claim");
        if trigger.message.ends_with(":keep") || (claims && skip > 0) {
            continue;
        }
        let others = (sender != Victim::Orchestrator).then_some(Victim::Orchestrator);
        for victim in [sender].into_iter().chain(others) {
            let trigger = trigger.clone();
            places.push(KillPoint { victim, trigger, skip, other_words: false });
        }
    }
    // An earlier decision stays valid even if the next process gets more input.
    let message = "manager:record:classify".to_owned();
    let trigger = Trigger { message, phase: Phase::After };
    places.push(KillPoint { victim: Victim::Manager, trigger, skip: 0, other_words: true });
    let names: BTreeSet<String> = places.iter().map(ToString::to_string).collect();
    for name in FEW.iter().filter(|name| !names.contains(**name)) {
        println!("WRONG there is no place {name}");
    }
    let wanted = |place: &KillPoint| {
        let name = place.to_string();
        (!few || FEW.contains(&name.as_str())) && only.is_none_or(|only| name.contains(only))
    };
    places.retain(wanted);
    places
}

/// Kills the process. Returns whether the message, or its response, still arrives.
fn kill(place: &KillPoint, processes: &Processes) -> Cut {
    processes.kill(place.victim);
    if !place.other_words {
        processes.start(place.victim);
    }
    match (place.victim, place.trigger.phase) {
        // It was not sent, or there is no process left to answer.
        (Victim::Orchestrator, Phase::After) => Cut::Yes,
        (Victim::Orchestrator, Phase::Before) => Cut::No,
        (_, Phase::Before) => Cut::Yes,
        (_, Phase::After) => Cut::No,
    }
}

/// Runs every fault point. Returns whether all end the same.
pub(super) async fn all(stage: &Stage, unbroken: &Unbroken, places: &[KillPoint]) -> bool {
    println!("\n{:<62}{:>9}{:>9}{:>9}  ended", "killed", "seconds", "begun", "answers");
    println!("{:<62}{:>9}{:>9}{:>9}", "", "", "again", "unused");
    let begun = Instant::now();
    let mut bad = 0;
    for place in places {
        let (mut wrong, mut row) = one(stage, unbroken, place).await;
        // The number of waits depends on timing.
        for _ in 0..2 {
            if wrong == [NEVER] {
                (wrong, row) = one(stage, unbroken, place).await;
            }
        }
        println!(
            "{:<62}{row}  {}",
            place.to_string(),
            if wrong.is_empty() { "the same" } else { "OTHERWISE (X-03)" }
        );
        for text in &wrong {
            println!("    WRONG S004-161: {text}");
        }
        bad += usize::from(!wrong.is_empty());
    }
    println!("\n{} places in {:.0} s: {bad} bad", places.len(), begun.elapsed().as_secs_f64());
    bad == 0 && !places.is_empty()
}

/// Runs the example with one kill. Returns the problems, and a table row.
async fn one(stage: &Stage, unbroken: &Unbroken, place: &KillPoint) -> (Vec<String>, String) {
    let world = &stage.world;
    let mut wrong = Vec::new();
    let fired = Arc::new(AtomicBool::new(false));
    let (inner, processes, noted) = (place.clone(), world.processes.clone(), fired.clone());
    let act = Box::new(move || {
        let cut = kill(&inner, &processes);
        noted.store(true, Ordering::Release);
        cut
    });
    world.faults.arm(place.trigger.clone(), place.skip, act);
    let begun = Instant::now();
    let task = stage.begin().await;
    if place.other_words {
        tell_more(stage, &task, &fired).await;
    }
    if !stage.ends(&task, STUCK).await {
        wrong.push(format!("it does not end (X-03); see {}", world.logs().display()));
    }
    let took = begun.elapsed();
    if world.faults.disarm() {
        wrong.push(NEVER.into());
    }
    world.wait_until_it_works().await;
    let effort = effort(&world.pool, &task).await;
    // A process that died between an answer and its record repeats the call.
    if effort.unused > 1 {
        wrong.push(format!("{} answers of a model were not used", effort.unused));
    }
    // Only the handoff of the killed process may be repeated.
    if effort.again > 1 {
        wrong.push(format!("handoffs were begun again {} times", effort.again));
    }
    let lost = differences(&unbroken.facts, &observe(stage, &task).await);
    wrong.extend(lost.into_iter().map(|fact| format!("S004-011: {fact}")));
    let row = format!("{:>9.1}{:>9}{:>9}", took.as_secs_f64(), effort.again, effort.unused);
    (wrong, row)
}

/// Sends another message to the project manager while it is down, and starts it.
async fn tell_more(stage: &Stage, task: &str, fired: &AtomicBool) {
    let begun = Instant::now();
    while !fired.load(Ordering::Acquire) && begun.elapsed() < STUCK {
        pause(Duration::from_millis(10)).await;
    }
    let place = "/v1/preferences/agents.project_manager.additional_context";
    let words = json!({ "value": "Dark is a deep blue here.", "expected_version": 0 });
    stage.world.put(&format!("{place}?scope_type=task&scope_id={task}"), &words).await;
    stage.world.processes.start(Victim::Manager);
}
