use cynode_core::agents::AgentRole;
use serde_json::json;

use super::*;
use crate::{
    catalogue::{IdBinding, ToolAudience, ToolCatalogue, ToolOrigin},
    fixtures::{agent, definition, entry, installed},
};

fn catalogue() -> ToolCatalogue {
    let tools = ["web.fetch", "web.search", "db.task.get"]
        .map(|name| entry(definition(name, IdBinding::NONE)));
    ToolCatalogue::from_entries(tools).0
}

fn rule(mode: RuleMode, text: &str) -> PolicyRule {
    PolicyRule { name: "r".into(), mode, text: text.into() }
}

fn load(text: &str) -> Result<RuleSet, RuleError> {
    RuleSet::load_rules(&[rule(RuleMode::Refuse, text)], &catalogue()).map_err(|(_, error)| error)
}

fn ask(rules: &[PolicyRule], tool: &str, arguments: &Value) -> RuleSetVerdict {
    let catalogue = catalogue();
    let set = RuleSet::load_rules(rules, &catalogue).unwrap();
    set.evaluate_rules(
        &agent(AgentRole::Developer),
        catalogue.find_by_wire_name(tool).unwrap(),
        Some(arguments),
    )
}

fn refused() -> RefusalReason {
    RefusalReason::DeniedByRule(vec!["r".into()])
}

#[test]
fn a_rule_looks_at_tool_group_role_and_arguments() {
    let forbid = |text: &str, tool: &str, arguments: Value| {
        ask(&[rule(RuleMode::Refuse, text)], tool, &arguments).refusal
    };
    let one = "forbid (principal, action == Action::\"web.fetch\", resource);";
    assert_eq!(forbid(one, "web.fetch", json!({})), Some(refused()));
    assert_eq!(forbid(one, "web.search", json!({})), None);
    let group = "forbid (principal, action in Action::\"web.*\", resource);";
    assert_eq!(forbid(group, "web.search", json!({})), Some(refused()));
    assert_eq!(forbid(group, "db.task.get", json!({})), None);
    let role = "forbid (principal == Role::\"tester\", action, resource);";
    assert_eq!(forbid(role, "web.fetch", json!({})), None);
    let value = "forbid (principal, action, resource) when { context.arguments has text && context.arguments.text like \"*internal*\" };";
    assert_eq!(forbid(value, "web.fetch", json!({ "text": "http://internal/" })), Some(refused()));
    assert_eq!(forbid(value, "web.fetch", json!({ "text": "http://example/" })), None);
    assert_eq!(forbid(value, "web.fetch", json!({})), None);
}

/// A rule whose head does not fit is not asked. Said in a condition, the same is looked at in every call: the two must never
/// differ.
#[test]
fn what_a_head_says_means_the_same_as_in_a_condition() {
    let native = ["web.fetch", "web.search", "db.task.get"]
        .map(|name| entry(definition(name, IdBinding::NONE)));
    let foreign = entry(installed("ext.todo.echo", ToolAudience::Everybody));
    let catalogue = ToolCatalogue::from_entries(native.into_iter().chain([foreign])).0;
    let foreign = catalogue.find_by_wire_name("ext.todo.echo").unwrap();
    let ToolOrigin::Server { id, .. } = &foreign.definition.origin else { panic!("it is native") };
    let principals = [
        "principal",
        "principal == Role::\"developer\"",
        "principal in Role::\"developer\"",
        "principal is Role",
        "principal is Role in Role::\"developer\"",
    ];
    let actions = [
        "action",
        "action == Action::\"web.fetch\"",
        "action in Action::\"web.fetch\"",
        "action in Action::\"web.*\"",
        "action in [Action::\"db.*\", Action::\"ext.todo.echo\"]",
    ];
    let resources = [
        "resource",
        "resource == Server::\"native\"",
        "resource in Server::\"native\"",
        "resource is Server",
        &format!("resource is Server in Server::\"{id}\""),
    ];
    let load =
        |text: &str| RuleSet::load_rules(&[rule(RuleMode::Refuse, text)], &catalogue).unwrap();
    let mut refusals = 0;
    let heads = principals
        .map(|principal| [principal, "action", "resource"])
        .into_iter()
        .chain(actions.map(|action| ["principal", action, "resource"]))
        .chain(resources.map(|resource| ["principal", "action", resource]));
    for said in heads {
        let head = load(&format!("forbid ({});", said.join(", ")));
        let said: Vec<_> = said.into_iter().filter(|said| said.contains(' ')).collect();
        let when = if said.is_empty() { "true".to_owned() } else { said.join(" && ") };
        let condition = load(&format!("forbid (principal, action, resource) when {{ {when} }};"));
        for role in AgentRole::ALL {
            for tool in catalogue.iter_tools() {
                for arguments in [None, Some(&json!({ "text": "a" }))] {
                    let ruling = head.evaluate_rules(&agent(role), tool, arguments);
                    assert_eq!(
                        ruling,
                        condition.evaluate_rules(&agent(role), tool, arguments),
                        "{when}"
                    );
                    refusals += usize::from(ruling.refusal.is_some());
                }
            }
        }
    }
    assert_eq!(refusals, 750);
}

