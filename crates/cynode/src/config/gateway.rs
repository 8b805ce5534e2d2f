use super::reader::ConfigReader;

/// The gateway for tool calls.
#[derive(Debug)]
pub(crate) struct GatewayConfig {
    /// Allowed host names of the internal port.
    pub(crate) allowed_hosts: Vec<String>,
    /// Public URL of the user interface.
    pub(crate) public_url: Option<String>,
}

impl GatewayConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self {
            allowed_hosts: reader.lowercase_list("gateway.allowed_hosts"),
            public_url: reader.optional_text("gateway.public_url"),
        }
    }
}
