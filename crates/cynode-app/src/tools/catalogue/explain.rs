//! Explains a policy decision: why a call would be allowed or refused.

use std::sync::Arc;

use cynode_core::{accounts::CallerCredential, roles::UserRole};
use cynode_db::{identity::authentication, tools::agent_tokens};
use cynode_policy::{
    agents::AgentIdentity,
    decision::{PolicyDecision, PolicySnapshot},
    reasons::{DecisionStage, RefusalReason},
    rules::RuleSet,
};
use cynode_wire::tools::{ExplainRequest, ExplainedStep, PolicyExplanation};
use serde_json::json;

use super::{StoredPolicy, parse_rule};
use crate::{Ctx, Error, GatewayParts, platform::operation, tools::call_validation};

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
    let decision = match ended {
        Some(reason) => PolicyDecision::from_refusal(reason),
        None => {
            let arguments = body.arguments.clone().unwrap_or_else(|| json!({}));
            let agent = Arc::new(limit_to_user_role(ctx, token.agent).await?);
            let bytes = arguments.to_string().len();
            call_validation::decide_call(&agent, &gate, &body.tool, arguments, bytes).await.0
        }
    };
    Ok(to_explanation(&gate, &decision))
}

/// Returns the agent limited to the current role of its user.
async fn limit_to_user_role(ctx: &mut Ctx, agent: AgentIdentity) -> Result<AgentIdentity, Error> {
    let (Some(user), Some(project)) = (agent.user, agent.project) else { return Ok(agent) };
    let own = authentication::project_role(ctx.conn(), user, project).await?;
    let credential = CallerCredential::Agent(agent.token);
    let person = authentication::find_caller_on_behalf(ctx.conn(), user, credential).await?;
    let role = own.max(person.and_then(|person| person.role));
    Ok(AgentIdentity { operates: role >= Some(UserRole::Operator), ..agent })
}

fn to_explanation(gate: &PolicySnapshot, decision: &PolicyDecision) -> PolicyExplanation {
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
    }
}
