//! Registries that the proxy fetches from: the public ones, unless the package clients of the machine or the node's configuration name
//! others.
//!
//! The hosts of an upstream are an allowlist: an index or a redirect that names another host is refused. Credentials go to the host of the
//! upstream itself and to no other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::{Path, PathBuf},
};

use cynode_core::environments::PackageSource;
use data_encoding::BASE64;
use secrecy::SecretString;
use url::Url;

use crate::machine_config::MachineConfig;

/// A public registry: its index and the further hosts of its files.
struct PublicRegistry {
    source: PackageSource,
    index: &'static str,
    file_hosts: &'static [&'static str],
}

/// The public registries, which are used where nothing else is configured.
const PUBLIC_REGISTRIES: [PublicRegistry; 3] = [
    PublicRegistry {
        source: PackageSource::Crates,
        index: "https://index.crates.io/",
        file_hosts: &["static.crates.io", "crates.io"],
    },
    PublicRegistry {
        source: PackageSource::Pypi,
        index: "https://pypi.org/simple/",
        file_hosts: &["files.pythonhosted.org"],
    },
    PublicRegistry {
        source: PackageSource::Npm,
        index: "https://registry.npmjs.org/",
        file_hosts: &[],
    },
];

/// The public Debian archives, in the form of a line of apt's sources.
const PUBLIC_DEBIAN: [&str; 2] = [
    "deb http://deb.debian.org/debian stable stable-updates main",
    "deb http://deb.debian.org/debian-security stable-security main",
];

/// A host with its port.
type HostPort = (String, u16);

/// Where packages of one registry come from.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// Base of the index; ends with a slash and has no credentials.
    pub(crate) base: Url,
    hosts: BTreeSet<HostPort>,
    authorization: Option<SecretString>,
}

