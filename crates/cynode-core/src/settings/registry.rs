//! The registry of settings: the key of each, the values that it takes, and what it is for. A setting that is not here is refused.

use std::ops::RangeInclusive;

use crate::{
    budget::{CURRENCY_SETTING, TASK_DEFAULT_SETTING, USER_DEFAULT_SETTING},
    delivery::AUTHOR_SETTING,
    memory::{
        AcceptanceRule,
        prompts::{DEFAULT_PROMPT_TOKENS, MAX_PROMPT_TOKENS},
    },
    policies::ApprovalKind,
};

/// Approvals that need a second person in the whole installation.
pub const FOUR_EYES_SETTING: &str = "approvals.four_eyes";
/// Maximum bytes of the artifacts of one task.
pub const ARTIFACT_BYTES_SETTING: &str = "artifacts.max_bytes_per_task";
/// Whether admins have their role only with a second factor.
pub const ADMIN_SECOND_FACTOR_SETTING: &str = "auth.admins_need_second_factor";
/// Hours for which API keys of a person work whom an identity provider confirmed last.
pub const KEY_CONFIRMATION_SETTING: &str = "auth.api_key_confirmation_hours";
/// Days until a new API key expires that says nothing about it.
pub const API_KEY_DAYS_SETTING: &str = "auth.api_key_days";
/// Most days that a new API key may ask for.
pub const MAX_API_KEY_DAYS_SETTING: &str = "auth.api_key_max_days";
/// Minutes without a request after which a session ends.
pub const SESSION_IDLE_SETTING: &str = "auth.session_idle_minutes";
/// Whether set-up of environments gets the secrets of projects.
pub const ENVIRONMENT_SECRETS_SETTING: &str = "environments.allow_secrets";
/// Packages that the package proxies of nodes refuse.
pub const FORBIDDEN_PACKAGES_SETTING: &str = "packages.forbidden";
/// Licences whose packages the package proxies of nodes refuse.
pub const FORBIDDEN_LICENCES_SETTING: &str = "packages.forbidden_licences";
/// Minimum age of a package's version, in days.
pub const MIN_PACKAGE_AGE_SETTING: &str = "packages.min_age_days";
/// Rate limit of one agent's tool calls, per second.
pub const GATEWAY_CALLS_PER_SECOND_SETTING: &str = "gateway.calls_per_second";
/// Quota of tool calls of one task, per hour.
pub const GATEWAY_CALLS_PER_TASK_HOUR_SETTING: &str = "gateway.calls_per_task_hour";
/// How often an agent may repeat the same tool call.
pub const GATEWAY_MAX_IDENTICAL_CALLS_SETTING: &str = "gateway.max_identical_calls";
/// Whether the project manager may change the allowed images.
pub const GATEWAY_PM_ALLOWED_IMAGES_SETTING: &str = "gateway.pm_allowed_images";
/// Whether nobody can log in with a password of this installation.
pub const DISABLE_LOCAL_LOGIN_SETTING: &str = "login.disable_local";
/// For how many minutes sessions of an identity provider go on while it cannot be reached.
pub const PROVIDER_GRACE_SETTING: &str = "login.provider_grace_minutes";
/// How many analysts work at once.
pub const MAX_CONCURRENT_ANALYSTS_SETTING: &str = "manager.max_concurrent_analysts";
/// How many seconds a model may take for one decision. A model's own value overrides it.
pub const THINK_TIMEOUT_SETTING: &str = "manager.think_timeout_seconds";
/// Which proposals of agents for memory are accepted without a person.
pub const MEMORY_ACCEPT_SETTING: &str = "memory.accept";
/// How many records the memory of a project holds under one profile at most.
pub const MEMORY_MAX_RECORDS_SETTING: &str = "memory.max_records_per_partition";
/// After how many days a proposal for memory goes that nobody decided.
pub const MEMORY_PROPOSAL_DAYS_SETTING: &str = "memory.proposal_days";
/// Whether what ended tasks leave is recorded in memory.
pub const MEMORY_AUTO_SETTING: &str = "memory.auto";
/// How many tokens of a prompt records of memory may take.
pub const MEMORY_PROMPT_TOKENS_SETTING: &str = "memory.prompt_tokens";
/// How many seconds a model call waits for calls in progress before a budget refuses it.
pub const BUDGET_WAIT_SETTING: &str = "models.budget_wait_seconds";
/// The model that answers where nothing else chooses one.
pub const DEFAULT_MODEL_SETTING: &str = "models.default";
/// How many identical model calls a task may make in a row.
pub const LOOP_GUARD_IDENTICAL_CALLS_SETTING: &str = "models.loop_guard.max_identical_calls";
/// How many model calls a task may make without progress.
pub const LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING: &str =
    "models.loop_guard.max_calls_without_progress";
