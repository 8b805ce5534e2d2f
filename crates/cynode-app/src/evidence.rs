//! Evidence: checks that the orchestrator has run over what units brought, in sandboxes that no agent has touched.
//!
//! **Invariant**: a result that has evidence against it is taken only with a reason that is written down, and a task ends well only
//! when what it leaves was checked as its criteria ask, at the very commit that is left.

use std::collections::{BTreeSet, HashMap};

use cynode_core::{
    agents::AgentRole,
    evidence::{Check, How, MOST_CHECKS, Odd, Oddity, Ran, Tally, is_script, is_test, scripts_in},
    ids::{EvidenceId, JobId, ProjectId, TaskId},
    tasks::Criterion,
    workflow::{
        plan::{UnitKey, finals},
        units::UnitState,
    },
};
use cynode_db::{
    Conn,
    evidence::{self, Known, NewJob, Run, Subject},
    units,
};
use cynode_wire::{
    evidence::{Evidence, EvidenceState, EvidenceView, TaskEvidence},
    jobs::JobOutcome,
    nodes::{StepOutcome, WorkResult},
    reports::ReviewFeedback,
    work::{CommitRule, Placement, SandboxNeeds, StructuredContext, Work, WorkerChoice},
    workflow::{Finding, UnitView},
};
use serde_json::{Value, json};

use crate::{Ctx, Error};

/// What was shown of a task, and what everybody found about its units as they stand.
#[tracing::instrument(name = "app.evidence.get", skip_all, fields(task.id = %task))]
pub async fn get(ctx: &mut Ctx, task: TaskId) -> Result<TaskEvidence, Error> {
    crate::tasks::get(ctx, task).await?;
    let shown = evidence::of_task(ctx.conn(), task, false).await?;
    let units = units::of_task(ctx.conn(), task, true).await?;
    let standing = |unit: &&UnitView| unit.state != UnitState::Cancelled;
    // What is odd about a result is there before anybody has judged it, and all of it.
    let odd: Vec<Finding> = units.iter().filter(standing).flat_map(odd_about).collect();
    let findings = units.iter().filter(standing).flat_map(|unit| &unit.findings).chain(&odd);
    let good = |it: &&EvidenceView| it.state == EvidenceState::Passed;
    let summary =
        format!("{} of {} results checked well", shown.iter().filter(good).count(), shown.len());
    let feedback = ReviewFeedback::of(findings, summary);
    Ok(TaskEvidence { evidence: shown, feedback })
}

/// What is odd about the result of a unit.
fn odd_about(unit: &UnitView) -> Vec<Finding> {
    let result = unit.job.as_ref().and_then(|job| job.result.as_ref());
    let odd = result.map(|result| oddities(&result["odd"])).unwrap_or_default();
    let odd = odd.into_iter().map(|one| one.odd).collect();
    Evidence { odd, ..Evidence::default() }.findings()
}

/// Has checks run over what a unit brought. What is known stays; what came to nothing is begun anew.
pub(crate) async fn gather(
    ctx: &mut Ctx,
    task: TaskId,
    unit: &UnitKey,
    attempt: u32,
    wanted: &[Check],
    timeout_seconds: u32,
) -> Result<(), Error> {
    if let Some(why) = wanted.iter().find_map(Check::complaint) {
        return Err(Error::Invalid(why));
    }
    let subject = evidence::subject(ctx.conn(), task, unit, attempt).await?;
    let subject = subject.filter(|subject| subject.open).ok_or_else(|| {
        Error::Invalid(format!("unit `{unit}` has no result of that attempt to be checked"))
    })?;
    if subject.commit.is_none() {
        let why =
            format!("unit `{unit}` has no commit, and started from none: nothing can be checked");
        return Err(Error::Invalid(why));
    }
    let id = EvidenceId::from_uuid(ctx.uuid());
    let mut known = evidence::open(ctx.conn(), id, task, attempt, &subject).await?;
    let fresh = known.checks.is_empty();
    for check in wanted {
        if !known.checks.contains(check) && known.checks.len() < MOST_CHECKS {
            known.checks.push(check.clone());
            known.rounds.push((None, Vec::new()));
        }
    }
    if known.alive {
        // What was added is run when the job at work has ended.
        return Ok(evidence::set(
            ctx.conn(),
            known.id,
            &known.checks,
            EvidenceState::Gathering,
            None,
            known.tries,
        )
        .await?);
    }
    let tries = if fresh { known.tries } else { known.tries + 1 };
    let next = go_on(ctx.conn(), &known, &Scene { subject, timeout_seconds, tries }).await?;
    if let Some(payload) = next {
        let job = NewJob { id: ctx.uuid(), evidence: known.id, payload: &payload };
        evidence::queue(ctx.conn(), &job).await?;
        ctx.queue();
    } else {
        // Nothing is left to be run, and so nobody else would wake the run that asked.
        cynode_db::workflow::wake(ctx.conn(), &[task.as_uuid()]).await?;
        ctx.wake(task);
    }
    Ok(())
}

