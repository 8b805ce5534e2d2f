//! Values with versions: what `cynork prefs` and `cynork settings` have in common.

use clap::Args;
use cynode_wire::settings::{ChangeView, ValueView};
use serde_json::{Value, json};

use crate::{
    client::Call,
    context::Context,
    failure::{Kind, Result},
    given,
    look::{Look, plain},
};

/// A value that is written.
#[derive(Args)]
pub(crate) struct NewValue {
    /// What it is about, such as `gate.calls_per_second`.
    pub(crate) key: String,
    /// JSON, or plain text when it is none; `@FILE` takes it from a file, `@-` from standard input.
    value: String,
    #[command(flatten)]
    expect: Expect,
}

/// A value that is deleted.
#[derive(Args)]
pub(crate) struct OldValue {
    /// What it is about.
    pub(crate) key: String,
    #[command(flatten)]
    expect: Expect,
}

/// The version that is expected.
#[derive(Args)]
pub(crate) struct Expect {
    /// The version that you saw, 0 for none: whoever wrote in between is a conflict. Read first when it is left out.
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,
}

impl Expect {
    /// The version that was said, or the one that is there now.
    async fn version(&self, context: &Context, get: &Call) -> Result<u64> {
        if let Some(version) = self.expect {
            return Ok(version);
        }
        match context.ask(get).await {
            Ok(value) => Ok(value["version"].as_u64().unwrap_or(0)),
            Err(failure) if failure.kind == Kind::NotFound => Ok(0),
            Err(failure) => Err(failure),
        }
    }
}

fn key(value: &ValueView) -> String {
    value.key.to_string()
}

/// Lists values.
pub(crate) async fn list(context: &Context, call: &Call) -> Result<()> {
    context
        .list(
            call,
            None,
            key,
            ["key", "value", "version", "written", "by"],
            |it: &ValueView, look| {
                [
                    look.bold(it.key.as_str()),
                    plain(&it.value),
                    it.version.to_string(),
                    look.when(it.updated_at),
                    look.dim(&it.updated_by.to_string()),
                ]
            },
        )
        .await
}

/// Shows one; names only, it is the value itself.
pub(crate) async fn get(context: &Context, call: &Call) -> Result<()> {
    let sides = |it: &ValueView, look: &Look| {
        vec![
            ("key", look.bold(it.key.as_str())),
            ("value", plain(&it.value)),
            ("version", it.version.to_string()),
            ("written", look.when(it.updated_at)),
            ("by", it.updated_by.to_string()),
        ]
    };
    context.one(call, |it: &ValueView| plain(&it.value), sides).await
}

/// Writes one, if nobody wrote it in between.
pub(crate) async fn set(context: &Context, get: &Call, put: Call, set: &NewValue) -> Result<()> {
    let value = given::value(&given::words(&set.value)?);
    let version = set.expect.version(context, get).await?;
    let call = put.body(&json!({ "value": value, "expected_version": version }));
    let sentence = |it: &ValueView, _: &Look| {
        format!("{} is {} (version {})", it.key, plain(&it.value), it.version)
    };
    context.told(&call, key, sentence).await
}

/// Deletes one, if nobody wrote it in between.
pub(crate) async fn delete(
    context: &Context,
    get: &Call,
    call: Call,
    delete: &OldValue,
) -> Result<()> {
    let version = delete.expect.version(context, get).await?;
    context.sure(&format!("Delete {}?", delete.key))?;
    let call = call.query("expected_version", Some(version));
    context.done(&call, &format!("{} is deleted; what is more general holds", delete.key)).await
}

/// Lists every write of one, newest first.
pub(crate) async fn history(context: &Context, call: &Call) -> Result<()> {
    let name = |it: &ChangeView| it.version.to_string();
    context
        .list(call, None, name, ["version", "value", "written", "by"], |it: &ChangeView, look| {
            let said = it.value.as_ref().map_or_else(|| look.dim("deleted"), plain);
            [
                look.bold(&it.version.to_string()),
                said,
                look.when(it.changed_at),
                look.dim(&it.changed_by.to_string()),
            ]
        })
        .await
}

/// A value of a map, and where it comes from.
pub(crate) fn held(effective: &Value, sources: &Value, look: &Look) -> Vec<[String; 3]> {
    let rows = effective.as_object().into_iter().flatten().map(|(key, value)| {
        let source = &sources[key];
        let from = source["scope_type"].as_str().unwrap_or_default();
        let id = source["scope_id"].as_str().unwrap_or_default();
        [look.bold(key), plain(value), format!("{from} {}", look.dim(id)).trim().to_owned()]
    });
    rows.collect()
}
