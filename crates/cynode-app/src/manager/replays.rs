//! Replays of decisions: a person has the recorded prompt of a decision asked again, by the same model or another one.
//!
//! **Invariant**: a replay changes nothing but its own record. The record is stored before the model is asked and ended once. A repeat with
//! the same idempotency key gets the same replay and asks no model. A replay whose process died has no end; it is shown as failed from
//! its deadline on, and its model call counts at its worst-case cost like every lost call.

use std::time::{Duration, Instant};

use cynode_core::{
    events::EventKind,
    ids::{CallId, HandoffId, ProjectId, ReplayId},
    models::PROJECT_MANAGER_MODEL_ID,
    roles::UserRole,
    workflow::{
        handoffs::ModelDecision,
        replays::{ReplayState, compare_answers, extract_json},
    },
};
use cynode_db::manager::{
    handoffs::{self, HandoffRecord},
    replays::{self, NewReplay, ReplayOutcome, ReplayRecord},
};
use cynode_policy::schema::ToolSchema;
use cynode_wire::manager::handoffs::{DecisionReplayView, DecisionReplays, ReplayDecision};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::handoffs::{load_decided_handoff, missing_decision};
use crate::{
    App, Ctx, Error, OperationAnswer, OperationRequest,
    models::inference::{self, Dialect, InferenceAnswer, InferenceCaller, InferenceRequest},
    platform::{context::EventDraft, error::log_background_error, operation, redaction},
    tasks::projects::ProjectRef,
};

/// Maximum number of replays of one person that run at once.
const MAX_RUNNING_REPLAYS: i64 = 3;

/// Maximum time that a model may take for a replay.
const MAX_REPLAY_TIME: Duration = Duration::from_mins(10);

/// Time from which a replay without an end counts as cut off. It is longer than [`MAX_REPLAY_TIME`], so that no replay that still runs
/// is shown as failed.
const REPLAY_DEADLINE: time::Duration = time::Duration::minutes(12);

/// Maximum number of characters that are stored of an answer in the wrong form, and of an error.
const MAX_ANSWER_TEXT_CHARS: usize = 8_000;
const MAX_ERROR_CHARS: usize = 1_000;

/// A decision that can be asked again.
struct ReplaySource {
    project: ProjectId,
    decision: ModelDecision,
    /// The recorded request to the model.
    prompt: Value,
}

/// A replay that is asked for.
#[derive(Clone)]
struct ReplayRequest {
    handoff: HandoffId,
    step: u32,
    prompt_digest: String,
    model: String,
}

/// A replay that is stored. A repeat of the request finds it by this.
#[derive(Serialize, Deserialize)]
struct BegunReplay {
    replay_id: ReplayId,
}

/// Has a decision asked again, and returns what came of it. The person must be allowed to use models in the project.
#[tracing::instrument(name = "app.replays.replay_decision", skip_all, fields(handoff.id = %id, step))]
#[operation]
pub async fn replay_decision(
    app: &App,
    request: &OperationRequest,
    id: HandoffId,
    step: u32,
    body: ReplayDecision,
) -> Result<OperationAnswer, Error> {
    let source = app.read(request, |ctx| Box::pin(load_source(ctx, id, step))).await?;
    let place = Some(ProjectRef::Id(source.project));
    let who = inference::resolve_user_caller(app, request, place).await?;
    let model = choose_model(app, &who, &source.decision, body.model).await?;
    let prompt_digest = source.decision.prompt_digest;
    let asked = ReplayRequest { handoff: id, step, prompt_digest, model };
    let new = asked.clone();
    let begun = app.mutate(request, |ctx| Box::pin(async move { begin_replay(ctx, &new).await }));
    let begun = begun.await?;
    let BegunReplay { replay_id } = serde_json::from_slice(&begun.body)
        .map_err(|error| Error::Internal(anyhow::Error::from(error).context("a replay")))?;
    if !begun.replayed {
        let question = build_question(source.prompt, &asked.model, who, request);
        run_replay(app, request, &asked, replay_id, question).await?;
    }
    let view = app.read(request, |ctx| Box::pin(load_replay_view(ctx, replay_id))).await?;
    let body = serde_json::to_vec(&view).map_err(|error| Error::Internal(error.into()))?;
    Ok(OperationAnswer { body, replayed: begun.replayed })
}

