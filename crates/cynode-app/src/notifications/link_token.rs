//! Token of an answer link: who may answer which question until when, with an authentication tag. It is pure.

use cynode_core::ids::{ApprovalId, UserId, WaitId};
use data_encoding::BASE64URL_NOPAD;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::platform::tag_key::TagKey;

/// Maximum lifetime of a link.
pub(crate) const LINK_TTL: Duration = Duration::hours(24);

/// Version of the signed format. A new format gets a new number.
const TOKEN_VERSION: u8 = 2;

/// Earlier version, which has no creation time.
const UNDATED_TOKEN_VERSION: u8 = 1;

/// Size of the authentication tag behind the signed part.
const TAG_BYTES: usize = 32;

/// Domain-separation label of the tags of links.
const LINK_TAG_LABEL: &[u8] = b"answer-link/v1";

/// Reference to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionRef {
    /// Approval of a tool call.
    Approval(ApprovalId),
    /// Approval of a plan.
    Plan(WaitId),
    /// Question of a task.
    Answer(WaitId),
}

/// Content of a link: the person, the question, the expiry and the creation time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkToken {
    pub(crate) asked: QuestionRef,
    pub(crate) user: UserId,
    pub(crate) expires_at: OffsetDateTime,
    pub(crate) made_at: OffsetDateTime,
}

impl LinkToken {
    /// Encodes the token for a URL.
    pub(crate) fn encode_token(&self, key: &TagKey) -> String {
        let (kind, id) = match self.asked {
            QuestionRef::Approval(id) => (1, id.as_uuid()),
            QuestionRef::Plan(id) => (2, id.as_uuid()),
            QuestionRef::Answer(id) => (3, id.as_uuid()),
        };
        let mut bytes = vec![TOKEN_VERSION, kind];
        bytes.extend_from_slice(id.as_bytes());
        bytes.extend_from_slice(self.user.as_uuid().as_bytes());
        bytes.extend_from_slice(&self.expires_at.unix_timestamp().to_be_bytes());
        bytes.extend_from_slice(&self.made_at.unix_timestamp().to_be_bytes());
        let tag = key.compute_tag(&[LINK_TAG_LABEL, &bytes]);
        bytes.extend_from_slice(&tag);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// Decodes a token after it verifies the tag.
    pub(crate) fn decode_token(text: &str, key: &TagKey) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (signed, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        if !key.verify_tag(&[LINK_TAG_LABEL, signed], tag) {
            return None;
        }
        let ([version, kind], rest) = signed.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (user, rest) = rest.split_first_chunk::<16>()?;
        let id = Uuid::from_bytes(*id);
        let asked = match kind {
            1 => QuestionRef::Approval(ApprovalId::from_uuid(id)),
            2 => QuestionRef::Plan(WaitId::from_uuid(id)),
            3 => QuestionRef::Answer(WaitId::from_uuid(id)),
            _ => return None,
        };
        let (expires, made) = rest.split_first_chunk::<8>()?;
        let expires_at = decode_timestamp(*expires)?;
        let made_at = match *version {
            TOKEN_VERSION => decode_timestamp(made.try_into().ok()?)?,
            // No link can be older than this.
            UNDATED_TOKEN_VERSION if made.is_empty() => expires_at.checked_sub(LINK_TTL)?,
            _ => return None,
        };
        let user = UserId::from_uuid(Uuid::from_bytes(*user));
        Some(Self { asked, user, expires_at, made_at })
    }
}

fn decode_timestamp(seconds: [u8; 8]) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(i64::from_be_bytes(seconds)).ok()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn token() -> LinkToken {
        LinkToken {
            asked: QuestionRef::Plan(WaitId::from_uuid(Uuid::from_u128(7))),
            user: UserId::from_uuid(Uuid::from_u128(9)),
            expires_at: datetime!(2026-11-16 12:00 UTC),
            made_at: datetime!(2026-11-15 13:00 UTC),
        }
    }

    #[test]
    fn a_token_says_what_it_was_made_with() {
        let key = TagKey::new([7; 32]);
        let text = token().encode_token(&key);
        assert_eq!(LinkToken::decode_token(&text, &key), Some(token()));
        assert_eq!(LinkToken::decode_token(&text, &TagKey::new([8; 32])), None);
    }

    #[test]
    fn a_token_of_the_form_before_is_read_as_one_made_as_early_as_it_can_be() {
        let key = TagKey::new([7; 32]);
        let text = token().encode_token(&key);
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        let mut old = bytes[..bytes.len() - TAG_BYTES - 8].to_vec();
        old[0] = UNDATED_TOKEN_VERSION;
        let tag = key.compute_tag(&[LINK_TAG_LABEL, &old]);
        old.extend_from_slice(&tag);
        let made_at = datetime!(2026-11-15 12:00 UTC);
        let old = LinkToken::decode_token(&BASE64URL_NOPAD.encode(&old), &key);
        assert_eq!(old, Some(LinkToken { made_at, ..token() }));
    }

    #[test]
    fn a_token_with_any_bit_changed_is_none_of_ours() {
        let key = TagKey::new([7; 32]);
        let text = token().encode_token(&key);
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                LinkToken::decode_token(&BASE64URL_NOPAD.encode(&other), &key),
                None,
                "bit {bit}"
            );
        }
        // Nor is another spelling of the same bytes, nor more or less of them.
        for place in 0..text.len() {
            for letter in ['A', 'B', 'z', '0', '-', '_', '=', '%'] {
                let mut other = text.clone().into_bytes();
                if other[place] == letter as u8 {
                    continue;
                }
                other[place] = letter as u8;
                assert_eq!(LinkToken::decode_token(&String::from_utf8(other).unwrap(), &key), None);
            }
        }
        for other in [String::new(), text[1..].to_owned(), format!("{text}A"), format!("{text}=")] {
            assert_eq!(LinkToken::decode_token(&other, &key), None);
        }
    }
}
