//! Stall detection: describes work that nobody takes, for the timeline of its task, the status of the installation and
//! the log.
//!
//! **Invariant**: stalls are derived from stored state. The check asks no other process and writes nothing.

use cynode_core::{settings::registry::THINK_TIMEOUT_SETTING, workflow::jobs::JobSpec};
use std::collections::BTreeMap;

use cynode_core::{
    ids::TaskId,
    placement::{self, NodeCandidate, PlacementError, PlacementRequirements, ResourceShortage},
    policies::PlacementBounds,
};
use cynode_db::{
    Conn, DbError,
    background::liveness::{self, LivenessWindow, Stall, StallCause},
    nodes,
    tasks::{self, policies},
};
use cynode_wire::workflow::timeline::{StallKind, StallView};
use time::OffsetDateTime;

use crate::{
    App, Ctx, Error,
    identity::service_tokens::PRESENCE_TIMEOUT_MS,
    workflow::placement::{placement_candidates, placement_needs},
};

/// Age from which unclaimed work counts as stalled.
const STALL_AFTER_MS: i64 = 10_000;

/// Maximum age of the last contact for a node to count as alive.
const NODE_HEARD_MS: i64 = 10_000;

const HEARD_WITHIN: LivenessWindow =
    LivenessWindow { node_ms: NODE_HEARD_MS, service_ms: PRESENCE_TIMEOUT_MS };

/// Returns the stalls of a task.
pub(crate) async fn stalls_of_task(ctx: &mut Ctx, task: TaskId) -> Result<Vec<StallView>, Error> {
    let found = find_stalls(ctx.conn(), Some(task)).await?;
    Ok(found.into_iter().map(|(_, view)| view).collect())
}

/// Finds all stalls with their descriptions.
pub(crate) async fn find_stalls(
    conn: &mut Conn,
    task: Option<TaskId>,
) -> Result<Vec<(Stall, StallView)>, DbError> {
    let stalls = liveness::list_stalls(conn, task, STALL_AFTER_MS, HEARD_WITHIN).await?;
    let unplaced = |stall: &Stall| matches!(stall.cause, StallCause::UnplacedJob { .. });
    let there = if stalls.iter().any(unplaced) {
        placement_candidates(&nodes::list_nodes(conn).await?)
    } else {
        Vec::new()
    };
    let mut described = Vec::new();
    for stall in stalls {
        let bounds = placement_bounds_of(conn, &stall).await?;
        if let Some(view) = describe_stall(&stall, &there, &bounds) {
            described.push((stall, view));
        }
    }
    Ok(described)
}

/// Returns the nodes that admins allow for a job without a node.
async fn placement_bounds_of(conn: &mut Conn, stall: &Stall) -> Result<PlacementBounds, DbError> {
    let (StallCause::UnplacedJob { .. }, Some(task)) = (&stall.cause, stall.task) else {
        return Ok(PlacementBounds::default());
    };
    let Some(task) = tasks::get_task(conn, task).await? else {
        return Ok(PlacementBounds::default());
    };
    let held = policies::load_policies(conn, task.created_by, Some(task.project)).await?;
    Ok(held.placement_bounds())
}

/// Describes a stall and the commands that fix it. Returns `None` when the work only waits in the queue.
fn describe_stall(
    stall: &Stall,
    there: &[NodeCandidate],
    bounds: &PlacementBounds,
) -> Option<StallView> {
    let (kind, detail, commands) = match &stall.cause {
        StallCause::UnclaimedJob { node, heard: true, .. } => (
            StallKind::UnclaimedJob,
            format!(
                "the node `{node}` is connected and has not taken the job that is placed on it for more than 10 seconds"
            ),
            vec![
                format!("cynork node show {node}"),
                format!(
                    "cynode-node doctor  # on the machine of {node}; then start its node again"
                ),
            ],
        ),
        StallCause::UnclaimedJob { node, heard: false, .. } => (
            StallKind::UnclaimedJob,
            format!(
                "the node `{node}`, on which the job is placed, has not been heard of for more than 10 seconds"
            ),
            vec![
                "cynork node list".to_owned(),
                format!("cynode-node run  # on the machine of {node}; `cynode up` starts its own"),
            ],
        ),
        StallCause::UnplacedJob { work, .. } => {
            let work: Option<JobSpec> = serde_json::from_value(work.clone()).ok();
            let needs = PlacementRequirements {
                bounds: Some(bounds),
                ..work.as_ref().map(placement_needs).unwrap_or_default()
            };
            let why = placement::choose_node(needs, there).err()?;
            let commands = unplaced_commands(&why, needs.agent)?;
            (StallKind::UnplacedJob, format!("no machine takes the job: {why}"), commands)
        }
        StallCause::UnclaimedHandoff { heard: true, claimed: 1.., .. } => return None,
        StallCause::UnclaimedHandoff { role, heard, .. } => {
            let who = match role.as_str() {
                "project_analyst" => "analyst",
                _ => "project manager",
            };
            let detail = if *heard {
                format!(
                    "the {who} is connected and has not taken the question for more than 10 seconds"
                )
            } else {
                format!("no {who} process takes the question: none is running")
            };
            let start = format!(
                "cynode up  # starts one; by hand: cynode-pma --role={role} --orchestrator ADDRESS --token-file FILE"
            );
            (StallKind::UnclaimedHandoff, detail, vec!["cynork status".to_owned(), start])
        }
        StallCause::UndrivenRun { sent } => {
            let detail = if *sent {
                "the engine was told that the task goes on, and no runner has driven it for more than 10 seconds"
            } else {
                "the engine that drives tasks cannot be told that the task goes on"
            };
            let start = "cynode up  # starts the engine and the runner, and starts them again when they end";
            (
                StallKind::UndrivenRun,
                detail.to_owned(),
                vec!["cynork status".to_owned(), start.to_owned()],
            )
        }
        StallCause::SlowModel { model, provider, .. } => (
            StallKind::SlowModel,
            format!(
                "the model `{model}` of the provider `{provider}` has not answered for more than 10 seconds"
            ),
            vec![
                "cynork provider list  # whether its provider answers".to_owned(),
                format!(
                    "cynork settings set {} N  # how long a model may take",
                    THINK_TIMEOUT_SETTING
                ),
            ],
        ),
    };
    Some(StallView { kind, since: stall.since, detail, commands })
}

