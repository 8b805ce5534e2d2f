//! Logs and traces. One log line is one JSON object.

use std::{fs::OpenOptions, path::Path, sync::Mutex};

use anyhow::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::{config::Telemetry, redact::Redacting};

/// Where log lines go.
pub(crate) enum Sink<'a> {
    /// Standard error, for whoever supervises the process.
    Stderr,
    /// Standard error, beside the answer to a person: only what is wrong, unless more was asked for.
    Person,
    /// A file, when a person is at the terminal.
    File(&'a Path),
}

/// Ends telemetry: what was not yet exported is exported when it is dropped.
pub(crate) struct Guard(Option<SdkTracerProvider>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(event = "error", error = %error, "the last spans were not exported");
        }
    }
}

/// Sets up logs and, when an endpoint is configured, the export of traces. It must be called before
/// the async runtime starts: the exporter has a thread and a client of its own.
pub(crate) fn start(config: &Telemetry, sink: &Sink<'_>) -> anyhow::Result<Guard> {
    let wanted = match sink {
        Sink::Person if config.log == Telemetry::USUAL => "warn",
        Sink::Person | Sink::Stderr | Sink::File(_) => &config.log,
    };
    let filter = EnvFilter::try_new(wanted).context("telemetry.log is not a log filter")?;
    let provider = config.otlp_endpoint.as_deref().map(exporter).transpose()?;
    let traces = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("cynode")));
    let logs = match sink {
        Sink::Stderr | Sink::Person => json_lines(std::io::stderr),
        Sink::File(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.with_context(|| format!("cannot write the log {}", path.display()))?;
            json_lines(Mutex::new(file))
        }
    };
    tracing_subscriber::registry().with(vec![logs]).with(traces).with(filter).try_init()?;
    Ok(Guard(provider))
}

fn json_lines<W>(writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer(Redacting(writer))
        .boxed()
}

fn exporter(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .context("the trace exporter could not be made")?;
    let resource = Resource::builder().with_service_name("cynode").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
