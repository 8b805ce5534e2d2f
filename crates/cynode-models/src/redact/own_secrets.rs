//! Secrets that CyNode holds itself, and the encodings in which they may appear.

use std::{collections::BTreeMap, fmt::Write as _};

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};
use secrecy::{ExposeSecret, SecretString};

use super::placeholder::MAX_KIND_BYTES;

/// Minimum length of a secret that is searched for.
const MIN_SECRET_BYTES: usize = 8;

/// Maximum length of a literal. A longer one is split, so that a stream need not hold it back completely.
const MAX_LITERAL_BYTES: usize = 4096;

/// Length of the anchor of a literal.
const ANCHOR_BYTES: usize = 8;

/// A secret whose value is known.
#[derive(Clone, Debug)]
pub struct KnownSecret {
    /// Name of the secret in placeholders. Letters, digits and `_`; any other character becomes `_`.
    pub name: String,
    /// Value that must be redacted.
    pub value: SecretString,
}

/// All texts that reveal a known secret.
pub(super) struct SecretLiterals {
    names: Vec<(String, SecretString)>,
    literals: Vec<SecretLiteral>,
}

/// One text, and the known secret that it reveals.
pub(super) struct SecretLiteral {
    pub(super) bytes: Vec<u8>,
    pub(super) known: usize,
}

impl SecretLiteral {
    /// Returns the bytes that the scanner searches for first.
    pub(super) fn anchor_bytes(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().min(ANCHOR_BYTES)]
    }
}

impl SecretLiterals {
    /// Builds the literals. Also returns the names of secrets that are too short.
    pub(super) fn new(known: impl IntoIterator<Item = KnownSecret>) -> (Self, Vec<String>) {
        let mut names = Vec::new();
        let mut unguarded = Vec::new();
        let mut texts: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for KnownSecret { name, value } in known {
            if value.expose_secret().len() < MIN_SECRET_BYTES {
                unguarded.push(name);
                continue;
            }
            for text in encodings_of(value.expose_secret()) {
                for piece in split_literal(&text) {
                    texts.entry(piece.to_vec()).or_insert(names.len());
                }
            }
            names.push((to_placeholder_label(&name), value));
        }
        let literals =
            texts.into_iter().map(|(bytes, known)| SecretLiteral { bytes, known }).collect();
        (Self { names, literals }, unguarded)
    }

    pub(super) fn names_and_values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().map(|(name, value)| (name.as_str(), value.expose_secret()))
    }

    pub(super) fn as_slice(&self) -> &[SecretLiteral] {
        &self.literals
    }
}

/// Converts a name to one that fits into a placeholder.
fn to_placeholder_label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(plain).take(MAX_KIND_BYTES).collect()
}

fn split_literal(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = text.len().saturating_sub(MIN_SECRET_BYTES);
    (0..text.len()).step_by(MAX_LITERAL_BYTES).map(move |start| {
        // the last piece may overlap the previous one, so that it is not too short
        &text[start.min(last)..text.len().min(start + MAX_LITERAL_BYTES)]
    })
}

/// Returns the value and its common encodings.
fn encodings_of(value: &str) -> Vec<Vec<u8>> {
    let bytes = value.as_bytes();
    let once = escape_json(value);
    let mut all = vec![
        bytes.to_vec(),
        HEXLOWER.encode(bytes).into_bytes(),
        HEXUPPER.encode(bytes).into_bytes(),
        escape_json(&once).into_bytes(),
        once.replace('/', "\\/").into_bytes(),
        escape_unicode(value).into_bytes(),
        once.into_bytes(),
        encode_percent(bytes, &HEXUPPER, b"-_.~").into_bytes(),
        encode_percent(bytes, &HEXLOWER, b"-_.~").into_bytes(),
        encode_percent(bytes, &HEXUPPER, b"-_.!~*'()").into_bytes(),
        encode_percent(bytes, &HEXUPPER, b"-_.*").replace("%20", "+").into_bytes(),
    ];
    for shift in 0..3 {
        all.push(encode_base64_at(bytes, shift, &BASE64_NOPAD));
        all.push(encode_base64_at(bytes, shift, &BASE64URL_NOPAD));
    }
    all.retain(|text| text.len() >= MIN_SECRET_BYTES);
    all
}

fn escape_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Escapes as `escape_json` does, for writers that emit ASCII only.
fn escape_unicode(value: &str) -> String {
    let mut out = String::new();
    let mut units = [0; 2];
    for c in escape_json(value).chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut units) {
            // writing to a string cannot fail
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

fn encode_percent(bytes: &[u8], hex: &data_encoding::Encoding, plain: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            out.push_str(&hex.encode(&[*byte]));
        }
    }
    out
}

/// Returns the characters of a base64 text that depend on the value alone, when `shift` bytes of a group of three precede it.
fn encode_base64_at(bytes: &[u8], shift: usize, base: &data_encoding::Encoding) -> Vec<u8> {
    let mut padded = vec![0; shift];
    padded.extend_from_slice(bytes);
    let mut text = base.encode(&padded).into_bytes();
    if !padded.len().is_multiple_of(3) {
        text.pop();
    }
    text.drain(..[0, 2, 3][shift].min(text.len()));
    text
}
