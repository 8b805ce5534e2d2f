//! Evidence: checks that the orchestrator runs over the commits of units, in sandboxes that no agent has touched.
//!
//! **Invariant**: a result with failing evidence is accepted only with a recorded reason. A task completes only when
//! the commit that it leaves was itself checked as its criteria ask.

use std::collections::{BTreeSet, HashMap};

use cynode_core::{
    agents::AgentRole,
    events::EventKind,
    evidence::{
        ChangeAnomaly, CheckRunResult, CheckTally, EvidenceCheck, FileAnomaly, FileChangeKind,
        MAX_CHECKS,
        base::{BASE_CHECK_CLAIM_SECONDS, BaseOutcome, MAX_BASE_CHECK_SECONDS, MAX_BASE_CHECKS},
        find_script_paths, is_script_path, is_test_file,
        languages::find_disallowed_languages,
        test_results::{CheckReports, compare_reports},
    },
    ids::{EvidenceId, JobId, ProjectId, TaskId},
    nodes::{CommandOutcome, WorkStopReason},
    preferences::guidance::DISALLOWED_LANGUAGES_PREFERENCE,
    roles::UserRole,
    tasks::{Criterion, TaskStateName},
    workflow::{
        environments::SETUP_FAILURE_PREFIX,
        evidence::{Evidence, EvidenceState, EvidenceView},
        findings::{ReviewFeedback, VerificationFinding},
        jobs::{CommitRule, JobSpec, PlacementSpec, SandboxNeeds, StructuredContext, WorkerChoice},
        plan::{UnitKey, find_final_units},
        units::{UnitState, UnitView},
    },
};
use cynode_db::{
    Conn,
    delivery::evidence::{self, EvidenceSubject, LockedEvidence, NewCheckRun, NewEvidenceJob},
    workflow::units,
};
use cynode_wire::{
    delivery::evidence::TaskEvidence, nodes::WorkResult, workflow::jobs::JobOutcome,
};
use serde_json::{Value, json};

use crate::{
    Ctx, Error,
    delivery::task_environments,
    platform::{context::EventDraft, operation},
    tasks::preferences::resolve_effective,
};

/// Returns the evidence of a task and all findings about its current units.
#[tracing::instrument(name = "app.evidence.get_evidence", skip_all, fields(task.id = %task))]
#[operation]
pub async fn get_evidence(ctx: &mut Ctx, task: TaskId) -> Result<TaskEvidence, Error> {
    crate::tasks::get_task(ctx, task).await?;
    let shown = evidence::list_task_evidence(ctx.conn(), task, false).await?;
    let units = units::list_task_units(ctx.conn(), task, true).await?;
    let standing = |unit: &&UnitView| unit.state != UnitState::Cancelled;
    // All anomalies of a result are listed, also before anybody has verified it.
    let anomalies: Vec<VerificationFinding> =
        units.iter().filter(standing).flat_map(anomalies_of_unit).collect();
    let findings = units.iter().filter(standing).flat_map(|unit| &unit.findings).chain(&anomalies);
    let good = |it: &&EvidenceView| it.state == EvidenceState::Passed;
    let summary =
        format!("{} of {} results checked well", shown.iter().filter(good).count(), shown.len());
    let feedback = ReviewFeedback::from_findings(findings, summary);
    let base = evidence::get_base_checks(ctx.conn(), task).await?;
    Ok(TaskEvidence { evidence: shown, base, feedback })
}

/// Returns the anomalies of the result of a unit.
fn anomalies_of_unit(unit: &UnitView) -> Vec<VerificationFinding> {
    let result = unit.job.as_ref().and_then(|job| job.result.as_ref());
    let found = result.map(|result| parse_anomalies(&result["anomalies"])).unwrap_or_default();
    let anomalies = found.into_iter().map(|one| one.anomaly).collect();
    Evidence { anomalies, ..Evidence::default() }.to_findings()
}

/// Checks to be run on the result of a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckRequest<'a> {
    /// Checks to run.
    pub(crate) checks: &'a [EvidenceCheck],
    /// Maximum number of seconds from claim to result.
    pub(crate) timeout_seconds: u32,
    /// Whether checks whose program was missing on the machine run again.
    pub(crate) rerun: bool,
}

