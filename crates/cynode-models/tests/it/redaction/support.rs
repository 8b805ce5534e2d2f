//! What every test needs: a redactor.

use std::sync::{Arc, LazyLock};

use cynode_models::redact::{FingerprintKey, Known, Redactor, Rules};

/// The rules, compiled once for all tests of a process.
pub(crate) static RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| Rules::new().unwrap());

/// A redactor that knows these secrets.
pub(crate) fn redactor(known: &[(&str, &str)]) -> Redactor {
    let known = known
        .iter()
        .map(|(name, value)| Known { name: (*name).to_owned(), value: (*value).into() });
    Redactor::new(RULES.clone(), FingerprintKey::new([7; 32]), known).unwrap()
}
