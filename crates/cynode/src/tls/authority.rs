//! Files of the own certificate authority and of what it issues.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use cynode_app::{
    AppEnvironment,
    platform::certificates::{CertificateAuthority, IssuedKey},
};
use cynode_net::tls::{CertificateFacts, KeySource, ReloadableKey, covers_name, load_certificates};
use cynode_wire::identity::accounts::SecretText;
use time::OffsetDateTime;

use crate::restate::{create_private_dir, write_private_file};

/// Name of the file with the certificate of the authority. Clients may have it.
pub(crate) const AUTHORITY_CERTIFICATE_FILE: &str = "ca.pem";
const AUTHORITY_KEY_FILE: &str = "ca.key";
const SERVER_CERTIFICATE_FILE: &str = "server.pem";
const SERVER_KEY_FILE: &str = "server.key";

/// Files of the authority.
#[derive(Clone, Debug)]
pub(crate) struct AuthorityFiles {
    directory: PathBuf,
}

impl AuthorityFiles {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns whether there is an authority.
    pub(crate) fn exist(&self) -> bool {
        self.certificate().exists() || self.key().exists()
    }

    /// Returns the path of the authority's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join(AUTHORITY_CERTIFICATE_FILE)
    }

    fn key(&self) -> PathBuf {
        self.directory.join(AUTHORITY_KEY_FILE)
    }

    /// Returns the paths of the certificate and of the key of the ports.
    pub(super) fn server_key(&self) -> (PathBuf, PathBuf) {
        (self.directory.join(SERVER_CERTIFICATE_FILE), self.directory.join(SERVER_KEY_FILE))
    }

    /// Returns whether the certificate of the ports is of this authority, fits its key, is valid for all names, and has more than a third
    /// of its lifetime left. Two processes that renew at once can leave the key of one and the certificate of the other.
    pub(super) fn has_usable_server_key(
        &self,
        authority: &CertificateAuthority,
        names: &[String],
        now: OffsetDateTime,
    ) -> bool {
        let (certificate, key) = self.server_key();
        let Ok(chain) = load_certificates(&certificate) else { return false };
        let [leaf, issuer, ..] = chain.as_slice() else { return false };
        let Ok(facts) = CertificateFacts::parse_der(leaf) else { return false };
        let renewal = facts.not_after - (facts.not_after - facts.not_before) / 3_i32;
        ReloadableKey::load_files(certificate, KeySource::File(key), now).is_ok()
            && issuer == authority.certificate()
            && now < renewal
            && names.iter().all(|name| covers_name(leaf, name))
    }

    /// Issues another certificate of the ports. The key is written first: a process that loads in between finds that they do not fit, and
    /// looks again.
    pub(super) fn renew_server_key(
        &self,
        authority: &CertificateAuthority,
        environment: &AppEnvironment,
        names: &[String],
    ) -> anyhow::Result<()> {
        let issued = authority.issue_server_key(environment, names)?;
        let (certificate, key) = self.server_key();
        write_issued_key(&issued, &certificate, &key)
    }
}

/// Writes a certificate chain and its key, which only the owner can read.
pub(crate) fn write_issued_key(
    issued: &IssuedKey,
    certificate: &Path,
    key: &Path,
) -> anyhow::Result<()> {
    write_private_file(key, &issued.key_pem)?;
    write_private_file(certificate, &issued.certificate.chain_pem)
}

/// Makes an authority, unless there is one. Its key is readable by its owner alone, and its certificate by everybody who reaches the
/// directory.
pub(crate) fn create_authority(
    files: &AuthorityFiles,
    environment: &AppEnvironment,
) -> anyhow::Result<()> {
    if files.exist() {
        return Ok(());
    }
    create_private_dir(&files.directory)?;
    let (certificate, key) = CertificateAuthority::generate_files(environment)?;
    // The key first: without its certificate it is no authority, and a second attempt says so.
    write_private_file(&files.key(), &key.0)?;
    write_private_file(&files.certificate(), &certificate)?;
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(files.certificate(), open)?;
    Ok(())
}

/// Opens the authority. It is never made here: with another one no node could connect.
pub(crate) fn open_authority(files: &AuthorityFiles) -> anyhow::Result<CertificateAuthority> {
    let (certificate, key) = (files.certificate(), files.key());
    let mode = fs::metadata(&key)
        .with_context(|| {
            format!("cannot read the key of the certificate authority {}", key.display())
        })?
        .permissions()
        .mode();
    ensure!(
        mode.trailing_zeros() >= 6,
        "others may read the key of the certificate authority {0}: chmod 600 {0}",
        key.display()
    );
    let chain = load_certificates(&certificate)?;
    let first = chain.into_iter().next().context("the certificate authority has no certificate")?;
    let pem = fs::read_to_string(&certificate)?;
    let key = SecretText(fs::read_to_string(&key)?);
    Ok(CertificateAuthority::from_pem(first, pem, &key)?)
}