/// Schedules checks of the result of a unit. Existing results stay; checks without a result run again.
pub(crate) async fn schedule_checks(
    ctx: &mut Ctx,
    task: TaskId,
    unit: &UnitKey,
    attempt: u32,
    request: CheckRequest<'_>,
) -> Result<(), Error> {
    if let Some(why) = request.checks.iter().find_map(EvidenceCheck::validation_error) {
        return Err(Error::Invalid(why));
    }
    let subject = evidence::find_evidence_subject(ctx.conn(), task, unit, attempt).await?;
    let subject = subject.filter(|subject| subject.open).ok_or_else(|| {
        Error::Invalid(format!("unit `{unit}` has no result of that attempt to be checked"))
    })?;
    if subject.commit.is_none() {
        let why =
            format!("unit `{unit}` has no commit, and started from none: nothing can be checked");
        return Err(Error::Invalid(why));
    }
    gather_evidence(ctx, task, attempt, subject, request).await
}

/// Queues the first of the checks that have no result yet.
async fn gather_evidence(
    ctx: &mut Ctx,
    task: TaskId,
    attempt: u32,
    mut subject: EvidenceSubject,
    CheckRequest { checks: wanted, timeout_seconds, rerun }: CheckRequest<'_>,
) -> Result<(), Error> {
    let own = subject.sandbox.take().and_then(|it| serde_json::from_value(it).ok());
    let own = own.unwrap_or_else(SandboxNeeds::plain_sandbox);
    let sandbox = task_environments::sandbox_of_checks(ctx.conn(), task, own).await?;
    subject.sandbox = serde_json::to_value(&sandbox).ok();
    let id = EvidenceId::from_uuid(ctx.new_uuid());
    let mut known = evidence::open_evidence(ctx.conn(), id, task, attempt, &subject).await?;
    let fresh = known.checks.is_empty();
    for check in wanted {
        if !known.checks.contains(check) && known.checks.len() < MAX_CHECKS {
            known.checks.push(check.clone());
            known.rounds.push((None, Vec::new()));
            known.reports.push(CheckReports::default());
        }
    }
    if known.alive {
        // Added checks run after the present job has ended.
        return Ok(evidence::update_evidence(
            ctx.conn(),
            known.id,
            &known.checks,
            EvidenceState::Gathering,
            None,
            known.attempts,
        )
        .await?);
    }
    if rerun {
        let unrunnable = |(_, rounds): &(Option<CheckRunResult>, Vec<CheckRunResult>)| {
            rounds.last().is_some_and(|ran| !ran.holds && ran.is_program_missing())
        };
        let numbers: Vec<usize> = known
            .rounds
            .iter()
            .enumerate()
            .filter(|(_, rounds)| unrunnable(rounds))
            .map(|(number, _)| number)
            .collect();
        evidence::delete_check_runs(ctx.conn(), known.id, &numbers).await?;
        for number in numbers {
            known.rounds[number] = (None, Vec::new());
            known.reports[number].after.clear();
        }
    }
    let attempts = if fresh { known.attempts } else { known.attempts + 1 };
    let next = plan_next_check(
        ctx.conn(),
        &known,
        &CheckJobContext { subject, timeout_seconds, attempts },
    )
    .await?;
    if let Some(payload) = next {
        let job = NewEvidenceJob { id: ctx.new_uuid(), evidence: known.id, payload: &payload };
        evidence::queue_evidence_job(ctx.conn(), &job).await?;
        ctx.mark_job_queued();
        ctx.mark_job_changed();
    } else {
        // No job is queued, so nothing else would wake the run that asked.
        cynode_db::workflow::wake_runs(ctx.conn(), &[task.as_uuid()]).await?;
        ctx.wake_task(task);
    }
    Ok(())
}

/// Timeout of a check that is run again, unless the check has a longer one of its own.
const RERUN_TIMEOUT_SECONDS: u32 = 600;

