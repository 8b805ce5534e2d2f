//! Registry of preferences: every key that the code reads, with its meaning. A key outside it has no effect.

use std::fmt::Write as _;

use super::ValueKind as Kind;
use crate::{
    agents::AgentRole,
    workflow::{
        WorkflowStep,
        decisions::{WorkerKind, unit_kind_for_role},
    },
};

/// A preference that somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Its key. `<agent>`, `<step>`, `<worker>` and `<name>` stand for the names that [`placeholder_values`] gives.
    pub key: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What holds when nobody says anything.
    pub default: &'static str,
    /// Which values are good, where not all of the kind are.
    pub bounds: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

macro_rules! preferences {
    ($($key:literal $kind:expr, $default:literal, $bounds:literal, $meaning:literal;)*) => {
        /// All of them, by key.
        pub const KNOWN: &[Preference] = &[$(Preference {
            key: $key, kind: $kind, default: $default, bounds: $bounds, meaning: $meaning,
        }),*];
    };
}

/// What may follow when work was sent back often enough.
const ON_LIMIT_CHOICES: &[&str] = &["by_severity", "escalate", "proceed"];

preferences! {
    "agents.<agent>.model_routing.allowed_external_providers" Kind::Strings, "as `model_routing.…` says", "",
        "The same as `model_routing.allowed_external_providers`, for this agent alone.";
    "agents.<agent>.model_routing.fallback_provider_order" Kind::Strings, "as `model_routing.…` says", "",
        "The same as `model_routing.fallback_provider_order`, for this agent alone.";
    "agents.<agent>.model_routing.prefer_local" Kind::Boolean, "as `model_routing.…` says", "",
        "The same as `model_routing.prefer_local`, for this agent alone.";
    "agents.project_analyst.additional_context" Kind::StringOrStrings, "nothing", "",
        "What the analyst is told with every question.";
    "agents.project_manager.additional_context" Kind::StringOrStrings, "nothing", "",
        "What the project manager is told with every question.";
    "agents.project_manager.analysts.enabled" Kind::Boolean, "true", "",
        "Whether an analyst verifies results; `false`: the project manager does it itself.";
    "agents.project_manager.placement.labels" Kind::StringOrStrings, "none", "",
        "The labels that a node must have to get the work.";
    "agents.project_manager.placement.node" Kind::String, "any", "the name or id of a node",
        "The only node that gets the work.";
    "agents.project_manager.profile" Kind::String, "`memory.profile`", "",
        "The memory profile that plans are made with.";
    "agents.project_manager.review.max_review_iterations" Kind::Count, "2", "0 to 5, else the nearest",
        "How often a review may send work back.";
    "agents.project_manager.review.on_limit" Kind::OneOf(ON_LIMIT_CHOICES), "`by_severity`", "",
        "What follows when work was sent back that often and is still not good: ask a person if something critical is left, always ask, or go on.";
    "agents.project_manager.review.require_tests_pass" Kind::Boolean, "true", "",
        "Whether tests that ran must pass.";
    "agents.project_manager.review.skip_minor_issues" Kind::Boolean, "true", "",
        "Whether minor issues are noted and not mended.";
    "agents.project_manager.workers.<worker>" Kind::Worker, "`goose`", "`{\"kind\": \"acp\", \"agent\": NAME}`, `command` or `scripted`",
        "Who does the work of a role or of a kind of worker; the role goes first.";
    "agents.sandbox_agent.additional_context" Kind::StringOrStrings, "nothing", "",
        "What every coding agent is told with its work.";
    "chat.default_project" Kind::String, "the only project there is", "the name or id of a project",
        "Where a chat with `cynodeai.pm` belongs that names no project.";
    "code.language.disallowed" Kind::Strings, "none", "",
        "Languages in which no file may be added, by name, such as `python`. Agents are told, and a change that adds one is sent back.";
    "definition_of_done.<name>" Kind::Any, "nothing", "",
        "What must hold for work to be done, as the analyst and the project manager are told.";
    "definition_of_done.required_checks" Kind::Strings, "none", "",
        "What must be checked for work to be done, as the analyst and the project manager are told.";
    "delivery.mode" Kind::DeliveryMode, "`pull_request`", "",
        "How finished work is offered: as a pull request, as a branch, or not at all.";
    "delivery.require_approval" Kind::Boolean, "false", "",
        "Whether a person must have approved a pull request before it is merged.";
    "language.preferred" Kind::String, "none", "",
        "The language that agents are told to prefer where there is a choice. Nothing checks it.";
    "memory.profile" Kind::String, "`default`", "1 to 63 of a-z, 0-9 and `-`",
        "The memory profile of agents that were given none.";
    "model_routing.allowed_external_providers" Kind::Strings, "all that the installation has", "names of providers",
        "The only providers outside that may be asked; `[]`: none. Local ones always may.";
    "model_routing.fallback_provider_order" Kind::Strings, "by the model's name", "names of providers",
        "The order in which providers are tried; those that are not named come after.";
    "model_routing.prefer_local" Kind::Boolean, "false", "",
        "Whether local providers are tried first.";
    "output.summary_style" Kind::String, "none", "",
        "How summaries are to be written, as the project manager is told.";
    "standards.<name>" Kind::Any, "nothing", "",
        "A standard that the analyst, the project manager and every coding agent are told.";
    "standards.markdown.line_length" Kind::Count, "none", "",
        "The longest line of Markdown that agents are told to write. Nothing checks it.";
    "workflow.approve_plan" Kind::Boolean, "true", "",
        "Whether a person is asked about a plan before anything is done.";
    "workflow.ask_environment" Kind::Boolean, "true", "",
        "Whether a person is asked about a proposed environment before the plan, where the project has none and its files need one.";
    "workflow.max_node_retries" Kind::Count, "3", "from 1 up, else the default",
        "How often a step of the workflow is tried when its failure may pass.";
    "workflow.max_parallel_units" Kind::Count, "4", "1 to 32, else the nearest",
        "How many units of a task are worked on at once.";
    "workflow.max_step_retries" Kind::Count, "3", "from 1 up, else the default",
        "How often a unit of work is tried.";
    "workflow.node_timeouts.<step>" Kind::Count, "30 to 600, by the step", "1 to 600 seconds, `collect_result` to 86400, else the nearest",
        "How long a step of the workflow may take, in seconds; `collect_result` is how long a job may.";
    "workflow.retry_budget" Kind::Count, "30", "from 1 up, else the default",
        "How many retries a task has in all.";
    "workflow.try_checks" Kind::Boolean, "true", "",
        "Whether checks are tried on the base commit before any agent works.";
}

