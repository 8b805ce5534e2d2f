//! Seven steps on the bare engine, without and with one commit each, to compare our workflow with.

use std::net::SocketAddr;

use clap::Args;
use restate_sdk::prelude::*;
use sqlx::PgPool;
use tokio::net::TcpSocket;

/// Serves seven steps for the bare engine.
#[derive(Args)]
pub(crate) struct Served {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    engine_key_file: std::path::PathBuf,
    #[arg(long)]
    database: String,
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

pub(crate) async fn run(cli: Served) {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(12);
    let pool = options.test_before_acquire(false).connect(&cli.database).await.unwrap();
    let tables = "CREATE TABLE IF NOT EXISTS bare_checkpoints (task bigint PRIMARY KEY, sequence bigint NOT NULL, state jsonb NOT NULL);
        CREATE TABLE IF NOT EXISTS bare_transitions (task bigint, sequence bigint, step text NOT NULL, at timestamptz NOT NULL,
            PRIMARY KEY (task, sequence))";
    sqlx::raw_sql(tables).execute(&pool).await.unwrap();
    let key = std::fs::read_to_string(cli.engine_key_file).unwrap();
    let endpoint = Endpoint::builder()
        .bind(Bare)
        .bind(Committing(pool))
        .identity_key(key.trim())
        .unwrap()
        .build();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_nodelay(true).unwrap();
    socket.bind(cli.listen).unwrap();
    HttpServer::new(endpoint).serve(socket.listen(1024).unwrap()).await;
}