/// How many millionths of the currency a task may spend in a minute.
pub const LOOP_GUARD_COST_PER_MINUTE_SETTING: &str = "models.loop_guard.max_cost_micros_per_minute";
/// Whether providers in a private network may fetch the URLs of media.
pub const PROVIDER_FETCHES_MEDIA_SETTING: &str = "models.private_providers_fetch_media";
/// Whether notification channels may lead into private networks.
pub const NOTIFICATIONS_ALLOW_PRIVATE_SETTING: &str = "notifications.allow_private";
/// How many skills an agent is given at most for one piece of work.
pub const SKILLS_PER_UNIT_SETTING: &str = "skills.max_per_unit";
/// Maximum bytes of the artifacts and other blobs of one project.
pub const PROJECT_BLOB_BYTES_SETTING: &str = "storage.max_blob_bytes_per_project";
/// Maximum bytes of the repository of one project, on disk.
pub const PROJECT_REPOSITORY_BYTES_SETTING: &str = "storage.max_repository_bytes_per_project";
/// How many days the files of a task are kept after its end.
pub const TASK_RETENTION_SETTING: &str = "storage.task_retention_days";
/// How many tool servers a project has at most.
pub const SERVERS_PER_PROJECT_SETTING: &str = "tools.max_servers_per_project";
/// How many tool servers a user has at most for their own agents.
pub const SERVERS_PER_USER_SETTING: &str = "tools.max_servers_per_user";
/// Search provider that agents search the web with.
pub const WEB_SEARCH_URL_SETTING: &str = "web.search_url";
/// Whether the reconciler reclaims jobs although most workers are silent.
pub const FORCE_RECLAIM_SETTING: &str = "workflow.force_reclaim";

