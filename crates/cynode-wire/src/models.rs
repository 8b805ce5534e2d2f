//! Models, as people see and change them: providers, keys, models, ceilings, usage.

use cynode_core::{
    budget::Amount,
    ids::{BudgetId, CallId, ProjectId, ProviderId, ProviderKeyId, TaskId, UserId},
    models::{Basis, CallOutcome, Dialect, ModelPrices, ParkKind, Period, ProviderKind, Tier},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// Describes a provider of models.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetProvider {
    /// `compatible`, `openai`, `anthropic`, `scripted`, `record` or `replay`.
    #[schema(value_type = String, example = "compatible")]
    pub kind: ProviderKind,
    /// How it is spoken to: `chat`, `responses` or `messages`. Without it: what the kind usually speaks.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub dialect: Option<Dialect>,
    /// Its address up to and including `/v1`.
    #[serde(default)]
    #[schema(example = "http://127.0.0.1:11434/v1")]
    pub base_url: Option<String>,
    /// Whether nothing leaves what you own; decides what `prefer_local` means. Without it: whether the address is a private one.
    #[serde(default)]
    pub local: Option<bool>,
    /// Whether it is used; yes when it is left out.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// The answers of a `scripted` provider.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub script: Option<Value>,
    /// The provider whose answers a `record` provider keeps.
    #[serde(default)]
    pub recorded_provider: Option<String>,
    /// The name of the kept answers, of a `record` or a `replay` provider.
    #[serde(default)]
    pub cassette: Option<String>,
}

/// A provider of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderView {
    /// Its id.
    #[schema(value_type = String)]
    pub provider_id: ProviderId,
    /// What people call it.
    pub name: String,
    /// What kind of place it is.
    #[schema(value_type = String)]
    pub kind: ProviderKind,
    /// How it is spoken to.
    #[schema(value_type = String)]
    pub dialect: Dialect,
    /// Its address.
    pub base_url: Option<String>,
    /// The provider whose answers are kept.
    pub recorded_provider: Option<String>,
    /// The name of the kept answers.
    pub cassette: Option<String>,
    /// Whether nothing leaves what you own.
    pub local: bool,
    /// Whether it is used.
    pub enabled: bool,
    /// Its keys; they cannot be read back.
    pub keys: Vec<ProviderKeyView>,
    /// The labels of the keys that this change dropped, because the kind or the origin of the provider is another one.
    /// Give them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_keys: Vec<String>,
}

/// Gives a provider a key.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddProviderKey {
    /// What you call it.
    pub label: String,
    /// The key. It is stored encrypted and never shown again.
    #[schema(value_type = String)]
    pub key: SecretText,
}

/// A key of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderKeyView {
    /// Its id.
    #[schema(value_type = String)]
    pub key_id: ProviderKeyId,
    /// What people call it.
    pub label: String,
    /// Until when it rests because its quota is used up.
    #[serde(with = "time::serde::rfc3339::option")]
    pub parked_until: Option<OffsetDateTime>,
    /// What the provider said.
    pub parked_reason: Option<String>,
    /// When it was given.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Describes a model.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that a model can do or not")]
pub struct SetModel {
    /// What people call it; its id when it is left out.
    #[serde(default)]
    pub title: Option<String>,
    /// `fast`, `standard` or `deep`: it then answers to `cynodeai.fast` and so on.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub tier: Option<Tier>,
    /// Most tokens of a conversation.
    pub context_tokens: i64,
    /// Most tokens of an answer.
    pub max_output_tokens: i64,
    /// Whether it calls tools.
    #[serde(default)]
    pub tools: bool,
    /// Whether it sees images.
    #[serde(default)]
    pub images: bool,
    /// Whether it keeps to a JSON schema.
    #[serde(default)]
    pub json_schema: bool,
    /// Whether it takes skills.
    #[serde(default)]
    pub skills: bool,
    /// Whether it is offered; yes when it is left out.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// The only project whose calls may use it; all when it is left out.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// How many seconds an answer to the project manager may take, 1 to 3600; `manager.think_timeout_seconds` when it is left out.
    #[serde(default)]
    pub think_seconds: Option<i32>,
    /// The ways to it, in the order in which they are tried.
    pub routes: Vec<RouteView>,
}

/// A way to a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteView {
    /// The provider's name.
    pub provider: String,
    /// What the model is called there.
    pub upstream: String,
    /// What it costs there, in millionths of the currency for a million tokens; nothing when it is left out.
    #[serde(default)]
    #[schema(value_type = PricesView)]
    pub prices: ModelPrices,
}

/// Prices, for the document.
#[derive(ToSchema)]
#[schema(as = Prices)]
pub struct PricesView {
    /// Tokens that are read.
    pub input: u64,
    /// Tokens that the provider had kept.
    pub cached: u64,
    /// Tokens that the provider keeps.
    pub cache_write: u64,
    /// Tokens that are written.
    pub output: u64,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that a model can do or not")]
pub struct ModelView {
    /// The id that clients use.
    pub id: String,
    /// What people call it.
    pub title: String,
    /// How able it is.
    #[schema(value_type = Option<String>)]
    pub tier: Option<Tier>,
    /// Most tokens of a conversation.
    pub context_tokens: i64,
    /// Most tokens of an answer.
    pub max_output_tokens: i64,
    /// Whether it calls tools.
    pub tools: bool,
    /// Whether it sees images.
    pub images: bool,
    /// Whether it keeps to a JSON schema.
    pub json_schema: bool,
    /// Whether it takes skills.
    pub skills: bool,
    /// Whether it is offered.
    pub enabled: bool,
    /// The only project whose calls may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// How many seconds an answer to the project manager may take, where it is not what holds for all models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think_seconds: Option<i32>,
    /// The ways to it.
    pub routes: Vec<RouteView>,
}

/// Whose spending a ceiling is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScopeType {
    /// Everybody's.
    Installation,
    /// One user's.
    User,
    /// One project's.
    Project,
    /// One task's.
    Task,
}

