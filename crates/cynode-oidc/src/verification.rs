//! Verification of ID tokens and logout tokens. Only signatures of public keys are accepted: a client secret signs
//! nothing, and an unsigned token is none.

use chrono::{DateTime, Utc};
use data_encoding::BASE64URL_NOPAD;
use openidconnect::{
    ClaimsVerificationError, ClientId, IssuerUrl, JsonWebKey, Nonce, SignatureVerificationError,
    core::{CoreIdToken, CoreIdTokenVerifier, CoreJsonWebKeySet, CoreJwsSigningAlgorithm},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use time::{Duration, OffsetDateTime};

use crate::{LogoutClaims, OidcError};

/// How far the clocks of a provider and of this server may differ.
const MAX_CLOCK_SKEW: Duration = Duration::seconds(60);

/// Maximum age of a logout token.
const MAX_LOGOUT_TOKEN_AGE: Duration = Duration::minutes(5);

/// Member of `events` that makes a token a logout token.
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Algorithms of signatures that are accepted.
const ALLOWED_ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// Why a token is not accepted.
#[derive(Debug)]
pub(crate) enum VerificationError {
    /// The token names a key that is unknown: the provider may have rotated its keys.
    UnknownKey,
    /// The token is not valid, whatever the keys are.
    Invalid(String),
}

impl From<VerificationError> for OidcError {
    fn from(error: VerificationError) -> Self {
        match error {
            VerificationError::UnknownKey => {
                Self::Protocol("it signed a token with a key that it does not publish".into())
            }
            VerificationError::Invalid(reason) => Self::Protocol(reason),
        }
    }
}

/// The issuer and the client that a token has to be of.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedToken<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) now: OffsetDateTime,
}

/// Verifies an ID token and returns its claims. With a nonce, the token has to carry it.
pub(crate) fn verify_id_token(
    token: &str,
    keys: &CoreJsonWebKeySet,
    expected: ExpectedToken<'_>,
    nonce: Option<&str>,
) -> Result<Map<String, Value>, VerificationError> {
    let invalid = |reason: &str| VerificationError::Invalid(reason.to_owned());
    let parsed: CoreIdToken = token.parse().map_err(|_| invalid("its ID token is not one"))?;
    let issuer = IssuerUrl::new(expected.issuer.to_owned())
        .map_err(|_| invalid("the issuer is no address"))?;
    let (earliest, latest) = (
        to_chrono(expected.now - MAX_CLOCK_SKEW).ok_or_else(|| invalid("the clock is wrong"))?,
        to_chrono(expected.now + MAX_CLOCK_SKEW).ok_or_else(|| invalid("the clock is wrong"))?,
    );
    let client = ClientId::new(expected.client_id.to_owned());
    let verifier = CoreIdTokenVerifier::new_public_client(client, issuer, keys.clone())
        .set_allowed_algs(ALLOWED_ALGORITHMS)
        .set_time_fn(move || earliest)
        .set_issue_time_verifier_fn(move |issued| {
            if issued <= latest { Ok(()) } else { Err("it was issued in the future".to_owned()) }
        });
    let verified = match nonce {
        Some(nonce) => {
            let nonce = Nonce::new(nonce.to_owned());
            parsed.claims(&verifier, &nonce).map(|_| ())
        }
        None => parsed.claims(&verifier, |_: Option<&Nonce>| Ok(())).map(|_| ()),
    };
    verified.map_err(|error| match error {
        ClaimsVerificationError::SignatureVerification(
            SignatureVerificationError::NoMatchingKey,
        ) => VerificationError::UnknownKey,
        error => VerificationError::Invalid(describe_claims_error(&error).to_owned()),
    })?;
    // The signature covers exactly these bytes.
    let claims = decode_claims(token)?;
    let party = claims.get("azp").and_then(Value::as_str);
    if party.is_some_and(|party| party != expected.client_id) {
        return Err(invalid("its ID token was made for another client"));
    }
    Ok(claims)
}

/// Describes why claims were refused, without text of the provider.
fn describe_claims_error(error: &ClaimsVerificationError) -> &'static str {
    match error {
        ClaimsVerificationError::Expired(_) => "its ID token has expired or is not valid yet",
        ClaimsVerificationError::InvalidAudience(_) => "its ID token was made for another client",
        ClaimsVerificationError::InvalidIssuer(_) => "its ID token is of another issuer",
        ClaimsVerificationError::InvalidNonce(_) => "its ID token is not of this login",
        ClaimsVerificationError::SignatureVerification(_) => {
            "the signature of its ID token is wrong"
        }
        _ => "its ID token is not valid",
    }
}

