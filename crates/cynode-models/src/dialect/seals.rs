//! Seals of one provider, carried by a client that uses another dialect.
//!
//! A client sends reasoning back with its next request. If the provider's dialect is not the client's, the seal travels in the field that
//! the client's dialect has for seals, with a prefix that names its origin. So it is never sent to a provider that did not make it.

use super::Dialect;
use crate::dialect::canonical::ReasoningSeal;

const SEAL_PREFIX: &str = "cynode.";

/// Encodes `seal` as text for `dialect`.
pub(super) fn encode_seal(seal: &ReasoningSeal, dialect: Dialect) -> String {
    if seal.by == dialect {
        return seal.data.clone();
    }
    let kind = if seal.redacted { "redacted" } else { "sealed" };
    let id = seal.id.as_deref().unwrap_or_default();
    format!("{SEAL_PREFIX}{}.{kind}.{id}.{}", seal.by.as_str(), seal.data)
}

/// Decodes the seal from `text` of `dialect`.
pub(super) fn decode_seal(text: &str, dialect: Dialect, id: Option<&str>) -> ReasoningSeal {
    parse_prefixed_seal(text).unwrap_or_else(|| ReasoningSeal {
        by: dialect,
        id: id.map(str::to_owned),
        data: text.to_owned(),
        redacted: false,
    })
}

fn parse_prefixed_seal(text: &str) -> Option<ReasoningSeal> {
    let mut pieces = text.strip_prefix(SEAL_PREFIX)?.splitn(4, '.');
    let by = pieces.next()?;
    let by = Dialect::from_name(by)?;
    let redacted = match pieces.next()? {
        "redacted" => true,
        "sealed" => false,
        _ => return None,
    };
    let id = pieces.next()?;
    let data = pieces.next()?.to_owned();
    Some(ReasoningSeal { by, id: (!id.is_empty()).then(|| id.to_owned()), data, redacted })
}
