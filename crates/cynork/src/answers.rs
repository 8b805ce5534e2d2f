//! Calls and how their answers are shown: as they came to programs, as a table, a record or a sentence to people.

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    client::{Call, Items},
    context::Context,
    failure::{Failure, Result},
    look::{Look, all_visible, pretty, visible},
    output::{Form, Output, record, say, table, tell},
    terminal::Style,
};

/// Most items of a page.
const MOST: u32 = 200;

/// Which part of a list.
#[derive(Args, Clone, Debug)]
pub(crate) struct Pages {
    /// At most as many, 1 to 200.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    limit: Option<u32>,
    /// Goes on behind a page: its `next_cursor`.
    #[arg(long)]
    cursor: Option<String>,
    /// All there are, page by page.
    #[arg(long, conflicts_with_all = ["limit", "cursor"])]
    all: bool,
}

impl Pages {
    /// The same; at most as many where nobody said how many.
    pub(crate) fn or(mut self, limit: u32) -> Self {
        self.limit = self.limit.or(Some(limit));
        self
    }

    /// Reads that part of a list.
    pub(crate) async fn read(&self, context: &Context, call: &Call) -> Result<Value> {
        if self.all {
            return whole(context, call).await;
        }
        let call = call.clone().query("limit", self.limit).query("cursor", self.cursor.as_ref());
        context.ask(&call).await
    }
}

/// Reads every page of a list, as one.
pub(crate) async fn whole(context: &Context, call: &Call) -> Result<Value> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = call.clone().query("limit", Some(MOST)).query("cursor", cursor.as_ref());
        let mut page = context.ask(&page).await?;
        if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
            items.extend(more);
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(serde_json::json!({ "items": items })),
        }
    }
}

impl Context {
    /// How things look now.
    pub(crate) fn look(&self) -> Look {
        Look::now(self.out.paint)
    }

    /// Shows an answer. What a newer server says in words that are not known here is shown as it came.
    pub(crate) fn show<T: DeserializeOwned>(
        &self,
        value: &Value,
        names: impl FnOnce(&T) -> Vec<String>,
        text: impl FnOnce(&T, &Look) -> String,
    ) -> Result<()> {
        if self.out.form == Form::Json {
            return Output::json(value);
        }
        match serde_json::from_value::<T>(all_visible(value.clone())) {
            Ok(read) if self.out.form == Form::Quiet => {
                for name in names(&read) {
                    say(&name);
                }
                Ok(())
            }
            Ok(read) => {
                say(text(&read, &self.look()).trim_end_matches('\n'));
                Ok(())
            }
            Err(error) => {
                let error = visible(&error.to_string());
                tell(&format!(
                    "cynork: the server is newer than this program ({error}); its answer as it came:"
                ));
                say(&pretty(&all_visible(value.clone())));
                Ok(())
            }
        }
    }

    /// Lists things as a table.
    pub(crate) async fn list<T: DeserializeOwned, const N: usize>(
        &self,
        call: &Call,
        pages: Option<&Pages>,
        name: impl Fn(&T) -> String,
        heads: [&str; N],
        row: impl Fn(&T, &Look) -> [String; N],
    ) -> Result<()> {
        let value = match pages {
            Some(pages) => pages.read(self, call).await?,
            None => self.ask(call).await?,
        };
        self.table(&value, name, heads, row)
    }

    /// Shows a list that was read as a table.
    pub(crate) fn table<T: DeserializeOwned, const N: usize>(
        &self,
        value: &Value,
        name: impl Fn(&T) -> String,
        heads: [&str; N],
        row: impl Fn(&T, &Look) -> [String; N],
    ) -> Result<()> {
        self.show::<Items<T>>(
            value,
            |list| list.items.iter().map(&name).collect(),
            |list, look| {
                let rows = list.items.iter().map(|item| row(item, look)).collect();
                let mut text = table(look.paint, heads, rows);
                if let Some(next) = &list.next_cursor {
                    let more = format!("\nthere is more: --all, or --cursor {next}");
                    text.push_str(&look.dim(&more));
                }
                text
            },
        )
    }

    /// Shows one thing, a line for each of its sides.
    pub(crate) async fn one<T: DeserializeOwned>(
        &self,
        call: &Call,
        name: impl FnOnce(&T) -> String,
        sides: impl FnOnce(&T, &Look) -> Vec<(&'static str, String)>,
    ) -> Result<()> {
        let value = self.ask(call).await?;
        self.show::<T>(&value, |it| vec![name(it)], |it, look| record(look.paint, &sides(it, look)))
    }

    /// Does something and says what came of it.
    pub(crate) async fn told<T: DeserializeOwned>(
        &self,
        call: &Call,
        name: impl FnOnce(&T) -> String,
        sentence: impl FnOnce(&T, &Look) -> String,
    ) -> Result<()> {
        let value = self.ask(call).await?;
        self.show::<T>(
            &value,
            |it| vec![name(it)],
            |it, look| format!("{} {}", look.paint.dye(Style::Green, "✓"), sentence(it, look)),
        )
    }

    /// Does something that has no answer, and says that it was done.
    pub(crate) async fn done(&self, call: &Call, sentence: &str) -> Result<()> {
        let value = self.ask(call).await?;
        self.out.done(&value, sentence)
    }

    /// Reads an answer into a type.
    pub(crate) async fn read<T: DeserializeOwned>(&self, call: &Call) -> Result<T> {
        let value = self.ask(call).await?;
        serde_json::from_value(value).map_err(|error| {
            Failure::internal(format!("the answer cannot be read: {error}"))
                .fix("is this `cynork` as new as the server?")
        })
    }
}