#[test]
fn a_rule_that_permits_misspells_or_cannot_be_read_is_refused_when_it_is_written() {
    assert_eq!(load("permit (principal, action, resource);").unwrap_err(), RuleError::Permits);
    for text in [
        "forbid (principal, action == Action::\"web.fetsch\", resource);",
        "forbid (principal == Role::\"devloper\", action, resource);",
        "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments.txet == \"x\" };",
        "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments.text == \"x\" };",
        "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments has count && context.arguments.count == \"x\" };",
    ] {
        assert!(matches!(load(text), Err(RuleError::Invalid(_))), "{text}: {:?}", load(text));
    }
    for text in ["", "nonsense", "forbid (principal, action, resource)", "forbid (a); forbid (b);"]
    {
        assert!(matches!(load(text), Err(RuleError::Syntax(_))), "{text}");
    }
    let long = format!("forbid (principal, action, resource); //{}", "x".repeat(MAX_RULE_BYTES));
    assert_eq!(load(&long).unwrap_err(), RuleError::TooLong);
}

#[test]
fn one_bad_rule_and_none_is_taken() {
    let good = rule(RuleMode::Refuse, "forbid (principal, action, resource);");
    let bad = PolicyRule {
        name: "bad".into(),
        ..rule(RuleMode::Refuse, "permit (principal, action, resource);")
    };
    let loaded = RuleSet::load_rules(&[good.clone(), bad], &catalogue());
    assert_eq!(loaded.unwrap_err(), ("bad".into(), RuleError::Permits));
    let twice = RuleSet::load_rules(&[good.clone(), good], &catalogue());
    assert_eq!(twice.unwrap_err(), ("r".into(), RuleError::Name));
}

#[test]
fn a_rule_that_cannot_be_decided_refuses() {
    // The sum overflows, so that Cedar gives no answer.
    let text = "forbid (principal, action, resource) when { context.arguments has count && context.arguments.count + 1 == 7 };";
    let ruling = ask(&[rule(RuleMode::Refuse, text)], "web.fetch", &json!({ "count": i64::MAX }));
    assert_eq!(ruling.refusal, Some(RefusalReason::RuleFailed(vec!["r".into()])));
    // A whole number that Cedar cannot hold must not slip past a rule about it.
    let ruling = ask(&[rule(RuleMode::Refuse, text)], "web.fetch", &json!({ "count": u64::MAX }));
    assert_eq!(ruling.refusal, Some(RefusalReason::RuleFailed(Vec::new())));
}

#[test]
fn a_rule_on_trial_is_noted_and_never_changes_the_decision() {
    let all = "forbid (principal, action, resource);";
    let shadow = rule(RuleMode::Shadow, all);
    let ruling = ask(std::slice::from_ref(&shadow), "web.fetch", &json!({}));
    assert_eq!(ruling, RuleSetVerdict { refusal: None, shadow: vec!["r".into()] });
    let strict = PolicyRule { name: "s".into(), ..rule(RuleMode::Refuse, all) };
    let ruling = ask(&[shadow, strict], "web.fetch", &json!({}));
    let refusal = Some(RefusalReason::DeniedByRule(vec!["s".into()]));
    assert_eq!(ruling, RuleSetVerdict { refusal, shadow: vec!["r".into()] });
}

#[test]
fn approval_is_asked_for_only_when_nothing_refuses() {
    let all = "forbid (principal, action, resource);";
    let approve = rule(RuleMode::Approve, all);
    let ruling = ask(std::slice::from_ref(&approve), "web.fetch", &json!({}));
    assert_eq!(ruling.refusal, Some(RefusalReason::NeedsApproval(vec!["r".into()])));
    let strict = PolicyRule { name: "s".into(), ..rule(RuleMode::Refuse, all) };
    let ruling = ask(&[approve, strict], "web.fetch", &json!({}));
    assert_eq!(ruling.refusal, Some(RefusalReason::DeniedByRule(vec!["s".into()])));
}

#[test]
fn a_rule_about_arguments_has_no_say_about_the_tool_as_such() {
    let text = "forbid (principal, action, resource) unless { context.arguments has text };";
    let catalogue = catalogue();
    let set = RuleSet::load_rules(&[rule(RuleMode::Refuse, text)], &catalogue).unwrap();
    let (caller, tool) =
        (agent(AgentRole::Developer), catalogue.find_by_wire_name("web.fetch").unwrap());
    assert_eq!(set.evaluate_rules(&caller, tool, None), RuleSetVerdict::default());
    assert_eq!(set.evaluate_rules(&caller, tool, Some(&json!({}))).refusal, Some(refused()));
}