/// Lists the replays of a decision beside the decision itself.
#[tracing::instrument(name = "app.replays.list_decision_replays", skip_all, fields(handoff.id = %id, step))]
#[operation]
pub async fn list_decision_replays(
    ctx: &mut Ctx,
    id: HandoffId,
    step: u32,
) -> Result<DecisionReplays, Error> {
    let kept = load_decided_handoff(ctx, id, UserRole::Viewer).await?;
    let (decision, cost_micros) = load_decision(ctx, &kept, step).await?;
    let prompt_held = handoffs::get_decision_prompt(ctx.conn(), id, step).await?.is_some();
    let found = replays::list_replays(ctx.conn(), id, step, &decision.prompt_digest).await?;
    let now = ctx.now;
    let replays = found.into_iter().map(|record| to_replay_view(record, &decision, now)).collect();
    Ok(DecisionReplays { decision, cost_micros, prompt_held, replays })
}

/// Returns a decision of a handoff and its cost.
async fn load_decision(
    ctx: &mut Ctx,
    kept: &HandoffRecord,
    step: u32,
) -> Result<(ModelDecision, i64), Error> {
    let all = handoffs::list_decisions(ctx.conn(), kept.id, kept.created_at).await?;
    let found = all.into_iter().find(|(decision, _)| decision.step == step);
    found.ok_or_else(|| missing_decision(kept.id))
}

async fn load_source(ctx: &mut Ctx, id: HandoffId, step: u32) -> Result<ReplaySource, Error> {
    let kept = load_decided_handoff(ctx, id, UserRole::Operator).await?;
    let (decision, _) = load_decision(ctx, &kept, step).await?;
    let prompt = handoffs::get_decision_prompt(ctx.conn(), id, step).await?;
    let prompt = prompt.ok_or(Error::Conflict(
        "the prompt of this decision is no longer held: its retention (`transcripts.retention_days`) has passed",
    ))?;
    if !prompt["messages"].is_array() {
        return Err(Error::Conflict("the recorded prompt is no request to a model"));
    }
    Ok(ReplaySource { project: kept.project, decision, prompt })
}

/// Returns the model to ask: one that the person may use in the project. The project manager is no model, and asking it would begin a
/// conversation.
async fn choose_model(
    app: &App,
    who: &InferenceCaller,
    decision: &ModelDecision,
    wanted: Option<String>,
) -> Result<String, Error> {
    let wanted = wanted.unwrap_or_else(|| decision.model.clone());
    let offered = inference::list_offered_models(app, who).await?;
    let known: Vec<&str> = offered
        .iter()
        .map(|model| model.id.as_str())
        .filter(|model| *model != PROJECT_MANAGER_MODEL_ID)
        .collect();
    if known.contains(&wanted.as_str()) {
        return Ok(wanted);
    }
    Err(Error::not_found_near("model", &wanted, known))
}

async fn begin_replay(ctx: &mut Ctx, new: &ReplayRequest) -> Result<BegunReplay, Error> {
    let kept = load_decided_handoff(ctx, new.handoff, UserRole::Operator).await?;
    let (decision, _) = load_decision(ctx, &kept, new.step).await?;
    if decision.prompt_digest != new.prompt_digest {
        return Err(Error::Conflict("another decision was recorded at this step meanwhile"));
    }
    let id = ReplayId::from_uuid(ctx.new_uuid());
    let record = NewReplay {
        id,
        handoff: new.handoff,
        step: new.step,
        prompt_digest: &new.prompt_digest,
        user: ctx.caller()?.user,
        model: &new.model,
        trace: ctx.trace,
        created_at: ctx.now,
        expires_at: ctx.now + REPLAY_DEADLINE,
    };
    if !replays::insert_replay(ctx.conn(), &record, MAX_RUNNING_REPLAYS).await? {
        return Err(Error::RateLimited {
            what: "at most 3 replays of one person run at once",
            after: Duration::from_secs(5),
        });
    }
    ctx.record_event(draft_event(&kept, new, id, ReplayState::Running)).await?;
    Ok(BegunReplay { replay_id: id })
}

fn draft_event(
    kept: &HandoffRecord,
    new: &ReplayRequest,
    id: ReplayId,
    state: ReplayState,
) -> EventDraft {
    let data = json!({
        "handoff_id": new.handoff, "step": new.step, "replay_id": id, "model": new.model, "state": state,
    });
    let told = EventDraft::new(EventKind::HandoffReplayed, data).with_project(kept.project);
    match kept.task {
        Some(task) => told.with_task(task),
        None => told,
    }
}

