//! Repeats: the same request sent again gives the same answer and has no second effect.

use chacha20poly1305::{KeyInit, XChaCha20Poly1305, aead::Aead};
use cynode_db::idempotency::{self as stored, Keep, Key};
use sha2::{Digest, Sha256};

use crate::{Ctx, Error, Request};

/// How a repeat is recognised.
///
/// Both digests are keyed with the caller's token, which is not stored: whoever steals the database
/// cannot try out what a request (which may hold a password) said, nor open a sealed answer.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: String,
    request_digest: [u8; 32],
    seal: [u8; 32],
}

/// The answer of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// JSON.
    pub body: Vec<u8>,
    /// Whether it was given before.
    pub replayed: bool,
}

/// Whether an answer may be kept as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// It may.
    Open,
    /// It holds a secret.
    Sealed,
}

impl Attempt {
    /// Most characters of a key.
    pub const MAX_KEY: usize = 200;

    /// The attempt that `key` names: `token` is what the caller authenticated with, `request` what was
    /// asked, as parts that cannot run into each other.
    pub fn new(key: &str, token: &str, request: &[&[u8]]) -> Result<Self, Error> {
        let good =
            (1..=Self::MAX_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
        if !good {
            return Err(Error::Invalid(format!(
                "an Idempotency-Key has 1 to {} printable characters without spaces",
                Self::MAX_KEY
            )));
        }
        let seal = digest(&[b"cynode seal v1", token.as_bytes(), key.as_bytes()]);
        let mut parts: Vec<&[u8]> = vec![b"cynode request v1", &seal];
        parts.extend_from_slice(request);
        Ok(Self { key: key.to_owned(), request_digest: digest(&parts), seal })
    }

    pub(crate) fn stored(&self, request: &Request) -> Key {
        let (actor, key) = (request.key_owner(), self.key.clone());
        Key { actor, key, request_digest: self.request_digest }
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.seal.into())
    }
}

/// Keeps the answer in the operation's transaction; `false` when the key was used before.
pub(crate) async fn keep(
    ctx: &mut Ctx,
    request: &Request,
    attempt: &Attempt,
    secrecy: Secrecy,
    body: &[u8],
) -> Result<bool, Error> {
    let answer = match secrecy {
        Secrecy::Open => body.to_vec(),
        Secrecy::Sealed => {
            let nonce = ctx.environment().bytes::<24>();
            let cipher = attempt.cipher().encrypt(&nonce.into(), body);
            let cipher =
                cipher.map_err(|e| Error::Internal(anyhow::anyhow!("sealing failed: {e}")))?;
            [nonce.as_slice(), &cipher].concat()
        }
    };
    let (now, expires_at) = (ctx.now, ctx.now + ctx.policy.idempotency_lifetime);
    let keep = Keep { key: attempt.stored(request), answer, expires_at };
    Ok(stored::keep(ctx.conn(), &keep, now).await?)
}

/// The answer that was given to the same request before.
pub(crate) async fn find(
    ctx: &mut Ctx,
    request: &Request,
    attempt: &Attempt,
    secrecy: Secrecy,
) -> Result<Option<Answer>, Error> {
    let now = ctx.now;
    let Some(kept) = stored::find(ctx.conn(), &attempt.stored(request), now).await? else {
        return Ok(None);
    };
    if kept.request_digest != attempt.request_digest {
        return Err(Error::KeyReused);
    }
    let body = match secrecy {
        Secrecy::Open => kept.answer,
        Secrecy::Sealed => {
            let (nonce, cipher) = kept.answer.split_first_chunk::<24>().ok_or(Error::KeyReused)?;
            attempt.cipher().decrypt(&(*nonce).into(), cipher).map_err(|_| Error::KeyReused)?
        }
    };
    Ok(Some(Answer { body, replayed: true }))
}

/// A digest of parts; each is preceded by its length, so that none runs into the next.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
