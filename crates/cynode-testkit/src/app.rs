use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Method, Request, header},
};
use cynode_api::{AppState, BrowserAccess, ConsoleFiles, RequestLimits};
use cynode_app::{
    AccountLimits, App, AppEnvironment, ClientSource, GatewayParts, LifetimePolicy,
    delivery::repositories::RepositoryStore,
    identity::service_tokens::{self, ServiceKind},
    manager::chat::ManagerEndpoint,
    models::inference::{self, InferenceRuntime},
    notifications,
    platform::{body_budget::BodyBudget, keys::InstallationKeys, tokens::TokenKind},
    tools::audit::{self, AuditWriter, PublicKeyring, VerifyingKey},
};
use cynode_core::{
    accounts::{User, UserState},
    ids::{ProjectId, SessionId, UserId},
    projects::Project,
    roles::UserRole,
};
use cynode_gateway::{
    AllowedHosts, EgressClient, Gateway,
    upstream::{self, UpstreamPool},
};
use cynode_notify::{MailServer, NotificationSender};
use cynode_oidc::OidcClient;
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use object_store::local::LocalFileSystem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use crate::{NOW, SeededRandom, TestClock, TestDb};

/// The whole application over its own database, called in process: no port, no sleep.
pub struct TestApp {
    /// Its database.
    pub db: TestDb,
    /// The application operations.
    pub app: App,
    /// Its clock.
    pub clock: TestClock,
    /// Cancelled to end its streams.
    pub stop: CancellationToken,
    environment: AppEnvironment,
    router: Router,
    internal: Router,
    gateway: OnceCell<OpenGateway>,
    objects: TempDir,
}

/// The gateway of a [`TestApp`], opened at its first use.
struct OpenGateway {
    router: Router,
    records: CancellationToken,
    tasks: TaskTracker,
    directory: TempDir,
    writer: Arc<AuditWriter>,
}

/// A gateway beside the one of a [`TestApp`] itself.
pub struct TestGateway {
    opened: OpenGateway,
    stop: CancellationToken,
    nobody: Client,
}

impl TestGateway {
    /// Returns a client of this gateway without a credential.
    pub fn client(&self) -> Client {
        Client { router: self.opened.router.clone(), ..self.nobody.clone() }
    }

    /// Returns its audit writer.
    pub fn writer(&self) -> &AuditWriter {
        &self.opened.writer
    }

    /// Returns the directory that buffers audit records until they are in the database.
    pub fn directory(&self) -> &std::path::Path {
        self.opened.directory.path()
    }

    /// Waits until all audit records are in the database.
    pub async fn recorded(&self) {
        self.opened.writer.wait_flushed().await.unwrap();
    }

    /// Shuts it down gracefully. Returns its directory.
    pub async fn close(self) -> TempDir {
        self.stop.cancel();
        self.opened.close().await
    }
}

impl OpenGateway {
    async fn close(self) -> TempDir {
        let Self { router, records, tasks, directory, writer } = self;
        drop((router, writer));
        records.cancel();
        tasks.close();
        tasks.wait().await;
        directory
    }
}

/// Returns the options of audit writers in tests: records are shipped at once.
fn records() -> audit::AuditWriterOptions {
    audit::AuditWriterOptions {
        linger: Duration::from_millis(1),
        ..audit::AuditWriterOptions::new("test")
    }
}

/// A client of a [`TestApp`].
#[derive(Clone)]
pub struct Client {
    router: Router,
    token: Option<String>,
    headers: HeaderMap,
    /// Where its requests come from; from this process if there is none.
    source: Option<ClientSource>,
    /// Its user, if it is authenticated.
    pub user: Option<UserId>,
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Response headers.
    pub headers: HeaderMap,
    /// Response body.
    pub body: Bytes,
}

impl Reply {
    /// Returns the body as JSON; `null` if it is empty.
    pub fn json(&self) -> Value {
        if self.body.is_empty() { Value::Null } else { self.parse() }
    }

    /// Deserialises the body.
    pub fn parse<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e} in {}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns a text field of the body.
    pub fn text(&self, field: &str) -> String {
        self.json()[field]
            .as_str()
            .unwrap_or_else(|| panic!("no {field} in {:?}", self.body))
            .to_owned()
    }

    /// Returns the response if it has that status, and panics otherwise: a test that continued without it would mislead.
    #[track_caller]
    #[expect(clippy::return_self_not_must_use, reason = "the status alone is often the point")]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

