//! `cynork second-factor`: one-time passwords of an authenticator, and the recovery codes that stand in for them.

use clap::{Args, Subcommand};
use cynode_wire::identity::accounts::{RecoveryCodes, SecondFactorEnrolment, SecondFactorView};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::account::CODE_PROMPT;
use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::Result,
    format::ValueFormatter,
    input::{self, SecretPrompt},
    operations,
    output::{print_stderr_line, render_record},
};

#[derive(Subcommand)]
pub(crate) enum SecondFactorCommand {
    /// Show whether you have a second factor, and how many recovery codes are left.
    #[command(after_help = "Example: cynork second-factor show")]
    Show,
    /// Enrol a second factor: the secret for your authenticator, then a code of it. The recovery codes are printed once.
    #[command(after_help = "Example: cynork second-factor enrol")]
    Enrol(SecondFactorInput),
    /// Show a code in this session, which began without your second factor, such as one of an identity provider.
    #[command(after_help = "Example: cynork second-factor verify")]
    Verify {
        /// Read the code from the first line of standard input.
        #[arg(long)]
        code_stdin: bool,
    },
    /// Get new recovery codes, printed once; the earlier ones stop working.
    #[command(after_help = "Example: cynork second-factor recovery-codes")]
    RecoveryCodes {
        /// Read the code from the first line of standard input.
        #[arg(long)]
        code_stdin: bool,
    },
    /// Delete your second factor; your other sessions end.
    #[command(after_help = "Example: cynork second-factor delete")]
    Delete(SecondFactorInput),
}

#[derive(Args)]
pub(crate) struct SecondFactorInput {
    /// Read the password from the first line of standard input.
    #[arg(long)]
    password_stdin: bool,
    /// Read the code from the next line of standard input.
    #[arg(long)]
    code_stdin: bool,
    /// Send no password, for an account that has none.
    #[arg(long, conflicts_with = "password_stdin")]
    without_password: bool,
}

impl SecondFactorInput {
    fn read_password(&self, context: &CliContext) -> Result<Option<SecretString>> {
        if self.without_password {
            return Ok(None);
        }
        let ask = SecretPrompt {
            prompt: "Your password",
            flag: "--password-stdin",
            stdin: self.password_stdin,
        };
        input::read_secret(context, ask).map(Some)
    }

    fn read_code(&self, context: &CliContext) -> Result<SecretString> {
        input::read_secret(context, SecretPrompt { stdin: self.code_stdin, ..CODE_PROMPT })
    }
}

impl SecondFactorCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Show => {
                let call = ApiRequest::for_operation(operations::GET_SECOND_FACTOR);
                context.show_item(&call, second_factor_state, second_factor_fields).await
            }
            Self::Enrol(given) => enrol_second_factor(context, &given).await,
            Self::Verify { code_stdin } => {
                let call =
                    request_with_code(context, operations::VERIFY_SECOND_FACTOR, code_stdin)?;
                context.show_item(&call, second_factor_state, second_factor_fields).await
            }
            Self::RecoveryCodes { code_stdin } => {
                let call =
                    request_with_code(context, operations::ISSUE_RECOVERY_CODES, code_stdin)?;
                show_recovery_codes(context, &call).await
            }
            Self::Delete(given) => {
                let password = given.read_password(context)?;
                let code = given.read_code(context)?;
                context.confirm_action("Delete your second factor?")?;
                let password = password.as_ref().map(|password| password.expose_secret());
                let body = input::without_nulls(
                    json!({ "password": password, "code": code.expose_secret() }),
                );
                let call = ApiRequest::for_operation(operations::DELETE_SECOND_FACTOR)
                    .with_json_body(&body);
                context.send_and_confirm(&call, "your second factor is deleted").await
            }
        }
    }
}

/// Builds a request with a code of the second factor.
fn request_with_code(
    context: &CliContext,
    operation: operations::Operation,
    code_stdin: bool,
) -> Result<ApiRequest> {
    let code = input::read_secret(context, SecretPrompt { stdin: code_stdin, ..CODE_PROMPT })?;
    let body = json!({ "code": code.expose_secret() });
    Ok(ApiRequest::for_operation(operation).with_json_body(&body))
}

fn second_factor_state(view: &SecondFactorView) -> String {
    if view.enrolled { "enrolled".to_owned() } else { "none".to_owned() }
}

fn second_factor_fields(
    view: &SecondFactorView,
    look: &ValueFormatter,
) -> Vec<(&'static str, String)> {
    vec![
        ("enrolled", look.format_yes_no(view.enrolled)),
        ("required", look.format_yes_no(view.required)),
        ("this session", look.format_yes_no(view.session_verified)),
        ("recovery codes", view.recovery_codes_left.to_string()),
    ]
}

async fn enrol_second_factor(context: &CliContext, given: &SecondFactorInput) -> Result<()> {
    let password = given.read_password(context)?;
    let password = password.as_ref().map(|password| password.expose_secret());
    let body = input::without_nulls(json!({ "password": password }));
    let call = ApiRequest::for_operation(operations::BEGIN_SECOND_FACTOR).with_json_body(&body);
    let enrolment: SecondFactorEnrolment = context.fetch_as(&call).await?;
    // The answer of the command is on standard output; what its person needs meanwhile is not.
    print_stderr_line(&format!("Secret: {}", enrolment.secret.0));
    print_stderr_line(&format!("Address: {}", enrolment.uri.0));
    print_stderr_line("Put one of them into your authenticator, then type the code that it shows.");
    let code = given.read_code(context)?;
    let call = ApiRequest::for_operation(operations::CONFIRM_SECOND_FACTOR)
        .with_json_body(&json!({ "code": code.expose_secret() }));
    show_recovery_codes(context, &call).await
}

async fn show_recovery_codes(context: &CliContext, call: &ApiRequest) -> Result<()> {
    let value = context.send_request(call).await?;
    context.show_answer(
        &value,
        |it: &RecoveryCodes| it.codes.iter().map(|code| code.0.clone()).collect(),
        |it, look| {
            let codes: Vec<(&str, String)> =
                it.codes.iter().map(|code| ("recovery code", code.0.clone())).collect();
            render_record(look.paint, &codes)
                + &look.style_dim("Keep them now: they are not shown again. Each works once.")
        },
    )
}
