//! Code as policy: `AGENTS.md` says the rules, these tests hold everybody to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde::Deserialize;

use crate::source::{exists, files, read, root, test_bodies, tests};

/// The sections that `AGENTS.md` must have, in this order.
const ANCHORS: [&str; 11] = [
    "Framework Governance",
    "Design Tenets",
    "Agent Roles & Interfaces",
    "Planning Protocol",
    "Tool Contract",
    "Memory & RAG",
    "Coordinator Policy",
    "Configuration Policy",
    "Observability & Tracing",
    "Testing Invariants",
    "Change Management",
];

/// One rule: `- **DT-1** The rule. [proof, proof]`.
#[derive(Debug)]
struct Rule {
    id: String,
    proofs: Vec<String>,
}

/// The rules of a guardrail document, or what is wrong with it.
fn rules(document: &str) -> Result<Vec<Rule>, Vec<String>> {
    let mut wrong = Vec::new();
    let anchors: Vec<_> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    if anchors != ANCHORS {
        wrong.push(format!("the sections are {anchors:?}"));
    }
    let mut rules: Vec<Rule> = Vec::new();
    let text = document.replace("\n  ", " ");
    for line in text.lines().filter(|line| line.starts_with("- ")) {
        let id = line.strip_prefix("- **").and_then(|rest| rest.split_once("**")).map(|(id, _)| id);
        let proofs = line.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
        let (Some(id), Some((_, proofs))) = (id, proofs) else {
            wrong.push(format!("a rule has no id or names no proof: {line}"));
            continue;
        };
        if rules.iter().any(|rule| rule.id == id) {
            wrong.push(format!("two rules are called {id}"));
        }
        let proofs = proofs.split(',').map(|proof| proof.trim().to_owned()).collect();
        rules.push(Rule { id: id.to_owned(), proofs });
    }
    if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
}

#[test]
fn the_guardrail_document_has_its_eleven_anchors_and_every_rule_names_a_proof_that_exists() {
    let tests = tests();
    let rules = rules(&read("AGENTS.md")).unwrap_or_else(|wrong| panic!("S001-82: {wrong:?}"));
    assert!(rules.len() >= ANCHORS.len(), "there are only {} rules", rules.len());
    let missing: Vec<_> = rules
        .iter()
        .flat_map(|rule| rule.proofs.iter().map(move |proof| (&rule.id, proof)))
        .filter(|(_, proof)| !exists(proof, &tests))
        .collect();
    assert_eq!(
        missing,
        Vec::new(),
        "S001-02, B001-30, X-22: a check holds each rule of the document"
    );
}

#[test]
fn ci_runs_every_test_without_a_network_and_a_failing_stage_fails_the_build() {
    let ci = read(".ci/run");
    let body = |name: &str| {
        let (_, rest) = ci.split_once(&format!("\n{name}() {{\n")).unwrap();
        rest.split_once("\n}\n").unwrap().0.to_owned()
    };
    let tests = "\nstage tests offline cargo nextest run --profile ci --workspace ";
    assert!(ci.contains(tests), "S001-02, S001-08: all tests are a stage that runs offline");
    assert!(body("offline").contains("unshare --net "), "S001-08: offline means no network");
    let stage = body("stage");
    assert!(
        stage.contains("\"$@\" || {") && stage.contains("exit 1; }"),
        "S001-02: a stage that fails ends CI with an error"
    );
}

#[test]
fn a_document_without_an_anchor_or_with_a_rule_without_proof_is_refused() {
    let whole: String = ANCHORS
        .iter()
        .enumerate()
        .map(|(number, anchor)| format!("## {anchor}\n\n- **R-{number}** Do. [cynode::x]\n\n"))
        .collect();
    assert_eq!(rules(&whole).unwrap().len(), 11);
    for anchor in ANCHORS {
        let without = whole.replace(&format!("## {anchor}\n"), "");
        assert!(
            rules(&without).is_err(),
            "S001-82, B001-20, X-22: {anchor} is not asked for; {anchor} is missing"
        );
    }
    assert!(rules(&whole.replace("- **R-3** Do. [cynode::x]", "- Do. [cynode::x]")).is_err());
    assert!(rules(&whole.replace("- **R-3** Do. [cynode::x]", "- **R-3** Do.")).is_err());
    assert!(rules(&whole.replace("**R-3**", "**R-4**")).is_err());
    assert!(!exists("cynode::there_is_no_such_test", &tests()));
}

