//! Bearer tokens: 256 random bits with a prefix for the kind and a checksum. A leaked or mistyped token is recognized
//! without the database. Only a hash is stored.

use cynode_wire::identity::accounts::SecretText;
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use crate::AppEnvironment;

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A login of a user.
    Session,
    /// A program's key in a user's name.
    ApiKey,
    /// The first admin, once.
    Bootstrap,
    /// A program that drives tasks.
    Runner,
    /// A program that works on jobs.
    Worker,
    /// A project manager.
    Pm,
    /// An analyst.
    Pa,
    /// An agent in a sandbox.
    Sandbox,
    /// A program in which the project manager or analysts run.
    Host,
    /// A machine that may become a node, once.
    Join,
    /// A node.
    Node,
}

/// A token that was shown to us: well-formed, not yet known to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PresentedToken {
    /// Which door.
    pub kind: TokenKind,
    /// What the database knows it by.
    pub hash: [u8; 32],
}

/// The text is not a token of ours.
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

    /// What tokens of this kind start with. Scanners for leaked secrets look for it.
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

/// A new token and what the database is to know it by.
pub fn issue_token(kind: TokenKind, environment: &AppEnvironment) -> (SecretText, [u8; 32]) {
    let secret = BASE64URL_NOPAD.encode(&environment.random_bytes::<32>());
    let text = format!("{}{secret}{}", kind.token_prefix(), compute_checksum(kind, &secret));
    let hash = hash_token(&text);
    (SecretText(text), hash)
}

/// Reads a token that a caller showed.
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
