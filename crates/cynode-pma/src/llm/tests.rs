use cynode_core::tuning::MODEL_TEMPERATURE;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::decision_context::{DecisionBackend as _, DecisionError};

/// How large it is.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Size {
    /// Fits in a hand.
    Small,
    /// Does not.
    Large,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Part {
    /// What it is called.
    #[schemars(length(max = 20))]
    name: String,
    #[serde(default)]
    notes: Vec<String>,
}

/// A thing.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Thing {
    size: Size,
    #[schemars(range(min = 1, max = 9))]
    count: u32,
    #[serde(default)]
    question: Option<String>,
    #[schemars(length(max = 2))]
    parts: Vec<Part>,
    best: Option<Part>,
}

fn schema() -> Value {
    serde_json::to_value(schemars::schema_for!(Thing)).unwrap()
}

fn ask(user: &str) -> DecisionRequest {
    DecisionRequest {
        step: 0,
        kind: DecisionKind::Classify,
        tier: Tier::Fast,
        schema: schema(),
        system: "S".into(),
        user: user.into(),
    }
}

const GOOD: &str = r#"{"size":"small","count":3,"parts":[{"name":"a","notes":["n"]}]}"#;

/// Nothing is wrong.
const FINE: AnswerValidator<'static> = &|_| Ok(());

#[test]
fn a_form_is_told_without_references_closed_and_in_words_that_every_provider_knows() {
    insta::assert_snapshot!(
        serde_json::to_string_pretty(
            &AnswerSchema::from_schema(&schema()).unwrap().response_format("thing")
        )
        .unwrap()
    );
}

#[test]
fn an_answer_is_taken_whole_from_a_fence_or_from_its_braces() {
    let form = AnswerSchema::from_schema(&schema()).unwrap();
    let good: Value = serde_json::from_str(GOOD).unwrap();
    for text in [
        GOOD.to_owned(),
        format!("  {GOOD}\n"),
        format!("```json\n{GOOD}\n```"),
        format!("Here you are:\n```\n{GOOD}\n```\nBye"),
        format!("Sure. {GOOD} Done."),
        format!("<think>{{}} hm </think>\n{GOOD}"),
    ] {
        assert_eq!(form.parse_answer(&text, FINE), Ok(good.clone()), "{text}");
    }
}

#[test]
fn members_that_may_be_left_out_may_be_null_and_those_that_may_not_may_not() {
    let form = AnswerSchema::from_schema(&schema()).unwrap();
    let text = r#"{"size":"small","count":3,"question":null,"parts":[{"name":"a","notes":null}],"best":null}"#;
    let value = form.parse_answer(text, FINE).unwrap();
    assert_eq!(value, json!({ "size": "small", "count": 3, "parts": [{ "name": "a" }] }));
    let thing: Thing = serde_json::from_value(value).unwrap();
    assert!(thing.parts[0].notes.is_empty() && thing.best.is_none());
    assert!(form.parse_answer(&GOOD.replace('3', "null"), FINE).is_err());
}

#[test]
fn an_answer_that_does_not_fit_is_an_error_with_a_reason_and_never_a_guess() {
    let form = AnswerSchema::from_schema(&schema()).unwrap();
    for (text, why) in [
        ("I would say small.".to_owned(), "it is not JSON"),
        (String::new(), "it is not JSON"),
        (GOOD.replace("small", "medium"), "`/size`"),
        (GOOD.replace(":3", ":0"), "`/count`"),
        (GOOD.replace(":3", ":\"3\""), "`/count`"),
        (GOOD.replace("\"count\"", "\"amount\""), "the answer"),
        (GOOD.replace("\"a\"", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""), "`/parts/0/name`"),
        ("[]".to_owned(), "the answer"),
        (format!("{GOOD} or {GOOD}"), "it is not JSON"),
    ] {
        let told = form.parse_answer(&text, FINE).unwrap_err();
        assert!(told.starts_with(why), "{text}: {told}");
    }
    let picky = |value: &Value| {
        if value["count"] == 3 { Err("three is too many".to_owned()) } else { Ok(()) }
    };
    assert_eq!(form.parse_answer(GOOD, &picky), Err("three is too many".into()));
    let long = form.parse_answer(&GOOD.replace("small", &"x".repeat(9000)), FINE).unwrap_err();
    assert!(long.chars().count() <= 401, "{}", long.len());
}

#[test]
fn a_form_that_refers_to_itself_or_to_something_else_is_refused() {
    let own = json!({ "$ref": "#/$defs/A", "$defs": { "A": { "properties": { "a": { "$ref": "#/$defs/A" } } } } });
    assert!(AnswerSchema::from_schema(&own).unwrap_err().contains("refers to itself"));
    assert!(
        AnswerSchema::from_schema(&json!({ "$ref": "http://127.0.0.1/x" }))
            .unwrap_err()
            .contains("not in it")
    );
}

#[test]
fn the_digest_is_of_everything_that_makes_the_question_and_of_nothing_else() {
    let one = ask("q");
    assert_eq!(request_digest(&one), request_digest(&DecisionRequest { step: 7, ..one.clone() }));
    for other in [
        DecisionRequest { kind: DecisionKind::Route, ..one.clone() },
        DecisionRequest { tier: Tier::Deep, ..one.clone() },
        DecisionRequest { schema: json!({}), ..one.clone() },
        DecisionRequest { system: "Sq".into(), user: String::new(), ..one.clone() },
        DecisionRequest { system: String::new(), user: "Sq".into(), ..one.clone() },
    ] {
        assert_ne!(request_digest(&one), request_digest(&other), "{other:?}");
    }
}