/// Whether a document says that it is the canonical one.
fn claims_to_be_canonical(text: &str) -> bool {
    text.replace('\n', " ").contains("single normative source")
}

#[test]
fn one_document_is_canonical_and_a_local_one_can_only_add() {
    let documents: Vec<_> = files(".").into_iter().filter(|path| path.ends_with(".md")).collect();
    let canonical: Vec<_> =
        documents.iter().filter(|path| claims_to_be_canonical(&read(path))).collect();
    assert_eq!(canonical, ["AGENTS.md"], "S001-03, B001-20: one document claims to be canonical");
    let second = "This page is the single\nnormative source, too.";
    assert!(claims_to_be_canonical(second), "S001-03: a second claim is found");
    let root_rules = rules(&read("AGENTS.md")).unwrap();
    for local in documents.iter().filter(|path| path.ends_with("/AGENTS.md")) {
        assert_eq!(relaxed(&root_rules, &read(local)), Vec::<String>::new(), "S001-01: {local}");
    }
}

/// The rules of the root that a local document tries to change: on conflict the root holds, so it may not
/// even mention them.
fn relaxed(root_rules: &[Rule], local: &str) -> Vec<String> {
    let ids = root_rules.iter().map(|rule| rule.id.clone());
    ids.filter(|id| local.contains(&format!("**{id}**"))).collect()
}

#[test]
fn a_local_document_that_restates_a_root_rule_is_refused() {
    let root_rules = rules(&read("AGENTS.md")).unwrap();
    let id = &root_rules[0].id;
    assert_eq!(
        relaxed(&root_rules, &format!("- **{id}** Never mind. [x]")),
        std::slice::from_ref(id),
        "S001-01: a local rule cannot take the place of a root rule"
    );
    assert_eq!(relaxed(&root_rules, "- **LOCAL-1** Also this. [x]"), Vec::<String>::new());
}

const NEEDS_CHANGELOG: &str = "a change of AGENTS.md needs an entry in CHANGELOG.md";
const NEEDS_SUMMARY: &str =
    "the section `## vNext` of CHANGELOG.md must say what changed in AGENTS.md";
const NEEDS_REASONS: &str = "the entry says why, what stays compatible, and what people must do";
const NEEDS_TESTS: &str = "a change of AGENTS.md comes with the tests that hold it";

/// What a change to the guardrails lacks. `entry` is the text that the change adds to the changelog.
fn lacks(changed: &[String], vnext: &str, entry: &str) -> Vec<&'static str> {
    let touched = |path: &str| changed.iter().any(|file| file == path);
    let checker = "crates/cynode/tests/it/policy.rs";
    let mut lacks = Vec::new();
    if touched("AGENTS.md") {
        if !touched("CHANGELOG.md") {
            lacks.push(NEEDS_CHANGELOG);
        }
        if !vnext.contains("AGENTS.md") {
            lacks.push(NEEDS_SUMMARY);
        }
        if !["Rationale:", "Compatibility:", "Migration:"].iter().all(|part| entry.contains(part)) {
            lacks.push(NEEDS_REASONS);
        }
        if !changed.iter().any(|file| file.ends_with(".rs") && file.contains("/tests/")) {
            lacks.push(NEEDS_TESTS);
        }
    } else if touched(checker) && vnext.is_empty() {
        lacks.push("a change of the checker needs an entry under `## vNext`");
    }
    lacks
}

/// The lines that a diff adds.
fn added_lines(diff: &str) -> String {
    diff.lines().filter_map(|line| line.strip_prefix('+')).collect::<Vec<_>>().join("\n")
}

/// The newest section of the changelog.
fn vnext() -> String {
    let changelog = read("CHANGELOG.md");
    let (_, rest) = changelog.split_once("## vNext\n").unwrap();
    rest.split("\n## ").next().unwrap().trim().to_owned()
}

