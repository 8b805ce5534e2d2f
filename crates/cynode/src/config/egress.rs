use super::reader::ConfigReader;

/// Outgoing requests of tools.
#[derive(Debug)]
pub(crate) struct EgressConfig {
    /// Private addresses, as `host:port`, that the SSRF guard lets tools reach.
    pub(crate) allow_private: Vec<String>,
}

impl EgressConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self { allow_private: reader.lowercase_list("egress.allow_private") }
    }
}
