//! Subscriptions: which topics the visible panes need, by priority, and their refresh intervals.

use cynode_core::{
    tasks::TaskStateName,
    workflow::{units::JobState, waits::WaitReason},
};
use time::Duration;

use super::{
    cache::FetchTopic,
    message::ScreenEffect,
    state::{ConnectionState, Pane, ScreenState, TaskPart},
    store::InboxItem,
};

/// How long an item must be selected before it is fetched.
const SELECTION_DEBOUNCE: Duration = Duration::milliseconds(150);

/// A topic and its maximum age; without an age it is fetched after an event.
type TopicNeed = (FetchTopic, Option<Duration>);

/// Requests the needed topics that are stale or missing, and not in flight.
pub(super) fn request_needed_topics(state: &mut ScreenState, wants: &mut Vec<ScreenEffect>) {
    // The server does not respond: the event stream notices when that changes.
    if state.login.is_some() || matches!(state.link, ConnectionState::Lost { .. }) {
        return;
    }
    for (topic, period) in needed_topics(state) {
        if state.shelf.is_fetch_due(&topic, period, state.now) {
            state.shelf.start_fetch(&topic, state.now);
            let from = match &topic {
                FetchTopic::Log(job) => state.known.logs.get(job).map_or(0, |log| log.next),
                _ => 0,
            };
            wants.push(ScreenEffect::Fetch(topic, from));
        }
    }
}

/// Returns the topics that are needed now.
fn needed_topics(state: &ScreenState) -> Vec<TopicNeed> {
    let seconds = |number| Some(Duration::seconds(number));
    let mut needs = vec![(FetchTopic::Me, None)];
    let rested = state.now - state.chosen_at >= SELECTION_DEBOUNCE;
    match state.pane {
        Pane::Tasks => {
            if !state.shows_task() || state.size.is_wide() {
                needs.push((FetchTopic::Tasks(state.filter.query.clone()), seconds(60)));
                needs.extend(next_page_need(state));
                needs.push((FetchTopic::Costs, seconds(15)));
            }
            if state.shows_task() && rested {
                add_task_needs(state, &mut needs);
            }
        }
        Pane::Inbox => {
            if rested {
                add_item_needs(state, &mut needs);
            }
        }
        Pane::Nodes => needs.push((FetchTopic::Nodes, seconds(5))),
        Pane::Projects => {
            needs.push((FetchTopic::ByProject, seconds(15)));
            let chosen = state.chosen_project().filter(|_| rested);
            needs.extend(chosen.map(|it| (FetchTopic::Repository(it.id), seconds(60))));
        }
        Pane::PullRequests => {
            needs.push((FetchTopic::Pulls(state.scope), seconds(60)));
            let chosen = state.chosen_pull_request().filter(|_| rested);
            needs.extend(chosen.map(|it| (FetchTopic::Pull(it.id), None)));
        }
        Pane::Models => needs.push((FetchTopic::Models, seconds(60))),
        Pane::Chat => {}
        Pane::Spend => {
            needs.push((FetchTopic::ByProject, seconds(15)));
            needs.push((FetchTopic::ByModel, seconds(15)));
            needs.push((FetchTopic::Budgets, seconds(15)));
        }
    }
    needs.push((FetchTopic::Projects, None));
    // The size of the inbox is always visible.
    needs.push((FetchTopic::Approvals, seconds(60)));
    needs.push((FetchTopic::Running, None));
    // Blocking checks are always visible too.
    needs.push((FetchTopic::Readiness, seconds(8)));
    // Tasks with an unknown wait are fetched, one after the other.
    needs
        .extend(state.known.unsure.iter().next().map(|id| (FetchTopic::Timeline(*id), seconds(1))));
    needs
}

/// Returns the next page, if the end of the list is visible.
fn next_page_need(state: &ScreenState) -> Option<TopicNeed> {
    let cursor = state.known.more.clone()?;
    let place = super::state::ScrollArea::Tasks;
    let shown = state.scroll_offset(place) + state.drawn.pages.get(&place).copied().unwrap_or(0);
    let near = shown + 5 >= state.listed_tasks().len();
    near.then(|| (FetchTopic::More(state.filter.query.clone(), cursor), None))
}

/// Adds the topics of a visible task.
fn add_task_needs(state: &ScreenState, needs: &mut Vec<TopicNeed>) {
    let Some(task) = state.chosen_task() else { return };
    let lives = matches!(task.state, TaskStateName::Queued | TaskStateName::Running);
    let often = |seconds| lives.then(|| Duration::seconds(seconds));
    needs.push((FetchTopic::Timeline(task.id), often(2)));
    let Some(timeline) = state.chosen_timeline() else { return };
    match state.part {
        TaskPart::Plan => {
            // Units of a timeline that is older than the wait belong to the previous plan.
            let wait = state.known.waits.get(&task.id);
            let wait = wait.filter(|wait| wait.reason == WaitReason::Approval);
            if let Some(wait) = wait.filter(|_| state.known.pending_units(task.id).is_empty()) {
                needs.push((FetchTopic::Plan(task.project_id, task.id, wait.id), None));
            }
        }
        TaskPart::Timeline => {}
        TaskPart::Logs => {
            if let Some(job) = state.chosen_job() {
                let ended = JobState::from_name(&job.state).is_none_or(JobState::is_final);
                let often = (!ended).then(|| Duration::seconds(1));
                needs.push((FetchTopic::Log(job.job_id), often));
            }
        }
        TaskPart::Diff => {
            if let Some(entry) = &timeline.pull_request {
                needs.push((FetchTopic::Files(entry.id), None));
                let file = state.chosen_file();
                needs.extend(file.map(|file| (FetchTopic::Diff(entry.id, file.to_owned()), None)));
            } else {
                needs.push((FetchTopic::Work(task.id), often(5)));
            }
        }
        TaskPart::Evidence => needs.push((FetchTopic::Evidence(task.id), often(3))),
    }
}

/// Adds the topics for the exact display of an inbox item.
fn add_item_needs(state: &ScreenState, needs: &mut Vec<TopicNeed>) {
    match state.chosen_item() {
        Some(InboxItem::Plan(task)) => {
            let wait = state.known.waits.get(&task);
            let plan =
                wait.and_then(|wait| wait.project.map(|it| FetchTopic::Plan(it, task, wait.id)));
            needs.extend(plan.map(|plan| (plan, None)));
            if let (Some(Some(_)), Some(wait)) = (state.known.pending_plan(task), wait) {
                let before = wait.project.map(|it| FetchTopic::Before(it, task, wait.id));
                needs.extend(before.map(|before| (before, None)));
            }
            needs.push((FetchTopic::Timeline(task), None));
        }
        Some(InboxItem::Question(task)) => needs.push((FetchTopic::Timeline(task), None)),
        Some(InboxItem::Call(approval)) => needs.push((FetchTopic::Approval(approval), None)),
        None => {}
    }
}
