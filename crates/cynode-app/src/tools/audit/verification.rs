//! Verification of the whole audit log: every record, chain and signature, the events that privileged records stand for, and heads that
//! were kept elsewhere.

use cynode_audit::{
    AuditCheckpoint, BadSignature, ChainCheck, ChainRegistryHead, KeptHeads, LinkCheck,
    MAX_UNPROVEN_AGE, PublicKeyring, VerifiedChain,
};
use cynode_core::{ids::ChainId, roles::UserRole};
use cynode_db::{
    Conn, DbError,
    tools::{
        audit::{self, AuditChainRow},
        audit_export,
    },
};
use ed25519_dalek::{Verifier, VerifyingKey};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{RECORD_PAGE_SIZE, Report, privileged, pruning_payload, rows};
use crate::{App, Error, OperationRequest, platform::operation};

/// What a verification takes into account beside the records.
#[derive(Clone, Debug, Default)]
pub struct VerificationScope {
    /// The moment at which the records were as they are: that of a backup. Now if there is none.
    pub as_of: Option<OffsetDateTime>,
    /// Whether records and events count that no signed head covers, though they are old enough for one.
    pub allow_unproven: bool,
    /// Heads that were kept elsewhere.
    pub kept: KeptHeads,
}

/// Verifies every record, chain and signature. It reads all records in order.
#[operation]
pub async fn verify_audit_log(app: &App, keys: &PublicKeyring) -> Result<Report, Error> {
    verify_audit_log_within(app, keys, &VerificationScope::default()).await
}

/// Verifies the audit log for an admin of the installation. One verification runs at a time per process, because it
/// reads all records.
#[operation]
pub async fn verify_audit_log_as_admin(
    app: &App,
    request: &OperationRequest,
) -> Result<Report, Error> {
    app.read(request, |ctx| Box::pin(async { ctx.require_role(UserRole::Admin) })).await?;
    let keys = app.gateway_parts()?.keys.public_keys();
    let _alone = app.shared_state().checking.try_lock().map_err(|_| {
        Error::Conflict("the records are being checked already: ask again when that is done")
    })?;
    verify_audit_log(app, &keys).await
}

/// Verifies the audit log, and what the scope asks for.
#[tracing::instrument(name = "app.audit.verify_audit_log", skip_all)]
#[operation]
pub async fn verify_audit_log_within(
    app: &App,
    keys: &PublicKeyring,
    scope: &VerificationScope,
) -> Result<Report, Error> {
    // One snapshot is read: records pruned meanwhile do not count as missing.
    let mut conn = app.begin().await?;
    audit::set_repeatable_read(&mut conn).await?;
    let chains = audit::list_chains(&mut conn).await?;
    let now = scope.as_of.unwrap_or_else(|| app.environment().now());
    let report = Report {
        chains: chains.len() as u64,
        pruned: 0,
        closed: 0,
        records: 0,
        covered: 0,
        dropped_events: 0,
        head: String::new(),
        problems: Vec::new(),
    };
    let months = privileged::list_event_months(&mut conn).await?;
    let mut verification = LogVerification { keys, scope, chains: &chains, now, months, report };
    for chain in audit::find_orphan_chains(&mut conn).await? {
        verification.add_problem(chain, "nobody began this chain");
    }
    let mut links = LinkCheck::new(keys);
    let mut registry = vec![links.registry_head()];
    for row in &chains {
        if let Err(problem) = links.verify_next_start(&rows::to_chain_start(row)) {
            verification.add_problem(row.chain, &problem.to_string());
        }
        registry.push(links.registry_head());
        verification.verify_chain(&mut conn, row).await?;
    }
    verification.compare_kept_heads(&registry);
    verification.find_unrecorded_events(&mut conn).await?;
    let mut report = verification.report;
    let head = links.registry_head();
    report.head = format!("{}:{}", head.number, data_encoding::HEXLOWER.encode(&head.link));
    Ok(report)
}

