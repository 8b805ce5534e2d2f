//! Versioned values: the common part of `cynork prefs` and `cynork settings`.

use clap::Args;
use cynode_wire::platform::settings::{ChangeView, ValueView};
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliErrorKind, Result},
    format::{ValueFormatter, to_plain_text},
    input,
};

/// A value to set.
#[derive(Args)]
pub(crate) struct NewValue {
    /// Key, such as `gateway.calls_per_second`.
    pub(crate) key: String,
    /// Value as JSON, or plain text if it is not JSON; `@FILE` reads a file, `@-` reads standard input.
    value: String,
    #[command(flatten)]
    expect: ExpectedVersionArgs,
}

/// A value to delete.
#[derive(Args)]
pub(crate) struct OldValue {
    /// Key.
    pub(crate) key: String,
    #[command(flatten)]
    expect: ExpectedVersionArgs,
}

/// The version that is expected.
#[derive(Args)]
pub(crate) struct ExpectedVersionArgs {
    /// Version that you expect, 0 for none; another version is a conflict. Defaults to the current version.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<u64>,
}

impl ExpectedVersionArgs {
    /// Returns the given version, or the present one.
    async fn resolve_version(&self, context: &CliContext, get: &ApiRequest) -> Result<u64> {
        if let Some(version) = self.expected_version {
            return Ok(version);
        }
        match context.send_request(get).await {
            Ok(value) => Ok(value["version"].as_u64().unwrap_or(0)),
            Err(failure) if failure.kind == CliErrorKind::NotFound => Ok(0),
            Err(failure) => Err(failure),
        }
    }
}

fn value_key(value: &ValueView) -> String {
    value.key.to_string()
}

/// Lists values.
pub(crate) async fn list_values(context: &CliContext, call: &ApiRequest) -> Result<()> {
    context
        .show_list(
            call,
            None,
            value_key,
            ["key", "value", "version", "written", "by"],
            |it: &ValueView, look| {
                [
                    look.style_bold(it.key.as_str()),
                    to_plain_text(&it.value),
                    it.version.to_string(),
                    look.format_relative_time(it.updated_at),
                    look.style_dim(&it.updated_by.to_string()),
                ]
            },
        )
        .await
}

/// Shows one value; with names only, the value itself.
pub(crate) async fn show_value(context: &CliContext, call: &ApiRequest) -> Result<()> {
    let sides = |it: &ValueView, look: &ValueFormatter| {
        vec![
            ("key", look.style_bold(it.key.as_str())),
            ("value", to_plain_text(&it.value)),
            ("version", it.version.to_string()),
            ("written", look.format_relative_time(it.updated_at)),
            ("by", it.updated_by.to_string()),
        ]
    };
    context.show_item(call, |it: &ValueView| to_plain_text(&it.value), sides).await
}

/// Writes a value, unless another writer changed it in between.
pub(crate) async fn write_value(
    context: &CliContext,
    get: &ApiRequest,
    put: ApiRequest,
    set: &NewValue,
) -> Result<()> {
    let value = input::parse_json_or_text(&input::read_text_argument(&set.value)?);
    let version = set.expect.resolve_version(context, get).await?;
    let call = put.with_json_body(&json!({ "value": value, "expected_version": version }));
    let sentence = |it: &ValueView, _: &ValueFormatter| {
        format!("{} is {} (version {})", it.key, to_plain_text(&it.value), it.version)
    };
    context.show_outcome(&call, value_key, sentence).await
}

/// Deletes a value, unless another writer changed it in between.
pub(crate) async fn delete_value(
    context: &CliContext,
    get: &ApiRequest,
    call: ApiRequest,
    delete: &OldValue,
) -> Result<()> {
    let version = delete.expect.resolve_version(context, get).await?;
    context.confirm_action(&format!("Delete {}?", delete.key))?;
    let call = call.with_query("expected_version", Some(version));
    context
        .send_and_confirm(&call, &format!("{} is deleted; what is more general holds", delete.key))
        .await
}

/// Lists every write of a value, newest first.
pub(crate) async fn list_history(context: &CliContext, call: &ApiRequest) -> Result<()> {
    let name = |it: &ChangeView| it.version.to_string();
    context
        .show_list(
            call,
            None,
            name,
            ["version", "value", "written", "by"],
            |it: &ChangeView, look| {
                let said =
                    it.value.as_ref().map_or_else(|| look.style_dim("deleted"), to_plain_text);
                [
                    look.style_bold(&it.version.to_string()),
                    said,
                    look.format_relative_time(it.changed_at),
                    look.style_dim(&it.changed_by.to_string()),
                ]
            },
        )
        .await
}

/// Returns the effective values of a map, with their source.
pub(crate) fn effective_rows(
    effective: &Value,
    sources: &Value,
    look: &ValueFormatter,
) -> Vec<[String; 3]> {
    let rows = effective.as_object().into_iter().flatten().map(|(key, value)| {
        let source = &sources[key];
        let from = source["scope_type"].as_str().unwrap_or_default();
        let id = source["scope_id"].as_str().unwrap_or_default();
        let from =
            if source["policy"] == true { format!("policy of {from}") } else { from.to_owned() };
        [
            look.style_bold(key),
            to_plain_text(value),
            format!("{from} {}", look.style_dim(id)).trim().to_owned(),
        ]
    });
    rows.collect()
}
