//! Logs and traces. One log line is one JSON object.

use std::{path::Path, sync::Mutex};

use anyhow::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::{
    config::TelemetryConfig,
    redact::{RedactingExporter, RedactingMakeWriter},
    restate::open_private_log,
};

/// Destination of log lines.
pub(crate) enum LogSink<'a> {
    /// Standard error, for the supervisor of the process.
    Stderr,
    /// Standard error, beside output for a person: only warnings and errors, unless more is configured.
    Person,
    /// A file, if a person is at the terminal.
    File(&'a Path),
}

/// Ends telemetry: dropping it exports the remaining spans.
pub(crate) struct TelemetryGuard(Option<SdkTracerProvider>);

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(event = "spans.export_failed", error = %error, "the last spans were not exported");
        }
    }
}

/// Sets up logs and, if an endpoint is configured, the export of traces. It must be called before the async runtime starts: the
/// exporter has its own thread and client.
pub(crate) fn start_telemetry(
    config: &TelemetryConfig,
    sink: &LogSink<'_>,
) -> anyhow::Result<TelemetryGuard> {
    let wanted = match sink {
        LogSink::Person if config.log == TelemetryConfig::DEFAULT_LOG_FILTER => "warn",
        LogSink::Person | LogSink::Stderr | LogSink::File(_) => &config.log,
    };
    let filter = EnvFilter::try_new(wanted).context("telemetry.log is not a log filter")?;
    let provider = config.otlp_endpoint.as_deref().map(build_exporter).transpose()?;
    let traces = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("cynode")));
    let logs = match sink {
        LogSink::Stderr | LogSink::Person => json_log_layer(std::io::stderr),
        LogSink::File(path) => {
            let file = open_private_log(path);
            let file = file.with_context(|| format!("cannot write the log {}", path.display()))?;
            json_log_layer(Mutex::new(file))
        }
    };
    tracing_subscriber::registry().with(vec![logs]).with(traces).with(filter).try_init()?;
    Ok(TelemetryGuard(provider))
}

fn json_log_layer<W>(writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer(RedactingMakeWriter(writer))
        .boxed()
}

fn build_exporter(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .context("the trace exporter could not be made")?;
    let resource = Resource::builder().with_service_name("cynode").build();
    let exporter = RedactingExporter(exporter);
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
