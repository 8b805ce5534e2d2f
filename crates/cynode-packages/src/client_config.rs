//! Configuration of the package clients in a sandbox: variables and files of the home directory, so that the repository stays as it is.

use std::collections::BTreeMap;

use cynode_core::environments::PackageSource;

use crate::PACKAGE_PORT;

/// Home directory in a sandbox.
const SANDBOX_HOME: &str = "/home/agent";

/// Path of apt's configuration below the home directory.
const APT_CONFIG_FILE: &str = ".cynode/apt.conf";

/// Folders that apt wants to find.
const APT_FOLDERS: [&str; 2] =
    [".cynode/apt/state/lists/partial", ".cynode/apt/cache/archives/partial"];

/// Variables and files that configure package clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfiguration {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Files below the home directory: path and text.
    pub home_files: Vec<(String, String)>,
}

impl ClientConfiguration {
    fn add_variables(&mut self, variables: &[(&str, &str)]) {
        let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.env.extend(pairs);
    }
}

/// Returns how the package clients find the proxy.
///
/// The files belong to the set-up layer: cargo names its cache by the address of the registry, so the same file must be there when jobs
/// work without the proxy. The sources of apt are text of [`crate::PackageProxy::apt_sources`] in `.cynode/sources.list`.
pub fn client_configuration(sources: &[PackageSource]) -> ClientConfiguration {
    let base = format!("http://127.0.0.1:{PACKAGE_PORT}");
    let mut config = ClientConfiguration::default();
    for source in sources {
        match source {
            PackageSource::Crates => config.home_files.push((
                ".cargo/config.toml".to_owned(),
                format!(
                    "[source.crates-io]\nreplace-with = \"cynode\"\n\n[source.cynode]\n\
                     registry = \"sparse+{base}/crates/\"\n\n[net]\nretry = 1\ngit-fetch-with-cli = false\n"
                ),
            )),
            PackageSource::Pypi => {
                let index = format!("{base}/pypi/simple/");
                config.add_variables(&[
                    ("PIP_INDEX_URL", &index),
                    ("PIP_TRUSTED_HOST", "127.0.0.1"),
                    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
                    ("PIP_RETRIES", "1"),
                    ("UV_DEFAULT_INDEX", &index),
                    ("UV_INDEX_URL", &index),
                    ("UV_PYTHON_DOWNLOADS", "never"),
                ]);
            }
            PackageSource::Npm => {
                let registry = format!("{base}/npm/");
                config.add_variables(&[
                    ("npm_config_registry", &registry),
                    ("npm_config_replace_registry_host", "always"),
                    ("npm_config_audit", "false"),
                    ("npm_config_fund", "false"),
                    ("npm_config_update_notifier", "false"),
                    ("npm_config_fetch_retries", "1"),
                    ("YARN_REGISTRY", &registry),
                    ("YARN_NPM_REGISTRY_SERVER", &registry),
                    ("YARN_UNSAFE_HTTP_WHITELIST", "127.0.0.1"),
                    ("YARN_ENABLE_TELEMETRY", "0"),
                    ("COREPACK_NPM_REGISTRY", &format!("{base}/npm")),
                    ("COREPACK_INTEGRITY_KEYS", "0"),
                ]);
            }
            PackageSource::Debian => {
                config.add_variables(&[("APT_CONFIG", &format!("{SANDBOX_HOME}/{APT_CONFIG_FILE}"))]);
                config.home_files.push((APT_CONFIG_FILE.to_owned(), apt_configuration()));
                let folders = APT_FOLDERS.map(|folder| (format!("{folder}/.keep"), String::new()));
                config.home_files.extend(folders);
            }
        }
    }
    config
}

/// Configuration of apt for a user without privileges: its state is below the home directory, and its sources lead through the proxy.
fn apt_configuration() -> String {
    let folder = format!("{SANDBOX_HOME}/.cynode/apt");
    format!(
        "Dir::Etc::SourceList \"{SANDBOX_HOME}/.cynode/sources.list\";\n\
         Dir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State \"{folder}/state\";\n\
         Dir::Cache \"{folder}/cache\";\n\
         Dir::State::status \"/var/lib/dpkg/status\";\n\
         Dir::Log \"{folder}/log\";\n\
         APT::Sandbox::User \"\";\n\
         APT::Install-Recommends \"false\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"1\";\n\
         Acquire::http::Proxy \"DIRECT\";\n\
         Debug::NoLocking \"true\";\n"
    )
}

/// Returns variables with which package clients fail at once, or work from their caches, when there is no proxy.
pub fn offline_configuration() -> ClientConfiguration {
    let mut config = ClientConfiguration::default();
    config.add_variables(&[
        ("CARGO_NET_OFFLINE", "true"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_RETRIES", "0"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("UV_OFFLINE", "1"),
        ("UV_PYTHON_DOWNLOADS", "never"),
        ("npm_config_offline", "true"),
        ("npm_config_fetch_retries", "0"),
        ("npm_config_audit", "false"),
        ("npm_config_fund", "false"),
        ("npm_config_update_notifier", "false"),
        ("YARN_ENABLE_NETWORK", "0"),
        ("YARN_ENABLE_TELEMETRY", "0"),
        ("COREPACK_ENABLE_NETWORK", "0"),
        ("GOPROXY", "off"),
    ]);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_configures_its_clients_and_no_others() {
        let names = |sources: &[PackageSource]| {
            let config = client_configuration(sources);
            let files: Vec<_> = config.home_files.into_iter().map(|(path, _)| path).collect();
            (config.env.len(), files)
        };
        assert_eq!(names(&[]), (0, Vec::new()));
        assert_eq!(names(&[PackageSource::Crates]), (0, vec![".cargo/config.toml".to_owned()]));
        let files = [
            ".cynode/apt.conf",
            ".cynode/apt/state/lists/partial/.keep",
            ".cynode/apt/cache/archives/partial/.keep",
        ];
        assert_eq!(names(&[PackageSource::Debian]), (1, files.map(str::to_owned).to_vec()));
        let config = client_configuration(&[PackageSource::Npm, PackageSource::Pypi]);
        let addresses = ["npm_config_registry", "PIP_INDEX_URL"].map(|name| &config.env[name]);
        assert_eq!(addresses, ["http://127.0.0.1:3129/npm/", "http://127.0.0.1:3129/pypi/simple/"]);
    }

    #[test]
    fn the_configuration_of_cargo_is_toml_and_replaces_the_registry() {
        let config = client_configuration(&[PackageSource::Crates]);
        let table: toml::Table = config.home_files[0].1.parse().unwrap();
        assert_eq!(
            table["source"]["cynode"]["registry"].as_str(),
            Some("sparse+http://127.0.0.1:3129/crates/")
        );
    }
}