/// What jobs of checks are made of.
struct Scene {
    subject: Subject,
    timeout_seconds: u32,
    tries: u32,
}

/// Stores where evidence stands; gives what the next job is given, if checks are left to be run.
async fn go_on(conn: &mut Conn, known: &Known, scene: &Scene) -> Result<Option<Value>, Error> {
    let open: Vec<usize> =
        (0..known.checks.len()).filter(|at| known.tally(*at) == Tally::Again).collect();
    // A check that was tallied and still has to be run is one whose run before the change is missing.
    let (before, after): (Vec<usize>, Vec<usize>) = open.into_iter().partition(|at| {
        let rounds = known.rounds.get(*at).map_or(&[][..], |(_, rounds)| rounds);
        let held: Vec<bool> = rounds.iter().map(|ran| ran.holds).collect();
        cynode_core::evidence::tally(&held) == Tally::Failed
    });
    let is_before = after.is_empty();
    let (numbers, at) = match (is_before, known.pinned_from.as_ref()) {
        (false, _) => (after, known.commit.as_ref()),
        // Without anything before the change there is nothing to excuse it.
        (true, None) => (Vec::new(), None),
        (true, pinned) => (before, pinned),
    };
    // Each has a job of its own, those first that a person asked for: what one came to is kept whatever becomes of the others.
    let asked_for = |at: &&usize| {
        known.checks.get(**at).is_some_and(|check| !check.unless_before && !check.if_runnable)
    };
    let next = numbers.iter().find(asked_for).or_else(|| numbers.first()).copied();
    let next = next.and_then(|number| Some((number, known.checks.get(number)?)));
    let tries = scene.tries;
    let Some((number, check)) = next else {
        let good = (0..known.checks.len()).all(|at| known.tally(at).is_good());
        let state = if good { EvidenceState::Passed } else { EvidenceState::Failed };
        evidence::set(conn, known.id, &known.checks, state, None, tries).await?;
        return Ok(None);
    };
    evidence::set(conn, known.id, &known.checks, EvidenceState::Gathering, None, tries).await?;
    let read = |value: &Option<Value>| value.clone().unwrap_or(Value::Null);
    let put_back: Vec<String> =
        serde_json::from_value(read(&scene.subject.put_back)).unwrap_or_default();
    let work = Work {
        role: AgentRole::Tester,
        worker: WorkerChoice::Checks {
            checks: vec![with_pins(check, &put_back)],
            pinned_from: known.pinned_from.clone().filter(|_| !is_before),
        },
        context: StructuredContext::default(),
        models: Vec::new(),
        tools: Some(Vec::new()),
        sandbox: serde_json::from_value::<SandboxNeeds>(read(&scene.subject.sandbox))
            .unwrap_or_default(),
        placement: serde_json::from_value::<Placement>(read(&scene.subject.placement))
            .unwrap_or_default(),
        commit: CommitRule::Never,
    };
    let seconds = scene.timeout_seconds;
    Ok(Some(json!({
        "title": format!("Checks of: {}", scene.subject.title),
        "unit": { "work": work, "commit": at, "numbers": [number], "before": is_before, "put_back": put_back, "seconds": seconds },
        "remedy": {},
        "timeout_seconds": job_seconds(check, seconds),
    })))
}

/// How long the files and the sandbox of a check may take.
const TO_PREPARE: u32 = 300;

/// How long a job of a check may take: never so short that the check does not have its own time.
fn job_seconds(check: &Check, at_least: u32) -> u32 {
    at_least.max(check.seconds().saturating_add(TO_PREPARE))
}