#[test]
fn the_same_rules_in_another_order_are_the_same_version() {
    let one = rule(RuleMode::Refuse, "forbid (principal, action, resource);");
    let two = PolicyRule { name: "s".into(), ..one.clone() };
    let load =
        |rules: &[PolicyRule]| RuleSet::load_rules(rules, &catalogue()).unwrap().version_digest();
    assert_eq!(load(&[one.clone(), two.clone()]), load(&[two.clone(), one.clone()]));
    let softer = PolicyRule { mode: RuleMode::Shadow, ..two.clone() };
    assert_ne!(load(&[one.clone(), two]), load(&[one, softer]));
}

#[test]
fn rules_that_cannot_be_loaded_refuse_everything() {
    let catalogue = catalogue();
    let (caller, tool) =
        (agent(AgentRole::Developer), catalogue.find_by_wire_name("web.fetch").unwrap());
    let ruling = RuleSet::refuse_all("old".into()).evaluate_rules(&caller, tool, None);
    assert_eq!(ruling.refusal, Some(RefusalReason::RuleFailed(vec!["old".into()])));
}

fn trial(text: &str) -> RuleTrial {
    RuleTrial::load_rule(&rule(RuleMode::Refuse, text), &catalogue()).unwrap()
}

#[test]
fn a_recorded_call_is_decided_as_far_as_its_record_goes() {
    let catalogue = catalogue();
    let (fetch, search) = (
        catalogue.find_by_wire_name("web.fetch").unwrap(),
        catalogue.find_by_wire_name("web.search").unwrap(),
    );
    let caller = agent(AgentRole::Developer);
    let unknown = |fact| TrialResult::Undecidable(fact);
    let (arguments, of_agent) = (unknown(MissingFact::Arguments), unknown(MissingFact::Agent));
    let (applies, not) = (TrialResult::Applies, TrialResult::DoesNotApply);
    for (text, fetched, searched, without_token) in [
        ("forbid (principal, action == Action::\"web.fetch\", resource);", applies, not, applies),
        (
            "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments has text };",
            arguments,
            not,
            arguments,
        ),
        // What is known rules the call out, whatever the arguments were.
        (
            "forbid (principal, action, resource) when { context.agent.kind == \"pm\" && context.arguments has text };",
            not,
            not,
            not,
        ),
        (
            "forbid (principal, action, resource) unless { context.agent.kind == \"sandbox\" || context.arguments has text };",
            not,
            not,
            not,
        ),
        // A condition that cannot be taken apart rules nothing out.
        (
            "forbid (principal, action, resource) when { context.agent.kind == \"pm\" || context.arguments has text };",
            arguments,
            arguments,
            arguments,
        ),
        (
            "forbid (principal, action, resource) when { context.agent.network };",
            applies,
            applies,
            of_agent,
        ),
        (
            "forbid (principal, action, resource) when { context.agent.network && context.agent.kind == \"pm\" };",
            not,
            not,
            not,
        ),
        (
            "forbid (principal, action, resource) when { context.agent.network && context.arguments has text };",
            arguments,
            arguments,
            arguments,
        ),
    ] {
        let trial = trial(text);
        assert_eq!(trial.evaluate_call(&caller, fetch, true), fetched, "{text}");
        assert_eq!(trial.evaluate_call(&caller, search, true), searched, "{text}");
        assert_eq!(trial.evaluate_call(&caller, fetch, false), without_token, "{text}");
    }
    let misspelt =
        rule(RuleMode::Refuse, "forbid (principal, action == Action::\"web.f\", resource);");
    assert!(matches!(RuleTrial::load_rule(&misspelt, &catalogue), Err(RuleError::Invalid(_))));
}

