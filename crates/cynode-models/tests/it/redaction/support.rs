//! What every test needs: a redactor.

use std::sync::{Arc, LazyLock};

use cynode_models::redact::{FingerprintKey, KnownSecret, RedactionRules, Redactor};

/// The rules, compiled once for all tests of a process.
pub(crate) static RULES: LazyLock<Arc<RedactionRules>> =
    LazyLock::new(|| RedactionRules::new().unwrap());

/// A redactor that knows these secrets.
pub(crate) fn redactor(known: &[(&str, &str)]) -> Redactor {
    let known = known
        .iter()
        .map(|(name, value)| KnownSecret { name: (*name).to_owned(), value: (*value).into() });
    Redactor::new(RULES.clone(), FingerprintKey::new([7; 32]), known).unwrap()
}
