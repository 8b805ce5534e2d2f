//! Bearer tokens: 256 random bits with a prefix for the kind and a checksum. A leaked or mistyped token is recognized
//! without the database. Only a hash is stored, under a key of the installation.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use cynode_db::platform::keyring::{FIRST_TOKEN_KEY, TokenHash};
use cynode_wire::identity::accounts::SecretText;
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use crate::{App, AppEnvironment, Ctx, platform::keys::InstallationKeys};

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
    /// Token of a directory that provisions users and groups by SCIM.
    Scim,
    /// One-time token that somebody with the master key makes for an admin.
    BreakGlass,
    /// Secret of a device that waits for its login to be confirmed.
    Device,
}

/// A token that a caller presented: well-formed, but not yet authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PresentedToken {
    /// Kind of the token.
    pub kind: TokenKind,
    /// SHA-256 of the token. The database stores it under a key of tokens.
    pub hash: [u8; 32],
}

/// The text is not a CyNode token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CyNode token")]
pub struct TokenError;

impl TokenKind {
    const ALL: [Self; 14] = [
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
        Self::Scim,
        Self::BreakGlass,
        Self::Device,
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
            Self::Scim => "cyn_scim_",
            Self::BreakGlass => "cyn_brk_",
            Self::Device => "cyn_dev_",
        }
    }
}

/// Keys under which a process stores tokens. A process without the master key stores them without a key, which the database refuses once
/// the first key is retired.
#[derive(Clone, Default)]
pub(crate) struct TokenKeys(Arc<ArcSwapOption<InstallationKeys>>);

impl TokenKeys {
    /// Uses the keys of the installation from now on.
    pub(crate) fn connect_keys(&self, keys: InstallationKeys) {
        self.0.store(Some(Arc::new(keys)));
    }

    /// Returns the keys of the installation, if this process has them.
    pub(crate) fn installation_keys(&self) -> Option<InstallationKeys> {
        self.0.load().as_deref().cloned()
    }

    /// Issues a new token. Returns it with what the database stores.
    pub(crate) fn issue_token(
        &self,
        kind: TokenKind,
        environment: &AppEnvironment,
    ) -> (SecretText, TokenHash) {
        let (token, digest) = issue_token(kind, environment);
        let stored = match &*self.0.load() {
            Some(keys) => keys.hash_token(&digest),
            None => TokenHash { key: FIRST_TOKEN_KEY, hash: digest },
        };
        (token, stored)
    }

    /// Returns everything that the token with this digest may be stored under.
    pub(crate) fn token_hashes(&self, digest: &[u8; 32]) -> Vec<[u8; 32]> {
        match &*self.0.load() {
            Some(keys) => keys.token_hashes(digest),
            None => vec![*digest],
        }
    }

    /// Returns everything that tokens with these digests may be stored under, each with its digest.
    pub(crate) fn expand_digests(&self, digests: &[[u8; 32]]) -> StoredHashes {
        let hashes = |digest: &[u8; 32]| {
            let digest = *digest;
            self.token_hashes(&digest).into_iter().map(move |hash| (hash, digest))
        };
        StoredHashes(digests.iter().flat_map(hashes).collect())
    }
}

/// What some tokens may be stored under, each with the digest of its token.
pub(crate) struct StoredHashes(Vec<([u8; 32], [u8; 32])>);

impl StoredHashes {
    /// Returns the hashes to look for.
    pub(crate) fn lookup_hashes(&self) -> Vec<[u8; 32]> {
        let mut hashes: Vec<_> = self.0.iter().map(|(hash, _)| *hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// Returns the digest of the token that is stored under this.
    pub(crate) fn digest_of(&self, hash: &[u8; 32]) -> Option<[u8; 32]> {
        self.0.iter().find(|(known, _)| known == hash).map(|(_, digest)| *digest)
    }
}

impl App {
    /// Issues a new token. Returns it with what the database stores.
    pub fn issue_token(&self, kind: TokenKind) -> (SecretText, TokenHash) {
        self.token_keys().issue_token(kind, self.environment())
    }
}

impl Ctx {
    /// Issues a new token. Returns it with what the database stores.
    pub(crate) fn issue_token(&self, kind: TokenKind) -> (SecretText, TokenHash) {
        self.token_keys().issue_token(kind, self.environment())
    }
}

/// Creates a new token. Returns it with its SHA-256.
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
