//! The master key, which wraps every key of the keyring. It is in a file, in a systemd credential, or in a key management service.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use cynode_audit::DigestKey;
use cynode_core::sync::lock_unpoisoned;
use data_encoding::HEXLOWER;

use super::NONCE_BYTES;
use crate::AppEnvironment;

/// First part of the versions of master keys that this process holds itself.
const LOCAL_PREFIX: &str = "local:";

/// Future of an operation of a master key.
pub type MasterKeyFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, MasterKeyError>> + Send + 'a>>;

/// Reason why the master key could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MasterKeyError {
    /// This version of the master key is not there.
    #[error("the master key `{0}` is not there")]
    UnknownVersion(String),
    /// Something was not wrapped by this version of the master key, or was changed.
    #[error(
        "the master key does not open a key of the installation: it is another key, or the database was changed"
    )]
    DoesNotOpen,
    /// The master key cannot be rotated here.
    #[error("{0}")]
    NotRotatable(String),
    /// The file or the service does not answer as it should.
    #[error("the master key cannot be used: {0}")]
    Unavailable(String),
}

/// A master key with its versions. It wraps and unwraps keys, and nobody needs to see it for that.
pub trait MasterKeyService: Send + Sync {
    /// Returns the version that wraps the keys of a new installation.
    fn current_version(&self) -> MasterKeyFuture<'_, String>;

    /// Returns the version after the current one, and creates it if it is not there.
    fn next_version(&self) -> MasterKeyFuture<'_, String>;

    /// Wraps key material with a version. The context must be the same to unwrap it.
    fn wrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        material: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>>;

    /// Unwraps key material.
    fn unwrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        wrapped: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>>;

    /// Makes a version the only one, when nothing is wrapped by an earlier one any more.
    fn finish_rotation<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, ()>;

    /// Returns whether a version that wraps the keys is in the place of the current one and no earlier one opens anything, so that a
    /// rotation has no end to wait for. That there is a newer version says nothing about our keys.
    fn is_promoted<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, bool>;

    /// Returns where a version is: `file`, `credential`, `vault`.
    fn place_of(&self, version: &str) -> &'static str;

    /// Returns whether a version is one of this service.
    fn owns_version(&self, version: &str) -> bool;

    /// Returns the secret from which the keys of an installation from before the keyring follow.
    fn first_secret(&self) -> Option<[u8; 32]> {
        None
    }
}

/// Place of master keys that this process reads: files, or a credential.
pub trait LocalKeyStore: Send + Sync {
    /// Reads the keys: the current one first, then the next one, if it is there, then earlier ones.
    fn read_keys(&self) -> Result<Vec<[u8; 32]>, MasterKeyError>;

    /// Returns what kind of place it is.
    fn place_name(&self) -> &'static str;

    /// Stores the next key beside the current one. Does nothing if there is a next one already.
    fn store_next(&self, key: &[u8; 32]) -> Result<(), MasterKeyError>;

    /// Puts a key in the place of the current one, which is set aside. Does nothing if it is the current one.
    fn promote_key(&self, key: &[u8; 32]) -> Result<(), MasterKeyError>;
}

/// Master keys that this process holds itself.
pub struct LocalMasterKeys {
    store: Box<dyn LocalKeyStore>,
    environment: AppEnvironment,
    /// Keys that were read, in the order of the store.
    keys: Mutex<Vec<[u8; 32]>>,
}

impl LocalMasterKeys {
    /// Creates the service over a place of keys. Nothing is read before the first use.
    pub fn new(store: Box<dyn LocalKeyStore>, environment: AppEnvironment) -> Self {
        Self { store, environment, keys: Mutex::default() }
    }

    /// Returns the version of a key: it names the key and tells nothing about it.
    pub fn version_of(key: &[u8; 32]) -> String {
        let id = DigestKey::new(*key).digest_bytes(b"cynode/master-key-id/v1").0;
        format!("{LOCAL_PREFIX}{}", HEXLOWER.encode(&id[..8]))
    }

    fn read_keys(&self) -> Result<Vec<[u8; 32]>, MasterKeyError> {
        let keys = self.store.read_keys()?;
        lock_unpoisoned(&self.keys).clone_from(&keys);
        Ok(keys)
    }

    /// Returns the key of a version. The place is read again if the version is new: another process may have begun a rotation.
    fn find_key(&self, version: &str) -> Result<[u8; 32], MasterKeyError> {
        let find =
            |keys: &[[u8; 32]]| keys.iter().find(|key| Self::version_of(key) == version).copied();
        let found = find(&lock_unpoisoned(&self.keys));
        match found {
            Some(key) => Ok(key),
            None => find(&self.read_keys()?)
                .ok_or_else(|| MasterKeyError::UnknownVersion(version.to_owned())),
        }
    }

