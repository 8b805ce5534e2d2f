//! Explains a policy decision: why a call would be allowed or refused.

use std::sync::Arc;

use cynode_core::{ids::AgentTokenId, roles::UserRole};
use cynode_db::{
    identity::authentication,
    tools::{agent_tokens, audit::AuditRow},
};
use cynode_policy::{
    agents::AgentIdentity,
    decision::{PolicyDecision, PolicySnapshot, decide_without_arguments},
    reasons::{DecisionStage, REFUSALS, RefusalReason, RefusalSpec},
    rules::RuleSet,
};
use cynode_wire::tools::{
    ExplainRequest, ExplainedStep, PolicyExplanation,
    rules::{CallExplanation, ExplainRecordedCall},
};
use serde_json::{Value, json};

use super::{StoredPolicy, parse_rule};
use crate::{
    Ctx, Error, GatewayParts,
    platform::operation,
    tools::{audit, call_validation},
};

/// Result of a question that depends on arguments which are not known.
const NOT_RECORDED: &str = "not_recorded";

/// Explains why a call would be allowed or denied. It neither calls nor records anything.
#[tracing::instrument(name = "app.gate.explain_call", skip_all)]
#[operation]
pub async fn explain_call(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    body: &ExplainRequest,
) -> Result<PolicyExplanation, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("agent token", body.agent_token_id);
    let token = agent_tokens::get_agent_token(ctx.conn(), body.agent_token_id)
        .await?
        .ok_or_else(missing)?;
    let project = token.agent.project.ok_or_else(missing)?;
    ctx.require_project_role(project, UserRole::Operator).await.map_err(|_| missing())?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let rules = match &body.rules {
        None => described.rules.clone(),
        Some(tried) => tried
            .iter()
            .map(|(name, body)| parse_rule(name, body))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let rules = RuleSet::load_rules(&rules, &catalogue)
        .map_err(|(name, error)| Error::Invalid(format!("rule `{name}`: {error}")))?;
    let gate = Arc::new(PolicySnapshot::new(catalogue, rules, described.switches));
    let ended = if token.revoked_at.is_some() {
        Some(RefusalReason::TokenRevoked)
    } else if token.agent.expires_at.is_some_and(|at| at <= ctx.now) {
        Some(RefusalReason::TokenExpired)
    } else {
        None
    };
    let agent = Arc::new(limit_to_user_role(ctx, token.agent).await?);
    let decision = match ended {
        Some(reason) => PolicyDecision::from_refusal(reason),
        None => {
            let arguments = body.arguments.clone().unwrap_or_else(|| json!({}));
            let bytes = arguments.to_string().len();
            call_validation::decide_call(&agent, &gate, &body.tool, arguments, bytes).await.0
        }
    };
    Ok(to_explanation(&gate, &agent, &decision))
}

/// Returns the agent limited to the current role of its user.
async fn limit_to_user_role(ctx: &mut Ctx, agent: AgentIdentity) -> Result<AgentIdentity, Error> {
    let (Some(user), Some(project)) = (agent.user, agent.project) else { return Ok(agent) };
    let own = authentication::project_role(ctx.conn(), user, project).await?;
    let role = own.max(authentication::find_person_role(ctx.conn(), user).await?);
    Ok(AgentIdentity { operates: role >= Some(UserRole::Operator), ..agent })
}

fn to_explanation(
    gate: &PolicySnapshot,
    agent: &AgentIdentity,
    decision: &PolicyDecision,
) -> PolicyExplanation {
    let refusal = decision.refusal.as_ref();
    let stopped = refusal.map(RefusalReason::decision_stage);
    let steps = DecisionStage::ALL.into_iter().map(|step| {
        let result = match stopped {
            Some(stopped) if step == stopped => "refused",
            Some(stopped) if step > stopped => "not_reached",
            // Limits and audit apply only to a real call.
            _ if step >= DecisionStage::Limits => "at_the_call",
            _ => "passed",
        };
        ExplainedStep { step: step.as_str().into(), result: result.into() }
    });
    PolicyExplanation {
        decision: match refusal {
            None => "allow",
            Some(RefusalReason::NeedsApproval(_)) => "needs_approval",
            Some(_) => "deny",
        }
        .into(),
        reason: refusal.map_or("allowed", RefusalReason::reason_code).into(),
        detail: refusal.map_or_else(|| "the call would be allowed".into(), ToString::to_string),
        advice: refusal.map(|reason| reason.caller_advice().into()),
        steps: steps.collect(),
        rules: refusal.map(|reason| reason.deciding_rules().to_vec()).unwrap_or_default(),
        shadow: decision.shadow.clone(),
        policy_hash: gate.policy_digest().to_string(),
        catalogue_hash: gate.catalogue.version_digest().to_string(),
        profile: Some(agent.profile.name.to_string()),
        profile_version: Some(agent.profile.version),
    }
}

