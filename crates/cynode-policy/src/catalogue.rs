//! The tools that there are.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, ServerId, UserId},
};
pub use cynode_wire::gate::Annotations;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    digest::Digest,
    names::ToolName,
    schema::{Schema, SchemaError},
};

/// What a tool is, before anybody switched anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
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
    pub binding: Binding,
    /// What it does to the world. Set by us or by an admin, never taken from a server's own word.
    pub annotations: Annotations,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it reaches into the network.
    pub network: bool,
    /// Why it cannot work in this installation, if it cannot.
    pub missing: Option<&'static str>,
}

/// The ids that tie a call to what the caller works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// `task_id`.
    pub task: bool,
    /// `run_id`.
    pub run: bool,
    /// `job_id`.
    pub job: bool,
}

impl Binding {
    /// Tied to nothing.
    pub const NONE: Self = Self { task: false, run: false, job: false };
    /// Tied to a task.
    pub const TASK: Self = Self { task: true, run: false, job: false };
    /// Tied to a task and its run.
    pub const RUN: Self = Self { task: true, run: true, job: false };
    /// Tied to a task and a job of it.
    pub const JOB: Self = Self { task: true, run: false, job: true };

    /// The arguments that carry the ids, in order.
    pub fn arguments(self) -> impl Iterator<Item = &'static str> {
        let all = [(self.task, "task_id"), (self.run, "run_id"), (self.job, "job_id")];
        all.into_iter().filter_map(|(bound, name)| bound.then_some(name))
    }
}

/// Where a tool comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The product itself.
    Native,
    /// A server that somebody installed; never loaded into our process.
    Server {
        /// The server.
        id: ServerId,
        /// What the server calls the tool.
        tool: String,
        /// Who may use it.
        audience: Audience,
    },
}

/// Whose agents may use an installed tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everybody's.
    Everybody,
    /// Those that work in a project.
    Project(ProjectId),
    /// Those that work in a person's name.
    User(UserId),
}

/// What people decided about a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Switched on or off.
    pub enabled: Option<bool>,
    /// Another scope.
    pub scope: Option<ToolScope>,
}

/// Whether a tool's definition may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// It is the one that was accepted.
    Accepted,
    /// It is new or changed and nobody has accepted it.
    Quarantined,
}

/// A tool of the catalogue.
#[derive(Clone, Debug)]
pub struct Tool {
    /// What it is.
    pub definition: Definition,
    /// Names the definition: another digest is another tool.
    pub digest: Digest,
    /// Whether people have it switched on.
    pub enabled: bool,
    /// Who may call it, after what people decided.
    pub scope: ToolScope,
    /// Whether its definition may be used.
    pub pin: Pin,
    pub(crate) arguments: Schema,
    output: Option<Schema>,
}

impl Tool {
    /// What is wrong with a structured result, if the tool promised a form for it.
    pub fn output_complaint(&self, structured: Option<&Value>) -> Option<String> {
        let schema = self.output.as_ref()?;
        match structured {
            Some(structured) => schema.complaint(structured),
            None => Some("the promised structured content is missing".to_owned()),
        }
    }
}

/// All tools, by name. A changed catalogue is a new one.
#[derive(Clone, Debug)]
pub struct Catalogue {
    tools: BTreeMap<ToolName, Arc<Tool>>,
    aliases: HashMap<ToolName, ToolName>,
    version: Digest,
}

/// One tool for [`Catalogue::build`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is.
    pub definition: Definition,
    /// What people decided.
    pub set: Override,
    /// Whether its definition may be used.
    pub pin: Pin,
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
    Schema(ToolName, SchemaError),
    /// A tool that is tied to a task does not ask for the task.
    #[error("`{0}` is tied to a task, so its schema must require `{1}`")]
    Unbound(ToolName, &'static str),
}

impl Definition {
    /// The digest of what was promised: name, words, schemas.
    pub fn digest(&self) -> Digest {
        Digest::of_json(&json!({
            "name": self.name.as_str(),
            "title": self.title,
            "description": self.description,
            "input": self.input,
            "output": self.output,
        }))
    }

