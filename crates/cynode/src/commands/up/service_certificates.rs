//! Client certificates of the programs that `up` starts.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use cynode_app::{
    App,
    identity::service_tokens::ServiceKind,
    platform::certificates::{self, EarlierCertificates},
};
use cynode_core::names::Title;
use tokio_util::sync::CancellationToken;

use super::{InstallationPlace, write_program_file};
use crate::{
    config::CynodeConfig,
    program_zone::{ProgramKind, ProgramZone},
    tls::{self, AuthorityFiles, PortProtection},
};

/// Interval at which the certificates are renewed. They are valid for much longer.
const RENEWAL_INTERVAL: Duration = Duration::from_hours(7 * 24);

/// The programs, with the names of their files.
const SERVICES: [(ServiceKind, ProgramKind, &str); 3] = [
    (ServiceKind::Runner, ProgramKind::Runner, "runner"),
    (ServiceKind::Manager, ProgramKind::Manager, "manager"),
    (ServiceKind::Analyst, ProgramKind::Analyst, "analyst"),
];

/// A program, with the zone that its files are given to.
#[derive(Clone, Debug)]
struct CertifiedProgram {
    kind: ServiceKind,
    name: &'static str,
    zone: ProgramZone,
}

/// Client certificates of the runner, the project manager and the analyst.
#[derive(Clone, Debug)]
pub(super) struct ServiceCertificates {
    authority: AuthorityFiles,
    directory: PathBuf,
    programs: Vec<CertifiedProgram>,
}

impl ServiceCertificates {
    /// Returns them, if the internal port speaks TLS.
    pub(super) fn for_config(
        config: &CynodeConfig,
        place: InstallationPlace<'_>,
    ) -> anyhow::Result<Option<Self>> {
        let encrypted = PortProtection::of_internal_port(config).is_encrypted();
        let Some(authority) = tls::authority_directory(config).filter(|_| encrypted) else {
            return Ok(None);
        };
        let mut programs = Vec::new();
        for (kind, program, name) in SERVICES {
            programs.push(CertifiedProgram { kind, name, zone: place.zone_of(program)? });
        }
        Ok(Some(Self {
            authority: AuthorityFiles::in_directory(&authority),
            directory: place.dir.to_owned(),
            programs,
        }))
    }

    /// Issues a certificate to each program, and gives it a copy of the authority's: its user cannot enter the directory of the authority.
    pub(super) async fn issue_all(
        &self,
        app: &App,
        earlier: EarlierCertificates,
    ) -> anyhow::Result<()> {
        let authority = tls::open_authority(&self.authority)?;
        let service: Title = "up".parse()?;
        for CertifiedProgram { kind, name, zone } in &self.programs {
            let issued = certificates::issue_service_certificate(
                app,
                &authority,
                *kind,
                &service,
                &[],
                earlier,
            );
            let (certificate, key) = self.files_of(name);
            tls::write_issued_key(&issued.await?, &certificate, &key)?;
            zone.own_file(&key)?;
            zone.own_file(&certificate)?;
            write_program_file(zone, &self.authority_file_of(name), authority.certificate_pem())?;
        }
        Ok(())
    }

    fn files_of(&self, name: &str) -> (PathBuf, PathBuf) {
        let file = |end: &str| self.directory.join(format!("{name}-client.{end}"));
        (file("pem"), file("key"))
    }

    fn authority_file_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}-ca.pem"))
    }

    /// Returns the arguments of a program that uses its certificate.
    pub(super) fn arguments_of(&self, name: &str) -> Vec<OsString> {
        let (certificate, key) = self.files_of(name);
        vec![
            "--ca-file".into(),
            self.authority_file_of(name).into(),
            "--certificate-file".into(),
            certificate.into(),
            "--key-file".into(),
            key.into(),
        ]
    }

    /// Returns the argument with which a node trusts the authority.
    pub(super) fn node_arguments(&self) -> Vec<OsString> {
        vec!["--ca-file".into(), self.authority.certificate().into()]
    }

    /// Renews the certificates in time, until `stop`. The programs load the changed files by themselves.
    pub(super) async fn run_renewal(self, app: App, stop: CancellationToken) {
        loop {
            if tokio::time::timeout(RENEWAL_INTERVAL, stop.cancelled()).await.is_ok() {
                return;
            }
            if let Err(error) = self.issue_all(&app, EarlierCertificates::Keep).await {
                tracing::error!(
                    event = "tls.renewal_failed",
                    error = format!("{error:#}"),
                    "the client certificates of the programs could not be renewed; it is tried again"
                );
            }
        }
    }
}
