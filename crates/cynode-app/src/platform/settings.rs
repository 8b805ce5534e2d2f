//! System settings. They hold no secrets: credentials are configured by file or environment, or stored sealed by their
//! own module. A write invalidates the cached policy and routing that depend on it.

use cynode_core::{
    budget::{self, Currency},
    delivery::CommitAuthor,
    events::EventKind,
    names::{DottedKey, nearest_name},
    roles::UserRole,
    settings::{
        ExpectedVersion, ValueChange, VersionedValue,
        registry::{
            DISABLE_LOCAL_LOGIN_SETTING, InvalidatedCache, MAX_SETTING_NAME_BYTES,
            MAX_SETTING_NAMES, SETTINGS, SettingKind, find_setting,
        },
        validate_stored_value,
    },
};
use cynode_db::{Conn, identity::identity_providers, platform::settings};
use cynode_net::url_policy::{UrlPolicy, validate_public_url};
use serde_json::{Value, json};

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation},
};

/// Lists all settings.
#[tracing::instrument(name = "app.settings.list_settings", skip_all)]
#[operation]
pub async fn list_settings(ctx: &mut Ctx) -> Result<Vec<VersionedValue>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    Ok(settings::list_settings(ctx.conn()).await?)
}

/// Returns one setting.
#[tracing::instrument(name = "app.settings.get_setting", skip_all, fields(setting.key = %key))]
#[operation]
pub async fn get_setting(ctx: &mut Ctx, key: &DottedKey) -> Result<VersionedValue, Error> {
    ctx.require_role(UserRole::Viewer)?;
    settings::get_setting(ctx.conn(), key).await?.ok_or_else(|| Error::not_found("setting", key))
}

/// Returns the present value of a known setting.
pub(crate) async fn setting_value(conn: &mut Conn, name: &str) -> Result<Option<Value>, Error> {
    let key = name.parse().map_err(|_| Error::Conflict("a setting's name is wrong"))?;
    Ok(settings::get_setting(conn, &key).await?.map(|set| set.value))
}

/// Returns the present number of a known setting, or its default.
pub(crate) async fn setting_number(
    conn: &mut Conn,
    name: &str,
    default: i64,
) -> Result<i64, Error> {
    let set = setting_value(conn, name).await?;
    Ok(set.and_then(|value| value.as_i64()).unwrap_or(default))
}

/// Returns the present names of a known setting; none when it is not set. A value that is no list of names is an error: read as none,
/// it would forbid nothing.
pub(crate) async fn setting_names(conn: &mut Conn, name: &str) -> Result<Vec<String>, Error> {
    match setting_value(conn, name).await? {
        Some(value) => serde_json::from_value(value).map_err(|error| Error::Internal(error.into())),
        None => Ok(Vec::new()),
    }
}

/// Lists all writes of a setting.
#[tracing::instrument(name = "app.settings.list_setting_changes", skip_all, fields(setting.key = %key))]
#[operation]
pub async fn list_setting_changes(
    ctx: &mut Ctx,
    key: &DottedKey,
) -> Result<Vec<ValueChange>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    Ok(settings::setting_history(ctx.conn(), key).await?)
}

/// Rejects to switch passwords off where no admin could log in by an identity provider.
async fn require_other_login(ctx: &mut Ctx) -> Result<(), Error> {
    if identity_providers::has_provider_admin(ctx.conn()).await? {
        return Ok(());
    }
    Err(Error::Conflict(
        "no admin could log in any more: set up an identity provider, link the account of an admin or map a group with the role, and log in by it first",
    ))
}