/// The default of [`ARTIFACT_BYTES_SETTING`].
pub const DEFAULT_TASK_ARTIFACT_BYTES: i64 = 1024 * 1024 * 1024;
/// The default of [`KEY_CONFIRMATION_SETTING`].
pub const DEFAULT_KEY_CONFIRMATION_HOURS: i64 = 24;
/// The default of [`API_KEY_DAYS_SETTING`].
pub const DEFAULT_API_KEY_DAYS: i64 = 90;
/// The default of [`MAX_API_KEY_DAYS_SETTING`].
pub const DEFAULT_MAX_API_KEY_DAYS: i64 = 3650;
/// The default of [`SESSION_IDLE_SETTING`].
pub const DEFAULT_SESSION_IDLE_MINUTES: i64 = 60;
/// The default of [`PROJECT_BLOB_BYTES_SETTING`].
pub const DEFAULT_PROJECT_BLOB_BYTES: i64 = 20 * 1024 * 1024 * 1024;
/// The default of [`PROJECT_REPOSITORY_BYTES_SETTING`].
pub const DEFAULT_PROJECT_REPOSITORY_BYTES: i64 = 20 * 1024 * 1024 * 1024;
/// The default of [`TASK_RETENTION_SETTING`].
pub const DEFAULT_TASK_RETENTION_DAYS: i64 = 90;
/// The default of [`GATEWAY_CALLS_PER_SECOND_SETTING`].
pub const DEFAULT_CALLS_PER_SECOND: u32 = 50;
/// The default of [`GATEWAY_CALLS_PER_TASK_HOUR_SETTING`].
pub const DEFAULT_CALLS_PER_TASK_HOUR: u32 = 20_000;
/// The default of [`GATEWAY_MAX_IDENTICAL_CALLS_SETTING`].
pub const DEFAULT_IDENTICAL_CALLS: u32 = 20;
/// The default of [`PROVIDER_GRACE_SETTING`].
pub const DEFAULT_PROVIDER_GRACE_MINUTES: i64 = 10;
/// The default of [`MAX_CONCURRENT_ANALYSTS_SETTING`].
pub const DEFAULT_CONCURRENT_ANALYSTS: i64 = 4;
/// The default of [`BUDGET_WAIT_SETTING`].
pub const DEFAULT_BUDGET_WAIT_SECONDS: u32 = 30;
/// The default of [`LOOP_GUARD_IDENTICAL_CALLS_SETTING`].
pub const DEFAULT_LOOP_GUARD_IDENTICAL_CALLS: i32 = 10;
/// The default of [`LOOP_GUARD_CALLS_WITHOUT_PROGRESS_SETTING`].
pub const DEFAULT_LOOP_GUARD_CALLS_WITHOUT_PROGRESS: i32 = 500;
/// The default of [`LOOP_GUARD_COST_PER_MINUTE_SETTING`].
pub const DEFAULT_LOOP_GUARD_COST_PER_MINUTE: i64 = 5_000_000;
/// The default of [`MEMORY_ACCEPT_SETTING`].
pub const DEFAULT_MEMORY_ACCEPT: AcceptanceRule = AcceptanceRule::SameTask;
/// The default of [`MEMORY_MAX_RECORDS_SETTING`].
pub const DEFAULT_MEMORY_MAX_RECORDS: i64 = 200_000;
/// The default of [`MEMORY_PROPOSAL_DAYS_SETTING`].
pub const DEFAULT_MEMORY_PROPOSAL_DAYS: i64 = 30;
/// The default of [`SKILLS_PER_UNIT_SETTING`].
pub const DEFAULT_SKILLS_PER_UNIT: i64 = 3;
/// The default of [`SERVERS_PER_PROJECT_SETTING`].
pub const DEFAULT_SERVERS_PER_PROJECT: i64 = 20;
/// The default of [`SERVERS_PER_USER_SETTING`].
pub const DEFAULT_SERVERS_PER_USER: i64 = 10;

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
    /// A list of names.
    Names,
    /// A list of some of these words.
    Choices(&'static [&'static str]),
    /// An address, http or https, also in a private network.
    Url,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// Maximum number of names of a setting.
pub const MAX_SETTING_NAMES: usize = 200;
/// Maximum length of a name of a setting, in bytes.
pub const MAX_SETTING_NAME_BYTES: usize = 300;

impl SettingKind {
    /// The values that it takes, in words.
    pub fn describe_expected(self) -> String {
        match self {
            Self::Switch => "true or false".to_owned(),
            Self::Number(min, max) => format!("{min} to {max}"),
            Self::Model => "the id of a model".to_owned(),
            Self::Author => "written `Name <address>`".to_owned(),
            Self::Currency => {
                "an ISO 4217 code of three capital letters, such as \"USD\" or \"EUR\"".to_owned()
            }
            Self::TaskLimit => {
                "an amount above 0 with at most six decimals, such as 5 or 2.50, or \"none\""
                    .to_owned()
            }
            Self::Names => format!(
                "a list of at most {MAX_SETTING_NAMES} names, each of 1 to {MAX_SETTING_NAME_BYTES} visible characters without spaces"
            ),
            Self::Choices(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("a list of some of {}", words.join(", "))
            }
            Self::Url => "an address with http or https, without a password and without a fragment"
                .to_owned(),
            Self::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                format!("one of {}", words.join(", "))
            }
        }
    }
}

/// The value that holds where nobody has set one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingDefault {
    /// There is none.
    Unset,
    /// This number.
    Number(i64),
    /// This value, as it is written.
    Value(&'static str),
}

impl std::fmt::Display for SettingDefault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unset => f.write_str("not set"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Value(text) => f.write_str(text),
        }
    }
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
    /// The value that holds where nobody has set one.
    pub default: SettingDefault,
    /// What it decides, in one sentence.
    pub summary: &'static str,
    /// The cache that a write of it invalidates.
    pub invalidates: Option<InvalidatedCache>,
}

