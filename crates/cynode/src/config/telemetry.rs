use super::reader::ConfigReader;

/// What is told about the running program.
#[derive(Debug)]
pub(crate) struct TelemetryConfig {
    /// Which log lines are written: a level, or a filter such as `info,cynode_db=debug`.
    pub(crate) log: String,
    /// Where traces are sent (OTLP over HTTP); without it none are.
    pub(crate) otlp_endpoint: Option<String>,
}

impl TelemetryConfig {
    /// The lines that are written unless somebody says otherwise.
    pub(crate) const DEFAULT_LOG_FILTER: &str = "info";

    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let log = reader.parse_value("telemetry.log", Self::DEFAULT_LOG_FILTER.to_owned());
        Self { log, otlp_endpoint: reader.optional_text("telemetry.otlp_endpoint") }
    }
}