fn routers(app: App, stop: CancellationToken) -> (Router, Router) {
    routers_for_browsers(app, stop, BrowserAccess::Loopback, ConsoleFiles::default())
}

fn routers_for_browsers(
    app: App,
    stop: CancellationToken,
    browser: BrowserAccess,
    console: ConsoleFiles,
) -> (Router, Router) {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let limits = RequestLimits { body: 64 * 1024, time: Duration::from_secs(10) };
    let state = AppState { app, metrics, stop, browser, console };
    (cynode_api::public_router(state.clone(), limits), cynode_api::internal_router(state, limits))
}

/// Rate limits that no test reaches by accident: a test may send thousands of requests in a second.
const TEST_LIMITS: AccountLimits = AccountLimits {
    requests_per_second: 1_000_000,
    request_burst: 1_000_000,
    policy_changes_per_minute: 1_000_000,
};

fn new_app(db: &TestDb, environment: AppEnvironment) -> App {
    App::new(db.pool(), environment, LifetimePolicy::default()).with_account_limits(TEST_LIMITS)
}

/// Builds an app with everything that the gateway needs.
fn app_with_gateway(
    db: &TestDb,
    environment: &AppEnvironment,
    mail: Option<MailServer>,
    manager: Option<ManagerEndpoint>,
    private_issuers: Vec<String>,
) -> (App, TempDir) {
    let objects = tempfile::tempdir().unwrap();
    let upstreams = Arc::new(UpstreamPool::new(upstream::UpstreamOptions::default()).unwrap());
    // Nobody waits long in a test for memory that another request has.
    let bodies = BodyBudget::with_timeout(Duration::from_millis(100));
    let app = new_app(db, environment.clone());
    let app = app.with_body_budget(bodies).with_gateway(GatewayParts {
        keys: InstallationKeys::from_master(&[7; 32]),
        native: cynode_gateway::tools::tool_definitions(),
        reach: cynode_gateway::build_tool_server_adapter(upstreams),
        objects: Arc::new(LocalFileSystem::new_with_prefix(objects.path()).unwrap()),
        objects_directory: objects.path().to_owned(),
        repositories: RepositoryStore::new(objects.path().join("repositories")),
        pages: Arc::new(EgressClient::new(Vec::new()).unwrap()),
        audit_retention: time::Duration::days(365),
        transcript_retention: time::Duration::days(90),
    });
    let models = InferenceRuntime::open_runtime(&app, objects.path().join("cassettes")).unwrap();
    let models = match manager {
        Some(manager) => manager.connect_to(models),
        None => models,
    };
    let public_url = Some("https://people.example".parse().unwrap());
    let parts = notifications::NotificationParts {
        courier: NotificationSender::new(mail).unwrap(),
        public_url,
    };
    let app = app.with_models(models).with_notifications(parts);
    (app.with_identity_client(OidcClient::new(private_issuers).unwrap()), objects)
}

impl TestApp {
    /// Creates a migrated, empty installation.
    pub async fn new() -> Self {
        Self::over(TestDb::new().await)
    }

    /// Creates a migrated, empty installation that sends mail through that server.
    pub async fn with_mail(server: MailServer) -> Self {
        Self::made(TestDb::new().await, Some(server), None, Vec::new())
    }

    /// Creates a migrated, empty installation whose project manager answers at that address.
    pub async fn with_manager(url: &str) -> Self {
        let place = ManagerEndpoint::new(url.parse().unwrap(), "what-we-show".to_owned().into());
        Self::made(TestDb::new().await, None, Some(place), Vec::new())
    }

    /// Creates a migrated, empty installation that may contact identity providers at these private hosts.
    pub async fn with_private_issuers(hosts: Vec<String>) -> Self {
        Self::made(TestDb::new().await, None, None, hosts)
    }

    /// Creates an installation over a given database.
    pub fn over(db: TestDb) -> Self {
        Self::made(db, None, None, Vec::new())
    }

