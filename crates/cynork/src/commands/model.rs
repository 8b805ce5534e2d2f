//! `cynork model`: models, their prices and their routes.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use cynode_core::{agents::AgentRole, models::Tier, names::nearest_name};
use cynode_wire::models::{ModelChoices, ModelView, RouteView};
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, group_digits},
    input, operations,
    terminal::TextStyle,
};

#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// List models with their limits, routes and prices.
    #[command(after_help = "Example: cynork model list")]
    List,
    /// Explain which model each tier uses, the fallback order, and why other models are not used.
    #[command(after_help = "Example: cynork model explain standard --project web\n\
                      The order: a project's own model before a general one, then what is local if that is preferred, then \
                      `model_routing.fallback_provider_order`, then by name.")]
    Explain {
        /// Tier (`fast`, `standard`, `deep`) or agent role (`project_manager`, `developer` …); defaults to all tiers.
        #[arg(value_name = "TIER|ROLE")]
        about: Option<String>,
        #[command(flatten)]
        place: ModelProjectArgs,
    },
    /// Create or replace a model.
    #[command(
        after_help = "Example: cynork model set coder --route local=qwen2.5-coder --context 32768 --max-output 4096 --tools --tier standard"
    )]
    Set(Box<ModelSetArgs>),
    /// Delete a model.
    #[command(after_help = "Example: cynork model delete coder")]
    Delete {
        /// Model id.
        model: String,
    },
}

/// The project.
#[derive(Args)]
pub(crate) struct ModelProjectArgs {
    /// Project, by name or id; defaults to the project of the current repository, then to the one chosen with `cynork project
    /// use`.
    #[arg(long, short)]
    project: Option<String>,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a thing that a model can do or not")]
#[derive(Args)]
pub(crate) struct ModelSetArgs {
    /// Model id that clients use.
    model: String,
    /// Route to the model: a provider and the model's name there. May be repeated; the first route that works is used.
    #[arg(long, value_name = "PROVIDER=NAME", value_parser = input::parse_name_value, required_unless_present_any = ["file", "think_seconds"])]
    route: Vec<(String, String)>,
    /// Context window, in tokens.
    #[arg(long, value_name = "TOKENS", required_unless_present_any = ["file", "think_seconds"])]
    context: Option<u64>,
    /// Maximum number of output tokens.
    #[arg(long, value_name = "TOKENS", required_unless_present_any = ["file", "think_seconds"])]
    max_output: Option<u64>,
    /// Price per million tokens of kind `input`, `cached`, `cache_write` or `output`; may be repeated.
    #[arg(long, value_name = "KIND=AMOUNT", value_parser = parse_price)]
    price: Vec<(String, u64)>,
    /// Display name; defaults to the id.
    #[arg(long)]
    title: Option<String>,
    /// Tier of the model: a request for the tier `fast` (`cynodeai.fast`) may get a model of that tier.
    #[arg(long, value_parser = ["fast", "standard", "deep"])]
    tier: Option<String>,
    /// Supports tool calls.
    #[arg(long)]
    tools: bool,
    /// Supports images.
    #[arg(long)]
    images: bool,
    /// Supports structured output with a JSON schema.
    #[arg(long)]
    json_schema: bool,
    /// Supports skills.
    #[arg(long)]
    skills: bool,
    /// Store the model disabled.
    #[arg(long)]
    disabled: bool,
    /// Restrict the model to one project.
    #[arg(long)]
    project: Option<String>,
    /// Timeout of one answer to the project manager; defaults to `manager.think_timeout_seconds`. Used alone, it updates only
    /// the timeout of an existing model.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    think_seconds: Option<u32>,
    /// JSON file with the whole model (`SetModel` in the OpenAPI document); `-` reads standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["route", "context", "max_output", "price", "title", "tier",
        "tools", "images", "json_schema", "skills", "disabled", "project", "think_seconds"])]
    file: Option<String>,
}

/// The required options of a new model.
const NEW_MODEL_HINT: &str = "a new one is described with --route, --context and --max-output";

/// Parses `KIND=AMOUNT`.
fn parse_price(text: &str) -> std::result::Result<(String, u64), String> {
    let (of, amount) = input::parse_name_value(text)?;
    if !["input", "cached", "cache_write", "output"].contains(&of.as_str()) {
        return Err("a price is of `input`, `cached`, `cache_write` or `output`".to_owned());
    }
    Ok((of, input::parse_money(&amount)?))
}

impl ModelCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_models(context).await,
            Self::Explain { about, place } => {
                explain_models(context, about.as_deref(), place).await
            }
            Self::Set(set) => {
                let call = ApiRequest::with_path_params(operations::SET_MODEL, [&set.model])
                    .with_json_body(&set.build_request_body(context).await?);
                let sentence = |it: &ModelView, _: &ValueFormatter| {
                    let tier = it
                        .tier
                        .map(|tier| format!(", and as {}", tier.tier_model_id()))
                        .unwrap_or_default();
                    format!("{} can be asked{tier}", it.id)
                };
                context.show_outcome(&call, |it: &ModelView| it.id.clone(), sentence).await
            }
            Self::Delete { model } => {
                context.confirm_action(&format!("Delete the model {model}?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_MODEL, [&model]);
                context.send_and_confirm(&call, &format!("{model} is deleted")).await
            }
        }
    }
}

