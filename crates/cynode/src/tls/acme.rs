//! A certificate of the user-facing port by ACME (RFC 8555) with the challenge tls-alpn-01 (RFC 8737), which the port itself answers.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use cynode_net::tls::{
    CertificateDer, CertificateFacts, ClientTls, ResolvesServerCert, covers_name, load_certificates,
};
use futures::StreamExt as _;
use rustls_acme::{AcmeConfig, AcmeState, caches::DirCache};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{AcmeConfigSection, CynodeConfig},
    restate::create_private_dir,
};

/// Prefix of the files of the ACME library in which certificates are.
const CACHED_CERTIFICATE_PREFIX: &str = "cached_cert_";

/// Directory with the account and the certificates.
#[derive(Clone, Debug)]
pub(super) struct AcmeDirectory(PathBuf);

impl AcmeDirectory {
    /// Returns the newest certificate.
    fn newest_certificate(&self) -> Option<CertificateDer<'static>> {
        let entries = fs::read_dir(&self.0).ok()?.filter_map(Result::ok);
        let certificates = entries.filter(|entry| {
            entry.file_name().to_string_lossy().starts_with(CACHED_CERTIFICATE_PREFIX)
        });
        let newest = certificates
            .max_by_key(|entry| entry.metadata().and_then(|found| found.modified()).ok())?;
        load_certificates(&newest.path()).ok()?.into_iter().next()
    }

    pub(super) fn facts(&self) -> Option<CertificateFacts> {
        CertificateFacts::parse_der(&self.newest_certificate()?).ok()
    }

    pub(super) fn covers_name(&self, host: &str) -> bool {
        self.newest_certificate().is_some_and(|leaf| covers_name(&leaf, host))
    }
}

/// Orders the certificate, and renews it when a third of its lifetime is left.
pub(super) struct AcmeRenewal {
    state: AcmeState<io::Error, io::Error>,
    directory: AcmeDirectory,
}

impl AcmeRenewal {
    /// Opens the account and the certificates of earlier processes. The resolver answers the challenges too.
    pub(super) fn open(
        config: &CynodeConfig,
        directory: Option<&Path>,
    ) -> anyhow::Result<(Self, Arc<dyn ResolvesServerCert>)> {
        let section = config.tls.acme.as_ref().context("tls.acme_domains is not set")?;
        let directory = directory.context("set storage.directory or tls.directory")?.join("acme");
        // The library writes private keys with the modes of new files.
        create_private_dir(&directory)?;
        let state = configure_acme(section, &directory)?;
        let resolver: Arc<dyn ResolvesServerCert> = state.resolver();
        Ok((Self { state, directory: AcmeDirectory(directory) }, resolver))
    }

    pub(super) fn directory(&self) -> AcmeDirectory {
        self.directory.clone()
    }

    /// Runs until `stop`. The library repeats what failed, with backoff.
    pub(super) async fn run_renewal(mut self, stop: CancellationToken) {
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = self.state.next() => event,
            };
            match event {
                Some(Ok(done)) => {
                    tracing::info!(event = "tls.acme_progress", step = ?done, "ACME");
                }
                Some(Err(error)) => {
                    tracing::error!(event = "tls.acme_failed", error = %error, "no certificate came by ACME; it is tried again");
                }
                None => return,
            }
        }
    }
}

fn configure_acme(
    section: &AcmeConfigSection,
    directory: &Path,
) -> anyhow::Result<AcmeState<io::Error, io::Error>> {
    let trust = match &section.root_file {
        Some(path) => ClientTls::trust_file(path).context("tls.acme_root_file")?,
        None => ClientTls::default(),
    };
    let client = Arc::new(trust.to_config()?);
    let config = AcmeConfig::new_with_client_config(&section.domains, client)
        .contact(section.contact.iter())
        .directory(&section.directory_url)
        .cache(DirCache::new(directory.to_owned()));
    Ok(config.state())
}
