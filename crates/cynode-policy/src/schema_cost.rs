//! The cost of a validation, known before it begins.
//!
//! A validator follows a `$ref` each time it meets it, and collects the errors of all branches. A schema of a kilobyte can therefore cost
//! hours and gigabytes. [`SchemaGraph`] is the schema with its references resolved. It refuses a schema that expands too far on one value
//! ([`SchemaGraph::from_schema`]), and bounds the cost for a given value by dynamic programming ([`SchemaGraph::estimate_cost`]): a part
//! and a value that meet on many paths are counted for each path, but visited once.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::schema::ToolSchemaError;

/// Most parts of a schema that apply to one value, with every reference followed.
pub(crate) const MAX_EXPANDED_PARTS: u64 = 2_000;

/// Longest chain of references and applicators that apply to one value.
pub(crate) const MAX_REFERENCE_CHAIN: usize = 32;

/// Most different regular expressions of a schema.
pub(crate) const MAX_SCHEMA_PATTERNS: usize = 64;

/// Highest cost of one validation. One unit is about one part of a schema applied to one value, some 50 ns.
pub(crate) const MAX_VALIDATION_COST: u64 = 500_000;

/// Most pairs of a part and a value that an estimate remembers.
const MAX_REMEMBERED_COSTS: usize = 100_000;

/// Longest path of a validation through schema and value. It bounds the stack of the validator.
const MAX_VALIDATION_DEPTH: usize = 1_024;

/// Longest path through a schema that is measured. A longer one counts as recursive.
const MAX_MEASURED_PATH: usize = 256;

/// Highest cost that is proven by the size of schema and value alone: for a value, and for the text of one, which may have fewer values
/// than bytes allow.
const MAX_PROVEN_COST: u64 = 50_000;
const MAX_CHEAP_COST: u64 = 200_000;

/// How often `unevaluatedProperties` and `unevaluatedItems` make the validator apply the parts beside them.
const UNEVALUATED_FACTOR: u64 = 3;

/// Bytes of a text that cost one unit, and bytes of a text times bytes of a pattern that do.
const TEXT_BYTES_PER_UNIT: usize = 256;
const PATTERN_BYTES_PER_UNIT: usize = 64;

/// A schema with its references resolved.
#[derive(Debug)]
pub(crate) struct SchemaGraph {
    parts: Vec<SchemaPart>,
    /// Parts of the whole schema, with every reference followed. `u64::MAX` for a recursive schema.
    expanded: u64,
    /// Bytes of all patterns.
    pattern_bytes: usize,
    /// Whether the cost depends on more than the number of values: patterns and `uniqueItems`.
    depends_on_content: bool,
}

/// One part of a schema: what it applies to which part of a value, by index.
#[derive(Debug, Default)]
struct SchemaPart {
    /// To the value itself.
    in_place: Vec<usize>,
    /// To the property of that name.
    properties: HashMap<String, usize>,
    /// To every property, at most.
    every_property: Vec<usize>,
    /// To every name of a property.
    property_names: Vec<usize>,
    /// To the item at that place.
    prefix_items: Vec<usize>,
    /// To every item, at most.
    every_item: Vec<usize>,
    /// Cost of its own assertions.
    own_cost: u64,
    pattern_bytes: usize,
    unique_items: bool,
    /// Whether the parts beside it are applied again.
    unevaluated: bool,
    /// Whether more than one place applies it.
    shared: bool,
}

impl SchemaGraph {
    /// Resolves the references of a schema. Refuses a schema that applies too many of its parts to one value, or that recurses without
    /// descending into the value. The nesting of the schema must be bounded already.
    pub(crate) fn from_schema(schema: &Value) -> Result<Self, ToolSchemaError> {
        let mut builder = GraphBuilder::default();
        builder.collect_anchors(schema, true)?;
        builder.add_parts(schema)?;
        let GraphBuilder { parts, pattern_bytes, .. } = builder;
        let depends_on_content =
            parts.iter().any(|part| part.pattern_bytes > 0 || part.unique_items);
        let mut graph = Self { parts, expanded: 0, pattern_bytes, depends_on_content };
        graph.mark_shared_parts();
        let mut expansions = vec![Expansion::Unknown; graph.parts.len()];
        for index in 0..graph.parts.len() {
            graph.expand_in_place(index, 0, &mut expansions)?;
        }
        graph.expanded = graph.expand_all(0, 0, &mut vec![Expansion::Unknown; graph.parts.len()]);
        Ok(graph)
    }

