//! Scopes of API keys: which group of operations a request belongs to, by its tag in the OpenAPI document.

use std::{collections::HashMap, sync::LazyLock};

use axum::http::Method;
use cynode_app::{
    AuthenticatedCaller, Error,
    identity::api_keys::{self, ScopeUse},
};
use cynode_core::accounts::ApiScope;

use crate::{document::path_operations, public_openapi};

/// Operations that every key may use: they say who it is, and that it has no session to end.
const OPEN_OPERATIONS: [(&str, &str); 2] = [("GET", "/v1/me"), ("DELETE", "/v1/sessions/current")];

/// Operations that read although their method is another.
const READING_OPERATIONS: [(&str, &str); 6] = [
    ("POST", "/v1/profiles/{name}/check"),
    ("POST", "/v1/projects/{project}/git/git-upload-pack"),
    ("POST", "/v1/projects/{project}/memories/search"),
    ("POST", "/v1/rules/backtest"),
    ("POST", "/v1/rules/check"),
    ("POST", "/v1/task-estimates"),
];

/// The scope of every operation, by method and path.
static OPERATION_SCOPES: LazyLock<HashMap<(String, String), ApiScope>> =
    LazyLock::new(collect_scopes);

fn collect_scopes() -> HashMap<(String, String), ApiScope> {
    let mut document = public_openapi();
    let mut scopes = HashMap::new();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in path_operations(item) {
            let tag = operation.tags.as_ref().and_then(|tags| tags.first());
            if let Some(scope) = tag.and_then(|tag| ApiScope::from_tag(tag)) {
                scopes.insert((method.to_ascii_uppercase(), path.clone()), scope);
            }
        }
    }
    scopes
}

/// Rejects an API key that does not open the operation. An operation without a known scope is open to no key.
pub(crate) fn require_operation_scope(
    caller: &AuthenticatedCaller,
    method: &Method,
    path: &str,
) -> Result<(), Error> {
    // A handler of GET answers HEAD, too.
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    if OPEN_OPERATIONS.contains(&(method, path)) {
        return Ok(());
    }
    let scope = OPERATION_SCOPES.get(&(method.to_owned(), path.to_owned()));
    let denied = || Error::KeyDenied("no API key opens this operation".to_owned());
    let scope = *scope.ok_or_else(denied)?;
    let reads = method == "GET" || READING_OPERATIONS.contains(&(method, path));
    let action = if reads { ScopeUse::Read } else { ScopeUse::Change };
    api_keys::require_scope(caller, scope, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_the_document_has_a_scope() {
        let mut document = public_openapi();
        let scopes = collect_scopes();
        for (path, item) in &mut document.paths.paths {
            for (method, _) in path_operations(item) {
                let key = (method.to_ascii_uppercase(), path.clone());
                assert!(scopes.contains_key(&key), "{key:?} has a tag that is no scope");
            }
        }
        for (method, path) in OPEN_OPERATIONS.into_iter().chain(READING_OPERATIONS) {
            assert!(scopes.contains_key(&(method.to_owned(), path.to_owned())), "{method} {path}");
        }
    }
}
