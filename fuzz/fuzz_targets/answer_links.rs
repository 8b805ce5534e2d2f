//! Nothing but the exact link that was signed is verified, and whatever was signed is read or refused.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cynode-app/src/notifications/link_token.rs"]
mod link_token;
#[path = "../../crates/cynode-app/src/platform/tag_key.rs"]
mod tag_key;

/// Where the token looks for the key of its tag.
mod platform {
    pub(crate) use crate::tag_key;
}

use cynode_core::ids::{ApprovalId, UserId, WaitId};
use data_encoding::BASE64URL_NOPAD;
use libfuzzer_sys::fuzz_target;
use link_token::{LinkToken, QuestionRef};
use tag_key::TagKey;
use time::OffsetDateTime;
use uuid::Uuid;

/// Bytes of an input that say what a link is for: kind, question, person, expiry, creation.
const TOKEN_BYTES: usize = 1 + 16 + 16 + 8 + 8;

/// Times are within the years that a calendar has.
const MAX_UNIX_SECONDS: i64 = 250_000_000_000;

fuzz_target!(|data: &[u8]| {
    let (key, other_key) = (TagKey::new([7; 32]), TagKey::new([8; 32]));
    // A stranger's text is no link: nobody finds a tag by trying.
    if let Ok(text) = std::str::from_utf8(data) {
        assert_eq!(LinkToken::decode_token(text, &key), None);
    }
    check_signed_payload(&key, data);
    let Some((fields, edits)) = data.split_first_chunk::<TOKEN_BYTES>() else { return };
    let token = make_token(fields);
    let link = token.encode_token(&key);
    assert_eq!(LinkToken::decode_token(&link, &key), Some(token));
    assert_eq!(LinkToken::decode_token(&link, &other_key), None);
    let edited = edit_text(&link, edits);
    if edited != link.as_bytes()
        && let Ok(edited) = std::str::from_utf8(&edited)
    {
        assert_eq!(LinkToken::decode_token(edited, &key), None, "{edited}");
    }
});

/// Whoever had the key could sign anything: the parser behind the tag takes only the two forms that there are.
fn check_signed_payload(key: &TagKey, payload: &[u8]) {
    let tag = key.compute_tag(&[b"answer-link/v1", payload]);
    let text = BASE64URL_NOPAD.encode(&[payload, &tag].concat());
    let Some(token) = LinkToken::decode_token(&text, key) else { return };
    match payload[0] {
        1 => assert_eq!(payload.len(), 42),
        2 => assert_eq!(token.encode_token(key), text),
        version => panic!("there is no version {version}"),
    }
    // A tag for another purpose is not one for links.
    let tag = key.compute_tag(&[b"request-state", payload]);
    let text = BASE64URL_NOPAD.encode(&[payload, &tag].concat());
    assert_eq!(LinkToken::decode_token(&text, key), None);
}

fn make_token(fields: &[u8; TOKEN_BYTES]) -> LinkToken {
    let id = |from: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&fields[from..from + 16]);
        Uuid::from_bytes(bytes)
    };
    let time = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fields[from..from + 8]);
        let seconds = i64::from_be_bytes(bytes) % MAX_UNIX_SECONDS;
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    };
    let asked = match fields[0] % 3 {
        0 => QuestionRef::Approval(ApprovalId::from_uuid(id(1))),
        1 => QuestionRef::Plan(WaitId::from_uuid(id(1))),
        _ => QuestionRef::Answer(WaitId::from_uuid(id(1))),
    };
    let user = UserId::from_uuid(id(17));
    LinkToken { asked, user, expires_at: time(33), made_at: time(41) }
}

/// Changes a text: each three bytes replace, insert or remove one at a place.
fn edit_text(text: &str, edits: &[u8]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for edit in edits.chunks_exact(3) {
        let place = usize::from(edit[1]) % (bytes.len() + 1);
        match edit[0] % 3 {
            0 if place < bytes.len() => bytes[place] = edit[2],
            1 if place < bytes.len() => {
                bytes.remove(place);
            }
            _ => bytes.insert(place, edit[2]),
        }
    }
    bytes
}
