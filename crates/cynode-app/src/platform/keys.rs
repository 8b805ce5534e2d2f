//! Keys of the installation: a keyring whose keys are wrapped by the master key. The database alone is not enough to read a sealed
//! credential or to forge or test a record.
//!
//! Every sealed secret, signed head and hash of a token names its key. Several keys may open; one seals. A rotation adds a key, which
//! every replica loads before it becomes active, and retires the old one when nothing names it any more.

mod keyring;
mod master_key;
mod token_hashing;
mod vault;

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use cynode_audit::{DigestKey, NamedSigningKey, PublicAuditKey, PublicKeyring};
use cynode_core::ids::ChannelId;
use cynode_db::{
    notifications::NotificationChannel,
    platform::keyring::{FIRST_MASTER_KEY, FIRST_SIGNING_KEY, FIRST_TOKEN_KEY, TokenHash},
};
use ed25519_dalek::{SigningKey, VerifyingKey};
use secrecy::SecretString;
use uuid::Uuid;

use crate::{AppEnvironment, Error, platform::tag_key::TagKey};

pub use cynode_db::platform::keyring::KeyPurpose;
pub(crate) use keyring::retire_key;
pub use keyring::{
    ACTIVATION_DELAY, KeyringChange, begin_rotation, load_rotation_state, prepare_master_key,
};
pub use master_key::{
    CombinedMasterKeys, FixedKeyStore, LocalKeyStore, LocalMasterKeys, MasterKeyError,
    MasterKeyFuture, MasterKeyService,
};
use token_hashing::TokenSecrets;
pub use vault::{VaultOptions, VaultTransit};

/// Size of a nonce.
const NONCE_BYTES: usize = 24;

/// First bytes of a sealed secret that names its key. Secrets of earlier versions begin with a nonce.
const SEALED_MAGIC: [u8; 8] = *b"CYSEAL\0\x01";

/// Size of the id of a key in the header of a sealed secret.
const KEY_ID_BYTES: usize = 16;

/// A key with its id.
#[derive(Clone)]
struct NamedKey<T> {
    id: Uuid,
    key: T,
}

/// The keys of one purpose: the one that is used, and those that still open.
#[derive(Clone)]
struct KeySet<T> {
    active: NamedKey<T>,
    others: Vec<NamedKey<T>>,
}

impl<T> KeySet<T> {
    const fn single(id: Uuid, key: T) -> Self {
        Self { active: NamedKey { id, key }, others: Vec::new() }
    }

    fn all_keys(&self) -> impl Iterator<Item = &NamedKey<T>> {
        std::iter::once(&self.active).chain(&self.others)
    }

    fn find_key(&self, id: Uuid) -> Option<&T> {
        self.all_keys().find(|named| named.id == id).map(|named| &named.key)
    }
}

/// The keyring at one moment.
#[derive(Clone)]
struct KeyringSnapshot {
    sealing: KeySet<[u8; 32]>,
    signing: KeySet<SigningKey>,
    tokens: KeySet<TokenSecrets>,
    public: PublicKeyring,
}

/// Keys of an installation. All its replicas have the same keys. Clones share one keyring, which is refreshed while they are used.
#[derive(Clone)]
pub struct InstallationKeys {
    snapshot: Arc<ArcSwap<KeyringSnapshot>>,
    master: Arc<dyn MasterKeyService>,
}

impl InstallationKeys {
    /// Creates the keys of an installation that has never rotated one: each is derived from the master key. One key cannot be computed
    /// from another.
    pub fn from_master(master: &[u8; 32]) -> Self {
        let store = FixedKeyStore::new(*master);
        let service = LocalMasterKeys::new(Box::new(store), AppEnvironment::from_system());
        Self::from_snapshot(KeyringSnapshot::from_master(master), Arc::new(service))
    }

    fn from_snapshot(snapshot: KeyringSnapshot, master: Arc<dyn MasterKeyService>) -> Self {
        Self { snapshot: Arc::new(ArcSwap::from_pointee(snapshot)), master }
    }