/// Writes a setting. Optimistic locking: a concurrent write is a version conflict.
#[tracing::instrument(name = "app.settings.set_setting", skip_all, fields(setting.key = %key))]
#[operation]
pub async fn set_setting(
    ctx: &mut Ctx,
    key: &DottedKey,
    value: &Value,
    expected: ExpectedVersion,
) -> Result<VersionedValue, Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    validate_stored_value(value).map_err(|error| Error::Invalid(error.to_string()))?;
    validate_setting(key.as_str(), value)?;
    if key.as_str() == DISABLE_LOCAL_LOGIN_SETTING && *value == Value::Bool(true) {
        require_other_login(ctx).await?;
    }
    let now = ctx.now;
    match settings::set_setting(ctx.conn(), key, value, expected, caller.user, now).await {
        Ok(Some(written)) => {
            invalidate_routing(ctx, key).await?;
            let data = json!({ "key": key, "version": written.version });
            ctx.record_event(EventDraft::new(EventKind::SettingSet, data)).await?;
            invalidate_policy(ctx, key).await?;
            Ok(written)
        }
        Ok(None) => {
            let there = settings::get_setting(ctx.conn(), key).await?;
            Err(version_error(key, expected, there))
        }
        // A deletion happened between our read and our write.
        Err(error) if error.is_refused_by("system_settings_history_pkey") => {
            Err(version_error(key, expected, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Deletes a setting. Optimistic locking: a concurrent write is a version conflict.
#[tracing::instrument(name = "app.settings.delete_setting", skip_all, fields(setting.key = %key))]
#[operation]
pub async fn delete_setting(ctx: &mut Ctx, key: &DottedKey, version: i64) -> Result<(), Error> {
    let caller = ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    if !settings::delete_setting(ctx.conn(), key, version, caller.user, now).await? {
        let there = settings::get_setting(ctx.conn(), key).await?;
        return Err(match there {
            None => Error::not_found("setting", key),
            there => version_error(key, ExpectedVersion::Version(version), there),
        });
    }
    invalidate_routing(ctx, key).await?;
    let data = json!({ "key": key, "version": version + 1 });
    ctx.record_event(EventDraft::new(EventKind::SettingDeleted, data)).await?;
    invalidate_policy(ctx, key).await
}

/// Rejects an unknown setting and a value that does not fit its setting. Both would be ignored.
fn validate_setting(key: &str, value: &Value) -> Result<(), Error> {
    let spec = find_setting(key).ok_or_else(|| unknown_setting_error(key))?;
    let fits = match spec.kind {
        SettingKind::Switch => value.is_boolean(),
        SettingKind::Number(min, max) => {
            value.as_i64().is_some_and(|number| (min..=max).contains(&number))
        }
        SettingKind::Model => value.as_str().is_some_and(|id| !id.is_empty()),
        SettingKind::Author => {
            value.as_str().is_some_and(|text| text.parse::<CommitAuthor>().is_ok())
        }
        SettingKind::Currency => {
            value.as_str().is_some_and(|code| code.parse::<Currency>().is_ok())
        }
        SettingKind::TaskLimit => budget::parse_task_default(value).is_ok(),
        SettingKind::Names => is_name_list(value),
        SettingKind::Choices(words) => is_choice_list(value, words),
        SettingKind::Url => value.as_str().is_some_and(is_web_address),
        SettingKind::Choice(words) => value.as_str().is_some_and(|word| words.contains(&word)),
    };
    if fits {
        return Ok(());
    }
    Err(Error::Invalid(format!("`{key}` is {}", spec.kind.describe_expected())))
}

/// Returns whether the text is an address that a request of the installation may go to.
fn is_web_address(text: &str) -> bool {
    let policy = UrlPolicy { allow_private: true, allow_plaintext: true, allow_fragment: false };
    text.parse().is_ok_and(|url| validate_public_url(&url, policy).is_ok())
}

/// Returns whether the value is a list of names that a setting takes.
fn is_name_list(value: &Value) -> bool {
    let is_name = |item: &Value| {
        item.as_str().is_some_and(|name| {
            (1..=MAX_SETTING_NAME_BYTES).contains(&name.len())
                && name.chars().all(|c| !c.is_whitespace() && !c.is_control())
        })
    };
    value
        .as_array()
        .is_some_and(|names| names.len() <= MAX_SETTING_NAMES && names.iter().all(is_name))
}

/// Returns whether the value is a list of some of these words.
fn is_choice_list(value: &Value, words: &[&str]) -> bool {
    let is_known = |item: &Value| item.as_str().is_some_and(|word| words.contains(&word));
    value.as_array().is_some_and(|items| items.iter().all(is_known))
}

fn invalidated_cache(key: &DottedKey) -> Option<InvalidatedCache> {
    find_setting(key.as_str())?.invalidates
}

/// Returns the error for an unknown setting, with the most similar known name.
fn unknown_setting_error(key: &str) -> Error {
    Error::Invalid(match nearest_name(key, SETTINGS.iter().map(|spec| spec.key)) {
        Some(known) => format!("there is no setting `{key}`; is `{known}` meant?"),
        None => {
            let names = SETTINGS.map(|spec| format!("`{}`", spec.key)).join(", ");
            format!("there is no setting `{key}`; there are {names}")
        }
    })
}

/// Invalidates the cached policy of every replica, if the setting is part of it.
async fn invalidate_policy(ctx: &mut Ctx, key: &DottedKey) -> Result<(), Error> {
    if invalidated_cache(key) == Some(InvalidatedCache::Policy) {
        ctx.invalidate_policy().await?;
    }
    Ok(())
}

/// Returns the version conflict of a concurrent write.
pub(crate) fn version_error(
    key: &DottedKey,
    expected: ExpectedVersion,
    there: Option<VersionedValue>,
) -> Error {
    let actual = there.map_or(0, |value| value.version);
    Error::VersionConflict { key: key.to_string(), expected: expected.version_number(), actual }
}

/// Returns the currency of all prices and budgets.
pub(crate) async fn currency_setting(conn: &mut Conn) -> Result<Currency, Error> {
    Ok(Currency::from_setting(setting_value(conn, budget::CURRENCY_SETTING).await?.as_ref()))
}

/// Returns the budget of a task that is created without one.
pub(crate) async fn default_task_budget(conn: &mut Conn) -> Result<Option<budget::Amount>, Error> {
    Ok(budget::default_task_limit(
        setting_value(conn, budget::TASK_DEFAULT_SETTING).await?.as_ref(),
    ))
}

/// Invalidates the cached model registry of every replica, if the setting is part of it.
async fn invalidate_routing(ctx: &mut Ctx, key: &DottedKey) -> Result<(), Error> {
    if invalidated_cache(key) == Some(InvalidatedCache::ModelRegistry) {
        ctx.invalidate_models().await?;
    }
    Ok(())
}