/// Explains the decision about a recorded call: as it was recorded, and as it would be now. It neither calls nor records anything.
#[tracing::instrument(name = "app.gate.explain_recorded_call", skip_all)]
#[operation]
pub async fn explain_recorded_call(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    body: &ExplainRecordedCall,
) -> Result<CallExplanation, Error> {
    let records = audit::load_visible_records(ctx, body.call_id).await?;
    let row = records.into_iter().find(|row| row.phase == "decision");
    let row = row.ok_or_else(|| Error::not_found("call", body.call_id))?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let rules = RuleSet::load_rules(&described.rules, &catalogue)
        .unwrap_or_else(|(name, _)| RuleSet::refuse_all(name));
    let gate = Arc::new(PolicySnapshot::new(catalogue, rules, described.switches));
    let then = explain_record(&row);
    let (now, now_missing) = match explain_now(ctx, &gate, &row, body.arguments.as_ref()).await? {
        Ok(now) => (Some(now), None),
        Err(missing) => (None, Some(missing.to_owned())),
    };
    let changed =
        now.as_ref().is_some_and(|now| policy_answer(&now.reason) != policy_answer(&then.reason));
    Ok(CallExplanation {
        same_policy: gate.policy_digest().to_string() == then.policy_hash,
        same_catalogue: gate.catalogue.version_digest().to_string() == then.catalogue_hash,
        record: audit::to_audit_view(row),
        then,
        now,
        now_missing,
        changed,
    })
}

/// Decides a recorded call by the present policy, as if the token of its agent had not ended. Fails with what is missing for that.
async fn explain_now(
    ctx: &mut Ctx,
    gate: &Arc<PolicySnapshot>,
    row: &AuditRow,
    arguments: Option<&Value>,
) -> Result<Result<PolicyExplanation, &'static str>, Error> {
    let Some(tool) = row.tool.as_deref() else {
        return Ok(Err("the record names no tool: there was none of that name"));
    };
    let token = match row.agent_token_id {
        Some(id) => agent_tokens::get_agent_token(ctx.conn(), AgentTokenId::from_uuid(id)).await?,
        None => None,
    };
    let Some(token) = token else {
        return Ok(Err("the token of the agent is no longer stored"));
    };
    let ended = token.revoked_at.is_some()
        || token.agent.expires_at.is_some_and(|expires_at| expires_at <= ctx.now);
    let agent = Arc::new(limit_to_user_role(ctx, token.agent).await?);
    let decision = match arguments {
        Some(arguments) => {
            let bytes = arguments.to_string().len();
            call_validation::decide_call(&agent, gate, tool, arguments.clone(), bytes).await.0
        }
        None => decide_without_arguments(&agent, gate, tool),
    };
    let mut explanation = to_explanation(gate, &agent, &decision);
    let rules_read_arguments =
        decision.tool.as_ref().is_some_and(|tool| gate.rules.depends_on_arguments(&agent, tool));
    for step in &mut explanation.steps {
        let result = match step.step.as_str() {
            "token" if ended => "at_the_call",
            "arguments" if arguments.is_none() && step.result == "passed" => NOT_RECORDED,
            "rules" if arguments.is_none() && rules_read_arguments && step.result == "passed" => {
                NOT_RECORDED
            }
            _ => continue,
        };
        result.clone_into(&mut step.result);
    }
    Ok(Ok(explanation))
}

/// Explains a decision by its record.
fn explain_record(row: &AuditRow) -> PolicyExplanation {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    let spec = find_refusal(&row.reason).filter(|_| row.decision != "allow");
    // Codes that no question has are of calls which passed all of them.
    let stopped = spec.map(|spec| spec.stage);
    let steps = DecisionStage::ALL.into_iter().map(|step| {
        let result = match stopped {
            Some(stopped) if step == stopped => "refused",
            Some(stopped) if step > stopped => "not_reached",
            _ => "passed",
        };
        ExplainedStep { step: step.as_str().into(), result: result.into() }
    });
    let detail = match (row.reason.as_str(), spec) {
        (_, Some(spec)) => spec.summary.to_owned(),
        ("approved", None) => "A person approved the call.".to_owned(),
        ("allowed", None) => "The call was allowed.".to_owned(),
        (reason, None) => format!("The call was not carried out: {reason}."),
    };
    PolicyExplanation {
        decision: row.decision.clone(),
        reason: row.reason.clone(),
        detail,
        advice: spec.map(|spec| spec.advice.to_owned()),
        steps: steps.collect(),
        rules: row.rules.clone(),
        shadow: row.shadow_rules.clone(),
        policy_hash: hex(&row.policy_hash),
        catalogue_hash: hex(&row.catalogue_hash),
        profile: row.profile.clone(),
        profile_version: None,
    }
}

fn find_refusal(code: &str) -> Option<&'static RefusalSpec> {
    REFUSALS.iter().find(|spec| spec.code == code)
}

/// Returns the answer of the policy behind a recorded reason. People and limits come after it.
fn policy_answer(reason: &str) -> &str {
    match reason {
        "approved" | "approval_denied" | "too_many_pending_approvals" => "needs_approval",
        _ if find_refusal(reason).is_some_and(|spec| spec.stage < DecisionStage::Limits) => reason,
        _ => "allowed",
    }
}
