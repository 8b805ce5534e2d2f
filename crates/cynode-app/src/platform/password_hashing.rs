//! Password hashing with argon2id. Limits bound how many hashes run and how many wait, in total and per source: a flood
//! of logins is refused as overload, and the flood of one source leaves places for others.

use std::sync::Arc;

use argon2::{
    Algorithm, Argon2, Block, Params, Version,
    password_hash::phc::{Output, PasswordHash, Salt},
};
use cynode_core::roles::UserRole;
use cynode_net::{concurrency::ConcurrencyLimiter, server::ClientSource};
use cynode_wire::identity::accounts::SecretText;
use tokio::sync::Semaphore;

use crate::{App, Error, OperationRequest};

/// A password hash that may be stored: argon2id with the parameters that OWASP recommends.
#[derive(Clone)]
pub struct HashedPassword(String);

impl HashedPassword {
    /// Returns the hash in PHC format.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hash that is checked for an unknown user, so that the answer takes as long as for a known one.
const DUMMY_PASSWORD_HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Number of KiB blocks above the 32 MiB threshold of the system's allocator: it maps such an allocation directly and
/// returns it at once, while it retains smaller ones. Unused blocks take no memory.
const MIN_HASH_BLOCKS: usize = 33 * 1024;

fn hash_with_salt(password: &[u8], salt: &[u8], params: Params) -> argon2::Result<[u8; 32]> {
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let needed = argon2.params().block_count();
    let mut blocks = Vec::with_capacity(needed.max(MIN_HASH_BLOCKS));
    blocks.resize(needed, Block::default());
    let mut output = [0; 32];
    argon2.hash_password_into_with_memory(password, salt, &mut output, &mut blocks)?;
    Ok(output)
}

fn verify_against_hash(password: &[u8], stored: &str) -> bool {
    let Ok(stored) = PasswordHash::new(stored) else { return false };
    let (Some(salt), Some(expected)) = (&stored.salt, &stored.hash) else { return false };
    let Ok(params) = Params::try_from(&stored) else { return false };
    let Ok(output) = hash_with_salt(password, salt.as_ref(), params) else { return false };
    // `Output` compares in constant time.
    Output::new(&output).is_ok_and(|output| output == *expected)
}

/// Maximum number of passwords of authenticated callers that wait or are hashed.
const MAX_CALLER_HASHES: usize = 32;

/// Maximum number of logins that wait or are verified. It is more than one source and this machine have together.
const MAX_LOGINS: usize = 64;

/// Maximum number of logins from this machine. All who come through a proxy that is not trusted share them.
const MAX_LOCAL_LOGINS: usize = 32;

/// Maximum number of logins from one source on another machine.
const MAX_LOGINS_PER_SOURCE: usize = 8;

/// What hashes are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HashingScope {
    /// Those of authenticated callers.
    Callers,
    /// Logins.
    Logins,
    /// Logins of a source.
    Source(ClientSource),
}

/// Hashes passwords. A hash takes a core and 19 MiB; hashes run one at a time, and a bounded number may wait.
/// Anonymous logins are counted apart, so that they cannot take the places of authenticated callers.
#[derive(Clone)]
pub(crate) struct PasswordHashing {
    places: ConcurrencyLimiter<HashingScope>,
    turn: Arc<Semaphore>,
}

