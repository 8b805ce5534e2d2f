//! Account and session: the first admin, login and logout, and the status of the installation.

use std::time::Duration;

use clap::{Args, Subcommand};
use cynode_wire::identity::{
    accounts::{MeView, SessionView},
    single_sign_on::{DeviceLoginCodes, DeviceTokenAnswer, DeviceTokenStatus},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{
    keyring::show_keyring,
    readiness::{StatusArgs, show_diagnosis},
};
use crate::{
    cli,
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{ValueFormatter, to_plain_text},
    input::{self, SecretPrompt},
    operations,
};

/// How often one command asks for a password.
const MAX_LOGIN_ATTEMPTS: u32 = 3;

#[derive(Subcommand)]
pub(crate) enum AccountCommand {
    /// Create the first admin of a new installation, with the link in the file that `cynode up` names.
    #[command(
        after_help = "Example: cynork setup --link-file /var/lib/cynode/setup-link --handle ada"
    )]
    Setup(SetupArgs),
    /// Log in and store the session: with a password, or with --sso in a browser.
    #[command(after_help = "Example: cynork login http://127.0.0.1:12080 --handle ada")]
    Login(LoginArgs),
    /// Log out and end the session.
    #[command(after_help = "Example: cynork logout")]
    Logout,
    /// Show the current user and their role.
    #[command(after_help = "Example: cynork whoami --json")]
    Whoami,
    /// Change your own password; your other sessions end.
    #[command(after_help = "Example: cynork password --revoke-keys")]
    Password(PasswordArgs),
    /// Log in with the link that `cynode admin break-glass` printed on the host, when the usual way is closed.
    #[command(after_help = "Example: cynork break-glass --link-file /root/link")]
    BreakGlass(BreakGlassArgs),
    /// Check whether the installation can run tasks, and show how to fix what fails.
    #[command(after_help = "Example: cynork status --project web")]
    Status(StatusArgs),
    /// Diagnose the installation as an admin: what the server checks by itself, with what to do about it.
    #[command(after_help = "Example: cynork doctor")]
    Doctor,
    /// List the keys of the installation as an admin, with their age and what names them.
    #[command(after_help = "Example: cynork keyring")]
    Keyring,
}

#[derive(Args)]
pub(crate) struct SetupArgs {
    /// `-` reads the link from standard input; an address is for a link that is a token alone. Without a file, the link is asked for.
    #[arg(value_name = "ADDRESS", conflicts_with = "link_file")]
    address: Option<String>,
    /// File with the link, or with the token in it.
    #[arg(long, value_name = "FILE")]
    link_file: Option<String>,
    /// Handle to log in with.
    #[arg(long)]
    handle: String,
    /// Display name; defaults to the handle.
    #[arg(long)]
    name: Option<String>,
    /// Read the password from the next line of standard input.
    #[arg(long)]
    password_stdin: bool,
}

#[derive(Args)]
pub(crate) struct PasswordArgs {
    /// Read the old and the new password from the first two lines of standard input.
    #[arg(long)]
    password_stdin: bool,
    /// Revoke every API key of yours, too.
    #[arg(long)]
    revoke_keys: bool,
}

