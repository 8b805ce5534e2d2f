//! The language of the code: docs/contributing/language.md says the rules, `language.toml` lists the words, this test holds them.
//!
//! What is still open is counted in `[open]` of the list. A count may only become smaller, and the list ends empty.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::source::{files, read};

const WORD_LIST: &str = "crates/cynode/tests/language.toml";

/// The words that are not used, by what they would name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WordList {
    /// Names of functions and types.
    participles: BTreeSet<String>,
    /// Words anywhere in a name.
    metaphors: BTreeSet<String>,
    /// Words anywhere in the name of a constant.
    constants: BTreeSet<String>,
    modules: BTreeSet<String>,
    error_codes: BTreeSet<String>,
    log_events: BTreeSet<String>,
    settings: BTreeSet<String>,
    cli_words: BTreeSet<String>,
    api_fields: BTreeSet<String>,
    /// Types that have the name of another type of their crate, as `crate::Name`, and why.
    repeated_types: BTreeMap<String, String>,
    /// How many of each kind are still to be renamed.
    open: BTreeMap<String, usize>,
}

impl WordList {
    fn load() -> Self {
        toml::from_str(&read(WORD_LIST)).unwrap()
    }

    fn has_metaphor(&self, name: &str) -> bool {
        words(name).any(|word| self.metaphors.contains(&word))
    }
}

/// The words of a name, in small letters.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::new();
    for (at, letter) in name.char_indices() {
        let begins = letter.is_uppercase() && !name[..at].ends_with(char::is_uppercase);
        if letter == '_' || letter == '-' || letter == '.' {
            spaced.push(' ');
        } else {
            if begins {
                spaced.push(' ');
            }
            spaced.extend(letter.to_lowercase());
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// The named items of one file that are not only for tests; of functions those that others may use.
#[derive(Default)]
struct Items {
    functions: Vec<String>,
    types: Vec<String>,
    constants: Vec<String>,
    modules: Vec<String>,
}

impl Items {
    /// Reads source as rustfmt writes it: an item begins a line, and its block ends with a brace as far to the right.
    fn parse(text: &str) -> Self {
        let mut items = Self::default();
        let mut lines = text.lines();
        let mut for_tests = false;
        while let Some(line) = lines.next() {
            let (depth, code) = (line.len() - line.trim_start().len(), line.trim_start());
            if code.starts_with("#[") {
                for_tests |= code.starts_with("#[cfg(test)]")
                    || code.starts_with("#[test]")
                    || code.starts_with("#[tokio::test");
                continue;
            }
            if std::mem::take(&mut for_tests) {
                let end = format!("{}}}", " ".repeat(depth));
                if !code.ends_with(';') && !code.ends_with('}') {
                    lines.by_ref().find(|line| *line == end);
                }
                continue;
            }
            items.add_line(code);
        }
        items
    }

    fn add_line(&mut self, code: &str) {
        let visible = code.starts_with("pub");
        let mut words = code.split_whitespace().skip_while(|word| {
            word.starts_with("pub")
                || matches!(*word, "async" | "unsafe" | "extern" | "\"C\"" | "in" | "crate)")
        });
        let (Some(first), Some(second)) = (words.next(), words.next()) else { return };
        let (kind, name) = if first == "const" && second == "fn" {
            (second, words.next().unwrap_or_default())
        } else if first == "static" && second == "mut" {
            (first, words.next().unwrap_or_default())
        } else {
            (first, second)
        };
        let name =
            name.split(|it: char| !it.is_alphanumeric() && it != '_').next().unwrap_or_default();
        let names = match kind {
            "fn" if visible => &mut self.functions,
            "struct" | "enum" | "trait" | "union" => &mut self.types,
            "const" | "static" => &mut self.constants,
            "mod" => &mut self.modules,
            _ => return,
        };
        if !name.is_empty() {
            names.push(name.to_owned());
        }
    }
}

/// The source files of crates without their tests: the crate and the path.
fn sources() -> Vec<(String, String)> {
    let all = files("crates").into_iter().filter(|path| path.ends_with(".rs"));
    all.filter_map(|path| {
        let mut parts = path.split('/').skip(1);
        let (name, folder) = (parts.next()?.to_owned(), parts.next()?);
        let tested = parts.any(|part| part == "tests" || part == "tests.rs");
        (folder == "src" && !tested).then_some((name, path))
    })
    .collect()
}

/// Every place that a rule of the language does not allow, by kind, as `where name`.
fn violations(list: &WordList) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |kind: &str, place: &str, name: &str| {
        found.entry(kind.to_owned()).or_default().push(format!("{place} {name}"));
    };
    let mut types: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (name_of_crate, path) in sources() {
        let text = read(&path);
        let items = Items::parse(&text);
        for name in &items.functions {
            if list.participles.contains(name) || list.has_metaphor(name) {
                add("functions", &path, name);
            }
        }
        for name in &items.types {
            if list.participles.contains(&name.to_lowercase()) || list.has_metaphor(name) {
                add("types", &path, name);
            }
            *types.entry((name_of_crate.clone(), name.clone())).or_default() += 1;
        }
        for name in &items.constants {
            if words(name).any(|word| list.constants.contains(&word)) || list.has_metaphor(name) {
                add("constants", &path, name);
            }
        }
        for name in &items.modules {
            if list.modules.contains(name) || list.has_metaphor(name) {
                add("modules", &path, name);
            }
        }
        for name in quoted(&text, "event = \"") {
            if list.log_events.contains(name) {
                add("log_events", &path, name);
            }
        }
        for key in quoted(&text, "\"").filter(|key| list.settings.contains(*key)) {
            add("settings", &path, key);
        }
    }
    for ((name_of_crate, name), count) in types {
        if count > 1 && !list.repeated_types.contains_key(&format!("{name_of_crate}::{name}")) {
            add("repeated_types", &name_of_crate, &name);
        }
    }
    let problems = "crates/cynode-api/src/problems.rs";
    let text = read(problems);
    for code in quoted(&text, " = \"").filter(|code| list.error_codes.contains(*code)) {
        add("error_codes", problems, code);
    }
    let openapi: Value = serde_json::from_str(&read("docs/openapi.json")).unwrap();
    let schemas = openapi["components"]["schemas"].as_object().unwrap();
    for (schema, field) in schemas.iter().flat_map(|(name, schema)| {
        let fields = schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys());
        fields.map(move |field| (name, field))
    }) {
        if list.api_fields.contains(field) || list.has_metaphor(field) {
            add("api_fields", schema, field);
        }
    }
    let contract: Value = serde_json::from_str(&read("docs/cynork.json")).unwrap();
    for command in commands(&contract) {
        for word in command.split(' ').filter(|word| list.cli_words.contains(*word)) {
            add("cli_words", &command, word);
        }
    }
    found
}

