//! HTTP headers of the protocol.

use std::{borrow::Cow, net::IpAddr};

use axum::http::{HeaderMap, header};
use data_encoding::BASE64;
use serde_json::Value;

use crate::responses::{RpcError, code};

/// Returns the value of a header that must occur at most once.
pub(crate) fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> Result<Option<&'a str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = || {
        RpcError::bad_request(
            code::HEADER_MISMATCH,
            format!("the header `{name}` is there twice or cannot be read"),
        )
    };
    if values.next().is_some() {
        return Err(wrong());
    }
    value.to_str().map(|value| Some(value.trim())).map_err(|_| wrong())
}

/// Decodes a header: `=?base64?…?=` is base64, anything else is literal text.
pub(crate) fn decode_header(value: &str) -> Option<Cow<'_, str>> {
    let value = value.trim();
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    match inner {
        None => Some(Cow::Borrowed(value)),
        Some(encoded) => {
            let bytes = BASE64.decode(encoded.as_bytes()).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

/// Compares arguments that a tool mirrors into headers (`x-mcp-header`) with those headers.
pub(crate) fn check_mirrored_headers(
    headers: &HeaderMap,
    schema: &Value,
    arguments: &Value,
) -> Result<(), RpcError> {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let Some(label) = property.get("x-mcp-header").and_then(Value::as_str) else { continue };
        let header = format!("mcp-param-{}", label.to_ascii_lowercase());
        let said = match arguments.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
            Some(Value::Array(_) | Value::Object(_)) => continue,
        };
        let mut values = headers.get_all(header.as_str()).iter();
        let shown = values.next().and_then(|value| value.to_str().ok());
        let shown = match shown {
            None => None,
            Some(value) => {
                Some(decode_header(value).ok_or_else(|| header_mismatch(label))?.into_owned())
            }
        };
        if values.next().is_some() || shown != said {
            return Err(header_mismatch(label));
        }
    }
    Ok(())
}

fn header_mismatch(label: &str) -> RpcError {
    let label: String = label.chars().take(60).collect();
    let told = format!(
        "the header `Mcp-Param-{label}` is missing or says something else than the argument"
    );
    RpcError::bad_request(code::HEADER_MISMATCH, told)
}

/// Host names under which the gateway is served, beside IP addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(pub Vec<String>);

impl AllowedHosts {
    /// Returns whether host and origin of a request are allowed (protection against DNS rebinding). A foreign page whose name resolves to
    /// this gateway still sends its own name.
    pub(crate) fn admits_request(&self, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).map(|value| value.to_str().ok());
        let host = match text(header::HOST) {
            None => true,
            Some(host) => host.is_some_and(|host| self.is_own_host(host)),
        };
        let origin = match text(header::ORIGIN) {
            None => true,
            Some(origin) => origin
                .and_then(|origin| origin.split_once("://"))
                .is_some_and(|(_, host)| self.is_own_host(host)),
        };
        host && origin
    }

    fn is_own_host(&self, authority: &str) -> bool {
        let host = match authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        host == "localhost" || host.parse::<IpAddr>().is_ok() || self.0.contains(&host)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_page_of_somebody_else_is_turned_away_whatever_its_name_leads_to() {
        let hosts = AllowedHosts(vec!["cynode.example".into()]);
        for good in ["127.0.0.1:12082", "localhost:1", "[::1]:5", "10.0.0.7", "cynode.example:443"]
        {
            assert!(hosts.admits_request(&headers(&[("host", good)])), "{good}");
            let origin = format!("http://{good}");
            assert!(
                hosts.admits_request(&headers(&[("host", good), ("origin", &origin)])),
                "{good}"
            );
        }
        for bad in ["evil.example.com", "cynode.example.evil.com", "localhost.evil.com", "", "null"]
        {
            assert!(!hosts.admits_request(&headers(&[("host", bad)])), "{bad}");
            assert!(
                !hosts.admits_request(&headers(&[("host", "127.0.0.1"), ("origin", bad)])),
                "{bad}"
            );
        }
    }

    #[test]
    fn an_argument_that_is_mirrored_must_be_the_same_in_its_header() {
        let schema =
            json!({ "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
        let check = |shown: Option<&str>, said: Value| {
            let shown: Vec<_> =
                shown.map(|value| ("mcp-param-region", value)).into_iter().collect();
            check_mirrored_headers(&headers(&shown), &schema, &said).is_ok()
        };
        assert!(check(Some("=?base64?SGVsbG8=?="), json!({ "region": "Hello" })));
        assert!(check(Some("SGVsbG8="), json!({ "region": "SGVsbG8=" })));
        assert!(check(Some("=?base64?SGVsbG8="), json!({ "region": "=?base64?SGVsbG8=" })));
        assert!(check(None, json!({})));
        assert!(!check(Some("=?base64?SGVsbG8?="), json!({ "region": "Hello" })));
        assert!(!check(Some("=?base64?SGVs!!!bG8=?="), json!({ "region": "Hello" })));
        assert!(!check(None, json!({ "region": "Hello" })));
        assert!(!check(Some("Hello"), json!({})));
        assert!(!check(Some("Hello"), json!({ "region": "Hullo" })));
    }
}
