//! Log of a job as a stream: the stored events in order, then new ones as nodes report them, until the job has ended.
//!
//! A stream reads when the log has something new, and at the interval of event streams otherwise. However often a node reports, a
//! stream never reads more often than that.

use std::{collections::VecDeque, time::Duration};

use cynode_core::{ids::JobId, trace::TraceId, workflow::units::JobState};
use cynode_db::{
    nodes::{self, JobEventRecord},
    workflow::jobs,
};
use futures::{Stream, stream};

use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{
        operation, stream_limits::StreamPermit, tokens::PresentedToken, wakeups::sleep_for,
    },
};

/// Maximum number of events per read.
const LOG_BATCH_SIZE: u16 = 500;

/// Poll interval of a stream, while other processes are not heard.
const LOG_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a stream that was woken waits for more events, so that it reads a few times a second however many reports come.
const LOG_COLLECT_DELAY: Duration = Duration::from_millis(200);

/// One item of the log of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobLogItem {
    /// An event.
    Event(JobEventRecord),
    /// The job has ended, in this state. Nothing follows.
    End(JobState),
}

/// A part of the log of a job.
struct JobLogPage {
    events: Vec<JobEventRecord>,
    /// State of the job before the events were read. An ended job gets no more events.
    state: JobState,
}

/// Rejects a caller who may not see the log of the job.
#[operation]
pub async fn authorize_job_log(ctx: &mut Ctx, job: JobId) -> Result<(), Error> {
    ctx.caller()?;
    let missing = || Error::not_found("job", job);
    let task = jobs::task_of_job(ctx.conn(), job).await?.ok_or_else(missing)?;
    crate::tasks::get_task(ctx, task).await.map_err(|_| missing())?;
    Ok(())
}

/// Reads the log of a job for a caller who may see it.
#[operation]
async fn read_job_log(ctx: &mut Ctx, job: JobId, from: i64) -> Result<JobLogPage, Error> {
    authorize_job_log(ctx, job).await?;
    let standing = jobs::get_claim_state(ctx.conn(), job).await?;
    let state = standing.ok_or_else(|| Error::not_found("job", job))?.state;
    let events =
        nodes::list_job_events(ctx.conn(), job, from, None, i64::from(LOG_BATCH_SIZE)).await?;
    Ok(JobLogPage { events, state })
}

struct JobLogTail {
    app: App,
    shown: PresentedToken,
    trace: TraceId,
    job: JobId,
    /// Number of the next event.
    next: i64,
    ready: VecDeque<JobLogItem>,
    finished: bool,
    /// Number of lost database connections when the stream began.
    disconnects: u64,
    _permit: StreamPermit,
}

/// Streams the events of a job from a number on, each once and in order, until the job has ended. Before every read the credential and
/// the access to the project are checked again. The stream also ends when the database connection was lost, so that its reader notices.
pub fn follow_job_log(
    app: &App,
    shown: PresentedToken,
    trace: TraceId,
    job: JobId,
    from: u64,
    permit: StreamPermit,
) -> impl Stream<Item = Result<JobLogItem, Error>> + Send + use<> {
    let tail = JobLogTail {
        app: app.clone(),
        shown,
        trace,
        job,
        next: i64::try_from(from).unwrap_or(i64::MAX),
        ready: VecDeque::new(),
        finished: false,
        disconnects: app.database_disconnects(),
        _permit: permit,
    };
    stream::try_unfold(tail, |mut tail| async move {
        loop {
            if let Some(item) = tail.ready.pop_front() {
                return Ok(Some((item, tail)));
            }
            if tail.finished {
                return Ok(None);
            }
            tail.read_batch().await?;
        }
    })
}

impl JobLogTail {
    /// Takes the next events, or waits until there may be some.
    async fn read_batch(&mut self) -> Result<(), Error> {
        // A report between the read and the wait is not missed.
        let mut signal = std::pin::pin!(self.app.job_log_signal(self.job));
        signal.as_mut().enable();
        if self.app.database_disconnects() != self.disconnects {
            return Err(Error::Unavailable(anyhow::anyhow!(
                "the connection to the database was lost"
            )));
        }
        let caller = self.app.reauthenticate_caller(&self.shown).await?;
        let request = OperationRequest { caller: Some(caller), trace: self.trace, attempt: None };
        let (job, next) = (self.job, self.next);
        let page = self.app.read(&request, |ctx| read_job_log(ctx, job, next)).await?;
        let full = page.events.len() >= usize::from(LOG_BATCH_SIZE);
        if let Some(last) = page.events.last() {
            self.next = last.number.saturating_add(1);
        }
        let is_empty = page.events.is_empty();
        self.ready.extend(page.events.into_iter().map(JobLogItem::Event));
        if !full && page.state.successors().is_empty() {
            self.ready.push_back(JobLogItem::End(page.state));
            self.finished = true;
        } else if is_empty {
            let delay = self.app.stream_poll_delay(LOG_POLL_INTERVAL);
            let _ = tokio::time::timeout(delay, signal).await;
            sleep_for(LOG_COLLECT_DELAY).await;
        }
        Ok(())
    }
}

impl Drop for JobLogTail {
    fn drop(&mut self) {
        self.app.prune_log_signals();
    }
}