    /// Returns the key for digests of values that must not be stored.
    pub fn digest_key(&self) -> DigestKey {
        self.snapshot.load().tokens.active.key.digest.clone()
    }

    /// Returns the key that signs records.
    pub fn signing_key(&self) -> NamedSigningKey {
        let snapshot = self.snapshot.load();
        let NamedKey { id, key } = &snapshot.signing.active;
        NamedSigningKey { id: *id, key: key.clone() }
    }

    /// Returns the public key that verifies our signatures of today.
    pub fn verifying_key(&self) -> VerifyingKey {
        self.snapshot.load().signing.active.key.verifying_key()
    }

    /// Returns every public key that verifies a signature of ours, earlier ones too.
    pub fn public_keys(&self) -> PublicKeyring {
        self.snapshot.load().public.clone()
    }

    /// Returns the key of new authentication tags.
    pub(crate) fn tag_key(&self) -> TagKey {
        self.snapshot.load().tokens.active.key.tags.clone()
    }

    /// Returns the keys that authenticate tags.
    pub(crate) fn tag_keys(&self) -> Vec<TagKey> {
        self.snapshot.load().tokens.all_keys().map(|named| named.key.tags.clone()).collect()
    }

    /// Computes an authentication tag (MAC) over values that are handed out and must come back unchanged.
    pub fn compute_tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.snapshot.load().tokens.active.key.tags.compute_tag(parts)
    }

    /// Verifies a tag in constant time, with every key that may still open.
    pub fn verify_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.tokens.all_keys().any(|named| named.key.tags.verify_tag(parts, tag))
    }

    /// Returns what a new token is stored under.
    pub(crate) fn hash_token(&self, digest: &[u8; 32]) -> TokenHash {
        let snapshot = self.snapshot.load();
        let NamedKey { id, key } = &snapshot.tokens.active;
        TokenHash { key: *id, hash: key.hash_digest(digest) }
    }

    /// Returns everything that a token may be stored under.
    pub(crate) fn token_hashes(&self, digest: &[u8; 32]) -> Vec<[u8; 32]> {
        let snapshot = self.snapshot.load();
        snapshot.tokens.all_keys().map(|named| named.key.hash_digest(digest)).collect()
    }

    /// Stores the hash of a token under the active key. Returns `None` if the keyring lacks the key that it names.
    pub(crate) fn rehash_token(&self, stored: &TokenHash) -> Option<TokenHash> {
        let snapshot = self.snapshot.load();
        let digest = snapshot.tokens.find_key(stored.key)?.recover_digest(&stored.hash);
        let NamedKey { id, key } = &snapshot.tokens.active;
        Some(TokenHash { key: *id, hash: key.hash_digest(&digest) })
    }

    /// Returns the ids of the keys in memory.
    pub(crate) fn loaded_keys(&self) -> Vec<Uuid> {
        let snapshot = self.snapshot.load();
        let KeyringSnapshot { sealing, signing, tokens, .. } = &**snapshot;
        let ids = sealing.all_keys().map(|named| named.id);
        let ids = ids.chain(signing.all_keys().map(|named| named.id));
        ids.chain(tokens.all_keys().map(|named| named.id)).collect()
    }

    /// Returns the id of the key that is used now.
    pub(crate) fn active_key(&self, purpose: KeyPurpose) -> Uuid {
        let snapshot = self.snapshot.load();
        match purpose {
            KeyPurpose::Master => snapshot.sealing.active.id,
            KeyPurpose::Signing => snapshot.signing.active.id,
            KeyPurpose::Token => snapshot.tokens.active.id,
        }
    }

    /// Seals a credential with its place as associated data. Moved to another place, it cannot be opened.
    pub(crate) fn seal_secret(
        &self,
        environment: &AppEnvironment,
        place: &[u8],
        secret: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let snapshot = self.snapshot.load();
        let NamedKey { id, key } = &snapshot.sealing.active;
        let nonce = environment.random_bytes::<NONCE_BYTES>();
        let header = [SEALED_MAGIC.as_slice(), id.as_bytes()].concat();
        let bound = [header.as_slice(), place].concat();
        let cipher = XChaCha20Poly1305::new(&(*key).into());
        let sealed = cipher.encrypt(&nonce.into(), Payload { msg: secret, aad: &bound });
        let sealed = sealed.map_err(|_| Error::Internal(anyhow::anyhow!("cannot encrypt")))?;
        Ok([header.as_slice(), &nonce, &sealed].concat())
    }

    /// Opens a credential that was sealed for this place, with the key that it names and no other.
    pub(crate) fn unseal_secret(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let wrong = || {
            Error::Internal(anyhow::anyhow!(
                "a credential cannot be opened: was the master key changed?"
            ))
        };
        let (id, bound, rest) = match split_header(sealed) {
            Some((id, header, rest)) => (id, [header, place].concat(), rest),
            None => (FIRST_MASTER_KEY, place.to_vec(), sealed),
        };
        let snapshot = self.snapshot.load();
        let key = snapshot.sealing.find_key(id).ok_or_else(|| {
            Error::Internal(anyhow::anyhow!(
                "a credential names the key {id}, which this installation does not have"
            ))
        })?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or_else(wrong)?;
        let cipher = XChaCha20Poly1305::new(&(*key).into());
        let opened = cipher.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: &bound });
        opened.map_err(|_| wrong())
    }

    /// Opens a credential that is a text.
    pub(crate) fn unseal_text(&self, place: &[u8], sealed: &[u8]) -> Result<SecretString, Error> {
        let opened = self.unseal_secret(place, sealed)?;
        let text = String::from_utf8(opened).map_err(|error| Error::Internal(error.into()))?;
        Ok(text.into())
    }
}