/// Runs the checks of an ended task again, on the commits that it left and in fresh sandboxes. The evidence so far stays as stale
/// evidence. A task that has not ended runs its checks by itself: its run goes by them, and must not lose them.
#[tracing::instrument(name = "app.evidence.rerun_checks", skip_all, fields(task.id = %task))]
#[operation]
pub async fn rerun_checks(ctx: &mut Ctx, task: TaskId) -> Result<TaskEvidence, Error> {
    let project = crate::tasks::get_task(ctx, task).await?.project;
    ctx.require_project_role(project, UserRole::Operator).await?;
    // Of two requests at the same moment, the second finds the checks of the first.
    cynode_db::workflow::lock_run(ctx.conn(), task).await?;
    let shown = evidence::list_task_evidence(ctx.conn(), task, true).await?;
    if shown.iter().any(|it| it.state == EvidenceState::Gathering) {
        let why = "the task runs its checks right now: wait until they have ended";
        return Err(Error::Conflict(why));
    }
    match crate::tasks::get_task(ctx, task).await?.state.state_name() {
        TaskStateName::Queued | TaskStateName::Running => {
            let why = "the task has not ended and runs its checks by itself; if it waits for you about a check, answer `again`";
            return Err(Error::Conflict(why));
        }
        TaskStateName::Completed | TaskStateName::Failed | TaskStateName::Cancelled => {}
    }
    if evidence::has_expired_files(ctx.conn(), task).await? {
        return Err(Error::Conflict("the commits of the task are not kept any more"));
    }
    let mut units = Vec::new();
    for it in shown.into_iter().filter(|it| !it.stale && it.commit.is_some()) {
        let subject =
            evidence::find_evidence_subject(ctx.conn(), task, &it.unit, it.attempt).await?;
        let checks: Vec<EvidenceCheck> = it.checks.into_iter().map(|it| it.check).collect();
        let Some(subject) = subject.filter(|_| !checks.is_empty()) else { continue };
        evidence::supersede_evidence(ctx.conn(), it.evidence_id).await?;
        let timeout_seconds = RERUN_TIMEOUT_SECONDS;
        let request = CheckRequest { checks: &checks, timeout_seconds, rerun: false };
        gather_evidence(ctx, task, it.attempt, subject, request).await?;
        units.push(it.unit);
    }
    if units.is_empty() {
        return Err(Error::Conflict("the task left no commit with checks that could be run again"));
    }
    let draft = EventDraft::new(EventKind::EvidenceRequested, json!({ "units": units }));
    ctx.record_event(draft.with_project(project).with_task(task)).await?;
    get_evidence(ctx, task).await
}

/// Schedules checks on the base commit, before any change, in one job. Existing results stay; checks that could not
/// run or were not reached are tried again.
pub(crate) async fn schedule_base_checks(
    ctx: &mut Ctx,
    task: TaskId,
    wanted: &[EvidenceCheck],
) -> Result<(), Error> {
    if let Some(why) = wanted.iter().find_map(EvidenceCheck::validation_error) {
        return Err(Error::Invalid(why));
    }
    let found = cynode_db::tasks::get_task(ctx.conn(), task).await?;
    let found = found.ok_or_else(|| Error::not_found("task", task))?;
    let id = EvidenceId::from_uuid(ctx.new_uuid());
    let mut known = evidence::open_base_evidence(ctx.conn(), id, task).await?;
    let fresh = known.checks.is_empty();
    for check in wanted {
        if !known.checks.contains(check) && known.checks.len() < MAX_BASE_CHECKS {
            known.checks.push(check.clone());
        }
    }
    let attempts = if fresh { known.attempts } else { known.attempts + 1 };
    let state = EvidenceState::Gathering;
    evidence::update_evidence(ctx.conn(), known.id, &known.checks, state, None, attempts).await?;
    if known.alive {
        // The waiting run finds out then which checks are still missing.
        return Ok(());
    }
    let shown = evidence::get_base_checks(ctx.conn(), task).await?;
    let open = |outcome| matches!(outcome, BaseOutcome::NotTried | BaseOutcome::CannotRun);
    let numbers: Vec<usize> = shown
        .iter()
        .flat_map(|base| &base.checks)
        .enumerate()
        .filter(|(_, it)| wanted.contains(&it.check) && open(it.outcome))
        .map(|(number, _)| number)
        .collect();
    let nowhere = cynode_db::delivery::repositories::get_repository(ctx.conn(), found.project)
        .await?
        .is_none();
    if nowhere {
        let error = Some("the project has no repository");
        let state = EvidenceState::Unable;
        evidence::update_evidence(ctx.conn(), known.id, &known.checks, state, error, attempts)
            .await?;
    }
    if nowhere || numbers.is_empty() {
        if !nowhere {
            close_base_checks(ctx.conn(), &known, task, attempts).await?;
        }
        // No job is queued, so nothing else would wake the run that asked.
        cynode_db::workflow::wake_runs(ctx.conn(), &[task.as_uuid()]).await?;
        ctx.wake_task(task);
        return Ok(());
    }
    let environment =
        task_environments::environment_of_task(ctx.conn(), found.project, task).await?;
    let sandbox = environment.map_or_else(SandboxNeeds::plain_sandbox, |it| it.sandbox_needs());
    let payload = trial_payload(&known, &numbers, sandbox);
    let job = NewEvidenceJob { id: ctx.new_uuid(), evidence: known.id, payload: &payload };
    evidence::queue_evidence_job(ctx.conn(), &job).await?;
    ctx.mark_job_queued();
    ctx.mark_job_changed();
    Ok(())
}