async fn list_models(context: &CliContext) -> Result<()> {
    context.fetch_currency().await;
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_REGISTRY),
            None,
            |it: &ModelView| it.id.clone(),
            ["id", "tier", "project", "offered", "can", "context", "answer", "ways"],
            |it, look| {
                [
                    look.style_bold(&it.id),
                    it.tier.map(|tier| tier.as_str()).unwrap_or_default().to_owned(),
                    it.project_id.map_or_else(|| "all".to_owned(), |id| id.to_string()),
                    look.format_yes_no(it.enabled),
                    model_abilities(it),
                    group_digits(it.context_tokens),
                    group_digits(it.max_output_tokens),
                    it.routes
                        .iter()
                        .map(|it| render_route(it, look))
                        .collect::<Vec<_>>()
                        .join("\n"),
                ]
            },
        )
        .await
}

/// Parses a tier or an agent role.
fn parse_tier_or_role(word: &str) -> Result<(Option<Tier>, Option<AgentRole>)> {
    if let Some(tier) = Tier::from_name(word).or_else(|| Tier::from_model_id(word)) {
        return Ok((Some(tier), None));
    }
    match AgentRole::from_name(word) {
        Some(role) => Ok((None, Some(role))),
        None => {
            let tiers = Tier::ALL.iter().map(|tier| tier.as_str());
            let roles = AgentRole::ALL.iter().map(|role| role.as_str());
            let known: Vec<&str> = tiers.chain(roles).collect();
            let near = nearest_name(word, known.iter().copied());
            let near = near.map(|near| format!("is `{near}` meant?"));
            let failure = CliError::new(
                CliErrorKind::Usage,
                format!("`{word}` is neither a tier nor a role"),
            );
            Err(failure.with_fix(near.unwrap_or_else(|| format!("there are {}", known.join(", ")))))
        }
    }
}

async fn explain_models(
    context: &CliContext,
    about: Option<&str>,
    place: ModelProjectArgs,
) -> Result<()> {
    let (tier, role) = about.map(parse_tier_or_role).transpose()?.unwrap_or_default();
    let project = match context.resolve_project(place.project, std::path::Path::new(".")) {
        Some(named) => Some(context.project_id(&named).await?),
        None => None,
    };
    let call = ApiRequest::for_operation(operations::EXPLAIN_MODELS)
        .with_query("project_id", project.as_ref())
        .with_query("tier", tier.map(|tier| tier.as_str()))
        .with_query("agent_role", role.map(|role| role.as_str()));
    let value = context.send_request(&call).await?;
    let names = |it: &ModelChoices| {
        it.tiers.iter().map(|tier| tier.model.clone().unwrap_or_default()).collect()
    };
    context.show_answer(&value, names, |it: &ModelChoices, look| {
        render_model_choices(it, project.is_some(), look)
    })
}

/// Renders the choice: for each tier the first model, and a line for every other.
fn render_model_choices(choices: &ModelChoices, in_project: bool, look: &ValueFormatter) -> String {
    let mut text = String::new();
    if !in_project {
        text.push_str("outside of all projects; name one with --project\n");
    }
    for blocker in &choices.blockers {
        let words =
            look.paint.apply_style(TextStyle::Red, &format!("no model is asked: {blocker}"));
        let _ = writeln!(text, "{words}");
    }
    for tier in &choices.tiers {
        let uses = match (&tier.model, tier.fallback_tier) {
            (Some(model), None) => look.style_bold(model),
            (Some(model), Some(near)) => {
                let why =
                    format!("no model of this tier can be asked; {} stands in", near.as_str());
                format!("{} ({why})", look.style_bold(model))
            }
            (None, _) => look.paint.apply_style(TextStyle::Red, "no model can be asked"),
        };
        let _ = writeln!(text, "{:<9} {uses}", tier.tier.as_str());
        for choice in &tier.choices {
            let place = match choice.position {
                Some(place) if choice.selected => {
                    look.paint.apply_style(TextStyle::Green, &format!("{place} ▸"))
                }
                Some(place) => format!("{place}  "),
                None => look.style_dim("–  "),
            };
            let from = match (&choice.provider, &choice.upstream) {
                (Some(provider), Some(upstream)) => format!(" ({provider}: {upstream})"),
                _ => String::new(),
            };
            let _ = writeln!(text, "  {place} {}{from}: {}", choice.model, choice.reason);
        }
    }
    text
}

fn model_abilities(model: &ModelView) -> String {
    let all = [
        (model.tools, "tools"),
        (model.images, "images"),
        (model.json_schema, "schema"),
        (model.skills, "skills"),
    ];
    let can = all.into_iter().filter(|(can, _)| *can).map(|(_, what)| what.to_owned());
    let thinks = model.think_seconds.map(|seconds| format!("thinks {seconds}s"));
    can.chain(thinks).collect::<Vec<_>>().join(" ")
}

