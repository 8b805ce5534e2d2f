//! What `cynode doctor` says about certificates, without a running server.

use std::path::Path;

use cynode_app::AppEnvironment;
use cynode_net::tls::{CertificateFacts, KeySource, ReloadableKey, covers_name, load_certificates};
use cynode_wire::platform::health::ReadinessCheck;
use time::OffsetDateTime;

use super::{
    AuthorityFiles, PortProtection, authority_directory, expected_user_names, open_authority,
};
use crate::config::CynodeConfig;

/// Days before the end of a certificate from which on the check warns.
const EXPIRY_WARNING_DAYS: i64 = 14;

/// Checks the certificates that the configuration names, and that no port beyond loopback speaks clear text.
pub(crate) fn check_tls(config: &CynodeConfig) -> Vec<ReadinessCheck> {
    let now = AppEnvironment::from_system().now();
    let mut checks = Vec::new();
    let user = PortProtection::of_user_port(config);
    if let (PortProtection::Files, Some((certificate, key))) = (user, &config.tls.files) {
        checks.push(check_files(config, certificate, key, now));
    }
    let own = [user, PortProtection::of_internal_port(config)].contains(&PortProtection::Own);
    if own {
        checks.push(check_authority(config, now));
    }
    if config.tls.insecure {
        checks.push(ReadinessCheck::warning_check(
            "tls.insecure",
            "connections to the database, the engine and the project manager may leave this machine in clear text",
            "use https and `sslmode=verify-full`, and take tls.insecure out of the configuration",
        ));
    }
    checks
}

fn check_files(
    config: &CynodeConfig,
    certificate: &Path,
    key: &Path,
    now: OffsetDateTime,
) -> ReadinessCheck {
    const NAME: &str = "certificate";
    let fix = "replace tls.certificate_file and tls.key_file; a running server loads them without a restart";
    let loaded =
        ReloadableKey::load_files(certificate.to_owned(), KeySource::File(key.to_owned()), now);
    let facts = match loaded.and_then(|loaded| loaded.facts()) {
        Ok(facts) => facts,
        Err(error) => {
            let detail = format!("{:#}", anyhow::Error::from(error));
            return ReadinessCheck::failed_check(NAME, detail, fix);
        }
    };
    let names = expected_user_names(config);
    let leaf = load_certificates(certificate).ok().and_then(|chain| chain.into_iter().next());
    let uncovered = names
        .iter()
        .find(|name| leaf.as_ref().is_some_and(|leaf| !covers_name(leaf, name)))
        .map(|name| format!("it is not valid for {name} of server.public_url"));
    describe_certificate(NAME, &facts, now, uncovered, fix)
}

/// Describes a certificate that can be used: the days that it has left, names that it lacks, a weak key.
fn describe_certificate(
    name: &str,
    facts: &CertificateFacts,
    now: OffsetDateTime,
    uncovered: Option<String>,
    fix: &str,
) -> ReadinessCheck {
    let days = facts.days_left(now);
    let mut problems: Vec<String> = uncovered.into_iter().collect();
    if facts.weak_key {
        problems.push(format!("its key is weak: {}", facts.key));
    }
    if days < EXPIRY_WARNING_DAYS {
        problems.push("it expires soon".to_owned());
    }
    let detail = format!("{} has {days} days left", facts.subject);
    if problems.is_empty() {
        ReadinessCheck::passed_check(name, detail)
    } else {
        ReadinessCheck::warning_check(name, format!("{detail}; {}", problems.join("; ")), fix)
    }
}

fn check_authority(config: &CynodeConfig, now: OffsetDateTime) -> ReadinessCheck {
    const NAME: &str = "certificate authority";
    let Some(directory) = authority_directory(config) else {
        let detail =
            "a port is beyond loopback; `cynode up` makes an authority in its data directory";
        return ReadinessCheck::passed_check(NAME, detail);
    };
    let files = AuthorityFiles::in_directory(&directory);
    if !files.exist() {
        let detail =
            format!("a port is beyond loopback, and there is none in {}", directory.display());
        let fix = format!("cynode admin certificate-authority {}", directory.display());
        return ReadinessCheck::warning_check(NAME, detail, fix);
    }
    match open_authority(&files) {
        Ok(authority) => {
            let fix = "make another authority, and join every node again";
            describe_certificate(NAME, authority.facts(), now, None, fix)
        }
        Err(error) => {
            let fix = "restore the files of the authority from a backup; without them no node can connect";
            ReadinessCheck::failed_check(NAME, format!("{error:#}"), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use cynode_wire::platform::health::ReadinessStatus;

    use super::*;
    use crate::{config::ConfigSources, tls::create_authority};

    fn statuses(flags: &[(&str, &str)]) -> Vec<(String, ReadinessStatus)> {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let sources = ConfigSources { flags: flags.collect(), ..ConfigSources::default() };
        let config = CynodeConfig::load_from(sources).unwrap().config;
        check_tls(&config).into_iter().map(|check| (check.name, check.status)).collect()
    }

    #[test]
    fn the_doctor_tells_of_a_missing_authority_and_of_files_that_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let storage = dir.path().display().to_string();
        let beyond = ("server.listen", "0.0.0.0:12080");
        let here = ("storage.directory", storage.as_str());
        let name = "certificate authority".to_owned();
        assert_eq!(statuses(&[]), []);
        assert_eq!(statuses(&[beyond, here]), [(name.clone(), ReadinessStatus::Warning)]);
        let files = AuthorityFiles::in_directory(&dir.path().join("tls"));
        create_authority(&files, &AppEnvironment::from_system()).unwrap();
        assert_eq!(statuses(&[beyond, here]), [(name, ReadinessStatus::Ok)]);
        let files = [("tls.certificate_file", "/nowhere.pem"), ("tls.key_file", "/nowhere.key")];
        assert_eq!(statuses(&files), [("certificate".to_owned(), ReadinessStatus::Failed)]);
        assert_eq!(
            statuses(&[("tls.insecure", "true")]),
            [("tls.insecure".to_owned(), ReadinessStatus::Warning)]
        );
    }
}