#[test]
fn a_change_of_the_guardrails_carries_its_changelog_entry_and_its_tests() {
    // The newest commit that touches the document, and what is not committed yet.
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root()).output().unwrap();
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = |text: String| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let uncommitted = lines(git(&["diff", "--name-only", "HEAD"]));
    let newest = git(&["log", "-1", "--format=%H", "--", "AGENTS.md"]);
    let (committed, entry) = match newest.trim() {
        "" => (Vec::new(), String::new()),
        commit => (
            lines(git(&["show", "--name-only", "--format=", commit])),
            added_lines(&git(&["show", "--format=", commit, "--", "CHANGELOG.md"])),
        ),
    };
    let new_entry = added_lines(&git(&["diff", "HEAD", "--", "CHANGELOG.md"]));
    for (changed, entry) in [(uncommitted, new_entry), (committed, entry)] {
        assert_eq!(
            lacks(&changed, &vnext(), &entry),
            Vec::<&str>::new(),
            "S001-04, S001-05, S001-06, S001-84, S001-85: the change of the rules is whole"
        );
    }
}

#[test]
fn a_change_that_touches_one_side_only_is_found() {
    let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let (summary, reasons) = ("AGENTS.md: more.", "Rationale: x. Compatibility: y. Migration: z.");
    assert_eq!(
        lacks(&files(&["AGENTS.md"]), "", ""),
        [NEEDS_CHANGELOG, NEEDS_SUMMARY, NEEDS_REASONS, NEEDS_TESTS],
        "S001-04, S001-05, S001-06, S001-84, S001-85, B001-20, X-22: a change of the document alone lacks all"
    );
    let both = files(&["AGENTS.md", "CHANGELOG.md"]);
    assert_eq!(lacks(&both, summary, ""), [NEEDS_REASONS, NEEDS_TESTS], "S001-06");
    assert_eq!(lacks(&both, summary, reasons), [NEEDS_TESTS], "S001-04, S001-85");
    let whole = files(&["AGENTS.md", "CHANGELOG.md", "crates/cynode/tests/it/policy.rs"]);
    assert_eq!(lacks(&whole, "", reasons), [NEEDS_SUMMARY], "S001-84");
    assert_eq!(lacks(&whole, summary, reasons), Vec::<&str>::new());
    assert_eq!(lacks(&files(&["README.md"]), "", ""), Vec::<&str>::new());
}

/// The documents of the specification with the number of their rows, in the order of `docs/conformance.toml`.
const DOCUMENTS: [(&str, usize); 9] = [
    ("S000", 108),
    ("S001", 86),
    ("S002", 66),
    ("S003", 45),
    ("S004", 165),
    ("B001", 31),
    ("B004", 65),
    ("B023", 16),
    ("X", 23),
];

/// One row of `docs/conformance.toml`. Without a status it is proven.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConformanceRow {
    #[serde(default)]
    statement: String,
    #[serde(default)]
    proofs: Vec<String>,
    status: Option<RowStatus>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowStatus {
    Partial,
    Deviates,
    Planned,
}

/// How many rows are proven, partial, deviate and are planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowCounts {
    proven: usize,
    partial: usize,
    deviates: usize,
    planned: usize,
}

impl RowCounts {
    const fn total(self) -> usize {
        self.proven + self.partial + self.deviates + self.planned
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            proven: self.proven + other.proven,
            partial: self.partial + other.partial,
            deviates: self.deviates + other.deviates,
            planned: self.planned + other.planned,
        }
    }
}

/// Returns what is wrong with a row: a status without its sentence, no proofs where there must be some, a proof that does not exist or
/// does not name the row in what it asserts.
fn check_row(
    id: &str,
    row: &ConformanceRow,
    tests: &BTreeSet<String>,
    asserted: &dyn Fn(&str) -> BTreeSet<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if row.statement.trim().is_empty() {
        wrong.push(format!("{id} has no statement"));
    }
    let reasoned = row.reason.as_deref().is_some_and(|reason| reason.trim().ends_with('.'));
    match row.status {
        None if row.reason.is_some() => wrong.push(format!("{id} has a reason and no status")),
        None => {}
        Some(_) if !reasoned => wrong.push(format!("{id} needs a sentence as its `reason`")),
        Some(_) => {}
    }
    match (row.status, row.proofs.is_empty()) {
        (Some(RowStatus::Planned), false) => wrong.push(format!("{id} is planned and has proofs")),
        (None | Some(RowStatus::Partial), true) => wrong.push(format!("{id} needs proofs")),
        _ => {}
    }
    for name in &row.proofs {
        if !exists(name, tests) {
            wrong.push(format!("{id} names {name}, which does not exist"));
        } else if !name.starts_with("ci:") && !asserted(name).contains(id) {
            wrong
                .push(format!("{id} names {name}, which does not name the row in what it asserts"));
        }
    }
    wrong
}

