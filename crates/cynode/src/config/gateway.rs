use super::reader::ConfigReader;

/// The gateway that tool calls pass.
#[derive(Debug)]
pub(crate) struct GatewayConfig {
    /// Names under which the internal port is meant.
    pub(crate) allowed_hosts: Vec<String>,
    /// Where people reach the user interface.
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
