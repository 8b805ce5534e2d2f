//! Chunks of documents and code.

use std::fmt::Write;

use cynode_memory::chunks::{Chunk, ChunkKind, MAX_CHARS, MAX_TITLE_CHARS, chunk_file, chunk_text};
use proptest::prelude::*;

fn titles(chunks: &[Chunk]) -> Vec<&str> {
    chunks.iter().map(|chunk| chunk.title.as_str()).collect()
}

#[test]
fn markdown_is_cut_at_headings_and_the_title_is_their_path() {
    let text = "---\ntitle: x\n---\nBefore all.\n\n# Guide\n\nText.\n\n## Install ##\n\n```sh\n# no heading\ninstall it\n```\n\n### From source\n\nBuild.\n\nUpgrade\n-------\n\nRun it.\n";
    let chunks = chunk_file("docs/guide.md", text);
    let expected = [
        "docs/guide.md",
        "Guide",
        "Guide > Install",
        "Guide > Install > From source",
        "Guide > Upgrade",
    ];
    assert_eq!(titles(&chunks), expected);
    assert!(chunks[2].text.contains("# no heading"));
    assert_eq!((chunks[2].start_line, chunks[2].end_line), (10, 15));
    assert!(chunks.iter().all(|chunk| chunk.kind == ChunkKind::Document));
}

#[test]
fn the_title_of_a_part_is_bounded_however_deep_it_is() {
    let mut text = String::new();
    for level in 1..=6 {
        let (marks, heading) = ("#".repeat(level), "x".repeat(MAX_TITLE_CHARS / 2));
        writeln!(text, "{marks} {heading}\nThe text of it.").unwrap();
    }
    let chunks = chunk_text("Page", &text);
    let first = "x".repeat(MAX_TITLE_CHARS / 2);
    let cut = format!("{first} > {}", "x".repeat(MAX_TITLE_CHARS / 2 - 3));
    assert_eq!(titles(&chunks), [&first, &cut, &cut, &cut, &cut, &cut]);
}

#[test]
fn a_heading_without_a_body_goes_to_the_section_behind_it() {
    let chunks = chunk_text("Page", "# Part one\n\n## First\n\nBody of it.\n\n## Last\n");
    assert_eq!(titles(&chunks), ["Part one > First", "Page"]);
    assert!(chunks[0].text.starts_with("# Part one"));
}

#[test]
fn restructured_text_is_cut_at_underlined_titles() {
    let text = "=====\nTitle\n=====\n\nIntro text.\n\nUsing it\n--------\n\nSome text.\n\nDeeper\n~~~~~~\n\nMore text.\n\nOther\n-----\n\nEnd of it.\n";
    let chunks = chunk_file("docs/index.rst", text);
    assert_eq!(
        titles(&chunks),
        ["Title", "Title > Using it", "Title > Using it > Deeper", "Title > Other"]
    );
}

/// A function body of about `lines` lines.
fn body(lines: usize, line: &str) -> String {
    (0..lines).fold(String::new(), |mut text, number| {
        writeln!(text, "    {line}{number}").unwrap();
        text
    })
}

#[test]
fn rust_is_cut_at_functions_types_and_implementations() {
    let long = body(40, "let some_value = compute_the_value(); //");
    let text = format!(
        "use std::fmt;\n\nconst LIMIT: usize = {};\n\n/// Retries a job.\n#[must_use]\npub fn retry() {{\n{long}}}\n\n/// A pool.\nstruct Pool<T> {{\n{}}}\n\nimpl<T> Pool<T> {{\n    /// Makes it.\n    fn new() {{\n{long}    }}\n\n    fn size() {{\n{long}    }}\n}}\n\nimpl<T> Drop for Pool<T> {{\n    fn drop(&mut self) {{\n{long}    }}\n}}\n",
        "1".repeat(600),
        body(30, "field: Option<T>, // field ")
    );
    let chunks = chunk_file("src/pool.rs", &text);
    let mut names = titles(&chunks);
    names.dedup();
    let expected = [
        "src/pool.rs",
        "src/pool.rs::retry",
        "src/pool.rs::Pool",
        "src/pool.rs::Pool::new",
        "src/pool.rs::Pool::size",
        "src/pool.rs::Drop for Pool",
        "src/pool.rs::Drop for Pool::drop",
    ];
    let relevant: Vec<_> = names.iter().filter(|name| expected.contains(name)).copied().collect();
    for name in [
        "src/pool.rs",
        "src/pool.rs::retry",
        "src/pool.rs::Pool",
        "src/pool.rs::Pool::new",
        "src/pool.rs::Pool::size",
        "src/pool.rs::Drop for Pool::drop",
    ] {
        assert!(relevant.contains(&name), "{name} is not among {names:?}");
    }
    assert_eq!(relevant, names, "and nothing else");
    let retry = chunks.iter().find(|chunk| chunk.title == "src/pool.rs::retry").unwrap();
    assert!(
        retry.text.starts_with("/// Retries a job.\n#[must_use]\npub fn retry"),
        "{}",
        retry.text
    );
    assert!(chunks.iter().all(|chunk| chunk.kind == ChunkKind::Code));
}

