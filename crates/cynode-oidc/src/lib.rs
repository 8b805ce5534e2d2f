//! OpenID Connect relying party: discovery, the code flow with PKCE, verification of tokens, and logout.
//!
//! **Invariant**: no database. SSRF guard: only public addresses are contacted over TLS, unless the configuration names
//! a private host. Redirects are not followed. A token is used only after its signature, issuer, audience and times were
//! verified. Time and randomness are given by the caller.

mod claims;
mod discovery;
mod egress;
mod verification;

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use reqwest::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};
use url::Url;

pub use claims::VerifiedIdentity;
pub use discovery::ProviderMetadata;

use discovery::{DiscoveredProvider, DiscoveryCache, KeyFetchCause};
use egress::{ProviderHttp, ProviderResponse};
use verification::{ExpectedToken, VerificationError};

/// Maximum length of a token that a provider issues.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// Error code of RFC 6749 for a code or refresh token that is not valid, or no longer: the only word of a token endpoint about the person.
const INVALID_GRANT: &str = "invalid_grant";

/// Why a provider could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    /// There was no usable answer. A repeat may help.
    #[error("the identity provider cannot be reached: {0}")]
    Unreachable(String),
    /// The provider refuses the person: the code or the grant is not valid, or no longer. No other error is a word about the person.
    #[error("the identity provider refuses: {0}")]
    Refused(String),
    /// The provider refuses this installation, or this request of it. It says nothing about the person.
    #[error("the identity provider refuses this installation: {0}")]
    Client(String),
    /// There is no token left with which the provider could be asked. It has not refused.
    #[error("the grant has no token that renews it")]
    Unrenewable,
    /// The provider answers with something that breaks the rules of the protocol.
    #[error("the identity provider cannot be trusted: {0}")]
    Protocol(String),
    /// An address of the provider may not be contacted.
    #[error("an address of the identity provider may not be used: {0}")]
    Address(String),
}

/// Configuration of one provider.
#[derive(Clone, Debug)]
pub struct ProviderConfig {
    /// Identifier of the issuer.
    pub issuer: String,
    /// Our id at the provider.
    pub client_id: String,
    /// Our secret at the provider. A public client has none.
    pub client_secret: Option<SecretString>,
    /// Scopes that a login asks for. `openid` is always among them.
    pub scopes: Vec<String>,
    /// Claim that lists the groups of a person: a name, or a path with dots.
    pub groups_claim: String,
    /// Claims that a person must have, each with one of these values.
    pub required_claims: BTreeMap<String, Vec<String>>,
    /// Claim that names a person in the directory.
    pub directory_claim: String,
}

/// The values that tie one login together. Each is unpredictable and used once.
#[derive(Clone, Debug)]
pub struct LoginValues {
    /// Where the provider sends the browser back.
    pub redirect_uri: String,
    /// Ties the answer to the browser.
    pub state: String,
    /// Ties the ID token to the login.
    pub nonce: String,
    /// PKCE: the secret that only the one who began the login knows.
    pub verifier: String,
}

/// Tokens of one grant. They are stored sealed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantTokens {
    /// Reads claims about the person.
    pub access_token: String,
    /// When the access token expires, if the provider says so.
    #[serde(with = "time::serde::rfc3339::option")]
    pub access_expires_at: Option<OffsetDateTime>,
    /// Renews the grant.
    pub refresh_token: Option<String>,
    /// The ID token, a hint for the logout at the provider.
    pub id_token: Option<String>,
    /// Where the provider last named the groups of the person.
    #[serde(default)]
    pub groups_source: Option<GroupsSource>,
}

/// Where a provider names the groups of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupsSource {
    /// In ID tokens.
    IdToken,
    /// At its userinfo endpoint.
    Userinfo,
}

impl std::fmt::Debug for GrantTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrantTokens(…)")
    }
}

/// What a verified logout token ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutClaims {
    /// Id of the token, by which a replay is recognized.
    pub token_id: String,
    /// The person.
    pub subject: Option<String>,
    /// One session of the person at the provider.
    pub session: Option<String>,
}

