//! The workers of this machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cynode_wire::{nodes::AgentReport, work::WorkerChoice};
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    job::JobRuns,
    node::{Most, Workshop},
    sandbox::Backend,
    workers::{self, Recipes, Worker, WorkerError, install},
};

/// How long installed agents have to say who they are.
const MEASURE_WITHIN: Duration = Duration::from_mins(1);

/// What is installed below one folder.
pub(crate) struct Installed {
    pub(crate) recipes: Recipes,
    pub(crate) agents: PathBuf,
    pub(crate) most: Most,
}

impl Workshop for Installed {
    fn worker(&self, choice: &WorkerChoice) -> Result<Box<dyn Worker>, WorkerError> {
        workers::worker(choice, &self.recipes, &self.agents)
    }

    fn found<'a>(&'a self, backend: &'a Arc<dyn Backend>) -> BoxFuture<'a, Vec<AgentReport>> {
        Box::pin(async move {
            let until = Instant::now() + MEASURE_WITHIN;
            let runs = JobRuns::alone(Arc::clone(backend), "measure".to_owned(), &self.most, until);
            let (found, broken) = install::measure(&self.recipes, &self.agents, &runs, until).await;
            for (agent, error) in broken {
                tracing::warn!(event = "agent.broken", agent, %error, "it is installed and does not work");
            }
            found
        })
    }
}