impl Upstream {
    /// Reads the address of an upstream. Credentials in it become a header.
    fn parse(text: &str) -> Result<Self, String> {
        let mut base = Url::parse(text.trim()).map_err(|error| error.to_string())?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err("it is neither http nor https".to_owned());
        }
        let host = host_port(&base).ok_or("it has no host")?;
        let (name, password) = (base.username().to_owned(), base.password().map(str::to_owned));
        let authorization = (!name.is_empty() || password.is_some()).then(|| {
            let text = format!(
                "{}:{}",
                decode_percent(&name),
                decode_percent(&password.unwrap_or_default())
            );
            SecretString::from(format!("Basic {}", BASE64.encode(text.as_bytes())))
        });
        let cleared = base.set_username("").is_ok() && base.set_password(None).is_ok();
        if !cleared {
            return Err("it has no host".to_owned());
        }
        base.set_query(None);
        base.set_fragment(None);
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Self { base, hosts: BTreeSet::from([host]), authorization })
    }

    fn with_file_hosts<'a>(mut self, hosts: impl IntoIterator<Item = &'a str>) -> Self {
        let default_port = self.base.port_or_known_default().unwrap_or(443);
        self.hosts.extend(hosts.into_iter().map(|host| match host.rsplit_once(':') {
            Some((name, port)) => (name.to_owned(), port.parse().unwrap_or(default_port)),
            None => (host.to_owned(), default_port),
        }));
        self
    }

    /// Returns why an address must not be fetched, if it must not.
    pub(crate) fn forbidden_reason(&self, url: &Url) -> Option<String> {
        let scheme = url.scheme();
        if scheme != "https" && !(scheme == "http" && self.base.scheme() == "http") {
            return Some(format!("an address with the scheme `{scheme}` is not fetched"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Some("an address with credentials is not fetched".to_owned());
        }
        let host = host_port(url);
        let allowed = host.as_ref().is_some_and(|host| self.hosts.contains(host));
        let name = host.map(|(name, port)| format!("{name}:{port}")).unwrap_or_default();
        (!allowed).then(|| {
            format!("`{name}` is no host of this registry: a node's configuration can add it to the hosts of files")
        })
    }

    /// Returns the header of credentials for an address, which only the host of the upstream itself gets.
    pub(crate) fn authorization_for(&self, url: &Url) -> Option<&SecretString> {
        self.authorization.as_ref().filter(|_| host_port(url) == host_port(&self.base))
    }
}

/// Archive of Debian packages.
#[derive(Clone, Debug)]
pub(crate) struct DebianUpstream {
    pub(crate) upstream: Upstream,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    pub(crate) signed_by: Option<String>,
}

/// Registries that the proxy fetches from.
#[derive(Clone, Debug)]
pub struct Upstreams {
    pub(crate) crates: Upstream,
    pub(crate) pypi: Upstream,
    pub(crate) npm: Upstream,
    pub(crate) debian: Vec<DebianUpstream>,
    pub(crate) certificate_files: Vec<PathBuf>,
    pub(crate) http_proxy: Option<SecretString>,
    pub(crate) no_proxy: Option<String>,
}

/// Keys of a node's own registries, with the further hosts of their files.
pub const UPSTREAM_KEYS: [&str; 7] =
    ["crates", "crates_files", "debian", "npm", "npm_files", "pypi", "pypi_files"];

impl Upstreams {
    /// Takes the registries from the node's configuration, else from the package clients of the machine, else the public ones. Returns
    /// warnings about what could not be used.
    ///
    /// The keys of `overrides` are `crates`, `pypi`, `npm` (an address), `debian` (lines of apt's sources, separated by `;`), and
    /// `crates_files`, `pypi_files`, `npm_files` (further hosts of files, separated by spaces).
    pub fn from_machine(
        overrides: &BTreeMap<String, String>,
        home: &Path,
        env: &BTreeMap<String, String>,
    ) -> (Self, Vec<String>) {
        Self::from_machine_at(Path::new("/"), overrides, home, env)
    }

    /// As [`Self::from_machine`], with the system's files below a directory.
    pub(crate) fn from_machine_at(
        root: &Path,
        overrides: &BTreeMap<String, String>,
        home: &Path,
        env: &BTreeMap<String, String>,
    ) -> (Self, Vec<String>) {
        let machine = MachineConfig::read(root, home, env);
        let mut warnings = machine.warnings.clone();
        for key in overrides.keys() {
            if !UPSTREAM_KEYS.contains(&key.as_str()) {
                let known = UPSTREAM_KEYS.join(", ");
                warnings.push(format!("`{key}` is no package source; those are {known}"));
            }
        }
        let mut one = |source| registry_upstream(source, overrides, &machine, &mut warnings);
        let (crates, pypi, npm) =
            (one(PackageSource::Crates), one(PackageSource::Pypi), one(PackageSource::Npm));
        let debian = debian_upstreams(overrides, &machine, &mut warnings);
        let upstreams = Self {
            crates,
            pypi,
            npm,
            debian,
            certificate_files: machine.certificate_files,
            http_proxy: machine.http_proxy.map(SecretString::from),
            no_proxy: machine.no_proxy,
        };
        (upstreams, warnings)
    }

    /// Returns the host and port of each registry, without credentials.
    pub fn registry_hosts(&self) -> Vec<(PackageSource, String, u16)> {
        let registries = [
            (PackageSource::Crates, &self.crates),
            (PackageSource::Pypi, &self.pypi),
            (PackageSource::Npm, &self.npm),
        ];
        let archives = self.debian.iter().map(|it| (PackageSource::Debian, &it.upstream));
        let mut hosts: Vec<_> = registries
            .into_iter()
            .chain(archives)
            .filter_map(|(source, upstream)| {
                let (host, port) = host_port(&upstream.base)?;
                Some((source, host, port))
            })
            .collect();
        hosts.dedup();
        hosts
    }

    /// Returns whether requests go through an HTTP proxy of the machine.
    pub const fn has_http_proxy(&self) -> bool {
        self.http_proxy.is_some()
    }

    /// Returns lines of apt's sources that lead through the proxy; of a release if it is given, else of those that the machine uses.
    pub fn apt_sources(&self, release: Option<&str>) -> String {
        let mut text = String::new();
        for (number, archive) in self.debian.iter().enumerate() {
            let suites: Vec<String> = match release {
                None => archive.suites.clone(),
                Some(release) => {
                    let renamed = archive.suites.iter().map(|suite| rename_suite(suite, release));
                    renamed.collect::<BTreeSet<_>>().into_iter().collect()
                }
            };
            let options = archive.signed_by.as_ref().map(|path| format!("[signed-by={path}] "));
            for suite in suites {
                let _ = writeln!(
                    text,
                    "deb {}http://127.0.0.1:{}/debian/{number} {suite} {}",
                    options.as_deref().unwrap_or_default(),
                    crate::PACKAGE_PORT,
                    archive.components.join(" ")
                );
            }
        }
        text
    }
}

/// Returns the suite of another release: `bookworm-updates` of `trixie` is `trixie-updates`.
fn rename_suite(suite: &str, release: &str) -> String {
    match suite.split_once(['-', '/']) {
        Some((_, rest)) if !rest.is_empty() => format!("{release}-{rest}"),
        _ => release.to_owned(),
    }
}

fn registry_upstream(
    source: PackageSource,
    overrides: &BTreeMap<String, String>,
    machine: &MachineConfig,
    warnings: &mut Vec<String>,
) -> Upstream {
    let public = PUBLIC_REGISTRIES.iter().find(|it| it.source == source);
    let (index, file_hosts) = public.map_or(("", &[][..]), |it| (it.index, it.file_hosts));
    let configured = machine.registry_of(source);
    let candidates = [
        overrides.get(source.as_str()).map(|url| (url.as_str(), "the node's configuration")),
        configured.map(|url| (url, "the package client's configuration")),
        Some((index, "the public registries")),
    ];
    let mut upstream = None;
    for (text, place) in candidates.into_iter().flatten() {
        match Upstream::parse(text) {
            Ok(parsed) => {
                upstream = Some(parsed);
                break;
            }
            // The address itself is not repeated: it may hold a password.
            Err(error) => {
                let source = source.as_str();
                warnings.push(format!("the address of `{source}` in {place} is not used: {error}"));
            }
        }
    }
    let mut upstream = upstream.unwrap_or_else(Upstream::unusable);
    if source == PackageSource::Npm && upstream.authorization.is_none() {
        upstream.authorization = machine.npm_authorization(&upstream.base).map(SecretString::from);
    }
    let more = overrides.get(&format!("{}_files", source.as_str()));
    let more = more.map(String::as_str).unwrap_or_default().split_whitespace();
    upstream.with_file_hosts(file_hosts.iter().copied()).with_file_hosts(more)
}

impl Upstream {
    /// An upstream that allows no host.
    #[expect(clippy::unwrap_used, reason = "the text is a constant and an address")]
    fn unusable() -> Self {
        let base = Url::parse("https://invalid.invalid/").unwrap();
        Self { base, hosts: BTreeSet::new(), authorization: None }
    }
}

fn debian_upstreams(
    overrides: &BTreeMap<String, String>,
    machine: &MachineConfig,
    warnings: &mut Vec<String>,
) -> Vec<DebianUpstream> {
    let configured = overrides.get("debian").map(|text| {
        text.split(';').map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    });
    let lines: Vec<String> = configured.unwrap_or_else(|| machine.apt_lines.clone());
    let lines = if lines.is_empty() { PUBLIC_DEBIAN.map(str::to_owned).to_vec() } else { lines };
    let mut archives = Vec::new();
    for line in lines {
        match parse_apt_line(&line) {
            Ok(Some(archive)) => archives.push(archive),
            Ok(None) => {}
            Err(error) => warnings.push(format!("a source of apt is not used: {error}")),
        }
    }
    archives
}

/// Reads a line of apt's sources: `deb [options] URL SUITE… COMPONENT…`, with one suite, or several before `main`.
fn parse_apt_line(line: &str) -> Result<Option<DebianUpstream>, String> {
    let Some(rest) = line.strip_prefix("deb ") else { return Ok(None) };
    let mut rest = rest.trim();
    let mut signed_by = None;
    if let Some((options, after)) = rest.strip_prefix('[').and_then(|it| it.split_once(']')) {
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .filter(|path| path.starts_with('/'))
            .map(str::to_owned);
        rest = after.trim();
    }
    let mut words = rest.split_whitespace();
    let upstream = Upstream::parse(words.next().ok_or("it has no address")?)?;
    let words: Vec<String> = words.map(str::to_owned).collect();
    let plain = |word: &String| {
        word.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c))
            && !word.contains("..")
            && !word.ends_with('/')
    };
    if !words.iter().all(plain) {
        return Err(
            "a suite or a component is no name; flat repositories are not supported".to_owned()
        );
    }
    // One-line sources have one suite; ours may have several, before the first component.
    let is_component = |word: &String| {
        ["main", "contrib", "non-free", "non-free-firmware", "universe", "restricted", "multiverse"]
            .contains(&word.as_str())
    };
    let at = words.iter().position(is_component).unwrap_or(1).max(1).min(words.len());
    let (suites, components) = words.split_at(at);
    if suites.is_empty() || components.is_empty() {
        return Err("it has no suite or no component".to_owned());
    }
    let (suites, components) = (suites.to_vec(), components.to_vec());
    Ok(Some(DebianUpstream { upstream, suites, components, signed_by }))
}

