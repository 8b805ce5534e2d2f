//! Heads that were kept outside of the installation. They show what was cut off: an attacker can shorten the newest chains and the list of
//! chains, and cannot take back what somebody else has.

use serde_json::Value;

use crate::{AuditCheckpoint, ChainRegistryHead, hex};

/// Maximum depth of a file with heads.
const MAX_DEPTH: u32 = 16;

/// Error: the text holds no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no head in it: expected the output of `cynork audit head --json`, a bundle, or what a sink received"
)]
pub struct NoKeptHead;

/// Heads that were kept elsewhere, to be compared with the records that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptHeads {
    /// Heads of the list of chains.
    pub registry: Vec<ChainRegistryHead>,
    /// Signed heads of chains.
    pub checkpoints: Vec<AuditCheckpoint>,
}

impl KeptHeads {
    /// Finds every head in a text: in one JSON document, or in lines that end with one, as a syslog server stores them.
    pub fn parse_text(text: &str) -> Result<Self, NoKeptHead> {
        let mut heads = Self::default();
        if let Ok(whole) = serde_json::from_str::<Value>(text) {
            heads.collect_heads(&whole, MAX_DEPTH);
        } else {
            for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let start = line.find('{').ok_or(NoKeptHead)?;
                let json = line.get(start..).unwrap_or_default();
                let value = serde_json::from_str::<Value>(json).map_err(|_| NoKeptHead)?;
                heads.collect_heads(&value, MAX_DEPTH);
            }
        }
        if heads == Self::default() { Err(NoKeptHead) } else { Ok(heads) }
    }

    fn collect_heads(&mut self, value: &Value, depth: u32) {
        let Some(deeper) = depth.checked_sub(1) else { return };
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.collect_heads(item, deeper)),
            Value::Object(fields) => {
                if let Ok(checkpoint) = serde_json::from_value(value.clone()) {
                    self.checkpoints.push(checkpoint);
                    return;
                }
                for (name, item) in fields {
                    let head = item.as_str().filter(|_| name == "registry_head" || name == "head");
                    self.registry
                        .extend(head.and_then(|text| text.parse::<ChainRegistryHead>().ok()));
                    self.collect_heads(item, deeper);
                }
            }
            _ => {}
        }
    }
}

/// Error: the text is no head of the list of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a head is SIZE:HASH, as `cynode audit verify` prints it")]
pub struct BadRegistryHead;

impl std::str::FromStr for ChainRegistryHead {
    type Err = BadRegistryHead;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, link) = text.trim().split_once(':').ok_or(BadRegistryHead)?;
        let number = number.parse().map_err(|_| BadRegistryHead)?;
        Ok(Self { number, link: hex::decode_hex(link).ok_or(BadRegistryHead)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_in_documents_in_lines_and_behind_the_header_of_a_message() {
        let link = "ab".repeat(32);
        let head = ChainRegistryHead { number: 7, link: [0xab; 32] };
        assert_eq!(format!("7:{link}").parse(), Ok(head));
        let one = KeptHeads { registry: vec![head], checkpoints: Vec::new() };
        let report = format!("{{\n \"records\": 3, \"head\": \"7:{link}\"\n}}");
        assert_eq!(KeptHeads::parse_text(&report), Ok(one.clone()));
        let line = format!(
            "<110>1 - host cynode - head - {{\"unmapped\":{{\"registry_head\":\"7:{link}\"}}}}\n\n"
        );
        assert_eq!(KeptHeads::parse_text(&line), Ok(one));
        for text in ["", "{}", "hunter2", "[1, {\"head\": \"7\"}]", "{\"head\": 7}\nhunter2"] {
            assert_eq!(KeptHeads::parse_text(text), Err(NoKeptHead), "{text}");
        }
        for text in ["7", "7:", "x:00", &format!("-1:{link}"), &format!("7:{link}00")] {
            assert_eq!(text.parse::<ChainRegistryHead>(), Err(BadRegistryHead), "{text}");
        }
    }
}