/// How many rows of each document have which status, or the errors of the table.
fn count_rows(
    table: &str,
    tests: &BTreeSet<String>,
    asserted: &dyn Fn(&str) -> BTreeSet<String>,
) -> Result<BTreeMap<String, RowCounts>, Vec<String>> {
    let documents: BTreeMap<String, BTreeMap<String, ConformanceRow>> =
        toml::from_str(table).map_err(|e| vec![e.to_string()])?;
    let mut counts: BTreeMap<String, RowCounts> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (document, rows) in documents {
        let count = counts.entry(document.clone()).or_default();
        for (id, row) in rows {
            if !id.starts_with(&format!("{document}-")) {
                wrong.push(format!("{id} does not belong under {document}"));
            }
            wrong.extend(check_row(&id, &row, tests, asserted));
            match row.status {
                None => count.proven += 1,
                Some(RowStatus::Partial) => count.partial += 1,
                Some(RowStatus::Deviates) => count.deviates += 1,
                Some(RowStatus::Planned) => count.planned += 1,
            }
        }
    }
    if wrong.is_empty() { Ok(counts) } else { Err(wrong) }
}

/// The ids of rows in the code of a text. Outside of comments an id can stand only in a string.
fn ids_in_code(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("//") || line.starts_with('#') {
            continue;
        }
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        found.extend(words.filter(|word| is_row_id(word)).map(str::to_owned));
    }
    found
}

/// Whether a word has the form of a row's id, such as `S000-001` or `X-01`.
fn is_row_id(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((document, number)) = word.split_once('-') else { return false };
    DOCUMENTS.iter().any(|(known, _)| *known == document) && digits(number)
}

/// The rows that each proof names in what it asserts: for a test its own body; for a proof its script, the scripts of `prove/support`
/// and the programs of `cynode-e2e` that it runs. A stage of CI asserts what its command does.
fn asserted_rows() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, body) in test_bodies() {
        found.entry(name).or_default().extend(ids_in_code(&body));
    }
    let shared: Vec<(String, String)> = files("prove/support")
        .into_iter()
        .chain(files("crates/cynode-e2e/src"))
        .map(|path| (path.clone(), read(&path)))
        .collect();
    for path in files("prove") {
        let parts: Vec<&str> = path.split('/').collect();
        if parts.len() != 3 || matches!(parts[1], "support" | "data") {
            continue;
        }
        let script = read(&path);
        let rows = found.entry(path.clone()).or_default();
        rows.extend(ids_in_code(&script));
        // The command of a proof has a module of its own, or a directory.
        let words: BTreeSet<&str> = script
            .split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_')
            .flat_map(|word| [word, word.rsplit('_').next().unwrap_or(word)])
            .collect();
        for (path, text) in &shared {
            let used = path.split('/').any(|part| {
                let name = part.split('.').next().unwrap_or_default();
                words.contains(name) || words.contains(name.replace('_', "-").as_str())
            });
            if used {
                rows.extend(ids_in_code(text));
            }
        }
    }
    found
}

/// The counts as a table of Markdown, as `docs/reference/conformance.md` has it.
fn render_counts(counts: &BTreeMap<String, RowCounts>) -> String {
    let line = |name: &str, count: RowCounts| {
        let RowCounts { proven, partial, deviates, planned } = count;
        format!("| {name} | {} | {proven} | {partial} | {deviates} | {planned} |", count.total())
    };
    let head =
        "| document | rows | proven | partial | deviates | planned |\n|---|---|---|---|---|---|";
    let mut lines = vec![head.to_owned()];
    let mut total = RowCounts::default();
    for (document, _) in DOCUMENTS {
        let count = counts.get(document).copied().unwrap_or_default();
        total = total.plus(count);
        lines.push(line(document, count));
    }
    lines.push(line("total", total));
    lines.join("\n")
}