/// A check that also goes by these files.
fn with_pins(check: &Check, paths: &[String]) -> Check {
    let mut check = check.clone();
    check.pins.extend(
        paths.iter().filter(|path| !check.pins.contains(path)).cloned().collect::<Vec<_>>(),
    );
    check
}

/// Notes what a job of checks came to, in the transaction of its result. Gives whether there is more to be run.
pub(crate) async fn record(
    app: &crate::App,
    conn: &mut Conn,
    job: JobId,
    outcome: JobOutcome,
    result: &Value,
) -> Result<bool, Error> {
    let Some((id, payload)) = evidence::of_job(conn, job).await? else { return Ok(false) };
    let Some(mut known) = evidence::lock(conn, id).await? else { return Ok(false) };
    let given = &payload["unit"];
    let numbers: Vec<usize> = serde_json::from_value(given["numbers"].clone()).unwrap_or_default();
    let before = given["before"].as_bool().unwrap_or(false);
    // Commit and base are the orchestrator's words in it; the rest is the node's.
    let steps: Vec<StepOutcome> =
        serde_json::from_value(result["steps"].clone()).unwrap_or_default();
    if outcome == JobOutcome::Failed || steps.len() != numbers.len() {
        let said = result["summary"].as_str().filter(|said| !said.is_empty());
        let trouble = said.unwrap_or("the checks were not run to an end");
        let state = EvidenceState::Unable;
        evidence::set(conn, id, &known.checks, state, Some(trouble), known.tries).await?;
        return Ok(false);
    }
    for (number, step) in numbers.iter().zip(&steps) {
        let Some(check) = known.checks.get(*number) else { continue };
        let holds = check.holds(step.exit_code, &step.output, step.expected);
        let Some((was, rounds)) = known.rounds.get_mut(*number) else { continue };
        let ran = Ran { holds, exit_code: step.exit_code };
        let round = if before {
            *was = Some(ran);
            0
        } else {
            rounds.push(ran);
            rounds.len()
        };
        let run = Run { number: *number, round, holds, outcome: step };
        evidence::note(conn, id, job, &run).await?;
    }
    let work: Option<Work> = serde_json::from_value(given["work"].clone()).ok();
    let needs = |pick: fn(&Work) -> Result<Value, serde_json::Error>| {
        work.as_ref().and_then(|work| pick(work).ok())
    };
    let title = payload["title"].as_str().unwrap_or_default();
    let scene = Scene {
        subject: Subject {
            unit: uuid::Uuid::nil(),
            title: title.trim_start_matches("Checks of: ").to_owned(),
            commit: known.commit.clone(),
            pinned_from: known.pinned_from.clone(),
            sandbox: needs(|work| serde_json::to_value(&work.sandbox)),
            placement: needs(|work| serde_json::to_value(&work.placement)),
            put_back: given.get("put_back").cloned(),
            open: true,
        },
        timeout_seconds: given["seconds"]
            .as_u64()
            .and_then(|seconds| u32::try_from(seconds).ok())
            .unwrap_or(600),
        tries: known.tries,
    };
    let Some(payload) = go_on(conn, &known, &scene).await? else { return Ok(false) };
    let id = app.environment().uuid(app.environment().now());
    evidence::queue(conn, &NewJob { id, evidence: known.id, payload: &payload }).await?;
    Ok(true)
}

