//! Any text is a token of ours or is refused, and there is one way to write each.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cynode-app/src/platform/tokens.rs"]
mod tokens;

use libfuzzer_sys::fuzz_target;

/// What the module takes randomness from; nothing is issued here.
pub struct AppEnvironment;

impl AppEnvironment {
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        [7; N]
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(shown) = tokens::parse_token(text) {
        assert!(text.starts_with(shown.kind.token_prefix()));
        // Whatever is changed, it is not that token any more.
        for at in 0..text.len() {
            let mut changed = text.as_bytes().to_vec();
            changed[at] ^= 1;
            let Ok(changed) = String::from_utf8(changed) else { continue };
            assert!(tokens::parse_token(&changed).map_or(true, |other| other.hash != shown.hash));
        }
    }
});
