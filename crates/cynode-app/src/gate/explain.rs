//! Why a call would be allowed or refused.

use std::sync::Arc;

use cynode_core::{accounts::Credential, roles::Role};
use cynode_db::{agent_tokens, authentication};
use cynode_policy::{
    agents::Agent,
    gate::{Call, Decision, Gate, decide},
    reasons::{Reason, Step},
    rules::RuleSet,
};
use cynode_wire::gate::{Explain, ExplainedStep, Explanation};
use serde_json::json;

use super::{Described, Parts, rule};
use crate::{Ctx, Error};

/// Says why a call would be allowed or refused. Nothing is called and nothing is recorded.
#[tracing::instrument(name = "app.gate.explain", skip_all)]
pub async fn explain(ctx: &mut Ctx, parts: &Parts, body: &Explain) -> Result<Explanation, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("agent token", body.agent_token_id);
    let token = agent_tokens::get(ctx.conn(), body.agent_token_id).await?.ok_or_else(missing)?;
    let project = token.agent.project.ok_or_else(missing)?;
    ctx.require_in(project, Role::Operator).await.map_err(|_| missing())?;
    let described = Described::read(ctx.conn()).await?;
    let (catalogue, _) = described.catalogue(&parts.native);
    let rules = match &body.rules {
        None => described.rules.clone(),
        Some(tried) => {
            tried.iter().map(|(name, body)| rule(name, body)).collect::<Result<Vec<_>, _>>()?
        }
    };
    let rules = RuleSet::load(&rules, &catalogue)
        .map_err(|(name, error)| Error::Invalid(format!("rule `{name}`: {error}")))?;
    let gate = Arc::new(Gate::new(catalogue, rules, described.switches));
    let ended = if token.revoked_at.is_some() {
        Some(Reason::TokenRevoked)
    } else if token.agent.expires_at.is_some_and(|at| at <= ctx.now) {
        Some(Reason::TokenExpired)
    } else {
        None
    };
    let decision = match ended {
        Some(reason) => Decision { tool: None, refusal: Some(reason), shadow: Vec::new() },
        None => {
            let nothing = json!({});
            let arguments = body.arguments.as_ref().unwrap_or(&nothing);
            let agent = held_to_the_person(ctx, token.agent).await?;
            decide(&agent, &gate, Call { tool: &body.tool, arguments })
        }
    };
    Ok(explained(&gate, &decision))
}

/// The agent, with what the person whom it works for may do now.
async fn held_to_the_person(ctx: &mut Ctx, agent: Agent) -> Result<Agent, Error> {
    let (Some(user), Some(project)) = (agent.user, agent.project) else { return Ok(agent) };
    let own = authentication::project_role(ctx.conn(), user, project).await?;
    let credential = Credential::Agent(agent.token);
    let person = authentication::in_the_name_of(ctx.conn(), user, credential).await?;
    let role = own.max(person.and_then(|person| person.role));
    Ok(Agent { operates: role >= Some(Role::Operator), ..agent })
}

fn explained(gate: &Gate, decision: &Decision) -> Explanation {
    let refusal = decision.refusal.as_ref();
    let stopped = refusal.map(Reason::step);
    let steps = Step::ALL.into_iter().map(|step| {
        let result = match stopped {
            Some(stopped) if step == stopped => "refused",
            Some(stopped) if step > stopped => "not_reached",
            // Only a real call is counted and recorded.
            _ if step >= Step::Limits => "at_the_call",
            _ => "passed",
        };
        ExplainedStep { step: step.as_str().into(), result: result.into() }
    });
    Explanation {
        decision: match refusal {
            None => "allow",
            Some(Reason::NeedsApproval(_)) => "needs_approval",
            Some(_) => "deny",
        }
        .into(),
        reason: refusal.map_or("allowed", Reason::code).into(),
        detail: refusal.map_or_else(|| "the call would be allowed".into(), ToString::to_string),
        advice: refusal.map(|reason| reason.advice().into()),
        steps: steps.collect(),
        rules: refusal.map(|reason| reason.rules().to_vec()).unwrap_or_default(),
        shadow: decision.shadow.clone(),
        policy_hash: gate.policy().to_string(),
        catalogue_hash: gate.catalogue.version().to_string(),
    }
}