/// Tokens of a grant for its check. New ones are stored before anything else is asked: the refresh token before them may work no more.
#[derive(Clone, Debug)]
pub struct RenewedGrant {
    /// The tokens.
    pub tokens: GrantTokens,
    /// Whether the provider has just issued them.
    pub is_new: bool,
    /// Whether the provider sent an ID token with them.
    has_id_token: bool,
}

/// Result of a check of a grant.
#[derive(Clone, Debug)]
pub struct GrantCheck {
    /// Tokens for the next check.
    pub tokens: GrantTokens,
    /// What the provider says about the person now. Groups are unknown where it says nothing about them and was not asked
    /// where it named them before.
    pub identity: VerifiedIdentity,
}

/// Client of all identity providers of an installation.
pub struct OidcClient {
    http: ProviderHttp,
    cache: DiscoveryCache,
}

impl OidcClient {
    /// Creates a client. `private_hosts` lists private hosts that may be contacted, as `host:port`, also over plain
    /// HTTP.
    pub fn new(private_hosts: Vec<String>) -> Result<Self, reqwest::Error> {
        Ok(Self { http: ProviderHttp::new(private_hosts)?, cache: DiscoveryCache::default() })
    }

    /// Rejects an issuer that may not be contacted or is no issuer.
    pub fn validate_issuer(&self, issuer: &str) -> Result<(), OidcError> {
        let wrong = |reason: &str| OidcError::Address(reason.to_owned());
        let url: Url = issuer.parse().map_err(|_| wrong("the issuer is no address"))?;
        if url.query().is_some() {
            return Err(wrong("an issuer has no query"));
        }
        self.http.validate_url(&url)
    }

    /// Reads the discovery document and the keys of an issuer anew.
    pub async fn test_discovery(
        &self,
        issuer: &str,
        now: OffsetDateTime,
    ) -> Result<ProviderMetadata, OidcError> {
        self.validate_issuer(issuer)?;
        let found = self.cache.refresh_provider(&self.http, issuer, now).await?;
        if found.keys.keys().is_empty() {
            return Err(OidcError::Protocol("it publishes no key that can be used".into()));
        }
        Ok(ProviderMetadata::clone(&found.metadata))
    }

    async fn discover(
        &self,
        provider: &ProviderConfig,
        now: OffsetDateTime,
    ) -> Result<DiscoveredProvider, OidcError> {
        self.validate_issuer(&provider.issuer)?;
        self.cache.discover_provider(&self.http, &provider.issuer, now).await
    }

    /// Returns the address that a login sends the browser to.
    pub async fn authorization_url(
        &self,
        provider: &ProviderConfig,
        login: &LoginValues,
        now: OffsetDateTime,
    ) -> Result<Url, OidcError> {
        let found = self.discover(provider, now).await?;
        let challenge = BASE64URL_NOPAD.encode(&Sha256::digest(login.verifier.as_bytes()));
        let mut url = found.metadata.authorization_endpoint.clone();
        let scopes = join_scopes(&provider.scopes);
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &provider.client_id)
            .append_pair("redirect_uri", &login.redirect_uri)
            .append_pair("scope", &scopes)
            .append_pair("state", &login.state)
            .append_pair("nonce", &login.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        // A provider gives a refresh token for this scope only to somebody who was asked.
        if provider.scopes.iter().any(|scope| scope == "offline_access") {
            url.query_pairs_mut().append_pair("prompt", "consent");
        }
        Ok(url)
    }

    /// Rejects an authorization response of another issuer than the login was begun with (RFC 9207).
    pub async fn check_response_issuer(
        &self,
        provider: &ProviderConfig,
        issuer: Option<&str>,
        now: OffsetDateTime,
    ) -> Result<(), OidcError> {
        let found = self.discover(provider, now).await?;
        let required = found.metadata.authorization_response_iss_parameter_supported;
        match issuer {
            Some(issuer) if issuer == provider.issuer => Ok(()),
            None if !required => Ok(()),
            _ => Err(OidcError::Protocol("the answer is of another issuer".into())),
        }
    }