impl Default for PasswordHashing {
    fn default() -> Self {
        Self { places: ConcurrencyLimiter::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

/// Returns the limits of a login from a source.
fn login_limits(source: ClientSource) -> [(HashingScope, usize); 2] {
    let own = if source.is_local() { MAX_LOCAL_LOGINS } else { MAX_LOGINS_PER_SOURCE };
    [(HashingScope::Source(source), own), (HashingScope::Logins, MAX_LOGINS)]
}

fn to_phc_string(output: &[u8], salt: &[u8]) -> Option<String> {
    let params = Params::default();
    let hash = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: (&params).try_into().ok()?,
        salt: Some(Salt::new(salt).ok()?),
        hash: Some(Output::new(output).ok()?),
    };
    Some(hash.to_string())
}

impl App {
    /// Hashes a password for an admin. Other callers must not be able to keep the hasher busy.
    pub async fn hash_for_admin(
        &self,
        request: &OperationRequest,
        password: &SecretText,
    ) -> Result<HashedPassword, Error> {
        let caller = request.caller.ok_or(Error::Unauthenticated)?;
        if caller.role < Some(UserRole::Admin) {
            return Err(Error::forbidden(UserRole::Admin, "in the installation"));
        }
        self.hash_password(password).await
    }

    /// Hashes a password of 12 to 256 characters for an authenticated caller. No database connection is held
    /// meanwhile.
    pub async fn hash_password(&self, password: &SecretText) -> Result<HashedPassword, Error> {
        if !(12..=256).contains(&password.0.chars().count()) {
            return Err(Error::Invalid("a password has 12 to 256 characters".into()));
        }
        let (password, salt) = (password.0.clone(), self.environment().random_bytes::<16>());
        let limits = [(HashingScope::Callers, MAX_CALLER_HASHES)];
        let hash = self.run_on_hashing_thread(limits, move || {
            let output = hash_with_salt(password.as_bytes(), &salt, Params::default()).ok()?;
            to_phc_string(&output, &salt)
        });
        let failed = || Error::Internal(anyhow::anyhow!("hashing a password failed"));
        hash.await?.map(HashedPassword).ok_or_else(failed)
    }

    /// Verifies a password from a source against its hash. Without a hash it takes as long and fails.
    pub(crate) async fn verify_password(
        &self,
        password: &SecretText,
        stored: Option<String>,
        source: ClientSource,
    ) -> Result<bool, Error> {
        let password = password.0.clone();
        self.run_on_hashing_thread(login_limits(source), move || {
            let known = stored.is_some();
            let good = verify_against_hash(
                password.as_bytes(),
                stored.as_deref().unwrap_or(DUMMY_PASSWORD_HASH),
            );
            known && good
        })
        .await
    }

    async fn run_on_hashing_thread<T: Send + 'static>(
        &self,
        limits: impl IntoIterator<Item = (HashingScope, usize)>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let PasswordHashing { places, turn } = self.password_hashing();
        // A flood of logins must not queue without bound in front of the rightful user.
        let place = places.try_acquire(limits).map_err(|_| Error::Overloaded)?;
        let turn = turn.acquire_owned().await.map_err(|e| Error::Internal(e.into()))?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop((turn, place));
            result
        });
        done.await.map_err(|e| Error::Internal(e.into()))
    }
}

#[cfg(test)]
mod tests {
    use argon2::{PasswordHasher, PasswordVerifier};

    use super::*;

    #[test]
    fn waiting_logins_of_one_source_leave_places_for_others() {
        let places = PasswordHashing::default().places;
        let source = |text: &str| ClientSource::from_address(text.parse().unwrap());
        let attacker = login_limits(source("192.0.2.7"));
        let waiting: Vec<_> = (0..40).filter_map(|_| places.try_acquire(attacker).ok()).collect();
        assert_eq!(waiting.len(), MAX_LOGINS_PER_SOURCE);
        let local: Vec<_> = (0..40)
            .filter_map(|_| places.try_acquire(login_limits(ClientSource::LOCAL)).ok())
            .collect();
        assert_eq!(local.len(), MAX_LOCAL_LOGINS);
        places.try_acquire(login_limits(source("192.0.2.8"))).unwrap();
        places.try_acquire([(HashingScope::Callers, MAX_CALLER_HASHES)]).unwrap();
    }

    #[test]
    fn our_hash_is_what_the_library_makes_and_verifies() {
        let salt = [7; 16];
        let output = hash_with_salt(b"correct horse battery", &salt, Params::default()).unwrap();
        let ours = to_phc_string(&output, &salt).unwrap();
        let theirs: PasswordHash =
            Argon2::default().hash_password_with_salt(b"correct horse battery", &salt).unwrap();
        assert_eq!(ours, theirs.to_string());
        let parsed = PasswordHash::new(&ours).unwrap();
        assert!(Argon2::default().verify_password(b"correct horse battery", &parsed).is_ok());
        assert!(verify_against_hash(b"correct horse battery", &ours));
        assert!(!verify_against_hash(b"wrong horse battery", &ours));
        assert!(!verify_against_hash(b"correct horse battery", "nonsense"));
        assert!(!verify_against_hash(b"", DUMMY_PASSWORD_HASH));
    }
}
