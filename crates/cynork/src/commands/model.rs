//! `cynork model`: the models that may be asked, what they cost and the ways to them.

use clap::{Args, Subcommand};
use cynode_wire::models::{ModelView, RouteView};
use serde_json::{Value, json};

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::{Look, money, number},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum Model {
    /// Lists the models with their prices and the ways to them.
    #[command(after_help = "Example: cynork model list")]
    List,
    /// Adds a model, or describes it anew.
    #[command(
        after_help = "Example: cynork model set coder --route local=qwen2.5-coder --context 32768 --max-output 4096 --tools --tier standard"
    )]
    Set(Box<Set>),
    /// Removes a model.
    #[command(after_help = "Example: cynork model remove coder")]
    Remove {
        /// Its id.
        model: String,
    },
}

#[expect(clippy::struct_excessive_bools, reason = "each is a thing that a model can do or not")]
#[derive(Args)]
pub(crate) struct Set {
    /// The id that clients use.
    model: String,
    /// A way to it: the provider, and what it is called there. May be repeated; the first that works is used.
    #[arg(long, value_name = "PROVIDER=NAME", value_parser = given::pair, required_unless_present = "file")]
    route: Vec<(String, String)>,
    /// Most tokens of a conversation.
    #[arg(long, value_name = "TOKENS", required_unless_present = "file")]
    context: Option<u64>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "TOKENS", required_unless_present = "file")]
    max_output: Option<u64>,
    /// What a million tokens cost, of `input`, `cached`, `cache_write` or `output`; may be repeated.
    #[arg(long, value_name = "OF=MONEY", value_parser = price)]
    price: Vec<(String, u64)>,
    /// What people call it; its id when it is left out.
    #[arg(long)]
    title: Option<String>,
    /// How able it is: it then answers to `cynodeai.fast` and so on.
    #[arg(long, value_parser = ["fast", "standard", "deep"])]
    tier: Option<String>,
    /// It calls tools.
    #[arg(long)]
    tools: bool,
    /// It sees images.
    #[arg(long)]
    images: bool,
    /// It keeps to a JSON schema.
    #[arg(long)]
    json_schema: bool,
    /// It takes skills.
    #[arg(long)]
    skills: bool,
    /// Describes it without offering it.
    #[arg(long)]
    off: bool,
    /// Offers it to one project alone.
    #[arg(long)]
    project: Option<String>,
    /// The whole description as a file of JSON (`SetModel` in the OpenAPI document), `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["route", "context", "max_output", "price", "title", "tier",
        "tools", "images", "json_schema", "skills", "off", "project"])]
    file: Option<String>,
}

/// Reads `OF=MONEY`.
fn price(text: &str) -> std::result::Result<(String, u64), String> {
    let (of, amount) = given::pair(text)?;
    if !["input", "cached", "cache_write", "output"].contains(&of.as_str()) {
        return Err("a price is of `input`, `cached`, `cache_write` or `output`".to_owned());
    }
    Ok((of, given::money(&amount)?))
}

impl Model {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => list(context).await,
            Self::Set(set) => {
                let call =
                    Call::to(operations::SET_MODEL, [&set.model]).body(&set.body(context).await?);
                let sentence = |it: &ModelView, _: &Look| {
                    let tier = it
                        .tier
                        .map(|tier| format!(", and as {}", tier.model_id()))
                        .unwrap_or_default();
                    format!("{} can be asked{tier}", it.id)
                };
                context.told(&call, |it: &ModelView| it.id.clone(), sentence).await
            }
            Self::Remove { model } => {
                context.sure(&format!("Remove the model {model}?"))?;
                let call = Call::to(operations::REMOVE_MODEL, [&model]);
                context.done(&call, &format!("{model} is removed")).await
            }
        }
    }
}

async fn list(context: &Context) -> Result<()> {
    context
        .list(
            &Call::of(operations::LIST_REGISTRY),
            None,
            |it: &ModelView| it.id.clone(),
            ["id", "tier", "offered", "can", "context", "answer", "ways"],
            |it, look| {
                [
                    look.bold(&it.id),
                    it.tier.map(|tier| tier.as_str()).unwrap_or_default().to_owned(),
                    look.yes(it.enabled),
                    abilities(it),
                    number(it.context_tokens),
                    number(it.max_output_tokens),
                    it.routes.iter().map(way).collect::<Vec<_>>().join("\n"),
                ]
            },
        )
        .await
}

fn abilities(model: &ModelView) -> String {
    let all = [
        (model.tools, "tools"),
        (model.images, "images"),
        (model.json_schema, "schema"),
        (model.skills, "skills"),
    ];
    all.into_iter().filter(|(can, _)| *can).map(|(_, what)| what).collect::<Vec<_>>().join(" ")
}

/// A way to a model, with what a million tokens cost there.
fn way(route: &RouteView) -> String {
    let price = |micros: u64| money(i64::try_from(micros).unwrap_or(i64::MAX));
    let (input, output) = (price(route.prices.input), price(route.prices.output));
    format!("{}: {} at {input} in, {output} out", route.provider, route.upstream)
}

impl Set {
    async fn body(&self, context: &Context) -> Result<Value> {
        if let Some(file) = &self.file {
            let body = given::json(file)?;
            return if body.is_object() {
                Ok(body)
            } else {
                Err(Failure::new(Kind::Invalid, "the description of a model is an object"))
            };
        }
        let mut prices = json!({ "input": 0, "cached": 0, "cache_write": 0, "output": 0 });
        for (of, micros) in &self.price {
            prices[of] = json!(micros);
        }
        let project = match &self.project {
            Some(named) => Some(context.project_id(named).await?),
            None => None,
        };
        let routes = self.route.iter().map(|(provider, upstream)| {
            json!({ "provider": provider, "upstream": upstream, "prices": prices })
        });
        Ok(given::said(json!({
            "title": self.title, "tier": self.tier, "context_tokens": self.context,
            "max_output_tokens": self.max_output, "tools": self.tools, "images": self.images,
            "json_schema": self.json_schema, "skills": self.skills, "enabled": self.off.then_some(false),
            "routes": routes.collect::<Vec<_>>(), "project_id": project,
        })))
    }
}
