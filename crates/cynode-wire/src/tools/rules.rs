//! Rules before they hold: check, vocabulary, backtest, draft, history; and the decision about a recorded call.

use cynode_core::ids::{AgentTokenId, CallId, ProjectId, TaskId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{AuditView, PolicyExplanation, SetRule};

/// Checks a rule. Nothing is stored.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRule {
    /// The name that it is to have.
    #[serde(default)]
    pub name: Option<String>,
    /// What it does when it applies: `refuse`, `approve` or `shadow`.
    #[schema(example = "refuse")]
    pub mode: String,
    /// One Cedar `forbid`.
    #[schema(example = "forbid (principal, action in Action::\"git.*\", resource);")]
    pub text: String,
}

/// What checking a rule showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleCheckView {
    /// Whether the rule can be stored.
    pub valid: bool,
    /// What is wrong, with its place.
    pub errors: Vec<RuleErrorView>,
    /// Whether it looks at the arguments of calls, which the audit log does not hold.
    pub reads_arguments: bool,
    /// The tools that its head speaks of.
    pub tools: Vec<String>,
    /// The roles of agents that its head speaks of.
    pub roles: Vec<String>,
}

/// One error of a rule. Lines and columns begin at 1; columns count characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleErrorView {
    /// `name`, `too_long`, `syntax`, `permits`, `does_not_fit` or `schema`.
    pub code: String,
    /// The error, in a sentence.
    pub message: String,
    /// What would be right, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line in which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column in which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The line in which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_line: Option<u32>,
    /// The column behind its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_column: Option<u32>,
    /// Its offset in the text, in UTF-16 code units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// The offset behind its end, in UTF-16 code units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// All that a rule can speak of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleVocabulary {
    /// What a rule can do when it applies.
    pub modes: Vec<RuleModeView>,
    /// Roles of agents: `Role::"developer"`.
    pub roles: Vec<String>,
    /// Groups of tools: `Action::"git.*"`.
    pub groups: Vec<String>,
    /// Servers of tools: `Server::"native"`.
    pub servers: Vec<VocabularyServer>,
    /// Facts about the caller and the tool.
    pub fields: Vec<VocabularyField>,
    /// Words and signs of conditions.
    pub operators: Vec<VocabularyOperator>,
    /// Tools: `Action::"git.push"`.
    pub tools: Vec<VocabularyTool>,
    /// Maximum number of bytes of a rule.
    pub max_bytes: u32,
}

/// A mode of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleModeView {
    /// Its name.
    pub name: String,
    /// What happens to a call.
    pub summary: String,
}

/// A server of tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VocabularyServer {
    /// `native`, or the id of a server.
    pub id: String,
    /// What people call it.
    pub name: String,
}

/// A fact about the caller or the tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VocabularyField {
    /// How a condition names it.
    #[schema(example = "context.agent.kind")]
    pub path: String,
    /// Its type in Cedar.
    pub kind: String,
    /// The meaning of the fact.
    pub summary: String,
    /// The values that it can have, where they are few.
    pub values: Vec<String>,
}

/// A word or sign of conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VocabularyOperator {
    /// The word or sign.
    pub name: String,
    /// A condition that uses it.
    pub example: String,
    /// Its meaning.
    pub summary: String,
}

/// A tool, as rules see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VocabularyTool {
    /// Its name.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// `native`, or the id of its server.
    pub server: String,
    /// The groups that it is in, narrowest first.
    pub groups: Vec<String>,
    /// The arguments that conditions see. A call may lack each: ask with `has`.
    pub arguments: Vec<VocabularyArgument>,
    /// Arguments of types that conditions do not see.
    pub hidden_arguments: Vec<String>,
}

/// An argument, as conditions see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VocabularyArgument {
    /// How a condition names it.
    #[schema(example = "context.arguments.branch")]
    pub path: String,
    /// Its type in Cedar.
    pub kind: String,
    /// Whether the schema of the tool requires it.
    pub required: bool,
    /// Its description in the schema of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// One version of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleVersionView {
    /// Its number.
    pub version: i64,
    /// The effect of the rule; absent for a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// One Cedar `forbid`; absent for a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who wrote it; absent when it came with the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub changed_by: Option<UserId>,
    /// The time of the change.
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    /// Whether this version is the deletion.
    pub deleted: bool,
}

