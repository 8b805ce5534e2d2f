//! TLS of the ports of this process: which port is protected by what, the own certificate authority, and the upkeep of certificates.
//!
//! A port on loopback speaks clear text unless `tls.loopback` is set. A port beyond it speaks TLS, or a declared proxy does. The internal port
//! always has a certificate of the own authority, whose pin join tokens carry; the user-facing port has one of files, of ACME or of the own
//! authority.

mod acme;
mod authority;
mod diagnosis;

use std::{
    io::IsTerminal as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};
use cynode_app::{
    AppEnvironment,
    platform::certificates::{
        CertificateAuthority, ServedCertificate, ServedCertificates, TlsParts,
    },
};
use cynode_core::metric_specs::{TLS_CERTIFICATE_EXPIRY, TLS_CERTIFICATE_RELOADS};
use cynode_net::{
    tls::{
        CertificateFacts, ClientAuthentication, KeySource, ReloadOutcome, ReloadableKey, ServerTls,
    },
    transport::is_loopback_listener,
};
use cynode_wire::platform::certificates::{CertificateOrigin, CertificateUse};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

pub(crate) use authority::{
    AUTHORITY_CERTIFICATE_FILE, AuthorityFiles, create_authority, open_authority, write_issued_key,
};
pub(crate) use diagnosis::check_tls;

use crate::config::CynodeConfig;

/// Interval at which files of certificates are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// How a port is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortProtection {
    /// Only this machine reaches it.
    Loopback,
    /// A proxy that speaks TLS is before it.
    Proxy,
    /// By TLS with a certificate of files.
    Files,
    /// By TLS with a certificate of ACME.
    Acme,
    /// By TLS with a certificate of the own authority.
    Own,
}

impl PortProtection {
    /// Returns how the user-facing port is protected.
    pub(crate) fn of_user_port(config: &CynodeConfig) -> Self {
        if config.tls.files.is_some() {
            Self::Files
        } else if config.tls.acme.is_some() {
            Self::Acme
        } else if config.server.behind_proxy
            && !config.tls.on_loopback
            && !is_loopback_listener(config.server.listen)
        {
            Self::Proxy
        } else {
            Self::of_own_port(config, config.server.listen)
        }
    }

    /// Returns how the internal port is protected. A proxy is never enough for it: nodes show certificates there, which a proxy would
    /// lose, and know the authority by its pin.
    pub(crate) fn of_internal_port(config: &CynodeConfig) -> Self {
        Self::of_own_port(config, config.server.internal_listen)
    }

    fn of_own_port(config: &CynodeConfig, address: SocketAddr) -> Self {
        if !config.tls.on_loopback && is_loopback_listener(address) {
            Self::Loopback
        } else {
            Self::Own
        }
    }

    /// Returns whether the port speaks TLS.
    pub(crate) const fn is_encrypted(self) -> bool {
        matches!(self, Self::Files | Self::Acme | Self::Own)
    }

    /// Returns the scheme of its URLs.
    pub(crate) const fn url_scheme(self) -> &'static str {
        if self.is_encrypted() { "https" } else { "http" }
    }
}

/// Returns an address that this machine itself can connect to.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Returns the URL of the user-facing port for people at this machine.
pub(crate) fn user_port_url(config: &CynodeConfig) -> String {
    let scheme = PortProtection::of_user_port(config).url_scheme();
    format!("{scheme}://{}", reachable_address(config.server.listen))
}

/// Returns the address of a user-facing port with TLS for browsers, where `server.public_url` says none: its first configured name.
pub(crate) fn browser_url(config: &CynodeConfig) -> Option<String> {
    if !PortProtection::of_user_port(config).is_encrypted() {
        return None;
    }
    let domain = config.tls.acme.as_ref().and_then(|acme| acme.domains.first());
    let Some(name) = domain.or_else(|| config.tls.names.first()) else {
        return Some(user_port_url(config));
    };
    let host = match name.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Ok(IpAddr::V4(_)) | Err(_) => name.clone(),
    };
    Some(format!("https://{host}:{}", config.server.listen.port()))
}

/// Returns the URL of the internal port for programs on this machine.
pub(crate) fn internal_port_url(config: &CynodeConfig) -> String {
    let scheme = PortProtection::of_internal_port(config).url_scheme();
    format!("{scheme}://{}", reachable_address(config.server.internal_listen))
}

