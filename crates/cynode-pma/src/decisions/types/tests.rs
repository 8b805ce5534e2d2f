use schemars::schema_for;
use serde_json::{Value, json};

use super::*;

fn checked<T: DecisionOutput>(answer: Value) -> Result<(), String> {
    serde_json::from_value::<T>(answer).map_err(|error| error.to_string())?.validate_decision()
}

fn schema<T: DecisionOutput>() -> Value {
    serde_json::to_value(schema_for!(T)).unwrap()
}

fn all() -> Vec<(DecisionKind, Value)> {
    fn of<T: DecisionOutput>() -> (DecisionKind, Value) {
        (T::KIND, schema::<T>())
    }
    vec![
        of::<Classified>(),
        of::<Scoped>(),
        of::<ProjectAnalysis>(),
        of::<PlanProposal>(),
        of::<TaskRefinement>(),
        of::<Reviewed>(),
        of::<FailureHandled>(),
        of::<Routed>(),
        of::<TestSelection>(),
        of::<TaskSummary>(),
        of::<ScheduleInterpretation>(),
    ]
}

#[test]
fn there_is_one_answer_for_each_kind_of_question_and_no_other() {
    use DecisionKind::{
        AnalyseProject, AssessScope, ChooseTests, Classify, HandleFailure, InterpretSchedule, Plan,
        RefineTask, ReviewArtifact, Route, Summarise,
    };
    let kinds: Vec<_> = all().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [
            Classify,
            AssessScope,
            AnalyseProject,
            Plan,
            RefineTask,
            ReviewArtifact,
            HandleFailure,
            Route,
            ChooseTests,
            Summarise,
            InterpretSchedule,
        ],
        "S004-026: each kind has its answer"
    );
    let names: Vec<String> = kinds
        .iter()
        .map(|kind| format!("`{}`", serde_json::to_value(kind).unwrap().as_str().unwrap()))
        .collect();
    let other = serde_json::from_value::<DecisionKind>(json!("dance")).unwrap_err();
    let refusal = format!("unknown variant `dance`, expected one of {}", names.join(", "));
    assert_eq!(other.to_string(), refusal, "S004-026: the list is closed");
}

