//! Seals of one provider, carried by a client that speaks another dialect.
//!
//! A client gives thoughts back with its next request. If the provider's dialect is not the client's, the seal travels in
//! the place that the client's dialect has for seals, marked with where it belongs, so that it is never shown to a provider
//! that did not make it.

use super::Dialect;
use crate::talk::Seal;

const MARK: &str = "cynode.";

/// The text that stands for `seal` in `dialect`.
pub(super) fn write(seal: &Seal, dialect: Dialect) -> String {
    if seal.by == dialect {
        return seal.data.clone();
    }
    let kind = if seal.redacted { "redacted" } else { "sealed" };
    let id = seal.id.as_deref().unwrap_or_default();
    format!("{MARK}{}.{kind}.{id}.{}", seal.by.as_str(), seal.data)
}

/// The seal that `text` stands for in `dialect`.
pub(super) fn read(text: &str, dialect: Dialect, id: Option<&str>) -> Seal {
    carried(text).unwrap_or_else(|| Seal {
        by: dialect,
        id: id.map(str::to_owned),
        data: text.to_owned(),
        redacted: false,
    })
}

fn carried(text: &str) -> Option<Seal> {
    let mut pieces = text.strip_prefix(MARK)?.splitn(4, '.');
    let by = pieces.next()?;
    let by = Dialect::from_name(by)?;
    let redacted = match pieces.next()? {
        "redacted" => true,
        "sealed" => false,
        _ => return None,
    };
    let id = pieces.next()?;
    let data = pieces.next()?.to_owned();
    Some(Seal { by, id: (!id.is_empty()).then(|| id.to_owned()), data, redacted })
}
