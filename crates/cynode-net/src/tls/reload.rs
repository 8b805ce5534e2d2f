//! A certificate with its key that is loaded again when its files change. Connections under way keep what they began with.

use std::{
    fmt, fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use time::OffsetDateTime;

use super::{CertificateFacts, TlsError, certificate::load_certificates, crypto_provider};

/// Minimum time between two looks of a client at the files of its certificate.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Where the private key of a certificate comes from.
pub enum KeySource {
    /// From a PEM file that only its owner can read.
    File(PathBuf),
    /// From memory.
    Key(PrivateKeyDer<'static>),
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Key(_) => f.write_str("Key"),
        }
    }
}

/// Result of a look at the files.
#[derive(Debug)]
pub enum ReloadOutcome {
    /// The files are the same.
    Unchanged,
    /// New connections use the new certificate.
    Reloaded(Box<CertificateFacts>),
    /// The new files cannot be used, and the certificate before them stays in use. It is reported once for each change.
    Refused(TlsError),
}

/// A certificate and its key, from files.
#[derive(Debug)]
pub struct ReloadableKey {
    certificate: PathBuf,
    key: KeySource,
    current: ArcSwap<CertifiedKey>,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    /// The files that were looked at last, whether they could be used or not.
    seen: FileStamps,
    /// Whether they could not be used then, and may be later: they were not valid yet, or could not be read.
    retries: bool,
    checked: Instant,
}

/// What changes when a file is replaced or written: device, inode, size and time of change of each file.
type FileStamps = Vec<(u64, u64, u64, i64, i64)>;

impl ReloadableKey {
    /// Loads the certificate chain, leaf first, and its key. Both have to fit, and the certificate has to be valid at `now`.
    pub fn load_files(
        certificate: PathBuf,
        key: KeySource,
        now: OffsetDateTime,
    ) -> Result<Self, TlsError> {
        Self::load_at(certificate, key, Some(now))
    }

    /// Loads the certificate of a client. The server decides whether it is valid now.
    pub fn load_client_files(certificate: PathBuf, key: KeySource) -> Result<Self, TlsError> {
        Self::load_at(certificate, key, None)
    }

    fn load_at(
        certificate: PathBuf,
        key: KeySource,
        now: Option<OffsetDateTime>,
    ) -> Result<Self, TlsError> {
        let seen = read_stamps(&certificate, &key);
        let loaded = load_key(&certificate, &key, now)?;
        let state = Mutex::new(FileState { seen, retries: false, checked: Instant::now() });
        Ok(Self { certificate, key, current: ArcSwap::from_pointee(loaded), state })
    }

    /// Returns the facts of the certificate in use.
    pub fn facts(&self) -> Result<CertificateFacts, TlsError> {
        facts_of(&self.current.load())
    }

    /// Returns whether the certificate in use is valid for a host name or an address.
    pub fn covers_name(&self, host: &str) -> bool {
        let current = self.current.load();
        current.end_entity_cert().is_ok_and(|leaf| super::covers_name(leaf, host))
    }

    /// Returns the path of the certificate chain.
    pub fn certificate_path(&self) -> &Path {
        &self.certificate
    }

    /// Loads the files again if they have changed. A certificate that does not fit its key, or is not valid at `now`, is refused.
    pub fn reload_if_changed(&self, now: OffsetDateTime) -> ReloadOutcome {
        self.reload(Some(now), false)
    }

    /// Loads the files again, whether they have changed or not.
    pub fn force_reload(&self, now: OffsetDateTime) -> ReloadOutcome {
        self.reload(Some(now), true)
    }

    fn reload(&self, now: Option<OffsetDateTime>, force: bool) -> ReloadOutcome {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = read_stamps(&self.certificate, &self.key);
        state.checked = Instant::now();
        let is_same = seen == state.seen && !force;
        if is_same && !state.retries {
            return ReloadOutcome::Unchanged;
        }
        state.seen = seen;
        let loaded = load_key(&self.certificate, &self.key, now)
            .and_then(|loaded| facts_of(&loaded).map(|facts| (loaded, facts)));
        match loaded {
            Ok((loaded, facts)) => {
                state.retries = false;
                self.current.store(Arc::new(loaded));
                ReloadOutcome::Reloaded(Box::new(facts))
            }
            Err(error) => {
                state.retries = matches!(error, TlsError::File { .. } | TlsError::NotValidNow(_));
                // It was reported when it was tried first.
                if is_same { ReloadOutcome::Unchanged } else { ReloadOutcome::Refused(error) }
            }
        }
    }

    /// Looks at the files, at most every two seconds, for a program without an upkeep of its own. What cannot be used is logged.
    pub fn refresh_if_due(&self) {
        if self.is_due()
            && let ReloadOutcome::Refused(error) = self.reload(None, false)
        {
            let path = self.certificate.display();
            tracing::warn!(event = "tls.certificate_refused", %error, "the changed certificate {path} is not used");
        }
    }

    fn is_due(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.checked.elapsed() >= CLIENT_CHECK_INTERVAL
    }
}

fn facts_of(key: &CertifiedKey) -> Result<CertificateFacts, TlsError> {
    CertificateFacts::parse_der(key.end_entity_cert()?)
}

fn read_stamps(certificate: &Path, key: &KeySource) -> FileStamps {
    let key_file = match key {
        KeySource::File(path) => Some(path.as_path()),
        KeySource::Key(_) => None,
    };
    let stamp = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    [Some(certificate), key_file].into_iter().flatten().filter_map(stamp).collect()
}

fn load_key(
    certificate: &Path,
    key: &KeySource,
    now: Option<OffsetDateTime>,
) -> Result<CertifiedKey, TlsError> {
    let chain = load_certificates(certificate)?;
    let key = match key {
        KeySource::File(path) => load_private_key(path)?,
        KeySource::Key(key) => key.clone_key(),
    };
    let loaded = CertifiedKey::from_der(chain, key, &crypto_provider())?;
    match now {
        Some(now) if !facts_of(&loaded)?.is_valid_at(now) => {
            Err(TlsError::NotValidNow(certificate.display().to_string()))
        }
        Some(_) | None => Ok(loaded),
    }
}

fn load_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let named = path.display().to_string();
    let unreadable = |source: io::Error| TlsError::File { path: named.clone(), source };
    let mode = fs::metadata(path).map_err(unreadable)?.permissions().mode();
    // A group may be allowed to read it, as Debian's group `ssl-cert` is; nobody else.
    if mode & 0o007 != 0 {
        return Err(TlsError::OpenKey(named));
    }
    let text = fs::read(path).map_err(unreadable)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| TlsError::NoKey(named))
}

impl ResolvesServerCert for ReloadableKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl ResolvesClientCert for ReloadableKey {
    /// Returns the certificate of the client. A program may renew the file while this one runs, so that it looks for changes by itself.
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.refresh_if_due();
        Some(self.current.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
