//! The tools that there are.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, ServerId, UserId},
    tools::ToolAnnotations,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    digest::Sha256Digest,
    schema::{ToolSchema, ToolSchemaError},
    tool_names::ToolName,
};

/// What a tool is, before anybody switched anything.
#[derive(Clone, Debug, PartialEq)]
pub struct McpToolDefinition {
    /// Its name.
    pub name: ToolName,
    /// Other names it answers to.
    pub aliases: Vec<ToolName>,
    /// What a person reads.
    pub title: String,
    /// What a model reads.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input: Value,
    /// JSON Schema of its structured result.
    pub output: Option<Value>,
    /// Who may call it, unless somebody set another scope.
    pub scope: ToolScope,
    /// The ids that tie a call to what the caller works on.
    pub binding: IdBinding,
    /// What it does to the world. Set by us or by an admin, never taken from a server's own word.
    pub annotations: ToolAnnotations,
    /// Where it comes from.
    pub origin: ToolOrigin,
    /// Whether it reaches into the network.
    pub network: bool,
}

/// The ids that tie a call to what the caller works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdBinding {
    /// `task_id`.
    pub task: bool,
    /// `run_id`.
    pub run: bool,
    /// `job_id`.
    pub job: bool,
}

impl IdBinding {
    /// Tied to nothing.
    pub const NONE: Self = Self { task: false, run: false, job: false };
    /// Tied to a task.
    pub const TASK: Self = Self { task: true, run: false, job: false };
    /// Tied to a task and its run.
    pub const RUN: Self = Self { task: true, run: true, job: false };
    /// Tied to a task and a job of it.
    pub const JOB: Self = Self { task: true, run: false, job: true };

    /// The arguments that carry the ids, in order.
    pub fn id_arguments(self) -> impl Iterator<Item = &'static str> {
        let all = [(self.task, "task_id"), (self.run, "run_id"), (self.job, "job_id")];
        all.into_iter().filter_map(|(bound, name)| bound.then_some(name))
    }
}

/// Where a tool comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolOrigin {
    /// The product itself.
    Native,
    /// A server that somebody installed; never loaded into our process.
    Server {
        /// The server.
        id: ServerId,
        /// What the server calls the tool.
        tool: String,
        /// Who may use it.
        audience: ToolAudience,
    },
}

/// Whose agents may use an installed tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolAudience {
    /// Everybody's.
    Everybody,
    /// Those that work in a project.
    Project(ProjectId),
    /// Those that work in a person's name.
    User(UserId),
}

/// What people decided about a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOverride {
    /// Switched on or off.
    pub enabled: Option<bool>,
    /// Another scope.
    pub scope: Option<ToolScope>,
}

/// Whether a tool's definition may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionPin {
    /// It is the one that was accepted.
    Accepted,
    /// It is new or changed and nobody has accepted it.
    Quarantined,
}

/// A tool of the catalogue.
#[derive(Clone, Debug)]
pub struct CatalogueTool {
    /// What it is.
    pub definition: McpToolDefinition,
    /// Names the definition: another digest is another tool.
    pub digest: Sha256Digest,
    /// Whether people have it switched on.
    pub enabled: bool,
    /// Who may call it, after what people decided.
    pub scope: ToolScope,
    /// Whether its definition may be used.
    pub pin: DefinitionPin,
    pub(crate) arguments: ToolSchema,
    output: Option<ToolSchema>,
}

impl CatalogueTool {
    /// Whether a result of that many bytes is checked in so short a time that nobody has to wait for it.
    pub fn validates_output_cheaply(&self, bytes: usize) -> bool {
        self.output.as_ref().is_none_or(|schema| schema.is_cheap_for(bytes))
    }

    /// What is wrong with a structured result, if the tool promised a form for it.
    pub fn find_output_violation(&self, structured: Option<&Value>) -> Option<String> {
        let schema = self.output.as_ref()?;
        match structured {
            Some(structured) => schema.find_violation(structured),
            None => Some("the promised structured content is missing".to_owned()),
        }
    }
}

/// All tools, by name. A changed catalogue is a new one.
#[derive(Clone, Debug)]
pub struct ToolCatalogue {
    tools: BTreeMap<ToolName, Arc<CatalogueTool>>,
    aliases: HashMap<ToolName, ToolName>,
    version: Sha256Digest,
}

/// One tool for [`ToolCatalogue::from_entries`].
#[derive(Clone, Debug)]
pub struct CatalogueEntry {
    /// What it is.
    pub definition: McpToolDefinition,
    /// What people decided.
    pub set: ToolOverride,
    /// Whether its definition may be used.
    pub pin: DefinitionPin,
}

/// Why a tool is not taken into the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// A native tool outside the product's namespaces, or a foreign one inside them.
    #[error("`{0}` is not in the namespace of its origin")]
    Namespace(ToolName),
    /// Two tools of one name.
    #[error("there are two tools named `{0}`")]
    Twice(ToolName),
    /// A schema cannot be used.
    #[error("`{0}`: {1}")]
    Schema(ToolName, ToolSchemaError),
    /// A tool that is tied to a task does not ask for the task.
    #[error("`{0}` is tied to a task, so its schema must require `{1}`")]
    Unbound(ToolName, &'static str),
}

impl McpToolDefinition {
    /// The digest of what was promised: name, words, schemas.
    pub fn definition_digest(&self) -> Sha256Digest {
        Sha256Digest::of_json(&json!({
            "name": self.name.as_str(),
            "title": self.title,
            "description": self.description,
            "input": self.input,
            "output": self.output,
        }))
    }

