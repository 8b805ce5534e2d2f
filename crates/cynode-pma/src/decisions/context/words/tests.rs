use proptest::prelude::*;
use serde_json::json;

use super::*;

const WORDS: &str = r"# Parcel tracker

Tracks parcels.

## Architecture

Three layers: Core, then Infra, then App.

- Nothing in Core knows Infra
- `src/core/` – the rules

### Where things are

| Path | What |
|---|---|
| `src/infra/db.rs` | the database |
| `migrations/` | its tables |

| Thing | Place |
|---|---|
| pages | `web/pages/` |

## Conventions

- **Errors**: with `thiserror`
- Tests are sentences
  - and compare whole values

## Build and test

```bash
# first
$ cargo build
cargo test --workspace  # all of them
cargo run -- \
  --help
```

Or run `just check`, then look at `target/report.html`.

## Other

```rust
fn main() {}
```
";

#[test]
fn the_words_of_a_project_are_read_by_their_headings_lists_tables_and_fences() {
    let mut context = serde_json::to_value(parse_agent_guide(WORDS)).unwrap();
    context.as_object_mut().unwrap().remove("claude_md");
    assert_eq!(
        context,
        json!({
            "architecture": "Three layers: Core, then Infra, then App.\nNothing in Core knows Infra",
            "key_paths": {
                "src/core/": "the rules",
                "src/infra/db.rs": "the database",
                "migrations/": "its tables",
                "web/pages/": "pages",
            },
            "patterns": {
                "Errors": "with `thiserror`",
                "Tests are sentences": "Tests are sentences",
                "and compare whole values": "and compare whole values",
            },
            "build_commands": [
                "cargo build", "cargo test --workspace", "cargo run -- --help", "just check",
            ],
        })
    );
    assert_eq!(parse_agent_guide(WORDS).claude_md.as_deref(), Some(WORDS));
}

#[test]
fn a_file_without_headings_says_at_least_what_the_project_is() {
    let context = parse_agent_guide("A tracker of parcels.\n\n```sh\nmake test\n```\n");
    assert_eq!(context.architecture, "A tracker of parcels.");
    assert_eq!(context.build_commands, ["make test"]);
}

#[test]
fn places_outside_of_the_project_and_addresses_are_no_places() {
    let text = "## Layout\n\n- `/etc/passwd`: no\n- `../x/y`: no\n- https://example.org/a: no\n- `std::fs`: no\n- src/lib.rs: yes\n";
    let context = parse_agent_guide(text);
    assert_eq!(context.key_paths.into_keys().collect::<Vec<_>>(), ["src/lib.rs"]);
}

proptest! {
    #[test]
    fn any_text_is_read_within_bounds(text in "([-#*|`>\\[\\]() \n]|- |# |```\n|\\| a \\|\n|\\PC){0,600}") {
        let context = parse_agent_guide(&text);
        prop_assert!(context.key_paths.len() <= MAX_ENTRIES && context.patterns.len() <= MAX_ENTRIES);
        prop_assert!(context.build_commands.len() <= MAX_ENTRIES);
        prop_assert!(context.architecture.chars().count() <= MAX_ARCHITECTURE_CHARS + 100);
        prop_assert!(context.key_paths.keys().all(|path| is_repository_path(path)));
    }

    #[test]
    fn a_huge_text_is_read_within_bounds(line in "(- `a/b`: x\n|## Layout\n|```\n|x ){1,5}", times in 1_usize..4000) {
        let context = parse_agent_guide(&line.repeat(times));
        prop_assert!(context.claude_md.unwrap().chars().count() <= MAX_GUIDE_CHARS);
        prop_assert!(context.architecture.chars().count() <= MAX_ARCHITECTURE_CHARS + 100);
    }
}
