//! One attempt at one provider: encode the request, reserve the worst-case cost, get the response, handle a failure.

use std::{sync::Arc, time::Instant};

use cynode_core::{events::EventKind, sync::lock_unpoisoned};
use cynode_db::models::registry;
use cynode_models::{
    cassette::ResponseCassette,
    cost_bound,
    dialect::{
        DialectCodec as _,
        canonical::{CanonicalRequest, ModelError, ModelErrorKind},
    },
    script::ModelScript,
    stream_observer::ResponseObservation,
    upstream::{UpstreamEndpoint, UpstreamFailure, UpstreamResponse},
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{
    DEFAULT_QUOTA_COOLDOWN, InferenceAnswer, InferenceRequest, InferenceRuntime, MIN_KEY_COOLDOWN,
    ModelRegistry, PROVIDER_BREAKER, RATE_LIMIT_COOLDOWN, RequestDraft, RouteError,
    caller_gone_error, decode_canonical_request, format_timestamp,
    reservation::{ReservedCall, WorstCase, reserve_call},
    response_stream::{CassetteRecorder, RelayedCall, relay_answer, send_ready_answer},
    routes::{AnswerSource, OpenProviderKey, UpstreamRoute},
};
use crate::{App, Error, OperationRequest, platform::context::EventDraft};

/// One attempt to answer a request by one route.
pub(super) struct ProviderAttempt<'a> {
    pub(super) app: &'a App,
    pub(super) models: &'a Arc<InferenceRuntime>,
    pub(super) registry: &'a Arc<ModelRegistry>,
    /// The client's request.
    pub(super) request: &'a InferenceRequest,
    /// The request's body, prepared for the registry.
    pub(super) draft: &'a RequestDraft,
    /// Id of the model that the client named.
    pub(super) model_id: &'a str,
    /// Digest of the draft, which finds repeated calls.
    pub(super) prompt_digest: [u8; 32],
    pub(super) route: &'a UpstreamRoute,
    /// Epochs of the registry and of the preferences that the route was chosen by, added up.
    pub(super) epoch: i64,
    /// Key of the provider, if it needs one.
    pub(super) key: Option<&'a OpenProviderKey>,
}

/// Failure of an attempt.
pub(super) enum CandidateError {
    /// No other candidate is tried.
    Over(RouteError),
    /// The key rests for this tenant until that time. Another key of the same provider may be tried.
    NextKey(OffsetDateTime),
    /// The next candidate may be tried. The time is the end of the key's cooldown.
    Next(ModelError, Option<OffsetDateTime>),
}

/// A request in the form that the provider reads.
struct ProviderRequest {
    body: Value,
    /// Canonical request, where the provider has another dialect than the client.
    canonical: Option<CanonicalRequest>,
}

