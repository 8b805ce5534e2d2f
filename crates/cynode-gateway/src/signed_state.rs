//! Signed state that is sent with an input request and returned with its response. It holds no secret, is bound to one agent, one tool and
//! its arguments, and expires.

use cynode_app::platform::keys::InstallationKeys;
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

/// Purpose of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// State of an approval request: it holds the input that goes to the tool server after the approval.
    Approval,
    /// State of a tool server's input request: it holds the server's own state.
    Upstream,
}

impl StateKind {
    const fn kind_letter(self) -> &'static str {
        match self {
            Self::Approval => "a",
            Self::Upstream => "u",
        }
    }
}

/// Maximum length of a state that is accepted.
pub(crate) const MAX_STATE_BYTES: usize = 64 * 1024;

/// Signs a state for its binding.
pub(crate) fn seal_state(
    keys: &InstallationKeys,
    kind: StateKind,
    binding: &[u8],
    inner: &str,
    until: OffsetDateTime,
) -> String {
    let until = until.unix_timestamp().to_string();
    let tag = keys.compute_tag(&[
        kind.kind_letter().as_bytes(),
        until.as_bytes(),
        binding,
        inner.as_bytes(),
    ]);
    let (inner, tag) = (BASE64URL_NOPAD.encode(inner.as_bytes()), BASE64URL_NOPAD.encode(&tag));
    format!("cyn1.{}.{until}.{inner}.{tag}", kind.kind_letter())
}

/// Returns the inner state, if the gateway signed it for this binding and it has not expired.
pub(crate) fn open_state(
    keys: &InstallationKeys,
    state: &str,
    binding: &[u8],
    now: OffsetDateTime,
) -> Option<(StateKind, String)> {
    if state.len() > MAX_STATE_BYTES {
        return None;
    }
    let mut parts = state.strip_prefix("cyn1.")?.split('.');
    let (letter, until, inner, tag) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let kind = [StateKind::Approval, StateKind::Upstream]
        .into_iter()
        .find(|kind| kind.kind_letter() == letter)?;
    let inner = BASE64URL_NOPAD.decode(inner.as_bytes()).ok()?;
    let tag = BASE64URL_NOPAD.decode(tag.as_bytes()).ok()?;
    if !keys.verify_tag(&[letter.as_bytes(), until.as_bytes(), binding, &inner], &tag) {
        return None;
    }
    let alive = until.parse::<i64>().is_ok_and(|until| now.unix_timestamp() < until);
    alive.then_some(())?;
    Some((kind, String::from_utf8(inner).ok()?))
}

/// Returns whether the caller's client can show a URL to a person.
pub(crate) fn supports_url_elicitation(capabilities: Option<&RawValue>) -> bool {
    let said = capabilities.and_then(|said| serde_json::from_str::<Value>(said.get()).ok());
    said.is_some_and(|said| said.pointer("/elicitation/url").is_some_and(Value::is_object))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-15 12:00 UTC);

    #[test]
    fn a_state_comes_back_only_from_whom_and_for_what_it_was_given_and_in_time() {
        let keys = InstallationKeys::from_master(&[1; 32]);
        let until = NOW + time::Duration::minutes(5);
        let state = seal_state(&keys, StateKind::Upstream, b"agent tool args", "inner", until);
        assert_eq!(
            open_state(&keys, &state, b"agent tool args", NOW),
            Some((StateKind::Upstream, "inner".into()))
        );
        assert_eq!(open_state(&keys, &state, b"other tool args", NOW), None);
        assert_eq!(open_state(&keys, &state, b"agent tool args", until), None);
        assert_eq!(
            open_state(&InstallationKeys::from_master(&[2; 32]), &state, b"agent tool args", NOW),
            None
        );
        for changed in [
            format!("{state}-TAMPERED"),
            state.replace(".u.", ".a."),
            state[1..].to_owned(),
            String::new(),
        ] {
            assert_eq!(open_state(&keys, &changed, b"agent tool args", NOW), None, "{changed}");
        }
    }
}
