//! Signed heads of chains, and the proof that a chain was only appended to since an earlier head.

use std::collections::HashMap;

use cynode_audit::{AuditCheckpoint, ChainConsistencyProof, PublicAuditKey};
use cynode_core::{ids::ChainId, roles::UserRole};
use cynode_db::tools::audit::{self, AuditChainRow};
use cynode_wire::tools::audit::{
    AuditConsistency, AuditHead, AuditHeads, CheckpointView, PublicKeyView,
};

use super::{PublicKeyring, load_tree, rows};
use crate::{Ctx, Error, platform::operation};

pub(super) fn encode_hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// Lists the chains with their newest signed heads, newest chain first. A head shows no record.
#[tracing::instrument(name = "app.audit.list_audit_heads", skip_all)]
#[operation]
pub async fn list_audit_heads(
    ctx: &mut Ctx,
    keys: &PublicKeyring,
    chain: Option<ChainId>,
    limit: u16,
) -> Result<AuditHeads, Error> {
    ctx.require_role_anywhere(UserRole::Viewer).await?;
    let mut chains = match chain {
        Some(chain) => vec![require_chain(ctx, chain).await?],
        None => audit::list_chains(ctx.conn()).await?,
    };
    chains.reverse();
    let complete = chains.len() <= usize::from(limit);
    chains.truncate(usize::from(limit));
    let ids: Vec<_> = chains.iter().map(|row| row.chain).collect();
    let newest = audit::list_newest_checkpoints(ctx.conn(), &ids).await?;
    let mut newest: HashMap<_, _> = newest.iter().map(|row| (row.chain, row)).collect();
    let last = audit::last_chain(ctx.conn()).await?;
    let registry_head = last.map_or_else(String::new, |row| {
        let head = rows::to_chain_start(&row).registry_head();
        format!("{}:{}", head.number, encode_hex(&head.link))
    });
    let heads = chains.into_iter().map(|row| AuditHead {
        chain_id: ChainId::from_uuid(row.chain).to_string(),
        number: row.number,
        checkpoint: newest
            .remove(&row.chain)
            .map(|row| to_checkpoint_view(&rows::to_checkpoint(row))),
        writer: row.writer,
        started_at: row.started_at,
        pruned_at: row.pruned.map(|(at, ..)| at),
    });
    let heads = heads.collect();
    let public_keys = list_public_keys(keys);
    Ok(AuditHeads { public_key: active_key(keys), public_keys, registry_head, heads, complete })
}

/// Proves that a chain still begins with its first `from` records, by its signed head of `to` records or its newest one.
#[tracing::instrument(name = "app.audit.prove_append_only", skip_all)]
#[operation]
pub async fn prove_append_only(
    ctx: &mut Ctx,
    keys: &PublicKeyring,
    chain: ChainId,
    from: u64,
    to: Option<u64>,
) -> Result<AuditConsistency, Error> {
    ctx.require_role_anywhere(UserRole::Viewer).await?;
    if from == 0 || to.is_some_and(|to| from > to) {
        return Err(Error::Invalid("`from` is 1 to `to`".into()));
    }
    if require_chain(ctx, chain).await?.pruned.is_some() {
        return Err(Error::Conflict(
            "the records of this chain were removed when their retention was over: nothing more can be proven about it",
        ));
    }
    let signed = audit::list_audit_checkpoints(ctx.conn(), chain.as_uuid()).await?;
    let signed: Vec<_> = signed.iter().map(rows::to_checkpoint).collect();
    let newest = signed.last().map_or(0, |head| head.size);
    let needed = to.unwrap_or(from);
    if needed > newest {
        return Err(Error::ChainTruncated { needed, present: newest });
    }
    let to = to.unwrap_or(newest);
    let head = signed.into_iter().rfind(|head| head.size == to).ok_or_else(|| {
        Error::Invalid(format!(
            "`to`: no head of {to} records was signed, `/v1/audit/head` names one"
        ))
    })?;
    let tree = load_tree(ctx.conn(), chain.as_uuid(), head.size).await?;
    if tree.leaf_count() < head.size {
        return Err(Error::ChainTruncated { needed: head.size, present: tree.leaf_count() });
    }
    let proof = ChainConsistencyProof::prove_append_only(chain.as_uuid(), &tree, from)
        .map_err(|error| Error::Internal(error.into()))?;
    Ok(AuditConsistency {
        chain_id: chain.to_string(),
        from: proof.from,
        to: proof.to,
        path: proof.path.iter().map(|hash| encode_hex(hash)).collect(),
        checkpoint: to_checkpoint_view(&head),
        public_key: signer_of(keys, &head),
    })
}

/// Returns the public keys of the installation as they are shown, those of earlier signatures too.
pub(super) fn list_public_keys(keys: &PublicKeyring) -> Vec<PublicKeyView> {
    let view = |key: &PublicAuditKey| PublicKeyView {
        key_id: key.key_id.to_string(),
        public_key: encode_hex(key.public_key.as_bytes()),
        retired_at: key.retired_at,
        introduced_by: key.introduction.as_ref().map(|it| it.by.to_string()),
        introduction: key.introduction.as_ref().map(|it| encode_hex(&it.signature)),
        endorsed_by: key.endorsement.as_ref().map(|it| it.by.to_string()),
        endorsement: key.endorsement.as_ref().map(|it| encode_hex(&it.signature)),
    };
    keys.public_keys().iter().map(view).collect()
}

/// Returns the public key of today's signatures: the newest that is not retired.
pub(super) fn active_key(keys: &PublicKeyring) -> String {
    let newest = keys.public_keys().iter().rfind(|key| key.retired_at.is_none());
    newest.map(|key| encode_hex(key.public_key.as_bytes())).unwrap_or_default()
}

/// Returns the public key of the signature of a head; nothing if none of ours signed it.
pub(super) fn signer_of(keys: &PublicKeyring, head: &AuditCheckpoint) -> String {
    keys.verify_checkpoint(head).map(|key| encode_hex(key.as_bytes())).unwrap_or_default()
}

async fn require_chain(ctx: &mut Ctx, chain: ChainId) -> Result<AuditChainRow, Error> {
    let row = audit::get_chain(ctx.conn(), chain.as_uuid()).await?;
    row.ok_or_else(|| Error::not_found("audit chain", chain))
}

pub(super) fn to_checkpoint_view(checkpoint: &AuditCheckpoint) -> CheckpointView {
    CheckpointView {
        chain: checkpoint.chain.to_string(),
        size: checkpoint.size,
        root: encode_hex(&checkpoint.root),
        head: encode_hex(&checkpoint.head),
        at: checkpoint.at,
        closed: checkpoint.closed,
        signature: encode_hex(&checkpoint.signature),
        key_id: checkpoint.key_id.to_string(),
    }
}