/// Builds the request to the model from the recorded one.
fn build_question(
    mut prompt: Value,
    model: &str,
    who: InferenceCaller,
    request: &OperationRequest,
) -> InferenceRequest {
    if let Some(fields) = prompt.as_object_mut() {
        fields.insert("model".into(), Value::String(model.to_owned()));
        for streaming in ["stream", "stream_options"] {
            fields.remove(streaming);
        }
    }
    let size = prompt.to_string().len();
    let question =
        InferenceRequest::new(Dialect::Chat, prompt, size, who, request.trace, Vec::new());
    // The gateway had added the skill to the recorded request, too.
    question.with_manager_skill()
}

/// Asks the model and ends the replay with what came of it.
async fn run_replay(
    app: &App,
    request: &OperationRequest,
    asked: &ReplayRequest,
    id: ReplayId,
    question: InferenceRequest,
) -> Result<(), Error> {
    let started = Instant::now();
    let (call, outcome) = ask_model_within_time(app, question).await;
    let latency_ms = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
    let state = match &outcome {
        ReplayOutcome::Answered(_) => ReplayState::Answered,
        ReplayOutcome::Invalid { .. } => ReplayState::Invalid,
        ReplayOutcome::Failed(_) => ReplayState::Failed,
    };
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    if replays::finish_replay(ctx.conn(), id, &outcome, call, latency_ms, now).await? {
        let kept = handoffs::get_handoff(ctx.conn(), asked.handoff).await?;
        let kept = kept.ok_or_else(|| missing_decision(asked.handoff))?;
        ctx.record_event(draft_event(&kept, asked, id, state)).await?;
    }
    app.commit_operation(ctx).await
}

/// Asks a model and reads its answer. An answer that cannot be redacted is not stored.
async fn ask_model_within_time(
    app: &App,
    question: InferenceRequest,
) -> (Option<CallId>, ReplayOutcome) {
    let form = question.body["response_format"]["json_schema"]["schema"].clone();
    let left = question.left.clone();
    let mut asked = inference::ask_model(app, question);
    let answer = match tokio::time::timeout(MAX_REPLAY_TIME, &mut asked).await {
        Ok(answer) => answer,
        Err(_) => {
            // The call is given up, and settled, as when a client disconnects.
            left.cancel();
            asked.await
        }
    };
    match answer {
        Ok(InferenceAnswer::Whole(call, body)) => {
            let outcome = read_answer(app, &body, &form).await.unwrap_or_else(|error| {
                let told = "the answer could not be searched for secrets and was not stored";
                log_background_error("replay.redact_failed", &error, told);
                ReplayOutcome::Failed(told.into())
            });
            (Some(call), outcome)
        }
        Ok(InferenceAnswer::Streamed(call, _)) => {
            (Some(call), ReplayOutcome::Failed("the answer came as a stream".into()))
        }
        Err(error) => {
            (None, ReplayOutcome::Failed(truncate_chars(&error.message, MAX_ERROR_CHARS)))
        }
    }
}

/// Reads the answer of a model: JSON of the form that was asked for, or what is wrong with it.
async fn read_answer(app: &App, body: &Value, form: &Value) -> Result<ReplayOutcome, Error> {
    let message = &body["choices"][0]["message"];
    let content = message["content"].as_str().or_else(|| message["refusal"].as_str());
    let text = content.unwrap_or_default();
    match check_answer(text, form) {
        Ok(mut output) => {
            redaction::redact_value(app, &mut output).await?;
            Ok(ReplayOutcome::Answered(output))
        }
        Err(error) => {
            let cut = body["choices"][0]["finish_reason"] == "length";
            let error = if cut { format!("it was cut off: {error}") } else { error };
            let text = redaction::redact_text(app, text.to_owned()).await?;
            let error = redaction::redact_text(app, error).await?;
            Ok(ReplayOutcome::Invalid {
                text: truncate_chars(&text, MAX_ANSWER_TEXT_CHARS),
                error: truncate_chars(&error, MAX_ERROR_CHARS),
            })
        }
    }
}

/// Checks an answer by the form that the recorded prompt asks for. What a program would have checked beyond it is not checked.
fn check_answer(text: &str, form: &Value) -> Result<Value, String> {
    let output = extract_json(text)?;
    if output.is_null() {
        return Err("it is null".into());
    }
    if form.is_null() {
        return Ok(output);
    }
    let schema = ToolSchema::compile_schema(&relax_strict_form(form))
        .map_err(|error| format!("the form that was asked for cannot be checked: {error}"))?;
    match schema.find_violation(&output) {
        Some(violation) => Err(violation),
        None => Ok(output),
    }
}