#[test]
fn definitions_of_other_languages_are_found() {
    let fill = |line: &str| body(20, line);
    let files = [
        (
            "a.py",
            format!(
                "@cached\ndef load(path):\n{}\nclass Store:\n    def get(self):\n    {}\n    def put(self):\n    {}",
                fill("value = read_it(path)  # "),
                fill("    return self.values  # and more of it "),
                fill("    self.values = values  # and more of it ")
            ),
        ),
        (
            "a.js",
            format!(
                "export function load(path) {{\n{}}}\n\nconst save = async (path) => {{\n{}}}\n",
                fill("read(path) // some more words "),
                fill("write(path) // some more words ")
            ),
        ),
        (
            "a.ts",
            format!(
                "export interface Store {{\n{}}}\n\nexport class Disk implements Store {{\n  get(): string {{\n{}  }}\n}}\n",
                fill("value: string // some more words of it "),
                fill("read(path) // some more words of it ")
            ),
        ),
        (
            "a.go",
            format!(
                "package a\n\nfunc Load(path string) {{\n{}}}\n\ntype Store struct {{\n{}}}\n",
                fill("read(path) // some more words of it "),
                fill("Field int // some more words of it ")
            ),
        ),
    ];
    let expected: [&[&str]; 4] = [
        &["a.py::load", "a.py::Store::get", "a.py::Store::put"],
        &["a.js::load", "a.js::save"],
        &["a.ts::Store", "a.ts::Disk"],
        &["a.go::Load", "a.go::Store"],
    ];
    for ((path, text), expected) in files.iter().zip(expected) {
        let chunks = chunk_file(path, text);
        let names = titles(&chunks);
        for name in expected {
            assert!(names.contains(name), "{name} is not among {names:?}");
        }
    }
}

#[test]
fn small_neighbours_are_one_chunk() {
    let chunks = chunk_file("a.py", "def one():\n    return 1\n\n\ndef two():\n    return 2\n");
    assert_eq!(titles(&chunks), ["a.py::one, two"]);
}

#[test]
fn other_files_are_cut_between_paragraphs() {
    let paragraph = "word ".repeat(140);
    let text = format!("{paragraph}\n\n{paragraph}\n\n{paragraph}\n");
    let chunks = chunk_file("notes.txt", &text);
    assert_eq!(chunks.len(), 3);
    assert!(
        chunks.iter().all(|chunk| chunk.text == paragraph.as_str() && chunk.title == "notes.txt")
    );
    assert_eq!(chunk_file("conf.toml", "a = 1\n")[0].kind, ChunkKind::Code);
    assert_eq!(chunk_file("empty.md", "\n\n---\n"), []);
}

#[test]
fn a_line_without_end_is_cut_at_spaces() {
    let text = "word ".repeat(2_000);
    let chunks = chunk_text("Page", &text);
    assert!(chunks.len() > 2);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk.text.chars().count() <= MAX_CHARS && chunk.text.ends_with("word "))
    );
    assert!(chunks.iter().all(|chunk| (chunk.start_line, chunk.end_line) == (1, 1)));
}

#[test]
fn deep_nesting_and_endless_brackets_are_cut_as_any_text() {
    for (path, unit) in [
        ("a.rs", "mod a {"),
        ("a.js", "[(["),
        ("a.py", "if x:\n "),
        ("a.go", "func("),
        ("a.ts", "<a<"),
        ("a.rs", "/*"),
        ("a.py", "f'{"),
    ] {
        let chunks = chunk_file(path, &unit.repeat(5_000));
        assert!(chunks.iter().all(|chunk| chunk.text.chars().count() <= MAX_CHARS), "{path}");
    }
}

fn path() -> impl Strategy<Value = String> {
    let ending =
        prop::sample::select(vec!["rs", "py", "js", "ts", "tsx", "go", "md", "rst", "txt", ""]);
    ("[a-z]{0,3}", ending).prop_map(|(name, ending)| format!("{name}.{ending}"))
}

/// Text that has the marks of all formats, and text of any kind.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "fn a() {",
            "}",
            "\n",
            "\n\n",
            "# H\n",
            "## H\n",
            "===\n",
            "---\n",
            "```\n",
            "def f():\n    ",
            "class A:\n",
            "impl A {",
            "func F() {",
            "/* ",
            "*/",
            "// x\n",
            "\"",
            "'",
            "`",
            "\t",
            "\r\n",
            "function f() {",
            "export ",
            "interface I {",
            "mod m {",
            "r#\"",
            "猫",
            "é",
            "word ",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
        "[a-z ]{0,400}",
    ];
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_is_cut_into_bounded_chunks_and_no_line_is_lost(path in path(), text in text()) {
        let chunks = chunk_file(&path, &text);
        let lines: Vec<&str> = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        for chunk in &chunks {
            prop_assert!(chunk.text.chars().count() <= MAX_CHARS);
            prop_assert!(chunk.title.chars().count() <= MAX_TITLE_CHARS);
            prop_assert!(chunk.text.chars().any(char::is_alphanumeric));
            prop_assert!(1 <= chunk.start_line && chunk.start_line <= chunk.end_line);
            let last = usize::try_from(chunk.end_line).unwrap();
            prop_assert!(last <= lines.len());
        }
        prop_assert!(chunks.windows(2).all(|pair| pair[0].start_line <= pair[1].start_line));
        let everything: String = chunks.iter().flat_map(|chunk| chunk.text.chars()).filter(|it| it.is_alphanumeric()).collect();
        let expected: String = text.chars().filter(|it| it.is_alphanumeric()).collect();
        prop_assert_eq!(everything, expected, "every letter is in exactly one chunk");
        prop_assert_eq!(chunk_file(&path, &text), chunks);
    }
}