fn host_port(url: &Url) -> Option<HostPort> {
    let host = url.host_str().filter(|host| !host.is_empty())?;
    Some((host.to_ascii_lowercase(), url.port_or_known_default()?))
}

/// Decodes percent-encoding; what is no text stays as it is.
pub(crate) fn decode_percent(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).filter(|_| byte == b'%');
        let hex = hex.filter(|hex| hex.bytes().all(|it| it.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use secrecy::ExposeSecret;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn bases(upstreams: &Upstreams) -> Vec<String> {
        let registries = [&upstreams.crates, &upstreams.pypi, &upstreams.npm];
        let archives = upstreams.debian.iter().map(|it| &it.upstream);
        registries.into_iter().chain(archives).map(|it| it.base.to_string()).collect()
    }

    #[test]
    fn without_configuration_the_public_registries_are_used() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = BTreeMap::new();
        let (upstreams, warnings) =
            Upstreams::from_machine_at(folder.path(), &nothing, folder.path(), &nothing);
        let mut expected: Vec<_> = PUBLIC_REGISTRIES.iter().map(|it| it.index.to_owned()).collect();
        let archives = PUBLIC_DEBIAN.iter().filter_map(|line| line.split(' ').nth(1));
        expected.extend(archives.map(|url| format!("{url}/")));
        assert_eq!((bases(&upstreams), warnings), (expected, Vec::new()));
        assert_eq!(
            upstreams.apt_sources(Some("trixie")),
            "deb http://127.0.0.1:3129/debian/0 trixie main\n\
             deb http://127.0.0.1:3129/debian/0 trixie-updates main\n\
             deb http://127.0.0.1:3129/debian/1 trixie-security main\n"
        );
    }

    #[test]
    fn the_configuration_of_the_package_clients_names_mirrors_and_the_node_wins() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        for (path, text) in [
            ("etc/pip.conf", "[global]\nindex-url = https://u:p%40ss@mirror.example/pypi\n"),
            (
                "home/.npmrc",
                "registry=https://mirror.example/npm/\n//mirror.example/npm/:_authToken=${TOKEN}\n",
            ),
            (
                "home/.cargo/config.toml",
                "[source.crates-io]\nreplace-with = \"m\"\n[source.m]\nregistry = \"sparse+https://mirror.example/crates/\"\n[http]\ncainfo = \"/ca.pem\"\n",
            ),
            (
                "etc/apt/sources.list.d/debian.sources",
                "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /usr/share/keyrings/d.gpg\n",
            ),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let env = map(&[("TOKEN", "hush-hush")]);
        let overrides = map(&[("pypi_files", "files.example:8443")]);
        let (upstreams, warnings) =
            Upstreams::from_machine_at(folder.path(), &overrides, &home, &env);
        assert_eq!(
            (bases(&upstreams), warnings),
            (
                [
                    "https://mirror.example/crates/",
                    "https://mirror.example/pypi/",
                    "https://mirror.example/npm/",
                    "http://mirror.example/debian/"
                ]
                .map(str::to_owned)
                .to_vec(),
                Vec::new()
            )
        );
        let header = |upstream: &Upstream, url: &str| {
            let url = url.parse().unwrap();
            upstream.authorization_for(&url).map(|it| it.expose_secret().to_owned())
        };
        assert_eq!(
            [
                header(&upstreams.npm, "https://mirror.example/npm/x"),
                header(&upstreams.npm, "https://elsewhere.example/npm/x"),
                header(&upstreams.pypi, "https://mirror.example/x"),
                header(&upstreams.pypi, "https://files.example:8443/x"),
            ],
            [Some("Bearer hush-hush".to_owned()), None, Some("Basic dTpwQHNz".to_owned()), None]
        );
        let shown = format!("{upstreams:?}");
        assert!(!shown.contains("hush-hush") && !shown.contains("dTpwQHNz"), "{shown}");
        assert_eq!(upstreams.certificate_files, [PathBuf::from("/ca.pem")]);
        assert_eq!(
            upstreams.apt_sources(None),
            "deb [signed-by=/usr/share/keyrings/d.gpg] http://127.0.0.1:3129/debian/0 bookworm main contrib\n\
             deb [signed-by=/usr/share/keyrings/d.gpg] http://127.0.0.1:3129/debian/0 bookworm-updates main contrib\n"
        );
        let overrides = map(&[("npm", "https://other.example/n"), ("nmp", "x")]);
        let (upstreams, warnings) =
            Upstreams::from_machine_at(folder.path(), &overrides, &home, &env);
        assert_eq!(upstreams.npm.base.as_str(), "https://other.example/n/");
        assert_eq!(header(&upstreams.npm, "https://other.example/n/x"), None);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    #[test]
    fn only_hosts_of_the_upstream_are_fetched_from_and_never_less_secure() {
        let upstream = Upstream::parse("https://index.example/x")
            .map(|it| it.with_file_hosts(["files.example"]))
            .unwrap();
        let allowed = |url: &str| upstream.forbidden_reason(&url.parse().unwrap()).is_none();
        for url in ["https://index.example/a", "https://files.example/b"] {
            assert!(allowed(url), "{url}");
        }
        for url in [
            "http://index.example/a",
            "https://index.example:8443/a",
            "https://evil.example/a",
            "https://127.0.0.1/a",
            "https://a:b@index.example/a",
            "file:///etc/passwd",
        ] {
            assert!(!allowed(url), "{url}");
        }
    }
}
