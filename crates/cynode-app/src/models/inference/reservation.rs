//! Reservation of a call's worst-case cost, until it is settled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cynode_core::{
    ids::CallId,
    models::{Basis, CallOutcome, ModelPrices, TokenCounts},
};
use cynode_db::models::budgets::{CallReservation, CallSettlement, ReservationOutcome};
use cynode_models::{
    dialect::canonical::{ModelError, TokenUsage},
    stream_observer::ResponseObservation,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{
    InferenceRuntime, RouteError,
    attempt::ProviderAttempt,
    caller_gone_error, format_timestamp,
    ledger::BudgetWait,
    rejection::{budget_exhausted_error, parked_task_error},
    telemetry, to_model_error,
};
use crate::App;

/// Worst case of a call: the most that it can use and cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorstCase {
    input_tokens: u64,
    output_tokens: u64,
    cost_micros: i64,
}

impl WorstCase {
    /// Computes the worst-case cost of these numbers of tokens.
    pub(super) fn new(prices: &ModelPrices, input_tokens: u64, output_tokens: u64) -> Self {
        let cost_micros = saturate(prices.worst_case_micros(input_tokens, output_tokens));
        Self { input_tokens, output_tokens, cost_micros }
    }

    fn total_tokens(self) -> i64 {
        saturate(self.input_tokens.saturating_add(self.output_tokens))
    }
}

/// Converts a number to the signed type of the database.
fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reserves the worst-case cost of a call. Returns why the call is rejected otherwise.
pub(super) async fn reserve_call(
    attempt: &ProviderAttempt<'_>,
    worst_case: WorstCase,
) -> Result<ReservedCall, RouteError> {
    let ProviderAttempt { app, models, registry, request, route, epoch, .. } = *attempt;
    let now = app.environment().now();
    let call = CallId::from_uuid(app.environment().new_uuid(now));
    let reservation = CallReservation {
        call,
        waiter: attempt.draft.turn.waiter_id(call),
        epoch,
        user: request.who.user,
        project: request.who.project,
        task: request.who.task_id(),
        digest: attempt.prompt_digest,
        micros: worst_case.cost_micros,
        tokens: worst_case.total_tokens(),
        facts: build_call_facts(attempt, call, now, worst_case),
    };
    let wait = BudgetWait {
        turn: &attempt.draft.turn,
        limit: registry.budget_wait,
        client_gone: &request.left,
    };
    let reserved = models.ledger.reserve_in_turn(app, reservation, registry.loop_guard, wait).await;
    match reserved.map_err(|error| RouteError::Failed(to_model_error(&error.into())))? {
        ReservationOutcome::Held => {}
        ReservationOutcome::Stale => return Err(RouteError::Stale),
        ReservationOutcome::Full(_) if request.left.is_cancelled() => {
            return Err(caller_gone_error().into());
        }
        ReservationOutcome::Full(budget) | ReservationOutcome::Waiting { budget, .. } => {
            return Err(budget_exhausted_error(app, models, request, budget).await.into());
        }
        ReservationOutcome::Parked(park, new) => {
            return Err(parked_task_error(app, request, &park, new).await.into());
        }
    }
    let provider = &route.provider.name;
    Ok(ReservedCall {
        app: app.clone(),
        models: models.clone(),
        call,
        started: Instant::now(),
        first_byte: None,
        prices: route.prices,
        worst_case,
        labels: telemetry::CallLabels::new(request.dialect, attempt.model_id, provider),
    })
}

/// Builds the stored facts of a call. Its usage is the worst case until the call is settled.
fn build_call_facts(
    attempt: &ProviderAttempt<'_>,
    call: CallId,
    now: OffsetDateTime,
    worst_case: WorstCase,
) -> Value {
    let (request, route, draft) = (attempt.request, attempt.route, attempt.draft);
    let who = &request.who;
    json!({
        "call_id": call.as_uuid(), "started_at": format_timestamp(now), "user_id": who.user.as_uuid(),
        "project_id": who.project.map(|id| id.as_uuid()), "task_id": who.task_id().map(|id| id.as_uuid()),
        "run_id": who.run_id().map(|id| id.as_uuid()), "job_id": who.job_id().map(|id| id.as_uuid()),
        "agent_token_id": who.agent_token().map(|id| id.as_uuid()), "agent_role": who.agent_role().map(|role| role.as_str()),
        "credential": who.credential, "trace_id": request.trace.to_string(), "dialect": request.dialect.as_str(),
        "model": attempt.model_id, "provider": route.provider.name, "upstream": route.upstream,
        "prompt_digest": format!("\\x{}", data_encoding::HEXLOWER.encode(&attempt.prompt_digest)),
        "redactions": draft.redactions, "streamed": draft.rewrite.is_streaming(),
        "input_tokens": worst_case.input_tokens, "cached_tokens": 0, "cache_write_tokens": 0,
        "output_tokens": worst_case.output_tokens, "reasoning_tokens": 0,
    })
}

/// A call whose worst-case cost is reserved.
pub(super) struct ReservedCall {
    pub(super) app: App,
    pub(super) models: Arc<InferenceRuntime>,
    pub(super) call: CallId,
    pub(super) started: Instant,
    pub(super) first_byte: Option<Duration>,
    pub(super) prices: ModelPrices,
    pub(super) worst_case: WorstCase,
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
        if micros > self.worst_case.cost_micros {
            tracing::error!(
                event = "model_call.cost_bound_exceeded",
                call.id = %self.call,
                micros,
                held = self.worst_case.cost_micros,
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
            input: self.worst_case.input_tokens,
            output: self.worst_case.output_tokens,
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
                let known = usage.unwrap_or(TokenUsage {
                    input: self.worst_case.input_tokens,
                    ..TokenUsage::default()
                });
                (
                    TokenCounts { output: self.worst_case.output_tokens, ..known.into() },
                    Basis::Bounded,
                )
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