/// Sets a ceiling.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBudget {
    /// Whose spending.
    pub scope_type: BudgetScopeType,
    /// The user, project or task.
    #[serde(default)]
    pub scope_id: Option<String>,
    /// `total`, `day` or `month`.
    #[schema(value_type = String)]
    pub period: Period,
    /// Most money, in millionths of the installation's currency.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    pub max_cost_micros: Option<Amount>,
    /// Most model tokens, in and out together.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    pub max_tokens: Option<Amount>,
}

/// A ceiling and how near it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetStatusView {
    /// Its id.
    #[schema(value_type = String)]
    pub budget_id: BudgetId,
    /// Whose spending.
    pub scope_type: BudgetScopeType,
    /// The user, project or task.
    pub scope_id: Option<String>,
    /// Over which time.
    #[schema(value_type = String)]
    pub period: Period,
    /// When the present period began.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Most money, in millionths.
    #[schema(value_type = Option<u64>)]
    pub max_cost_micros: Option<Amount>,
    /// Most tokens.
    #[schema(value_type = Option<u64>)]
    pub max_tokens: Option<Amount>,
    /// What was spent, in millionths.
    pub spent_micros: i64,
    /// What calls under way may still spend, in millionths.
    pub reserved_micros: i64,
    /// Tokens that were used.
    pub spent_tokens: i64,
    /// Tokens that calls under way may still use.
    pub reserved_tokens: i64,
    /// Where it comes from.
    #[serde(default)]
    pub source: BudgetSource,
}

/// Where a ceiling comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetSource {
    /// It came with the installation or with the account; nobody has changed it since.
    Default,
    /// It came with its task: what was asked for, or the setting `budget.task_default`.
    Task,
    /// A person set it.
    #[default]
    Person,
}

/// Which model would be asked for each tier, and why no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelChoices {
    /// In which project; outside of all when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// By an agent of which role; by a person when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_role: Option<String>,
    /// The tiers.
    pub tiers: Vec<TierChoice>,
    /// What keeps any model from being asked: ceilings without room.
    pub blockers: Vec<String>,
}

/// Which model would be asked for a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierChoice {
    /// The tier.
    #[schema(value_type = String)]
    pub tier: Tier,
    /// The id that asks for it.
    pub model_id: String,
    /// The model that would be asked now; none when there is none.
    pub model: Option<String>,
    /// The tier whose model stands in, where none of this one can be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub fallback_tier: Option<Tier>,
    /// The models of the tier: those that may be asked in their order, then those that may not.
    pub choices: Vec<ModelChoice>,
}

/// A model, and why it would be asked or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelChoice {
    /// Its id.
    pub model: String,
    /// The provider that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// What the model is called there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Whether it is of one project alone.
    pub project_specific: bool,
    /// Its place in the order, from 1; none when it may not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Whether it is the one that would be asked now.
    pub selected: bool,
    /// Why it stands where it stands.
    pub reason: String,
}

/// Why a task may not think now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ParkView {
    /// `quota`, `repeats`, `no_progress` or `spend_rate`.
    #[schema(value_type = String)]
    pub kind: ParkKind,
    /// Why, in words.
    pub reason: String,
    /// When the clock ends it; without it a person does.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub until: Option<OffsetDateTime>,
}

/// The sum of some calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageSum {
    /// What they have in common.
    pub key: Option<String>,
    /// How many.
    pub calls: i64,
    /// How many of them were not answered.
    pub failed: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Of these, from a provider's cache.
    pub cached_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// What they cost, in millionths of the currency.
    pub cost_micros: i64,
}

/// The sum of the calls of one step of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsagePoint {
    /// Begin of the step, in UTC.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// What the calls have in common, if they were grouped.
    pub key: Option<String>,
    /// Number of calls.
    pub calls: i64,
    /// Number of calls that were not answered.
    pub failed: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Cost in millionths of the currency.
    pub cost_micros: i64,
}

/// One call of a model. What was said is not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageCall {
    /// Its id.
    #[schema(value_type = String)]
    pub call_id: CallId,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// By whom.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// In which project.
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// For which task.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// In which role, if it was an agent.
    pub agent_role: Option<String>,
    /// The trace it belongs to.
    pub trace_id: String,
    /// Which model was asked for.
    pub model: String,
    /// Who answered.
    pub provider: String,
    /// How it ended.
    #[schema(value_type = String)]
    pub outcome: CallOutcome,
    /// What went wrong.
    pub error: Option<String>,
    /// What the numbers rest on.
    #[schema(value_type = String)]
    pub basis: Basis,
    /// Tokens read.
    pub input_tokens: i64,
    /// Of these, from a provider's cache.
    pub cached_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Of these, spent on reasoning.
    pub reasoning_tokens: i64,
    /// What it cost, in millionths of the currency.
    pub cost_micros: i64,
    /// How many secrets were replaced in what was asked.
    pub redactions: i32,
    /// Milliseconds until the answer began.
    pub first_byte_ms: Option<i32>,
    /// Milliseconds until it ended.
    pub duration_ms: Option<i32>,
}