    fn made(
        db: TestDb,
        mail: Option<MailServer>,
        manager: Option<ManagerEndpoint>,
        private_issuers: Vec<String>,
    ) -> Self {
        // nextest prints the output of a failing test, so the cause of a 500 is visible. Each test is its own process.
        let _ = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_test_writer()
            .try_init();
        let clock = TestClock::default();
        let environment = AppEnvironment::new(clock.clone(), SeededRandom::new(1));
        let (app, objects) = app_with_gateway(&db, &environment, mail, manager, private_issuers);
        let stop = CancellationToken::new();
        let (router, internal) = routers(app.clone(), stop.clone());
        let gateway = OnceCell::new();
        Self { db, app, clock, stop, environment, router, internal, gateway, objects }
    }

    /// Returns the path of a project's repository.
    pub fn repository(&self, project: &str) -> std::path::PathBuf {
        self.objects.path().join("repositories").join(format!("{project}.git"))
    }

    /// Returns a client of the gateway without a credential.
    pub async fn at_gateway(&self) -> Client {
        Client { router: self.own_gateway().await.router.clone(), ..self.anonymous() }
    }

    async fn own_gateway(&self) -> &OpenGateway {
        self.gateway
            .get_or_init(|| async {
                let directory = tempfile::tempdir().unwrap();
                let egress = EgressClient::new(Vec::new()).unwrap();
                self.open_gateway(self.app.clone(), directory, records(), egress, &self.stop).await
            })
            .await
    }

    async fn open_gateway(
        &self,
        app: App,
        directory: TempDir,
        options: audit::AuditWriterOptions,
        egress: EgressClient,
        stop: &CancellationToken,
    ) -> OpenGateway {
        let (tasks, records) = (TaskTracker::new(), CancellationToken::new());
        let path = directory.path().join("audit");
        let writer =
            audit::open_audit_writer(&app, &path, options, &tasks, records.clone()).unwrap();
        let upstreams = Arc::new(UpstreamPool::new(upstream::UpstreamOptions::default()).unwrap());
        let options = cynode_gateway::GatewayOptions {
            hosts: AllowedHosts::default(),
            public_url: "http://people".into(),
            patience: Duration::from_secs(5),
            most_bytes: 1024 * 1024,
        };
        let gateway =
            Gateway::open_gateway(app, writer.clone(), upstreams, egress, options).await.unwrap();
        gateway.spawn_background(&tasks, stop);
        OpenGateway {
            router: cynode_gateway::gateway_router(&gateway),
            records,
            tasks,
            directory,
            writer,
        }
    }

    /// Opens another gateway over the same database, as another replica does, with its own directory of records.
    pub async fn another_gateway(&self) -> TestGateway {
        self.gateway_over(tempfile::tempdir().unwrap(), records()).await
    }

    /// Opens another gateway over the same database and that directory of records.
    pub async fn gateway_over(
        &self,
        directory: TempDir,
        options: audit::AuditWriterOptions,
    ) -> TestGateway {
        self.gateway_of(self.app.clone(), directory, options).await
    }

    /// Opens another gateway over the same database with a different master key.
    pub async fn gateway_with_another_key(&self) -> TestGateway {
        let parts = self.app.gateway_parts().unwrap();
        let parts = GatewayParts {
            keys: InstallationKeys::from_master(&[8; 32]),
            native: parts.native.clone(),
            reach: parts.reach.clone(),
            objects: parts.objects.clone(),
            objects_directory: parts.objects_directory.clone(),
            repositories: parts.repositories.clone(),
            pages: parts.pages.clone(),
            audit_retention: parts.audit_retention,
            transcript_retention: parts.transcript_retention,
        };
        let app = new_app(&self.db, self.environment.clone());
        self.gateway_of(app.with_gateway(parts), tempfile::tempdir().unwrap(), records()).await
    }

    /// Returns the app with an egress that also reaches these private hosts, as `host:port`.
    pub fn with_open_hosts(&self, hosts: Vec<String>) -> App {
        let parts = self.app.gateway_parts().unwrap();
        let parts = GatewayParts {
            keys: parts.keys.clone(),
            native: parts.native.clone(),
            reach: parts.reach.clone(),
            objects: parts.objects.clone(),
            objects_directory: parts.objects_directory.clone(),
            repositories: parts.repositories.clone(),
            pages: Arc::new(EgressClient::new(hosts).unwrap()),
            audit_retention: parts.audit_retention,
            transcript_retention: parts.transcript_retention,
        };
        self.app.clone().with_gateway(parts)
    }

