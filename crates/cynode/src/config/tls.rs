use std::path::{Path, PathBuf};

use cynode_net::transport;

use super::{CynodeConfig, ENGINE_SOCKET_PREFIX, reader::ConfigReader};

/// Directory of a public certificate authority that speaks ACME.
const DEFAULT_ACME_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// TLS of the ports, and what may go without it.
#[derive(Debug)]
pub(crate) struct TlsConfig {
    /// Certificate chain and key of the user-facing port.
    pub(crate) files: Option<(PathBuf, PathBuf)>,
    /// Certificate of the user-facing port by ACME.
    pub(crate) acme: Option<AcmeConfigSection>,
    /// Directory of the installation's own certificate authority.
    pub(crate) directory: Option<PathBuf>,
    /// Further names and addresses of certificates that the own authority issues.
    pub(crate) names: Vec<String>,
    /// Whether ports on loopback speak TLS too.
    pub(crate) on_loopback: bool,
    /// Whether connections that this process opens may leave the machine in clear text.
    pub(crate) insecure: bool,
}

/// A certificate by ACME.
#[derive(Clone, Debug)]
pub(crate) struct AcmeConfigSection {
    pub(crate) domains: Vec<String>,
    pub(crate) contact: Option<String>,
    pub(crate) directory_url: String,
    /// Roots that the ACME server is verified with, if they are not those of the machine.
    pub(crate) root_file: Option<PathBuf>,
}

impl TlsConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let path = |reader: &mut ConfigReader, key| reader.optional_text(key).map(PathBuf::from);
        let certificate = path(reader, "tls.certificate_file");
        let key = path(reader, "tls.key_file");
        let domains = reader.lowercase_list("tls.acme_domains");
        let contact = reader.optional_text("tls.acme_contact");
        let directory_url =
            reader.parse_value("tls.acme_directory_url", DEFAULT_ACME_DIRECTORY.to_owned());
        let root_file = path(reader, "tls.acme_root_file");
        let files = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                let problem = "tls.certificate_file and tls.key_file are given together";
                reader.add_problem(problem.to_owned());
                None
            }
        };
        if files.is_some() && !domains.is_empty() {
            reader
                .add_problem("give tls.certificate_file or tls.acme_domains, not both".to_owned());
        }
        if !directory_url.starts_with("https://") {
            reader.add_problem("tls.acme_directory_url begins with https://".to_owned());
        }
        let acme = AcmeConfigSection { domains, contact, directory_url, root_file };
        Self {
            files,
            acme: (!acme.domains.is_empty()).then_some(acme),
            directory: path(reader, "tls.directory"),
            names: reader.lowercase_list("tls.names"),
            on_loopback: reader.parse_value("tls.loopback", false),
            insecure: reader.parse_value("tls.insecure", false),
        }
    }
}

/// Adds a problem for each connection that would leave this machine in clear text. With `tls.insecure` they are allowed, and returned so
/// that every start warns of them.
pub(super) fn check_connections(config: &CynodeConfig, reader: &mut ConfigReader) -> Vec<String> {
    let mut clear_text = Vec::new();
    let addresses = [
        ("engine.ingress_url", &config.engine.ingress_url),
        ("engine.admin_url", &config.engine.admin_url),
        ("engine.runner_url", &config.engine.runner_url),
        ("manager.url", &config.manager.url),
        ("master_key.vault_address", &config.master_key.vault_address),
    ];
    for (key, address) in addresses {
        let Some(address) = address else { continue };
        let socket = address.strip_prefix(ENGINE_SOCKET_PREFIX);
        if let Some(path) =
            socket.filter(|_| ["engine.ingress_url", "engine.admin_url"].contains(&key))
        {
            if !Path::new(path).is_absolute() {
                reader.add_problem(format!("{key}: `{address}` has no absolute path of a socket"));
            }
            continue;
        }
        match transport::check_transport(address, config.tls.insecure) {
            Ok(transport::Transport::Insecure) => clear_text.push(key.to_owned()),
            Ok(_) => {}
            Err(transport::TransportError::ClearText(origin)) => reader.add_problem(format!(
                "{key}: {origin} is not encrypted, and not on this machine: use https, or set tls.insecure = true"
            )),
            Err(error @ transport::TransportError::Malformed(_)) => {
                reader.add_problem(format!("{key}: {error}"));
            }
        }
    }
    for key in config.database.unprotected_keys() {
        if config.tls.insecure {
            clear_text.push(key.to_owned());
        } else {
            reader.add_problem(format!(
                "{key}: the database is not on this machine, and its name is not verified: add `?sslmode=verify-full` (and \
                 `&sslrootcert=FILE` for an authority of your own), or set tls.insecure = true"
            ));
        }
    }
    clear_text
}