/// Walks every object of a schema.
fn objects<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
    match schema {
        Value::Object(map) => {
            if map.get("type") == Some(&json!("object")) {
                found.push(schema);
            }
            map.values().for_each(|value| objects(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| objects(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_field_is_required_explained_and_nothing_else_is_taken() {
    for (kind, schema) in all() {
        assert!(!schema.to_string().contains("$ref"), "{kind:?} has a reference: {schema:#}");
        let mut found = Vec::new();
        objects(&schema, &mut found);
        for object in found {
            assert_eq!(object["additionalProperties"], false, "{kind:?}");
            let fields = object["properties"].as_object().unwrap();
            let required = object["required"].as_array().unwrap();
            let optional: Vec<_> =
                fields.keys().filter(|name| !required.contains(&json!(name))).collect();
            // A proposal that needs no more files does not have to say so.
            let allowed: &[&str] = if kind == DecisionKind::Plan { &["look_at"] } else { &[] };
            assert!(
                optional.iter().all(|name| allowed.contains(&name.as_str())),
                "{kind:?}: {object:#}"
            );
            for (name, field) in fields {
                assert!(field["description"].is_string(), "{kind:?}: {name} is not explained");
                if field["type"] == "array" {
                    assert!(field["maxItems"].is_u64(), "{kind:?}: {name} has no bound");
                }
            }
        }
    }
}

#[test]
fn the_reason_comes_before_the_label() {
    let fields = |schema: Value| -> Vec<String> {
        schema["properties"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(fields(schema::<Classified>()), ["reason", "class"]);
    assert_eq!(fields(schema::<Scoped>()), ["reason", "components", "estimated_files", "scope"]);
    assert_eq!(fields(schema::<Routed>()), ["reason", "role"]);
    assert_eq!(fields(schema::<FailureHandled>()), ["reason", "note", "decision"]);
    assert_eq!(
        fields(schema::<Reviewed>()),
        ["reason", "status", "findings", "recommended_actions"]
    );
}

#[test]
fn labels_are_plain_lists_of_names() {
    let label = |schema: Value, field: &str| schema["properties"][field]["enum"].clone();
    assert_eq!(
        label(schema::<Classified>(), "class"),
        json!(["new_project", "feature_request", "quick_fix"]),
        "S004-021, S004-028"
    );
    assert_eq!(
        label(schema::<Scoped>(), "scope"),
        json!(["trivial", "small", "medium", "large"]),
        "S004-022, S004-033"
    );
    assert_eq!(
        label(schema::<Reviewed>(), "status"),
        json!(["pass", "fail", "needs_clarification"])
    );
    assert_eq!(
        label(schema::<FailureHandled>(), "decision"),
        json!(["retry", "reduce_scope", "escalate"])
    );
    assert_eq!(
        label(schema::<Routed>(), "role"),
        json!(["architect", "designer", "developer", "reviewer", "tester", "fixer"])
    );
}

#[test]
fn an_answer_of_another_form_is_no_answer() {
    for wrong in [
        json!({"reason": "", "class": "chore"}),
        json!({"reason": "", "class": "quick_fix", "more": 1}),
        json!({"class": "quick_fix"}),
        json!("quick_fix"),
    ] {
        assert!(checked::<Classified>(wrong.clone()).is_err(), "{wrong}");
    }
    assert_eq!(checked::<Classified>(json!({"reason": "wrong", "class": "quick_fix"})), Ok(()));
    assert_eq!(
        checked::<Routed>(json!({"reason": "", "role": "project_manager"})),
        Err("`role` must be one of those who work in a sandbox".into())
    );
    assert_eq!(
        checked::<TaskSummary>(json!({"summary": "  "})),
        Err("`summary` must not be empty".into())
    );
}

#[test]
fn a_judgement_says_what_is_wrong_and_does_not_contradict_itself() {
    let judged = |status: &str, severity: Option<&str>| {
        let findings: Vec<_> =
            severity.iter().map(|it| json!({"text": "the test fails", "severity": it})).collect();
        checked::<Reviewed>(json!({
            "reason": "", "findings": findings, "recommended_actions": [], "status": status,
        }))
    };
    assert_eq!(judged("pass", None), Ok(()));
    assert_eq!(judged("pass", Some("minor")), Ok(()));
    assert_eq!(judged("fail", Some("major")), Ok(()));
    assert_eq!(judged("needs_clarification", Some("note")), Ok(()));
    let contradiction = "a result with critical or major findings does not pass";
    assert_eq!(judged("pass", Some("critical")), Err(contradiction.into()));
    assert_eq!(judged("fail", None), Err("say in `findings` what is wrong".into()));
    let unclear = "say in `findings` what is not clear";
    assert_eq!(judged("needs_clarification", None), Err(unclear.into()));
}

fn unit(title: &str, depends_on: &[&str]) -> Value {
    json!({
        "title": title, "kind": "implementation", "files_to_modify": [], "files_to_read_first": [],
        "pattern_reference": "", "constraints": [], "requirements": [], "depends_on": depends_on, "checks": [],
    })
}

fn plan(units: &[Value], question: &str) -> Value {
    json!({"reason": "", "units": units, "leave_out": [], "assumptions": [], "question": question})
}

#[test]
fn a_plan_has_units_that_can_be_done_in_some_order_or_asks() {
    assert_eq!(checked::<PlanProposal>(plan(&[unit("a", &["b"]), unit("b", &[])], "")), Ok(()));
    assert_eq!(checked::<PlanProposal>(plan(&[], "Which colours?")), Ok(()));
    assert_eq!(
        checked::<PlanProposal>(plan(&[], " ")),
        Err("give at least one unit, or a question".into())
    );
    assert_eq!(
        checked::<PlanProposal>(plan(&[unit("a", &["c"])], "")),
        Err("`depends_on` names `c`, which is no title of a unit".into())
    );
    let circle = plan(&[unit("a", &["b"]), unit("b", &["a"]), unit("c", &[])], "");
    assert_eq!(
        checked::<PlanProposal>(circle),
        Err("these units wait for each other: a, b".into())
    );
    let long = plan(&[unit(&"x".repeat(1_001), &[])], "");
    assert_eq!(
        checked::<PlanProposal>(long),
        Err("`title` has at most 1000 characters, got 1001".into())
    );
}

#[test]
fn units_are_put_after_those_that_they_name() {
    let made: PlanProposal =
        serde_json::from_value(plan(&[unit("c", &["b"]), unit("a", &[]), unit("b", &["a"])], ""))
            .unwrap();
    let titles: Vec<_> =
        order_units(&made.units).unwrap().into_iter().map(|unit| unit.title.as_str()).collect();
    assert_eq!(titles, ["a", "b", "c"]);
}
