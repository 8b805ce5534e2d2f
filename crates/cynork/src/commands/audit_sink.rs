//! `cynork audit sink`: receivers of audit records outside of the installation.

use clap::{Args, Subcommand};
use cynode_wire::tools::audit::AuditSinkView;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::ValueFormatter,
    input::{self, SecretPrompt},
    operations,
};

#[derive(Subcommand)]
pub(crate) enum AuditSinkCommand {
    /// List the sinks of audit records with their lag.
    #[command(after_help = "Example: cynork audit sink list")]
    List,
    /// Create or replace a sink. Its position stays, and nothing is lost while it is down.
    #[command(
        after_help = "Example: cynork audit sink set siem --syslog tls --address siem.example.com:6514"
    )]
    Set(Box<AuditSinkSetArgs>),
    /// Delete a sink and its position.
    #[command(after_help = "Example: cynork audit sink delete siem")]
    Delete {
        /// Name of the sink.
        sink: String,
    },
}

#[derive(Args)]
pub(crate) struct AuditSinkSetArgs {
    /// Name of the sink.
    sink: String,
    /// Send syslog messages (RFC 5424) by this transport.
    #[arg(long, value_name = "TRANSPORT", value_parser = ["tcp", "tls", "unix"], requires = "address")]
    syslog: Option<String>,
    /// HOST:PORT of the syslog server, or the path of its Unix socket.
    #[arg(long, requires = "syslog")]
    address: Option<String>,
    /// PEM file with the certificates of the authorities of a TLS server; defaults to those of the server's machine.
    #[arg(long, value_name = "FILE", requires = "syslog")]
    server_ca_file: Option<String>,
    /// Send signed webhooks to this URL. The secret (`whsec_…`) is typed, or read from standard input.
    #[arg(long, value_name = "URL", conflicts_with_all = ["syslog", "bucket"])]
    webhook: Option<String>,
    /// Write objects to this bucket of an S3 store. The secret access key is typed, or read from standard input.
    #[arg(long, conflicts_with_all = ["syslog", "webhook"], requires_all = ["region", "access_id"])]
    bucket: Option<String>,
    /// Endpoint of the store; defaults to that of AWS.
    #[arg(long, value_name = "URL", requires = "bucket")]
    endpoint: Option<String>,
    /// Region of the bucket.
    #[arg(long, requires = "bucket")]
    region: Option<String>,
    /// First part of the names of objects.
    #[arg(long, requires = "bucket")]
    prefix: Option<String>,
    /// Id of the access key.
    #[arg(long, value_name = "ID", requires = "bucket")]
    access_id: Option<String>,
    /// Read the secret from the first line of standard input.
    #[arg(long)]
    secret_stdin: bool,
    /// Store the sink disabled.
    #[arg(long)]
    disabled: bool,
}

impl AuditSinkCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => {
                let call = ApiRequest::for_operation(operations::LIST_AUDIT_SINKS);
                let heads = ["name", "kind", "in use", "behind", "sent", "error"];
                let name = |it: &AuditSinkView| it.name.clone();
                context.show_list(&call, None, name, heads, sink_row).await
            }
            Self::Set(set) => set.run(context).await,
            Self::Delete { sink } => {
                context.confirm_action(&format!("Delete the sink {sink} and its position?"))?;
                let call = ApiRequest::with_path_params(operations::DELETE_AUDIT_SINK, [&sink]);
                context.send_and_confirm(&call, &format!("{sink} is deleted")).await
            }
        }
    }
}

impl AuditSinkSetArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let (target, needs_secret) = self.build_target()?;
        let mut body = json!({ "target": target, "enabled": !self.disabled });
        if needs_secret {
            let ask = SecretPrompt {
                prompt: "Secret (empty: keep the stored one)",
                flag: "--secret-stdin",
                stdin: self.secret_stdin,
            };
            if let Some(secret) = input::read_optional_secret(context, ask)? {
                body["secret"] = secret.expose_secret().into();
            }
        }
        let call = ApiRequest::with_path_params(operations::SET_AUDIT_SINK, [&self.sink])
            .with_json_body(&body);
        let sentence = |it: &AuditSinkView, _: &ValueFormatter| {
            format!("{} gets audit records; {} are on their way", it.name, it.lag_records)
        };
        context.show_outcome(&call, |it: &AuditSinkView| it.name.clone(), sentence).await
    }

    /// Returns the target, and whether it has a secret.
    fn build_target(&self) -> Result<(Value, bool)> {
        if let (Some(transport), Some(address)) = (&self.syslog, &self.address) {
            let mut target =
                json!({ "kind": "syslog", "transport": transport, "address": address });
            if let Some(file) = &self.server_ca_file {
                target["ca_pem"] = input::read_file_text(file)?.into();
            }
            return Ok((target, false));
        }
        if let Some(url) = &self.webhook {
            return Ok((json!({ "kind": "webhook", "url": url }), true));
        }
        if let (Some(bucket), Some(region), Some(id)) =
            (&self.bucket, &self.region, &self.access_id)
        {
            let mut target = json!({
                "kind": "object_store", "bucket": bucket, "region": region, "access_key_id": id,
                "prefix": self.prefix.as_deref().unwrap_or_default(),
            });
            if let Some(endpoint) = &self.endpoint {
                target["endpoint"] = endpoint.as_str().into();
            }
            return Ok((target, true));
        }
        Err(CliError::new(CliErrorKind::Usage, "the sink has no target")
            .with_fix("give --syslog with --address, --webhook, or --bucket"))
    }
}

fn sink_row(it: &AuditSinkView, look: &ValueFormatter) -> [String; 6] {
    [
        look.style_bold(&it.name),
        it.kind.clone(),
        look.format_yes_no(it.enabled),
        format!("{} records, {} s", it.lag_records, it.lag_seconds),
        look.format_optional_time(it.sent_at),
        it.error.clone().unwrap_or_default(),
    ]
}