#[derive(Args)]
pub(crate) struct BreakGlassArgs {
    /// File with the link; standard input or a prompt by default.
    #[arg(long, value_name = "FILE")]
    link_file: Option<String>,
    /// Set a new password, which is typed.
    #[arg(long)]
    new_password: bool,
    /// Read a new password from the next line of standard input.
    #[arg(long)]
    password_stdin: bool,
    /// Delete your second factor, if you have lost it.
    #[arg(long)]
    delete_second_factor: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub(crate) struct LoginArgs {
    /// URL of the installation.
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// Log in by single sign-on: show a code that you confirm in the console, in a browser on any machine.
    #[arg(long, conflicts_with_all = ["handle", "password_stdin", "code_stdin", "api_key_stdin"])]
    sso: bool,
    /// Your handle.
    #[arg(long)]
    handle: Option<String>,
    /// Read the password from the first line of standard input.
    #[arg(long, conflicts_with = "api_key_stdin")]
    password_stdin: bool,
    /// Read the code of the second factor from the next line of standard input.
    #[arg(long, conflicts_with = "api_key_stdin")]
    code_stdin: bool,
    /// Store an API key from standard input instead of a session.
    #[arg(long)]
    api_key_stdin: bool,
    /// Credential helper: a program that stores the session instead of the file; see docs/reference/cynork.md.
    #[arg(long, value_name = "PROGRAM", num_args = 1..)]
    helper: Option<Vec<String>>,
}

impl AccountCommand {
    pub(crate) async fn run(self, context: &mut CliContext) -> Result<()> {
        match self {
            Self::Setup(setup) => setup.run(context).await,
            Self::Login(login) => login.run(context).await,
            Self::Logout => log_out(context).await,
            Self::Whoami => show_identity(context).await,
            Self::Password(password) => password.run(context).await,
            Self::BreakGlass(link) => link.run(context).await,
            Self::Status(status) => status.run(context).await,
            Self::Doctor => show_diagnosis(context).await,
            Self::Keyring => show_keyring(context).await,
        }
    }
}

/// Parses a setup link into address and token; a token alone is for the selected installation.
fn parse_setup_link(link: &str) -> (Option<String>, String) {
    let Some((before, token)) = link.trim().split_once("#bootstrap=") else {
        return (None, link.trim().to_owned());
    };
    let address = before.strip_suffix("/setup").unwrap_or(before);
    (Some(address.to_owned()), token.to_owned())
}

/// Refuses an argument that holds the setup token: every process of the machine can read arguments.
fn require_no_token(argument: &str) -> Result<()> {
    if !argument.contains("bootstrap=") && !argument.contains("cyn_boot_") {
        return Ok(());
    }
    let what = "the setup link is a secret, and others on this machine can read arguments";
    Err(CliError::new(CliErrorKind::Usage, what).with_fix(
        "give its file with --link-file, or the link on standard input: cynork setup - --handle NAME",
    ))
}

impl SetupArgs {
    /// Reads the link: from a file, from standard input, or typed without echo.
    fn read_link(&self, context: &CliContext) -> Result<SecretString> {
        if let Some(file) = self.link_file.as_deref().filter(|file| *file != "-") {
            let text = input::read_file_text(file).map_err(|error| {
                error.with_fix(format!(
                    "if only the account of `cynode up` can read it: show it with `sudo cat {file}`, then `cynork setup --handle NAME` asks for the link"
                ))
            })?;
            return Ok(text.into());
        }
        let named = self.address.as_deref() == Some("-") || self.link_file.is_some();
        let ask = SecretPrompt {
            prompt: "Setup link",
            flag: "-",
            stdin: named || !context.is_interactive(),
        };
        input::read_secret(context, ask)
    }

