use std::str::FromStr;

use cynode_db::{Conn, Pool, platform::schema};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::NOW;

/// One migrated database for one test: a clone of a template that is created once in a run. Dropping the value drops the
/// database.
pub struct TestDb {
    name: String,
    cluster: PgConnectOptions,
    pool: Pool,
}

impl TestDb {
    /// Clones the template; the first test of a run creates it.
    pub async fn new() -> Self {
        let cluster = cluster();
        let mut admin = PgConnection::connect_with(&cluster).await.unwrap();
        let template = template(&mut admin, &cluster).await;
        let name = format!("test_{}_{}", std::process::id(), unique());
        execute(&mut admin, format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        admin.close().await.unwrap();
        let options = cluster.clone().database(&name);
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options);
        Self { name, cluster, pool }
    }

    /// Sets the size of the connection pool.
    #[must_use]
    pub fn with_connections(mut self, max: u32) -> Self {
        let options = self.cluster.clone().database(&self.name);
        self.pool = PgPoolOptions::new()
            .max_connections(max)
            .acquire_timeout(std::time::Duration::from_secs(5))
            .connect_lazy_with(options);
        self
    }

    /// Returns a connection pool for it.
    pub fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// Acquires one connection to it.
    pub async fn conn(&self) -> sqlx::pool::PoolConnection<sqlx::Postgres> {
        cynode_db::acquire_connection(&self.pool).await.unwrap()
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> cynode_db::Tx {
        cynode_db::begin_transaction(&self.pool).await.unwrap()
    }

    /// Runs a statement that no operation offers, to set up a state that a test needs.
    pub async fn execute(&self, statement: &'static str) -> u64 {
        sqlx::query(statement).execute(&self.pool).await.unwrap().rows_affected()
    }

    /// Does the same, with a parameter.
    pub async fn execute_with(&self, statement: &'static str, value: &str) -> u64 {
        sqlx::query(statement).bind(value).execute(&self.pool).await.unwrap().rows_affected()
    }

    /// Reads one number.
    pub async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.unwrap()
    }

    /// Reads one column of text.
    pub async fn texts(&self, query: &'static str) -> Vec<String> {
        sqlx::query_scalar(query).fetch_all(&self.pool).await.unwrap()
    }

    /// Returns the URL with which an external program connects to it.
    pub fn url(&self) -> String {
        let socket = self.cluster.get_socket().expect("the test cluster has a socket");
        format!("postgres://postgres@localhost/{}?host={}", self.name, socket.display())
    }

    /// Creates a database without any table, for tests of the migrations themselves.
    pub async fn empty() -> Self {
        let cluster = cluster();
        let mut admin = PgConnection::connect_with(&cluster).await.unwrap();
        let name = format!("test_{}_{}", std::process::id(), unique());
        execute(&mut admin, format!("CREATE DATABASE {name}")).await;
        let options = cluster.clone().database(&name);
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy_with(options);
        Self { name, cluster, pool }
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let cluster = self.cluster.clone();
        // `Drop` is not async, so a thread of its own waits.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                if let Ok(mut admin) = PgConnection::connect_with(&cluster).await {
                    let _ = sqlx::query(AssertSqlSafe(statement)).execute(&mut admin).await;
                }
            });
        });
        let _ = dropping.join();
    }
}

fn cluster() -> PgConnectOptions {
    #[expect(clippy::disallowed_methods, reason = "nextest tells the tests where the cluster is")]
    let url = std::env::var("CYNODE_TEST_CLUSTER")
        .expect("no test cluster: run tests with `cargo nextest run --workspace`");
    PgConnectOptions::from_str(&url).unwrap()
}

/// Returns the migrated template. It is created under a lock, so that exactly one of the concurrent tests creates it.
async fn template(admin: &mut Conn, cluster: &PgConnectOptions) -> String {
    let version = schema::MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0);
    let name = format!("template_{version}");
    execute(admin, "SELECT pg_advisory_lock(4217)".into()).await;
    let made: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)",
    )
    .bind(&name)
    .fetch_one(&mut *admin)
    .await
    .unwrap();
    if !made {
        execute(admin, format!("DROP DATABASE IF EXISTS {name}")).await;
        execute(admin, format!("CREATE DATABASE {name}")).await;
        let mut conn = PgConnection::connect_with(&cluster.clone().database(&name)).await.unwrap();
        schema::migrate_schema(&mut conn, NOW).await.unwrap();
        conn.close().await.unwrap();
        execute(admin, format!("ALTER DATABASE {name} IS_TEMPLATE true")).await;
    }
    execute(admin, "SELECT pg_advisory_unlock(4217)".into()).await;
    name
}

async fn execute(conn: &mut Conn, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(conn).await.unwrap();
}

fn unique() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
