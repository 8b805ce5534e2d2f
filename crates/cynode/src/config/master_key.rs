use std::{fmt, path::PathBuf, str::FromStr};

use super::reader::ConfigReader;

/// Place of the master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterKeySource {
    /// A file.
    File,
    /// A credential of systemd.
    Credential,
    /// A key management service with the transit protocol of Vault.
    Vault,
}

impl fmt::Display for MasterKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Credential => "credential",
            Self::Vault => "vault",
        })
    }
}

impl FromStr for MasterKeySource {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "file" => Ok(Self::File),
            "credential" => Ok(Self::Credential),
            "vault" => Ok(Self::Vault),
            _ => Err("expected `file`, `credential` or `vault`"),
        }
    }
}

/// The master key.
#[derive(Debug)]
pub(crate) struct MasterKeyConfig {
    pub(crate) source: MasterKeySource,
    /// Name of the credential.
    pub(crate) credential: String,
    /// Directory of the credentials of this process, as systemd names it.
    pub(crate) credentials_directory: Option<PathBuf>,
    /// The file of the master key that is being replaced.
    pub(crate) previous_file: Option<PathBuf>,
    pub(crate) vault_address: Option<String>,
    pub(crate) vault_mount: String,
    pub(crate) vault_key: String,
    pub(crate) vault_token_file: Option<PathBuf>,
    pub(crate) vault_namespace: Option<String>,
    /// Certificates of the authorities of the service.
    pub(crate) vault_ca_file: Option<PathBuf>,
}

impl MasterKeyConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let config = Self {
            source: reader.parse_value("master_key.source", MasterKeySource::File),
            credential: reader.parse_value("master_key.credential", "cynode-master-key".to_owned()),
            credentials_directory: credentials_directory(),
            previous_file: reader.optional_text("master_key.previous_file").map(PathBuf::from),
            vault_address: reader.optional_text("master_key.vault_address"),
            vault_mount: reader.parse_value("master_key.vault_mount", "transit".to_owned()),
            vault_key: reader.parse_value("master_key.vault_key", "cynode".to_owned()),
            vault_token_file: reader
                .optional_text("master_key.vault_token_file")
                .map(PathBuf::from),
            vault_namespace: reader.optional_text("master_key.vault_namespace"),
            vault_ca_file: reader.optional_text("master_key.vault_ca_file").map(PathBuf::from),
        };
        let is_complete = config.vault_address.is_some() && config.vault_token_file.is_some();
        if config.source == MasterKeySource::Vault && !is_complete {
            let missing = "master_key.source = \"vault\" needs vault_address and vault_token_file";
            reader.add_problem(missing.to_owned());
        }
        config
    }
}

/// Returns the directory of the credentials of this process.
#[expect(clippy::disallowed_methods, reason = "this is the config module")]
fn credentials_directory() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
}
