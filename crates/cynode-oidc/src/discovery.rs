//! Discovery documents and signing keys of providers. Both are cached; keys are fetched again for an unknown key id, at
//! a limited rate, so that neither a rotation nor forged tokens cause trouble.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use openidconnect::core::CoreJsonWebKeySet;
use reqwest::StatusCode;
use serde::Deserialize;
use time::{Duration, OffsetDateTime};
use url::Url;

use crate::{OidcError, egress::ProviderHttp};

/// How long a discovery document and its keys are used before they are fetched again.
const CACHE_TTL: Duration = Duration::hours(1);

/// How long a failed discovery is not repeated.
const FAILURE_TTL: Duration = Duration::seconds(10);

/// Maximum number of providers in the cache.
const MAX_CACHED_PROVIDERS: usize = 100;

/// How many times keys are fetched at once for unknown key ids. After that one fetch is allowed per
/// [`KEY_FETCHES_PER_MINUTE`].
const KEY_FETCH_BURST: NonZeroU32 = NonZeroU32::MIN.saturating_add(5);

/// How many times a minute keys are fetched for unknown key ids.
const KEY_FETCHES_PER_MINUTE: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// The parts of a discovery document that we use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProviderMetadata {
    /// Identifier of the issuer. It equals the configured one, byte by byte.
    pub issuer: String,
    /// Where the browser is sent.
    pub authorization_endpoint: Url,
    /// Where codes and refresh tokens are redeemed.
    pub token_endpoint: Url,
    /// Where claims about a person are read.
    pub userinfo_endpoint: Option<Url>,
    /// Where signing keys are read.
    pub jwks_uri: Url,
    /// Where a browser is sent to log out.
    pub end_session_endpoint: Option<Url>,
    /// How a client may authenticate itself at the token endpoint.
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Methods of PKCE.
    pub code_challenge_methods_supported: Option<Vec<String>>,
    /// Scopes that the provider lists.
    pub scopes_supported: Option<Vec<String>>,
    /// Whether every authorization response names its issuer (RFC 9207).
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
    /// Whether the provider sends logout tokens.
    #[serde(default)]
    pub backchannel_logout_supported: bool,
}

/// A provider as it was discovered.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveredProvider {
    pub(crate) metadata: Arc<ProviderMetadata>,
    pub(crate) keys: Arc<CoreJsonWebKeySet>,
    fetched_at: OffsetDateTime,
}

/// Why keys are fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFetchCause {
    /// An ID token, which the provider itself sent.
    IdToken,
    /// A logout token. Anybody may send one, so that these fetches are counted apart.
    LogoutToken,
}

/// What is known of a provider.
#[derive(Default)]
struct CacheState {
    found: Option<DiscoveredProvider>,
    /// The last discovery, if it failed.
    failure: Option<(OffsetDateTime, OidcError)>,
}

impl CacheState {
    fn store(&mut self, fresh: DiscoveredProvider) -> DiscoveredProvider {
        self.failure = None;
        self.found.insert(fresh).clone()
    }
}

struct CacheEntry {
    /// Held while the provider is discovered: others wait for the result.
    state: tokio::sync::Mutex<CacheState>,
    key_fetches: DefaultDirectRateLimiter,
    logout_key_fetches: DefaultDirectRateLimiter,
}

/// Discovered providers by issuer.
#[derive(Default)]
pub(crate) struct DiscoveryCache(Mutex<HashMap<String, Arc<CacheEntry>>>);

