use std::path::PathBuf;

use cynode_core::tuning::BoundedNumber;

use super::reader::ConfigReader;

/// The gate that tool calls pass.
#[derive(Debug)]
pub(crate) struct GatewayConfig {
    /// Where the master key, the records on their way and the artifacts are kept.
    pub(crate) directory: Option<PathBuf>,
    /// The master key, when it is elsewhere.
    pub(crate) key_file: Option<PathBuf>,
    /// Names under which the internal port is meant.
    pub(crate) hosts: Vec<String>,
    /// Where people reach the user interface.
    pub(crate) public_url: Option<String>,
    /// Places inside that tools may reach.
    pub(crate) opened: Vec<String>,
    /// How long records are kept.
    pub(crate) audit_days: i64,
    /// How long it is kept what agents said and did in their jobs.
    pub(crate) transcript_days: i64,
}

const AUDIT_RETENTION_DAYS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_GATE_AUDIT_DAYS", min: 1, max: 36_500, default: 365 };

const TRANSCRIPT_RETENTION_DAYS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_GATE_TRANSCRIPT_DAYS", min: 1, max: 36_500, default: 90 };

impl GatewayConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let list = |text: Option<String>| -> Vec<String> {
            let text = text.unwrap_or_default();
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            words.map(str::to_ascii_lowercase).collect()
        };
        Self {
            directory: reader.optional_text("gate.directory").map(PathBuf::from),
            key_file: reader.optional_text("gate.key_file").map(PathBuf::from),
            hosts: list(reader.optional_text("gate.hosts")),
            public_url: reader.optional_text("gate.public_url"),
            opened: list(reader.optional_text("gate.open_to")),
            audit_days: reader.bounded_integer("gate.audit_days", AUDIT_RETENTION_DAYS),
            transcript_days: reader
                .bounded_integer("gate.transcript_days", TRANSCRIPT_RETENTION_DAYS),
        }
    }
}
