//! The worker that runs checks: each in a sandbox of its own start, all of them, whatever the ones before came to.
//!
//! What they run is not trusted. Each finds the files of the commit and nothing else, those that checks go by as they were before the
//! change, and an empty home: nothing that one check leaves is there for the next.

use std::{sync::Arc, time::Duration};

use cynode_core::evidence::{Check, is_plain_path};
use cynode_wire::nodes::{Happened, StepOutcome};
use data_encoding::HEXLOWER;
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Order, Runs, Session, Start, Turn, Worker, WorkerError,
    command::{One, nothing, outcome, step_in, stopped, story},
    inside::{Ear, How},
    stops, together,
};
use crate::{sandbox::Ended, workspace::Spoilt};

/// What checks stand on.
pub(crate) trait Floor: Send + Sync {
    /// Makes everything as it was before the first of them: the files of the commit, and an empty home.
    fn anew(&self) -> BoxFuture<'_, Result<(), WorkerError>>;

    /// Puts the files back that checks go by. Gives those that could not be.
    fn put_back(&self) -> BoxFuture<'_, Result<Vec<Spoilt>, Unpinned>>;
}

/// Why files could not be put back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unpinned {
    /// There was no sandbox to do it in.
    #[error("{0}")]
    NoSandbox(WorkerError),
    /// It was tried.
    #[error("{0}")]
    Failed(String),
}

/// Checks in order.
pub(crate) struct Checks {
    checks: Vec<Check>,
    floor: Arc<dyn Floor>,
}

impl Checks {
    pub(crate) fn new(checks: Vec<Check>, floor: Arc<dyn Floor>) -> Self {
        Self { checks, floor }
    }
}

impl Worker for Checks {
    fn start<'a>(
        &'a self,
        start: Start<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn Session>, WorkerError>> {
        Box::pin(async move {
            let session: Box<dyn Session> = Box::new(Checking {
                checks: self.checks.clone(),
                floor: Arc::clone(&self.floor),
                sandbox: start.sandbox,
                events: start.events,
                until: start.limits.until,
                ended: None,
            });
            Ok(session)
        })
    }
}

struct Checking {
    checks: Vec<Check>,
    floor: Arc<dyn Floor>,
    sandbox: Arc<dyn Runs>,
    events: mpsc::Sender<Happened>,
    until: Instant,
    ended: Option<Ended>,
}

impl Checking {
    async fn all(&mut self, orders: &mut mpsc::Receiver<Order>) -> Result<Turn, WorkerError> {
        let mut ear = Ear::new(orders, self.events.clone());
        let mut turn = Turn { stop: stops::END_TURN.into(), ..Turn::default() };
        let all = self.checks.len();
        for (at, check) in self.checks.iter().enumerate() {
            if !ear.may_go_on(self.until).await {
                turn.stop = stopped(self.until);
                turn.said = format!("It was stopped before check {} of {all}.", at + 1);
                return Ok(turn);
            }
            // The first finds what was made for it.
            if at > 0 {
                self.floor.anew().await?;
            }
            if let Some(why) = self.cannot_be_run(check).await? {
                turn.steps.push(unrun(check, why));
                continue;
            }
            let own = Duration::from_secs(u64::from(check.seconds()));
            let until = self.until.min(Instant::now() + own);
            let expect = check.expect_output.as_deref();
            let one = One { at, argv: &check.argv, until, expect };
            let finished = step_in(&*self.sandbox, one, &self.events, &mut ear).await?;
            self.ended = Some(together(self.ended.take(), finished.ended.clone()));
            turn.steps.push(outcome(&check.argv, &finished));
            let how = finished.how;
            if how == How::Cancelled || (how == How::Late && until == self.until) {
                turn.stop = stopped(self.until);
                turn.said = format!("Check {} of {all} {}.", at + 1, story(&finished));
                return Ok(turn);
            }
        }
        turn.said = match all {
            1 => "The check was run.".to_owned(),
            _ => format!("All {all} checks were run."),
        };
        Ok(turn)
    }

    /// Puts back what the checks go by; why this one cannot be run, when it cannot.
    async fn cannot_be_run(&self, check: &Check) -> Result<Option<String>, WorkerError> {
        let spoilt = match self.floor.put_back().await {
            Ok(spoilt) => spoilt,
            Err(Unpinned::NoSandbox(error)) => return Err(error),
            Err(Unpinned::Failed(why)) => {
                return Ok(Some(format!("The files that it goes by could not be put back: {why}")));
            }
        };
        let pinned = check.pinned();
        if let Some(path) = pinned.iter().find(|path| !is_plain_path(path)) {
            return Ok(Some(format!("It goes by {path:?}, which is no path of a file.")));
        }
        let found = spoilt.into_iter().find(|one| pinned.contains(&one.path));
        Ok(found.map(|Spoilt { path, reason }| format!("It goes by `{path}`: {reason}.")))
    }
}

/// What came of a check that could not be run.
fn unrun(check: &Check, why: String) -> StepOutcome {
    StepOutcome {
        argv: check.argv.clone(),
        exit_code: None,
        output: why,
        expected: None,
        sha256: HEXLOWER.encode(&Sha256::digest(b"")),
        truncated: false,
        milliseconds: 0,
    }
}

impl Session for Checking {
    fn id(&self) -> Option<&str> {
        None
    }

    fn prompt<'a>(
        &'a mut self,
        _text: &'a str,
        orders: &'a mut mpsc::Receiver<Order>,
    ) -> BoxFuture<'a, Result<Turn, WorkerError>> {
        Box::pin(self.all(orders))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Ended> {
        Box::pin(async move { self.ended.unwrap_or_else(nothing) })
    }
}