    /// The ids it is tied to but does not ask for, of those that only should be in the schema.
    pub fn lints(&self) -> Vec<&'static str> {
        let wanted = self.binding.arguments().filter(|name| *name != "task_id");
        wanted.filter(|name| !requires(&self.input, name)).collect()
    }

    fn compile(&self) -> Result<(Schema, Option<Schema>), CatalogueError> {
        let native = self.origin == Origin::Native;
        let fits = |name: &ToolName| native == name.is_native();
        if !fits(&self.name) {
            return Err(CatalogueError::Namespace(self.name.clone()));
        }
        let wrong = |error| CatalogueError::Schema(self.name.clone(), error);
        let arguments = Schema::compile(&self.input).map_err(wrong)?;
        let output = self.output.as_ref().map(Schema::compile).transpose().map_err(wrong)?;
        if self.binding.task && !requires(&self.input, "task_id") {
            return Err(CatalogueError::Unbound(self.name.clone(), "task_id"));
        }
        Ok((arguments, output))
    }
}

/// Whether a schema asks for that property.
fn requires(schema: &Value, name: &str) -> bool {
    let declared = schema.get("properties").and_then(|all| all.get(name)).is_some();
    let required = schema.get("required").and_then(Value::as_array);
    declared && required.is_some_and(|all| all.iter().any(|one| one == name))
}

impl Catalogue {
    /// Puts the tools together. A tool that cannot be taken is left out and reported; the others do not suffer for it.
    pub fn build(entries: impl IntoIterator<Item = Entry>) -> (Self, Vec<CatalogueError>) {
        let mut catalogue =
            Self { tools: BTreeMap::new(), aliases: HashMap::new(), version: Digest([0; 32]) };
        let mut refused = Vec::new();
        for entry in entries {
            if let Err(error) = catalogue.add(entry) {
                refused.push(error);
            }
        }
        catalogue.version = catalogue.fingerprint();
        (catalogue, refused)
    }

    fn add(&mut self, entry: Entry) -> Result<(), CatalogueError> {
        let Entry { definition, set, pin } = entry;
        let (arguments, output) = definition.compile()?;
        let names = std::iter::once(&definition.name).chain(&definition.aliases);
        if let Some(taken) = names.into_iter().find(|name| self.known(name)) {
            return Err(CatalogueError::Twice(taken.clone()));
        }
        for alias in &definition.aliases {
            self.aliases.insert(alias.clone(), definition.name.clone());
        }
        let tool = Tool {
            digest: definition.digest(),
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

    fn known(&self, name: &ToolName) -> bool {
        self.tools.contains_key(name) || self.aliases.contains_key(name)
    }

    /// Says everything that a decision may depend on.
    fn fingerprint(&self) -> Digest {
        let lines: Vec<_> = self
            .tools
            .values()
            .map(|tool| {
                let definition = &tool.definition;
                let audience = match &definition.origin {
                    Origin::Native => String::new(),
                    Origin::Server { id, audience, .. } => format!("{id} {audience:?}"),
                };
                json!([
                    definition.name.as_str(),
                    definition.aliases,
                    tool.digest.to_string(),
                    tool.enabled,
                    tool.scope.as_str(),
                    tool.pin == Pin::Accepted,
                    audience,
                    definition.binding,
                    definition.annotations,
                    definition.network,
                    definition.missing,
                ])
            })
            .collect();
        Digest::of_json(&Value::Array(lines))
    }

    /// The tool of that name or alias.
    pub fn get(&self, name: &ToolName) -> Option<&Arc<Tool>> {
        self.tools.get(name).or_else(|| self.tools.get(self.aliases.get(name)?))
    }

    /// The tool that a name on the wire means.
    pub fn on_the_wire(&self, name: &str) -> Option<&Arc<Tool>> {
        self.get(&ToolName::from_wire(name).ok()?)
    }

    /// Every tool, by name.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values()
    }

    /// Names this catalogue: the same tools in the same state have the same version.
    pub const fn version(&self) -> Digest {
        self.version
    }
}

#[cfg(test)]
mod tests;