    async fn run(self, context: &mut CliContext) -> Result<()> {
        for argument in self.address.iter().chain(&self.link_file) {
            require_no_token(argument)?;
        }
        let link = self.read_link(context)?;
        let (address, token) = parse_setup_link(link.expose_secret());
        let address = address.or_else(|| self.address.clone().filter(|address| address != "-"));
        if let Some(address) = address {
            context.client = context.client.for_base_url(&cli::validate_base_url(&address)?)?;
        }
        let ask = SecretPrompt {
            prompt: "Choose a password",
            flag: "--password-stdin",
            stdin: self.password_stdin,
        };
        let password = input::read_new_password(context, ask)?;
        let name = self.name.unwrap_or_else(|| self.handle.clone());
        let body = json!({ "token": token, "handle": self.handle, "display_name": name,
            "password": password.expose_secret() });
        let call = ApiRequest::for_operation(operations::BOOTSTRAP).with_json_body(&body);
        let made: Value = context.send_request(&call).await?;
        open_session(context, &self.handle, &password, None).await?;
        let words = format!("you are {}, the first admin, and logged in", self.handle);
        context.out.print_success(&made, &words)
    }
}

impl LoginArgs {
    async fn run(self, context: &mut CliContext) -> Result<()> {
        if let Some(address) = &self.address {
            context.client = context.client.for_base_url(&cli::validate_base_url(address)?)?;
        }
        if let Some(helper) = self.helper {
            context.file.kept.credential_helper = Some(helper);
        }
        if self.api_key_stdin {
            let token = input::read_stdin_line()?;
            context.client = context.client.clone().with_token(token.clone());
            let me = context.send_request(&ApiRequest::for_operation(operations::ME)).await?;
            store_session_token(context, &token)?;
            return context
                .out
                .print_success(&me, &format!("you are {}", to_plain_text(&me["user"]["handle"])));
        }
        if self.sso {
            return log_in_by_device(context).await;
        }
        let handle = match self.handle {
            Some(handle) => handle,
            None if context.is_interactive() => dialoguer::Input::<String>::new()
                .with_prompt("Your name there")
                .interact_text()
                .map_err(|error| CliError::invalid_input(error.to_string()))?,
            None => {
                return Err(CliError::new(CliErrorKind::Usage, "who are you?")
                    .with_fix("say it with --handle"));
            }
        };
        let ask = SecretPrompt {
            prompt: "Password",
            flag: "--password-stdin",
            stdin: self.password_stdin,
        };
        // A person may mistype a password and try again; a program gets the error at once.
        let mut attempts = if self.password_stdin { 1 } else { MAX_LOGIN_ATTEMPTS };
        loop {
            let password = input::read_secret(context, ask)?;
            attempts -= 1;
            match log_in(context, &handle, &password, self.code_stdin).await {
                Err(failure) if failure.kind == CliErrorKind::Refused && attempts > 0 => {
                    crate::output::print_stderr_line(&format!("{}; type it again", failure.detail));
                }
                done => break done?,
            }
        }
        let me = context.send_request(&ApiRequest::for_operation(operations::ME)).await?;
        context
            .out
            .print_success(&me, &format!("logged in to {} as {handle}", context.client.base_url()))
    }
}

/// Returns what this device calls itself. A person sees it who confirms its login.
fn device_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(char::is_ascii_graphic).take(100).collect();
    if host.is_empty() { "cynork".to_owned() } else { format!("cynork on {host}") }
}

/// Logs in by a code that a person confirms in the console (RFC 8628), and stores the session.
async fn log_in_by_device(context: &mut CliContext) -> Result<()> {
    let asked = json!({ "device": device_name() });
    let call = ApiRequest::for_operation(operations::BEGIN_DEVICE_LOGIN).with_json_body(&asked);
    let codes: DeviceLoginCodes = context.client.send(&call).await?;
    crate::output::print_stderr_line(&format!(
        "Open {} and confirm the code {}.\nCompare the code: if another one is shown, deny it. Nobody who asks you for it has a right to it.",
        codes.verification_uri_complete, codes.user_code
    ));
    let token = wait_for_device_session(context, &codes).await?;
    context.client = context.client.clone().with_token(token.clone());
    store_session_token(context, &token)?;
    let me = context.send_request(&ApiRequest::for_operation(operations::ME)).await?;
    let handle = to_plain_text(&me["user"]["handle"]);
    context
        .out
        .print_success(&me, &format!("logged in to {} as {handle}", context.client.base_url()))
}

/// Asks whether the login was confirmed until it was, or its codes have expired.
async fn wait_for_device_session(
    context: &CliContext,
    codes: &DeviceLoginCodes,
) -> Result<SecretString> {
    let body = json!({ "device_code": codes.device_code });
    let call = ApiRequest::for_operation(operations::REDEEM_DEVICE_CODE).with_json_body(&body);
    let mut pause = Duration::from_secs(codes.interval.max(1).into());
    loop {
        let mut turn = tokio::time::interval(pause);
        turn.tick().await;
        turn.tick().await;
        let answer: DeviceTokenAnswer = context.client.send(&call).await?;
        let refused = |what: &str| {
            CliError::new(CliErrorKind::Refused, what).with_fix("run cynork login --sso again")
        };
        match (answer.status, answer.session) {
            (DeviceTokenStatus::Granted, Some(session)) => return Ok(session.token.0.into()),
            (DeviceTokenStatus::Granted, None) => {
                return Err(CliError::internal_error("the answer has no session"));
            }
            (DeviceTokenStatus::AuthorizationPending, _) => {}
            (DeviceTokenStatus::SlowDown, _) => pause += Duration::from_secs(5),
            (DeviceTokenStatus::AccessDenied, _) => return Err(refused("the login was denied")),
            (DeviceTokenStatus::ExpiredToken, _) => {
                return Err(refused("nobody confirmed the login in time"));
            }
        }
    }
}