/// Returns the payload of the job that runs checks on the base commit.
fn trial_payload(known: &LockedEvidence, numbers: &[usize], sandbox: SandboxNeeds) -> Value {
    let checks: Vec<EvidenceCheck> = numbers
        .iter()
        .filter_map(|number| known.checks.get(*number))
        .map(|check| EvidenceCheck {
            time_limit_seconds: Some(check.timeout_seconds().min(MAX_BASE_CHECK_SECONDS)),
            ..check.clone()
        })
        .collect();
    let seconds: u32 =
        checks.iter().map(EvidenceCheck::timeout_seconds).fold(0, u32::saturating_add);
    let work = JobSpec {
        role: AgentRole::Tester,
        worker: WorkerChoice::Checks { checks, pinned_from: None },
        context: StructuredContext::default(),
        models: Vec::new(),
        tools: Some(Vec::new()),
        sandbox,
        placement: PlacementSpec::default(),
        commit: CommitRule::Never,
    };
    json!({
        "title": "Checks before any change",
        "unit": { "work": work, "commit": known.commit, "numbers": numbers, "base": true },
        "remedy": {},
        "timeout_seconds": seconds.min(MAX_TRIAL_SECONDS).saturating_add(CHECK_PREPARATION_SECONDS),
    })
}

/// Maximum time of all checks on the base commit together.
const MAX_TRIAL_SECONDS: u32 = 1800;

/// Stores that all base checks were tried, and whether each already holds.
async fn close_base_checks(
    conn: &mut Conn,
    known: &LockedEvidence,
    task: TaskId,
    attempts: u32,
) -> Result<(), Error> {
    let shown = evidence::get_base_checks(conn, task).await?;
    let passes = |base: &cynode_core::workflow::evidence::BaseChecks| {
        base.checks.iter().all(|it| it.outcome == BaseOutcome::Passes)
    };
    let good = shown.as_ref().is_some_and(passes);
    let state = if good { EvidenceState::Passed } else { EvidenceState::Failed };
    Ok(evidence::update_evidence(conn, known.id, &known.checks, state, None, attempts).await?)
}

/// Skips base checks that no node has claimed, and the work continues without them. Running ones are left to end.
pub(crate) async fn skip_base_checks(ctx: &mut Ctx, task: TaskId) -> Result<(), Error> {
    let Some(known) = evidence::lock_base_evidence(ctx.conn(), task).await? else { return Ok(()) };
    if known.state != EvidenceState::Gathering
        || evidence::cancel_queued_jobs(ctx.conn(), known.id).await?
    {
        return Ok(());
    }
    ctx.mark_job_changed();
    let why =
        format!("no node took the job within {BASE_CHECK_CLAIM_SECONDS} s: see `cynork node list`");
    let state = EvidenceState::Unable;
    Ok(evidence::update_evidence(
        ctx.conn(),
        known.id,
        &known.checks,
        state,
        Some(&why),
        known.attempts,
    )
    .await?)
}

/// Describes why checks were not run. A failed set-up of the environment is marked: a repeat would fail too.
fn describe_unrun_checks(result: &Value) -> String {
    let said = result["summary"].as_str().filter(|said| !said.is_empty());
    let said = said.unwrap_or("the checks were not run to an end");
    let setup_failed = result["stop_reason"] == WorkStopReason::Environment.as_str();
    if setup_failed { format!("{SETUP_FAILURE_PREFIX}{said}") } else { said.to_owned() }
}

/// Records the results of checks on the base commit.
async fn record_base_checks(
    conn: &mut Conn,
    job: JobId,
    known: &LockedEvidence,
    numbers: &[usize],
    result: &Value,
) -> Result<(), Error> {
    let steps: Vec<CommandOutcome> =
        serde_json::from_value(result["steps"].clone()).unwrap_or_default();
    if steps.is_empty() {
        let error = describe_unrun_checks(result);
        let state = EvidenceState::Unable;
        return Ok(evidence::update_evidence(
            conn,
            known.id,
            &known.checks,
            state,
            Some(&error),
            known.attempts,
        )
        .await?);
    }
    let unreached = CommandOutcome {
        argv: Vec::new(),
        exit_code: None,
        output: "It was not reached: the checks before it took all the time.".to_owned(),
        expected: None,
        sha256: String::new(),
        truncated: false,
        milliseconds: 0,
        tests: None,
    };
    for (at, number) in numbers.iter().enumerate() {
        let Some(check) = known.checks.get(*number) else { continue };
        let outcome = steps.get(at).unwrap_or(&unreached);
        let holds = check.is_satisfied_by(outcome.exit_code, &outcome.output, outcome.expected);
        let rounds = known.rounds.get(*number).map_or(0, |(_, rounds)| rounds.len());
        let tests = outcome.tests.as_ref();
        let comparison = tests.map(|tests| compare_reports(None, &[tests]));
        let run = NewCheckRun { number: *number, round: rounds + 1, holds, outcome, comparison };
        evidence::insert_check_run(conn, known.id, job, &run).await?;
    }
    let task = cynode_db::workflow::jobs::task_of_job(conn, job).await?;
    match task {
        Some(task) => close_base_checks(conn, known, task, known.attempts).await,
        None => Ok(()),
    }
}

