//! The registry of settings: the key of each, the values that it takes, and what it is for. A setting that is not here is refused.

use std::ops::RangeInclusive;

use crate::{
    budget::{CURRENCY_SETTING, TASK_DEFAULT_SETTING},
    delivery::AUTHOR_SETTING,
};

/// Maximum bytes of the artifacts of one task.
pub const ARTIFACT_BYTES_SETTING: &str = "artifacts.max_bytes_per_task";
/// Rate limit of one agent's tool calls, per second.
pub const GATEWAY_CALLS_PER_SECOND_SETTING: &str = "gateway.calls_per_second";
/// Quota of tool calls of one task, per hour.
pub const GATEWAY_CALLS_PER_TASK_HOUR_SETTING: &str = "gateway.calls_per_task_hour";
/// How often an agent may repeat the same tool call.
pub const GATEWAY_MAX_IDENTICAL_CALLS_SETTING: &str = "gateway.max_identical_calls";
/// Whether the project manager may change the allowed images.
pub const GATEWAY_PM_ALLOWED_IMAGES_SETTING: &str = "gateway.pm_allowed_images";
/// How many analysts work at once.
pub const MAX_CONCURRENT_ANALYSTS_SETTING: &str = "manager.max_concurrent_analysts";
/// How many seconds a model may take for one decision. A model's own value overrides it.
pub const THINK_TIMEOUT_SETTING: &str = "manager.think_timeout_seconds";
/// The model that answers where nothing else chooses one.
pub const DEFAULT_MODEL_SETTING: &str = "models.default";
/// How many identical model calls a task may make in a row.
pub const LOOP_GUARD_IDENTICAL_CALLS_SETTING: &str = "models.loop_guard.max_identical_calls";
/// How many model calls a task may make without progress.
pub const LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING: &str =
    "models.loop_guard.max_calls_without_progress";
/// How many millionths of the currency a task may spend in a minute.
pub const LOOP_GUARD_COST_PER_MINUTE_SETTING: &str = "models.loop_guard.max_cost_micros_per_minute";
/// Whether notification channels may lead into private networks.
pub const NOTIFICATIONS_ALLOW_PRIVATE_SETTING: &str = "notifications.allow_private";
/// Whether the reconciler reclaims jobs although most workers are silent.
pub const FORCE_RECLAIM_SETTING: &str = "workflow.force_reclaim";

/// The values of [`THINK_TIMEOUT_SETTING`] and of a model's own think time.
pub const THINK_TIMEOUT_SECONDS_RANGE: RangeInclusive<i64> = 1..=3600;

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// True or false.
    Switch,
    /// A whole number from the first to the second.
    Number(i64, i64),
    /// The id of a model.
    Model,
    /// A name and an address.
    Author,
    /// The code of a currency.
    Currency,
    /// An amount of money, or none.
    TaskLimit,
}

/// A cache that a write of the setting invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidatedCache {
    /// The policy that every gateway holds.
    Policy,
    /// The registry of models and budgets.
    ModelRegistry,
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingSpec {
    /// Its key.
    pub key: &'static str,
    /// The values that it takes.
    pub kind: SettingKind,
    /// What it decides, in one sentence.
    pub summary: &'static str,
    /// The cache that a write of it invalidates.
    pub invalidates: Option<InvalidatedCache>,
}

const fn spec(key: &'static str, kind: SettingKind, summary: &'static str) -> SettingSpec {
    SettingSpec { key, kind, summary, invalidates: None }
}

impl SettingSpec {
    const fn of_policy(self) -> Self {
        Self { invalidates: Some(InvalidatedCache::Policy), ..self }
    }

    const fn of_models(self) -> Self {
        Self { invalidates: Some(InvalidatedCache::ModelRegistry), ..self }
    }
}

/// Every setting, ordered by key.
pub static SETTINGS: [SettingSpec; 16] = [
    spec(
        ARTIFACT_BYTES_SETTING,
        SettingKind::Number(1, 1 << 50),
        "Maximum bytes of the artifacts of one task.",
    ),
    spec(CURRENCY_SETTING, SettingKind::Currency, "The currency of all prices and limits."),
    spec(
        TASK_DEFAULT_SETTING,
        SettingKind::TaskLimit,
        "The budget of a task that is created without one.",
    )
    .of_models(),
    spec(AUTHOR_SETTING, SettingKind::Author, "The author of commits that CyNode makes."),
    spec(
        GATEWAY_CALLS_PER_SECOND_SETTING,
        SettingKind::Number(1, 1_000_000),
        "Rate limit: tool calls of one agent per second.",
    )
    .of_policy(),
    spec(
        GATEWAY_CALLS_PER_TASK_HOUR_SETTING,
        SettingKind::Number(1, 1_000_000),
        "Quota: tool calls of one task per hour.",
    )
    .of_policy(),
    spec(
        GATEWAY_MAX_IDENTICAL_CALLS_SETTING,
        SettingKind::Number(1, 1_000_000),
        "How often an agent may repeat the same tool call.",
    )
    .of_policy(),
    spec(
        GATEWAY_PM_ALLOWED_IMAGES_SETTING,
        SettingKind::Switch,
        "Whether the project manager may change the images that sandboxes may use.",
    )
    .of_policy(),
    spec(
        MAX_CONCURRENT_ANALYSTS_SETTING,
        SettingKind::Number(0, 1000),
        "How many project analysts work at once.",
    ),
    spec(
        THINK_TIMEOUT_SETTING,
        SettingKind::Number(
            *THINK_TIMEOUT_SECONDS_RANGE.start(),
            *THINK_TIMEOUT_SECONDS_RANGE.end(),
        ),
        "How many seconds a model may take for one decision of the project manager. A model's own value overrides it.",
    )
    .of_models(),
    spec(
        DEFAULT_MODEL_SETTING,
        SettingKind::Model,
        "The model that answers where nothing else chooses one.",
    )
    .of_models(),
    spec(
        LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING,
        SettingKind::Number(1, 2_147_483_647),
        "Loop guard: how many model calls a task may make without progress.",
    )
    .of_models(),
    spec(
        LOOP_GUARD_COST_PER_MINUTE_SETTING,
        SettingKind::Number(1, i64::MAX),
        "Loop guard: how many millionths of the currency a task may spend in a minute.",
    )
    .of_models(),
    spec(
        LOOP_GUARD_IDENTICAL_CALLS_SETTING,
        SettingKind::Number(1, 2_147_483_647),
        "Loop guard: how many identical model calls a task may make in a row.",
    )
    .of_models(),
    spec(
        NOTIFICATIONS_ALLOW_PRIVATE_SETTING,
        SettingKind::Switch,
        "Whether notification channels may lead to this machine and into private networks.",
    ),
    spec(
        FORCE_RECLAIM_SETTING,
        SettingKind::Switch,
        "Whether the reconciler reclaims overdue jobs although most workers are silent.",
    ),
];

/// The setting with this key.
pub fn find_setting(key: &str) -> Option<&'static SettingSpec> {
    SETTINGS.iter().find(|spec| spec.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_ordered_by_key_and_each_is_there_once() {
        assert!(SETTINGS.windows(2).all(|pair| pair[0].key < pair[1].key));
    }
}