/// Whether what a task leaves was checked as its criteria ask; what is missing is told in words.
pub(crate) async fn must_hold(
    conn: &mut Conn,
    task: TaskId,
    criteria: &[Criterion],
) -> Result<(), Error> {
    let shown = evidence::of_task(conn, task, true).await?;
    let wanted: Vec<&Check> = criteria.iter().filter_map(|it| it.check.as_ref()).collect();
    if shown.is_empty() && wanted.is_empty() {
        return Ok(());
    }
    let units = units::of_task(conn, task, true).await?;
    let commit = |unit: &UnitView| {
        let result = unit.job.as_ref()?.result.as_ref()?;
        Some(result.get("commit")?.as_str()?.to_owned())
    };
    let left: BTreeSet<UnitKey> = units
        .iter()
        .filter(|unit| unit.state == UnitState::Done && commit(unit).is_some())
        .map(|unit| unit.key.clone())
        .collect();
    let graph = units.iter().map(|unit| (&unit.key, unit.depends_on.as_slice()));
    let mut last: Vec<UnitKey> =
        finals(&graph.collect::<Vec<_>>(), &left).into_iter().cloned().collect();
    if last.is_empty() {
        // Nothing was changed: whoever did the last of it was checked all the same.
        last.extend(
            shown
                .iter()
                .rev()
                .find(|it| it.state != EvidenceState::Gathering)
                .map(|it| it.unit.clone()),
        );
    }
    for key in &last {
        // A later unit that changed nothing was checked at the very same commit.
        let left = units.iter().find(|unit| unit.key == *key).and_then(commit);
        let related: Vec<&EvidenceView> = shown
            .iter()
            .filter(|it| it.unit == *key || (left.is_some() && it.commit == left))
            .collect();
        let bad =
            related.iter().find(|it| it.waived.is_none() && it.state != EvidenceState::Passed);
        if let Some(bad) = bad {
            return Err(Error::Invalid(format!(
                "unit `{}` has evidence against it, or none yet: it is {}",
                bad.unit,
                bad.state.as_str()
            )));
        }
        // Who takes a result all the same takes what was checked of it, and nothing that never was.
        let covered = |check: &&&Check| {
            related.iter().any(|own| {
                let mut same = own.checks.iter().filter(|it| it.check == ***check);
                same.any(|it| it.tally.is_good() || own.waived.is_some())
            })
        };
        if let Some(missing) = wanted.iter().find(|check| !covered(check)) {
            return Err(Error::Invalid(format!(
                "nothing shows that `{}` holds for what unit `{key}` left",
                missing.told()
            )));
        }
    }
    // Where there are no files nothing can be run: it is taken as it is, for a reason that is kept.
    if last.is_empty() && !wanted.is_empty() && !evidence::taken_unchecked(conn, task).await? {
        let why =
            "the task's criteria have checks, and none was run: a person has to take it as it is";
        return Err(Error::Invalid(why.into()));
    }
    Ok(())
}

/// What a look at a change found.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// What has to be answered for, and was not yet.
    pub(crate) odd: Vec<Oddity>,
    /// Tests that checks run with as they were before.
    pub(crate) put_back: Vec<String>,
}

/// What a change did that has to be answered for, measured against where the task's work started.
pub(crate) async fn looked_at(
    app: &crate::App,
    project: ProjectId,
    task: TaskId,
    commit: &str,
) -> Result<Looked, Error> {
    let mut conn = app.pool().acquire().await.map_err(cynode_db::DbError::from)?;
    let grounds = evidence::grounds(&mut conn, task).await?;
    drop(conn);
    let base = grounds.base.filter(|base| base != commit);
    let Some(base) = base else { return Ok(Looked::default()) };
    let criteria: Vec<Criterion> = serde_json::from_value(grounds.criteria).unwrap_or_default();
    let mut checks: Vec<Check> = criteria.into_iter().filter_map(|it| it.check).collect();
    let mut asked_for: Vec<String> = Vec::new();
    for unit in &grounds.units {
        checks.extend(planned(unit));
        let files = unit["brief"]["files_to_modify"].clone();
        asked_for.extend(serde_json::from_value::<Vec<String>>(files).unwrap_or_default());
    }
    let repositories = &app.gate()?.repositories;
    let (touched, more) = repositories.changes(project, &base, commit, &asked_for).await?;
    let (mut behind, whole) = behind(app, project, &base, &checks).await?;
    if !whole {
        // Any program that was there may stand behind them.
        let there = touched.iter().filter(|it| it.how != How::Added && is_script(&it.path));
        behind.extend(there.map(|it| it.path.clone()));
    }
    let mut odd = cynode_core::evidence::odd(&touched, &checks, &behind, &asked_for);
    odd.extend(more);
    let is: HashMap<&str, &str> =
        touched.iter().map(|file| (file.path.as_str(), file.is.as_str())).collect();
    let taken: Vec<Oddity> = grounds.taken.iter().flat_map(oddities).collect();
    let mut put_back = cynode_core::evidence::put_back(&touched, &asked_for);
    // Who took what was done to a test has it judged as it is.
    put_back.retain(|path| !is_taken(path, is.get(path.as_str()).copied(), &taken));
    let unseen = |why: &str| Odd::Unseen { path: String::new(), why: why.to_owned() };
    if put_back.len() > MOST_PUT_BACK {
        put_back.truncate(MOST_PUT_BACK);
        odd.push(unseen("it touches more tests than are put back for the checks"));
    }
    // What is about the whole change is the worst of it.
    odd.sort_by_key(|one| !one.path().is_empty());
    let named = |odd: Odd| {
        let is = is.get(odd.path()).copied().unwrap_or(commit).to_owned();
        Oddity { odd, is }
    };
    let mut seen: Vec<Oddity> = Vec::new();
    let mut room = MOST_ODD_BYTES;
    for one in odd.into_iter().map(named) {
        if taken.contains(&one) || seen.contains(&one) {
            continue;
        }
        let bytes = serde_json::to_string(&one).map_or(usize::MAX, |text| text.len());
        if seen.len() == MOST_ODD || bytes > room {
            seen.insert(0, named(unseen("more about it is odd than is listed")));
            break;
        }
        room -= bytes;
        seen.push(one);
    }
    Ok(Looked { odd: seen, put_back })
}