impl ProviderAttempt<'_> {
    /// Makes the attempt.
    pub(super) async fn run(&self) -> Result<InferenceAnswer, CandidateError> {
        match &self.route.provider.source {
            AnswerSource::Script(script) => self.answer_from_script(script).await,
            AnswerSource::Replay(name) => self.answer_from_cassette(name).await,
            AnswerSource::Network(endpoint) => self.call_provider(endpoint).await,
        }
    }

    async fn answer_from_script(
        &self,
        script: &ModelScript,
    ) -> Result<InferenceAnswer, CandidateError> {
        let canonical = self.decode_request()?;
        let reserved = self.reserve_worst_case(self.draft.rewrite.as_body()).await?;
        let answer = script.respond_to(&canonical);
        if let (Some(recorder), Ok(answer)) = (self.cassette_recorder(), &answer) {
            recorder.record_answer(canonical.clone(), answer.clone()).await;
        }
        send_ready_answer(self.request, reserved, &canonical, answer).await
    }

    async fn answer_from_cassette(&self, name: &str) -> Result<InferenceAnswer, CandidateError> {
        let canonical = self.decode_request()?;
        let reserved = self.reserve_worst_case(self.draft.rewrite.as_body()).await?;
        let cassette = ResponseCassette::new(self.models.cassettes.join(name));
        let answer = tokio::task::spawn_blocking({
            let canonical = canonical.clone();
            move || cassette.replay_response(&canonical)
        });
        let answer = answer.await.unwrap_or_else(|_| {
            Err(ModelError::new(ModelErrorKind::Upstream, "a cassette could not be played"))
        });
        send_ready_answer(self.request, reserved, &canonical, answer).await
    }

    async fn call_provider(
        &self,
        endpoint: &UpstreamEndpoint,
    ) -> Result<InferenceAnswer, CandidateError> {
        let ProviderRequest { body, canonical } = self.encode_for_provider()?;
        let reserved = self.reserve_worst_case(&body).await?;
        let sent = tokio::select! {
            sent = self.send_to_provider(endpoint, &body, canonical.is_none()) => sent,
            // The client has disconnected. Dropping the connection stops the provider.
            () = self.request.left.cancelled() => {
                reserved.settle_observed(&ResponseObservation::default(), true).await;
                return Err(CandidateError::Over(RouteError::Failed(caller_gone_error())));
            }
        };
        match sent {
            Ok(accepted) => {
                self.record_provider_success();
                let (provider, record) = (self.route.provider.dialect, self.cassette_recorder());
                let accepting = RelayedCall { held: reserved, provider, accepted, record };
                relay_answer(self.request, &self.draft.rewrite, canonical, accepting).await
            }
            Err(failure) => Err(self.handle_failure(reserved, failure).await),
        }
    }

    /// Decodes the client's request to its canonical form. A request that cannot be decoded is rejected.
    fn decode_request(&self) -> Result<CanonicalRequest, CandidateError> {
        decode_canonical_request(self.request, &self.draft.rewrite)
            .map_err(|error| CandidateError::Over(RouteError::Failed(error)))
    }

    /// Encodes the request for a provider on the network. In the same dialect the body is passed on unchanged, except for
    /// the model and the output limit. A request that must be translated may be rejected for its content.
    fn encode_for_provider(&self) -> Result<ProviderRequest, CandidateError> {
        let (route, provider) = (self.route, &self.route.provider);
        if provider.inline_media_only {
            // Another provider may fetch media.
            let checked = self.draft.rewrite.check_inline_media();
            checked.map_err(|error| CandidateError::Next(error, None))?;
        }
        let max_output_tokens = self.max_output_tokens();
        if provider.dialect == self.request.dialect {
            let rewrite = &self.draft.rewrite;
            let body = rewrite.to_provider_body(provider.kind, &route.upstream, max_output_tokens);
            return Ok(ProviderRequest { body, canonical: None });
        }
        let canonical = self.decode_request()?;
        let mut translated = canonical.clone();
        translated.model.clone_from(&route.upstream);
        translated.max_output_tokens = Some(u32::try_from(max_output_tokens).unwrap_or(u32::MAX));
        translated.include_usage = true;
        let body = provider.dialect.encode_request(&translated, &route.target);
        // Another provider may have a dialect that can express the request.
        let body = body.map_err(|error| CandidateError::Next(error, None))?;
        Ok(ProviderRequest { body, canonical: Some(canonical) })
    }

    /// Returns the output limit of the call: the client's, and at most the model's.
    fn max_output_tokens(&self) -> u64 {
        let requested = self.draft.rewrite.output_token_limit().unwrap_or(u64::MAX);
        requested.min(self.route.most_output).max(1)
    }

    /// Reserves the worst-case cost of a call with this body.
    async fn reserve_worst_case(&self, body: &Value) -> Result<ReservedCall, CandidateError> {
        let input_tokens = cost_bound::max_input_tokens(body, self.route.context);
        let worst_case = WorstCase::new(&self.route.prices, input_tokens, self.max_output_tokens());
        reserve_call(self, worst_case).await.map_err(CandidateError::Over)
    }

    async fn send_to_provider(
        &self,
        endpoint: &UpstreamEndpoint,
        body: &Value,
        same_dialect: bool,
    ) -> Result<UpstreamResponse, UpstreamFailure> {
        let secret = self.key.and_then(|key| key.secret.as_ref());
        let forwarded = self.request.forwarded_headers(same_dialect);
        let (body, stream) = (body.to_string().into_bytes(), self.draft.rewrite.is_streaming());
        let upstream = &self.models.upstream;
        upstream.send_request(endpoint, secret, &forwarded, body, stream, self.route.idle).await
    }

    /// Returns the recorder of the provider's cassette, if its responses are recorded.
    fn cassette_recorder(&self) -> Option<CassetteRecorder> {
        self.route.provider.record.as_ref().map(|name| CassetteRecorder {
            cassette: ResponseCassette::new(self.models.cassettes.join(name)),
            registry: self.registry.clone(),
        })
    }

    /// Records a success for the circuit breaker.
    fn record_provider_success(&self) {
        lock_unpoisoned(&self.models.breakers)
            .entry(self.route.provider.id)
            .or_insert(PROVIDER_BREAKER)
            .record_success();
    }

    /// Records a failure for the circuit breaker. Returns whether it opened.
    fn record_provider_failure(&self) -> bool {
        lock_unpoisoned(&self.models.breakers)
            .entry(self.route.provider.id)
            .or_insert(PROVIDER_BREAKER)
            .record_failure(Instant::now())
    }

    /// Handles a failed call to a provider: releases or settles the reservation, and records the cooldown of a key or the
    /// failure for the circuit breaker.
    async fn handle_failure(
        &self,
        reserved: ReservedCall,
        failure: UpstreamFailure,
    ) -> CandidateError {
        let provider = &self.route.provider;
        let UpstreamFailure { mut error, free } = failure;
        // The error of a provider may quote the request, so it is redacted.
        let message = self.registry.redactor.redact_text(&error.message).value.into_owned();
        error.message = message;
        if free {
            reserved.release_unused(&error).await;
        } else {
            reserved.settle_worst_case(&error).await;
        }
        match error.kind {
            // The provider rejected the request for a reason that holds for every other provider too.
            ModelErrorKind::BadRequest
            | ModelErrorKind::TooLarge
            | ModelErrorKind::ContentRefused => {
                self.record_provider_success();
                CandidateError::Over(RouteError::Failed(error))
            }
            ModelErrorKind::QuotaExhausted
            | ModelErrorKind::RateLimited
            | ModelErrorKind::Unauthorized => self.cool_down_key(error).await,
            // The client's credential is valid. The provider's key is not, which is for an admin to fix.
            ModelErrorKind::Forbidden | ModelErrorKind::NotFound => {
                tracing::error!(event = "provider.request_refused", provider = provider.name, error = %error, "a provider refuses our key or does not know the model");
                let message = format!("provider `{}` does not serve this model", provider.name);
                CandidateError::Next(provider_refused_error(message), None)
            }
            ModelErrorKind::Overloaded
            | ModelErrorKind::Upstream
            | ModelErrorKind::Timeout
            | ModelErrorKind::Unavailable
            | ModelErrorKind::BudgetExhausted => {
                if self.record_provider_failure() {
                    tracing::warn!(
                        event = "provider.circuit_opened",
                        provider = provider.name,
                        "a provider keeps failing; the circuit breaker opened"
                    );
                }
                CandidateError::Next(error, None)
            }
        }
    }

    /// Begins the cooldown of a key for the caller's tenant. Returns whether several tenants see it, so that it is one for
    /// everybody.
    fn park_for_tenant(&self, key: &OpenProviderKey, until: OffsetDateTime) -> bool {
        let (parks, now) = (&self.models.tenant_parks, self.app.environment().now());
        let everybody = parks.park_key(key.id, &self.request.who, until, now);
        tracing::warn!(
            event = "provider_key.rate_limited",
            provider = self.route.provider.name,
            key.id = %key.id,
            everybody,
            "a provider limits the requests of a tenant"
        );
        everybody
    }

    /// Begins the cooldown of a key that was refused or whose quota is exhausted: for everybody, because it holds for the
    /// whole key. A rate limit begins with the tenant that saw it.
    async fn cool_down_key(&self, error: ModelError) -> CandidateError {
        let default_cooldown = if error.kind == ModelErrorKind::RateLimited {
            RATE_LIMIT_COOLDOWN
        } else {
            DEFAULT_QUOTA_COOLDOWN
        };
        let cooldown =
            error.retry_after.map_or(default_cooldown, |wait| wait.max(MIN_KEY_COOLDOWN));
        let until = self.app.environment().now() + cooldown;
        let Some(key) = self.key else {
            if error.kind != ModelErrorKind::Unauthorized {
                return CandidateError::Next(error, Some(until));
            }
            // The client presented a valid credential of ours: an authentication error would mislead the client.
            let message =
                format!("provider `{}` asks for a key and has none", self.route.provider.name);
            return CandidateError::Next(provider_refused_error(message), None);
        };
        if error.kind == ModelErrorKind::RateLimited && !self.park_for_tenant(key, until) {
            return CandidateError::NextKey(until);
        }
        match self.park_key(key, until, &error).await {
            // The retry with the new registry tries the next key, or finds that all are cooling down.
            Ok(()) => CandidateError::Over(RouteError::Stale),
            Err(failure) => {
                let failure = cynode_core::error_chain::format_error_chain(&failure);
                tracing::error!(
                    event = "provider_key.park_failed",
                    error = failure,
                    "a key could not be parked"
                );
                CandidateError::Next(error, Some(until))
            }
        }
    }

    /// Stores the cooldown of a key and changes the epoch, so that every process loads the registry again.
    async fn park_key(
        &self,
        key: &OpenProviderKey,
        until: OffsetDateTime,
        error: &ModelError,
    ) -> Result<(), Error> {
        let app = self.app;
        let request = OperationRequest {
            caller: None,
            trace: app.environment().new_trace_id(),
            attempt: None,
        };
        let mut ctx = app.begin_transaction(&request).await?;
        let (now, reason) = (ctx.now, error.message.chars().take(300).collect::<String>());
        if registry::park_provider_key(ctx.conn(), key.id, until, &reason, now).await? {
            registry::bump_registry_epoch(ctx.conn()).await?;
            let data = json!({
                "provider": self.route.provider.name, "key_id": key.id, "until": format_timestamp(until),
            });
            ctx.record_event(EventDraft::new(EventKind::ProviderKeyParked, data)).await?;
        }
        app.commit_operation(ctx).await
    }
}

fn provider_refused_error(message: String) -> ModelError {
    ModelError::new(ModelErrorKind::Upstream, message).with_code("provider_refused")
}
