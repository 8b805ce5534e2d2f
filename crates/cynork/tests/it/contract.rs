//! The command line against the OpenAPI document and against itself.

use std::collections::{BTreeMap, BTreeSet};

use cynork::{
    contract::{self, JsonAnswer, PROMISES},
    operations,
};
use serde_json::Value;

fn read(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn contract_document() -> Value {
    serde_json::from_str(&read("openapi.json")).unwrap()
}

/// What each operation answers when all goes well: the name of its schema.
fn answers(document: &Value) -> BTreeMap<String, Option<String>> {
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|methods| methods.as_object().unwrap().values());
    let answers = operations.map(|operation| {
        let good = operation["responses"].as_object().unwrap().iter();
        let mut good = good.filter(|(status, _)| status.starts_with('2'));
        // A page that sends a browser elsewhere has no such answer.
        let name = good.next().and_then(|(_, answer)| {
            let schema = answer["content"]["application/json"]["schema"]["$ref"].as_str()?;
            Some(schema.rsplit('/').next().unwrap().to_owned())
        });
        (operation["operationId"].as_str().unwrap().to_owned(), name)
    });
    answers.collect()
}

#[test]
fn the_tree_of_commands_is_whole() {
    cynork::build_command().debug_assert();
}

#[test]
fn every_operation_of_the_interface_has_a_command_and_no_command_asks_for_another() {
    let document = contract_document();
    let mut wanted = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            wanted.insert((id.to_owned(), method.to_uppercase(), path.clone()));
        }
    }
    let known = operations::ALL.iter();
    let known = known.map(|it| (it.id.to_owned(), it.method.to_owned(), it.path.to_owned()));
    assert_eq!(known.collect::<BTreeSet<_>>(), wanted);
}

#[test]
fn the_command_of_every_operation_is_there_and_promises_to_call_it() {
    let wrong = operations::ALL.iter().filter(|operation| {
        let promise = PROMISES.iter().find(|promise| promise.command == operation.command);
        !promise.is_some_and(|promise| promise.operations.contains(operation))
    });
    let wrong: Vec<_> = wrong.map(|it| format!("{}: `cynork {}`", it.id, it.command)).collect();
    assert!(wrong.is_empty(), "no such command, or it does not call it: {wrong:#?}");
}

#[test]
fn every_command_has_one_promise_and_every_promise_a_command() {
    let leaves: BTreeSet<String> =
        contract::list_leaf_commands().into_iter().map(|it| it.command).collect();
    let promised: Vec<&str> = PROMISES.iter().map(|it| it.command).collect();
    let once: BTreeSet<String> = promised.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(promised.len(), once.len(), "something is promised twice");
    assert_eq!(leaves, once);
}

#[test]
fn an_answer_that_is_passed_on_is_the_one_of_the_last_operation() {
    let answers = answers(&contract_document());
    for promise in PROMISES {
        let last = promise.operations.last().map(|it| it.id).unwrap_or_default();
        let answer = answers.get(last).cloned().flatten();
        match promise.answer {
            JsonAnswer::Document(name) => {
                assert_eq!(answer.as_deref(), Some(name), "`{}` calls {last}", promise.command);
            }
            JsonAnswer::Nothing => assert_eq!(answer, None, "`{}` calls {last}", promise.command),
            JsonAnswer::Lines(_) | JsonAnswer::Own(_) | JsonAnswer::Anything => {}
        }
    }
}

#[test]
fn every_list_that_has_pages_can_be_read_page_by_page_and_whole() {
    let document = contract_document();
    let paged = |answer: JsonAnswer| match answer {
        JsonAnswer::Document(name) => {
            let properties = &document["components"]["schemas"][name]["properties"];
            properties.get("next_cursor").is_some()
        }
        JsonAnswer::Lines(_) | JsonAnswer::Own(_) | JsonAnswer::Nothing | JsonAnswer::Anything => {
            false
        }
    };
    let leaves = contract::list_leaf_commands().into_iter();
    let leaves: Vec<_> = leaves
        .filter(|it| it.find_contract().is_some_and(|promise| paged(promise.answer)))
        .collect();
    assert!(leaves.len() > 10, "{}", leaves.len());
    for leaf in leaves {
        let flags: BTreeSet<&str> =
            leaf.parsed.get_arguments().filter_map(clap::Arg::get_long).collect();
        let lacking: Vec<&str> =
            ["limit", "cursor", "all"].into_iter().filter(|it| !flags.contains(it)).collect();
        assert!(lacking.is_empty(), "`cynork {}` has no {lacking:?}", leaf.command);
    }
}

#[test]
fn every_reference_of_the_contract_leads_somewhere() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|it| references(it, found));
            }
            Value::Array(items) => items.iter().for_each(|it| references(it, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    references(&contract::contract_document(), &mut found);
    assert!(found.len() > 50, "{found:?}");
    let document = contract_document();
    for reference in found {
        let place = reference.strip_prefix("openapi.json#").unwrap();
        assert!(document.pointer(place).is_some(), "{reference}");
    }
}

/// The words of a command line, as a shell takes them apart.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quoted, character) {
            (Some(quote), it) if it == quote => quoted = None,
            (None, '\'' | '"') => {
                quoted = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, it) => word.get_or_insert_default().push(it),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_command_says_what_it_does_and_has_an_example_that_is_understood() {
    for leaf in contract::list_leaf_commands() {
        let about = leaf.parsed.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.len() > 10, "`{}` does not say what it does", leaf.command);
        let example = leaf.usage_example().unwrap_or_default();
        let all = words(&example);
        let mut wanted = vec!["cynork"];
        wanted.extend(leaf.command.split(' '));
        assert!(
            all.iter().zip(&wanted).all(|(it, word)| it == word),
            "`{}`: {example}",
            leaf.command
        );
        if let Err(error) = cynork::build_command().try_get_matches_from(all) {
            panic!("`{}`: {example}\n{error}", leaf.command);
        }
    }
}

#[test]
fn no_command_gives_another_meaning_to_what_is_said_everywhere() {
    let root = cynork::build_command();
    let globals: BTreeSet<_> = root
        .get_arguments()
        .filter(|it| it.is_global_set())
        .map(|it| it.get_id().clone())
        .collect();
    for leaf in contract::list_leaf_commands() {
        let own = leaf.parsed.get_arguments().filter(|it| !it.is_global_set());
        for argument in own {
            let id = argument.get_id();
            assert!(!globals.contains(id), "`cynork {}` has a `{id}` of its own", leaf.command);
        }
    }
}

#[test]
fn no_flag_takes_a_secret() {
    let secret = ["password", "secret", "token", "credential", "key"];
    for leaf in contract::list_leaf_commands() {
        for argument in leaf.parsed.get_arguments() {
            let takes = argument.get_action().takes_values();
            let long = argument.get_long().unwrap_or_default();
            let asks = secret.iter().any(|word| long.split('-').any(|part| part == *word));
            assert!(!(takes && asks), "`cynork {} --{long}` takes a secret", leaf.command);
        }
    }
}

#[test]
fn the_table_of_commands_is_the_one_of_the_page() {
    let page = read("reference/cynork.md");
    let written = page.split("<!-- commands -->\n").nth(1).unwrap();
    let written = written.split("<!-- end of commands -->").next().unwrap();
    assert_eq!(written.trim(), contract::commands_table().trim(), "renew it: just gen");
}

#[test]
fn the_contract_is_written_down() {
    let written: Value = serde_json::from_str(&read("cynork.json")).unwrap();
    assert!(written == contract::contract_document(), "renew it: just gen");
}