    fn current_key(&self) -> Result<[u8; 32], MasterKeyError> {
        let keys = self.read_keys()?;
        keys.first().copied().ok_or_else(|| MasterKeyError::Unavailable("there is none".into()))
    }

    fn create_next(&self) -> Result<String, MasterKeyError> {
        let before = self.current_key()?;
        self.store.store_next(&self.environment.random_bytes::<32>())?;
        let keys = self.read_keys()?;
        let next = keys.get(1).filter(|key| **key != before);
        next.map(Self::version_of)
            .ok_or_else(|| MasterKeyError::Unavailable("the next one was not stored".into()))
    }

    fn wrap_locally(
        &self,
        version: &str,
        context: &[u8],
        material: &[u8],
    ) -> Result<Vec<u8>, MasterKeyError> {
        let nonce = self.environment.random_bytes::<NONCE_BYTES>();
        let cipher = wrapping_cipher(&self.find_key(version)?);
        let sealed = cipher.encrypt(&nonce.into(), Payload { msg: material, aad: context });
        let sealed = sealed.map_err(|_| MasterKeyError::Unavailable("cannot encrypt".into()))?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    fn unwrap_locally(
        &self,
        version: &str,
        context: &[u8],
        wrapped: &[u8],
    ) -> Result<Vec<u8>, MasterKeyError> {
        let cipher = wrapping_cipher(&self.find_key(version)?);
        let (nonce, sealed) =
            wrapped.split_first_chunk::<NONCE_BYTES>().ok_or(MasterKeyError::DoesNotOpen)?;
        let opened = cipher.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: context });
        opened.map_err(|_| MasterKeyError::DoesNotOpen)
    }
}

/// Returns the cipher that wraps keys. Its key is not one of those that were derived in earlier versions.
fn wrapping_cipher(master: &[u8; 32]) -> XChaCha20Poly1305 {
    let key = DigestKey::new(*master).digest_bytes(b"cynode/key-wrapping/v1").0;
    XChaCha20Poly1305::new(&key.into())
}

impl MasterKeyService for LocalMasterKeys {
    fn current_version(&self) -> MasterKeyFuture<'_, String> {
        Box::pin(async move { self.current_key().map(|key| Self::version_of(&key)) })
    }

    fn next_version(&self) -> MasterKeyFuture<'_, String> {
        Box::pin(async move { self.create_next() })
    }

    fn wrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        material: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move { self.wrap_locally(version, context, material) })
    }

    fn unwrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        wrapped: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move { self.unwrap_locally(version, context, wrapped) })
    }

    fn finish_rotation<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, ()> {
        Box::pin(async move {
            let key = self.find_key(version)?;
            self.store.promote_key(&key)?;
            self.read_keys().map(drop)
        })
    }

    fn is_promoted<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, bool> {
        Box::pin(async move { self.current_key().map(|key| Self::version_of(&key) == version) })
    }

    fn owns_version(&self, version: &str) -> bool {
        version.starts_with(LOCAL_PREFIX)
    }

    fn place_of(&self, _: &str) -> &'static str {
        self.store.place_name()
    }

    fn first_secret(&self) -> Option<[u8; 32]> {
        // A next key never was the secret of an installation: the current one is first.
        self.current_key().ok()
    }
}

impl fmt::Debug for LocalMasterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalMasterKeys(..)")
    }
}

/// Keys in memory, for tests and for programs that were given a key.
pub struct FixedKeyStore(Mutex<Vec<[u8; 32]>>);

impl FixedKeyStore {
    /// Creates a place that holds one key.
    pub fn new(key: [u8; 32]) -> Self {
        Self(Mutex::new(vec![key]))
    }
}

impl LocalKeyStore for FixedKeyStore {
    fn read_keys(&self) -> Result<Vec<[u8; 32]>, MasterKeyError> {
        Ok(lock_unpoisoned(&self.0).clone())
    }

    fn place_name(&self) -> &'static str {
        "memory"
    }

    fn store_next(&self, key: &[u8; 32]) -> Result<(), MasterKeyError> {
        let mut keys = lock_unpoisoned(&self.0);
        if keys.len() < 2 {
            keys.push(*key);
        }
        Ok(())
    }

    fn promote_key(&self, key: &[u8; 32]) -> Result<(), MasterKeyError> {
        *lock_unpoisoned(&self.0) = vec![*key];
        Ok(())
    }
}

/// A master key and the one that it replaces, which only opens.
pub struct CombinedMasterKeys {
    primary: Arc<dyn MasterKeyService>,
    previous: Arc<dyn MasterKeyService>,
}

