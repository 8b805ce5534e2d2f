//! Certificates of the installation: its certificate authority, the client certificates of nodes and services, and those of the ports.
//!
//! The authority signs with its own key, which is on the disk of the server and nowhere else. A node's certificate is for the key that it
//! joined with, so that no key travels. Each issued certificate is stored: one that is not stored, or is revoked, is refused.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration as Wait, Instant},
};

use cynode_core::{
    events::EventKind, ids::NodeId, names::Title, roles::UserRole, sync::lock_unpoisoned,
};
use cynode_db::identity::{
    certificates::{self, CertificateHolder, IssuedCertificateRecord},
    service_tokens::ServiceKind,
};
use cynode_net::tls::{CaPin, CertificateDer, CertificateFacts, PeerCertificate, pin_token};
use cynode_wire::{
    identity::accounts::SecretText,
    nodes::NodeCertificate,
    platform::{
        certificates::{CertificateOrigin, CertificateUse, CertificateView},
        health::{DiagnosisCheck, ReadinessCheck},
    },
};
use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::{
    App, AppEnvironment, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, operation},
};

/// Lifetime of the certificate authority.
const AUTHORITY_LIFETIME: Duration = Duration::days(3650);

/// Lifetime of the certificate of a port that the authority issues.
const SERVER_LIFETIME: Duration = Duration::days(90);

/// Lifetime of a client certificate.
const CLIENT_LIFETIME: Duration = Duration::days(30);

/// How far back a certificate is valid, because clocks differ.
const CLOCK_TOLERANCE: Duration = Duration::hours(1);

/// How long the database's word about a client certificate holds. A revoked certificate stops working within that time.
const CERTIFICATE_CACHE_TTL: Wait = Wait::from_secs(1);

/// Number of cached certificates from which on old entries are evicted.
const MAX_CACHED_CERTIFICATES: usize = 10_000;

/// Maximum number of client certificates in a list.
const MAX_LISTED_CERTIFICATES: i64 = 1000;

/// Days before the end of a certificate from which on the diagnosis warns. Certificates that are renewed by themselves have more left.
const EXPIRY_WARNING_DAYS: i64 = 14;

/// DER before the 32 bytes of an Ed25519 public key (RFC 8410).
const ED25519_KEY_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Error of the certificate authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The library refuses a key, a name or a certificate.
    #[error("the certificate authority: {0}")]
    Library(#[from] rcgen::Error),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] cynode_net::tls::TlsError),
    /// The key belongs to another certificate.
    #[error("the key of the certificate authority belongs to another certificate")]
    KeyMismatch,
}

/// The certificate authority of the installation.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    facts: CertificateFacts,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority").field("pin", &self.facts.pin).finish_non_exhaustive()
    }
}

/// A certificate that was just issued, with its chain.
#[derive(Clone, Debug)]
pub struct IssuedCertificate {
    /// The certificate and that of the authority, in PEM.
    pub chain_pem: String,
    /// Facts about the certificate.
    pub facts: CertificateFacts,
}

/// A certificate with a new key.
pub struct IssuedKey {
    /// The certificate.
    pub certificate: IssuedCertificate,
    /// The private key in PEM.
    pub key_pem: String,
}