    /// Redeems the code of a login. Returns who logged in, and the tokens of the grant.
    pub async fn redeem_code(
        &self,
        provider: &ProviderConfig,
        login: &LoginValues,
        code: &str,
        now: OffsetDateTime,
    ) -> Result<GrantCheck, OidcError> {
        let found = self.discover(provider, now).await?;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", login.redirect_uri.as_str()),
            ("code_verifier", login.verifier.as_str()),
        ];
        let tokens = self.request_tokens(provider, &found, &fields, now).await?;
        let Some(id_token) = tokens.id_token.clone() else {
            return Err(OidcError::Protocol("it sent no ID token".into()));
        };
        let verified =
            self.verify_id_token(provider, &found, &id_token, Some(login.nonce.as_str()), now);
        let claims = verified.await?;
        let in_id_token = claims::find_claim(&claims, &provider.groups_claim).is_some();
        let claims = self.complete_claims(provider, &found, claims, &tokens).await?;
        let identity = VerifiedIdentity::from_claims(&claims, provider)?;
        let groups_source = find_groups_source(&identity, in_id_token);
        Ok(GrantCheck { tokens: GrantTokens { groups_source, ..tokens }, identity })
    }

    /// Renews the tokens of a grant, the first half of its check. A grant without a refresh token is checked by its access token; one
    /// without either has ended.
    pub async fn renew_grant(
        &self,
        provider: &ProviderConfig,
        held: &GrantTokens,
        now: OffsetDateTime,
    ) -> Result<RenewedGrant, OidcError> {
        let found = self.discover(provider, now).await?;
        let Some(refresh_token) = &held.refresh_token else {
            let expired = held.access_expires_at.is_some_and(|expires| expires <= now);
            if expired || found.metadata.userinfo_endpoint.is_none() {
                return Err(OidcError::Unrenewable);
            }
            return Ok(RenewedGrant { tokens: held.clone(), is_new: false, has_id_token: false });
        };
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh_token.as_str())];
        let fresh = self.request_tokens(provider, &found, &fields, now).await?;
        let has_id_token = fresh.id_token.is_some();
        let tokens = GrantTokens {
            // A provider that does not rotate its refresh tokens sends none.
            refresh_token: fresh.refresh_token.or_else(|| held.refresh_token.clone()),
            id_token: fresh.id_token.or_else(|| held.id_token.clone()),
            groups_source: held.groups_source,
            ..fresh
        };
        Ok(RenewedGrant { tokens, is_new: true, has_id_token })
    }

    /// Finds out what the provider says about the person of a grant now, the second half of its check.
    pub async fn check_grant(
        &self,
        provider: &ProviderConfig,
        subject: &str,
        renewed: RenewedGrant,
        now: OffsetDateTime,
    ) -> Result<GrantCheck, OidcError> {
        let found = self.discover(provider, now).await?;
        let RenewedGrant { tokens, is_new, has_id_token } = renewed;
        let claims = match tokens.id_token.as_ref().filter(|_| has_id_token) {
            Some(token) => self.verify_id_token(provider, &found, token, None, now).await?,
            None => subject_claims(subject),
        };
        let in_id_token = claims::find_claim(&claims, &provider.groups_claim).is_some();
        // Without new tokens, the answer to this question is the check itself.
        let claims = if is_new {
            self.complete_claims(provider, &found, claims, &tokens).await?
        } else {
            self.read_userinfo(&found, claims, &tokens).await?
        };
        let mut identity = VerifiedIdentity::from_claims(&claims, provider)?;
        if identity.subject != subject {
            return Err(another_person());
        }
        let groups_source = find_groups_source(&identity, in_id_token).or(tokens.groups_source);
        let asked_again = match tokens.groups_source {
            Some(GroupsSource::IdToken) => has_id_token,
            Some(GroupsSource::Userinfo) => found.metadata.userinfo_endpoint.is_some(),
            None => false,
        };
        // Many providers leave the claim out for a person who is in no group any more.
        if identity.groups.is_none() && asked_again {
            identity.groups = Some(Vec::new());
        }
        Ok(GrantCheck { tokens: GrantTokens { groups_source, ..tokens }, identity })
    }

    /// Verifies a logout token of the provider.
    pub async fn verify_logout_token(
        &self,
        provider: &ProviderConfig,
        token: &str,
        now: OffsetDateTime,
    ) -> Result<LogoutClaims, OidcError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(OidcError::Protocol("the logout token is too long".into()));
        }
        let found = self.discover(provider, now).await?;
        let expected =
            ExpectedToken { issuer: &provider.issuer, client_id: &provider.client_id, now };
        match verification::verify_logout_token(token, &found.keys, expected) {
            Err(VerificationError::UnknownKey) => {
                let found = self.refresh_keys(&found, KeyFetchCause::LogoutToken).await?;
                Ok(verification::verify_logout_token(token, &found.keys, expected)?)
            }
            result => Ok(result?),
        }
    }

    /// Returns the address at which a browser logs out at the provider, if it has one.
    pub async fn end_session_url(
        &self,
        provider: &ProviderConfig,
        id_token: Option<&str>,
        return_to: &str,
        now: OffsetDateTime,
    ) -> Result<Option<Url>, OidcError> {
        let found = self.discover(provider, now).await?;
        let Some(mut url) = found.metadata.end_session_endpoint.clone() else { return Ok(None) };
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("client_id", &provider.client_id);
            query.append_pair("post_logout_redirect_uri", return_to);
            if let Some(token) = id_token {
                query.append_pair("id_token_hint", token);
            }
        }
        Ok(Some(url))
    }

    async fn refresh_keys(
        &self,
        found: &DiscoveredProvider,
        cause: KeyFetchCause,
    ) -> Result<DiscoveredProvider, OidcError> {
        let fresh = self.cache.refresh_keys(&self.http, found, cause).await?;
        // The keys may be there in a minute: that is no word about the person.
        fresh.ok_or_else(|| {
            OidcError::Unreachable("its tokens name unknown keys again and again".into())
        })
    }

    async fn verify_id_token(
        &self,
        provider: &ProviderConfig,
        found: &DiscoveredProvider,
        token: &str,
        nonce: Option<&str>,
        now: OffsetDateTime,
    ) -> Result<Map<String, Value>, OidcError> {
        let expected =
            ExpectedToken { issuer: &provider.issuer, client_id: &provider.client_id, now };
        match verification::verify_id_token(token, &found.keys, expected, nonce) {
            Err(VerificationError::UnknownKey) => {
                let found = self.refresh_keys(found, KeyFetchCause::IdToken).await?;
                Ok(verification::verify_id_token(token, &found.keys, expected, nonce)?)
            }
            result => Ok(result?),
        }
    }

    /// Sends a request to the token endpoint.
    async fn request_tokens(
        &self,
        provider: &ProviderConfig,
        found: &DiscoveredProvider,
        fields: &[(&str, &str)],
        now: OffsetDateTime,
    ) -> Result<GrantTokens, OidcError> {
        let mut fields: Vec<(&str, &str)> = fields.to_vec();
        let mut basic = None;
        match &provider.client_secret {
            Some(secret) if uses_basic_authentication(&found.metadata) => {
                basic = Some((provider.client_id.as_str(), secret));
            }
            Some(secret) => {
                fields.push(("client_id", provider.client_id.as_str()));
                fields.push(("client_secret", secret.expose_secret()));
            }
            None => fields.push(("client_id", provider.client_id.as_str())),
        }
        let response = self.http.post_form(&found.metadata.token_endpoint, &fields, basic).await?;
        parse_tokens(&response, now)
    }

    /// Adds what the userinfo endpoint says, if the ID token does not say everything.
    async fn complete_claims(
        &self,
        provider: &ProviderConfig,
        found: &DiscoveredProvider,
        claims: Map<String, Value>,
        tokens: &GrantTokens,
    ) -> Result<Map<String, Value>, OidcError> {
        let complete = claims::find_claim(&claims, &provider.groups_claim).is_some()
            && claims.contains_key("name");
        if complete || found.metadata.userinfo_endpoint.is_none() {
            return Ok(claims);
        }
        self.read_userinfo(found, claims, tokens).await
    }

    async fn read_userinfo(
        &self,
        found: &DiscoveredProvider,
        mut claims: Map<String, Value>,
        tokens: &GrantTokens,
    ) -> Result<Map<String, Value>, OidcError> {
        let Some(url) = &found.metadata.userinfo_endpoint else { return Ok(claims) };
        let response = self.http.get_json(url, Some(&tokens.access_token)).await?;
        if response.status != StatusCode::OK {
            let status = response.status.as_u16();
            let told = format!("its userinfo endpoint answered with status {status}");
            // The access token is no longer valid. Any other answer is about the request.
            return Err(if response.status == StatusCode::UNAUTHORIZED {
                OidcError::Refused(told)
            } else {
                OidcError::Client(told)
            });
        }
        let more: Map<String, Value> = serde_json::from_slice(&response.body)
            .map_err(|_| OidcError::Protocol("its userinfo is not JSON".into()))?;
        if more.get("sub") != claims.get("sub") {
            return Err(another_person());
        }
        // How the person logged in is said by the signed token of this login alone.
        let more = more.into_iter().filter(|(name, _)| name != "amr" && name != "acr");
        for (name, value) in more {
            claims.entry(name).or_insert(value);
        }
        Ok(claims)
    }
}

