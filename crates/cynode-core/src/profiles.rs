//! Profiles: what an agent may use. A profile names it; what it does not name is not there.
//!
//! Gateway, egress, node and memory ask the functions of one [`ProfileSpec`], so that they cannot decide differently. The functions are total:
//! text that no rule understands is refused.

mod patterns;
mod shipped;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::patterns::{matches_domain, matches_glob, matches_prefix, matches_tool};
pub use self::shipped::{SHIPPED_PROFILES, shipped_profile};
pub use crate::names::ProfileName;

/// Maximum number of entries of each list of a profile.
pub const MAX_PROFILE_ENTRIES: usize = 200;

/// Maximum number of characters of a description.
pub const MAX_DESCRIPTION_CHARS: usize = 2000;

/// Maximum budget that a profile can name, in millionths of the currency unit.
pub const MAX_BUDGET_MICROS: u64 = 1_000_000_000_000_000;

/// Maximum of each sandbox limit that a profile can name.
const MAX_SANDBOX_LIMIT: u32 = 16 * 1024 * 1024;

/// What an agent under a profile may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSpec {
    /// Purpose of the profile, for people.
    pub description: String,
    /// Tools: `db.task.get`, `memory.*` or `*`. Tools of servers that reach beyond the installation are named: `*` does not mean them.
    pub tools: Vec<String>,
    /// Requests that leave the installation. Without a rule there is no network.
    pub network: Vec<NetworkRule>,
    /// Environment variables and secrets of the project's environment that a job gets: `CI`, `CARGO_*` or `*`.
    pub variables: Vec<String>,
    /// Files of the repository.
    pub paths: ProfilePaths,
    /// Models: `gpt-5`, `gpt-*` or `*`.
    pub models: Vec<String>,
    /// Budget of a task that names this profile and no budget, in millionths of the currency unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_micros: Option<u64>,
    /// Access to the memory of the project.
    pub memory: MemoryAccess,
    /// Maximum size of a sandbox.
    pub sandbox: ProfileSandbox,
}

/// Requests to the hosts of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkRule {
    /// One host (`docs.rs`), all hosts below a domain (`*.example.org`), or every host (`*`).
    pub domain: String,
    /// HTTP methods: `GET`, or `*` for all.
    pub methods: Vec<String>,
}

/// Files of the repository, as globs over its paths: `**` for any number of directories, `*` inside a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfilePaths {
    /// Files that can be read.
    pub read: Vec<String>,
    /// Files that a result can change.
    pub write: Vec<String>,
}

/// Access to the memory of a project.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAccess {
    /// None.
    #[default]
    None,
    /// Search.
    Read,
    /// Search, and remember.
    Write,
}

/// Maximum size of a sandbox. The limits of the node hold where a field is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSandbox {
    /// Memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// CPU, in hundredths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Number of processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Disk for workspace and home together, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
}

/// A version of a profile, as it goes with an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileVersion {
    /// Name of the profile.
    pub name: ProfileName,
    /// Version, counted from 1.
    pub version: u32,
    /// What it permits.
    pub spec: Arc<ProfileSpec>,
}

impl ProfileVersion {
    /// Returns what is left of a profile that does not exist any more: it permits nothing.
    pub fn unknown(name: ProfileName) -> Self {
        Self { name, version: 0, spec: Arc::default() }
    }

    /// Returns whether there is a profile of that name.
    pub const fn is_known(&self) -> bool {
        self.version > 0
    }
}

impl MemoryAccess {
    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl ProfileSpec {
    /// Checks every field. The error names the field and its rule.
    pub fn validate(&self) -> Result<(), String> {
        if self.description.chars().count() > MAX_DESCRIPTION_CHARS {
            return Err(format!("`description` has at most {MAX_DESCRIPTION_CHARS} characters"));
        }
        if self.description.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
            return Err("`description` has no control characters".into());
        }
        patterns::validate_list("tools", &self.tools, patterns::tool_error)?;
        patterns::validate_list("variables", &self.variables, patterns::variable_error)?;
        patterns::validate_list("models", &self.models, patterns::model_error)?;
        patterns::validate_list("paths.read", &self.paths.read, patterns::glob_error)?;
        patterns::validate_list("paths.write", &self.paths.write, patterns::glob_error)?;
        self.validate_network()?;
        if self.budget_micros.is_some_and(|micros| !(1..=MAX_BUDGET_MICROS).contains(&micros)) {
            return Err(format!("`budget_micros` is 1 to {MAX_BUDGET_MICROS}"));
        }
        self.sandbox.validate()
    }