impl fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedKey").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// Generates an authority. Returns the PEM of its certificate and that of its private key.
    pub fn generate_files(
        environment: &AppEnvironment,
    ) -> Result<(String, SecretText), AuthorityError> {
        let (key, now) = (KeyPair::generate()?, environment.now());
        let serial = environment.random_bytes::<16>();
        let name = format!("CyNode CA {}", HEXLOWER.encode(&serial[..4]));
        let mut params = base_params(&name, &serial, now, AUTHORITY_LIFETIME)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok((certificate.pem(), SecretText(key.serialize_pem())))
    }

    /// Opens an authority from the PEM of its certificate and of its private key.
    pub fn from_pem(
        certificate: CertificateDer<'static>,
        pem: String,
        key: &SecretText,
    ) -> Result<Self, AuthorityError> {
        let facts = CertificateFacts::parse_der(&certificate)?;
        let key = KeyPair::from_pem(&key.0)?;
        if CaPin::from_public_key(&key.subject_public_key_info()) != facts.pin {
            return Err(AuthorityError::KeyMismatch);
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self { issuer, certificate, pem, facts })
    }

    /// Returns its certificate.
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns its certificate in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// Returns facts about its certificate.
    pub const fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Issues a certificate of a port, with a new key. `names` are host names and addresses.
    pub fn issue_server_key(
        &self,
        environment: &AppEnvironment,
        names: &[String],
    ) -> Result<IssuedKey, AuthorityError> {
        let key = KeyPair::generate()?;
        let subject = names.first().map_or("cynode", String::as_str);
        let mut params = self.leaf_params(environment, subject, SERVER_LIFETIME)?;
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = self.sign_leaf(&params, &key)?;
        Ok(IssuedKey { certificate, key_pem: key.serialize_pem() })
    }

    /// Issues a certificate of a service, with a new key. It is a client of the internal port, and may listen under `names` itself.
    fn issue_service_key(
        &self,
        environment: &AppEnvironment,
        kind: ServiceKind,
        name: &str,
        names: &[String],
    ) -> Result<IssuedKey, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = self.leaf_params(environment, name, CLIENT_LIFETIME)?;
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        params.subject_alt_names.push(holder_name(&format!("service:{}", kind.as_str()))?);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = self.sign_leaf(&params, &key)?;
        Ok(IssuedKey { certificate, key_pem: key.serialize_pem() })
    }

    /// Issues a certificate of a node, for the Ed25519 key that it joined with.
    fn issue_node_certificate(
        &self,
        environment: &AppEnvironment,
        node: NodeId,
        public_key: &[u8; 32],
    ) -> Result<IssuedCertificate, AuthorityError> {
        let der = [ED25519_KEY_PREFIX.as_slice(), public_key].concat();
        let key = SubjectPublicKeyInfo::from_der(&der)?;
        let name = format!("node:{node}");
        let mut params = self.leaf_params(environment, &name, CLIENT_LIFETIME)?;
        params.subject_alt_names = vec![holder_name(&name)?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign_leaf(&params, &key)
    }

    /// Returns the parameters of a certificate. It does not outlive the authority.
    fn leaf_params(
        &self,
        environment: &AppEnvironment,
        name: &str,
        lifetime: Duration,
    ) -> Result<CertificateParams, rcgen::Error> {
        let (serial, now) = (environment.random_bytes::<16>(), environment.now());
        let mut params = base_params(name, &serial, now, lifetime)?;
        params.not_after = params.not_after.min(self.facts.not_after);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    fn sign_leaf(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let leaf = params.signed_by(key, &self.issuer)?;
        let facts = CertificateFacts::parse_der(leaf.der())?;
        Ok(IssuedCertificate { chain_pem: format!("{}{}", leaf.pem(), self.pem), facts })
    }
}

fn base_params(
    name: &str,
    serial: &[u8; 16],
    now: OffsetDateTime,
    lifetime: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // A serial number is positive, and its encoding has no leading zero.
    let mut serial = *serial;
    serial[0] = (serial[0] & 0x7f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = now - CLOCK_TOLERANCE;
    params.not_after = now + lifetime;
    Ok(params)
}

/// Returns the name of a holder in its certificate: a URI that no host name can be.
fn holder_name(text: &str) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(format!("cynode:{text}").try_into()?))
}

/// A certificate that a port of this process uses.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    /// The port.
    pub used_for: CertificateUse,
    /// Where it comes from.
    pub origin: CertificateOrigin,
    /// Its facts. `None` while there is none yet.
    pub facts: Option<CertificateFacts>,
    /// Names under which clients reach the port and for which it is not valid.
    pub uncovered_names: Vec<String>,
}

/// The certificates that the ports of this process use now.
pub trait ServedCertificates: Send + Sync {
    /// Returns them.
    fn list_served(&self) -> Vec<ServedCertificate>;
}

/// TLS of a process that serves.
pub struct TlsParts {
    /// The certificate authority, if the installation has one of its own.
    pub authority: Option<CertificateAuthority>,
    /// Whether the internal port speaks TLS. Join tokens then carry the pin of the authority, and clients need certificates.
    pub encrypts_internal_port: bool,
    /// The certificates of the ports.
    pub served: Arc<dyn ServedCertificates>,
}