    fn mark_shared_parts(&mut self) {
        let mut uses = vec![0_usize; self.parts.len()];
        for next in self.parts.iter().flat_map(SchemaPart::every_part) {
            uses[next] += 1;
        }
        for (part, uses) in self.parts.iter_mut().zip(uses) {
            part.shared = uses > 1;
        }
    }

    /// Measures what a part applies to one value.
    fn expand_in_place(
        &self,
        index: usize,
        depth: usize,
        expansions: &mut [Expansion],
    ) -> Result<(u64, usize), ToolSchemaError> {
        match expansions[index] {
            Expansion::Done { size, height } => return Ok((size, height)),
            Expansion::Active => return Err(ToolSchemaError::EndlessRecursion),
            Expansion::Unknown => {}
        }
        if depth >= MAX_REFERENCE_CHAIN {
            return Err(ToolSchemaError::TooComplex);
        }
        expansions[index] = Expansion::Active;
        let part = &self.parts[index];
        let (mut size, mut height) = (0_u64, 0);
        for next in &part.in_place {
            let (below, levels) = self.expand_in_place(*next, depth + 1, expansions)?;
            size = size.saturating_add(below);
            height = height.max(levels);
        }
        if part.unevaluated {
            size = size.saturating_mul(UNEVALUATED_FACTOR);
        }
        let (size, height) = (size.saturating_add(1), height + 1);
        if size > MAX_EXPANDED_PARTS || height > MAX_REFERENCE_CHAIN {
            return Err(ToolSchemaError::TooComplex);
        }
        expansions[index] = Expansion::Done { size, height };
        Ok((size, height))
    }

    /// Measures a part with everything that it reaches. Recursion has no bound of its own.
    fn expand_all(&self, index: usize, depth: usize, expansions: &mut [Expansion]) -> u64 {
        match expansions[index] {
            Expansion::Done { size, .. } => return size,
            Expansion::Active => return u64::MAX,
            Expansion::Unknown if depth >= MAX_MEASURED_PATH => return u64::MAX,
            Expansion::Unknown => {}
        }
        expansions[index] = Expansion::Active;
        let part = &self.parts[index];
        let mut size = 0_u64;
        for next in part.every_part() {
            size = size.saturating_add(self.expand_all(next, depth + 1, expansions));
        }
        if part.unevaluated {
            size = size.saturating_mul(UNEVALUATED_FACTOR);
        }
        let size = size.saturating_add(part.own_cost);
        expansions[index] = Expansion::Done { size, height: 0 };
        size
    }

    /// Whether the size of the JSON text alone proves that its validation is cheap.
    pub(crate) fn is_cheap_for(&self, bytes: usize) -> bool {
        // Two bytes of text are needed for each value.
        let values = as_cost(bytes / 2 + 1);
        let patterns = as_cost(self.pattern_bytes.saturating_mul(bytes) / PATTERN_BYTES_PER_UNIT);
        let cost = self.expanded.saturating_mul(values).saturating_add(patterns);
        cost <= MAX_CHEAP_COST
    }

    /// Returns an upper bound of the cost to validate the value. A cost above [`MAX_VALIDATION_COST`] is not exact.
    pub(crate) fn estimate_cost(&self, value: &Value) -> u64 {
        if !self.depends_on_content {
            let proven = self.expanded.saturating_mul(count_values(value));
            if proven <= MAX_PROVEN_COST {
                return proven;
            }
        }
        CostEstimate { graph: self, costs: HashMap::new(), steps: 0 }.visit_value(0, value, 0)
    }
}

/// How far a part is measured.
#[derive(Clone, Copy, Debug)]
enum Expansion {
    Unknown,
    Active,
    Done { size: u64, height: usize },
}

impl SchemaPart {
    /// Everything that it applies to the value or to a part of it.
    fn every_part(&self) -> impl Iterator<Item = usize> {
        let lists = [
            &self.in_place,
            &self.every_property,
            &self.property_names,
            &self.prefix_items,
            &self.every_item,
        ];
        lists.into_iter().flatten().chain(self.properties.values()).copied()
    }