#[test]
fn every_row_of_the_conformance_table_names_proofs_that_assert_it_or_says_what_is_missing() {
    let rows = asserted_rows();
    let asserted = |name: &str| rows.get(name).cloned().unwrap_or_default();
    let counts = count_rows(&read("docs/conformance.toml"), &tests(), &asserted)
        .unwrap_or_else(|wrong| panic!("{} rows are wrong:\n{}", wrong.len(), wrong.join("\n")));
    // No row can quietly go missing.
    let rows: BTreeMap<&str, usize> =
        counts.iter().map(|(document, count)| (document.as_str(), count.total())).collect();
    assert_eq!(rows, BTreeMap::from(DOCUMENTS), "S000-002");
    let page = read("docs/reference/conformance.md");
    let (_, written) = page.split_once("<!-- counts -->\n").unwrap();
    let (written, _) = written.split_once("<!-- end of counts -->").unwrap();
    assert_eq!(written.trim(), render_counts(&counts));
}

#[test]
fn a_row_without_a_statement_a_proof_that_asserts_it_or_a_sentence_is_refused() {
    let tests = BTreeSet::from(["cynode::x".to_owned(), "cynode::z".to_owned()]);
    let asserted = |name: &str| {
        let own = if name == "cynode::x" { "X-01" } else { "X-09" };
        BTreeSet::from([own.to_owned()])
    };
    let count = |table: &str| count_rows(table, &tests, &asserted);
    let whole = r#"[X]
X-01.statement = "The gateway fails closed."
X-01.proofs = ["cynode::x"]
X-02.statement = "The gateway has an edge mode."
X-02.status = "planned"
X-02.reason = "There is no edge mode."
"#;
    let counts = count(whole).unwrap();
    let one = RowCounts { proven: 1, planned: 1, ..RowCounts::default() };
    assert_eq!(counts, BTreeMap::from([("X".to_owned(), one)]));
    let table = render_counts(&counts);
    assert!(table.ends_with("| X | 2 | 1 | 0 | 0 | 1 |\n| total | 2 | 1 | 0 | 0 | 1 |"), "{table}");
    let both = "X-02.status = \"planned\"\nX-02.proofs = [\"cynode::x\"]";
    let broken = [
        ("X-01.statement = \"The gateway fails closed.\"\n", ""),
        ("The gateway fails closed.", " "),
        ("X-01.proofs = [\"cynode::x\"]\n", ""),
        ("[\"cynode::x\"]", "[]"),
        ("cynode::x", "cynode::y"),
        ("cynode::x", "cynode::z"),
        ("planned", "done"),
        ("planned", "partial"),
        ("X-02.status = \"planned\"", both),
        ("X-02.reason = \"There is no edge mode.\"\n", ""),
        ("There is no edge mode.", "no edge mode"),
        ("X-02.status = \"planned\"\n", ""),
        ("X-02.status", "X-02.state"),
        ("X-02.", "Y-02."),
        ("X-02.", "X-01."),
    ];
    for (from, to) in broken {
        let table = whole.replace(from, to);
        assert_ne!(table, whole, "{from}");
        assert!(count(&table).is_err(), "{table}");
    }
}

#[test]
fn a_row_counts_as_asserted_only_outside_of_comments() {
    let body = "// S000-001\n# S000-009\n    assert!(ok, \"S000-002, X-03: it holds {X-}\");\n let y = Y-04;";
    let found: Vec<_> = ids_in_code(body).into_iter().collect();
    assert_eq!(found, ["S000-002", "X-03"]);
}

#[test]
fn every_question_that_the_requirements_leave_open_about_the_manager_is_answered_on_its_page() {
    let page = read("docs/decisions/0010-project-manager.md");
    let open = [
        "026", "032", "045", "047", "049", "070", "104", "105", "119", "136", "140", "158", "160",
        "161", "162", "163", "164",
    ];
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("| S004-")).collect();
    for row in open {
        let named = |line: &&&str| {
            let ids = line.split('|').nth(1).unwrap_or_default();
            ids.contains(&format!("S004-{row}")) || ids.contains(&format!(", {row}"))
        };
        let answers: Vec<_> = lines.iter().filter(named).collect();
        assert_eq!(answers.len(), 1, "S000-002, S004-{row}: {answers:?}");
    }
    let accepted = page.contains("\n## Status\n\nAccepted.\n");
    assert!(accepted, "S004-001: the record of acceptance and deviation is accepted");
}

