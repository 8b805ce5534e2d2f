//! `cynork certificate`: the certificates of the installation.

use clap::Subcommand;
use cynode_wire::platform::certificates::{CertificateOrigin, CertificateUse, CertificateView};

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum CertificateCommand {
    /// List the certificates of the ports, of the certificate authority and of its clients, with the days that they have left.
    #[command(after_help = "Example: cynork certificate list")]
    List,
}

impl CertificateCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_certificates(context).await,
        }
    }
}

async fn list_certificates(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_CERTIFICATES),
            None,
            |certificate: &CertificateView| certificate.name.clone(),
            ["use", "from", "name", "valid for", "days left", "problems"],
            |certificate: &CertificateView, look| {
                [
                    look.style_bold(describe_use(certificate.used_for)),
                    describe_origin(certificate.origin).to_owned(),
                    certificate.name.clone(),
                    certificate.host_names.join(" "),
                    certificate.days_left.map(|days| days.to_string()).unwrap_or_default(),
                    certificate.problems.join("; "),
                ]
            },
        )
        .await
}

const fn describe_use(used_for: CertificateUse) -> &'static str {
    match used_for {
        CertificateUse::UserPort => "user port",
        CertificateUse::InternalPort => "internal port",
        CertificateUse::Authority => "authority",
        CertificateUse::Node => "node",
        CertificateUse::Service => "service",
    }
}

const fn describe_origin(origin: CertificateOrigin) -> &'static str {
    match origin {
        CertificateOrigin::Files => "files",
        CertificateOrigin::Acme => "ACME",
        CertificateOrigin::Own => "own authority",
    }
}