/// Returns the directory of the own certificate authority.
pub(crate) fn authority_directory(config: &CynodeConfig) -> Option<PathBuf> {
    let own = || config.storage.directory.as_ref().map(|directory| directory.join("tls"));
    config.tls.directory.clone().or_else(own)
}

/// TLS of both ports.
pub(crate) struct PortsTls {
    pub(crate) user: Option<ServerTls>,
    pub(crate) internal: Option<ServerTls>,
    keys: Arc<PortKeys>,
    acme: Option<acme::AcmeRenewal>,
    own: Option<OwnCertificate>,
    authority: Option<CertificateAuthority>,
}

/// The certificate of the own authority, which both ports may use.
struct OwnCertificate {
    files: AuthorityFiles,
    names: Vec<String>,
    key: Arc<ReloadableKey>,
}

/// Where the certificate of a port is.
#[derive(Clone)]
enum PortKey {
    Files(Arc<ReloadableKey>, CertificateOrigin),
    Acme(acme::AcmeDirectory),
}

impl PortKey {
    fn facts(&self) -> Option<CertificateFacts> {
        match self {
            Self::Files(key, _) => key.facts().ok(),
            Self::Acme(directory) => directory.facts(),
        }
    }

    fn covers_name(&self, host: &str) -> bool {
        match self {
            Self::Files(key, _) => key.covers_name(host),
            Self::Acme(directory) => directory.covers_name(host),
        }
    }

    const fn origin(&self) -> CertificateOrigin {
        match self {
            Self::Files(_, origin) => *origin,
            Self::Acme(_) => CertificateOrigin::Acme,
        }
    }
}

/// The certificates of both ports.
struct PortKeys {
    user: Option<PortKey>,
    internal: Option<PortKey>,
    /// Names under which the configuration says that people reach the user-facing port.
    user_names: Vec<String>,
    /// Names under which the configuration says that nodes reach the internal port.
    internal_names: Vec<String>,
}

impl ServedCertificates for PortKeys {
    fn list_served(&self) -> Vec<ServedCertificate> {
        let describe = |used_for, key: &PortKey, names: &[String]| {
            let facts = key.facts();
            let uncovered = names.iter().filter(|name| facts.is_some() && !key.covers_name(name));
            let uncovered_names = uncovered.cloned().collect();
            ServedCertificate { used_for, origin: key.origin(), facts, uncovered_names }
        };
        let user = self.user.as_ref();
        let user = user.map(|key| describe(CertificateUse::UserPort, key, &self.user_names));
        let internal = self.internal.as_ref();
        let internal =
            internal.map(|key| describe(CertificateUse::InternalPort, key, &self.internal_names));
        user.into_iter().chain(internal).collect()
    }
}

impl PortsTls {
    /// Opens the certificates of both ports. A port that would speak clear text beyond loopback, without a proxy, is refused.
    pub(crate) fn open(
        config: &CynodeConfig,
        environment: &AppEnvironment,
    ) -> anyhow::Result<Self> {
        let (user, internal) =
            (PortProtection::of_user_port(config), PortProtection::of_internal_port(config));
        let directory = authority_directory(config);
        let files = directory.as_deref().map(AuthorityFiles::in_directory);
        let authority = match &files {
            Some(files) if files.exist() => Some(open_authority(files)?),
            Some(_) | None => None,
        };
        let needs_own = user == PortProtection::Own || internal == PortProtection::Own;
        let own = match (files, &authority) {
            (Some(files), Some(authority)) if needs_own => {
                Some(OwnCertificate::open(config, environment, files, authority)?)
            }
            _ => None,
        };
        ensure!(own.is_some() || !needs_own, "{}", describe_missing_tls(config));
        let own_key =
            || own.as_ref().map(|own| PortKey::Files(Arc::clone(&own.key), CertificateOrigin::Own));
        let (mut acme, mut acme_resolver) = (None, None);
        let user_key = match user {
            PortProtection::Loopback | PortProtection::Proxy => None,
            PortProtection::Own => own_key(),
            PortProtection::Files => Some(open_configured_files(config, environment)?),
            PortProtection::Acme => {
                let (renewal, resolver) = acme::AcmeRenewal::open(config, directory.as_deref())?;
                let place = renewal.directory();
                (acme, acme_resolver) = (Some(renewal), Some(resolver));
                Some(PortKey::Acme(place))
            }
        };
        let internal_key = if internal == PortProtection::Own { own_key() } else { None };
        let user = match (&user_key, acme_resolver) {
            (Some(PortKey::Files(key, _)), _) => {
                Some(ServerTls::new(key.clone(), ClientAuthentication::None)?)
            }
            (Some(PortKey::Acme(_)), Some(resolver)) => {
                Some(ServerTls::new(resolver, ClientAuthentication::None)?)
            }
            _ => None,
        };
        let internal = match (&internal_key, &authority) {
            (Some(PortKey::Files(key, _)), Some(authority)) => {
                let clients = ClientAuthentication::Optional(vec![authority.certificate().clone()]);
                Some(ServerTls::new(key.clone(), clients)?)
            }
            _ => None,
        };
        let keys = Arc::new(PortKeys {
            user: user_key,
            internal: internal_key,
            user_names: expected_user_names(config),
            internal_names: config.tls.names.clone(),
        });
        Ok(Self { user, internal, keys, acme, own, authority })
    }