/// Tries a rule on recorded calls. Nothing is stored.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BacktestRule {
    /// The rule that this one would replace.
    #[serde(default)]
    pub name: Option<String>,
    /// What it does when it applies: `refuse`, `approve` or `shadow`.
    #[schema(example = "refuse")]
    pub mode: String,
    /// One Cedar `forbid`.
    #[schema(example = "forbid (principal, action in Action::\"git.*\", resource);")]
    pub text: String,
    /// How many days back, 1 to 30; 7 when it is left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 30)]
    pub days: Option<u8>,
    /// Only calls of this project; required unless you may see the whole installation.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
}

/// What a rule would have done to recorded calls. `calls` is the sum of `hits`, `misses`, `not_reached` and `undecidable`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BacktestReport {
    /// The beginning of the time that was looked at.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Its end.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// Whether all calls of that time were looked at.
    pub complete: bool,
    /// How many recorded calls were looked at.
    pub calls: u64,
    /// Calls that the rule applies to.
    pub hits: u64,
    /// Calls that the rule does not apply to.
    pub misses: u64,
    /// Calls that were refused before rules are asked.
    pub not_reached: u64,
    /// Calls whose record does not hold enough to decide.
    pub undecidable: u64,
    /// What the records of undecidable calls lack.
    pub undecidable_reasons: Vec<UndecidableCalls>,
    /// The hits, by the effect of the rule.
    pub effects: BacktestEffects,
    /// Hits and released calls, by the decision of then and now.
    pub decisions: Vec<DecisionChange>,
    /// Calls that only the present rule of this name stopped and that this one does not apply to.
    pub released: u64,
    /// The calls by tool, most hits first, at most 100.
    pub by_tool: Vec<BacktestTool>,
    /// Up to 20 of the calls.
    pub samples: Vec<BacktestSample>,
}

/// Calls that cannot be decided, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UndecidableCalls {
    /// `arguments_not_recorded`, `agent_not_recorded` or `tool_gone`.
    pub reason: String,
    /// How many calls there are.
    pub calls: u64,
    /// The reason in a sentence.
    pub detail: String,
}

/// Calls by the effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BacktestEffects {
    /// Calls that would be refused.
    pub refuse: u64,
    /// Calls that would wait for a person.
    pub approve: u64,
    /// Calls whose record would name the rule.
    pub shadow: u64,
}

/// Calls by the decision of then and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionChange {
    /// The recorded decision: `allow`, `deny` or `needs_approval`.
    pub then: String,
    /// The decision with the rule.
    pub now: String,
    /// How many calls there are.
    pub calls: u64,
}

/// Calls of one tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BacktestTool {
    /// The tool; empty for calls of tools that do not exist.
    pub tool: String,
    /// How many calls were looked at.
    pub calls: u64,
    /// How many the rule applies to.
    pub hits: u64,
    /// How many cannot be decided.
    pub undecidable: u64,
}

/// A recorded call that stands for others like it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BacktestSample {
    /// The call.
    #[schema(value_type = String)]
    pub call_id: CallId,
    /// The time of the call.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The tool.
    pub tool: String,
    /// The role of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_role: Option<String>,
    /// The token of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub agent_token_id: Option<AgentTokenId>,
    /// The project of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// The task of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// `hit`, `released` or `undecidable`.
    pub result: String,
    /// How many calls are like this one.
    pub calls: u64,
    /// The recorded decision.
    pub then: String,
    /// The recorded reason.
    pub reason_then: String,
    /// The decision with the rule; absent when it cannot be decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
}

/// A rule that was drafted from a call. It is stored only when you set it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleDraftView {
    /// A name for it that no rule has.
    pub name: String,
    /// The rule, in the form in which rules are set.
    pub rule: SetRule,
    /// The rule that asked for the approval and that this one narrows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Whether the rule looks at the arguments of the call. They are erased when the call is decided.
    pub arguments_included: bool,
    /// Arguments of the call that the rule does not look at.
    pub omitted_arguments: Vec<String>,
    /// Remarks for the person who stores it.
    pub notes: Vec<String>,
}

/// Asks for the decision about a recorded call, then and now. Nothing is called and nothing is recorded.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRecordedCall {
    /// The call.
    #[schema(value_type = String)]
    pub call_id: CallId,
    /// The arguments of the call, if you know them: records do not hold them.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
}

/// The decision about a recorded call, then and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallExplanation {
    /// The record of the decision.
    pub record: AuditView,
    /// The decision as it was recorded.
    pub then: PolicyExplanation,
    /// The decision as it would be now; absent when it cannot be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<PolicyExplanation>,
    /// The reason why `now` is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now_missing: Option<String>,
    /// Whether decision or reason have changed.
    pub changed: bool,
    /// Whether the policy is that of then.
    pub same_policy: bool,
    /// Whether the catalogue of tools is that of then.
    pub same_catalogue: bool,
}
