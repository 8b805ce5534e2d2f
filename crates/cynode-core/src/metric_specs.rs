//! The table of metrics: the name of each, its type, its labels and its meaning. Whoever records a metric takes its name from here, and
//! `cynode reference` writes `docs/reference/metrics.md` from it.

/// The Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that only grows.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Quantiles, sum and count of what was observed.
    Summary,
}

impl MetricType {
    /// The word of the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// The name at `/metrics`; it ends with the unit, and with `_total` if it is a counter.
    pub name: &'static str,
    /// The Prometheus type.
    pub kind: MetricType,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it counts or measures.
    pub meaning: &'static str,
}

/// The labels of every metric of a model call.
const MODEL_CALL_LABELS: &[&str] =
    &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

macro_rules! metric_specs {
    ($(#[doc = $meaning:literal] $name:ident = $text:literal, $kind:ident, $labels:expr;)+) => {
        $(
            #[doc = $meaning]
            pub const $name: MetricSpec = MetricSpec {
                name: $text,
                kind: MetricType::$kind,
                labels: $labels,
                meaning: $meaning.trim_ascii(),
            };
        )+

        /// Every metric, ordered by name.
        pub static METRICS: &[MetricSpec] = &[$($name,)+];
    };
}

metric_specs! {
    /// Age of the oldest privileged event that is in no chain of audit records yet.
    AUDIT_EVENT_QUEUE_SECONDS = "audit_event_queue_seconds", Gauge, &[];
    /// Deliveries of audit records to a sink that failed.
    AUDIT_EXPORT_FAILURES = "audit_export_failures_total", Counter, &["sink"];
    /// Audit records that a sink has not received.
    AUDIT_EXPORT_LAG_RECORDS = "audit_export_lag_records", Gauge, &["sink"];
    /// Age of the oldest audit record that a sink has not received.
    AUDIT_EXPORT_LAG_SECONDS = "audit_export_lag_seconds", Gauge, &["sink"];
    /// Privileged events that could not be recorded as they are, and have a record that only names them.
    AUDIT_UNFIT_EVENTS = "audit_unfit_events_total", Counter, &[];
    /// Refusals that the gateway did not record because refused callers exceeded the rate limit of records; `caller` is `agent`, `former` or `stranger`.
    GATEWAY_UNRECORDED_REFUSALS = "gateway_unrecorded_refusals_total", Counter, &["caller"];
    /// Duration of model calls, from the request to the end of the response.
    MODEL_CALL_DURATION = "gen_ai_client_operation_duration_seconds", Summary, MODEL_CALL_LABELS;
    /// Time from the request of a model call to the first chunk of its response.
    MODEL_TIME_TO_FIRST_CHUNK = "gen_ai_client_time_to_first_chunk_seconds", Summary, MODEL_CALL_LABELS;
    /// Tokens of model calls; `gen_ai_token_type` is `input` or `output`.
    MODEL_TOKENS = "gen_ai_client_token_usage_total", Counter, &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"];
    /// Duration of HTTP requests until the response begins; `route` is the pattern of the path, or `unmatched`.
    HTTP_REQUEST_DURATION = "http_request_duration_seconds", Summary, &["route"];
    /// HTTP requests by method, pattern of the path and status.
    HTTP_REQUESTS = "http_requests_total", Counter, &["method", "route", "status"];
    /// Model calls that were refused before a provider was asked; `reason` is `budget`, `content`, `quota`, `repeats`, `no_progress` or `spend_rate`.
    MODEL_CALLS_REFUSED = "model_calls_refused_total", Counter, &["reason"];
    /// Model calls that ended; `outcome` is `answered`, `failed`, `given_up` or `lost`.
    MODEL_CALLS = "model_calls_total", Counter, &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "outcome"];
    /// Cost of model calls in millionths of the currency.
    MODEL_COST = "model_cost_micros_total", Counter, MODEL_CALL_LABELS;
    /// Time at which the certificate of a port, or the certificate authority of the installation, expires, in seconds of Unix time; `use` is `user_port`, `internal_port` or `authority`.
    TLS_CERTIFICATE_EXPIRY = "tls_certificate_expiry_timestamp_seconds", Gauge, &["use"];
    /// Certificates of a port that were loaded again; `outcome` is `reloaded` or `refused`.
    TLS_CERTIFICATE_RELOADS = "tls_certificate_reloads_total", Counter, &["outcome"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_ordered_by_name_and_each_is_there_once() {
        assert!(METRICS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn only_counters_end_with_total() {
        for spec in METRICS {
            assert_eq!(spec.name.ends_with("_total"), spec.kind == MetricType::Counter, "{spec:?}");
        }
    }
}