impl CombinedMasterKeys {
    /// Creates the pair.
    pub fn new(primary: Arc<dyn MasterKeyService>, previous: Arc<dyn MasterKeyService>) -> Self {
        Self { primary, previous }
    }
}

impl MasterKeyService for CombinedMasterKeys {
    fn current_version(&self) -> MasterKeyFuture<'_, String> {
        self.previous.current_version()
    }

    fn next_version(&self) -> MasterKeyFuture<'_, String> {
        // The primary key takes over as it is: it has wrapped nothing yet.
        self.primary.current_version()
    }

    fn wrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        material: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move {
            if self.primary.owns_version(version) {
                let wrapped = self.primary.wrap_key(version, context, material).await;
                if !matches!(wrapped, Err(MasterKeyError::UnknownVersion(_))) {
                    return wrapped;
                }
            }
            self.previous.wrap_key(version, context, material).await
        })
    }

    fn unwrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        wrapped: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move {
            if self.primary.owns_version(version) {
                let opened = self.primary.unwrap_key(version, context, wrapped).await;
                if !matches!(opened, Err(MasterKeyError::UnknownVersion(_))) {
                    return opened;
                }
            }
            self.previous.unwrap_key(version, context, wrapped).await
        })
    }

    fn finish_rotation<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, ()> {
        self.primary.finish_rotation(version)
    }

    fn is_promoted<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, bool> {
        Box::pin(async move {
            // Before the rotation the previous key wraps, and nothing has begun.
            for owner in [&self.previous, &self.primary] {
                if owner.owns_version(version) && owner.is_promoted(version).await? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn owns_version(&self, version: &str) -> bool {
        self.primary.owns_version(version) || self.previous.owns_version(version)
    }

    fn place_of(&self, version: &str) -> &'static str {
        let owner = if self.primary.owns_version(version) { &self.primary } else { &self.previous };
        owner.place_of(version)
    }

    fn first_secret(&self) -> Option<[u8; 32]> {
        self.previous.first_secret()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(key: [u8; 32]) -> LocalMasterKeys {
        LocalMasterKeys::new(Box::new(FixedKeyStore::new(key)), AppEnvironment::from_system())
    }

    #[tokio::test]
    async fn a_key_opens_with_its_version_and_context_only() {
        let keys = local([7; 32]);
        let version = keys.current_version().await.unwrap();
        let wrapped = keys.wrap_key(&version, b"context", b"material").await.unwrap();
        assert_eq!(keys.unwrap_key(&version, b"context", &wrapped).await.unwrap(), b"material");
        let other = keys.unwrap_key(&version, b"other", &wrapped).await;
        assert_eq!(other, Err(MasterKeyError::DoesNotOpen));
        let unknown = local([8; 32]).unwrap_key(&version, b"context", &wrapped).await;
        assert_eq!(unknown, Err(MasterKeyError::UnknownVersion(version)));
    }

    #[tokio::test]
    async fn a_rotation_is_unfinished_until_its_version_is_the_current_one() {
        let keys = local([7; 32]);
        let old = keys.current_version().await.unwrap();
        let next = keys.next_version().await.unwrap();
        assert_eq!(keys.is_promoted(&old).await, Ok(true), "nothing is wrapped by the next one");
        assert_eq!(keys.is_promoted(&next).await, Ok(false));
        keys.finish_rotation(&next).await.unwrap();
        assert_eq!(keys.is_promoted(&next).await, Ok(true));

        // From one place to another: neither before nor after is an end missing.
        let (primary, previous) = (local([8; 32]), local([7; 32]));
        let new = primary.current_version().await.unwrap();
        let both = CombinedMasterKeys::new(Arc::new(primary), Arc::new(previous));
        assert_eq!(both.is_promoted(&old).await, Ok(true));
        assert_eq!(both.is_promoted(&new).await, Ok(true));
    }

    #[tokio::test]
    async fn the_old_version_is_gone_when_a_rotation_is_finished() {
        let keys = local([7; 32]);
        let old = keys.current_version().await.unwrap();
        let wrapped = keys.wrap_key(&old, b"", b"material").await.unwrap();
        let next = keys.next_version().await.unwrap();
        assert_eq!(keys.next_version().await.unwrap(), next, "there is one next version");
        assert_eq!(keys.unwrap_key(&old, b"", &wrapped).await.unwrap(), b"material");
        keys.finish_rotation(&next).await.unwrap();
        assert_eq!(keys.current_version().await.unwrap(), next);
        let gone = keys.unwrap_key(&old, b"", &wrapped).await;
        assert_eq!(gone, Err(MasterKeyError::UnknownVersion(old)));
    }
}