/// Inputs of a check job.
struct CheckJobContext {
    subject: EvidenceSubject,
    timeout_seconds: u32,
    attempts: u32,
}

/// Stores the state of the evidence. Returns the payload of the next job if checks are left to run.
async fn plan_next_check(
    conn: &mut Conn,
    known: &LockedEvidence,
    scene: &CheckJobContext,
) -> Result<Option<Value>, Error> {
    let open: Vec<usize> = (0..known.checks.len())
        .filter(|at| known.tally_of_check(*at) == CheckTally::Again)
        .collect();
    // A failed check that still has to run is missing its run on the base commit.
    let (before, after): (Vec<usize>, Vec<usize>) = open.into_iter().partition(|at| {
        let rounds = known.rounds.get(*at).map_or(&[][..], |(_, rounds)| rounds);
        let held: Vec<bool> = rounds.iter().map(|ran| ran.holds).collect();
        cynode_core::evidence::tally_rounds(&held) == CheckTally::Failed
    });
    let is_before = after.is_empty();
    let (numbers, at) = match (is_before, known.pinned_from.as_ref()) {
        (false, _) => (after, known.commit.as_ref()),
        // Without a base commit no earlier failure can excuse it.
        (true, None) => (Vec::new(), None),
        (true, pinned) => (before, pinned),
    };
    // Each check has a job of its own, so that its result survives failures of the others. Checks that a person asked
    // for come first.
    let asked_for = |at: &&usize| {
        known.checks.get(**at).is_some_and(|check| !check.unless_before && !check.if_runnable)
    };
    let next = numbers.iter().find(asked_for).or_else(|| numbers.first()).copied();
    let next = next.and_then(|number| Some((number, known.checks.get(number)?)));
    let attempts = scene.attempts;
    let Some((number, check)) = next else {
        let good = (0..known.checks.len()).all(|at| known.tally_of_check(at).is_good());
        let state = if good { EvidenceState::Passed } else { EvidenceState::Failed };
        evidence::update_evidence(conn, known.id, &known.checks, state, None, attempts).await?;
        return Ok(None);
    };
    evidence::update_evidence(
        conn,
        known.id,
        &known.checks,
        EvidenceState::Gathering,
        None,
        attempts,
    )
    .await?;
    let read = |value: &Option<Value>| value.clone().unwrap_or(Value::Null);
    let restored_tests: Vec<String> =
        serde_json::from_value(read(&scene.subject.restored_tests)).unwrap_or_default();
    let work = JobSpec {
        role: AgentRole::Tester,
        worker: WorkerChoice::Checks {
            checks: vec![with_pins(check, &restored_tests)],
            pinned_from: known.pinned_from.clone().filter(|_| !is_before),
        },
        context: StructuredContext::default(),
        models: Vec::new(),
        tools: Some(Vec::new()),
        sandbox: serde_json::from_value::<SandboxNeeds>(read(&scene.subject.sandbox))
            .unwrap_or_else(|_| SandboxNeeds::plain_sandbox()),
        placement: serde_json::from_value::<PlacementSpec>(read(&scene.subject.placement))
            .unwrap_or_default(),
        commit: CommitRule::Never,
    };
    let seconds = scene.timeout_seconds;
    Ok(Some(json!({
        "title": format!("Checks of: {}", scene.subject.title),
        "unit": { "work": work, "commit": at, "numbers": [number], "before": is_before, "restored_tests": restored_tests, "seconds": seconds },
        "remedy": {},
        "timeout_seconds": job_seconds(check, seconds),
    })))
}

/// Time allowance for the files and the sandbox of a check.
const CHECK_PREPARATION_SECONDS: u32 = 300;

/// Returns the timeout of a check job. It always covers the timeout of the check itself.
fn job_seconds(check: &EvidenceCheck, at_least: u32) -> u32 {
    at_least.max(check.timeout_seconds().saturating_add(CHECK_PREPARATION_SECONDS))
}

/// Returns the check with these files pinned as well.
fn with_pins(check: &EvidenceCheck, paths: &[String]) -> EvidenceCheck {
    let mut check = check.clone();
    check.pins.extend(
        paths.iter().filter(|path| !check.pins.contains(path)).cloned().collect::<Vec<_>>(),
    );
    check
}

