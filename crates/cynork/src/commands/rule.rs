//! `cynork rule`: what the gate refuses, puts before a person, or only notes.

use clap::{Args, Subcommand};
use cynode_wire::gate::RuleView;
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::Look,
    operations,
};

#[derive(Subcommand)]
pub(crate) enum Rule {
    /// Lists the rules.
    #[command(after_help = "Example: cynork rule list")]
    List,
    /// Writes a rule: one Cedar `forbid`. A rule that does not fit the tools is refused.
    #[command(
        after_help = "Example: cynork rule set no-push refuse --text 'forbid (principal, action == Action::\"git.push\", resource);'"
    )]
    Set(Set),
    /// Removes a rule.
    #[command(after_help = "Example: cynork rule remove no-push")]
    Remove {
        /// Its name.
        rule: String,
    },
}

#[derive(Args)]
pub(crate) struct Set {
    /// Its name: it is in records and answers.
    rule: String,
    /// What happens to a call that it is about: refused, put before a person, or only noted.
    #[arg(value_parser = ["refuse", "approve", "shadow"])]
    mode: String,
    /// The rule.
    #[arg(long, value_name = "CEDAR", conflicts_with = "file")]
    text: Option<String>,
    /// A file with the rule, `-` for standard input.
    #[arg(long)]
    file: Option<String>,
}

impl Rule {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => {
                context
                    .list(
                        &Call::of(operations::LIST_RULES),
                        None,
                        |rule: &RuleView| rule.name.clone(),
                        ["name", "mode", "written", "version", "rule"],
                        |rule, look| {
                            [
                                look.bold(&rule.name),
                                rule.mode.clone(),
                                look.when(rule.updated_at),
                                rule.version.to_string(),
                                rule.text.trim().to_owned(),
                            ]
                        },
                    )
                    .await
            }
            Self::Set(set) => set.run(context).await,
            Self::Remove { rule } => {
                context.sure(&format!("Remove the rule {rule}?"))?;
                let call = Call::to(operations::DELETE_RULE, [&rule]);
                context.done(&call, &format!("{rule} is removed")).await
            }
        }
    }
}

impl Set {
    async fn run(self, context: &Context) -> Result<()> {
        let text = match (self.text, self.file) {
            (Some(text), _) => text,
            (None, Some(file)) => given::text(&file)?,
            (None, None) => {
                return Err(Failure::new(Kind::Usage, "what does the rule say?")
                    .fix("say it with --text, or name a file with --file"));
            }
        };
        let body = json!({ "mode": self.mode, "text": text });
        let call = Call::to(operations::SET_RULE, [&self.rule]).body(&body);
        let sentence =
            |rule: &RuleView, _: &Look| format!("{} holds from now on: {}", rule.name, rule.mode);
        context.told(&call, |rule: &RuleView| rule.name.clone(), sentence).await
    }
}