    fn validate_network(&self) -> Result<(), String> {
        if self.network.len() > MAX_PROFILE_ENTRIES {
            return Err(format!("`network` has at most {MAX_PROFILE_ENTRIES} entries"));
        }
        for rule in &self.network {
            if let Some(rule_of_text) = patterns::domain_error(&rule.domain) {
                return Err(format!("`network.domain` {rule_of_text}, got {:?}", rule.domain));
            }
            if rule.methods.is_empty() {
                return Err("`network.methods` names at least one method, or `*`".into());
            }
            patterns::validate_list("network.methods", &rule.methods, patterns::method_error)?;
        }
        Ok(())
    }

    /// Returns whether any request may leave the installation.
    pub fn has_network(&self) -> bool {
        !self.network.is_empty()
    }

    /// Returns whether the tool with that dotted name may be called.
    pub fn allows_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|pattern| matches_tool(pattern, name))
    }

    /// Returns whether an entry other than `*` means the tool with that dotted name. `*` does not open tools of servers that reach beyond the
    /// installation: nobody checks the requests of such a tool against `network`.
    pub fn names_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|pattern| pattern != "*" && matches_tool(pattern, name))
    }

    /// Returns whether a request may go to that host, which is in lower case and without a port.
    pub fn allows_request(&self, method: &str, host: &str) -> bool {
        self.network.iter().any(|rule| {
            matches_domain(&rule.domain, host)
                && rule.methods.iter().any(|allowed| allowed == "*" || allowed == method)
        })
    }

    /// Returns whether a job gets that environment variable.
    pub fn allows_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|pattern| matches_prefix(pattern, name))
    }

    /// Returns whether that file of the repository may be read.
    pub fn allows_read(&self, path: &str) -> bool {
        self.paths.read.iter().any(|glob| matches_glob(glob, path))
    }

    /// Returns whether a result may change that file of the repository.
    pub fn allows_write(&self, path: &str) -> bool {
        self.paths.write.iter().any(|glob| matches_glob(glob, path))
    }

    /// Returns whether every file of the repository may be read.
    pub fn reads_everything(&self) -> bool {
        self.paths.read.iter().any(|glob| glob == "**")
    }

    /// Returns whether a node has nothing to keep from an agent: neither variables of the environment nor changes of files.
    pub fn leaves_nodes_nothing_to_do(&self) -> bool {
        self.variables.iter().any(|pattern| pattern == "*")
            && self.paths.write.iter().any(|glob| glob == "**")
    }

    /// Returns whether that model may be asked.
    pub fn allows_model(&self, id: &str) -> bool {
        self.models.iter().any(|pattern| matches_prefix(pattern, id))
    }

    /// Returns whether the memory of the project may be searched.
    pub const fn reads_memory(&self) -> bool {
        matches!(self.memory, MemoryAccess::Read | MemoryAccess::Write)
    }

    /// Returns whether something may be remembered.
    pub const fn writes_memory(&self) -> bool {
        matches!(self.memory, MemoryAccess::Write)
    }
}

impl ProfileSandbox {
    fn validate(self) -> Result<(), String> {
        let limits = [
            ("memory_mib", self.memory_mib),
            ("cpu_percent", self.cpu_percent),
            ("processes", self.processes),
            ("disk_mib", self.disk_mib),
        ];
        for (name, limit) in limits {
            if limit.is_some_and(|limit| !(1..=MAX_SANDBOX_LIMIT).contains(&limit)) {
                return Err(format!("`sandbox.{name}` is 1 to {MAX_SANDBOX_LIMIT}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