impl DiscoveryCache {
    fn entry(&self, issuer: &str) -> Arc<CacheEntry> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(issuer) {
            return Arc::clone(entry);
        }
        if entries.len() >= MAX_CACHED_PROVIDERS {
            entries.clear();
        }
        let quota = Quota::per_minute(KEY_FETCHES_PER_MINUTE).allow_burst(KEY_FETCH_BURST);
        let entry = Arc::new(CacheEntry {
            state: tokio::sync::Mutex::default(),
            key_fetches: RateLimiter::direct(quota),
            logout_key_fetches: RateLimiter::direct(quota),
        });
        entries.insert(issuer.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Returns a provider, from the cache while it is fresh. A stale entry is used while a new one cannot be had. A failure is not repeated
    /// for ten seconds.
    pub(crate) async fn discover_provider(
        &self,
        http: &ProviderHttp,
        issuer: &str,
        now: OffsetDateTime,
    ) -> Result<DiscoveredProvider, OidcError> {
        let entry = self.entry(issuer);
        let mut state = entry.state.lock().await;
        if let Some(known) = &state.found
            && (now - known.fetched_at).abs() < CACHE_TTL
        {
            return Ok(known.clone());
        }
        let failure = match &state.failure {
            Some((at, failure)) if (now - *at).abs() < FAILURE_TTL => failure.clone(),
            Some(_) | None => match fetch_provider(http, issuer, now).await {
                Ok(fresh) => return Ok(state.store(fresh)),
                Err(failure) => {
                    let reason = failure.to_string();
                    tracing::warn!(
                        event = "identity_provider.discovery_failed",
                        issuer,
                        reason,
                        "an identity provider could not be discovered"
                    );
                    state.failure = Some((now, failure.clone()));
                    failure
                }
            },
        };
        state.found.clone().ok_or(failure)
    }

    /// Fetches the document and the keys anew, whatever the cache holds.
    pub(crate) async fn refresh_provider(
        &self,
        http: &ProviderHttp,
        issuer: &str,
        now: OffsetDateTime,
    ) -> Result<DiscoveredProvider, OidcError> {
        let entry = self.entry(issuer);
        let mut state = entry.state.lock().await;
        let fresh = fetch_provider(http, issuer, now).await?;
        Ok(state.store(fresh))
    }

    /// Fetches the keys again because a token names a key that is unknown. Returns `None` when that was done too often.
    pub(crate) async fn refresh_keys(
        &self,
        http: &ProviderHttp,
        known: &DiscoveredProvider,
        cause: KeyFetchCause,
    ) -> Result<Option<DiscoveredProvider>, OidcError> {
        let entry = self.entry(&known.metadata.issuer);
        let mut state = entry.state.lock().await;
        // Another request has fetched them meanwhile.
        if let Some(newer) = &state.found
            && !Arc::ptr_eq(&newer.keys, &known.keys)
        {
            return Ok(Some(newer.clone()));
        }
        let limiter = match cause {
            KeyFetchCause::IdToken => &entry.key_fetches,
            KeyFetchCause::LogoutToken => &entry.logout_key_fetches,
        };
        if limiter.check().is_err() {
            return Ok(None);
        }
        let keys = Arc::new(fetch_keys(http, &known.metadata.jwks_uri).await?);
        let fresh = DiscoveredProvider { keys, ..known.clone() };
        state.found = Some(fresh.clone());
        Ok(Some(fresh))
    }
}

/// Returns the address of the discovery document of an issuer.
fn discovery_url(issuer: &str) -> Result<Url, OidcError> {
    let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    address.parse().map_err(|_| OidcError::Address("the issuer is no address".into()))
}

async fn fetch_provider(
    http: &ProviderHttp,
    issuer: &str,
    now: OffsetDateTime,
) -> Result<DiscoveredProvider, OidcError> {
    let metadata: ProviderMetadata = fetch_document(http, &discovery_url(issuer)?).await?;
    if metadata.issuer != issuer {
        return Err(OidcError::Protocol(
            "its discovery document is of another issuer than the configured one".into(),
        ));
    }
    let endpoints =
        [Some(&metadata.authorization_endpoint), metadata.end_session_endpoint.as_ref()];
    for url in endpoints.into_iter().flatten() {
        http.validate_url(url)?;
    }
    let methods = metadata.code_challenge_methods_supported.as_deref();
    if methods.is_some_and(|methods| !methods.iter().any(|method| method == "S256")) {
        return Err(OidcError::Protocol("it does not offer PKCE with S256".into()));
    }
    let keys = fetch_keys(http, &metadata.jwks_uri).await?;
    Ok(DiscoveredProvider { metadata: Arc::new(metadata), keys: Arc::new(keys), fetched_at: now })
}

async fn fetch_keys(http: &ProviderHttp, url: &Url) -> Result<CoreJsonWebKeySet, OidcError> {
    fetch_document(http, url).await
}

async fn fetch_document<T: serde::de::DeserializeOwned>(
    http: &ProviderHttp,
    url: &Url,
) -> Result<T, OidcError> {
    let response = http.get_json(url, None).await?;
    if response.status != StatusCode::OK {
        let status = response.status.as_u16();
        return Err(OidcError::Unreachable(format!(
            "{} answered with status {status}",
            url.path()
        )));
    }
    serde_json::from_slice(&response.body).map_err(|_| {
        OidcError::Protocol(format!("{} is not the document it should be", url.path()))
    })
}