/// Renders a route to a model, with its prices per million tokens.
fn render_route(route: &RouteView, look: &ValueFormatter) -> String {
    let (input, output) = (
        crate::format::format_amount(route.prices.input),
        crate::format::format_amount(route.prices.output),
    );
    let currency = look.currency;
    format!("{}: {} at {input} in, {output} {currency} out", route.provider, route.upstream)
}

impl ModelSetArgs {
    async fn build_request_body(&self, context: &CliContext) -> Result<Value> {
        if let Some(file) = &self.file {
            let body = input::read_file_json(file)?;
            return if body.is_object() {
                Ok(body)
            } else {
                Err(CliError::new(CliErrorKind::Invalid, "the description of a model is an object"))
            };
        }
        if let (Some(seconds), []) = (self.think_seconds, self.route.as_slice()) {
            return self.body_with_think_seconds(context, seconds).await;
        }
        let (Some(_), Some(_)) = (self.context, self.max_output) else {
            return Err(CliError::new(CliErrorKind::Usage, NEW_MODEL_HINT));
        };
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
        Ok(input::without_nulls(json!({
            "title": self.title, "tier": self.tier, "context_tokens": self.context,
            "max_output_tokens": self.max_output, "tools": self.tools, "images": self.images,
            "json_schema": self.json_schema, "skills": self.skills, "enabled": self.disabled.then_some(false),
            "routes": routes.collect::<Vec<_>>(), "project_id": project, "think_seconds": self.think_seconds,
        })))
    }

    /// Returns whether any option is given except the thinking time.
    const fn has_description(&self) -> bool {
        self.context.is_some()
            || self.max_output.is_some()
            || !self.price.is_empty()
            || self.title.is_some()
            || self.tier.is_some()
            || self.tools
            || self.images
            || self.json_schema
            || self.skills
            || self.disabled
            || self.project.is_some()
    }

    /// Returns the present model with another thinking time.
    async fn body_with_think_seconds(&self, context: &CliContext, seconds: u32) -> Result<Value> {
        if self.has_description() {
            let said =
                format!("--think-seconds alone changes a model that is there; {NEW_MODEL_HINT}");
            return Err(CliError::new(CliErrorKind::Usage, said));
        }
        let listed =
            context.send_request(&ApiRequest::for_operation(operations::LIST_REGISTRY)).await?;
        let models = listed["items"].as_array().cloned().unwrap_or_default();
        let found = models.into_iter().find(|model| model["id"] == json!(self.model));
        let Some(mut model) = found else {
            let said = format!("there is no model `{}`; {NEW_MODEL_HINT}", self.model);
            return Err(CliError::new(CliErrorKind::Invalid, said));
        };
        model["think_seconds"] = json!(seconds);
        if let Some(fields) = model.as_object_mut() {
            fields.remove("id");
        }
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::budget::Currency;
    use time::macros::datetime;

    use super::*;
    use crate::terminal::Colorizer;

    #[test]
    fn a_word_is_a_tier_or_a_role_and_a_near_one_is_named() {
        assert_eq!(parse_tier_or_role("fast"), Ok((Some(Tier::Fast), None)));
        assert_eq!(parse_tier_or_role("cynodeai.deep"), Ok((Some(Tier::Deep), None)));
        assert_eq!(parse_tier_or_role("developer"), Ok((None, Some(AgentRole::Developer))));
        let failure = parse_tier_or_role("standart").unwrap_err();
        assert_eq!(failure.fix.as_deref(), Some("is `standard` meant?"));
    }

    #[test]
    fn the_choice_is_told_in_its_order_and_with_why() {
        let choices = json!({ "tiers": [
            { "tier": "fast", "model_id": "cynodeai.fast", "model": "own", "choices": [
                { "model": "own", "provider": "sample", "upstream": "scripted", "project_specific": true, "position": 1, "selected": true,
                    "reason": "the project's own model goes before a general one" },
                { "model": "coder", "provider": "local", "upstream": "qwen", "project_specific": false, "position": 2, "selected": false,
                    "reason": "a general model, for every project" },
                { "model": "old", "project_specific": false, "selected": false, "reason": "it is switched off" },
            ] },
            { "tier": "deep", "model_id": "cynodeai.deep", "model": "own", "fallback_tier": "fast", "choices": [] },
        ], "blockers": [] });
        let now = datetime!(2026-11-16 12:00 UTC);
        let look = ValueFormatter { paint: Colorizer(false), now, currency: Currency::USD };
        assert_eq!(
            render_model_choices(&serde_json::from_value(choices).unwrap(), true, &look)
                .lines()
                .collect::<Vec<_>>(),
            [
                "fast      own",
                "  1 ▸ own (sample: scripted): the project's own model goes before a general one",
                "  2   coder (local: qwen): a general model, for every project",
                "  –   old: it is switched off",
                "deep      own (no model of this tier can be asked; fast stands in)",
            ]
        );
    }
}
