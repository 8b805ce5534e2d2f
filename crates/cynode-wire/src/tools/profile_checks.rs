//! Questions about a profile: whether it permits a tool, a request, a variable, a file or a model.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks what a profile permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckProfile {
    /// The questions, 1 to 200.
    pub questions: Vec<ProfileQuestion>,
}

/// Something that an agent may want to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProfileQuestion {
    /// A tool.
    Tool {
        /// Its dotted name.
        #[schema(example = "web.fetch")]
        name: String,
    },
    /// A request that leaves the installation.
    Request {
        /// The HTTP method.
        #[schema(example = "GET")]
        method: String,
        /// The host, without a port.
        #[schema(example = "docs.rs")]
        host: String,
    },
    /// An environment variable of the project's environment.
    Variable {
        /// Its name.
        name: String,
    },
    /// A file of the repository, to read.
    Read {
        /// Its path.
        path: String,
    },
    /// A file of the repository, to change.
    Write {
        /// Its path.
        path: String,
    },
    /// A model.
    Model {
        /// Its id.
        id: String,
    },
}

/// What a profile permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileDecisions {
    /// The profile.
    pub name: String,
    /// Its version that decided.
    pub version: u32,
    /// The decisions, in the order of the questions.
    pub decisions: Vec<ProfileDecision>,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileDecision {
    /// The question.
    pub question: ProfileQuestion,
    /// Whether the profile permits it. Roles, rules and policies may still forbid it.
    pub allowed: bool,
}