/// The prompt for the code of a second factor.
pub(super) const CODE_PROMPT: SecretPrompt<'_> = SecretPrompt {
    prompt: "Code of your second factor, or a recovery code",
    flag: "--code-stdin",
    stdin: false,
};

/// Problem code of a login that lacks the code of the second factor.
const SECOND_FACTOR_REQUIRED: &str = "second_factor_required";

/// Logs in. Asks for the code of the second factor where the account has one.
async fn log_in(
    context: &mut CliContext,
    handle: &str,
    password: &SecretString,
    code_stdin: bool,
) -> Result<()> {
    match open_session(context, handle, password, None).await {
        Err(failure) if failure.code.as_deref() == Some(SECOND_FACTOR_REQUIRED) => {
            let ask = SecretPrompt { stdin: code_stdin, ..CODE_PROMPT };
            let code = input::read_secret(context, ask)?;
            open_session(context, handle, password, Some(&code)).await
        }
        done => done,
    }
}

/// Sends a login and stores the session.
async fn open_session(
    context: &mut CliContext,
    handle: &str,
    password: &SecretString,
    code: Option<&SecretString>,
) -> Result<()> {
    let code = code.map(|code| code.expose_secret());
    let body = input::without_nulls(
        json!({ "handle": handle, "password": password.expose_secret(), "code": code }),
    );
    let call = ApiRequest::for_operation(operations::LOGIN).with_json_body(&body);
    let session: SessionView = context.client.send(&call).await?;
    keep_session(context, session)
}

/// Uses a session from now on, and stores it.
fn keep_session(context: &mut CliContext, session: SessionView) -> Result<()> {
    let token: SecretString = session.token.0.into();
    context.client = context.client.clone().with_token(token.clone());
    store_session_token(context, &token)
}

impl PasswordArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let ask =
            |prompt| SecretPrompt { prompt, flag: "--password-stdin", stdin: self.password_stdin };
        let old = input::read_secret(context, ask("Your present password"))?;
        let new = input::read_new_password(context, ask("New password"))?;
        let body = input::without_nulls(json!({ "old_password": old.expose_secret(),
            "new_password": new.expose_secret(), "revoke_keys": self.revoke_keys.then_some(true) }));
        let call = ApiRequest::for_operation(operations::CHANGE_PASSWORD).with_json_body(&body);
        context.send_and_confirm(&call, "the new password holds; your other sessions ended").await
    }
}

/// Parses a break-glass link into address and token; a token alone is for the selected installation.
fn parse_break_glass_link(link: &str) -> (Option<String>, String) {
    match link.trim().split_once("/break-glass#token=") {
        Some((address, token)) => (Some(address.to_owned()), token.to_owned()),
        None => (None, link.trim().to_owned()),
    }
}

