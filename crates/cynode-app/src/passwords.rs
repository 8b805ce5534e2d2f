use argon2::{
    Argon2, PasswordHasher, PasswordVerifier,
    password_hash::phc::PasswordHash,
};
use cynode_wire::accounts::SecretText;

use crate::{App, Error};

/// A password that may be stored: argon2id with the parameters that OWASP recommends.
#[derive(Clone)]
pub struct HashedPassword(String);

impl HashedPassword {
    /// The hash in PHC form.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is checked when no such user exists, so that the answer takes as long as for one who does.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

impl App {
    /// Hashes a password that obeys the rule: 12 to 256 characters. No connection is held meanwhile.
    pub async fn hash_password(&self, password: &SecretText) -> Result<HashedPassword, Error> {
        if !(12..=256).contains(&password.0.chars().count()) {
            return Err(Error::Invalid("a password has 12 to 256 characters".into()));
        }
        let (password, salt) = (password.0.clone(), self.environment().bytes::<16>());
        let hash = self.on_a_hashing_thread(move || {
            let hash: PasswordHash =
                Argon2::default().hash_password_with_salt(password.as_bytes(), &salt)?;
            Ok::<_, argon2::password_hash::Error>(hash.to_string())
        });
        match hash.await? {
            Ok(hash) => Ok(HashedPassword(hash)),
            Err(error) => Err(Error::Internal(anyhow::anyhow!("hashing failed: {error}"))),
        }
    }

    /// Whether the password is the one that was hashed; with no hash it takes as long and is wrong.
    pub(crate) async fn verify_password(
        &self,
        password: &SecretText,
        stored: Option<String>,
    ) -> Result<bool, Error> {
        let password = password.0.clone();
        self.on_a_hashing_thread(move || {
            let known = stored.is_some();
            let stored = stored.unwrap_or_else(|| NOBODY.to_owned());
            let good = PasswordHash::new(&stored)
                .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok());
            known && good
        })
        .await
    }

    async fn on_a_hashing_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let permit = self.hashing().acquire_owned().await.map_err(|e| Error::Internal(e.into()))?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        done.await.map_err(|e| Error::Internal(e.into()))
    }
}