/// The agents whose own keys are looked at.
const PREFERENCE_AGENTS: [&str; 3] = ["project_manager", "project_analyst", "sandbox_agent"];

/// The names that a placeholder stands for; none where any name is good.
pub fn placeholder_values(placeholder: &str) -> Vec<&'static str> {
    match placeholder {
        "<agent>" => PREFERENCE_AGENTS.to_vec(),
        "<step>" => WorkflowStep::ALL.iter().map(|node| node.as_str()).collect(),
        "<worker>" => {
            let roles = AgentRole::ALL.iter().filter(|role| unit_kind_for_role(**role).is_some());
            let mut names: Vec<_> = roles.map(|role| role.as_str()).collect();
            names.extend(WorkerKind::ALL.iter().map(|kind| kind.as_str()));
            names.sort_unstable();
            names.dedup();
            names
        }
        _ => Vec::new(),
    }
}

impl Preference {
    /// Whether a key is one that this speaks of. A `<name>` is one word or several.
    fn matches_key(&self, key: &str) -> bool {
        let Some((before, after)) = self.key.split_once('<') else { return self.key == key };
        let Some((word, after)) = after.split_once('>') else { return false };
        let Some(rest) = key.strip_prefix(before) else { return false };
        let Some(name) = rest.strip_suffix(after) else { return false };
        if word == "name" {
            return !name.is_empty();
        }
        placeholder_values(&format!("<{word}>")).contains(&name)
    }

    /// The keys that can be named.
    fn expand_keys(&self) -> Vec<String> {
        let Some(start) = self.key.find('<') else { return vec![self.key.to_owned()] };
        let end = self.key.find('>').map_or(self.key.len(), |end| end + 1);
        let word = &self.key[start..end];
        placeholder_values(word).into_iter().map(|value| self.key.replace(word, value)).collect()
    }
}

/// The preference that a key names. The one that names it letter by letter goes before one that stands for many.
pub fn find_preference(key: &str) -> Option<&'static Preference> {
    let exact = KNOWN.iter().find(|known| known.key == key);
    exact.or_else(|| KNOWN.iter().find(|known| known.matches_key(key)))
}

/// The key that is nearest to one that nobody reads.
pub fn nearest_key(key: &str) -> Option<String> {
    let keys: Vec<_> = KNOWN.iter().flat_map(Preference::expand_keys).collect();
    crate::names::nearest_name(key, keys.iter().map(String::as_str)).map(str::to_owned)
}

/// The table of the reference page.
pub fn render_table() -> String {
    let mut text =
        "| preference | takes | default | bounds | meaning |\n|---|---|---|---|---|\n".to_owned();
    for known in KNOWN {
        let Preference { key, kind, default, bounds, meaning } = known;
        let _ = writeln!(
            text,
            "| `{key}` | {} | {default} | {bounds} | {meaning} |",
            kind.describe_expected()
        );
    }
    text
}