#[test]
fn a_tier_gets_its_model_or_the_nearest_or_any_other_but_never_the_manager_itself() {
    let of = |models: &[&str], tier| {
        let models: Vec<String> = models.iter().map(|model| (*model).to_owned()).collect();
        select_model(&models, tier).map(str::to_owned)
    };
    let all = ["cynodeai.pm", "gpt", "cynodeai.deep", "cynodeai.standard", "cynodeai.fast"];
    for tier in Tier::ALL {
        assert_eq!(of(&all, *tier), Some(tier.tier_model_id()));
    }
    assert_eq!(of(&["cynodeai.fast", "cynodeai.deep"], Tier::Standard).unwrap(), "cynodeai.deep");
    assert_eq!(
        of(&["x", "cynodeai.deep", "cynodeai.standard"], Tier::Fast).unwrap(),
        "cynodeai.standard"
    );
    assert_eq!(of(&["x", "cynodeai.fast"], Tier::Deep).unwrap(), "cynodeai.fast");
    assert_eq!(of(&["cynodeai.pm", "x", "y"], Tier::Deep).unwrap(), "x");
    assert_eq!(of(&["cynodeai.pm"], Tier::Fast), None);
    assert_eq!(of(&[], Tier::Fast), None);
}

fn kinds() -> [DecisionKind; 11] {
    [
        DecisionKind::Classify,
        DecisionKind::AssessScope,
        DecisionKind::AnalyseProject,
        DecisionKind::Plan,
        DecisionKind::RefineTask,
        DecisionKind::ReviewArtifact,
        DecisionKind::HandleFailure,
        DecisionKind::Route,
        DecisionKind::ChooseTests,
        DecisionKind::Summarise,
        DecisionKind::InterpretSchedule,
    ]
}

#[test]
fn kinds_are_named_as_they_are_written() {
    for kind in kinds() {
        assert_eq!(serde_json::to_value(kind).unwrap(), decision_kind_name(kind));
    }
}

#[tokio::test]
async fn a_script_answers_by_kind_and_holds_its_answers_to_the_form() {
    let good: Value = serde_json::from_str(GOOD).unwrap();
    let brain = ScriptedBackend::new([
        (DecisionKind::Classify, good.clone()),
        (DecisionKind::Classify, json!({})),
    ]);
    assert_eq!(brain.request_decision(ask("q"), FINE).await, Ok(good), "X-09");
    assert!(matches!(
        brain.request_decision(ask("r"), FINE).await,
        Err(DecisionError::Permanent(_))
    ));
    assert!(matches!(
        brain.request_decision(ask("s"), FINE).await,
        Err(DecisionError::Permanent(_))
    ));
    let asked: Vec<String> = brain.received_requests().into_iter().map(|ask| ask.user).collect();
    assert_eq!(asked, ["q", "r", "s"]);
}

#[tokio::test]
async fn what_was_thought_is_given_again_for_the_same_question_only() {
    let good: Value = serde_json::from_str(GOOD).unwrap();
    let thought = ModelDecision {
        step: 3,
        kind: "classify".into(),
        prompt_digest: request_digest(&ask("q")),
        schema_digest: schema_digest(&schema()),
        model: "m".into(),
        output: Some(good.clone()),
        attempts: 1,
        validation_errors: vec![],
        input_tokens: 1,
        output_tokens: 1,
        latency_ms: 1,
    };
    let brain = ReplayBackend::new([thought]);
    assert_eq!(brain.request_decision(ask("q"), FINE).await, Ok(good), "X-10");
    assert!(matches!(
        brain.request_decision(ask("other"), FINE).await,
        Err(DecisionError::Permanent(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_temperature_of_a_call_is_between_0_and_2_whatever_was_set(text in "-?[0-9]{1,6}(\\.[0-9]{1,3})?|\\PC{0,8}|NaN|inf") {
        let (tuned, _) = MODEL_TEMPERATURE.parse_clamped(&text);
        for kind in kinds() {
            let temperature = temperature_for_kind(kind, tuned);
            prop_assert!((0.0..=2.0).contains(&temperature), "X-19: {temperature}");
        }
    }

    #[test]
    fn no_text_makes_the_reader_fail_otherwise_than_by_saying_so(text in any::<String>()) {
        let form = AnswerSchema::from_schema(&schema()).unwrap();
        if let Ok(value) = form.parse_answer(&text, FINE) {
            let thing: Result<Thing, _> = serde_json::from_value(value);
            prop_assert!(thing.is_ok());
        }
    }

    #[test]
    fn a_question_does_not_grow_with_the_complaints_before_it(complaints in proptest::collection::vec("\\PC{0,400}", 1..20)) {
        let form = AnswerSchema::from_schema(&schema()).unwrap();
        let bare = build_completion_request(&ask("q"), &form, "m", 0.0, None).to_string().len();
        for complaint in complaints {
            let next = build_completion_request(&ask("q"), &form, "m", 0.0, Some(&complaint)).to_string().len();
            // Whatever is written before, only the last complaint is in it; JSON may write a character in six.
            let bound = bare + 6 * complaint.len() + 2 * form.to_compact_json().len() + 200;
            prop_assert!(next <= bound, "S004-010, S004-017, X-01: {} of {}", next, bound);
        }
    }
}
