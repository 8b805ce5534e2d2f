//! Configuration of the package clients of the machine: which mirrors pip, npm, cargo and apt use.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use cynode_core::environments::PackageSource;
use url::Url;

/// What the package clients of the machine are configured to.
#[derive(Default)]
pub(crate) struct MachineConfig {
    crates: Option<String>,
    pypi: Option<String>,
    npm: Option<String>,
    /// Credentials of npm: beginning of the address without its scheme, and the value of the header.
    npm_credentials: Vec<(String, String)>,
    /// Sources of apt as lines.
    pub(crate) apt_lines: Vec<String>,
    pub(crate) certificate_files: Vec<PathBuf>,
    pub(crate) http_proxy: Option<String>,
    pub(crate) no_proxy: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl MachineConfig {
    /// Reads the configuration of a machine whose system is below `root`.
    pub(crate) fn read(root: &Path, home: &Path, env: &BTreeMap<String, String>) -> Self {
        let mut config = Self::default();
        config.read_pip(root, home, env);
        config.read_npm(root, home, env);
        config.read_cargo(home, env);
        config.read_apt(root);
        let files = ["SSL_CERT_FILE", "PIP_CERT", "CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS"];
        for file in files.iter().filter_map(|name| env.get(*name)) {
            config.add_certificates(file);
        }
        let any = |names: [&str; 2]| {
            let mut values = names.into_iter().filter_map(|name| env.get(name));
            values.find(|value| !value.is_empty()).cloned()
        };
        config.http_proxy = any(["https_proxy", "HTTPS_PROXY"]);
        config.no_proxy = any(["no_proxy", "NO_PROXY"]);
        config
    }

    /// Returns the address of a registry.
    pub(crate) fn registry_of(&self, source: PackageSource) -> Option<&str> {
        match source {
            PackageSource::Crates => self.crates.as_deref(),
            PackageSource::Pypi => self.pypi.as_deref(),
            PackageSource::Npm => self.npm.as_deref(),
            PackageSource::Debian => None,
        }
    }

    /// Returns the header of credentials that npm has for an address.
    pub(crate) fn npm_authorization(&self, base: &Url) -> Option<String> {
        let (_, address) = base.as_str().split_once("//")?;
        let mut fitting = self.npm_credentials.iter().filter(|(begin, _)| {
            address.strip_prefix(begin.as_str()).is_some_and(|rest| {
                rest.is_empty() || begin.ends_with('/') || rest.starts_with('/')
            })
        });
        fitting.next().map(|(_, header)| header.clone())
    }

    fn add_certificates(&mut self, path: &str) {
        let path = PathBuf::from(path);
        if path.is_absolute() && !self.certificate_files.contains(&path) {
            self.certificate_files.push(path);
        }
    }

    fn read_pip(&mut self, root: &Path, home: &Path, env: &BTreeMap<String, String>) {
        let own = env.get("PIP_CONFIG_FILE").map(PathBuf::from);
        let files = [
            Some(root.join("etc/pip.conf")),
            Some(home.join(".pip/pip.conf")),
            Some(home.join(".config/pip/pip.conf")),
            own,
        ];
        for path in files.into_iter().flatten() {
            let Ok(text) = fs::read_to_string(&path) else { continue };
            for (key, value) in ini_values(&text, &["global", "install"]) {
                match key.as_str() {
                    "index-url" | "index_url" => self.pypi = Some(value),
                    "extra-index-url" | "extra_index_url" => self.warnings.push(format!(
                        "{}: `extra-index-url` is not used: packages come from one index",
                        path.display()
                    )),
                    "cert" => self.add_certificates(&value),
                    _ => {}
                }
            }
        }
        if let Some(url) = env.get("PIP_INDEX_URL").filter(|url| !url.is_empty()) {
            self.pypi = Some(url.clone());
        }
    }

    fn read_npm(&mut self, root: &Path, home: &Path, env: &BTreeMap<String, String>) {
        let user = env.get("npm_config_userconfig").or_else(|| env.get("NPM_CONFIG_USERCONFIG"));
        let files = [
            root.join("usr/etc/npmrc"),
            root.join("usr/local/etc/npmrc"),
            root.join("etc/npmrc"),
            user.map_or_else(|| home.join(".npmrc"), PathBuf::from),
        ];
        for path in files {
            let Ok(text) = fs::read_to_string(&path) else { continue };
            for (key, value) in ini_values(&text, &[]) {
                let value = expand_variables(&value, env);
                if key == "registry" {
                    self.npm = Some(value);
                } else if key == "cafile" {
                    self.add_certificates(&value);
                } else if key.starts_with('@') && key.ends_with(":registry") {
                    self.warnings.push(format!(
                        "{}: registries of scopes are not used: packages come from one registry",
                        path.display()
                    ));
                } else if let Some((address, kind)) =
                    key.strip_prefix("//").and_then(|key| key.rsplit_once(':'))
                {
                    let header = match kind {
                        "_authToken" => format!("Bearer {value}"),
                        "_auth" => format!("Basic {value}"),
                        _ => continue,
                    };
                    self.npm_credentials.push((address.to_owned(), header));
                }
            }
        }
        let registry = env.get("npm_config_registry").or_else(|| env.get("NPM_CONFIG_REGISTRY"));
        if let Some(url) = registry.filter(|url| !url.is_empty()) {
            self.npm = Some(url.clone());
        }
    }

    fn read_cargo(&mut self, home: &Path, env: &BTreeMap<String, String>) {
        let folder = env.get("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
        let files = [folder.join("config.toml"), folder.join("config")];
        let Some(text) = files.iter().find_map(|path| fs::read_to_string(path).ok()) else {
            return;
        };
        let Ok(config) = text.parse::<toml::Table>() else {
            self.warnings.push("the configuration of cargo is no TOML and is not used".to_owned());
            return;
        };
        let table = |name: &str| config.get(name).and_then(toml::Value::as_table);
        if let Some(file) = table("http").and_then(|http| http.get("cainfo")?.as_str()) {
            self.add_certificates(file);
        }
        let text_of = |section: &str, name: &str, key: &str| {
            let entry = table(section)?.get(name)?.get(key)?;
            entry.as_str().map(str::to_owned)
        };
        let mut name = "crates-io".to_owned();
        // A chain of replacements ends; a circle of them is no configuration.
        for _ in 0..8 {
            let Some(next) = text_of("source", &name, "replace-with") else { break };
            name = next;
        }
        let registry = text_of("source", &name, "registry")
            .or_else(|| text_of("registries", &name, "index"))
            .filter(|_| name != "crates-io");
        match registry.as_deref().map(|url| (url, url.strip_prefix("sparse+"))) {
            Some((_, Some(url))) => self.crates = Some(url.to_owned()),
            Some((_, None)) => self.warnings.push(
                "the registry that replaces crates-io in the configuration of cargo is not sparse and is not used"
                    .to_owned(),
            ),
            None => {}
        }
    }

    fn read_apt(&mut self, root: &Path) {
        let folder = root.join("etc/apt");
        let mut files = vec![folder.join("sources.list")];
        if let Ok(entries) = fs::read_dir(folder.join("sources.list.d")) {
            let mut more: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            more.sort();
            files.extend(more);
        }
        for path in files {
            let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            match extension {
                "list" => self.apt_lines.extend(
                    text.lines()
                        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
                        .filter(|line| line.starts_with("deb ")),
                ),
                "sources" => self.apt_lines.extend(deb822_lines(&text)),
                _ => {}
            }
        }
    }
}

/// Reads the values of an INI file: of some sections, or of all if none is named.
fn ini_values(text: &str, sections: &[&str]) -> Vec<(String, String)> {
    let mut wanted = sections.is_empty();
    let mut values = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            wanted = sections.is_empty() || sections.contains(&name.trim());
            continue;
        }
        // A key of npm may hold a colon, so only `=` separates.
        if let Some((key, value)) = line.split_once('=').filter(|_| wanted) {
            let value = value.trim().trim_matches(['"', '\'']);
            values.push((key.trim().to_owned(), value.to_owned()));
        }
    }
    values
}