/// Most that is listed of what is odd about a change, and most bytes of it: it is stored with the run.
const MOST_ODD: usize = 500;
const MOST_ODD_BYTES: usize = 512 * 1024;

/// Most tests that are put back for checks.
const MOST_PUT_BACK: usize = 500;

/// What a result has to answer for. What cannot be read is nothing that somebody took.
fn oddities(listed: &Value) -> Vec<Oddity> {
    serde_json::from_value(listed.clone()).unwrap_or_default()
}

/// Whether somebody took what was done to a test, as it is now.
fn is_taken(path: &str, is: Option<&str>, taken: &[Oddity]) -> bool {
    let about = |one: &&Oddity| one.odd.path() == path && Some(one.is.as_str()) == is;
    taken.iter().filter(about).any(|one| match one.odd {
        Odd::TestRemoved { .. } | Odd::TestWeakened { .. } | Odd::Unseen { .. } => true,
        Odd::CheckTouched { .. } | Odd::MergeMarks { .. } => false,
    })
}

/// Most files that are read to find what stands behind checks.
const MOST_BEHIND: usize = 100;

/// Programs of the repository that stand behind checks: named by what the checks go by, or by one another. As they were before the change.
/// And whether these are all.
async fn behind(
    app: &crate::App,
    project: ProjectId,
    base: &str,
    checks: &[Check],
) -> Result<(Vec<String>, bool), Error> {
    let mut paths: Vec<String> = Vec::new();
    let mut whole = true;
    let mut add = |paths: &mut Vec<String>, path: String| {
        if paths.len() < MOST_BEHIND || paths.contains(&path) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        } else {
            whole = false;
        }
    };
    for check in checks {
        let definers = check.definers().into_iter().map(str::to_owned);
        for path in definers.chain(check.pinned()).filter(|path| !is_test(path)) {
            add(&mut paths, path);
        }
    }
    let first = paths.len();
    let (mut at, mut read) = (0, true);
    while let Some(path) = paths.get(at).cloned() {
        let text = app.gate()?.repositories.read(project, base, &path, MOST_TEXT).await?;
        if let Some((text, cut)) = &text {
            read &= !cut;
            for named in scripts_in(text) {
                add(&mut paths, named);
            }
        }
        at += 1;
    }
    Ok((paths.split_off(first), whole && read))
}

/// Most bytes that are read of a file that stands behind checks.
const MOST_TEXT: usize = 256 * 1024;

/// The checks that the plan asks for of a unit.
fn planned(payload: &Value) -> Vec<Check> {
    let listed = payload["checks"].as_array().map_or(&[][..], Vec::as_slice);
    listed.iter().filter_map(|it| serde_json::from_value(it.clone()).ok()).collect()
}

/// Whether a result of a job is one of checks, which no agent brought.
pub(crate) fn is_of_checks(work: &Value) -> bool {
    work["worker"]["kind"] == "checks"
}

/// What a node may say of a job of checks: its steps. Commits and the like are not its to bring.
pub(crate) fn stripped(result: WorkResult) -> WorkResult {
    WorkResult { commit: None, bundle: None, conflict: None, session: None, ..result }
}
