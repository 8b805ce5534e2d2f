//! Reservation of a call's worst-case cost, until it is settled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cynode_core::{
    ids::CallId,
    models::{Basis, CallOutcome, ModelPrices, TokenCounts},
};
use cynode_db::models::budgets::CallSettlement;
use cynode_models::{
    dialect::canonical::{ModelError, TokenUsage},
    stream_observer::ResponseObservation,
};
use serde_json::json;

use super::{InferenceRuntime, telemetry};
use crate::App;

/// A call whose worst-case cost is reserved.
pub(super) struct ReservedCall {
    pub(super) app: App,
    pub(super) models: Arc<InferenceRuntime>,
    pub(super) call: CallId,
    pub(super) started: Instant,
    pub(super) first_byte: Option<Duration>,
    pub(super) prices: ModelPrices,
    pub(super) most_input: u64,
    pub(super) most_output: u64,
    pub(super) most_micros: i64,
    pub(super) labels: telemetry::CallLabels,
}

impl ReservedCall {
    /// Settles the call at its cost.
    pub(super) async fn settle_call(
        self,
        outcome: CallOutcome,
        error: Option<&ModelError>,
        tokens: TokenCounts,
        basis: Basis,
    ) {
        let micros = i64::try_from(self.prices.cost_micros(&tokens)).unwrap_or(i64::MAX);
        if micros > self.most_micros {
            tracing::error!(
                event = "model_call.cost_bound_exceeded",
                call.id = %self.call,
                micros,
                held = self.most_micros,
                "a call cost more than was reserved for it"
            );
        }
        let milliseconds = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        let duration = self.started.elapsed();
        let facts = json!({
            "outcome": outcome, "basis": basis,
            "error": error.map(|error| json!(error.kind)).unwrap_or_default(),
            "input_tokens": tokens.input, "cached_tokens": tokens.cached,
            "cache_write_tokens": tokens.cache_write, "output_tokens": tokens.output,
            "reasoning_tokens": tokens.reasoning, "cost_micros": micros,
            "first_byte_ms": self.first_byte.map(milliseconds), "duration_ms": milliseconds(duration),
        });
        let total = i64::try_from(tokens.total_tokens()).unwrap_or(i64::MAX);
        telemetry::record_ended_call(
            &self.labels,
            outcome,
            &tokens,
            micros,
            duration,
            self.first_byte,
        );
        let settlement = CallSettlement { call: self.call, micros, tokens: total, facts };
        self.models.ledger.settle_call(self.app.pool(), settlement).await;
    }

    /// Settles the call at its worst-case cost, because its usage is unknown.
    pub(super) async fn settle_worst_case(self, error: &ModelError) {
        let tokens = TokenCounts {
            input: self.most_input,
            output: self.most_output,
            ..TokenCounts::default()
        };
        self.settle_call(CallOutcome::Failed, Some(error), tokens, Basis::WorstCase).await;
    }

    /// Releases the reservation, because nothing was used.
    pub(super) async fn release_unused(self, error: &ModelError) {
        self.settle_call(CallOutcome::Failed, Some(error), TokenCounts::default(), Basis::Free)
            .await;
    }

    /// Settles the call by its observed response. A client that disconnects after the end did not abandon the call.
    pub(super) async fn settle_observed(self, seen: &ResponseObservation, given_up: bool) {
        let ended = seen.stop.is_some() && seen.error.is_none();
        let outcome = match (ended, given_up) {
            (true, _) => CallOutcome::Answered,
            (false, true) => CallOutcome::GivenUp,
            (false, false) => CallOutcome::Failed,
        };
        let (tokens, basis) = match (seen.usage, ended) {
            (Some(usage), true) => (usage.into(), Basis::Reported),
            // The response was cut off or has no usage. The model may have produced hidden output, so the visible
            // part says little about the bill.
            (usage, _) => {
                let known =
                    usage.unwrap_or(TokenUsage { input: self.most_input, ..TokenUsage::default() });
                (TokenCounts { output: self.most_output, ..known.into() }, Basis::Bounded)
            }
        };
        self.settle_call(outcome, seen.error.as_ref(), tokens, basis).await;
    }
}

impl Drop for ReservedCall {
    fn drop(&mut self) {
        // A settled call needs no tracking. Otherwise something failed: nobody renews the call, and it will count at
        // its worst-case cost.
        self.models.ledger.stop_tracking(self.call);
    }
}