/// Splits a sealed secret into the id of its key, its header and the rest. Returns `None` for one of an earlier version.
fn split_header(sealed: &[u8]) -> Option<(Uuid, &[u8], &[u8])> {
    let (header, rest) = sealed.split_at_checked(SEALED_MAGIC.len() + KEY_ID_BYTES)?;
    let id = header.strip_prefix(SEALED_MAGIC.as_slice())?;
    Some((Uuid::from_slice(id).ok()?, header, rest))
}

/// Returns the id of the key that a sealed secret names.
pub(crate) fn sealing_key_of(sealed: &[u8]) -> Uuid {
    split_header(sealed).map_or(FIRST_MASTER_KEY, |(id, _, _)| id)
}

impl KeyringSnapshot {
    /// Derives the first keys of an installation.
    fn from_master(master: &[u8; 32]) -> Self {
        let first = FirstKeys::derive_keys(master);
        let public = PublicAuditKey {
            key_id: FIRST_SIGNING_KEY,
            public_key: first.signing.verifying_key(),
            retired_at: None,
            introduction: None,
            endorsement: None,
        };
        Self {
            sealing: KeySet::single(FIRST_MASTER_KEY, first.sealing),
            signing: KeySet::single(FIRST_SIGNING_KEY, first.signing),
            tokens: KeySet::single(FIRST_TOKEN_KEY, first.tokens),
            public: PublicKeyring::new(vec![public]),
        }
    }
}

/// The keys of an installation from before the keyring. They follow from its master key.
struct FirstKeys {
    sealing: [u8; 32],
    signing: SigningKey,
    tokens: TokenSecrets,
}

impl FirstKeys {
    fn derive_keys(master: &[u8; 32]) -> Self {
        let master = DigestKey::new(*master);
        let derive = |label: &[u8]| master.digest_bytes(label).0;
        Self {
            sealing: derive(b"cynode/seal/v1"),
            signing: SigningKey::from_bytes(&derive(b"cynode/audit-signing/v1")),
            tokens: TokenSecrets::without_hash_key(
                derive(b"cynode/request-state/v1"),
                derive(b"cynode/audit-digest/v1"),
            ),
        }
    }
}

impl fmt::Debug for InstallationKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

/// Associated data of the private key of the installation for web push.
pub(crate) const WEB_PUSH_KEY_PLACE: &[u8] = b"web-push-key";

