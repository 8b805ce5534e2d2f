//! Metrics and spans of model calls, named by OpenTelemetry's conventions for generative AI.

use std::time::Duration;

use cynode_core::{
    metric_specs::{
        MODEL_CALL_DURATION, MODEL_CALLS, MODEL_CALLS_REFUSED, MODEL_COST,
        MODEL_TIME_TO_FIRST_CHUNK, MODEL_TOKENS,
    },
    models::{CallOutcome, TokenCounts},
};
use cynode_models::dialect::Dialect;

/// Labels of the metrics of a call.
#[derive(Clone, Debug)]
pub(super) struct CallLabels {
    operation: &'static str,
    model: String,
    provider: String,
    span: tracing::Span,
}

impl CallLabels {
    pub(super) fn new(dialect: Dialect, model: &str, provider: &str) -> Self {
        let operation = match dialect {
            Dialect::Chat | Dialect::Messages => "chat",
            Dialect::Responses => "generate_content",
        };
        let span = tracing::info_span!(
            "model.call",
            otel.kind = "client",
            gen_ai.operation.name = operation,
            gen_ai.provider.name = provider,
            gen_ai.request.model = model,
            gen_ai.usage.input_tokens = tracing::field::Empty,
            gen_ai.usage.output_tokens = tracing::field::Empty,
            error.r#type = tracing::field::Empty,
        );
        Self { operation, model: model.to_owned(), provider: provider.to_owned(), span }
    }
}

/// Records a call that was rejected before it was made.
pub(super) fn record_refused_call(reason: &'static str) {
    metrics::counter!(MODEL_CALLS_REFUSED.name, "reason" => reason).increment(1);
}

/// Records an ended call.
pub(super) fn record_ended_call(
    labels: &CallLabels,
    outcome: CallOutcome,
    tokens: &TokenCounts,
    micros: i64,
    duration: Duration,
    first_byte: Option<Duration>,
) {
    labels.span.record("gen_ai.usage.input_tokens", tokens.input);
    labels.span.record("gen_ai.usage.output_tokens", tokens.output);
    if outcome != CallOutcome::Answered {
        labels.span.record("error.type", outcome.as_str());
    }
    let (model, provider) = (labels.model.clone(), labels.provider.clone());
    let common = [
        ("gen_ai_operation_name", labels.operation.to_owned()),
        ("gen_ai_provider_name", provider),
        ("gen_ai_request_model", model),
    ];
    let with = |name: &'static str, value: &str| {
        let mut labels = common.to_vec();
        labels.push((name, value.to_owned()));
        labels
    };
    metrics::counter!(MODEL_CALLS.name, &with("outcome", outcome.as_str())).increment(1);
    for (kind, count) in [("input", tokens.input), ("output", tokens.output)] {
        metrics::counter!(MODEL_TOKENS.name, &with("gen_ai_token_type", kind)).increment(count);
    }
    metrics::counter!(MODEL_COST.name, &common).increment(micros.unsigned_abs());
    metrics::histogram!(MODEL_CALL_DURATION.name, &common).record(duration.as_secs_f64());
    if let Some(first) = first_byte {
        metrics::histogram!(MODEL_TIME_TO_FIRST_CHUNK.name, &common).record(first.as_secs_f64());
    }
}