const fn spec(key: &'static str, kind: SettingKind, summary: &'static str) -> SettingSpec {
    let default = match kind {
        SettingKind::Switch => SettingDefault::Value("false"),
        SettingKind::Names | SettingKind::Choices(_) => SettingDefault::Value("[]"),
        SettingKind::Number(..)
        | SettingKind::Model
        | SettingKind::Url
        | SettingKind::Choice(_)
        | SettingKind::Author
        | SettingKind::Currency
        | SettingKind::TaskLimit => SettingDefault::Unset,
    };
    SettingSpec { key, kind, default, summary, invalidates: None }
}

impl SettingSpec {
    const fn with_number(self, default: i64) -> Self {
        Self { default: SettingDefault::Number(default), ..self }
    }

    const fn with_value(self, default: &'static str) -> Self {
        Self { default: SettingDefault::Value(default), ..self }
    }

    const fn of_policy(self) -> Self {
        Self { invalidates: Some(InvalidatedCache::Policy), ..self }
    }

    const fn of_models(self) -> Self {
        Self { invalidates: Some(InvalidatedCache::ModelRegistry), ..self }
    }
}

/// Every setting, ordered by key.
pub static SETTINGS: [SettingSpec; 43] = [
    spec(
        FOUR_EYES_SETTING,
        SettingKind::Choices(&ApprovalKind::NAMES),
        "Approvals that need another person than the one who asked for the work, in the whole installation.",
    ),
    spec(
        ARTIFACT_BYTES_SETTING,
        SettingKind::Number(1, 1 << 50),
        "Maximum bytes of the artifacts of one task.",
    )
    .with_number(DEFAULT_TASK_ARTIFACT_BYTES),
    spec(
        ADMIN_SECOND_FACTOR_SETTING,
        SettingKind::Switch,
        "Whether an admin of the installation has the role only in sessions and keys that a second factor stands behind.",
    ),
    spec(
        KEY_CONFIRMATION_SETTING,
        SettingKind::Number(1, 2160),
        "Hours after the last word of the identity provider for which API keys work of a person who logs in by it alone, where the server has no token to ask it again.",
    )
    .with_number(DEFAULT_KEY_CONFIRMATION_HOURS),
    spec(
        API_KEY_DAYS_SETTING,
        SettingKind::Number(1, 3650),
        "Days until a new API key expires that names no expiry.",
    )
    .with_number(DEFAULT_API_KEY_DAYS),
    spec(
        MAX_API_KEY_DAYS_SETTING,
        SettingKind::Number(1, 3650),
        "Maximum days until a new API key expires.",
    )
    .with_number(DEFAULT_MAX_API_KEY_DAYS),
    spec(
        SESSION_IDLE_SETTING,
        SettingKind::Number(5, 43_200),
        "Minutes without a request after which a session ends. An open event stream is no request, and what a page loads by itself is none either.",
    )
    .with_number(DEFAULT_SESSION_IDLE_MINUTES),
    spec(CURRENCY_SETTING, SettingKind::Currency, "The currency of all prices and limits.")
        .with_value("USD"),
    spec(
        TASK_DEFAULT_SETTING,
        SettingKind::TaskLimit,
        "The budget of a task that is created without one.",
    )
    .with_value("5")
    .of_models(),
    spec(
        USER_DEFAULT_SETTING,
        SettingKind::TaskLimit,
        "The monthly budget that a new user begins with.",
    )
    .with_value("20"),
    spec(AUTHOR_SETTING, SettingKind::Author, "The author of commits that CyNode makes.")
        .with_value("CyNode <cynode@localhost>"),
    spec(
        ENVIRONMENT_SECRETS_SETTING,
        SettingKind::Switch,
        "Whether the set-up of an accepted environment gets the secrets of the project that it names.",
    ),
    spec(
        GATEWAY_CALLS_PER_SECOND_SETTING,
        SettingKind::Number(1, 1_000_000),
        "Rate limit: tool calls of one agent per second.",
    )
    .with_number(DEFAULT_CALLS_PER_SECOND as i64)
    .of_policy(),
    spec(
        GATEWAY_CALLS_PER_TASK_HOUR_SETTING,
        SettingKind::Number(1, 1_000_000),
        "Quota: tool calls of one task per hour.",
    )
    .with_number(DEFAULT_CALLS_PER_TASK_HOUR as i64)
    .of_policy(),
    spec(
        GATEWAY_MAX_IDENTICAL_CALLS_SETTING,
        SettingKind::Number(1, 1_000_000),
        "How often an agent may repeat the same tool call.",
    )
    .with_number(DEFAULT_IDENTICAL_CALLS as i64)
    .of_policy(),
    spec(
        GATEWAY_PM_ALLOWED_IMAGES_SETTING,
        SettingKind::Switch,
        "Whether the project manager may change the images that sandboxes may use.",
    )
    .of_policy(),
    spec(
        DISABLE_LOCAL_LOGIN_SETTING,
        SettingKind::Switch,
        "Whether nobody can log in with a password: people use an identity provider, and the command on the host stays for emergencies.",
    ),
    spec(
        PROVIDER_GRACE_SETTING,
        SettingKind::Number(0, 1440),
        "For how many minutes sessions of an identity provider go on while it cannot be reached.",
    )
    .with_number(DEFAULT_PROVIDER_GRACE_MINUTES),
    spec(
        MAX_CONCURRENT_ANALYSTS_SETTING,
        SettingKind::Number(0, 1000),
        "How many project analysts work at once.",
    )
    .with_number(DEFAULT_CONCURRENT_ANALYSTS),
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
        MEMORY_ACCEPT_SETTING,
        SettingKind::Choice(AcceptanceRule::NAMES),
        "What an agent remembers: \"person\": it is found only after a person accepted it; \"same_task\": the same task finds it at once, others after a person accepted it; \"all\": everybody finds it at once.",
    )
    .with_value(DEFAULT_MEMORY_ACCEPT.as_str()),
    spec(
        MEMORY_AUTO_SETTING,
        SettingKind::Switch,
        "Whether the summary of an ended task and the findings of its reviews are recorded in the memory of its project, under its profile.",
    )
    .with_value("true"),
    spec(
        MEMORY_MAX_RECORDS_SETTING,
        SettingKind::Number(1, 2_000_000),
        "Quota: how many records the memory of a project holds under one profile at most.",
    )
    .with_number(DEFAULT_MEMORY_MAX_RECORDS),
    spec(
        MEMORY_PROMPT_TOKENS_SETTING,
        SettingKind::Number(0, MAX_PROMPT_TOKENS as i64),
        "How many tokens of a prompt what a project knows may take, as an estimate; 0: agents are given nothing and search for themselves.",
    )
    .with_number(DEFAULT_PROMPT_TOKENS as i64),
    spec(
        MEMORY_PROPOSAL_DAYS_SETTING,
        SettingKind::Number(1, 3650),
        "After how many days what an agent proposed for memory is removed if nobody decided.",
    )
    .with_number(DEFAULT_MEMORY_PROPOSAL_DAYS),
    spec(
        BUDGET_WAIT_SETTING,
        SettingKind::Number(0, 300),
        "How many seconds a model call waits for calls in progress before a budget refuses it.",
    )
    .with_number(DEFAULT_BUDGET_WAIT_SECONDS as i64)
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
    .with_number(DEFAULT_LOOP_GUARD_CALLS_WITHOUT_PROGRESS as i64)
    .of_models(),
    spec(
        LOOP_GUARD_COST_PER_MINUTE_SETTING,
        SettingKind::Number(1, i64::MAX),
        "Loop guard: how many millionths of the currency a task may spend in a minute.",
    )
    .with_number(DEFAULT_LOOP_GUARD_COST_PER_MINUTE)
    .of_models(),
    spec(
        LOOP_GUARD_IDENTICAL_CALLS_SETTING,
        SettingKind::Number(1, 2_147_483_647),
        "Loop guard: how many identical model calls a task may make in a row.",
    )
    .with_number(DEFAULT_LOOP_GUARD_IDENTICAL_CALLS as i64)
    .of_models(),
    spec(
        PROVIDER_FETCHES_MEDIA_SETTING,
        SettingKind::Switch,
        "Whether compatible providers and providers in a private network may fetch the URLs of media that people send.",
    )
    .of_models(),
    spec(
        NOTIFICATIONS_ALLOW_PRIVATE_SETTING,
        SettingKind::Switch,
        "Whether notification channels may lead to this machine and into private networks.",
    ),
    spec(
        FORBIDDEN_PACKAGES_SETTING,
        SettingKind::Names,
        "Packages that jobs may not fetch, such as \"npm:left-pad\", or \"pypi:requests==2.0\" for one version.",
    ),
    spec(
        FORBIDDEN_LICENCES_SETTING,
        SettingKind::Names,
        "Licences whose packages jobs may not fetch, as SPDX identifiers such as \"AGPL-3.0-only\".",
    ),
    spec(
        MIN_PACKAGE_AGE_SETTING,
        SettingKind::Number(0, 3650),
        "Minimum age of a package's version in days; a version whose age is unknown is refused if it is above 0.",
    )
    .with_number(0),
    spec(
        SKILLS_PER_UNIT_SETTING,
        SettingKind::Number(0, 10),
        "How many skills an agent is given at most for one piece of work; 0: none.",
    )
    .with_number(DEFAULT_SKILLS_PER_UNIT),
    spec(
        PROJECT_BLOB_BYTES_SETTING,
        SettingKind::Number(1, 1 << 50),
        "Maximum bytes of the artifacts, bundles and other blobs of one project.",
    )
    .with_number(DEFAULT_PROJECT_BLOB_BYTES),
    spec(
        PROJECT_REPOSITORY_BYTES_SETTING,
        SettingKind::Number(1, 1 << 50),
        "Maximum bytes of the repository of one project on disk.",
    )
    .with_number(DEFAULT_PROJECT_REPOSITORY_BYTES),
    spec(
        TASK_RETENTION_SETTING,
        SettingKind::Number(1, 36_500),
        "How many days the commits, bundles and artifacts of a task's jobs are kept after its end.",
    )
    .with_number(DEFAULT_TASK_RETENTION_DAYS),
    spec(
        SERVERS_PER_PROJECT_SETTING,
        SettingKind::Number(0, 10_000),
        "Quota: how many tool servers a project has at most.",
    )
    .with_number(DEFAULT_SERVERS_PER_PROJECT),
    spec(
        SERVERS_PER_USER_SETTING,
        SettingKind::Number(0, 10_000),
        "Quota: how many tool servers a user has at most for their own agents.",
    )
    .with_number(DEFAULT_SERVERS_PER_USER),
    spec(
        WEB_SEARCH_URL_SETTING,
        SettingKind::Url,
        "Address of the search provider that `web.search` asks with `?q=…&format=json`, such as a SearXNG. The gateway reaches a private one only if `egress.allow_private` names it.",
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
    use crate::{
        budget::{Currency, default_task_limit, default_user_limit, parse_task_default},
        delivery::CommitAuthor,
    };

    #[test]
    fn settings_are_ordered_by_key_and_each_is_there_once() {
        assert!(SETTINGS.windows(2).all(|pair| pair[0].key < pair[1].key));
    }

    #[test]
    fn defaults_in_words_are_the_defaults_of_their_types() {
        let default = |key: &str| find_setting(key).unwrap().default.to_string();
        assert_eq!(default(CURRENCY_SETTING), Currency::default().to_string());
        assert_eq!(default(AUTHOR_SETTING), CommitAuthor::default().to_string());
        let limit: serde_json::Value =
            serde_json::from_str(&default(TASK_DEFAULT_SETTING)).unwrap();
        assert_eq!(parse_task_default(&limit).unwrap(), default_task_limit(None));
        let limit: serde_json::Value =
            serde_json::from_str(&default(USER_DEFAULT_SETTING)).unwrap();
        assert_eq!(parse_task_default(&limit).unwrap(), default_user_limit(None));
    }

    #[test]
    fn a_default_number_is_a_value_that_the_setting_takes() {
        for spec in &SETTINGS {
            if let (SettingKind::Number(min, max), SettingDefault::Number(number)) =
                (spec.kind, spec.default)
            {
                assert!((min..=max).contains(&number), "{}", spec.key);
            }
        }
    }
}