/// A verification under way.
struct LogVerification<'a> {
    keys: &'a PublicKeyring,
    scope: &'a VerificationScope,
    chains: &'a [AuditChainRow],
    now: OffsetDateTime,
    /// Names of the months that the event log has.
    months: Vec<String>,
    report: Report,
}

impl LogVerification<'_> {
    fn add_problem(&mut self, chain: Uuid, problem: &str) {
        self.report.problems.push(format!("{}: {problem}", ChainId::from_uuid(chain)));
    }

    async fn verify_chain(&mut self, conn: &mut Conn, row: &AuditChainRow) -> Result<(), DbError> {
        let stored = audit::list_audit_checkpoints(conn, row.chain).await?;
        let stored = stored.iter().map(rows::to_checkpoint);
        let kept = self.scope.kept.checkpoints.iter().filter(|head| head.chain == row.chain);
        let checkpoints: Vec<_> = stored.chain(kept.cloned()).collect();
        if row.pruned.is_some() {
            return self.verify_pruned_chain(conn, row, &checkpoints).await;
        }
        match self.check_records(conn, row, checkpoints).await? {
            Ok(verified) => self.add_verified_chain(row, &verified),
            Err(problem) => self.add_problem(row.chain, &problem),
        }
        Ok(())
    }

    async fn verify_pruned_chain(
        &mut self,
        conn: &mut Conn,
        row: &AuditChainRow,
        checkpoints: &[AuditCheckpoint],
    ) -> Result<(), DbError> {
        let Some((at, signature, signed_by)) = row.pruned else { return Ok(()) };
        self.report.pruned += 1;
        for head in checkpoints.iter().filter(|head| self.keys.verify_checkpoint(head).is_err()) {
            self.add_problem(row.chain, &format!("the signed head of {} was changed", head.size));
        }
        let left = audit::list_chain_records(conn, row.chain, 0, 1).await?;
        let payload = pruning_payload(row.chain, at);
        let signed = verify_signed_pruning(self.keys, signed_by, at, &payload, &signature);
        if !left.is_empty() || !signed {
            self.add_problem(row.chain, "its records were removed, and not by us");
        }
        Ok(())
    }

    fn add_verified_chain(&mut self, row: &AuditChainRow, verified: &VerifiedChain) {
        if verified.records == 0 {
            // A chain is started only for a record.
            self.add_problem(row.chain, "its records are gone");
        }
        // A new process closes the chains that it takes over within a minute.
        let settled = self.now - Duration::minutes(1);
        let followed = self.chains.iter().any(|later| {
            later.writer == row.writer && later.number > row.number && later.started_at < settled
        });
        if followed && !verified.closed {
            let told =
                "it is not closed, though its writer has begun another: its end may be missing";
            self.add_problem(row.chain, told);
        }
        let is_old = self.now - row.started_at >= MAX_UNPROVEN_AGE;
        if verified.records > 0 && verified.covered == 0 && is_old && !self.scope.allow_unproven {
            // The signed start tells the time; that of the records is what they say themselves.
            self.add_problem(row.chain, "it has no signed head: its records may have been changed");
        }
        self.report.records += verified.records;
        self.report.covered += verified.covered;
        self.report.closed += u64::from(verified.closed);
    }

    /// Verifies the records of a chain in order.
    async fn check_records(
        &mut self,
        conn: &mut Conn,
        row: &AuditChainRow,
        checkpoints: Vec<AuditCheckpoint>,
    ) -> Result<Result<VerifiedChain, String>, DbError> {
        let signed = checkpoints.iter().map(|head| head.size).max().unwrap_or(0);
        let mut check = match ChainCheck::new(row.chain, self.keys, checkpoints) {
            Ok(check) => check,
            Err(problem) => return Ok(Err(problem.to_string())),
        };
        let (mut from, mut unproven) = (0, 0_u64);
        loop {
            let page = audit::list_chain_records(conn, row.chain, from, RECORD_PAGE_SIZE).await?;
            let Some(last) = page.last().map(|row| row.seq) else { break };
            let compared = privileged::compare_events(conn, &page, &self.months).await?;
            match compared {
                Ok(dropped) => self.report.dropped_events += dropped,
                Err(problem) => return Ok(Err(problem)),
            }
            for row in page {
                let seq = row.seq;
                let is_old = self.now - row.recorded_at >= MAX_UNPROVEN_AGE;
                unproven += u64::from(seq.unsigned_abs() >= signed && is_old);
                let taken = match rows::to_record(row) {
                    Some(record) => {
                        check.verify_next_record(&record).map_err(|problem| problem.to_string())
                    }
                    None => Err(format!("record {seq} cannot be read")),
                };
                if let Err(problem) = taken {
                    return Ok(Err(problem));
                }
            }
            from = last + 1;
        }
        if unproven > 0 && signed > 0 && !self.scope.allow_unproven {
            let told = format!(
                "{unproven} records are older than {} minutes, and no signed head covers them",
                MAX_UNPROVEN_AGE.whole_minutes()
            );
            self.add_problem(row.chain, &told);
        }
        Ok(check.finish_verification().map_err(|problem| problem.to_string()))
    }

    /// Looks for the chains of heads that were kept elsewhere, and for the ends of the list of chains. Signed heads of chains that are
    /// there were compared with their records.
    fn compare_kept_heads(&mut self, registry: &[ChainRegistryHead]) {
        for kept in &self.scope.kept.registry {
            let number = kept.number;
            match registry.iter().find(|head| head.number == number) {
                Some(head) if head.link == kept.link => {}
                Some(_) => self.report.problems.push(format!(
                    "the list of the first {number} chains is another one than the head that was kept elsewhere says"
                )),
                None => self.report.problems.push(format!(
                    "a head that was kept elsewhere is of {number} chains, and there are {}: chains were cut off",
                    self.chains.len()
                )),
            }
        }
        for kept in &self.scope.kept.checkpoints {
            if self.chains.iter().all(|row| row.chain != kept.chain) {
                let told = "a head of this chain was kept elsewhere, and the chain is gone";
                self.report.problems.push(format!("{}: {told}", ChainId::from_uuid(kept.chain)));
            }
        }
    }

    /// Looks for privileged events that have no record, from the first chain of them on that was not pruned.
    async fn find_unrecorded_events(&mut self, conn: &mut Conn) -> Result<(), DbError> {
        let Some(since) = privileged::first_compared_moment(conn, self.chains).await? else {
            return Ok(());
        };
        let found =
            privileged::list_unrecorded_events(conn, since, self.now - Duration::minutes(1));
        for event in found.await? {
            self.report.problems.push(format!(
                "the privileged event {} (`{}`) has no record: it was added, or its record was prevented",
                event.position, event.kind
            ));
        }
        let backlog = audit_export::measure_event_queue(conn).await?;
        let is_old = |oldest| self.now - oldest >= MAX_UNPROVEN_AGE;
        if backlog.oldest_at.is_some_and(is_old) && !self.scope.allow_unproven {
            self.report.problems.push(format!(
                "{} privileged events wait for their records for more than {} minutes",
                backlog.events,
                MAX_UNPROVEN_AGE.whole_minutes()
            ));
        }
        Ok(())
    }
}

/// Returns whether the key that a pruning names signed it.
fn verify_signed_pruning(
    keys: &PublicKeyring,
    named: Uuid,
    at: OffsetDateTime,
    payload: &[u8],
    signature: &[u8; 64],
) -> bool {
    let signature = ed25519_dalek::Signature::from_bytes(signature);
    let verify = |key: &VerifyingKey| key.verify(payload, &signature).map_err(|_| BadSignature);
    keys.find_signer(named, at, verify).is_ok()
}
