use cynode_core::tuning::BoundedNumber;

use super::reader::ConfigReader;

const MAX_MESSAGE_BYTES: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_GATEWAY_MAX_MESSAGE_BYTES",
    min: 64 << 10,
    max: 16 << 20,
    default: 6 << 20,
};

/// The gateway for tool calls.
#[derive(Debug)]
pub(crate) struct GatewayConfig {
    /// Allowed host names of the internal port.
    pub(crate) allowed_hosts: Vec<String>,
    /// Public URL of the user interface.
    pub(crate) public_url: Option<String>,
    /// Maximum size of a message of an agent.
    pub(crate) max_message_bytes: usize,
}

impl GatewayConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let allowed_hosts = reader.lowercase_list("gateway.allowed_hosts");
        let public_url = reader.optional_text("gateway.public_url");
        let max = reader.bounded_integer("gateway.max_message_bytes", MAX_MESSAGE_BYTES);
        let max_message_bytes = usize::try_from(max).unwrap_or(usize::MAX);
        Self { allowed_hosts, public_url, max_message_bytes }
    }
}