    /// Splits it into the TLS of the two ports, the parts of the application and the upkeep.
    pub(crate) fn into_parts(
        self,
    ) -> (Option<ServerTls>, Option<ServerTls>, TlsParts, CertificateUpkeep) {
        let Self { user, internal, keys, acme, own, authority } = self;
        let expiry = authority.as_ref().map(|authority| authority.facts().not_after);
        let parts = TlsParts {
            authority,
            encrypts_internal_port: internal.is_some(),
            served: keys.clone(),
        };
        let upkeep = CertificateUpkeep { keys, acme, own, authority_expiry: expiry };
        (user, internal, parts, upkeep)
    }
}

/// Returns the parts of a process that serves nothing and issues join tokens: they carry the pin of the own authority, if there is one.
pub(crate) fn issuing_parts(config: &CynodeConfig) -> anyhow::Result<Option<TlsParts>> {
    let files =
        authority_directory(config).map(|directory| AuthorityFiles::in_directory(&directory));
    let Some(files) = files.filter(AuthorityFiles::exist) else { return Ok(None) };
    let keys =
        PortKeys { user: None, internal: None, user_names: Vec::new(), internal_names: Vec::new() };
    Ok(Some(TlsParts {
        authority: Some(open_authority(&files)?),
        encrypts_internal_port: true,
        served: Arc::new(keys),
    }))
}

/// Says why a port cannot listen, and what to do.
fn describe_missing_tls(config: &CynodeConfig) -> String {
    let place = authority_directory(config)
        .map_or_else(|| "DIRECTORY".to_owned(), |directory| directory.display().to_string());
    format!(
        "server.listen {} or server.internal_listen {} is beyond loopback, and nothing encrypts it: make a certificate authority with \
         `cynode admin certificate-authority {place}`, or name tls.certificate_file and tls.key_file, or tls.acme_domains, for people; or \
         declare a proxy that speaks TLS with server.behind_proxy and server.trusted_proxies",
        config.server.listen, config.server.internal_listen
    )
}

fn open_configured_files(
    config: &CynodeConfig,
    environment: &AppEnvironment,
) -> anyhow::Result<PortKey> {
    let (certificate, key) = config.tls.files.clone().context("tls.certificate_file is not set")?;
    let key = ReloadableKey::load_files(certificate, KeySource::File(key), environment.now())
        .context("tls.certificate_file and tls.key_file")?;
    Ok(PortKey::Files(Arc::new(key), CertificateOrigin::Files))
}

/// Returns the names under which people reach the user-facing port, as far as the configuration says so.
fn expected_user_names(config: &CynodeConfig) -> Vec<String> {
    let public = config.server.public_url.as_deref().and_then(|text| text.parse::<Url>().ok());
    public.and_then(|url| url.host_str().map(str::to_owned)).into_iter().collect()
}

