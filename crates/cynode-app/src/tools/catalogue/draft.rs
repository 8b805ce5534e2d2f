//! Drafts a rule from a call that waited for a person, so that the next one is decided alike. The draft is not stored.

use cynode_core::{ids::ApprovalId, roles::UserRole};
use cynode_db::tools::agent_tokens;
use cynode_policy::{
    catalogue::ToolCatalogue,
    rules::{DecidedCall, PolicyRule, RuleDraft, RuleMode, RuleSet, draft_refusal, narrow_rule},
};
use cynode_wire::tools::{DecideApproval, SetRule, rules::RuleDraftView};

use super::StoredPolicy;
use crate::{Ctx, Error, GatewayParts, platform::operation, tools::approvals};

/// Maximum length of the name of a rule.
const MAX_RULE_NAME_LENGTH: usize = 60;

/// Drafts a rule in shadow mode that decides calls like this one as the person did.
#[tracing::instrument(name = "app.gate.draft_rule_from_approval", skip_all)]
#[operation]
pub async fn draft_rule_from_approval(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    id: ApprovalId,
    body: DecideApproval,
) -> Result<RuleDraftView, Error> {
    let approval = approvals::get_approval(ctx, &parts.keys, id).await?;
    // A draft can show the text of a rule, and rules are the installation's.
    ctx.require_role(UserRole::Viewer)?;
    let token = agent_tokens::get_agent_token(ctx.conn(), approval.agent_token_id).await?;
    let token = token.ok_or(Error::Conflict("the token of the agent is no longer stored"))?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let tool = catalogue
        .find_by_wire_name(&approval.tool)
        .ok_or(Error::Conflict("the tool is not in the catalogue: no rule can speak of it"))?;
    let call = DecidedCall {
        tool,
        role: token.agent.role,
        project: approval.project_id,
        arguments: approval.arguments.as_ref(),
    };
    let asking = described.rules.iter().find(|rule| approval.rules.contains(&rule.name));
    let asking = match (body.approved, asking) {
        (false, _) => None,
        (true, Some(rule)) => Some(rule),
        (true, None) => {
            return Err(Error::Conflict(
                "the rule that asked for the approval is gone: such calls are not asked for any more",
            ));
        }
    };
    let (draft, arguments_included) = draft_usable_rule(asking, call, &catalogue)?;
    let base = asking.map_or_else(
        || format!("refuse-{}", approval.tool),
        |rule| format!("{}-narrowed", rule.name),
    );
    let notes = list_notes(asking, &approval.rules, &draft, arguments_included);
    Ok(RuleDraftView {
        name: choose_free_name(&base, &described.rules),
        rule: SetRule { mode: RuleMode::Shadow.as_str().to_owned(), text: draft.text },
        replaces: asking.map(|rule| rule.name.clone()),
        arguments_included,
        omitted_arguments: draft.omitted,
        notes,
    })
}

/// Drafts the rule with the arguments of the call, or without them when they do not fit. Returns whether they are in it.
fn draft_usable_rule(
    asking: Option<&PolicyRule>,
    call: DecidedCall<'_>,
    catalogue: &ToolCatalogue,
) -> Result<(RuleDraft, bool), Error> {
    let without = DecidedCall { arguments: None, ..call };
    for (call, with_arguments) in [(call, call.arguments.is_some()), (without, false)] {
        let draft = match asking {
            Some(rule) => narrow_rule(&rule.text, call),
            None => Some(draft_refusal(call)),
        };
        let usable = draft.filter(|draft| {
            let (name, text) = ("draft".to_owned(), draft.text.clone());
            let rule = PolicyRule { name, mode: RuleMode::Shadow, text };
            RuleSet::load_rules(&[rule], catalogue).is_ok()
        });
        if let Some(draft) = usable {
            return Ok((draft, with_arguments));
        }
    }
    Err(Error::Conflict("the rule that asked cannot be narrowed by itself: edit its text"))
}

fn list_notes(
    asking: Option<&PolicyRule>,
    asked_by: &[String],
    draft: &RuleDraft,
    arguments_included: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    if arguments_included {
        notes.push(
            "The draft quotes arguments of the call. Everybody who sees rules sees them."
                .to_owned(),
        );
        if !draft.omitted.is_empty() {
            let omitted = draft.omitted.join(", ");
            notes.push(format!("It means calls with any value of these arguments: {omitted}."));
        }
    } else {
        notes.push(
            "The draft does not look at arguments: it means every such call, whatever its arguments.".to_owned(),
        );
    }
    if let Some(rule) = asking {
        notes.push(format!(
            "Rules can only forbid. In shadow mode the draft marks what would still be asked; set its text as `{}` with mode `{}` to stop asking for calls like this one.",
            rule.name,
            rule.mode.as_str(),
        ));
        let others: Vec<_> =
            asked_by.iter().filter(|name| **name != rule.name).map(String::as_str).collect();
        if !others.is_empty() {
            notes.push(format!("Other rules ask for such calls, too: {}.", others.join(", ")));
        }
    }
    notes
}

/// Returns a name of this kind that no rule has.
fn choose_free_name(base: &str, rules: &[PolicyRule]) -> String {
    let base: String = base
        .chars()
        .map(|letter| letter.to_ascii_lowercase())
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .take(MAX_RULE_NAME_LENGTH - 4)
        .collect();
    let is_free = |name: &String| !rules.iter().any(|rule| rule.name == *name);
    let numbered = (2..1000).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone()).chain(numbered).find(is_free).unwrap_or_else(|| base.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_rules_can_have_and_that_none_has() {
        let rule = |name: &str| PolicyRule {
            name: name.to_owned(),
            mode: RuleMode::Shadow,
            text: String::new(),
        };
        let taken = [rule("refuse-git-push"), rule("refuse-git-push-2")];
        assert_eq!(choose_free_name("refuse-ext.Todo.add_it", &taken), "refuse-ext-todo-add-it");
        assert_eq!(choose_free_name("refuse-git.push", &taken), "refuse-git-push-3");
        assert_eq!(choose_free_name(&"x".repeat(99), &taken).len(), 56);
    }
}