/// Records the results of a check job, in the transaction of the job's result. Returns whether more checks are to
/// run.
pub(crate) async fn record_check_result(
    app: &crate::App,
    conn: &mut Conn,
    job: JobId,
    outcome: JobOutcome,
    result: &Value,
) -> Result<bool, Error> {
    let Some((id, payload)) = evidence::evidence_of_job(conn, job).await? else { return Ok(false) };
    let Some(mut known) = evidence::lock_evidence(conn, id).await? else { return Ok(false) };
    let given = &payload["unit"];
    let numbers: Vec<usize> = serde_json::from_value(given["numbers"].clone()).unwrap_or_default();
    let before = given["before"].as_bool().unwrap_or(false);
    if given["base"] == true {
        record_base_checks(conn, job, &known, &numbers, result).await?;
        return Ok(false);
    }
    // The orchestrator wrote commit and base into the result; the node wrote the rest.
    let steps: Vec<CommandOutcome> =
        serde_json::from_value(result["steps"].clone()).unwrap_or_default();
    if outcome == JobOutcome::Failed || steps.len() != numbers.len() {
        let error = describe_unrun_checks(result);
        let state = EvidenceState::Unable;
        evidence::update_evidence(conn, id, &known.checks, state, Some(&error), known.attempts)
            .await?;
        return Ok(false);
    }
    for (number, step) in numbers.iter().zip(&steps) {
        let Some(check) = known.checks.get(*number) else { continue };
        let holds = check.is_satisfied_by(step.exit_code, &step.output, step.expected);
        let Some((was, rounds)) = known.rounds.get_mut(*number) else { continue };
        let ran = CheckRunResult { holds, exit_code: step.exit_code };
        let round = if before {
            *was = Some(ran);
            0
        } else {
            rounds.push(ran);
            rounds.len()
        };
        let reports = known.reports.get_mut(*number);
        let comparison = reports.and_then(|reports| {
            if before {
                reports.before = step.tests.clone().or_else(|| reports.before.take());
            } else {
                reports.after.push(step.tests.clone());
            }
            reports.compare_runs()
        });
        let run = NewCheckRun { number: *number, round, holds, outcome: step, comparison };
        evidence::insert_check_run(conn, id, job, &run).await?;
    }
    let work: Option<JobSpec> = serde_json::from_value(given["work"].clone()).ok();
    let needs = |pick: fn(&JobSpec) -> Result<Value, serde_json::Error>| {
        work.as_ref().and_then(|work| pick(work).ok())
    };
    let title = payload["title"].as_str().unwrap_or_default();
    let scene = CheckJobContext {
        subject: EvidenceSubject {
            unit: uuid::Uuid::nil(),
            title: title.trim_start_matches("Checks of: ").to_owned(),
            commit: known.commit.clone(),
            pinned_from: known.pinned_from.clone(),
            sandbox: needs(|work| serde_json::to_value(&work.sandbox)),
            placement: needs(|work| serde_json::to_value(&work.placement)),
            restored_tests: given.get("restored_tests").cloned(),
            open: true,
        },
        timeout_seconds: given["seconds"]
            .as_u64()
            .and_then(|seconds| u32::try_from(seconds).ok())
            .unwrap_or(600),
        attempts: known.attempts,
    };
    let Some(payload) = plan_next_check(conn, &known, &scene).await? else { return Ok(false) };
    let id = app.environment().new_uuid(app.environment().now());
    evidence::queue_evidence_job(
        conn,
        &NewEvidenceJob { id, evidence: known.id, payload: &payload },
    )
    .await?;
    Ok(true)
}