/// Returns all names and addresses of certificates of the own authority.
fn own_names(config: &CynodeConfig) -> Vec<String> {
    let mut names = config.tls.names.clone();
    names.extend(expected_user_names(config));
    for address in [config.server.listen, config.server.internal_listen] {
        if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
    }
    names.extend(outgoing_address().map(|address| address.to_string()));
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    names.extend([host, "localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]);
    // A name that is no host name, such as one with an underscore, cannot be in a certificate.
    let usable = |name: &String| {
        name.parse::<IpAddr>().is_ok()
            || name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'*'))
    };
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !name.is_empty() && usable(&name) && !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// Returns the address that this machine uses towards others. No packet is sent.
fn outgoing_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

impl OwnCertificate {
    fn open(
        config: &CynodeConfig,
        environment: &AppEnvironment,
        files: AuthorityFiles,
        authority: &CertificateAuthority,
    ) -> anyhow::Result<Self> {
        let names = own_names(config);
        if !files.has_usable_server_key(authority, &names, environment.now()) {
            files.renew_server_key(authority, environment, &names)?;
        }
        let (certificate, key) = files.server_key();
        let key = ReloadableKey::load_files(certificate, KeySource::File(key), environment.now())?;
        Ok(Self { files, names, key: Arc::new(key) })
    }

    /// Issues another certificate when a third of its lifetime is left.
    fn renew_if_due(&self, environment: &AppEnvironment) -> anyhow::Result<()> {
        let authority = open_authority(&self.files)?;
        if self.files.has_usable_server_key(&authority, &self.names, environment.now()) {
            return Ok(());
        }
        self.files.renew_server_key(&authority, environment, &self.names)
    }
}

/// Upkeep of the certificates of this process: files that change, certificates that expire, metrics.
pub(crate) struct CertificateUpkeep {
    keys: Arc<PortKeys>,
    acme: Option<acme::AcmeRenewal>,
    own: Option<OwnCertificate>,
    authority_expiry: Option<time::OffsetDateTime>,
}

impl CertificateUpkeep {
    /// Starts the upkeep. It ends with `stop`.
    pub(crate) fn spawn(
        mut self,
        tasks: &TaskTracker,
        environment: AppEnvironment,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        // A server without TLS has nothing to look after, and stays idle.
        if self.keys.user.is_none() && self.keys.internal.is_none() {
            return Ok(());
        }
        if let Some(acme) = self.acme.take() {
            tasks.spawn(acme.run_renewal(stop.clone()));
        }
        let mut reload = signal(SignalKind::hangup())?;
        // A terminal that is closed sends the same signal, and its programs end.
        let in_terminal = std::io::stdin().is_terminal();
        tasks.spawn(async move {
            let mut turn = tokio::time::interval(RELOAD_INTERVAL);
            loop {
                let force = tokio::select! {
                    () = stop.cancelled() => return,
                    _ = turn.tick() => false,
                    _ = reload.recv() => true,
                };
                if force && in_terminal {
                    return stop.cancel();
                }
                self.run_once(&environment, force);
            }
        });
        Ok(())
    }

    fn run_once(&self, environment: &AppEnvironment, force: bool) {
        if let Some(own) = &self.own
            && let Err(error) = own.renew_if_due(environment)
        {
            tracing::error!(
                event = "tls.renewal_failed",
                error = format!("{error:#}"),
                "the certificate of the own authority could not be renewed"
            );
        }
        for (key, used_for) in
            [(&self.keys.user, "user_port"), (&self.keys.internal, "internal_port")]
        {
            let Some(key) = key else { continue };
            if let PortKey::Files(key, _) = key {
                reload_key(key, environment, force, used_for);
            }
            if let Some(facts) = key.facts() {
                record_expiry(used_for, facts.not_after);
            }
        }
        if let Some(expiry) = self.authority_expiry {
            record_expiry("authority", expiry);
        }
    }
}

fn reload_key(key: &ReloadableKey, environment: &AppEnvironment, force: bool, used_for: &str) {
    let now = environment.now();
    let outcome = if force { key.force_reload(now) } else { key.reload_if_changed(now) };
    let path = key.certificate_path().display();
    match outcome {
        ReloadOutcome::Unchanged => {}
        ReloadOutcome::Reloaded(facts) => {
            metrics::counter!(TLS_CERTIFICATE_RELOADS.name, "outcome" => "reloaded").increment(1);
            tracing::info!(
                event = "tls.certificate_reloaded",
                used_for,
                serial = facts.serial,
                expires_at = %facts.not_after,
                "new connections use the certificate of {path}"
            );
        }
        ReloadOutcome::Refused(error) => {
            metrics::counter!(TLS_CERTIFICATE_RELOADS.name, "outcome" => "refused").increment(1);
            tracing::error!(
                event = "tls.certificate_refused",
                used_for,
                error = format!("{:#}", anyhow::Error::from(error)),
                "the changed certificate {path} is not used; the one before it stays"
            );
        }
    }
}

fn record_expiry(used_for: &'static str, at: time::OffsetDateTime) {
    #[expect(clippy::cast_precision_loss, reason = "seconds of this age are exact in a float")]
    let seconds = at.unix_timestamp() as f64;
    metrics::gauge!(TLS_CERTIFICATE_EXPIRY.name, "use" => used_for).set(seconds);
}

#[cfg(test)]
mod tests;