    /// The cost of its own assertions about a value.
    fn assertion_cost(&self, value: &Value) -> u64 {
        let content = match value {
            Value::String(text) => {
                let patterns = self.pattern_bytes.saturating_mul(text.len());
                text.len() / TEXT_BYTES_PER_UNIT + patterns / PATTERN_BYTES_PER_UNIT
            }
            Value::Object(map) if self.pattern_bytes > 0 => {
                let names: usize = map.keys().map(String::len).sum();
                self.pattern_bytes.saturating_mul(names) / PATTERN_BYTES_PER_UNIT
            }
            Value::Array(_) if self.unique_items => {
                return self.own_cost.saturating_add(count_values(value));
            }
            _ => 0,
        };
        self.own_cost.saturating_add(as_cost(content))
    }
}

/// Follows a value through a schema. Each pair of a shared part and a value is visited once; the others have only one path.
struct CostEstimate<'a> {
    graph: &'a SchemaGraph,
    /// Costs by the index of the part and the address of the value.
    costs: HashMap<(usize, usize), u64>,
    steps: u64,
}

impl CostEstimate<'_> {
    fn visit_value(&mut self, index: usize, value: &Value, depth: usize) -> u64 {
        self.steps += 1;
        if self.steps > MAX_VALIDATION_COST || depth > MAX_VALIDATION_DEPTH {
            return u64::MAX;
        }
        let graph = self.graph;
        let part = &graph.parts[index];
        let key = (index, std::ptr::from_ref(value).addr());
        if part.shared
            && let Some(cost) = self.costs.get(&key)
        {
            return *cost;
        }
        let mut cost = 0_u64;
        for next in &part.in_place {
            cost = cost.saturating_add(self.visit_value(*next, value, depth + 1));
        }
        if part.unevaluated {
            cost = cost.saturating_mul(UNEVALUATED_FACTOR);
        }
        let own = part.assertion_cost(value);
        self.steps = self.steps.saturating_add(own);
        cost = cost.saturating_add(own).saturating_add(self.visit_children(part, value, depth + 1));
        if part.shared {
            self.costs.insert(key, cost);
            if self.costs.len() > MAX_REMEMBERED_COSTS {
                return u64::MAX;
            }
        }
        cost
    }

    fn visit_children(&mut self, part: &SchemaPart, value: &Value, depth: usize) -> u64 {
        let mut cost = 0_u64;
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let own = part.properties.get(name);
                    for next in own.into_iter().chain(&part.every_property) {
                        cost = cost.saturating_add(self.visit_value(*next, value, depth));
                    }
                }
                // A name is a text: no part of a schema descends into it.
                for next in &part.property_names {
                    for name in map.keys() {
                        let name = Value::String(name.clone());
                        let mut apart = CostEstimate {
                            graph: self.graph,
                            costs: HashMap::new(),
                            steps: self.steps,
                        };
                        cost = cost.saturating_add(apart.visit_value(*next, &name, depth));
                        self.steps = apart.steps;
                    }
                }
            }
            Value::Array(items) => {
                for (place, item) in items.iter().enumerate() {
                    let own = part.prefix_items.get(place);
                    for next in own.into_iter().chain(&part.every_item) {
                        cost = cost.saturating_add(self.visit_value(*next, item, depth));
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        cost
    }
}

/// Reads the parts of a schema that a validation can reach.
#[derive(Default)]
struct GraphBuilder<'a> {
    root: Option<&'a Value>,
    anchors: HashMap<&'a str, Vec<&'a Value>>,
    /// Indexes of parts by the address of their JSON.
    indexes: HashMap<usize, usize>,
    parts: Vec<SchemaPart>,
    pending: Vec<(usize, &'a Value)>,
    patterns: HashSet<&'a str>,
    pattern_bytes: usize,
}

impl<'a> GraphBuilder<'a> {
    /// Collects the anchors. Refuses an `$id` inside, which would give references another base.
    fn collect_anchors(&mut self, value: &'a Value, is_root: bool) -> Result<(), ToolSchemaError> {
        match value {
            Value::Object(map) => {
                if !is_root && map.get("$id").is_some_and(Value::is_string) {
                    return Err(ToolSchemaError::NestedId);
                }
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(Value::String(name)) = map.get(key) {
                        self.anchors.entry(name.as_str()).or_default().push(value);
                    }
                }
                map.values().try_for_each(|inner| self.collect_anchors(inner, false))
            }
            Value::Array(items) => {
                items.iter().try_for_each(|inner| self.collect_anchors(inner, false))
            }
            _ => Ok(()),
        }
    }

    fn add_parts(&mut self, root: &'a Value) -> Result<(), ToolSchemaError> {
        self.root = Some(root);
        self.index_of(root);
        while let Some((index, schema)) = self.pending.pop() {
            self.parts[index] = self.read_part(schema)?;
        }
        if self.patterns.len() > MAX_SCHEMA_PATTERNS {
            return Err(ToolSchemaError::TooComplex);
        }
        Ok(())
    }

    fn index_of(&mut self, schema: &'a Value) -> usize {
        let address = std::ptr::from_ref(schema).addr();
        if let Some(index) = self.indexes.get(&address) {
            return *index;
        }
        let index = self.parts.len();
        self.indexes.insert(address, index);
        self.parts.push(SchemaPart::default());
        self.pending.push((index, schema));
        index
    }

    fn indexes_of(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Vec<usize> {
        schemas.into_iter().map(|schema| self.index_of(schema)).collect()
    }

    fn read_part(&mut self, schema: &'a Value) -> Result<SchemaPart, ToolSchemaError> {
        let mut part = SchemaPart { own_cost: 1, ..SchemaPart::default() };
        let Value::Object(keywords) = schema else { return Ok(part) };
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("$ref" | "$dynamicRef", Value::String(target)) => {
                    let targets = self.resolve_reference(target)?;
                    part.in_place.extend(self.indexes_of(targets));
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                    part.in_place.extend(self.indexes_of(all));
                }
                ("dependentSchemas" | "dependencies", Value::Object(all)) => {
                    part.in_place.extend(self.indexes_of(all.values()));
                }
                ("not" | "if" | "then" | "else" | "contentSchema", one) => {
                    part.in_place.push(self.index_of(one));
                }
                ("properties", Value::Object(all)) => {
                    for (name, one) in all {
                        part.properties.insert(name.clone(), self.index_of(one));
                    }
                }
                ("patternProperties", Value::Object(all)) => {
                    for (pattern, one) in all {
                        self.add_pattern(&mut part, pattern);
                        part.every_property.push(self.index_of(one));
                    }
                }
                ("additionalProperties", one) => part.every_property.push(self.index_of(one)),
                ("unevaluatedProperties", one) => {
                    part.every_property.push(self.index_of(one));
                    part.unevaluated = true;
                }
                ("propertyNames", one) => part.property_names.push(self.index_of(one)),
                ("prefixItems" | "items", Value::Array(all)) => {
                    part.prefix_items.extend(self.indexes_of(all));
                }
                ("items" | "additionalItems" | "contains", one) => {
                    part.every_item.push(self.index_of(one));
                }
                ("unevaluatedItems", one) => {
                    part.every_item.push(self.index_of(one));
                    part.unevaluated = true;
                }
                ("enum" | "const" | "required" | "dependentRequired", value) => {
                    part.own_cost = part.own_cost.saturating_add(count_values(value));
                }
                ("pattern", Value::String(pattern)) => self.add_pattern(&mut part, pattern),
                ("uniqueItems", Value::Bool(true)) => part.unique_items = true,
                _ => {}
            }
        }
        Ok(part)
    }

    fn add_pattern(&mut self, part: &mut SchemaPart, pattern: &'a str) {
        part.pattern_bytes += pattern.len();
        self.patterns.insert(pattern);
        self.pattern_bytes += pattern.len();
    }

    /// Finds what a reference may mean. An anchor that is there twice may mean either.
    fn resolve_reference(&self, target: &str) -> Result<Vec<&'a Value>, ToolSchemaError> {
        let fragment = target.strip_prefix('#').and_then(decode_percent);
        let found = match fragment.as_deref() {
            None => Vec::new(),
            Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => {
                self.root.and_then(|root| root.pointer(pointer)).into_iter().collect()
            }
            Some(anchor) => self.anchors.get(anchor).cloned().unwrap_or_default(),
        };
        if found.is_empty() {
            return Err(ToolSchemaError::Invalid(format!("`{target}` is not in it")));
        }
        Ok(found)
    }
}

/// Decodes the percent-encoding of a URI's fragment.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn as_cost(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Counts a value with all values in it.
fn count_values(value: &Value) -> u64 {
    let inner: u64 = match value {
        Value::Object(map) => map.values().map(count_values).sum(),
        Value::Array(items) => items.iter().map(count_values).sum(),
        _ => 0,
    };
    inner + 1
}

#[cfg(test)]
mod tests;
