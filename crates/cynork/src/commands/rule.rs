//! `cynork rule`: policy rules of the gateway, which deny a call, require approval, or only record it.

use clap::{Args, Subcommand};
use cynode_wire::tools::{
    RuleView,
    rules::{
        BacktestReport, BacktestSample, RuleCheckView, RuleErrorView, RuleVersionView,
        RuleVocabulary,
    },
};
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, group_digits},
    input, operations,
    output::{render_record, render_table},
};

#[derive(Subcommand)]
pub(crate) enum RuleCommand {
    /// List policy rules.
    #[command(after_help = "Example: cynork rule list")]
    List,
    /// Create or replace a policy rule: one Cedar `forbid`, validated against the tools.
    #[command(
        after_help = "Example: cynork rule set no-fetch refuse --text 'forbid (principal, action == Action::\"web.fetch\", resource);'"
    )]
    Set(RuleSetArgs),
    /// Delete a policy rule.
    #[command(after_help = "Example: cynork rule delete no-push")]
    Delete {
        /// Name of the rule.
        rule: String,
    },
    /// Check a policy rule against the tools; fails with the place of each error. Nothing is stored.
    #[command(after_help = "Example: cynork rule check no-fetch refuse --file no-fetch.cedar")]
    Check(RuleSetArgs),
    /// Try a policy rule on the recorded calls of the last days; nothing is stored.
    #[command(
        after_help = "Example: cynork rule backtest no-fetch refuse --file no-fetch.cedar --days 14"
    )]
    Backtest(RuleBacktestArgs),
    /// List the versions of a policy rule, newest first.
    #[command(after_help = "Example: cynork rule history no-push")]
    History {
        /// Name of the rule.
        rule: String,
    },
    /// Show all that a policy rule can speak of: tools with their arguments, roles, groups and facts.
    #[command(after_help = "Example: cynork rule vocabulary --json")]
    Vocabulary,
}

#[derive(Args)]
pub(crate) struct RuleSetArgs {
    /// Name of the rule; shown in audit records and refusals.
    rule: String,
    /// Effect on a matching call: refuse it, require approval, or only record it.
    #[arg(value_parser = ["refuse", "approve", "shadow"])]
    mode: String,
    /// Text of the rule.
    #[arg(long, value_name = "CEDAR", conflicts_with = "file")]
    text: Option<String>,
    /// File with the rule; `-` reads standard input.
    #[arg(long)]
    file: Option<String>,
}

#[derive(Args)]
pub(crate) struct RuleBacktestArgs {
    #[command(flatten)]
    which: RuleSetArgs,
    /// Number of days to look back, 1 to 30.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=30))]
    days: u8,
    /// Filter by project, by name or id.
    #[arg(long, short)]
    project: Option<String>,
}

impl RuleCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => {
                context
                    .show_list(
                        &ApiRequest::for_operation(operations::LIST_RULES),
                        None,
                        |rule: &RuleView| rule.name.clone(),
                        ["name", "mode", "written", "version", "rule"],
                        |rule, look| {
                            [
                                look.style_bold(&rule.name),
                                rule.mode.clone(),
                                look.format_relative_time(rule.updated_at),
                                rule.version.to_string(),
                                rule.text.trim().to_owned(),
                            ]
                        },
                    )
                    .await
            }
            Self::Set(set) => set.run(context).await,
            Self::Check(rule) => rule.check_rule(context).await,
            Self::Backtest(backtest) => backtest.run(context).await,
            Self::History { rule } => list_versions(context, &rule).await,
            Self::Vocabulary => {
                let call = ApiRequest::for_operation(operations::RULE_VOCABULARY);
                let value = context.send_request(&call).await?;
                let names = |it: &RuleVocabulary| {
                    it.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>()
                };
                context.show_answer(&value, names, render_vocabulary)
            }
            Self::Delete { rule } => {
                context.confirm_action(&format!("Delete the rule {rule}?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_RULE, [&rule]);
                context.send_and_confirm(&call, &format!("{rule} is deleted")).await
            }
        }
    }
}

impl RuleSetArgs {
    /// Returns the body of the rule as it was given.
    fn build_body(&self) -> Result<Value> {
        let text = match (&self.text, &self.file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => input::read_file_text(file)?,
            (None, None) => {
                return Err(CliError::new(CliErrorKind::Usage, "what does the rule say?")
                    .with_fix("say it with --text, or name a file with --file"));
            }
        };
        Ok(json!({ "mode": self.mode, "text": text }))
    }

    async fn run(self, context: &CliContext) -> Result<()> {
        let call = ApiRequest::with_path_params(operations::SET_RULE, [&self.rule])
            .with_json_body(&self.build_body()?);
        let sentence = |rule: &RuleView, _: &ValueFormatter| {
            format!("{} holds from now on: {}", rule.name, rule.mode)
        };
        context.show_outcome(&call, |rule: &RuleView| rule.name.clone(), sentence).await
    }