/// Puts in the values of variables written as `${NAME}`.
fn expand_variables(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut parts = text.split("${");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}') {
            Some((name, rest)) => {
                expanded.push_str(env.get(name).map(String::as_str).unwrap_or_default());
                expanded.push_str(rest);
            }
            None => expanded.push_str(part),
        }
    }
    expanded
}

/// Turns stanzas of a `.sources` file into lines.
fn deb822_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for stanza in text.split("\n\n") {
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        let mut last = String::new();
        for line in stanza.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with([' ', '\t']) {
                let field = fields.entry(last.clone()).or_default();
                field.push(' ');
                field.push_str(line.trim());
            } else if let Some((key, value)) = line.split_once(':') {
                last = key.trim().to_ascii_lowercase();
                fields.insert(last.clone(), value.trim().to_owned());
            }
        }
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        let enabled = !matches!(field("enabled"), "no" | "false");
        if !enabled || !field("types").split_whitespace().any(|kind| kind == "deb") {
            continue;
        }
        let key = field("signed-by");
        let option = if key.starts_with('/') && !key.contains(' ') {
            format!("[signed-by={key}] ")
        } else {
            String::new()
        };
        for uri in field("uris").split_whitespace() {
            for suite in field("suites").split_whitespace() {
                lines.push(format!("deb {option}{uri} {suite} {}", field("components")));
            }
        }
    }
    merge_suites(lines)
}

/// Joins lines that differ in their suite only.
fn merge_suites(lines: Vec<String>) -> Vec<String> {
    let mut merged: Vec<(String, String, Vec<String>)> = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let at = if line.starts_with("deb [") { 3 } else { 2 };
        let (Some(head), Some(suite), Some(tail)) =
            (words.get(..at), words.get(at), words.get(at + 1..))
        else {
            continue;
        };
        let (head, tail) = (head.join(" "), tail.join(" "));
        match merged.iter_mut().find(|(it, end, _)| *it == head && *end == tail) {
            Some((_, _, suites)) => suites.push((*suite).to_owned()),
            None => merged.push((head, tail, vec![(*suite).to_owned()])),
        }
    }
    // The first component must be recognisable as such when a line has several suites.
    merged
        .into_iter()
        .flat_map(|(head, tail, suites)| {
            if tail.starts_with("main") {
                vec![format!("{head} {} {tail}", suites.join(" "))]
            } else {
                suites.iter().map(|suite| format!("{head} {suite} {tail}")).collect()
            }
        })
        .collect()
}