#[test]
fn a_check_names_the_place_of_each_error_or_what_the_rule_speaks_of() {
    let check = |text: &str| check_rule(&rule(RuleMode::Refuse, text), &catalogue());
    let good = check(
        "forbid (principal == Role::\"tester\", action in Action::\"web.*\", resource) when { context.arguments has text };",
    );
    let expected = RuleCheck {
        problems: Vec::new(),
        reads_arguments: true,
        tools: vec!["web.fetch".parse().unwrap(), "web.search".parse().unwrap()],
        roles: vec![AgentRole::Tester],
    };
    assert_eq!(good, expected);
    for (text, code, quoted) in [
        ("forbid (principal, action, resource) where { true };", "syntax", "where"),
        (
            "forbid (principal, action == Action::\"web.fetsch\", resource);",
            "does_not_fit",
            "Action::\"web.fetsch\"",
        ),
    ] {
        let problems = check(text).problems;
        let problem = problems.iter().find(|problem| problem.code == code);
        let span = problem.unwrap_or_else(|| panic!("{problems:?}")).span.clone();
        assert!(text[span.unwrap()].contains(quoted), "{problems:?}");
    }
    let codes = |text: &str| check(text).problems.iter().map(|it| it.code).collect::<Vec<_>>();
    assert_eq!(codes("permit (principal, action, resource);"), ["permits"]);
    assert_eq!(codes(&"x".repeat(MAX_RULE_BYTES + 1)), ["too_long"]);
    let unnamed = PolicyRule { name: "No!".into(), mode: RuleMode::Shadow, text: String::new() };
    assert_eq!(check_rule(&unnamed, &catalogue()).problems[0].code, "name");
}

#[test]
fn every_word_of_the_vocabulary_is_one_that_a_rule_can_use() {
    for field in list_context_fields() {
        let literal = if field.kind == "Boolean" { "true" } else { "\"x\"" };
        let text =
            format!("forbid (principal, action, resource) when {{ {} == {literal} }};", field.path);
        assert!(load(&text).is_ok(), "{text}: {:?}", load(&text).err());
    }
    let (visible, hidden) = describe_arguments(&json!({
        "properties": {
            "odd name": { "type": "string", "description": "A name." },
            "where": { "type": "object", "properties": { "line": { "type": "integer" } }, "required": ["line"] },
            "tags": { "type": "array", "items": { "type": "string" } },
            "ratio": { "type": "number" },
        },
        "required": ["tags"],
    }));
    let argument = |path: &str, kind: &str, required, summary: Option<&str>| VisibleArgument {
        path: path.to_owned(),
        kind: kind.to_owned(),
        required,
        summary: summary.map(str::to_owned),
    };
    let mut visible = visible;
    visible.sort_by(|one, other| one.path.cmp(&other.path));
    assert_eq!(
        visible,
        [
            argument("context.arguments.tags", "Set<String>", true, None),
            argument("context.arguments.where", "Record", false, None),
            argument("context.arguments.where.line", "Long", true, None),
            argument("context.arguments[\"odd name\"]", "String", false, Some("A name.")),
        ]
    );
    assert_eq!(hidden, ["ratio"]);
}

#[test]
fn a_draft_applies_to_the_call_that_it_was_made_from_and_to_no_other() {
    let catalogue = catalogue();
    let caller = agent(AgentRole::Developer);
    let fetch = catalogue.find_by_wire_name("web.fetch").unwrap();
    let arguments =
        json!({ "text": "say \"no\"\n", "count": -3, "tags": ["a"], "task_id": "t", "ratio": 0.5 });
    let call = DecidedCall {
        tool: fetch,
        role: AgentRole::Developer,
        project: caller.project,
        arguments: Some(&arguments),
    };
    let evaluate = |text: &str, arguments: &Value| {
        let set = RuleSet::load_rules(&[rule(RuleMode::Refuse, text)], &catalogue).unwrap();
        set.evaluate_rules(&caller, fetch, Some(arguments)).refusal
    };
    let refusal = draft_refusal(call);
    assert_eq!(refusal.omitted, ["ratio"]);
    assert_eq!(evaluate(&refusal.text, &arguments), Some(refused()));
    let other = json!({ "text": "say \"no\"\n", "count": -4, "tags": ["a"] });
    assert_eq!(evaluate(&refusal.text, &other), None);

    let narrowed =
        narrow_rule("forbid (principal, action in Action::\"web.*\", resource);\n", call).unwrap();
    assert_eq!(evaluate(&narrowed.text, &arguments), None);
    assert_eq!(evaluate(&narrowed.text, &other), Some(refused()));
    // A person who saw no role in the arguments has not decided about one.
    let more = json!({ "text": "say \"no\"\n", "count": -3, "tags": ["a"], "agent_role": "x" });
    assert_eq!(evaluate(&narrowed.text, &more), Some(refused()));
    assert_eq!(narrow_rule("forbid (principal, action, resource); // all", call), None);
}

#[test]
fn a_verdict_depends_on_arguments_only_where_a_rule_reads_them() {
    let text = "forbid (principal, action == Action::\"web.fetch\", resource) when { context.arguments has text };";
    let catalogue = catalogue();
    let set = RuleSet::load_rules(&[rule(RuleMode::Refuse, text)], &catalogue).unwrap();
    let depends = |tool: &str| {
        let tool = catalogue.find_by_wire_name(tool).unwrap();
        set.depends_on_arguments(&agent(AgentRole::Developer), tool)
    };
    assert_eq!((depends("web.fetch"), depends("web.search")), (true, false));
}