    async fn gateway_of(
        &self,
        app: App,
        directory: TempDir,
        options: audit::AuditWriterOptions,
    ) -> TestGateway {
        let (stop, egress) = (CancellationToken::new(), EgressClient::new(Vec::new()).unwrap());
        let opened = self.open_gateway(app, directory, options, egress, &stop).await;
        TestGateway { opened, stop, nobody: self.anonymous() }
    }

    /// Opens another gateway over the same database whose agents also reach these private hosts, as `host:port`.
    pub async fn gateway_with_open_hosts(&self, hosts: Vec<String>) -> TestGateway {
        let (stop, egress) = (CancellationToken::new(), EgressClient::new(hosts).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let opened = self.open_gateway(self.app.clone(), directory, records(), egress, &stop).await;
        TestGateway { opened, stop, nobody: self.anonymous() }
    }

    /// Waits until all audit records are in the database.
    pub async fn recorded(&self) {
        self.own_gateway().await.writer.wait_flushed().await.unwrap();
    }

    /// Waits until the cost of every model response has been settled.
    pub async fn settled(&self) {
        inference::wait_until_settled(&self.app).await;
    }

    /// Shuts the gateway down gracefully. Returns its directory.
    pub async fn close_gateway(&mut self) -> Option<TempDir> {
        let opened = self.gateway.take()?;
        self.stop.cancel();
        Some(opened.close().await)
    }

    /// Returns the directory that buffers the gateway's audit records until they are in the database.
    pub async fn records_directory(&self) -> std::path::PathBuf {
        self.own_gateway().await.directory.path().to_owned()
    }

    /// Creates an agent with a token, as a client of the gateway.
    pub async fn agent(&self, by: &Client, body: Value) -> Client {
        let issued = by.post("/v1/agent-tokens", body).await.expect(201);
        self.at_gateway().await.with_token(&issued.text("token"))
    }

    /// Returns every public key that verifies audit records.
    pub fn public_keys(&self) -> PublicKeyring {
        self.app.gateway_parts().unwrap().keys.public_keys()
    }

    /// Returns the public key that verifies audit records.
    pub fn verifying_key(&self) -> VerifyingKey {
        self.app.gateway_parts().unwrap().keys.verifying_key()
    }

    /// Returns a client of a second process over the same database, with its own ids.
    pub fn replica(&self) -> Client {
        self.replica_app().1
    }

    /// Does the same, and returns the app too.
    pub fn replica_app(&self) -> (App, Client) {
        // Each process generates different ids.
        static PROCESSES: AtomicU64 = AtomicU64::new(1);
        let seed = PROCESSES.fetch_add(1, Ordering::Relaxed) << 40;
        let environment = AppEnvironment::new(self.clock.clone(), SeededRandom::new(seed));
        let app = new_app(&self.db, environment);
        let (router, _) = routers(app.clone(), self.stop.clone());
        (app, Client { router, ..self.anonymous() })
    }

    /// Returns a client without a credential of this installation with other rate limits of accounts.
    pub fn with_account_limits(&self, limits: AccountLimits) -> Client {
        let app = self.app.clone().with_account_limits(limits);
        let (router, _) = routers(app, self.stop.clone());
        Client { router, ..self.anonymous() }
    }

    /// Returns a client without a credential of this installation with that access for browsers and that console.
    pub fn with_browsers(&self, browser: BrowserAccess, console: ConsoleFiles) -> Client {
        let (router, _) =
            routers_for_browsers(self.app.clone(), self.stop.clone(), browser, console);
        Client { router, ..self.anonymous() }
    }

    /// Returns a client without a credential.
    pub fn anonymous(&self) -> Client {
        Client {
            router: self.router.clone(),
            token: None,
            headers: HeaderMap::new(),
            source: None,
            user: None,
        }
    }

    /// Returns a client of the user-facing port, and the internal port, of another application over the same database.
    pub(crate) fn routers_of(&self, app: App) -> (Client, Router) {
        let (router, internal) = routers(app, self.stop.clone());
        (Client { router, ..self.anonymous() }, internal)
    }

    /// Returns a client of the internal port without a credential.
    pub fn at_internal_port(&self) -> Client {
        Client { router: self.internal.clone(), ..self.anonymous() }
    }

    /// Creates a service of that kind and name, as a client of the internal port.
    pub async fn service(&self, kind: ServiceKind, name: &str) -> Client {
        let token = service_tokens::issue_service_token(&self.app, kind, &name.parse().unwrap())
            .await
            .unwrap();
        self.at_internal_port().with_token(&token.0)
    }

    /// Creates a runner.
    pub async fn runner(&self) -> Client {
        self.service(ServiceKind::Runner, "runner").await
    }

    /// Creates an admin of the installation.
    pub async fn admin(&self) -> Client {
        self.user("admin", Some(UserRole::Admin)).await
    }

    /// Creates a logged-in user with that role in the installation.
    pub async fn user(&self, handle: &str, role: Option<UserRole>) -> Client {
        let user = User {
            id: UserId::from_uuid(self.environment.new_uuid(NOW)),
            handle: handle.parse().unwrap(),
            display_name: handle.parse().unwrap(),
            email: None,
            role,
            can_create_projects: false,
            state: UserState::Active,
            created_at: NOW,
        };
        let (token, hash) = self.app.issue_token(TokenKind::Session);
        let session = SessionId::from_uuid(self.environment.new_uuid(NOW));
        let mut tx = self.db.begin().await;
        cynode_db::identity::accounts::insert_user(&mut tx, &user).await.unwrap();
        let expires_at = NOW + time::Duration::hours(12);
        cynode_db::identity::accounts::insert_session(
            &mut tx, session, user.id, &hash, NOW, expires_at,
        )
        .await
        .unwrap();
        tx.commit().await.unwrap();
        let mut client = self.anonymous().with_token(&token.0);
        client.user = Some(user.id);
        client
    }

    /// Creates a project with that slug, as `by`.
    pub async fn project(&self, by: &Client, slug: &str) -> ProjectId {
        let project = Project {
            id: ProjectId::from_uuid(self.environment.new_uuid(NOW)),
            slug: slug.parse().unwrap(),
            title: slug.parse().unwrap(),
            description: None,
            created_by: by.user.unwrap(),
            created_at: NOW,
            archived_at: None,
        };
        cynode_db::tasks::projects::insert_project(&mut *self.db.conn().await, &project)
            .await
            .unwrap();
        project.id
    }

    /// Sets the role of a user in a project.
    pub async fn member(&self, project: ProjectId, client: &Client, role: UserRole) {
        let mut conn = self.db.conn().await;
        let user = client.user.unwrap();
        cynode_db::tasks::projects::set_member(&mut conn, project, user, role, NOW).await.unwrap();
    }
}

impl Client {
    /// Returns the same client with that token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Returns its credential.
    pub fn token(&self) -> Option<String> {
        self.token.clone()
    }

