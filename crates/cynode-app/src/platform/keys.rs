//! Installation keys, derived from one master key. The database alone is not enough to read a sealed credential or to
//! forge or test a record.

use cynode_core::ids::ChannelId;
use cynode_db::notifications::NotificationChannel;
use secrecy::SecretString;
use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use cynode_audit::DigestKey;
use ed25519_dalek::{SigningKey, VerifyingKey};

use crate::{AppEnvironment, Error, platform::tag_key::TagKey};

/// Size of a nonce.
const NONCE_BYTES: usize = 24;

/// Keys of an installation. All its replicas have the same keys.
#[derive(Clone)]
pub struct InstallationKeys {
    seal: [u8; 32],
    tags: TagKey,
    digest: DigestKey,
    signing: SigningKey,
}

impl InstallationKeys {
    /// Derives every key from the master key. One key cannot be computed from another.
    pub fn from_master(master: &[u8; 32]) -> Self {
        let master = DigestKey::new(*master);
        let derive = |label: &[u8]| master.digest_bytes(label).0;
        Self {
            seal: derive(b"cynode/seal/v1"),
            tags: TagKey::new(derive(b"cynode/request-state/v1")),
            digest: DigestKey::new(derive(b"cynode/audit-digest/v1")),
            signing: SigningKey::from_bytes(&derive(b"cynode/audit-signing/v1")),
        }
    }

    /// Returns the key for digests of values that must not be stored.
    pub const fn digest_key(&self) -> &DigestKey {
        &self.digest
    }

    /// Returns the key that signs records.
    pub const fn signing_key(&self) -> &SigningKey {
        &self.signing
    }

    /// Returns the public key that verifies our signatures.
    pub fn verifying_key(&self) -> VerifyingKey {
        self.signing.verifying_key()
    }

    /// Returns the key of authentication tags.
    pub(crate) const fn tag_key(&self) -> &TagKey {
        &self.tags
    }

    /// Computes an authentication tag (MAC) over values that are handed out and must come back unchanged.
    pub fn compute_tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.tags.compute_tag(parts)
    }

    /// Verifies a tag in constant time.
    pub fn verify_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.tags.verify_tag(parts, tag)
    }

    /// Seals a credential with its place as associated data. Moved to another place, it cannot be opened.
    pub(crate) fn seal_secret(
        &self,
        environment: &AppEnvironment,
        place: &[u8],
        secret: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let nonce = environment.random_bytes::<NONCE_BYTES>();
        let cipher = XChaCha20Poly1305::new(&self.seal.into());
        let sealed = cipher.encrypt(&nonce.into(), Payload { msg: secret, aad: place });
        let sealed = sealed.map_err(|_| Error::Internal(anyhow::anyhow!("cannot encrypt")))?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Opens a credential that was sealed for this place.
    pub(crate) fn unseal_secret(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, Error> {
        let wrong = || {
            Error::Internal(anyhow::anyhow!(
                "a credential cannot be opened: was the master key changed?"
            ))
        };
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or_else(wrong)?;
        let cipher = XChaCha20Poly1305::new(&self.seal.into());
        let opened = cipher.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: place });
        opened.map_err(|_| wrong())
    }

    /// Opens a credential that is a text.
    pub(crate) fn unseal_text(&self, place: &[u8], sealed: &[u8]) -> Result<SecretString, Error> {
        let opened = self.unseal_secret(place, sealed)?;
        let text = String::from_utf8(opened).map_err(|error| Error::Internal(error.into()))?;
        Ok(text.into())
    }
}

impl fmt::Debug for InstallationKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

/// Associated data of the private key of the installation for web push.
const WEB_PUSH_KEY_PLACE: &[u8] = b"web-push-key";

/// Returns the associated data of the sealed secrets of a notification channel.
fn channel_associated_data(id: ChannelId) -> Vec<u8> {
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
}
