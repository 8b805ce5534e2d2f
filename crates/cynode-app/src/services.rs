//! Programs that work for the installation: runners, workers, and those in which the project manager and analysts run.

use cynode_core::{events::EventKind, ids::ServiceTokenId, names::Title};
use cynode_db::{DbError, Pool, service_tokens};
use cynode_wire::accounts::SecretText;
use serde_json::json;
use tokio_util::task::TaskTracker;

pub use cynode_db::service_tokens::{Service, ServiceKind};

use crate::{
    App, Error, Request,
    batch::{Batcher, OwnConnection},
    context::Told,
    tokens::{self, Presented, TokenKind},
};

/// Looks up who is behind the tokens of several requests at once.
pub(crate) type Services = Batcher<Presented, Option<Service>>;

pub(crate) fn services(lanes: &TaskTracker, pool: &Pool) -> Services {
    let own = OwnConnection::new(pool);
    Batcher::start(lanes, move |shown: Vec<Presented>| {
        let own = own.clone();
        async move {
            let mut hashes: Vec<_> = shown.iter().map(|shown| shown.hash).collect();
            hashes.sort_unstable();
            hashes.dedup();
            let mut conn = own.take().await.ok()?;
            let found = service_tokens::find(&mut conn, &hashes).await.ok()?;
            own.put_back(conn).await;
            let service = |hash| {
                found.iter().find(|(known, _)| *known == hash).map(|(_, service)| service.clone())
            };
            Some(shown.iter().map(|shown| service(shown.hash)).collect())
        }
    })
}

impl TokenKind {
    /// The kind of token that such a service shows.
    pub const fn of_service(kind: ServiceKind) -> Self {
        match kind {
            ServiceKind::Runner => Self::Runner,
            ServiceKind::Worker => Self::Worker,
            ServiceKind::Manager | ServiceKind::Analyst => Self::Host,
        }
    }
}

impl App {
    /// Which service of that kind is behind a token, asked anew each time: what was revoked stops working with the
    /// next request.
    #[tracing::instrument(name = "app.services.authenticate", skip_all)]
    pub async fn authenticate_service(
        &self,
        shown: &Presented,
        kind: ServiceKind,
    ) -> Result<Service, Error> {
        if shown.kind != TokenKind::of_service(kind) {
            return Err(Error::Unauthenticated);
        }
        let service = if let Some(service) = self.shared().services.submit(*shown).await {
            service
        } else {
            // The shared look-up failed; alone we learn why.
            let mut conn = self.pool().acquire().await.map_err(DbError::from)?;
            let found = service_tokens::find(&mut conn, &[shown.hash]).await?;
            found.into_iter().next().map(|(_, service)| service)
        };
        service.filter(|service| service.kind == kind).ok_or(Error::Unauthenticated)
    }
}

/// Gives a service a token and ends the ones it had. Only the person at the machine may; there is no endpoint for it.
#[tracing::instrument(name = "app.services.issue", skip_all)]
pub async fn issue(app: &App, kind: ServiceKind, name: &Title) -> Result<SecretText, Error> {
    let (token, hash) = tokens::issue(TokenKind::of_service(kind), app.environment());
    let request = Request { caller: None, trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let now = ctx.now;
    let id = ServiceTokenId::from_uuid(ctx.uuid());
    service_tokens::revoke(ctx.conn(), kind, name.as_str(), now).await?;
    let service = Service { id, kind, name: name.to_string() };
    service_tokens::insert(ctx.conn(), &service, &hash, now).await?;
    let data = json!({ "service_token_id": id, "kind": kind.as_str(), "name": name });
    ctx.record(Told::new(EventKind::ServiceTokenIssued, data)).await?;
    ctx.commit().await?;
    Ok(token)
}
