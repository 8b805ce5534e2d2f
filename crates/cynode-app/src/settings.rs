//! Settings of the whole system. They hold no secrets: what opens a door is configured by file or
//! environment, or stored encrypted by its own capability.

use cynode_core::{
    delivery::{AUTHOR_SETTING, Author},
    events::EventKind,
    names::DottedKey,
    roles::Role,
    settings::{Change, Expected, Versioned, fits},
};
use cynode_db::{Conn, settings};
use serde_json::{Value, json};

use crate::{Ctx, Error, artifacts, context::Told, gate, handoffs, inference, notices, sweep};

/// What a setting holds.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// True or false.
    Switch,
    /// A whole number from the first to the second.
    Number(i64, i64),
    /// The id of a model.
    Model,
    /// A name and an address.
    Author,
}

/// Every setting that somebody reads, and what it holds. Another would be written and never looked at.
static KNOWN: [(&str, Kind); 13] = [
    (AUTHOR_SETTING, Kind::Author),
    (gate::CALLS_PER_SECOND, Kind::Number(1, 1_000_000)),
    (gate::CALLS_PER_TASK_HOUR, Kind::Number(1, 1_000_000)),
    (gate::IDENTICAL_CALLS, Kind::Number(1, 1_000_000)),
    (gate::IMAGES, Kind::Switch),
    (artifacts::TASK_BYTES, Kind::Number(1, 1 << 50)),
    (handoffs::ANALYSTS, Kind::Number(0, 1000)),
    (inference::CALLS, Kind::Number(1, 2_147_483_647)),
    (inference::PER_MINUTE, Kind::Number(1, i64::MAX)),
    (inference::REPEATS, Kind::Number(1, 2_147_483_647)),
    (inference::DEFAULT, Kind::Model),
    (notices::ALLOW_PRIVATE, Kind::Switch),
    (sweep::ANYWAY, Kind::Switch),
];

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

/// What a setting of ours holds now, for whoever goes by it.
pub(crate) async fn value(conn: &mut Conn, name: &str) -> Result<Option<Value>, Error> {
    let key = name.parse().map_err(|_| Error::Conflict("a setting's name is wrong"))?;
    Ok(settings::get(conn, &key).await?.map(|set| set.value))
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
    held_by(key.as_str(), value)?;
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

/// Refuses what would be ignored: a setting that nobody reads, and a value that its setting cannot hold.
fn held_by(key: &str, value: &Value) -> Result<(), Error> {
    let Some((_, kind)) = KNOWN.iter().find(|(known, _)| *known == key) else {
        return Err(unknown(key));
    };
    let rule = match *kind {
        Kind::Switch if !value.is_boolean() => "true or false".to_owned(),
        Kind::Number(least, most)
            if value.as_i64().is_none_or(|number| !(least..=most).contains(&number)) =>
        {
            format!("{least} to {most}")
        }
        Kind::Model if value.as_str().is_none_or(str::is_empty) => "the id of a model".to_owned(),
        Kind::Author if value.as_str().is_none_or(|text| text.parse::<Author>().is_err()) => {
            "written `Name <address>`".to_owned()
        }
        Kind::Switch | Kind::Number(..) | Kind::Model | Kind::Author => return Ok(()),
    };
    Err(Error::Invalid(format!("`{key}` is {rule}")))
}

/// There is no such setting, but perhaps one with nearly its name.
fn unknown(key: &str) -> Error {
    let nearest = KNOWN.iter().map(|(known, _)| (apart(key, known), *known)).min();
    Error::Invalid(match nearest {
        Some((steps, known)) if steps <= known.len() / 3 => {
            format!("there is no setting `{key}`; is `{known}` meant?")
        }
        _ => {
            let names = KNOWN.map(|(known, _)| format!("`{known}`")).join(", ");
            format!("there is no setting `{key}`; there are {names}")
        }
    })
}

/// How many letters are to be put in, taken out or changed to make one name of the other.
fn apart(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, here) in one.bytes().enumerate() {
        let mut corner = line;
        row[0] = line + 1;
        for (at, there) in other.bytes().enumerate() {
            let changed = corner + usize::from(here != there);
            corner = row[at + 1];
            row[at + 1] = changed.min(corner + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
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