/// Returns a form in which members that may be null need not be there. The strict form that models get requires every member, and programs
/// take an answer that leaves such a member out.
fn relax_strict_form(form: &Value) -> Value {
    match form {
        Value::Object(fields) => {
            let relaxed = fields.iter().map(|(key, part)| (key.clone(), relax_strict_form(part)));
            let mut relaxed: Map<String, Value> = relaxed.collect();
            if let (Some(Value::Array(required)), Some(members)) =
                (fields.get("required"), fields.get("properties"))
            {
                let is_optional = |name: &Value| {
                    let member = name.as_str().and_then(|name| members.get(name));
                    member.is_some_and(admits_null)
                };
                let needed = required.iter().filter(|name| !is_optional(name)).cloned().collect();
                relaxed.insert("required".into(), Value::Array(needed));
            }
            Value::Object(relaxed)
        }
        Value::Array(parts) => Value::Array(parts.iter().map(relax_strict_form).collect()),
        value => value.clone(),
    }
}

fn admits_null(form: &Value) -> bool {
    let has_null = |key: &str, null: Value| match &form[key] {
        Value::Array(values) => values.contains(&null),
        value => *value == null && !value.is_null(),
    };
    has_null("type", json!("null"))
        || has_null("enum", Value::Null)
        || form["anyOf"].as_array().is_some_and(|branches| branches.iter().any(admits_null))
}

fn truncate_chars(text: &str, limit: usize) -> String {
    text.chars().take(limit).collect()
}

async fn load_replay_view(ctx: &mut Ctx, id: ReplayId) -> Result<DecisionReplayView, Error> {
    let record = replays::get_replay(ctx.conn(), id).await?;
    let record = record.ok_or_else(|| Error::not_found("replay", id))?;
    let kept = load_decided_handoff(ctx, record.handoff, UserRole::Viewer).await?;
    let (decision, _) = load_decision(ctx, &kept, record.step).await?;
    let now = ctx.now;
    Ok(to_replay_view(record, &decision, now))
}

fn to_replay_view(
    record: ReplayRecord,
    decision: &ModelDecision,
    now: OffsetDateTime,
) -> DecisionReplayView {
    let lost = record.state == ReplayState::Running && now >= record.expires_at;
    let told = "the process that asked the model ended before it stored an answer";
    let answers = decision.output.as_ref().zip(record.output.as_ref());
    let differences = answers
        .map(|(original, replay)| compare_answers(Some(original), Some(replay)))
        .unwrap_or_default();
    let count = |number: Option<i64>| number.map(i64::unsigned_abs);
    DecisionReplayView {
        replay_id: record.id,
        handoff_id: record.handoff,
        step: record.step,
        state: if lost { ReplayState::Failed } else { record.state },
        user_id: record.user,
        model: record.model,
        provider: record.provider,
        upstream: record.upstream,
        is_same: answers.map(|_| differences.is_empty()),
        differences,
        output: record.output,
        answer_text: record.answer_text,
        error: if lost { Some(told.to_owned()) } else { record.error },
        call_id: record.call,
        input_tokens: count(record.input_tokens),
        output_tokens: count(record.output_tokens),
        cost_micros: record.cost_micros,
        latency_ms: count(record.latency_ms),
        created_at: record.created_at,
        ended_at: record.ended_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_checked_by_the_form_of_its_prompt_and_may_leave_out_what_may_be_null() {
        let form = json!({
            "type": "object", "required": ["class", "note"], "additionalProperties": false,
            "properties": {
                "class": { "type": "string", "enum": ["quick_fix", "feature_request"] },
                "note": { "type": ["string", "null"] },
            },
        });
        let checked = |text: &str| check_answer(text, &form).is_ok();
        assert!(checked(r#"{ "class": "quick_fix", "note": null }"#));
        assert!(checked("Here it is:\n```json\n{ \"class\": \"quick_fix\" }\n```"));
        assert!(!checked(r#"{ "class": "epic" }"#));
        assert!(!checked(r#"{ "note": "x" }"#));
        assert!(!checked("null"));
        assert!(!checked("I would say a quick fix."));
        assert_eq!(check_answer("[1]", &Value::Null), Ok(json!([1])));
    }
}
