//! Service tokens: credentials of runners, workers and the programs of the project manager and analysts, and their
//! presence.

use cynode_core::{events::EventKind, ids::ServiceTokenId, names::Title};
use cynode_db::{Pool, identity::service_tokens};
use cynode_wire::identity::accounts::SecretText;
use serde_json::json;
use tokio_util::task::TaskTracker;

pub use cynode_db::identity::service_tokens::{ServiceIdentity, ServiceKind};

use crate::{
    App, Error, OperationRequest,
    platform::{
        batch::{Batcher, LaneConnection},
        context::EventDraft,
        operation,
        tokens::{PresentedToken, TokenKeys, TokenKind},
    },
};

/// Batches the token lookups of several requests.
pub(crate) type ServiceBatcher = Batcher<PresentedToken, Option<ServiceIdentity>>;

pub(crate) fn spawn_service_batcher(
    lanes: &TaskTracker,
    pool: &Pool,
    tokens: &TokenKeys,
) -> ServiceBatcher {
    let (own, tokens) = (LaneConnection::new(pool), tokens.clone());
    Batcher::spawn_lane(lanes, move |shown: Vec<PresentedToken>| {
        let (own, tokens) = (own.clone(), tokens.clone());
        async move {
            let digests: Vec<_> = shown.iter().map(|shown| shown.hash).collect();
            let stored = tokens.expand_digests(&digests);
            let hashes = stored.lookup_hashes();
            let mut conn = own.take_connection().await.ok()?;
            let found = service_tokens::find_services(&mut conn, &hashes).await.ok()?;
            own.return_connection(conn).await;
            let service = |digest: [u8; 32]| {
                let is_own = |hash: &[u8; 32]| stored.digest_of(hash) == Some(digest);
                found.iter().find(|(hash, _)| is_own(hash)).map(|(_, service)| service.clone())
            };
            Some(shown.iter().map(|shown| service(shown.hash)).collect())
        }
    })
}

impl TokenKind {
    /// Returns the kind of token of a service.
    pub const fn of_service(kind: ServiceKind) -> Self {
        match kind {
            ServiceKind::Runner => Self::Runner,
            ServiceKind::Worker => Self::Worker,
            ServiceKind::Manager | ServiceKind::Analyst => Self::Host,
        }
    }
}

impl App {
    /// Returns the service that a token belongs to. It queries the database on every call: a revoked token stops
    /// working with the next request.
    #[tracing::instrument(name = "app.services.authenticate_service", skip_all)]
    pub async fn authenticate_service(
        &self,
        shown: &PresentedToken,
        kind: ServiceKind,
    ) -> Result<ServiceIdentity, Error> {
        if shown.kind != TokenKind::of_service(kind) {
            return Err(Error::Unauthenticated);
        }
        let service = if let Some(service) = self.shared_state().services.submit_item(*shown).await
        {
            service
        } else {
            // The batched lookup failed. A lookup alone returns the error.
            let mut conn = self.conn().await?;
            let hashes = self.token_keys().token_hashes(&shown.hash);
            let found = service_tokens::find_services(&mut conn, &hashes).await?;
            found.into_iter().next().map(|(_, service)| service)
        };
        service.filter(|service| service.kind == kind).ok_or(Error::Unauthenticated)
    }
}

/// Minimum age of the stored last-seen time before it is updated.
const PRESENCE_UPDATE_INTERVAL_MS: i64 = 5000;

/// How long a program of the project manager or an analyst counts as present without a request. It long-polls for
/// that time.
pub(crate) const PRESENCE_TIMEOUT_MS: i64 = 45_000;

/// Records that a program asks for work. A failure is only logged, because the work itself matters more.
#[operation]
pub async fn record_presence(app: &App, kind: ServiceKind, name: &str) {
    let noted = async {
        let mut conn = app.conn().await?;
        service_tokens::record_presence(&mut conn, kind, name, PRESENCE_UPDATE_INTERVAL_MS).await
    };
    if let Err(error) = noted.await {
        crate::platform::error::log_background_error(
            "service.presence_failed",
            &error,
            "the presence of a service could not be recorded",
        );
    }
}

/// Records that a program disconnected while it waited for work: it has ended or was cut off.
#[operation]
pub async fn record_departure(app: &App, kind: ServiceKind, name: &str) {
    let noted = async {
        let mut conn = app.conn().await?;
        service_tokens::clear_presence(&mut conn, kind, name).await
    };
    if let Err(error) = noted.await {
        crate::platform::error::log_background_error(
            "service.presence_failed",
            &error,
            "the departure of a service could not be recorded",
        );
    }
}

/// Issues a token to a service and revokes its earlier ones. Only an operator at the machine can call this: no
/// endpoint exposes it.
#[tracing::instrument(name = "app.services.issue_service_token", skip_all)]
#[operation]
pub async fn issue_service_token(
    app: &App,
    kind: ServiceKind,
    name: &Title,
) -> Result<SecretText, Error> {
    let (token, hash) = app.issue_token(TokenKind::of_service(kind));
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let now = ctx.now;
    let id = ServiceTokenId::from_uuid(ctx.new_uuid());
    service_tokens::revoke_service_tokens(ctx.conn(), kind, name.as_str(), now).await?;
    let service = ServiceIdentity { id, kind, name: name.to_string() };
    service_tokens::insert_service_token(ctx.conn(), &service, &hash, now).await?;
    let data = json!({ "service_token_id": id, "kind": kind.as_str(), "name": name });
    ctx.record_event(EventDraft::new(EventKind::ServiceTokenIssued, data)).await?;
    ctx.commit().await?;
    Ok(token)
}
