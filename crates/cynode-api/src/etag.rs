//! Entity tags: a client that has the current form of an answer already gets no body.

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use data_encoding::HEXLOWER;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Returns the digest that identifies content in an entity tag.
pub(crate) fn content_digest(content: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(content).into();
    HEXLOWER.encode(&digest[..16])
}

/// Returns whether the client has the content with that entity tag.
pub(crate) fn is_current(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut texts = values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    texts.any(|text| text.trim().trim_start_matches("W/") == etag)
}

/// Returns a value as JSON with its entity tag, for a person's own cache alone.
pub(crate) fn json_with_etag(value: &impl Serialize, headers: &HeaderMap) -> Response {
    let Ok(body) = serde_json::to_vec(value) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let etag = format!("\"{}\"", content_digest(&body));
    let mut response = if is_current(headers, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let json = [(header::CONTENT_TYPE, "application/json")];
        (json, Bytes::from(body)).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, etag);
    }
    response
}
