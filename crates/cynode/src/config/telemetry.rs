use cynode_net::transport::is_loopback_url;
use url::Url;

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
        let otlp_endpoint = reader.optional_text("telemetry.otlp_endpoint");
        let allow_plain = reader.parse_value("telemetry.otlp_allow_plain_http", false);
        if let Some(problem) =
            otlp_endpoint.as_deref().and_then(|text| endpoint_problem(text, allow_plain))
        {
            reader.add_problem(format!("telemetry.otlp_endpoint: {problem}"));
        }
        Self { log, otlp_endpoint }
    }
}

/// Returns why traces cannot be sent there. They name users, projects and tasks, so that they leave the machine encrypted unless the
/// configuration says otherwise.
fn endpoint_problem(endpoint: &str, allow_plain: bool) -> Option<&'static str> {
    let Ok(url) = Url::parse(endpoint) else { return Some("it is no address") };
    match url.scheme() {
        "https" => None,
        "http" if is_loopback_url(&url) || allow_plain => None,
        "http" => Some(
            "traces would leave this machine in clear text: use https, a collector on this machine, or \
             telemetry.otlp_allow_plain_http = true",
        ),
        _ => Some("it is http://HOST:PORT or https://HOST"),
    }
}
