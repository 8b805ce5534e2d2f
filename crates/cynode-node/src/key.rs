//! The node's Ed25519 key. It is generated on the node and never leaves it.

use std::{io, path::Path};

use cynode_core::ids::NodeId;
use cynode_wire::nodes::signed_bytes;
use data_encoding::HEXLOWER;
use ed25519_dalek::{Signer, SigningKey};

use crate::store::write_new;

/// Error of the key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("the key file {path} cannot be used")]
    File {
        /// Path of the file.
        path: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The file contains no valid key.
    #[error("{0} holds no key: 64 hexadecimal digits")]
    Malformed(String),
}

/// Ed25519 signing key of the node.
#[derive(Clone)]
pub struct NodeKey(SigningKey);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[key]")
    }
}

impl NodeKey {
    /// Loads the key, or generates one if there is none. Two concurrent processes get the same key.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        match Self::load_key(path) {
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        let text = HEXLOWER.encode(&rand::random::<[u8; 32]>());
        match write_new(path, text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(KeyError::File { path: path.display().to_string(), source: error })
            }
            _ => Self::load_key(path),
        }
    }

    /// Loads the key.
    pub fn load_key(path: &Path) -> Result<Self, KeyError> {
        let named = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeyError::File { path: named.clone(), source })?;
        let bytes = HEXLOWER.decode(text.trim().as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let bytes = bytes.ok_or(KeyError::Malformed(named))?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// Returns the public key in hexadecimal.
    pub fn public_key_hex(&self) -> String {
        HEXLOWER.encode(self.0.verifying_key().as_bytes())
    }

    /// Returns the private key, for TLS.
    pub(crate) fn secret_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Signs a challenge and returns the signature in hexadecimal.
    pub fn sign_challenge(&self, node: NodeId, challenge: &str) -> String {
        HEXLOWER.encode(&self.0.sign(&signed_bytes(node, challenge)).to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let first = NodeKey::load_or_create(&path).unwrap();
        let again = NodeKey::load_or_create(&path).unwrap();
        assert_eq!(first.public_key_hex(), again.public_key_hex());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_holds_something_else_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(NodeKey::load_or_create(&path), Err(KeyError::Malformed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
