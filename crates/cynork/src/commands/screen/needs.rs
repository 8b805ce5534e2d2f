//! What is in sight must be known: which topics are wanted now, the most wanted first, and how often anew.

use cynode_core::{
    tasks::TaskStateName,
    workflow::{units::JobState, waits::WaitReason},
};
use time::Duration;

use super::{
    known::Item,
    message::Want,
    shelf::Topic,
    state::{Link, Pane, Part, State},
};

/// How long something must be chosen before it is asked for.
const RESTED: Duration = Duration::milliseconds(150);

/// A topic, and how old it may become; without a time it is asked for when something happened.
type Need = (Topic, Option<Duration>);

/// Asks for what is needed, old or missing, and not under way.
pub(super) fn ask(state: &mut State, wants: &mut Vec<Want>) {
    // Nobody answers: whoever listens finds out when that changes.
    if state.login.is_some() || matches!(state.link, Link::Lost { .. }) {
        return;
    }
    for (topic, period) in needs(state) {
        if state.shelf.is_due(&topic, period, state.now) {
            state.shelf.begin(&topic, state.now);
            let from = match &topic {
                Topic::Log(job) => state.known.logs.get(job).map_or(0, |log| log.next),
                _ => 0,
            };
            wants.push(Want::Fetch(topic, from));
        }
    }
}

/// What is needed now.
fn needs(state: &State) -> Vec<Need> {
    let seconds = |number| Some(Duration::seconds(number));
    let mut needs = vec![(Topic::Me, None)];
    let rested = state.now - state.chosen_at >= RESTED;
    match state.pane {
        Pane::Tasks => {
            if !state.shows_task() || state.size.is_wide() {
                needs.push((Topic::Tasks(state.filter.query.clone()), seconds(60)));
                needs.extend(more(state));
                needs.push((Topic::Costs, seconds(15)));
            }
            if state.shows_task() && rested {
                task(state, &mut needs);
            }
        }
        Pane::Inbox => {
            if rested {
                item(state, &mut needs);
            }
        }
        Pane::Nodes => needs.push((Topic::Nodes, seconds(5))),
        Pane::Spend => {
            needs.push((Topic::ByProject, seconds(15)));
            needs.push((Topic::ByModel, seconds(15)));
            needs.push((Topic::Budgets, seconds(15)));
        }
    }
    needs.push((Topic::Projects, None));
    // How much waits for the person is always in sight.
    needs.push((Topic::Approvals, seconds(60)));
    needs.push((Topic::Running, None));
    // Those of which nothing was heard are looked at, one after the other.
    needs.extend(state.known.unsure.iter().next().map(|id| (Topic::Timeline(*id), seconds(1))));
    needs
}

/// The next page, when the end of the list is in sight.
fn more(state: &State) -> Option<Need> {
    let cursor = state.known.more.clone()?;
    let place = super::state::Place::Tasks;
    let shown = state.offset(place) + state.drawn.pages.get(&place).copied().unwrap_or(0);
    let near = shown + 5 >= state.listed().len();
    near.then(|| (Topic::More(state.filter.query.clone(), cursor), None))
}

/// What one task in sight needs.
fn task(state: &State, needs: &mut Vec<Need>) {
    let Some(task) = state.chosen_task() else { return };
    let lives = matches!(task.state, TaskStateName::Queued | TaskStateName::Running);
    let often = |seconds| lives.then(|| Duration::seconds(seconds));
    needs.push((Topic::Timeline(task.id), often(2)));
    let Some(timeline) = state.timeline() else { return };
    match state.part {
        Part::Plan => {
            // Units of a story that is older than the wait are of the plan before.
            let wait = state.known.waits.get(&task.id);
            let wait = wait.filter(|wait| wait.reason == WaitReason::Approval);
            if let Some(wait) = wait.filter(|_| state.known.units(task.id).is_empty()) {
                needs.push((Topic::Plan(task.project_id, task.id, wait.id), None));
            }
        }
        Part::Timeline => {}
        Part::Logs => {
            if let Some(job) = state.chosen_job() {
                let ended = JobState::from_name(&job.state).is_none_or(JobState::is_final);
                let often = (!ended).then(|| Duration::seconds(1));
                needs.push((Topic::Log(job.job_id), often));
            }
        }
        Part::Diff => {
            if let Some(entry) = &timeline.pull_request {
                needs.push((Topic::Files(entry.id), None));
                let file = state.chosen_file();
                needs.extend(file.map(|file| (Topic::Diff(entry.id, file.to_owned()), None)));
            }
        }
        Part::Evidence => needs.push((Topic::Evidence(task.id), often(3))),
    }
}

/// What one thing that waits needs to be shown exactly.
fn item(state: &State, needs: &mut Vec<Need>) {
    match state.chosen_item() {
        Some(Item::Plan(task)) => {
            let wait = state.known.waits.get(&task);
            let plan = wait.and_then(|wait| wait.project.map(|it| Topic::Plan(it, task, wait.id)));
            needs.extend(plan.map(|plan| (plan, None)));
            needs.push((Topic::Timeline(task), None));
        }
        Some(Item::Question(task)) => needs.push((Topic::Timeline(task), None)),
        Some(Item::Call(approval)) => needs.push((Topic::Approval(approval), None)),
        None => {}
    }
}