fn another_person() -> OidcError {
    OidcError::Refused("it answered about another person".into())
}

/// Returns where the groups of a person were named, if they were.
fn find_groups_source(identity: &VerifiedIdentity, in_id_token: bool) -> Option<GroupsSource> {
    let source = if in_id_token { GroupsSource::IdToken } else { GroupsSource::Userinfo };
    identity.groups.is_some().then_some(source)
}

fn subject_claims(subject: &str) -> Map<String, Value> {
    Map::from_iter([("sub".to_owned(), Value::from(subject))])
}

/// Returns the scopes of a login as one text, `openid` first.
fn join_scopes(scopes: &[String]) -> String {
    let others = scopes.iter().map(String::as_str).filter(|scope| *scope != "openid");
    std::iter::once("openid").chain(others).collect::<Vec<_>>().join(" ")
}

/// Returns whether the client authenticates itself by HTTP Basic, which is the default of the protocol.
fn uses_basic_authentication(metadata: &ProviderMetadata) -> bool {
    match metadata.token_endpoint_auth_methods_supported.as_deref() {
        Some(methods) => {
            let offers = |name: &str| methods.iter().any(|method| method == name);
            offers("client_secret_basic") || !offers("client_secret_post")
        }
        None => true,
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: Option<String>,
    expires_in: Option<i64>,
    refresh_token: Option<String>,
    id_token: Option<String>,
    error: Option<String>,
}

fn parse_tokens(
    response: &ProviderResponse,
    now: OffsetDateTime,
) -> Result<GrantTokens, OidcError> {
    let status = response.status;
    let answer: Option<TokenAnswer> = serde_json::from_slice(&response.body).ok();
    if status != StatusCode::OK {
        let code = answer.and_then(|answer| answer.error).filter(|code| is_error_code(code));
        return Err(match code {
            Some(code) if code == INVALID_GRANT => OidcError::Refused(code),
            Some(code) => OidcError::Client(code),
            None => OidcError::Client(format!("status {}", status.as_u16())),
        });
    }
    let wrong = || OidcError::Protocol("its token endpoint did not send tokens".into());
    let answer = answer.ok_or_else(wrong)?;
    let texts = [&answer.access_token, &answer.refresh_token, &answer.id_token];
    if texts.into_iter().flatten().any(|text| text.is_empty() || text.len() > MAX_TOKEN_BYTES) {
        return Err(wrong());
    }
    let lifetime = answer.expires_in.filter(|seconds| (1..=31_536_000).contains(seconds));
    Ok(GrantTokens {
        access_token: answer.access_token.ok_or_else(wrong)?,
        access_expires_at: lifetime.map(|seconds| now + Duration::seconds(seconds)),
        refresh_token: answer.refresh_token,
        id_token: answer.id_token,
        groups_source: None,
    })
}

/// Returns whether a text is an error code of the protocol, and not any text of the provider.
fn is_error_code(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

#[cfg(test)]
mod tests;