/// What stands between `before` and the next quotation mark, each time.
fn quoted<'text>(text: &'text str, before: &'text str) -> impl Iterator<Item = &'text str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
}

/// The words of each command of `cynork`.
fn commands(contract: &Value) -> Vec<String> {
    let listed = contract["commands"].as_array().unwrap();
    listed.iter().map(|command| command["command"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn names_are_words_of_the_field_and_what_is_still_open_becomes_less() {
    let list = WordList::load();
    let found = violations(&list);
    let counts: BTreeMap<String, usize> =
        found.iter().map(|(kind, places)| (kind.clone(), places.len())).collect();
    let wrong: Vec<_> = found
        .iter()
        .filter(|(kind, places)| list.open.get(*kind) != Some(&places.len()))
        .flat_map(|(kind, places)| places.iter().map(move |place| format!("{kind}: {place}")))
        .collect();
    assert_eq!(counts, list.open, "\n{}", wrong.join("\n"));
}

#[test]
fn items_are_found_in_source_but_not_those_of_tests() {
    let source = "pub(crate) async fn told() {\n    let fn_name = 1;\n}\n\nfn hidden() {}\n\npub const MAX: u8 = 1;\n\nimpl A {\n    pub const fn at(self) {}\n}\n\n\
        enum Kind {\n    A,\n}\n\n#[cfg(test)]\nmod tests {\n    pub fn said() {}\n}\n\nmod seen;\n";
    let items = Items::parse(source);
    assert_eq!(items.functions, ["told", "at"]);
    assert_eq!(items.types, ["Kind"]);
    assert_eq!(items.constants, ["MAX"]);
    assert_eq!(items.modules, ["seen"]);
}

#[test]
fn a_name_is_taken_apart_into_its_words() {
    let taken = |name: &str| words(name).collect::<Vec<_>>();
    assert_eq!(taken("MAX_OPEN_TASKS"), ["max", "open", "tasks"]);
    assert_eq!(taken("LoginThrottle"), ["login", "throttle"]);
    assert_eq!(taken("to_strict_schema"), ["to", "strict", "schema"]);
    assert_eq!(taken("job.persist_failed"), ["job", "persist", "failed"]);
}
