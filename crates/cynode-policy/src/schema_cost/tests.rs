use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::schema::ToolSchema;

/// A schema whose definition `aN` applies `aN-1` twice: two to the power of `levels` checks of one value.
fn bomb(levels: usize, last: &Value, applicator: &str) -> Value {
    let mut definitions = serde_json::Map::new();
    definitions.insert("a0".into(), last.clone());
    for level in 1..=levels {
        let below = json!({ "$ref": format!("#/$defs/a{}", level - 1) });
        definitions.insert(format!("a{level}"), json!({ applicator: [below.clone(), below] }));
    }
    let top = format!("#/$defs/a{levels}");
    json!({ "type": "object", "$ref": top, "$defs": definitions })
}

fn refusal_of(schema: &Value) -> Option<ToolSchemaError> {
    ToolSchema::compile_schema(schema).err()
}

#[test]
fn a_schema_that_doubles_with_each_reference_is_refused_whatever_it_would_say() {
    let since = Instant::now();
    for applicator in ["allOf", "anyOf", "oneOf"] {
        for last in [json!({ "required": ["x"] }), json!(true), json!({ "not": {} })] {
            let refused = refusal_of(&bomb(20, &last, applicator));
            assert_eq!(refused, Some(ToolSchemaError::TooComplex), "{applicator} {last}");
        }
    }
    // As many levels as fit into the bytes of a schema.
    let refused = refusal_of(&bomb(1400, &json!({ "required": ["x"] }), "allOf"));
    assert_eq!(refused, Some(ToolSchemaError::TooComplex));
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[test]
fn what_unevaluated_properties_apply_again_is_counted_again() {
    let schema = (0..12).fold(
        json!({ "properties": { "a": {} } }),
        |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false }),
    );
    let mut schema = schema;
    schema["type"] = json!("object");
    assert_eq!(refusal_of(&schema), Some(ToolSchemaError::TooComplex));
}

