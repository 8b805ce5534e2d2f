//! Sections of source files by their syntax trees.

use std::ops::{ControlFlow, Range};

use tree_sitter::{Language, Node, ParseOptions, ParseState, Parser, Tree};

use super::{Section, TARGET_CHARS, chars};

/// Maximum size of a file that is parsed. A larger one is cut between its lines.
const MAX_PARSED_BYTES: usize = 1 << 20;

/// How many steps a parse may take for each byte, beside a fixed number: what takes longer is no source.
const MAX_STEPS_PER_BYTE: usize = 1;

/// Steps that every parse may take.
const MIN_STEPS: usize = 10_000;

/// Maximum number of characters of small neighbours that become one chunk.
const MAX_JOINED_CHARS: usize = 500;

/// How deep modules and classes are cut.
const MAX_DEPTH: usize = 6;

/// Sections by definitions, or nothing when no grammar fits.
pub(super) fn sections(
    path: &str,
    extension: &str,
    text: &str,
    lines: &[&str],
) -> Option<Vec<Section>> {
    let language = language_of(extension)?;
    let tree = if text.len() > MAX_PARSED_BYTES { None } else { parse(&language, text) };
    let Some(tree) = tree else { return Some(vec![Section::whole(path, lines)]) };
    let mut outline = Outline { text, lines, parts: Vec::new() };
    outline.partition(tree.root_node(), 0..lines.len(), "", 0);
    Some(outline.into_sections(path))
}

fn language_of(extension: &str) -> Option<Language> {
    let language = match extension {
        "rs" => tree_sitter_rust::LANGUAGE,
        "py" | "pyi" => tree_sitter_python::LANGUAGE,
        "js" | "mjs" | "cjs" | "jsx" => tree_sitter_javascript::LANGUAGE,
        "ts" | "mts" | "cts" => tree_sitter_typescript::LANGUAGE_TYPESCRIPT,
        "tsx" => tree_sitter_typescript::LANGUAGE_TSX,
        "go" => tree_sitter_go::LANGUAGE,
        _ => return None,
    };
    Some(language.into())
}

fn parse(language: &Language, text: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    parser.set_language(language).ok()?;
    let max_steps = MIN_STEPS + text.len() * MAX_STEPS_PER_BYTE;
    let mut steps = 0;
    let mut progress = |_: &ParseState| {
        steps += 1;
        if steps > max_steps { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let mut read = |at: usize, _| text.as_bytes().get(at..).unwrap_or_default();
    parser.parse_with_options(&mut read, None, Some(options))
}

/// Lines of a file: a definition, or what is between the definitions of its owner.
struct Part {
    owner: String,
    names: Vec<String>,
    lines: Range<usize>,
}

struct Outline<'a> {
    text: &'a str,
    lines: &'a [&'a str],
    parts: Vec<Part>,
}

