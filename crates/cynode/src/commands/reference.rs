//! `cynode reference`: generates reference pages from the code. `just gen` writes them, and CI compares them with the committed
//! ones.

use std::{collections::BTreeMap, fmt::Display, path::Path, process::ExitCode};

use anyhow::Context;
use cynode_api::problems::PROBLEMS;
use cynode_core::{
    events::EventKind,
    metric_specs::METRICS,
    settings::registry::{SETTINGS, SettingDefault},
};
use cynode_policy::reasons::REFUSALS;

use crate::config::{self, ConfigSources, CynodeConfig, EffectiveSetting};

/// Writes every page into a directory.
pub(crate) fn write_reference(directory: &Path) -> anyhow::Result<ExitCode> {
    let pages = [
        ("configuration.md", render_configuration()?),
        ("errors.md", render_errors()),
        ("events.md", render_events()),
        ("metrics.md", render_metrics()),
        ("refusals.md", render_refusals()),
        ("settings.md", render_settings()),
    ];
    for (name, text) in pages {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the line that marks a page as generated and names its source file.
fn render_origin(source: &str) -> String {
    format!("`just gen` writes this page from `{source}`.")
}

fn render_table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![format!("| {} |", head.join(" | ")), format!("|{}", "---|".repeat(N))];
    lines.extend(rows.into_iter().map(|row| {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        format!("| {} |", cells.join(" | "))
    }));
    lines.join("\n")
}

fn code_span(text: impl Display) -> String {
    format!("`{text}`")
}

/// Renders the sections in the order in which they are read, with the rows of each.
fn render_configuration() -> anyhow::Result<String> {
    let loaded = CynodeConfig::load_from(ConfigSources::default())?;
    let mut order = Vec::new();
    let mut sections: BTreeMap<&str, Vec<[String; 4]>> = BTreeMap::new();
    for EffectiveSetting { key, variable, value, .. } in &loaded.effective {
        let section = key.split('.').next().unwrap_or_default();
        if !order.contains(&section) {
            order.push(section);
        }
        let default =
            if value == config::UNSET_VALUE { "not set".to_owned() } else { code_span(value) };
        let meaning = config::key_meaning(key);
        let meaning = meaning.with_context(|| format!("{key} has no comment"))?;
        let row = [code_span(key), default, code_span(variable), meaning];
        sections.entry(section).or_default().push(row);
    }
    let tables = order.into_iter().map(|section| {
        let rows = sections.remove(section).unwrap_or_default();
        let table = render_table(["key", "default", "environment", "meaning"], rows);
        format!("## {section}\n\n{table}\n")
    });
    let tables = tables.collect::<Vec<_>>().join("\n");
    let origin = render_origin("crates/cynode/config.default.toml");
    Ok(format!(
        "# Configuration

This page lists every configuration key of the program `cynode`, with its default, its environment variable and its meaning.

A flag (`--set server.listen=127.0.0.1:8080`) wins over the file, the file over the environment, and the environment over the default. \
The file is TOML; `--config FILE` or the variable `CYNODE_CONFIG` names it. `cynode` refuses unknown keys and reports all problems at once. \
It clamps a number that is outside its bounds and logs a warning. `cynode config check` prints the effective values, and \
`cynode config default` prints a file with every key. What an admin changes while CyNode runs is a [setting](settings.md).

{origin}

{tables}"
    ))
}

fn render_settings() -> String {
    let rows = SETTINGS.iter().map(|spec| {
        let default = match spec.default {
            SettingDefault::Unset => spec.default.to_string(),
            SettingDefault::Number(_) | SettingDefault::Value(_) => code_span(spec.default),
        };
        [code_span(spec.key), spec.kind.describe_expected(), default, spec.summary.to_owned()]
    });
    let table = render_table(["setting", "values", "default", "meaning"], rows);
    let origin = render_origin("crates/cynode-core/src/settings/registry.rs");
    format!(
        "# Settings

This page lists every setting of an installation, with its values, its default and its meaning.

A setting holds for the whole installation. The database stores it with its history, and an admin changes it while CyNode runs: \
`cynork settings set KEY VALUE`. A change takes effect at once. The server refuses unknown settings and values that do not fit. \
What is needed before there is a database is a [configuration key](configuration.md); what differs by user, project or task is a \
[preference](preferences.md).

{origin}

{table}
"
    )
}

fn render_errors() -> String {
    let entries = PROBLEMS.iter().map(|problem| {
        let status = problem.status.as_u16();
        let reason = problem.status.canonical_reason().unwrap_or_default();
        format!(
            "## {}\n\nStatus {status} {reason}, type `{}`.\n\n{}\n\nWhat to do: {}\n",
            problem.code,
            problem.type_urn(),
            problem.meaning,
            problem.action,
        )
    });
    let entries = entries.collect::<Vec<_>>().join("\n");
    let origin = render_origin("crates/cynode-api/src/problems.rs");
    format!(
        "# Error codes

This page lists every error code of the HTTP API, with its status, its meaning and what to do.

The server answers a failed request with a problem document (RFC 9457, `application/problem+json`). To find its entry here, take its \
`code`: each heading of this page is a code, so `not_found` is at [errors.md#not_found](#not_found). The `type` is \
`urn:cynode:problem:` followed by the same code. `detail` says what was wrong with this request, `fix` says what to do next where \
the server knows it, and `trace_id` is in every log line of the request. `cynork --json` prints the code of a failed request, too.

Endpoints for models (`/v1/chat/completions`, `/v1/responses`, `/v1/messages`) answer with errors in the form of the provider's API instead. \
Refusals of tool calls are results of the call: see [refusals](refusals.md).

{origin}

{entries}"
    )
}

fn render_refusals() -> String {
    let rows = REFUSALS.iter().map(|spec| {
        let stage = code_span(spec.stage.as_str());
        [code_span(spec.code), stage, spec.summary.to_owned(), spec.advice.to_owned()]
    });
    let table = render_table(["code", "step", "meaning", "advice to the caller"], rows);
    let origin = render_origin("crates/cynode-policy/src/reasons.rs");
    format!(
        "# Refusals of the gateway

This page lists every reason for which the gateway refuses a tool call, with the step of the decision that refused it.

The result of a refused call has `isError: true` and an object `structuredContent.refused` with `code` and `step` as in this table. \
Audit records have the same code. `cynork tool explain` shows which step would refuse a call, without making it. The \
[gateway](../explanation/gateway.md) page explains the steps; the table has them in their order.

{origin}

{table}
"
    )
}

fn render_events() -> String {
    let rows =
        EventKind::ALL.iter().map(|kind| [code_span(kind.as_str()), kind.summary().to_owned()]);
    let table = render_table(["event", "meaning"], rows);
    let origin = render_origin("crates/cynode-core/src/events.rs");
    format!(
        "# Events

This page lists every kind of event that CyNode records.

An operation records its event in the same transaction as its change. `GET /v1/events` is the stream of events, and `cynork events` prints it. \
A reader sees the events of the projects that it may see, and must accept kinds that it does not know.

{origin}

{table}
"
    )
}

fn render_metrics() -> String {
    let rows = METRICS.iter().map(|spec| {
        let labels = spec.labels.iter().map(code_span).collect::<Vec<_>>().join(", ");
        [code_span(spec.name), spec.kind.as_str().to_owned(), labels, spec.meaning.to_owned()]
    });
    let table = render_table(["metric", "type", "labels", "meaning"], rows);
    let origin = render_origin("crates/cynode-core/src/metric_specs.rs");
    format!(
        "# Metrics

This page lists every metric of the server, with its type, its labels and its meaning.

`GET /metrics` on the user port answers in the text format of Prometheus, to callers who have at least the role `viewer` in the installation; \
`cynork metrics` prints the same. The numbers are those of one process, since its start.

{origin}

{table}
"
    )
}