    /// Returns the value of a header that it sends.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the same client with an additional header.
    #[must_use]
    pub fn with_header(&self, name: &'static str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.insert(name, value.parse().unwrap());
        client
    }

    /// Returns the same client on another machine, with that address.
    #[must_use]
    pub fn at_address(&self, address: &str) -> Self {
        let source = ClientSource::from_address(address.parse().unwrap());
        Self { source: Some(source), ..self.clone() }
    }

    /// Sends a `GET` request.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    /// Sends a `POST` request with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Sends a `PUT` request with a JSON body.
    pub async fn put(&self, path: &str, body: Value) -> Reply {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// Sends a `PATCH` request with a JSON body.
    pub async fn patch(&self, path: &str, body: Value) -> Reply {
        self.send(Method::PATCH, path, Some(body)).await
    }

    /// Sends a `DELETE` request.
    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, None).await
    }

    /// Sends a request and reads the whole response.
    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|body| body.to_string());
        let response = self.raw(method, path, body).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Sends a prepared request.
    pub async fn oneshot(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request and returns the response as a stream; a body is sent as JSON.
    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> axum::response::Response {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() && !self.headers.contains_key(header::CONTENT_TYPE) {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let mut request = request.body(Body::from(body.unwrap_or_default())).unwrap();
        request.headers_mut().extend(self.headers.clone());
        if let Some(source) = self.source {
            request.extensions_mut().insert(source);
        }
        self.oneshot(request).await
    }
}