    /// The ids it is tied to but does not ask for, of those that only should be in the schema.
    pub fn missing_id_arguments(&self) -> Vec<&'static str> {
        let wanted = self.binding.id_arguments().filter(|name| *name != "task_id");
        wanted.filter(|name| !schema_requires(&self.input, name)).collect()
    }

    /// Whether its schema asks for that argument.
    pub fn requires_argument(&self, name: &str) -> bool {
        schema_requires(&self.input, name)
    }

    /// Whether the catalogue would take it: its namespace, its schemas and what validating by them costs.
    pub fn check_usable(&self) -> Result<(), CatalogueError> {
        self.compile_schemas().map(|_| ())
    }

    fn compile_schemas(&self) -> Result<(ToolSchema, Option<ToolSchema>), CatalogueError> {
        let native = self.origin == ToolOrigin::Native;
        let fits = |name: &ToolName| native == name.is_native();
        if !fits(&self.name) {
            return Err(CatalogueError::Namespace(self.name.clone()));
        }
        let wrong = |error| CatalogueError::Schema(self.name.clone(), error);
        let arguments = ToolSchema::compile_schema(&self.input).map_err(wrong)?;
        let output =
            self.output.as_ref().map(ToolSchema::compile_schema).transpose().map_err(wrong)?;
        if self.binding.task && !schema_requires(&self.input, "task_id") {
            return Err(CatalogueError::Unbound(self.name.clone(), "task_id"));
        }
        Ok((arguments, output))
    }
}

/// Whether a schema asks for that property.
fn schema_requires(schema: &Value, name: &str) -> bool {
    let declared = schema.get("properties").and_then(|all| all.get(name)).is_some();
    let required = schema.get("required").and_then(Value::as_array);
    declared && required.is_some_and(|all| all.iter().any(|one| one == name))
}

impl ToolCatalogue {
    /// Puts the tools together. A tool that cannot be taken is left out and reported; the others do not suffer for it.
    pub fn from_entries(
        entries: impl IntoIterator<Item = CatalogueEntry>,
    ) -> (Self, Vec<CatalogueError>) {
        Self::empty().rebuild_from(entries)
    }

    /// A catalogue without tools.
    pub fn empty() -> Self {
        Self { tools: BTreeMap::new(), aliases: HashMap::new(), version: Sha256Digest([0; 32]) }
    }

    /// Puts a new catalogue together, as [`Self::from_entries`] does. Schemas that this one has compiled are not compiled
    /// again, so that a small change costs little however many tools there are.
    pub fn rebuild_from(
        &self,
        entries: impl IntoIterator<Item = CatalogueEntry>,
    ) -> (Self, Vec<CatalogueError>) {
        let mut catalogue = Self::empty();
        let mut refused = Vec::new();
        for entry in entries {
            if let Err(error) = catalogue.add_entry(entry, self) {
                refused.push(error);
            }
        }
        catalogue.version = catalogue.compute_version();
        (catalogue, refused)
    }

    fn add_entry(&mut self, entry: CatalogueEntry, before: &Self) -> Result<(), CatalogueError> {
        let CatalogueEntry { definition, set, pin } = entry;
        let compiled =
            before.tools.get(&definition.name).filter(|tool| tool.definition == definition);
        let (digest, arguments, output) = match compiled {
            Some(tool) => (tool.digest, tool.arguments.clone(), tool.output.clone()),
            None => {
                let (arguments, output) = definition.compile_schemas()?;
                (definition.definition_digest(), arguments, output)
            }
        };
        let names = std::iter::once(&definition.name).chain(&definition.aliases);
        if let Some(taken) = names.into_iter().find(|name| self.contains_name(name)) {
            return Err(CatalogueError::Twice(taken.clone()));
        }
        for alias in &definition.aliases {
            self.aliases.insert(alias.clone(), definition.name.clone());
        }
        let tool = CatalogueTool {
            digest,
            enabled: set.enabled.unwrap_or(true),
            scope: set.scope.unwrap_or(definition.scope),
            pin,
            arguments,
            output,
            definition,
        };
        self.tools.insert(tool.definition.name.clone(), Arc::new(tool));
        Ok(())
    }

    fn contains_name(&self, name: &ToolName) -> bool {
        self.tools.contains_key(name) || self.aliases.contains_key(name)
    }

    /// Says everything that a decision may depend on.
    fn compute_version(&self) -> Sha256Digest {
        let lines: Vec<_> = self
            .tools
            .values()
            .map(|tool| {
                let definition = &tool.definition;
                let audience = match &definition.origin {
                    ToolOrigin::Native => String::new(),
                    ToolOrigin::Server { id, audience, .. } => format!("{id} {audience:?}"),
                };
                json!([
                    definition.name.as_str(),
                    definition.aliases,
                    tool.digest.to_string(),
                    tool.enabled,
                    tool.scope.as_str(),
                    tool.pin == DefinitionPin::Accepted,
                    audience,
                    definition.binding,
                    definition.annotations,
                    definition.network,
                ])
            })
            .collect();
        Sha256Digest::of_json(&Value::Array(lines))
    }

    /// The tool of that name or alias.
    pub fn find_by_name(&self, name: &ToolName) -> Option<&Arc<CatalogueTool>> {
        self.tools.get(name).or_else(|| self.tools.get(self.aliases.get(name)?))
    }

    /// The tool that a name on the wire means.
    pub fn find_by_wire_name(&self, name: &str) -> Option<&Arc<CatalogueTool>> {
        self.find_by_name(&ToolName::from_wire_name(name).ok()?)
    }

    /// Every tool, by name.
    pub fn iter_tools(&self) -> impl Iterator<Item = &Arc<CatalogueTool>> {
        self.tools.values()
    }

    /// Names this catalogue: the same tools in the same state have the same version.
    pub const fn version_digest(&self) -> Sha256Digest {
        self.version
    }
}

#[cfg(test)]
mod tests;