fn to_chrono(time: OffsetDateTime) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(time.unix_timestamp(), 0)
}

/// Decodes the claims of a token in compact form, without any check.
fn decode_claims(token: &str) -> Result<Map<String, Value>, VerificationError> {
    let body = token.split('.').nth(1).unwrap_or_default();
    decode_part(body)
}

fn decode_part<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, VerificationError> {
    let wrong = || VerificationError::Invalid("its token is not one".into());
    let bytes = BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| wrong())?;
    serde_json::from_slice(&bytes).map_err(|_| wrong())
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: CoreJwsSigningAlgorithm,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

/// Verifies a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6) and returns what it ends.
pub(crate) fn verify_logout_token(
    token: &str,
    keys: &CoreJsonWebKeySet,
    expected: ExpectedToken<'_>,
) -> Result<LogoutClaims, VerificationError> {
    let invalid = |reason: &str| VerificationError::Invalid(reason.to_owned());
    let mut parts = token.split('.');
    let (Some(head), Some(body), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(invalid("the logout token is not one"));
    };
    let header: TokenHeader = decode_part(head)?;
    let known_type = header
        .typ
        .as_deref()
        .is_none_or(|kind| matches!(kind.to_ascii_lowercase().as_str(), "logout+jwt" | "jwt"));
    if !known_type || header.crit.is_some() || !ALLOWED_ALGORITHMS.contains(&header.alg) {
        return Err(invalid("the logout token has a form that is not accepted"));
    }
    let signature = BASE64URL_NOPAD
        .decode(signature.as_bytes())
        .map_err(|_| invalid("the logout token is not one"))?;
    let signed = format!("{head}.{body}");
    let named = |key: &&openidconnect::core::CoreJsonWebKey| match &header.kid {
        Some(kid) => key.key_id().is_some_and(|id| id.as_str() == kid),
        None => true,
    };
    let mut candidates = keys.keys().iter().filter(named).peekable();
    if candidates.peek().is_none() {
        return Err(VerificationError::UnknownKey);
    }
    if !candidates
        .any(|key| key.verify_signature(&header.alg, signed.as_bytes(), &signature).is_ok())
    {
        return Err(invalid("the signature of the logout token is wrong"));
    }
    check_logout_claims(&decode_part(body)?, expected).map_err(invalid)
}

fn check_logout_claims(
    claims: &Map<String, Value>,
    expected: ExpectedToken<'_>,
) -> Result<LogoutClaims, &'static str> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str).map(str::to_owned);
    let time = |name: &str| {
        let seconds = claims.get(name).and_then(Value::as_i64)?;
        OffsetDateTime::from_unix_timestamp(seconds).ok()
    };
    if claims.get("iss").and_then(Value::as_str) != Some(expected.issuer) {
        return Err("the logout token is of another issuer");
    }
    let for_us = match claims.get("aud") {
        Some(Value::String(audience)) => audience == expected.client_id,
        Some(Value::Array(audiences)) => audiences.iter().any(|one| one == expected.client_id),
        _ => false,
    };
    if !for_us {
        return Err("the logout token was made for another client");
    }
    let issued = time("iat").ok_or("the logout token does not say when it was issued")?;
    let oldest = expected.now - MAX_LOGOUT_TOKEN_AGE - MAX_CLOCK_SKEW;
    if issued > expected.now + MAX_CLOCK_SKEW || issued < oldest {
        return Err("the logout token is too old, or of the future");
    }
    if claims.contains_key("exp")
        && time("exp").is_none_or(|expires| expires <= expected.now - MAX_CLOCK_SKEW)
    {
        return Err("the logout token has expired");
    }
    let is_logout = claims
        .get("events")
        .and_then(|events| events.get(LOGOUT_EVENT))
        .is_some_and(Value::is_object);
    if !is_logout || claims.contains_key("nonce") {
        return Err("the token is not a logout token");
    }
    let token_id = text("jti").ok_or("the logout token has no id")?;
    let (subject, session) = (text("sub"), text("sid"));
    if subject.is_none() && session.is_none() {
        return Err("the logout token names neither a person nor a session");
    }
    Ok(LogoutClaims { token_id, subject, session })
}

#[cfg(test)]
mod tests;
