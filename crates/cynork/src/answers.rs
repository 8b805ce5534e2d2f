//! Requests and the display of their responses: raw JSON for programs; a table, a record or a sentence for people.

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    client::{ApiRequest, ListResponse},
    context::CliContext,
    failure::{CliError, Result},
    format::{ValueFormatter, escape_invisible, escape_invisible_in_json, to_pretty_json},
    output::{
        CliOutput, CliOutputFormat, print_line, print_stderr_line, render_record, render_table,
    },
    terminal::TextStyle,
};

/// Maximum size of a page.
const MAX_PAGE_SIZE: u32 = 200;

/// Which page of a list.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    /// Maximum number of items, 1 to 200.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PAGE_SIZE)))]
    limit: Option<u32>,
    /// Continue after a page, by its `next_cursor`.
    #[arg(long)]
    cursor: Option<String>,
    /// Fetch every page.
    #[arg(long, conflicts_with_all = ["limit", "cursor"])]
    all: bool,
}

impl PageArgs {
    /// Sets a default limit, if the user gave none.
    pub(crate) fn or_limit(mut self, limit: u32) -> Self {
        self.limit = self.limit.or(Some(limit));
        self
    }

    /// Fetches the selected part of a list.
    pub(crate) async fn fetch_page(
        &self,
        context: &CliContext,
        call: &ApiRequest,
    ) -> Result<Value> {
        if self.all {
            return fetch_all_pages(context, call).await;
        }
        let call =
            call.clone().with_query("limit", self.limit).with_query("cursor", self.cursor.as_ref());
        context.send_request(&call).await
    }
}

/// Fetches every page of a list and joins them.
pub(crate) async fn fetch_all_pages(context: &CliContext, call: &ApiRequest) -> Result<Value> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = call
            .clone()
            .with_query("limit", Some(MAX_PAGE_SIZE))
            .with_query("cursor", cursor.as_ref());
        let mut page = context.send_request(&page).await?;
        if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
            items.extend(more);
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(serde_json::json!({ "items": items })),
        }
    }
}

impl CliContext {
    /// Returns the formatter for values at the current time.
    pub(crate) fn value_formatter(&self) -> ValueFormatter {
        ValueFormatter::with_current_time(self.out.paint, self.currency())
    }

    /// Shows a response. A response of a newer server that this program cannot parse is shown unchanged.
    pub(crate) fn show_answer<T: DeserializeOwned>(
        &self,
        value: &Value,
        names: impl FnOnce(&T) -> Vec<String>,
        text: impl FnOnce(&T, &ValueFormatter) -> String,
    ) -> Result<()> {
        if self.out.form == CliOutputFormat::Json {
            return CliOutput::print_json(value);
        }
        match serde_json::from_value::<T>(escape_invisible_in_json(value.clone())) {
            Ok(read) if self.out.form == CliOutputFormat::Quiet => {
                for name in names(&read) {
                    print_line(&name);
                }
                Ok(())
            }
            Ok(read) => {
                print_line(text(&read, &self.value_formatter()).trim_end_matches('\n'));
                Ok(())
            }
            Err(error) => {
                let error = escape_invisible(&error.to_string());
                print_stderr_line(&format!(
                    "cynork: the server is newer than this program ({error}); its answer as it came:"
                ));
                print_line(&to_pretty_json(&escape_invisible_in_json(value.clone())));
                Ok(())
            }
        }
    }

    /// Fetches a list and shows it as a table.
    pub(crate) async fn show_list<T: DeserializeOwned, const N: usize>(
        &self,
        call: &ApiRequest,
        pages: Option<&PageArgs>,
        name: impl Fn(&T) -> String,
        heads: [&str; N],
        row: impl Fn(&T, &ValueFormatter) -> [String; N],
    ) -> Result<()> {
        let value = match pages {
            Some(pages) => pages.fetch_page(self, call).await?,
            None => self.send_request(call).await?,
        };
        self.show_table(&value, name, heads, row)
    }

    /// Shows a fetched list as a table.
    pub(crate) fn show_table<T: DeserializeOwned, const N: usize>(
        &self,
        value: &Value,
        name: impl Fn(&T) -> String,
        heads: [&str; N],
        row: impl Fn(&T, &ValueFormatter) -> [String; N],
    ) -> Result<()> {
        self.show_answer::<ListResponse<T>>(
            value,
            |list| list.items.iter().map(&name).collect(),
            |list, look| {
                let rows = list.items.iter().map(|item| row(item, look)).collect();
                let mut text = render_table(look.paint, heads, rows);
                if let Some(next) = &list.next_cursor {
                    let more = format!("\nthere is more: --all, or --cursor {next}");
                    text.push_str(&look.style_dim(&more));
                }
                text
            },
        )
    }

    /// Shows one item, one line per field.
    pub(crate) async fn show_item<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        name: impl FnOnce(&T) -> String,
        sides: impl FnOnce(&T, &ValueFormatter) -> Vec<(&'static str, String)>,
    ) -> Result<()> {
        let value = self.send_request(call).await?;
        self.show_answer::<T>(
            &value,
            |it| vec![name(it)],
            |it, look| render_record(look.paint, &sides(it, look)),
        )
    }

    /// Sends a request and shows a sentence about its result.
    pub(crate) async fn show_outcome<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        name: impl FnOnce(&T) -> String,
        sentence: impl FnOnce(&T, &ValueFormatter) -> String,
    ) -> Result<()> {
        let value = self.send_request(call).await?;
        self.show_answer::<T>(
            &value,
            |it| vec![name(it)],
            |it, look| {
                format!("{} {}", look.paint.apply_style(TextStyle::Green, "✓"), sentence(it, look))
            },
        )
    }

    /// Sends a request without a response body, and confirms it.
    pub(crate) async fn send_and_confirm(&self, call: &ApiRequest, sentence: &str) -> Result<()> {
        let value = self.send_request(call).await?;
        self.out.print_success(&value, sentence)
    }

    /// Fetches a response and parses it.
    pub(crate) async fn fetch_as<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        let value = self.send_request(call).await?;
        serde_json::from_value(value).map_err(|error| {
            CliError::internal_error(format!("the answer cannot be read: {error}"))
                .with_fix("is this `cynork` as new as the server?")
        })
    }
}
