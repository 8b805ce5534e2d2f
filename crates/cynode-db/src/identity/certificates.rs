//! Client certificates of nodes and services.

use cynode_core::ids::NodeId;
use time::OffsetDateTime;
use uuid::Uuid;

use super::service_tokens::ServiceKind;
use crate::{Conn, DbError};

/// Holder of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateHolder {
    /// A node.
    Node(NodeId),
    /// A service of the installation.
    Service(ServiceKind),
}

impl CertificateHolder {
    /// Returns the name of its kind in the database and on the wire.
    pub const fn kind_name(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Service(kind) => kind.as_str(),
        }
    }

    fn from_columns(kind: &str, node: Option<Uuid>) -> Option<Self> {
        match (kind, node) {
            ("node", Some(node)) => Some(Self::Node(NodeId::from_uuid(node))),
            (kind, None) => ServiceKind::from_name(kind).map(Self::Service),
            _ => None,
        }
    }

    fn node_uuid(&self) -> Option<Uuid> {
        match self {
            Self::Node(node) => Some(node.as_uuid()),
            Self::Service(_) => None,
        }
    }
}

/// A client certificate, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificateRecord {
    /// Serial number in hexadecimal.
    pub serial: String,
    /// Who holds it.
    pub holder: CertificateHolder,
    /// Name of its holder.
    pub name: String,
    /// Time from which on it is valid.
    pub not_before: OffsetDateTime,
    /// Time until which it is valid.
    pub not_after: OffsetDateTime,
}

struct CertificateRow {
    serial: String,
    kind: String,
    name: String,
    node_id: Option<Uuid>,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

impl TryFrom<CertificateRow> for IssuedCertificateRecord {
    type Error = DbError;

    fn try_from(row: CertificateRow) -> Result<Self, DbError> {
        let holder = CertificateHolder::from_columns(&row.kind, row.node_id)
            .ok_or(DbError::Corrupt { table: "issued_certificates", column: "kind" })?;
        Ok(Self {
            serial: row.serial,
            holder,
            name: row.name,
            not_before: row.not_before,
            not_after: row.not_after,
        })
    }
}

/// Stores a certificate that was issued.
#[tracing::instrument(name = "db.certificates.insert_certificate", skip_all)]
pub async fn insert_certificate(
    conn: &mut Conn,
    certificate: &IssuedCertificateRecord,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO issued_certificates (serial, kind, name, node_id, not_before, not_after, issued_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ",
        certificate.serial,
        certificate.holder.kind_name(),
        certificate.name,
        certificate.holder.node_uuid(),
        certificate.not_before,
        certificate.not_after,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the certificate with that serial number, if it is neither revoked nor expired and its node is not removed.
#[tracing::instrument(name = "db.certificates.find_valid_certificate", skip_all)]
pub async fn find_valid_certificate(
    conn: &mut Conn,
    serial: &str,
    now: OffsetDateTime,
) -> Result<Option<IssuedCertificateRecord>, DbError> {
    let row = sqlx::query_as!(
        CertificateRow,
        r#"
        SELECT serial AS "serial!", kind AS "kind!", issued_certificates.name AS "name!", node_id, not_before AS "not_before!",
            not_after AS "not_after!"
        FROM issued_certificates LEFT JOIN nodes USING (node_id)
        WHERE serial = $1 AND revoked_at IS NULL AND not_after > $2 AND nodes.state IS DISTINCT FROM 'removed'
        "#,
        serial,
        now,
    )
    .fetch_optional(conn)
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Lists the certificates that work, by the time at which they expire. Of each holder only the newest is listed: it replaces the others.
#[tracing::instrument(name = "db.certificates.list_valid_certificates", skip_all)]
pub async fn list_valid_certificates(
    conn: &mut Conn,
    now: OffsetDateTime,
    limit: i64,
) -> Result<Vec<IssuedCertificateRecord>, DbError> {
    let rows = sqlx::query_as!(
        CertificateRow,
        r#"
        SELECT serial AS "serial!", kind AS "kind!", name AS "name!", node_id, not_before AS "not_before!", not_after AS "not_after!"
        FROM (
            SELECT DISTINCT ON (kind, issued_certificates.name, node_id)
                serial, kind, issued_certificates.name AS name, node_id, not_before, not_after
            FROM issued_certificates LEFT JOIN nodes USING (node_id)
            WHERE revoked_at IS NULL AND not_after > $1 AND nodes.state IS DISTINCT FROM 'removed'
            ORDER BY kind, issued_certificates.name, node_id, not_after DESC
        ) AS newest
        ORDER BY not_after, name
        LIMIT $2
        "#,
        now,
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// Revokes the certificates of a node. Returns how many there were.
#[tracing::instrument(name = "db.certificates.revoke_node_certificates", skip_all)]
pub async fn revoke_node_certificates(
    conn: &mut Conn,
    node: NodeId,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "UPDATE issued_certificates SET revoked_at = $2 WHERE node_id = $1 AND revoked_at IS NULL",
        node.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Revokes the certificates of a service that gets a new one. Returns how many there were.
#[tracing::instrument(name = "db.certificates.revoke_service_certificates", skip_all)]
pub async fn revoke_service_certificates(
    conn: &mut Conn,
    kind: ServiceKind,
    name: &str,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        UPDATE issued_certificates SET revoked_at = $3
        WHERE kind = $1 AND name = $2 AND node_id IS NULL AND revoked_at IS NULL
        ",
        kind.as_str(),
        name,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Removes certificates that expired before a time.
#[tracing::instrument(name = "db.certificates.prune_certificates", skip_all)]
pub async fn prune_certificates(
    conn: &mut Conn,
    expired_before: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!("DELETE FROM issued_certificates WHERE not_after < $1", expired_before)
        .execute(conn)
        .await?;
    Ok(done.rows_affected())
}
