//! Trust between the node and its orchestrator: the certificate authority that the node trusts, and the client certificate that it shows.
//!
//! The authority's pin comes with the join token, so that the node never trusts first contact. The client certificate is for the node's own
//! key; it is renewed at every start and twice a day, long before it expires.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use cynode_net::{
    tls::{
        CaPin, CertificateFacts, ClientTls, KeySource, PrivatePkcs8KeyDer, ReloadableKey,
        load_certificates, parse_certificates,
    },
    transport::{Transport, check_transport},
};
use cynode_wire::nodes::NodeCertificate;

use crate::{
    client::{NodeClient, NodeClientError, call_with_retry},
    key::NodeKey,
    store::NodeStore,
};

/// Interval at which the client certificate is renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_hours(12);

/// DER before the 32 bytes of an Ed25519 private key (RFC 8410).
const ED25519_KEY_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Refuses an address that would be called in clear text over a network, or warns of it where `insecure` allows it.
pub(crate) fn check_address(url: &str, insecure: bool) -> anyhow::Result<()> {
    if check_transport(url, insecure)? == Transport::Insecure {
        tracing::warn!(
            event = "tls.insecure",
            url,
            "insecure is set: clear text leaves this machine, and everybody on the way can read and change it"
        );
    }
    Ok(())
}

/// Returns the trust with which a machine joins: a file that somebody named, the pin of the token, or the roots of the machine.
pub(crate) fn join_trust(ca_file: Option<&Path>, pin: Option<CaPin>) -> anyhow::Result<ClientTls> {
    Ok(match (ca_file, pin) {
        (_, Some(pin)) => ClientTls::trust_pin(pin),
        (Some(path), None) => ClientTls::trust_file(path)?,
        (None, None) => ClientTls::default(),
    })
}

/// Stores what the orchestrator issued. Its certificate authority must be the pinned one.
pub(crate) fn store_certificate(
    store: &NodeStore,
    certificate: &NodeCertificate,
    pin: Option<CaPin>,
) -> anyhow::Result<()> {
    let authority = parse_certificates(certificate.authority_pem.as_bytes());
    let authority = authority.context("the orchestrator sent no certificate authority")?;
    for authority in &authority {
        let found = CertificateFacts::parse_der(authority)?.pin;
        ensure!(
            pin.is_none_or(|pin| pin == found),
            "the orchestrator sent another certificate authority than the join token names"
        );
    }
    store.save_certificate(&certificate.chain_pem)?;
    store.save_authority(&certificate.authority_pem)?;
    Ok(())
}

/// Takes over a certificate authority that somebody named. Git runs as another user and reads the copy.
pub(crate) fn adopt_authority(store: &NodeStore, ca_file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(ca_file)
        .with_context(|| format!("cannot read {}", ca_file.display()))?;
    load_certificates(ca_file)?;
    store.save_authority(&text)?;
    Ok(())
}

/// Returns the trust and the client certificate of a node that has joined.
pub(crate) fn open_tls(store: &NodeStore, key: &NodeKey) -> anyhow::Result<ClientTls> {
    if !store.authority_file().exists() {
        return Ok(ClientTls::default());
    }
    let tls = ClientTls::trust_file(&store.authority_file())?;
    if !store.certificate_file().exists() {
        return Ok(tls);
    }
    let key = [ED25519_KEY_PREFIX.as_slice(), &key.secret_bytes()].concat();
    let key = KeySource::Key(PrivatePkcs8KeyDer::from(key).into());
    let identity = ReloadableKey::load_client_files(store.certificate_file(), key)?;
    Ok(tls.with_identity(Arc::new(identity)))
}

/// Renews the client certificate at a start. A node without one waits until it gets one; a node with one goes on with it.
pub(crate) async fn renew_at_start(store: &NodeStore, client: &NodeClient) -> anyhow::Result<()> {
    if !store.authority_file().exists() {
        return Ok(());
    }
    let renewed = if store.certificate_file().exists() {
        client.renew_certificate().await
    } else {
        call_with_retry(|| client.renew_certificate()).await
    };
    store_renewed(store, renewed)
}

/// Renews the client certificate twice a day.
pub(crate) async fn keep_renewed(store: &NodeStore, client: &NodeClient) {
    loop {
        let _ = tokio::time::timeout(RENEWAL_INTERVAL, std::future::pending::<()>()).await;
        if !store.authority_file().exists() {
            continue;
        }
        let renewed = client.renew_certificate().await;
        if let Err(error) = store_renewed(store, renewed) {
            let error = format!("{error:#}");
            tracing::warn!(
                event = "certificate.renewal_failed",
                error,
                "the client certificate is not renewed"
            );
        }
    }
}

fn store_renewed(
    store: &NodeStore,
    renewed: Result<NodeCertificate, NodeClientError>,
) -> anyhow::Result<()> {
    match renewed {
        // The authority stays the one that the node trusts: the server that answers has proved to have a certificate of it.
        Ok(certificate) => Ok(store.save_certificate(&certificate.chain_pem)?),
        // An orchestrator behind a proxy issues none, and neither does an older one.
        Err(NodeClientError::Refused { status: 404 | 409, .. }) => Ok(()),
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(
                event = "certificate.renewal_failed",
                error,
                "the client certificate is not renewed"
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_an_authority_trusts_the_machine_and_clear_text_stays_here() {
        let dir = tempfile::tempdir().unwrap();
        let store = NodeStore::open_state_dir(dir.path()).unwrap();
        let key = NodeKey::load_or_create(&store.key_file()).unwrap();
        assert!(open_tls(&store, &key).is_ok());
        assert!(check_address("http://127.0.0.1:12082", false).is_ok());
        assert!(check_address("http://10.0.0.7:12082", false).is_err());
        assert!(check_address("http://10.0.0.7:12082", true).is_ok());
    }

    #[test]
    fn what_is_no_certificate_is_not_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let store = NodeStore::open_state_dir(&dir.path().join("state")).unwrap();
        let file = dir.path().join("ca.pem");
        std::fs::write(&file, "hunter2").unwrap();
        assert!(adopt_authority(&store, &file).is_err());
        assert!(!store.authority_file().exists());
    }
}
