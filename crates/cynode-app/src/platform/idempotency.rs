//! Idempotency keys: the same request sent again gets the stored answer and has no second effect.

use chacha20poly1305::{KeyInit, XChaCha20Poly1305, aead::Aead};
use cynode_db::platform::{
    idempotency as stored,
    idempotency::{IdempotencyKey, IdempotencyRecord},
};
use sha2::{Digest, Sha256};

use crate::{Ctx, Error, OperationRequest};

/// Identifies a repeat of a request.
///
/// Both digests are keyed with the caller's token, which is not stored. A thief of the database cannot guess the
/// content of a request (which may hold a password) and cannot open a sealed answer.
#[derive(Clone, Debug)]
pub struct IdempotentAttempt {
    key: String,
    request_digest: [u8; 32],
    seal: [u8; 32],
}

/// Answer of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationAnswer {
    /// Body as JSON.
    pub body: Vec<u8>,
    /// Whether it is a stored answer to an earlier request.
    pub replayed: bool,
}

/// Whether an answer may be stored in plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerSecrecy {
    /// It may be stored in plain text.
    Open,
    /// It holds a secret and is sealed.
    Sealed,
}

impl IdempotentAttempt {
    /// Maximum number of characters of a key.
    pub const MAX_KEY_CHARS: usize = 200;

    /// Creates the attempt that `key` names. `token` is the caller's credential, `request` the request as parts.
    /// Parts cannot run into each other.
    pub fn new(key: &str, token: &str, request: &[&[u8]]) -> Result<Self, Error> {
        let good = (1..=Self::MAX_KEY_CHARS).contains(&key.len())
            && key.bytes().all(|b| b.is_ascii_graphic());
        if !good {
            return Err(Error::Invalid(format!(
                "an Idempotency-Key has 1 to {} printable characters without spaces",
                Self::MAX_KEY_CHARS
            )));
        }
        let seal = digest_parts(&[b"cynode seal v1", token.as_bytes(), key.as_bytes()]);
        let mut parts: Vec<&[u8]> = vec![b"cynode request v1", &seal];
        parts.extend_from_slice(request);
        Ok(Self { key: key.to_owned(), request_digest: digest_parts(&parts), seal })
    }

    pub(crate) fn to_stored_key(&self, request: &OperationRequest) -> IdempotencyKey {
        let (actor, key) = (request.idempotency_owner(), self.key.clone());
        IdempotencyKey { actor, key, request_digest: self.request_digest }
    }

    fn build_cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.seal.into())
    }
}

/// Stores the answer in the transaction of the operation. Returns `false` when the key was used before.
pub(crate) async fn store_answer(
    ctx: &mut Ctx,
    request: &OperationRequest,
    attempt: &IdempotentAttempt,
    secrecy: AnswerSecrecy,
    body: &[u8],
) -> Result<bool, Error> {
    let answer = match secrecy {
        AnswerSecrecy::Open => body.to_vec(),
        AnswerSecrecy::Sealed => {
            let nonce = ctx.environment().random_bytes::<24>();
            let cipher = attempt.build_cipher().encrypt(&nonce.into(), body);
            let cipher =
                cipher.map_err(|e| Error::Internal(anyhow::anyhow!("sealing failed: {e}")))?;
            [nonce.as_slice(), &cipher].concat()
        }
    };
    let (now, expires_at) = (ctx.now, ctx.now + ctx.policy.idempotency_lifetime);
    let keep = IdempotencyRecord { key: attempt.to_stored_key(request), answer, expires_at };
    Ok(stored::store_answer(ctx.conn(), &keep, now).await?)
}

/// Returns the stored answer to the same request.
pub(crate) async fn find_stored_answer(
    ctx: &mut Ctx,
    request: &OperationRequest,
    attempt: &IdempotentAttempt,
    secrecy: AnswerSecrecy,
) -> Result<Option<OperationAnswer>, Error> {
    let now = ctx.now;
    let Some(kept) =
        stored::find_stored_answer(ctx.conn(), &attempt.to_stored_key(request), now).await?
    else {
        return Ok(None);
    };
    if kept.request_digest != attempt.request_digest {
        return Err(Error::IdempotencyKeyReused);
    }
    let body = match secrecy {
        AnswerSecrecy::Open => kept.answer,
        AnswerSecrecy::Sealed => {
            let (nonce, cipher) =
                kept.answer.split_first_chunk::<24>().ok_or(Error::IdempotencyKeyReused)?;
            attempt
                .build_cipher()
                .decrypt(&(*nonce).into(), cipher)
                .map_err(|_| Error::IdempotencyKeyReused)?
        }
    };
    Ok(Some(OperationAnswer { body, replayed: true }))
}

/// Hashes parts. The length of each part precedes it, so that none runs into the next.
fn digest_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
