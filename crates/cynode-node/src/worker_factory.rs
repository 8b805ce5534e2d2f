//! Worker factory: the workers that this machine offers.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cynode_core::{nodes::AgentReport, workflow::jobs::WorkerChoice};
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::{
    job::JobSandboxRunner,
    node::{JobResourceLimits, WorkerFactory},
    sandbox::Backend,
    workers::{self, AgentRecipes, JobWorker, WorkerError, install},
};

/// Time that the installed agents have to report their versions.
const AGENT_PROBE_TIMEOUT: Duration = Duration::from_mins(1);

/// Factory for the workers and agents installed below one directory.
pub(crate) struct LocalWorkerFactory {
    pub(crate) recipes: AgentRecipes,
    pub(crate) agents: PathBuf,
    pub(crate) job_limits: JobResourceLimits,
}

impl WorkerFactory for LocalWorkerFactory {
    fn create_worker(&self, choice: &WorkerChoice) -> Result<Box<dyn JobWorker>, WorkerError> {
        workers::create_worker(choice, &self.recipes, &self.agents)
    }

    fn detect_agents<'a>(
        &'a self,
        backend: &'a Arc<dyn Backend>,
    ) -> BoxFuture<'a, Vec<AgentReport>> {
        Box::pin(async move {
            let until = Instant::now() + AGENT_PROBE_TIMEOUT;
            let runs = JobSandboxRunner::new_standalone(
                Arc::clone(backend),
                "measure".to_owned(),
                &self.job_limits,
                until,
            );
            let (found, broken) =
                install::probe_agents(&self.recipes, &self.agents, &runs, until).await;
            for (agent, error) in broken {
                tracing::warn!(event = "agent.unusable", agent, %error, "the coding agent is installed and does not work");
            }
            found
        })
    }
}
