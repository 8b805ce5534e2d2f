//! `cynork rule`: policy rules of the gateway, which deny a call, require approval, or only record it.

use clap::{Args, Subcommand};
use cynode_wire::tools::RuleView;
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input, operations,
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
            Self::Delete { rule } => {
                context.confirm_action(&format!("Delete the rule {rule}?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_RULE, [&rule]);
                context.send_and_confirm(&call, &format!("{rule} is deleted")).await
            }
        }
    }
}

impl RuleSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let text = match (self.text, self.file) {
            (Some(text), _) => text,
            (None, Some(file)) => input::read_file_text(&file)?,
            (None, None) => {
                return Err(CliError::new(CliErrorKind::Usage, "what does the rule say?")
                    .with_fix("say it with --text, or name a file with --file"));
            }
        };
        let body = json!({ "mode": self.mode, "text": text });
        let call =
            ApiRequest::with_path_params(operations::SET_RULE, [&self.rule]).with_json_body(&body);
        let sentence = |rule: &RuleView, _: &ValueFormatter| {
            format!("{} holds from now on: {}", rule.name, rule.mode)
        };
        context.show_outcome(&call, |rule: &RuleView| rule.name.clone(), sentence).await
    }
}
