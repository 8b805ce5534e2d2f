//! Bearer tokens: 256 random bits with a prefix for the kind and a checksum. A leaked or mistyped token is recognized
//! without the database. Only a hash is stored.

use cynode_wire::identity::accounts::SecretText;
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use crate::AppEnvironment;

/// Kind of credential that a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Login session of a user.
    Session,
    /// API key of a program in a user's name.
    ApiKey,
    /// One-time token that creates the first admin.
    Bootstrap,
    /// Service token of a runner, which drives tasks.
    Runner,
    /// Service token of a worker, which works on jobs.
    Worker,
    /// Agent token of a project manager.
    Pm,
    /// Agent token of an analyst.
    Pa,
    /// Agent token of an agent in a sandbox.
    Sandbox,
    /// Service token of a program that hosts the project manager or analysts.
    Host,
    /// One-time token with which a machine becomes a node.
    Join,
    /// Token of a node.
    Node,
}

/// A token that a caller presented: well-formed, but not yet authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PresentedToken {
    /// Kind of the token.
    pub kind: TokenKind,
    /// Hash under which the database stores the token.
    pub hash: [u8; 32],
}

/// The text is not a CyNode token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CyNode token")]
pub struct TokenError;

impl TokenKind {
    const ALL: [Self; 11] = [
        Self::Session,
        Self::ApiKey,
        Self::Bootstrap,
        Self::Runner,
        Self::Worker,
        Self::Pm,
        Self::Pa,
        Self::Sandbox,
        Self::Host,
        Self::Join,
        Self::Node,
    ];

    /// Returns the prefix of tokens of this kind. Secret scanners look for it.
    pub const fn token_prefix(self) -> &'static str {
        match self {
            Self::Session => "cyn_ses_",
            Self::ApiKey => "cyn_key_",
            Self::Bootstrap => "cyn_boot_",
            Self::Runner => "cyn_run_",
            Self::Worker => "cyn_wrk_",
            Self::Pm => "cyn_pm_",
            Self::Pa => "cyn_pa_",
            Self::Sandbox => "cyn_sbx_",
            Self::Host => "cyn_pma_",
            Self::Join => "cyn_join_",
            Self::Node => "cyn_nod_",
        }
    }
}

/// Issues a new token. Returns it with the hash for the database.
pub fn issue_token(kind: TokenKind, environment: &AppEnvironment) -> (SecretText, [u8; 32]) {
    let secret = BASE64URL_NOPAD.encode(&environment.random_bytes::<32>());
    let text = format!("{}{secret}{}", kind.token_prefix(), compute_checksum(kind, &secret));
    let hash = hash_token(&text);
    (SecretText(text), hash)
}

/// Parses a token that a caller presented.
pub fn parse_token(text: &str) -> Result<PresentedToken, TokenError> {
    let kind = TokenKind::ALL.into_iter().find(|kind| text.starts_with(kind.token_prefix()));
    let kind = kind.ok_or(TokenError)?;
    let body = &text[kind.token_prefix().len()..];
    let (secret, check) = body.split_at_checked(43).ok_or(TokenError)?;
    if check != compute_checksum(kind, secret) || BASE64URL_NOPAD.decode(secret.as_bytes()).is_err()
    {
        return Err(TokenError);
    }
    Ok(PresentedToken { kind, hash: hash_token(text) })
}

fn compute_checksum(kind: TokenKind, secret: &str) -> String {
    let mut crc = crc32fast::Hasher::new();
    crc.update(kind.token_prefix().as_bytes());
    crc.update(secret.as_bytes());
    BASE64URL_NOPAD.encode(&crc.finalize().to_be_bytes())
}

fn hash_token(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_recognised_and_its_kind_is_part_of_it() {
        let environment = AppEnvironment::from_system();
        for kind in TokenKind::ALL {
            let (token, hash) = issue_token(kind, &environment);
            assert_eq!(parse_token(&token.0), Ok(PresentedToken { kind, hash }));
        }
    }

    #[test]
    fn a_mistyped_relabelled_or_cut_token_is_refused_before_any_query() {
        let (token, _) = issue_token(TokenKind::Session, &AppEnvironment::from_system());
        let flipped = if token.0.as_bytes()[20] == b'A' { "B" } else { "A" };
        let mistyped = format!("{}{flipped}{}", &token.0[..20], &token.0[21..]);
        let relabelled = token.0.replace("cyn_ses_", "cyn_key_");
        let cut = &token.0[..token.0.len() - 1];
        for text in [mistyped.as_str(), &relabelled, cut, "", "cyn_ses_", "hunter2", "cyn_ses_é"] {
            assert_eq!(parse_token(text), Err(TokenError), "{text}");
        }
    }

    #[test]
    fn a_token_of_any_kind_is_taken_out_of_what_a_model_reads() {
        let rules = cynode_models::redact::RedactionRules::new().unwrap();
        let key = cynode_models::redact::FingerprintKey::new([7; 32]);
        let redactor = cynode_models::redact::Redactor::new(rules, key, []).unwrap();
        let environment = AppEnvironment::from_system();
        for kind in TokenKind::ALL {
            let text = format!("use {} please", issue_token(kind, &environment).0.0);
            let redacted = redactor.redact_text(&text);
            let found: Vec<_> = redacted.found.iter().collect();
            assert_eq!(found, [("cynode_token", 1)], "{kind:?}");
        }
    }

    #[test]
    fn two_tokens_are_never_alike() {
        let environment = AppEnvironment::from_system();
        let tokens: std::collections::HashSet<_> =
            (0..1000).map(|_| issue_token(TokenKind::ApiKey, &environment).0.0).collect();
        assert_eq!(tokens.len(), 1000);
    }
}