#[test]
fn recursion_is_allowed_only_into_the_value() {
    let own = |schema: Value| json!({ "type": "object", "properties": { "n": { "$ref": "#/$defs/n" } }, "$defs": { "n": schema } });
    for endless in [
        json!({ "$ref": "#/$defs/n" }),
        json!({ "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/n" }] }),
        json!({ "if": true, "then": { "not": { "$ref": "#/$defs/n" } } }),
        json!({ "dependentSchemas": { "a": { "$ref": "#/$defs/%6e" } } }),
    ] {
        assert_eq!(
            refusal_of(&own(endless.clone())),
            Some(ToolSchemaError::EndlessRecursion),
            "{endless}"
        );
    }
    let anchored = json!({ "type": "object", "$anchor": "top", "allOf": [{ "$ref": "#top" }] });
    assert_eq!(refusal_of(&anchored), Some(ToolSchemaError::EndlessRecursion));
    let tree = own(json!({ "type": "object", "required": ["left"], "additionalProperties": false,
        "properties": { "left": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/n" }] }, "right": { "$ref": "#/$defs/n" } } }));
    let tree = ToolSchema::compile_schema(&tree).unwrap();
    let leaf = json!({ "left": null });
    let good = json!({ "n": { "left": { "left": leaf, "right": leaf }, "right": leaf } });
    assert_eq!(tree.find_violation(&good), None);
    assert!(tree.find_violation(&json!({ "n": { "left": { "right": leaf } } })).is_some());
}

#[test]
fn a_part_with_an_id_of_its_own_or_a_reference_to_nothing_is_refused() {
    let nested = json!({ "type": "object", "properties": { "a": { "$id": "b", "$ref": "#/$defs/x" } }, "$defs": { "x": {} } });
    assert_eq!(refusal_of(&nested), Some(ToolSchemaError::NestedId));
    let nowhere = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/x" } } });
    assert_eq!(
        refusal_of(&nowhere),
        Some(ToolSchemaError::Invalid("`#/$defs/x` is not in it".into()))
    );
    // A property may have any name.
    let named = json!({ "type": "object", "$id": "https://example.com/tool", "properties": { "$id": { "type": "string" } } });
    assert_eq!(refusal_of(&named), None);
}

/// A schema that applies itself twice to the property `a`: nothing is wrong with it until a value is deep.
fn doubling() -> ToolSchema {
    let twice = json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
    ToolSchema::compile_schema(&json!({ "type": "object", "properties": { "a": twice } })).unwrap()
}

fn nested(levels: usize, end: &Value) -> Value {
    (0..levels).fold(end.clone(), |inner, _| json!({ "a": inner }))
}

#[test]
fn a_value_on_which_a_schema_doubles_with_each_level_is_refused_at_once() {
    let schema = doubling();
    assert_eq!(schema.find_violation(&nested(5, &json!({}))), None);
    let wrong = schema.find_violation(&nested(5, &json!("x"))).unwrap();
    assert!(wrong.starts_with("`/a/a/a/a/a`: "), "{wrong}");
    let since = Instant::now();
    for end in [json!({}), json!("x")] {
        let refused = schema.find_violation(&nested(100, &end));
        let reason = "too many parts of the schema apply to too many values: send less";
        assert_eq!(refused.as_deref(), Some(reason));
    }
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

#[test]
fn many_values_are_validated_as_long_as_they_cost_little() {
    let strings = json!({ "type": "object", "properties": { "list": { "type": "array", "items": { "type": "string" } } } });
    let strings = ToolSchema::compile_schema(&strings).unwrap();
    let list = |count: usize| json!({ "list": vec!["x"; count] });
    assert_eq!(strings.find_violation(&list(100_000)), None);
    assert!(strings.find_violation(&list(600_000)).is_some());
    assert!(strings.is_cheap_for(10_000) && !strings.is_cheap_for(1_000_000));
    // A long list of allowed words costs its length for each value.
    let words: Vec<_> = (0..1_000).map(|word| format!("w{word}")).collect();
    let words =
        json!({ "type": "object", "properties": { "list": { "items": { "enum": words } } } });
    let words = ToolSchema::compile_schema(&words).unwrap();
    assert_eq!(words.find_violation(&json!({ "list": vec!["w7"; 100] })), None);
    assert!(words.find_violation(&json!({ "list": vec!["w7"; 1_000] })).is_some());
}

#[test]
fn errors_of_all_branches_are_not_collected_when_there_are_many() {
    let branches: Vec<_> =
        (0..300).map(|at| json!({ "required": [format!("p{at}"), "q"] })).collect();
    let schema =
        json!({ "type": "object", "properties": { "all": { "items": { "anyOf": branches } } } });
    let schema = ToolSchema::compile_schema(&schema).unwrap();
    let wrong = json!({ "all": vec![json!({}); 60] });
    assert_eq!(
        schema.find_violation(&wrong).as_deref(),
        Some("the arguments do not fit the schema")
    );
    let few = schema.find_violation(&json!({ "all": [{}] })).unwrap();
    assert!(few.starts_with("`/all/0`: "), "{few}");
}

#[test]
fn patterns_are_few_small_and_cheap() {
    let with =
        |pattern: &str| json!({ "type": "object", "properties": { "a": { "pattern": pattern } } });
    assert_eq!(refusal_of(&with("^\\w{1,64}$")), None);
    assert!(matches!(refusal_of(&with("(\\w{200}){200}")), Some(ToolSchemaError::Invalid(_))));
    let many: serde_json::Map<_, _> =
        (0..65).map(|at| (format!("p{at}"), json!({ "pattern": format!("^{at}$") }))).collect();
    let many = json!({ "type": "object", "properties": many });
    assert_eq!(refusal_of(&many), Some(ToolSchemaError::TooComplex));
    let long = ToolSchema::compile_schema(&with("^([a-z]+x){1,9}$")).unwrap();
    assert!(long.find_violation(&json!({ "a": "a".repeat(4 << 20) })).is_some());
}

#[test]
fn percent_signs_of_a_reference_are_decoded() {
    assert_eq!(decode_percent("/$defs/a%20%C3%A9").as_deref(), Some("/$defs/a é"));
    for wrong in ["%", "%2", "%zz", "%ff"] {
        assert_eq!(decode_percent(wrong), None, "{wrong}");
    }
}