/// Returns the associated data of the sealed secrets of a notification channel.
pub(crate) fn channel_associated_data(id: ChannelId) -> Vec<u8> {
    [b"notification-channel".as_slice(), id.as_uuid().as_bytes()].concat()
}

impl InstallationKeys {
    /// Seals a secret of a notification channel.
    pub(crate) fn seal_channel_secret(
        &self,
        environment: &AppEnvironment,
        id: ChannelId,
        secret: &str,
    ) -> Result<Vec<u8>, Error> {
        self.seal_secret(environment, &channel_associated_data(id), secret.as_bytes())
    }

    /// Unseals a secret of a notification channel.
    pub(crate) fn unseal_channel_secret(
        &self,
        id: ChannelId,
        sealed: &[u8],
    ) -> Result<String, Error> {
        let opened = self.unseal_secret(&channel_associated_data(id), sealed)?;
        String::from_utf8(opened).map_err(|error| Error::Internal(error.into()))
    }

    /// Seals the private key of the installation for web push.
    pub(crate) fn seal_web_push_key(
        &self,
        environment: &AppEnvironment,
        key: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.seal_secret(environment, WEB_PUSH_KEY_PLACE, key)
    }

    /// Unseals the private key of the installation for web push.
    pub(crate) fn unseal_web_push_key(&self, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        self.unseal_secret(WEB_PUSH_KEY_PLACE, sealed)
    }

    /// Unseals both secrets of a notification channel: the current one and the previous one.
    pub(crate) fn unseal_channel_secrets(
        &self,
        channel: &NotificationChannel,
    ) -> Result<Vec<SecretString>, Error> {
        let old = channel.old.as_ref().map(|(old, _)| old);
        let sealed = channel.sealed.iter().chain(old);
        sealed.map(|sealed| Ok(self.unseal_channel_secret(channel.id, sealed)?.into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_for_one_place_opens_there_and_nowhere_else() {
        let (keys, environment) =
            (InstallationKeys::from_master(&[7; 32]), AppEnvironment::from_system());
        let sealed = keys.seal_secret(&environment, b"here", b"secret").unwrap();
        assert_eq!(keys.unseal_secret(b"here", &sealed).unwrap(), b"secret");
        assert!(keys.unseal_secret(b"there", &sealed).is_err());
        assert!(InstallationKeys::from_master(&[8; 32]).unseal_secret(b"here", &sealed).is_err());
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
    }

    #[test]
    fn a_sealed_secret_names_its_key_and_another_name_is_refused() {
        let (keys, environment) =
            (InstallationKeys::from_master(&[7; 32]), AppEnvironment::from_system());
        let sealed = keys.seal_secret(&environment, b"here", b"secret").unwrap();
        assert_eq!(sealing_key_of(&sealed), FIRST_MASTER_KEY);
        let mut renamed = sealed.clone();
        renamed[8..24].copy_from_slice(Uuid::from_u128(9).as_bytes());
        assert_eq!(sealing_key_of(&renamed), Uuid::from_u128(9));
        assert!(keys.unseal_secret(b"here", &renamed).is_err());
        // Without its name it is not a secret of an earlier version.
        assert!(keys.unseal_secret(b"here", &sealed[24..]).is_err());
    }

    #[test]
    fn a_secret_of_an_earlier_version_opens_with_the_first_key() {
        let keys = InstallationKeys::from_master(&[7; 32]);
        let seal = FirstKeys::derive_keys(&[7; 32]).sealing;
        let nonce = [5; NONCE_BYTES];
        let cipher = XChaCha20Poly1305::new(&seal.into());
        let sealed = cipher.encrypt(&nonce.into(), Payload { msg: b"secret", aad: b"here" });
        let sealed = [nonce.as_slice(), &sealed.unwrap()].concat();
        assert_eq!(sealing_key_of(&sealed), FIRST_MASTER_KEY);
        assert_eq!(keys.unseal_secret(b"here", &sealed).unwrap(), b"secret");
    }
}