/// Requires that the commit a task leaves was checked as its criteria ask. The error names the missing evidence.
pub(crate) async fn require_evidence(
    conn: &mut Conn,
    task: TaskId,
    criteria: &[Criterion],
) -> Result<(), Error> {
    let shown = evidence::list_task_evidence(conn, task, true).await?;
    let wanted: Vec<&EvidenceCheck> = criteria.iter().filter_map(|it| it.check.as_ref()).collect();
    if shown.is_empty() && wanted.is_empty() {
        return Ok(());
    }
    let units = units::list_task_units(conn, task, true).await?;
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
        find_final_units(&graph.collect::<Vec<_>>(), &left).into_iter().cloned().collect();
    if last.is_empty() {
        // Nothing was changed. The latest checked unit counts instead.
        last.extend(
            shown
                .iter()
                .rev()
                .find(|it| it.state != EvidenceState::Gathering)
                .map(|it| it.unit.clone()),
        );
    }
    for key in &last {
        // A later unit without changes was checked at the same commit.
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
        // A waiver covers only checks that were run.
        let covered = |check: &&&EvidenceCheck| {
            related.iter().any(|own| {
                let mut same = own.checks.iter().filter(|it| it.check == ***check);
                same.any(|it| it.tally.is_good() || own.waived.is_some())
            })
        };
        if let Some(missing) = wanted.iter().find(|check| !covered(check)) {
            return Err(Error::Invalid(format!(
                "nothing shows that `{}` holds for what unit `{key}` left",
                missing.command_line()
            )));
        }
    }
    // Without a repository no check can run. The result is accepted only with a recorded reason.
    if last.is_empty() && !wanted.is_empty() && !evidence::is_accepted_unchecked(conn, task).await?
    {
        let why =
            "the task's criteria have checks, and none was run: a person has to take it as it is";
        return Err(Error::Invalid(why.into()));
    }
    Ok(())
}

/// Result of the inspection of a change.
#[derive(Debug, Default)]
pub(crate) struct ChangeInspection {
    /// Anomalies that nobody has accepted yet.
    pub(crate) anomalies: Vec<FileAnomaly>,
    /// Tests that checks restore to their earlier version.
    pub(crate) restored_tests: Vec<String>,
}

/// Inspects a change, measured against the base of the task's work. Returns the anomalies that need an explanation.
pub(crate) async fn inspect_change(
    app: &crate::App,
    project: ProjectId,
    task: TaskId,
    commit: &str,
) -> Result<ChangeInspection, Error> {
    let mut conn = app.conn().await?;
    let grounds = evidence::load_change_baseline(&mut conn, task).await?;
    let disallowed = load_disallowed_languages(&mut conn, project, task).await?;
    drop(conn);
    let base = grounds.base.filter(|base| base != commit);
    let Some(base) = base else { return Ok(ChangeInspection::default()) };
    let criteria: Vec<Criterion> = serde_json::from_value(grounds.criteria).unwrap_or_default();
    let mut checks: Vec<EvidenceCheck> = criteria.into_iter().filter_map(|it| it.check).collect();
    let mut asked_for: Vec<String> = Vec::new();
    for unit in &grounds.units {
        checks.extend(parse_planned_checks(unit));
        let files = unit["brief"]["files_to_modify"].clone();
        asked_for.extend(serde_json::from_value::<Vec<String>>(files).unwrap_or_default());
    }
    let repositories = &app.gateway_parts()?.repositories;
    let (touched, more) = repositories.inspect_changes(project, &base, commit, &asked_for).await?;
    let (mut behind, whole) = find_check_scripts(app, project, &base, &checks).await?;
    if !whole {
        // The list of check scripts is incomplete, so every changed script counts as one.
        let there =
            touched.iter().filter(|it| it.how != FileChangeKind::Added && is_script_path(&it.path));
        behind.extend(there.map(|it| it.path.clone()));
    }
    let mut anomalies =
        cynode_core::evidence::find_anomalies(&touched, &checks, &behind, &asked_for);
    anomalies.extend(find_disallowed_languages(&touched, &disallowed));
    anomalies.extend(more);
    let objects: HashMap<&str, &str> =
        touched.iter().map(|file| (file.path.as_str(), file.is.as_str())).collect();
    let accepted: Vec<FileAnomaly> =
        grounds.accepted_anomalies.iter().flat_map(parse_anomalies).collect();
    let mut restored_tests = cynode_core::evidence::tests_to_restore(&touched, &asked_for);
    // An accepted change of a test is checked as it is.
    restored_tests
        .retain(|path| !is_accepted(path, objects.get(path.as_str()).copied(), &accepted));
    let unseen =
        |reason: &str| ChangeAnomaly::Unseen { path: String::new(), reason: reason.to_owned() };
    if restored_tests.len() > MAX_RESTORED_TESTS {
        restored_tests.truncate(MAX_RESTORED_TESTS);
        anomalies.push(unseen("it touches more tests than are put back for the checks"));
    }
    // Anomalies of the whole change are the most severe and come first.
    anomalies.sort_by_key(|one| !one.file_path().is_empty());
    let named = |anomaly: ChangeAnomaly| {
        let object_id = objects.get(anomaly.file_path()).copied().unwrap_or(commit).to_owned();
        FileAnomaly { anomaly, object_id }
    };
    let mut seen: Vec<FileAnomaly> = Vec::new();
    let mut room = MAX_ANOMALY_BYTES;
    for one in anomalies.into_iter().map(named) {
        if accepted.contains(&one) || seen.contains(&one) {
            continue;
        }
        let bytes = serde_json::to_string(&one).map_or(usize::MAX, |text| text.len());
        if seen.len() == MAX_ANOMALIES || bytes > room {
            seen.insert(0, named(unseen("it has more anomalies than are listed")));
            break;
        }
        room -= bytes;
        seen.push(one);
    }
    Ok(ChangeInspection { anomalies: seen, restored_tests })
}