/// Cache of the database's word about client certificates, by serial number.
#[derive(Default)]
pub(crate) struct CertificateCache(Mutex<HashMap<String, (CertificateHolder, Instant)>>);

impl CertificateCache {
    fn lookup_holder(&self, serial: &str) -> Option<CertificateHolder> {
        let known = lock_unpoisoned(&self.0);
        let (holder, found) = known.get(serial)?;
        (found.elapsed() < CERTIFICATE_CACHE_TTL).then(|| holder.clone())
    }

    fn store_holder(&self, serial: &str, holder: CertificateHolder) {
        let mut known = lock_unpoisoned(&self.0);
        if known.len() > MAX_CACHED_CERTIFICATES {
            known.retain(|_, (_, found)| found.elapsed() < CERTIFICATE_CACHE_TTL);
        }
        known.insert(serial.to_owned(), (holder, Instant::now()));
    }
}

/// Holder of the client certificate of a request, verified. Requests carry it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedClient(CertificateHolder);

impl CertifiedClient {
    /// Returns the client that this certificate belongs to.
    #[cfg(test)]
    pub(crate) const fn of_holder(holder: CertificateHolder) -> Self {
        Self(holder)
    }

    /// Returns whether the certificate belongs to another node than this one, or to no node.
    pub fn is_other_than(&self, node: NodeId) -> bool {
        self.0 != CertificateHolder::Node(node)
    }

    /// Returns whether the certificate belongs to another kind of program than this one.
    pub fn is_other_service_than(&self, kind: ServiceKind) -> bool {
        self.0 != CertificateHolder::Service(kind)
    }
}

impl App {
    /// Returns whether the internal port needs client certificates.
    pub fn needs_client_certificates(&self) -> bool {
        self.tls_parts().is_some_and(|parts| parts.encrypts_internal_port)
    }

    /// Returns the holder of a client certificate. A certificate that is not stored, is revoked or has expired is refused.
    #[tracing::instrument(name = "app.certificates.authenticate_certificate", skip_all)]
    pub async fn authenticate_certificate(
        &self,
        shown: &PeerCertificate,
    ) -> Result<CertifiedClient, Error> {
        let serial = &shown.facts().serial;
        let cache = &self.shared_state().certificates;
        if let Some(holder) = cache.lookup_holder(serial) {
            return Ok(CertifiedClient(holder));
        }
        let (mut conn, now) = (self.conn().await?, self.environment().now());
        let found = certificates::find_valid_certificate(&mut conn, serial, now).await?;
        let found = found.ok_or(Error::Unauthenticated)?;
        cache.store_holder(serial, found.holder.clone());
        Ok(CertifiedClient(found.holder))
    }

    /// Returns the certificate authority, if the internal port uses it.
    fn internal_authority(&self) -> Option<&CertificateAuthority> {
        let parts = self.tls_parts().filter(|parts| parts.encrypts_internal_port)?;
        parts.authority.as_ref()
    }

    /// Returns a join token that carries the pin of the certificate authority, if nodes need it.
    pub(crate) fn pin_join_token(&self, token: SecretText) -> SecretText {
        match self.internal_authority() {
            Some(authority) => SecretText(pin_token(&token.0, authority.facts.pin)),
            None => token,
        }
    }
}

/// Issues and stores a certificate for the key of a node. Returns `None` where the internal port does not speak TLS.
pub(crate) async fn issue_for_node(
    app: &App,
    ctx: &mut Ctx,
    node: NodeId,
    name: &str,
    public_key: &[u8; 32],
) -> Result<Option<NodeCertificate>, Error> {
    let Some(authority) = app.internal_authority() else { return Ok(None) };
    let issued = authority
        .issue_node_certificate(app.environment(), node, public_key)
        .map_err(|error| Error::Internal(error.into()))?;
    store_certificate(ctx, CertificateHolder::Node(node), name, &issued.facts).await?;
    Ok(Some(NodeCertificate {
        chain_pem: issued.chain_pem,
        authority_pem: authority.pem.clone(),
        expires_at: issued.facts.not_after,
    }))
}

