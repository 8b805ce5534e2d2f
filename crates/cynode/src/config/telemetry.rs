use super::reader::Reader;

/// What is told about the running program.
#[derive(Debug)]
pub(crate) struct Telemetry {
    /// Which log lines are written: a level, or a filter such as `info,cynode_db=debug`.
    pub(crate) log: String,
    /// Where traces are sent (OTLP over HTTP); without it none are.
    pub(crate) otlp_endpoint: Option<String>,
}

impl Telemetry {
    /// The lines that are written unless somebody says otherwise.
    pub(crate) const USUAL: &str = "info";

    pub(super) fn read(reader: &mut Reader) -> Self {
        let log = reader.value("telemetry.log", Self::USUAL.to_owned());
        Self { log, otlp_endpoint: reader.optional("telemetry.otlp_endpoint") }
    }
}