/// Returns the languages in which the task may add no file: those that the preferences of its author say. What the plan asks for makes no
/// difference.
async fn load_disallowed_languages(
    conn: &mut Conn,
    project: ProjectId,
    task: TaskId,
) -> Result<Vec<String>, Error> {
    let Some(found) = cynode_db::tasks::get_task(conn, task).await? else {
        return Ok(Vec::new());
    };
    let held = resolve_effective(conn, None, found.created_by, Some(project), Some(task)).await?;
    Ok(held.texts_of_key(DISALLOWED_LANGUAGES_PREFERENCE))
}

/// Maximum number and bytes of listed anomalies, because they are stored with the run.
const MAX_ANOMALIES: usize = 500;
const MAX_ANOMALY_BYTES: usize = 512 * 1024;

/// Maximum number of tests that are restored for checks.
const MAX_RESTORED_TESTS: usize = 500;

/// Parses the anomalies of a result. Unreadable ones count as not accepted.
fn parse_anomalies(listed: &Value) -> Vec<FileAnomaly> {
    serde_json::from_value(listed.clone()).unwrap_or_default()
}

/// Returns whether somebody accepted the change of a test in its current version.
fn is_accepted(path: &str, object_id: Option<&str>, accepted: &[FileAnomaly]) -> bool {
    let about = |one: &&FileAnomaly| {
        one.anomaly.file_path() == path && Some(one.object_id.as_str()) == object_id
    };
    accepted.iter().filter(about).any(|one| match one.anomaly {
        ChangeAnomaly::TestRemoved { .. }
        | ChangeAnomaly::TestWeakened { .. }
        | ChangeAnomaly::Unseen { .. } => true,
        ChangeAnomaly::CheckTouched { .. }
        | ChangeAnomaly::MergeMarks { .. }
        | ChangeAnomaly::LanguageDisallowed { .. } => false,
    })
}

/// Maximum number of files that are read to find the scripts behind checks.
const MAX_CHECK_SCRIPTS: usize = 100;

/// Returns the scripts of the repository that checks depend on, directly or through other scripts, as of the base
/// commit. The flag says whether the list is complete.
async fn find_check_scripts(
    app: &crate::App,
    project: ProjectId,
    base: &str,
    checks: &[EvidenceCheck],
) -> Result<(Vec<String>, bool), Error> {
    let mut paths: Vec<String> = Vec::new();
    let mut whole = true;
    let mut add = |paths: &mut Vec<String>, path: String| {
        if paths.len() < MAX_CHECK_SCRIPTS || paths.contains(&path) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        } else {
            whole = false;
        }
    };
    for check in checks {
        let definers = check.definition_files().into_iter().map(str::to_owned);
        for path in definers.chain(check.pinned_paths()).filter(|path| !is_test_file(path)) {
            add(&mut paths, path);
        }
    }
    let first = paths.len();
    let (mut at, mut read) = (0, true);
    while let Some(path) = paths.get(at).cloned() {
        let text = app
            .gateway_parts()?
            .repositories
            .read_file(project, base, &path, MAX_SCRIPT_BYTES)
            .await?;
        if let Some((text, cut)) = &text {
            read &= !cut;
            for named in find_script_paths(text) {
                add(&mut paths, named);
            }
        }
        at += 1;
    }
    Ok((paths.split_off(first), whole && read))
}

/// Maximum number of bytes that are read of a script.
const MAX_SCRIPT_BYTES: usize = 256 * 1024;

/// Parses the checks that the plan requires of a unit.
fn parse_planned_checks(payload: &Value) -> Vec<EvidenceCheck> {
    let listed = payload["checks"].as_array().map_or(&[][..], Vec::as_slice);
    listed.iter().filter_map(|it| serde_json::from_value(it.clone()).ok()).collect()
}

/// Returns whether a job runs checks, so that its result comes from no agent.
pub(crate) fn is_check_job(work: &Value) -> bool {
    work["worker"]["kind"] == "checks"
}

/// Keeps only the fields that a node may report for a check job: its steps. Commits and the like are removed.
pub(crate) fn strip_untrusted_fields(result: WorkResult) -> WorkResult {
    WorkResult { commit: None, bundle: None, conflict: None, session: None, ..result }
}