impl BreakGlassArgs {
    async fn run(self, context: &mut CliContext) -> Result<()> {
        let link: SecretString = match &self.link_file {
            Some(file) => input::read_file_text(file)?.into(),
            None => {
                let stdin = !context.is_interactive();
                let ask = SecretPrompt { prompt: "Link", flag: "--link-file", stdin };
                input::read_secret(context, ask)?
            }
        };
        let (address, token) = parse_break_glass_link(link.expose_secret());
        if let Some(address) = address {
            context.client = context.client.for_base_url(&cli::validate_base_url(&address)?)?;
        }
        let password = if self.new_password || self.password_stdin {
            let ask = SecretPrompt {
                prompt: "New password",
                flag: "--password-stdin",
                stdin: self.password_stdin,
            };
            Some(input::read_new_password(context, ask)?)
        } else {
            None
        };
        let password = password.as_ref().map(|password| password.expose_secret());
        let body = input::without_nulls(json!({ "token": token, "new_password": password,
            "delete_second_factor": self.delete_second_factor.then_some(true) }));
        let call = ApiRequest::for_operation(operations::REDEEM_BREAK_GLASS).with_json_body(&body);
        let session: SessionView = context.client.send(&call).await?;
        keep_session(context, session)?;
        let me = context.send_request(&ApiRequest::for_operation(operations::ME)).await?;
        let handle = to_plain_text(&me["user"]["handle"]);
        context.out.print_success(&me, &format!("you are {handle} for one hour"))
    }
}

pub(crate) fn store_session_token(context: &mut CliContext, token: &SecretString) -> Result<()> {
    context.file.kept.url = Some(context.client.base_url().to_owned());
    context.file.store_token(Some(token))
}

async fn log_out(context: &mut CliContext) -> Result<()> {
    if !context.client.has_token() {
        return context.out.print_success(&Value::Null, "nobody was logged in");
    }
    let ended: Result<Value> =
        context.send_request(&ApiRequest::for_operation(operations::LOGOUT)).await;
    // A session that the server does not know any more is deleted here too.
    if let Err(failure) = ended
        && failure.kind != CliErrorKind::Refused
    {
        return Err(failure);
    }
    context.file.store_token(None)?;
    context.out.print_success(&Value::Null, "logged out")
}

async fn show_identity(context: &CliContext) -> Result<()> {
    let base = context.client.base_url().to_owned();
    let sides = |me: &MeView, look: &ValueFormatter| {
        let user = &me.user;
        vec![
            ("name", look.style_bold(user.handle.as_str())),
            ("shown as", user.display_name.to_string()),
            (
                "may do",
                match (me.installation_role, me.needs_second_factor) {
                    (Some(role), _) => role.as_str().to_owned(),
                    (None, true) => {
                        "what projects allow, until you have a second factor: cynork second-factor enrol"
                            .to_owned()
                    }
                    (None, false) => "what projects allow".to_owned(),
                },
            ),
            ("id", user.id.to_string()),
            ("at", base),
        ]
    };
    context
        .show_item(
            &ApiRequest::for_operation(operations::ME),
            |me: &MeView| me.user.handle.to_string(),
            sides,
        )
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_an_installation_and_a_token() {
        let taken = parse_setup_link(" http://127.0.0.1:12080/#bootstrap=abc\n");
        assert_eq!(taken, (Some("http://127.0.0.1:12080/".to_owned()), "abc".to_owned()));
        let taken = parse_setup_link("http://127.0.0.1:12080/setup#bootstrap=abc");
        assert_eq!(taken, (Some("http://127.0.0.1:12080".to_owned()), "abc".to_owned()));
        assert_eq!(parse_setup_link("abc"), (None, "abc".to_owned()));
    }

    #[test]
    fn a_break_glass_link_is_an_installation_and_a_token() {
        let taken = parse_break_glass_link("https://cynode.example/break-glass#token=abc\n");
        assert_eq!(taken, (Some("https://cynode.example".to_owned()), "abc".to_owned()));
        assert_eq!(parse_break_glass_link("abc"), (None, "abc".to_owned()));
    }

    #[test]
    fn an_argument_with_the_token_in_it_is_refused_with_what_to_type() {
        for argument in ["http://127.0.0.1:12080/#bootstrap=cyn_boot_abc", "cyn_boot_abc"] {
            let refused = require_no_token(argument).unwrap_err();
            assert_eq!(refused.kind, CliErrorKind::Usage);
            assert!(refused.fix.unwrap().contains("--link-file"));
        }
        for argument in ["-", "http://127.0.0.1:12080", "/var/lib/cynode/setup-link"] {
            assert!(require_no_token(argument).is_ok());
        }
    }
}