impl Outline<'_> {
    /// Cuts lines at the definitions among the children of a node. What is between them belongs to `owner`.
    fn partition(&mut self, node: Node<'_>, lines: Range<usize>, owner: &str, depth: usize) {
        let mut at = lines.start;
        let mut comment: Option<Range<usize>> = None;
        for child in node.children(&mut node.walk()) {
            let rows = rows(child);
            if is_comment(child) {
                let joins = comment.as_ref().is_some_and(|comment| comment.end >= rows.start);
                comment = Some(if joins {
                    comment.map_or(rows.start, |it| it.start)..rows.end
                } else {
                    rows
                });
                continue;
            }
            let before = comment.take().filter(|comment| comment.end >= rows.start);
            let Some(definition) = Definition::of(child) else { continue };
            let start = before.map_or(rows.start, |comment| comment.start).max(at);
            let end = rows.end.min(lines.end);
            if start >= end {
                continue;
            }
            self.push(owner, None, at..start);
            let name = self.name(&definition);
            match definition.members {
                Some(members) if depth < MAX_DEPTH && self.size(start..end) > TARGET_CHARS => {
                    self.partition(members, start..end, &join(owner, &name), depth + 1);
                }
                _ => self.push(owner, Some(name), start..end),
            }
            at = end;
        }
        self.push(owner, None, at..lines.end);
    }

    /// The name of a definition: `Type`, or `Trait for Type`, without type parameters.
    fn name(&self, definition: &Definition<'_>) -> String {
        let text = |node: Option<Node<'_>>| {
            let text = node.and_then(|node| self.text.get(node.byte_range())).unwrap_or_default();
            text.split(['<', '\n']).next().unwrap_or_default().trim().to_owned()
        };
        let name = text(definition.name);
        if definition.implements.is_some() {
            format!("{} for {name}", text(definition.implements))
        } else {
            name
        }
    }

    fn size(&self, lines: Range<usize>) -> usize {
        chars(self.lines.get(lines).unwrap_or_default())
    }

    /// Adds lines, to the part before them if both are small and of one owner.
    fn push(&mut self, owner: &str, name: Option<String>, lines: Range<usize>) {
        let has_words = |line: &&str| line.chars().any(char::is_alphanumeric);
        if !self.lines.get(lines.clone()).unwrap_or_default().iter().any(has_words) {
            return;
        }
        let before =
            self.parts.last().filter(|part| part.owner == owner && part.lines.end <= lines.start);
        let joined = before.map(|part| part.lines.start..lines.end);
        let joins = joined.filter(|joined| self.size(joined.clone()) <= MAX_JOINED_CHARS);
        let names: Vec<String> = name.into_iter().filter(|name| !name.is_empty()).collect();
        match (self.parts.last_mut(), joins) {
            (Some(part), Some(joined)) => {
                let new: Vec<_> =
                    names.into_iter().filter(|name| !part.names.contains(name)).collect();
                part.names.extend(new);
                part.lines = joined;
            }
            _ => self.parts.push(Part { owner: owner.to_owned(), names, lines }),
        }
    }

    fn into_sections(self, path: &str) -> Vec<Section> {
        let title = |part: &Part| join(path, &join(&part.owner, &part.names.join(", ")));
        self.parts
            .into_iter()
            .map(|part| Section { title: title(&part), lines: part.lines })
            .collect()
    }
}

fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", name) | (name, "") => name.to_owned(),
        (outer, inner) => format!("{outer}::{inner}"),
    }
}

/// The lines of a node. A node that ends before the first character of a line does not have that line.
fn rows(node: Node<'_>) -> Range<usize> {
    let (start, end) = (node.start_position(), node.end_position());
    let has_last = end.column > 0 || end.row == start.row;
    start.row..end.row + usize::from(has_last)
}

/// Whether a node belongs to the definition behind it.
fn is_comment(node: Node<'_>) -> bool {
    matches!(
        node.kind(),
        "line_comment" | "block_comment" | "comment" | "attribute_item" | "decorator"
    )
}

/// A function, a type or an implementation.
struct Definition<'a> {
    name: Option<Node<'a>>,
    /// The trait of an implementation.
    implements: Option<Node<'a>>,
    /// The node whose children are the members, if it can be cut.
    members: Option<Node<'a>>,
}

impl<'a> Definition<'a> {
    fn of(node: Node<'a>) -> Option<Self> {
        let field = |name| node.child_by_field_name(name);
        match node.kind() {
            "export_statement" => Self::of(field("declaration")?),
            "decorated_definition" => Self::of(field("definition")?),
            "expression_statement" | "ambient_declaration" | "type_declaration" => {
                node.children(&mut node.walk()).find_map(Self::of)
            }
            "impl_item" => Some(Self {
                name: field("type"),
                implements: field("trait"),
                members: field("body"),
            }),
            "class_definition"
            | "class_declaration"
            | "abstract_class_declaration"
            | "trait_item"
            | "mod_item"
            | "internal_module"
            | "module"
            | "interface_declaration" => {
                Some(Self { name: field("name"), implements: None, members: field("body") })
            }
            "function_item"
            | "function_signature_item"
            | "struct_item"
            | "enum_item"
            | "union_item"
            | "macro_definition"
            | "function_definition"
            | "function_declaration"
            | "generator_function_declaration"
            | "method_definition"
            | "method_declaration"
            | "type_alias_declaration"
            | "enum_declaration"
            | "type_spec" => Some(Self { name: field("name"), implements: None, members: None }),
            "lexical_declaration" | "variable_declaration" => {
                let declarator = node.named_child(0)?;
                let value = declarator.child_by_field_name("value")?;
                let defines = matches!(
                    value.kind(),
                    "arrow_function" | "function_expression" | "generator_function" | "class"
                );
                defines.then(|| Self {
                    name: declarator.child_by_field_name("name"),
                    implements: None,
                    members: value.child_by_field_name("body").filter(|_| value.kind() == "class"),
                })
            }
            _ => None,
        }
    }
}