    async fn check_rule(self, context: &CliContext) -> Result<()> {
        let mut body = self.build_body()?;
        body["name"] = json!(self.rule);
        let call = ApiRequest::for_operation(operations::CHECK_RULE).with_json_body(&body);
        let value = context.send_request(&call).await?;
        if value["valid"] == false {
            let errors = serde_json::from_value::<Vec<RuleErrorView>>(value["errors"].clone());
            let errors = errors.unwrap_or_default().iter().map(render_error).collect::<Vec<_>>();
            let told = format!("the rule cannot be stored: {}", errors.join("\n"));
            return Err(CliError::new(CliErrorKind::Invalid, told));
        }
        let names = |it: &RuleCheckView| it.tools.clone();
        context.show_answer(&value, names, render_check)
    }
}

impl RuleBacktestArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let mut body = self.which.build_body()?;
        body["name"] = json!(self.which.rule);
        body["days"] = json!(self.days);
        let project = context.optional_project_id(self.project.as_deref()).await?;
        if let Some(project) = project {
            body["project_id"] = json!(project);
        }
        let call = ApiRequest::for_operation(operations::BACKTEST_RULE).with_json_body(&body);
        let value = context.send_request(&call).await?;
        let names = |it: &BacktestReport| {
            it.samples.iter().map(|sample| sample.call_id.to_string()).collect::<Vec<_>>()
        };
        context.show_answer(&value, names, render_backtest)
    }
}

async fn list_versions(context: &CliContext, rule: &str) -> Result<()> {
    let call = ApiRequest::with_path_params(operations::RULE_HISTORY, [rule]);
    let heads = ["version", "when", "by", "mode", "rule"];
    let row = |it: &RuleVersionView, look: &ValueFormatter| {
        [
            it.version.to_string(),
            look.format_relative_time(it.changed_at),
            it.changed_by.map(|user| user.to_string()).unwrap_or_default(),
            it.mode.clone().unwrap_or_else(|| "deleted".to_owned()),
            it.text.as_deref().unwrap_or_default().trim().to_owned(),
        ]
    };
    let name = |it: &RuleVersionView| it.version.to_string();
    context.show_list(&call, None, name, heads, row).await
}

fn render_check(it: &RuleCheckView, look: &ValueFormatter) -> String {
    render_record(
        look.paint,
        &[
            ("valid", look.format_yes_no(it.valid)),
            ("tools", it.tools.join("  ")),
            ("roles", it.roles.join("  ")),
            ("reads arguments", look.format_yes_no(it.reads_arguments)),
        ],
    )
}

fn render_error(error: &RuleErrorView) -> String {
    let place = match (error.line, error.column) {
        (Some(line), Some(column)) => format!("{line}:{column}: "),
        _ => String::new(),
    };
    let help = error.help.as_ref().map(|help| format!("\n{help}")).unwrap_or_default();
    format!("{place}{}{help}", error.message)
}

fn format_count(number: u64) -> String {
    group_digits(i64::try_from(number).unwrap_or(i64::MAX))
}

fn render_backtest(it: &BacktestReport, look: &ValueFormatter) -> String {
    let hits = format!("{} of {} calls", format_count(it.hits), format_count(it.calls));
    let mut sides = vec![
        ("would hit", look.style_bold(&hits)),
        ("since", look.format_relative_time(it.since)),
        ("not reached", format_count(it.not_reached)),
        ("released", format_count(it.released)),
    ];
    if !it.complete {
        sides.push(("incomplete", "there are more calls than were looked at".to_owned()));
    }
    for reason in &it.undecidable_reasons {
        let text = format!("{} calls: {}", format_count(reason.calls), reason.detail);
        sides.push(("undecidable", text));
    }
    let changes = it
        .decisions
        .iter()
        .map(|change| format!("{} -> {}: {}", change.then, change.now, format_count(change.calls)));
    sides.push(("decisions", changes.collect::<Vec<_>>().join("\n")));
    let summary = render_record(look.paint, &sides);
    if it.samples.is_empty() {
        return summary;
    }
    let heads = ["when", "tool", "by", "result", "then", "now", "alike", "call"];
    let rows = it.samples.iter().map(|sample| sample_row(sample, look)).collect();
    format!("{summary}\n\n{}", render_table(look.paint, heads, rows))
}

fn sample_row(it: &BacktestSample, look: &ValueFormatter) -> [String; 8] {
    [
        look.format_relative_time(it.at),
        look.style_bold(&it.tool),
        it.agent_role.clone().unwrap_or_default(),
        it.result.clone(),
        look.style_state(&it.then),
        it.now.as_deref().map(|now| look.style_state(now)).unwrap_or_default(),
        format_count(it.calls),
        look.style_dim(&it.call_id.to_string()),
    ]
}

fn render_vocabulary(it: &RuleVocabulary, look: &ValueFormatter) -> String {
    let fields = it.fields.iter().map(|field| format!("{}: {}", field.path, field.kind));
    let tools = it.tools.iter().map(|tool| {
        let arguments: Vec<_> =
            tool.arguments.iter().map(|it| format!("\n  {}: {}", it.path, it.kind)).collect();
        format!("{}{}", look.style_bold(&tool.name), arguments.concat())
    });
    render_record(
        look.paint,
        &[
            ("roles", it.roles.join("  ")),
            ("groups", it.groups.join("  ")),
            ("facts", fields.collect::<Vec<_>>().join("\n")),
            ("tools", tools.collect::<Vec<_>>().join("\n")),
        ],
    )
}