/// Returns commands that let a job find a node, or `None` when it only has to wait.
fn unplaced_commands(why: &PlacementError, agent: Option<&str>) -> Option<Vec<String>> {
    Some(match (why, agent) {
        (PlacementError::Busy, _) => return None,
        (PlacementError::NoNodes, _) => vec![
            "cynork node list".to_owned(),
            "cynode-node run  # on a machine that has joined; `cynode up` starts its own"
                .to_owned(),
            "cynork node join-token  # lets another machine join".to_owned(),
        ],
        (PlacementError::NotThere(name), _) => vec![
            format!("cynork node show {name}"),
            format!("cynode-node run  # on the machine of {name}"),
        ],
        (PlacementError::NotAllowed(_), _) => vec![
            "cynork policy explain --project PROJECT".to_owned(),
            "cynork node list  # names and labels".to_owned(),
        ],
        (PlacementError::Unable(what), Some(agent)) if what.contains("coding agent") => {
            vec![format!(
                "cynode-node agents install {agent}  # on a node; with `cynode up`: cynode-node --state DATA/node agents install {agent}"
            )]
        }
        (PlacementError::TooSmall(ResourceShortage { config_key, needed_mib, node, .. }), _) => {
            vec![
                format!(
                    "{config_key} = {needed_mib}  # in node.toml of {node}, or of a larger machine; then start its node again"
                ),
                "cynork project environment show  # or ask for less there: `limits`".to_owned(),
            ]
        }
        (PlacementError::Unable(_), _) => {
            vec!["cynork node list".to_owned(), "cynode-node doctor  # on each node".to_owned()]
        }
    })
}

/// Identifies a stall for as long as it lasts.
type StallKey = (StallKind, String, OffsetDateTime);

/// Logs each stall once, and its end once.
#[derive(Debug, Default)]
pub struct StallLog {
    open: BTreeMap<StallKey, String>,
}

impl StallLog {
    /// Checks once. Returns the newly logged stalls.
    pub async fn log_stalls(&mut self, app: &App) -> Result<Vec<StallView>, Error> {
        let mut conn = app.conn().await?;
        let found = find_stalls(&mut conn, None).await?;
        drop(conn);
        let (mut open, mut new) = (BTreeMap::new(), Vec::new());
        for (stall, view) in found {
            let key = stall_key_of(&stall, &view);
            if !self.open.contains_key(&key) {
                log_stall(&stall, &view);
                new.push(view.clone());
            }
            open.insert(key, view.detail);
        }
        for ((kind, id, _), detail) in &self.open {
            if !open.keys().any(|(other, same, _)| (other, same) == (kind, id)) {
                tracing::info!(
                    event = "work.resumed",
                    kind = kind.as_str(),
                    id,
                    detail,
                    "the work goes on"
                );
            }
        }
        self.open = open;
        Ok(new)
    }
}

fn stall_key_of(stall: &Stall, view: &StallView) -> StallKey {
    let id = match &stall.cause {
        StallCause::UnclaimedJob { job, .. } | StallCause::UnplacedJob { job, .. } => {
            job.to_string()
        }
        StallCause::UnclaimedHandoff { handoff, .. } => handoff.to_string(),
        StallCause::UndrivenRun { .. } => {
            stall.task.map(|task| task.to_string()).unwrap_or_default()
        }
        StallCause::SlowModel { call, .. } => call.to_string(),
    };
    (view.kind, id, stall.since)
}

fn log_stall(stall: &Stall, view: &StallView) {
    let (job, node, handoff) = match &stall.cause {
        StallCause::UnclaimedJob { job, node, .. } => (Some(job), Some(node), None),
        StallCause::UnplacedJob { job, .. } => (Some(job), None, None),
        StallCause::UnclaimedHandoff { handoff, .. } => (None, None, Some(handoff)),
        StallCause::UndrivenRun { .. } | StallCause::SlowModel { .. } => (None, None, None),
    };
    tracing::warn!(
        event = "work.stalled",
        kind = view.kind.as_str(),
        project.id = %stall.project,
        task.id = stall.task.map(tracing::field::display),
        job.id = job.map(tracing::field::display),
        node.name = node,
        handoff.id = handoff.map(tracing::field::display),
        "{}; to do: {}",
        view.detail,
        view.commands.join("; ")
    );
}
