//! Syslog messages by RFC 5424 over TCP, TLS and Unix sockets.
//!
//! Syslog has no answers. A connection is made for each batch: the sender closes its half when everything is written, and the batch counts
//! as delivered when the receiver has read to the end and closes the other half.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use time::{OffsetDateTime, UtcOffset, macros::format_description};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixDatagram, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::{ExportBatch, ExportError, ExportEvent, SyslogTransport};

/// Facility of messages: log audit.
const AUDIT_FACILITY: u8 = 13;

/// Severities: informational and warning.
const INFORMATIONAL: u8 = 6;
const WARNING: u8 = 4;

/// Maximum number of bytes that a receiver may send back before it closes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Formats a message.
fn format_message(event: &ExportEvent) -> String {
    let severity = if event.notable { WARNING } else { INFORMATIONAL };
    let priority = AUDIT_FACILITY * 8 + severity;
    let name = event.name;
    format!("<{priority}>1 {} - cynode - {name} - {}", format_time(event.at), event.body)
}

/// Formats a time as RFC 5424 wants it: RFC 3339 with at most six digits of a fraction.
fn format_time(at: OffsetDateTime) -> String {
    let form =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    at.to_offset(UtcOffset::UTC).format(&form).unwrap_or_else(|_| "-".to_owned())
}

/// Frames messages by octet counting.
fn frame_messages(batch: &ExportBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in batch.to_events() {
        let message = format_message(&event);
        bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
        bytes.extend_from_slice(message.as_bytes());
    }
    bytes
}

/// Splits an address into host and port.
pub(crate) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host).ok()?;
    Some((host, port.parse().ok()?))
}

/// Reads the certificates of a PEM text.
pub(crate) fn read_roots(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

pub(crate) async fn send_batch(
    transport: SyslogTransport,
    address: &str,
    ca_pem: Option<&str>,
    batch: &ExportBatch,
) -> Result<(), ExportError> {
    match transport {
        SyslogTransport::Tcp => {
            let stream = TcpStream::connect(address).await.map_err(|error| describe(&error))?;
            send_stream(stream, &frame_messages(batch)).await
        }
        SyslogTransport::Tls => {
            let (host, port) =
                split_address(address).ok_or_else(|| ExportError::new("it has no address"))?;
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| ExportError::new("its host has no name"))?;
            let connector = TlsConnector::from(Arc::new(tls_config(ca_pem)?));
            let stream =
                TcpStream::connect((host, port)).await.map_err(|error| describe(&error))?;
            let stream = connector.connect(name, stream).await.map_err(|error| describe(&error))?;
            send_stream(stream, &frame_messages(batch)).await
        }
        SyslogTransport::Unix => send_unix(address, batch).await,
    }
}

/// Sends to a socket of datagrams, or to one of streams.
async fn send_unix(path: &str, batch: &ExportBatch) -> Result<(), ExportError> {
    let socket = UnixDatagram::unbound().map_err(|error| describe(&error))?;
    if socket.connect(path).is_ok() {
        for event in batch.to_events() {
            let message = format_message(&event);
            socket.send(message.as_bytes()).await.map_err(|error| describe(&error))?;
        }
        return Ok(());
    }
    let stream = UnixStream::connect(path).await.map_err(|error| describe(&error))?;
    send_stream(stream, &frame_messages(batch)).await
}

/// Writes everything and waits until the receiver has read it and closes.
async fn send_stream(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
) -> Result<(), ExportError> {
    let sent = async {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        match (&mut stream).take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await {
            // Many receivers end a TLS connection without saying so.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    };
    sent.await.map_err(|error: io::Error| describe(&error))
}

fn tls_config(ca_pem: Option<&str>) -> Result<ClientConfig, ExportError> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            roots.add_parsable_certificates(read_roots(pem));
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(ExportError::new("there is no certificate to verify it with"));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| ExportError::new("TLS is not available"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn describe(error: &io::Error) -> ExportError {
    ExportError::new(match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "there was no connection".to_owned()
        }
        io::ErrorKind::InvalidData => "its certificate was refused".to_owned(),
        kind => format!("the connection failed: {kind}"),
    })
}

#[cfg(test)]
mod tests {
    use cynode_audit::{AuditCheckpoint, MerkleTree};
    use time::macros::datetime;
    use tokio::net::{TcpListener, UnixListener};
    use uuid::Uuid;

    use super::*;

    fn batch() -> ExportBatch {
        let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
        let at = datetime!(2026-11-18 12:00:00.25 UTC);
        let tree = MerkleTree::new();
        let head = AuditCheckpoint::sign_tree(Uuid::from_u128(1), &tree, [0; 32], at, false, &key);
        ExportBatch { heads: vec![head.clone(), head], ..ExportBatch::default() }
    }

    /// Reads frames as a receiver does.
    fn read_frames(mut bytes: &[u8]) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
            let length: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
            let (message, rest) = bytes[space + 1..].split_at(length);
            messages.push(String::from_utf8(message.to_vec()).unwrap());
            bytes = rest;
        }
        messages
    }

    #[tokio::test]
    async fn a_receiver_that_reads_to_the_end_gets_every_message_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let receive = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let batch = batch();
        let (sent, bytes) =
            tokio::join!(send_batch(SyslogTransport::Tcp, &address, None, &batch), receive);
        assert_eq!(sent, Ok(()));
        let messages = read_frames(&bytes);
        assert_eq!(messages.len(), 2);
        let start = "<110>1 2026-11-18T12:00:00.250000Z - cynode - head - {\"class_uid\":0,";
        assert!(messages[0].starts_with(start), "{}", messages[0]);
    }

    #[tokio::test]
    async fn a_receiver_that_is_not_there_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let sent = send_batch(SyslogTransport::Tcp, &address, None, &batch()).await;
        assert_eq!(sent, Err(ExportError::new("there was no connection")));
    }

    #[tokio::test]
    async fn a_unix_socket_gets_datagrams_or_a_stream() {
        let directory = tempfile::tempdir().unwrap();
        let batch = batch();
        let path = directory.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        send_batch(SyslogTransport::Unix, path.to_str().unwrap(), None, &batch).await.unwrap();
        let mut bytes = vec![0; 64 * 1024];
        let length = socket.recv(&mut bytes).await.unwrap();
        assert!(bytes[..length].starts_with(b"<110>1 2026-11-18T12:00:00"));

        let path = directory.path().join("stream");
        let listener = UnixListener::bind(&path).unwrap();
        let receive = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            bytes
        };
        let path = path.to_str().unwrap();
        let (sent, bytes) =
            tokio::join!(send_batch(SyslogTransport::Unix, path, None, &batch), receive);
        assert_eq!((sent, read_frames(&bytes).len()), (Ok(()), 2));
    }
}