#[test]
fn no_code_is_evaluated_at_run_time_and_nothing_is_unsafe() {
    // There is no interpreter among our libraries, and no shell is started with text from outside.
    let lock = read("Cargo.lock");
    let interpreters =
        ["mlua", "rhai", "rquickjs", "pyo3", "deno_core", "boa_engine", "wasmtime", "libloading"];
    let linked: Vec<_> =
        interpreters.iter().filter(|name| lock.contains(&format!("name = \"{name}\"\n"))).collect();
    assert_eq!(
        linked,
        Vec::<&&str>::new(),
        "S001-12, S001-41, X-14: nothing here can evaluate code; no tool is loaded into a process of ours"
    );
    let shell = ["Command::new(\"sh\")", "Command::new(\"bash\")", "Command::new(\"/bin/sh\")"];
    for path in
        files("crates").iter().filter(|path| path.ends_with(".rs") && path.contains("/src/"))
    {
        let text = read(path);
        // What only tests do is not part of any program.
        let shipped = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for pattern in shell.into_iter().filter(|_| !path.ends_with("/tests.rs")) {
            assert!(!shipped.contains(pattern), "S001-12, S001-41: {path} starts a shell");
        }
        assert!(!text.contains("unsafe {"), "{path} is unsafe");
    }
    assert!(read("Cargo.toml").contains("unsafe_code = \"deny\""));
}

#[test]
fn no_public_function_of_a_library_returns_a_catch_all_error() {
    for path in
        files("crates").iter().filter(|path| path.ends_with(".rs") && path.contains("/src/"))
    {
        let programs = [
            "crates/cynode/",
            "crates/cynode-e2e/",
            "crates/cynode-sandbox-init/",
            "crates/cynode-node/",
            "crates/cynode-pma/",
            "crates/cynode-runner/",
        ];
        let program = programs.iter().any(|program| path.starts_with(program));
        if program {
            continue;
        }
        for (number, line) in read(path).lines().enumerate() {
            let anyhow = line.contains("anyhow::Result") || line.contains("anyhow::Error>");
            let boxed = line.contains("pub ") && line.contains("Box<dyn std::error::Error");
            assert!(!anyhow && !boxed, "S001-13: {path}:{}", number + 1);
        }
    }
}

#[test]
fn the_map_stays_short() {
    assert!(read("ARCHITECTURE.md").lines().count() < 150);
}

#[test]
fn every_library_is_pinned_once_and_its_choice_is_written_down() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let noted = read("docs/contributing/dependencies.md");
    for (name, _) in manifest["workspace"]["dependencies"].as_table().unwrap() {
        if !name.starts_with("cyn") {
            assert!(
                noted.contains(&format!("`{name}`")),
                "docs/contributing/dependencies.md does not know {name}"
            );
        }
    }
    for path in files("crates").iter().filter(|path| path.ends_with("/Cargo.toml")) {
        let versions = read(path).lines().filter(|line| line.contains("version = \"")).count();
        assert_eq!(versions, 0, "{path} states a version of its own");
    }
}

#[test]
fn what_is_installed_from_elsewhere_is_pinned_and_runs_no_script_of_its_own() {
    let lock: serde_json::Value =
        serde_json::from_str(&read("scripts/engine/package-lock.json")).unwrap();
    let packages = lock["packages"].as_object().unwrap();
    let wrong: Vec<_> = packages
        .iter()
        .filter(|(path, package)| {
            !path.is_empty()
                && !package["integrity"]
                    .as_str()
                    .is_some_and(|digest| digest.starts_with("sha512-"))
        })
        .collect();
    assert!(packages.len() > 1 && wrong.is_empty(), "without a digest: {wrong:?}");
    let script = read("scripts/install");
    let commands = |word: &str| -> Vec<String> {
        let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.filter(|line| line.contains(word)).map(str::to_owned).collect()
    };
    assert_eq!(commands("npm install"), [] as [String; 0]);
    assert!(commands("npm ci").iter().all(|line| line.contains("--ignore-scripts")));
    for line in commands("cargo install") {
        assert!(line.contains("--locked") && line.contains('@'), "{line}");
    }
    let hint = read("crates/cynode/src/restate.rs");
    let pinned =
        lock["packages"][""]["dependencies"]["@restatedev/restate-server"].as_str().unwrap();
    assert!(hint.contains(&format!("--ignore-scripts @restatedev/restate-server@{pinned}")));
}