async fn store_certificate(
    ctx: &mut Ctx,
    holder: CertificateHolder,
    name: &str,
    facts: &CertificateFacts,
) -> Result<(), Error> {
    let now = ctx.now;
    let data = json!({ "kind": holder.kind_name(), "name": name, "serial": facts.serial });
    let record = IssuedCertificateRecord {
        serial: facts.serial.clone(),
        holder,
        name: name.to_owned(),
        not_before: facts.not_before,
        not_after: facts.not_after,
    };
    certificates::insert_certificate(ctx.conn(), &record, now).await?;
    ctx.record_event(EventDraft::new(EventKind::CertificateIssued, data)).await
}

/// Revokes the certificates of a node.
pub(crate) async fn revoke_for_node(ctx: &mut Ctx, node: NodeId, name: &str) -> Result<(), Error> {
    let now = ctx.now;
    if certificates::revoke_node_certificates(ctx.conn(), node, now).await? > 0 {
        let data = json!({ "kind": "node", "name": name });
        ctx.record_event(EventDraft::new(EventKind::CertificateRevoked, data)).await?;
    }
    Ok(())
}

/// What happens to the certificates that a service has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierCertificates {
    /// They are revoked: the service starts anew.
    Revoke,
    /// They work until they expire: the service runs and has connections with them.
    Keep,
}

/// Issues a certificate to a service. Only an operator at the machine can call this: no endpoint exposes it.
/// `hosts` are the names and addresses under which the service listens.
#[tracing::instrument(name = "app.certificates.issue_service_certificate", skip_all)]
#[operation]
pub async fn issue_service_certificate(
    app: &App,
    authority: &CertificateAuthority,
    kind: ServiceKind,
    name: &Title,
    hosts: &[String],
    earlier: EarlierCertificates,
) -> Result<IssuedKey, Error> {
    let issued = authority
        .issue_service_key(app.environment(), kind, name.as_str(), hosts)
        .map_err(|error| Error::Internal(error.into()))?;
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    let now = ctx.now;
    if earlier == EarlierCertificates::Revoke {
        certificates::revoke_service_certificates(ctx.conn(), kind, name.as_str(), now).await?;
    }
    let holder = CertificateHolder::Service(kind);
    store_certificate(&mut ctx, holder, name.as_str(), &issued.certificate.facts).await?;
    ctx.commit().await?;
    Ok(issued)
}

/// Lists the certificates of the ports, of the authority and of its clients. Only admins of the installation may ask.
#[tracing::instrument(name = "app.certificates.list_certificates", skip_all)]
#[operation]
pub async fn list_certificates(
    app: &App,
    request: &OperationRequest,
) -> Result<Vec<CertificateView>, Error> {
    let permitted = app
        .read(request, |ctx| Box::pin(async move { ctx.require_role(UserRole::Admin).map(drop) }));
    permitted.await?;
    let now = app.environment().now();
    let mut views = Vec::new();
    if let Some(parts) = app.tls_parts() {
        views.extend(parts.served.list_served().into_iter().map(|it| to_served_view(it, now)));
        views.extend(parts.authority.as_ref().map(|authority| {
            to_view(CertificateUse::Authority, CertificateOrigin::Own, authority.facts(), now)
        }));
    }
    let mut conn = app.conn().await?;
    let clients =
        certificates::list_valid_certificates(&mut conn, now, MAX_LISTED_CERTIFICATES).await?;
    views.extend(clients.into_iter().map(|record| to_client_view(record, now)));
    Ok(views)
}

fn to_view(
    used_for: CertificateUse,
    origin: CertificateOrigin,
    facts: &CertificateFacts,
    now: OffsetDateTime,
) -> CertificateView {
    let mut problems = Vec::new();
    if !facts.is_valid_at(now) {
        problems.push("it is not valid now".to_owned());
    } else if facts.days_left(now) < EXPIRY_WARNING_DAYS {
        problems.push(format!("it expires in {} days", facts.days_left(now)));
    }
    if facts.weak_key {
        problems.push(format!("its key is weak: {}", facts.key));
    }
    CertificateView {
        used_for,
        origin,
        name: facts.subject.clone(),
        issuer: Some(facts.issuer.clone()),
        serial: Some(facts.serial.clone()),
        host_names: facts.names.clone(),
        key: Some(facts.key.clone()),
        pin: Some(facts.pin.to_string()),
        not_before: Some(facts.not_before),
        not_after: Some(facts.not_after),
        days_left: Some(facts.days_left(now)),
        problems,
    }
}

