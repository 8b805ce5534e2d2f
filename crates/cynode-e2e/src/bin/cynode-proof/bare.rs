//! Seven steps on the bare engine, without and with one commit each, as a baseline for our workflow.

use std::net::SocketAddr;

use clap::Args;
use cynode_core::{
    ids::TaskId,
    workflow::{StepVerdict, WorkflowStep},
};
use cynode_runner::WorkflowClient;
use cynode_wire::workflow::{LeaseRef, RunState, StartWorkflow, StepCheckpoint};
use restate_sdk::prelude::*;
use sqlx::PgPool;
use tokio::net::TcpSocket;

/// The same seven steps through our contract: a lease, and a checkpoint for each, through the orchestrator.
struct Contract(WorkflowClient);

/// Steps without work, and their verdicts; planning is repeated.
const NODES: [(WorkflowStep, StepVerdict); 7] = [
    (WorkflowStep::LoadTaskContext, StepVerdict::Pass),
    (WorkflowStep::PlanSteps, StepVerdict::Revise),
    (WorkflowStep::PlanSteps, StepVerdict::Revise),
    (WorkflowStep::PlanSteps, StepVerdict::Revise),
    (WorkflowStep::PlanSteps, StepVerdict::Pass),
    (WorkflowStep::DispatchStep, StepVerdict::Done),
    (WorkflowStep::FinalizeSummary, StepVerdict::Pass),
];

impl Contract {
    async fn step(&self, lease: &LeaseRef, sequence: i64, trace: &str) -> Result<(), HandlerError> {
        let (node, verdict) = NODES[usize::try_from(sequence - 1)?];
        let checkpoint = StepCheckpoint {
            lease: lease.clone(),
            sequence,
            node,
            verdict,
            state: RunState::default(),
            effects: Vec::new(),
            wait: None,
            seen_wakes: 0,
            unit: None,
            attempt: 1,
            duration_ms: 0,
            cost_micros: 0,
            note: None,
        };
        self.0.store_checkpoint(&checkpoint, trace).await?;
        Ok(())
    }
}

#[object(client_visibility = "pub(crate)")]
impl Contract {
    #[handler]
    async fn run(&self, ctx: ObjectContext<'_>) -> Result<(), HandlerError> {
        let task: TaskId = ctx.key().parse()?;
        let start = StartWorkflow {
            task_id: task,
            holder: "bench".into(),
            idempotency_key: ctx.invocation_id().to_owned(),
            instance: None,
            expires_in_seconds: None,
        };
        let started = self.0.start_workflow(&start).await?;
        let lease = LeaseRef {
            task_id: task,
            lease_id: started.lease.lease_id,
            fencing_token: started.lease.fencing_token,
        };
        // As the runner does: the checkpoint is the durable step, and the engine journals none.
        for (sequence, _) in (1_i64..).zip(NODES) {
            self.step(&lease, sequence, &started.task.trace_id).await?;
        }
        Ok(())
    }
}

/// Serves seven steps for the bare engine.
#[derive(Args)]
pub(crate) struct BareSteps {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    engine_key_file: std::path::PathBuf,
    #[arg(long)]
    database: String,
    #[arg(long)]
    orchestrator: String,
    #[arg(long)]
    token_file: std::path::PathBuf,
}

const STEPS: [&str; 7] = ["load", "plan", "dispatch", "collect", "verify", "dispatch", "finalize"];

struct Bare;

#[object(client_visibility = "pub(crate)")]
impl Bare {
    #[handler]
    async fn run(&self, ctx: ObjectContext<'_>) -> Result<(), HandlerError> {
        for step in STEPS {
            ctx.run(|| async { Ok(()) }).name(step).await?;
        }
        Ok(())
    }
}

struct Committing(PgPool);

#[object(client_visibility = "pub(crate)")]
impl Committing {
    #[handler]
    async fn run(&self, ctx: ObjectContext<'_>) -> Result<(), HandlerError> {
        let key: i64 = ctx.key().parse()?;
        for (sequence, step) in (1_i64..).zip(STEPS) {
            let pool = self.0.clone();
            ctx.run(|| async move {
                #[expect(clippy::disallowed_methods, reason = "what is compared with has nothing of ours")]
                let mut tx = pool.begin().await?;
                sqlx::query("INSERT INTO bare_checkpoints VALUES ($1, $2, '{}') ON CONFLICT (task) DO UPDATE SET sequence = $2")
                    .bind(key)
                    .bind(sequence)
                    .execute(&mut *tx)
                    .await?;
                sqlx::query("INSERT INTO bare_transitions VALUES ($1, $2, $3, now())")
                    .bind(key)
                    .bind(sequence)
                    .bind(step)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
                Ok(())
            })
            .name(step)
            .await?;
        }
        Ok(())
    }
}

pub(crate) async fn run(cli: BareSteps) {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(12);
    let pool = options.test_before_acquire(false).connect(&cli.database).await.unwrap();
    let tables = "CREATE TABLE IF NOT EXISTS bare_checkpoints (task bigint PRIMARY KEY, sequence bigint NOT NULL, state jsonb NOT NULL);
        CREATE TABLE IF NOT EXISTS bare_transitions (task bigint, sequence bigint, step text NOT NULL, at timestamptz NOT NULL,
            PRIMARY KEY (task, sequence))";
    sqlx::raw_sql(tables).execute(&pool).await.unwrap();
    let token = std::fs::read_to_string(cli.token_file).unwrap();
    let client = WorkflowClient::new(&cli.orchestrator, token.trim().to_owned().into()).unwrap();
    let key = std::fs::read_to_string(cli.engine_key_file).unwrap();
    let endpoint = Endpoint::builder()
        .bind(Bare)
        .bind(Committing(pool))
        .bind(Contract(client))
        .identity_key(key.trim())
        .unwrap()
        .build();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_nodelay(true).unwrap();
    socket.bind(cli.listen).unwrap();
    HttpServer::new(endpoint).serve(socket.listen(1024).unwrap()).await;
}
