use super::reader::ConfigReader;

/// Logs and traces.
#[derive(Debug)]
pub(crate) struct TelemetryConfig {
    /// The log filter: a level, or a filter such as `info,cynode_db=debug`.
    pub(crate) log: String,
    /// The endpoint for traces (OTLP over HTTP); without it none are sent.
    pub(crate) otlp_endpoint: Option<String>,
}

impl TelemetryConfig {
    /// The default log filter.
    pub(crate) const DEFAULT_LOG_FILTER: &str = "info";

    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let log = reader.parse_value("telemetry.log", Self::DEFAULT_LOG_FILTER.to_owned());
        Self { log, otlp_endpoint: reader.optional_text("telemetry.otlp_endpoint") }
    }
}