fn to_served_view(served: ServedCertificate, now: OffsetDateTime) -> CertificateView {
    let ServedCertificate { used_for, origin, facts, uncovered_names } = served;
    let mut view = match facts {
        Some(facts) => to_view(used_for, origin, &facts, now),
        None => CertificateView {
            used_for,
            origin,
            name: String::new(),
            issuer: None,
            serial: None,
            host_names: Vec::new(),
            key: None,
            pin: None,
            not_before: None,
            not_after: None,
            days_left: None,
            problems: vec![
                "there is none yet: the certificate authority was asked for one".to_owned(),
            ],
        },
    };
    for name in uncovered_names {
        view.problems
            .push(format!("it is not valid for {name}, under which clients reach the port"));
    }
    view
}

fn to_client_view(record: IssuedCertificateRecord, now: OffsetDateTime) -> CertificateView {
    let days_left = (record.not_after - now).whole_days();
    // Nodes and services renew theirs when a third of the lifetime is left.
    let late = record.not_after - now < CLIENT_LIFETIME / 5_i32;
    let problems = if late {
        vec![format!("it expires in {days_left} days and was not renewed")]
    } else {
        Vec::new()
    };
    CertificateView {
        used_for: match &record.holder {
            CertificateHolder::Node(_) => CertificateUse::Node,
            CertificateHolder::Service(_) => CertificateUse::Service,
        },
        origin: CertificateOrigin::Own,
        name: match &record.holder {
            CertificateHolder::Node(_) => record.name,
            CertificateHolder::Service(kind) => format!("{} {}", kind.as_str(), record.name),
        },
        issuer: None,
        serial: Some(record.serial),
        host_names: Vec::new(),
        key: None,
        pin: None,
        not_before: Some(record.not_before),
        not_after: Some(record.not_after),
        days_left: Some(days_left),
        problems,
    }
}

/// Checks the certificates of the ports and of the authority.
pub(crate) fn check_certificates(app: &App, now: OffsetDateTime) -> Vec<DiagnosisCheck> {
    const NAME: &str = "certificates";
    let Some(parts) = app.tls_parts() else { return Vec::new() };
    let served = parts.served.list_served();
    if served.is_empty() {
        let detail =
            "both ports speak clear text, and only this machine or a trusted proxy reaches them";
        return vec![ReadinessCheck::passed_check(NAME, detail).into()];
    }
    let mut views: Vec<_> = served.into_iter().map(|it| to_served_view(it, now)).collect();
    views.extend(parts.authority.as_ref().map(|authority| {
        to_view(CertificateUse::Authority, CertificateOrigin::Own, authority.facts(), now)
    }));
    views.into_iter().map(|view| check_certificate(NAME, &view).into()).collect()
}

fn check_certificate(name: &str, view: &CertificateView) -> ReadinessCheck {
    let used_for = match view.used_for {
        CertificateUse::UserPort => "of the user-facing port",
        CertificateUse::InternalPort => "of the internal port",
        CertificateUse::Authority => "of the certificate authority",
        CertificateUse::Node | CertificateUse::Service => "of a client",
    };
    let left = view.days_left;
    if view.problems.is_empty() {
        let days = left.map(|days| format!(" has {days} days left")).unwrap_or_default();
        return ReadinessCheck::passed_check(name, format!("the certificate {used_for}{days}"));
    }
    let detail = format!("the certificate {used_for}: {}", view.problems.join("; "));
    let fix = match view.origin {
        CertificateOrigin::Files => {
            "replace the files `tls.certificate_file` and `tls.key_file`; the server loads them without a restart"
        }
        CertificateOrigin::Acme => {
            "look in the log for `tls.acme_failed`: the certificate authority must reach this server on port 443 under each of `tls.acme_domains`"
        }
        CertificateOrigin::Own => {
            "add the names to `tls.names` and restart, or restart to renew it"
        }
    };
    if left.is_some_and(|days| days >= 0) {
        ReadinessCheck::warning_check(name, detail, fix)
    } else {
        ReadinessCheck::failed_check(name, detail, fix)
    }
}
