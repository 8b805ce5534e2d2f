//! Settings of the whole system. They hold no secrets: what opens a door is configured by file or
//! environment, or stored encrypted by its own capability.

use cynode_core::{
    events::EventKind,
    names::DottedKey,
    roles::Role,
    settings::{Change, Expected, Versioned, fits},
};
use cynode_db::settings;
use serde_json::{Value, json};

use crate::{Ctx, Error, context::Told, gate};

/// All settings.
#[tracing::instrument(name = "app.settings.list", skip_all)]
pub async fn list(ctx: &mut Ctx) -> Result<Vec<Versioned>, Error> {
    ctx.require(Role::Viewer)?;
    Ok(settings::list(ctx.conn()).await?)
}

/// One setting.
#[tracing::instrument(name = "app.settings.get", skip_all, fields(setting.key = %key))]
pub async fn get(ctx: &mut Ctx, key: &DottedKey) -> Result<Versioned, Error> {
    ctx.require(Role::Viewer)?;
    settings::get(ctx.conn(), key).await?.ok_or_else(|| Error::not_found("setting", key))
}

/// All writes of a setting.
#[tracing::instrument(name = "app.settings.history", skip_all, fields(setting.key = %key))]
pub async fn history(ctx: &mut Ctx, key: &DottedKey) -> Result<Vec<Change>, Error> {
    ctx.require(Role::Viewer)?;
    Ok(settings::history(ctx.conn(), key).await?)
}

/// Writes a setting, if nobody wrote it in between.
#[tracing::instrument(name = "app.settings.set", skip_all, fields(setting.key = %key))]
pub async fn set(
    ctx: &mut Ctx,
    key: &DottedKey,
    value: &Value,
    expected: Expected,
) -> Result<Versioned, Error> {
    let caller = ctx.require(Role::Admin)?;
    fits(value).map_err(|error| Error::Invalid(error.to_string()))?;
    gate::fits(key.as_str(), value)?;
    let now = ctx.now;
    match settings::set(ctx.conn(), key, value, expected, caller.user, now).await {
        Ok(Some(written)) => {
            routed_by(ctx, key).await?;
            let data = json!({ "key": key, "version": written.version });
            ctx.record(Told::new(EventKind::SettingSet, data)).await?;
            tell_the_gate(ctx, key).await?;
            Ok(written)
        }
        Ok(None) => {
            let there = settings::get(ctx.conn(), key).await?;
            Err(version_error(key, expected, there))
        }
        // A deletion slipped in between our look and our write.
        Err(error) if error.refused_by("system_settings_history_pkey") => {
            Err(version_error(key, expected, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Deletes a setting, if nobody wrote it in between.
#[tracing::instrument(name = "app.settings.delete", skip_all, fields(setting.key = %key))]
pub async fn delete(ctx: &mut Ctx, key: &DottedKey, version: i64) -> Result<(), Error> {
    let caller = ctx.require(Role::Admin)?;
    let now = ctx.now;
    if !settings::delete(ctx.conn(), key, version, caller.user, now).await? {
        let there = settings::get(ctx.conn(), key).await?;
        return Err(match there {
            None => Error::not_found("setting", key),
            there => version_error(key, Expected::Version(version), there),
        });
    }
    routed_by(ctx, key).await?;
    let data = json!({ "key": key, "version": version + 1 });
    ctx.record(Told::new(EventKind::SettingDeleted, data)).await?;
    tell_the_gate(ctx, key).await
}

/// What the gate goes by reaches every replica at once.
async fn tell_the_gate(ctx: &mut Ctx, key: &DottedKey) -> Result<(), Error> {
    if gate::concerns(key.as_str()) {
        cynode_db::gate::changed(ctx.conn()).await?;
    }
    Ok(())
}

/// Somebody else wrote in between.
pub(crate) fn version_error(
    key: &DottedKey,
    expected: Expected,
    there: Option<Versioned>,
) -> Error {
    let actual = there.map_or(0, |value| value.version);
    Error::Version { key: key.to_string(), expected: expected.number(), actual }
}

/// Notes that questions to models are to be routed anew, if the setting is one that they are routed by.
async fn routed_by(ctx: &mut Ctx, key: &DottedKey) -> Result<(), Error> {
    if key.as_str().starts_with("models.") {
        cynode_db::models::changed(ctx.conn()).await?;
    }
    Ok(())
}
