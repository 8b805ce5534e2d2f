//! Converts audit records to database rows and back.

use cynode_audit::{AgentFacts, AuditCheckpoint, AuditEntry, AuditRecord, ChainStart, KeyedDigest};
use cynode_core::ids::{
    AgentTokenId, CallId, ChainId, JobId, ProjectId, RunId, ServerId, TaskId, UserId,
};
use cynode_db::tools::audit::{AuditChainRow, AuditCheckpointRow, AuditRow};
use cynode_wire::tools::AuditView;

pub(super) fn to_row(record: &AuditRecord) -> AuditRow {
    let AuditRecord { chain, seq, entry, prev, hash } = record.clone();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let agent = entry.agent;
    let fact = |pick: fn(&AgentFacts) -> Option<uuid::Uuid>| agent.as_ref().and_then(pick);
    AuditRow {
        chain_id: chain,
        seq: signed(seq),
        recorded_at: entry.at,
        call_id: entry.call,
        phase: entry.phase.as_str().into(),
        decision: entry.decision.as_str().into(),
        reason: entry.reason,
        rules: entry.rules,
        shadow_rules: entry.shadow,
        outcome: entry.outcome.map(|outcome| outcome.as_str().into()),
        agent_token_id: fact(|agent| Some(agent.token)),
        agent_kind: agent.as_ref().map(|agent| agent.kind.clone()),
        agent_role: agent.as_ref().map(|agent| agent.role.clone()),
        user_id: fact(|agent| agent.user),
        project_id: fact(|agent| agent.project),
        task_id: fact(|agent| agent.task),
        run_id: fact(|agent| agent.run),
        job_id: fact(|agent| agent.job),
        method: entry.method,
        tool: entry.tool,
        definition_digest: entry.definition.map(Into::into),
        server_id: entry.server,
        node_id: entry.node,
        policy_hash: entry.policy.into(),
        catalogue_hash: entry.catalogue.into(),
        trace_id: entry.trace,
        arguments_digest: entry.arguments.map(|digest| digest.0.into()),
        arguments_size: entry.arguments_size.into(),
        result_digest: entry.result.map(|digest| digest.0.into()),
        result_size: entry.result_size.into(),
        duration_us: signed(entry.duration_us),
        previous_hash: prev.into(),
        hash: hash.into(),
        profile: agent.and_then(|agent| agent.profile),
    }
}

/// Converts a row to a record. Returns `None` for values that no writer produces, which count as tampering.
pub(super) fn to_record(row: AuditRow) -> Option<AuditRecord> {
    let digest = |bytes: Option<Vec<u8>>| -> Option<Option<[u8; 32]>> {
        bytes.map(|bytes| bytes.try_into().ok()).map_or(Some(None), |found| found.map(Some))
    };
    let agent = match (row.agent_token_id, row.agent_kind, row.agent_role) {
        (Some(token), Some(kind), Some(role)) => Some(AgentFacts {
            token,
            kind,
            role,
            user: row.user_id,
            project: row.project_id,
            task: row.task_id,
            run: row.run_id,
            job: row.job_id,
            profile: row.profile,
        }),
        (None, None, None) => {
            let none = [row.user_id, row.project_id, row.task_id, row.run_id, row.job_id];
            if none.iter().any(Option::is_some) || row.profile.is_some() {
                return None;
            }
            None
        }
        _ => return None,
    };
    let outcome = match row.outcome {
        None => None,
        Some(word) => Some(word.parse().ok()?),
    };
    let entry = AuditEntry {
        call: row.call_id,
        at: row.recorded_at,
        phase: row.phase.parse().ok()?,
        decision: row.decision.parse().ok()?,
        reason: row.reason,
        rules: row.rules,
        shadow: row.shadow_rules,
        outcome,
        agent,
        method: row.method,
        tool: row.tool,
        definition: digest(row.definition_digest)?,
        server: row.server_id,
        node: row.node_id,
        policy: row.policy_hash.try_into().ok()?,
        catalogue: row.catalogue_hash.try_into().ok()?,
        trace: row.trace_id,
        arguments: digest(row.arguments_digest)?.map(KeyedDigest),
        arguments_size: u32::try_from(row.arguments_size).ok()?,
        result: digest(row.result_digest)?.map(KeyedDigest),
        result_size: u32::try_from(row.result_size).ok()?,
        duration_us: u64::try_from(row.duration_us).ok()?,
    };
    Some(AuditRecord {
        chain: row.chain_id,
        seq: u64::try_from(row.seq).ok()?,
        entry,
        prev: row.previous_hash.try_into().ok()?,
        hash: row.hash.try_into().ok()?,
    })
}

pub(super) fn checkpoint_row(checkpoint: &AuditCheckpoint) -> AuditCheckpointRow {
    AuditCheckpointRow {
        chain: checkpoint.chain,
        size: i64::try_from(checkpoint.size).unwrap_or(i64::MAX),
        root: checkpoint.root,
        head: checkpoint.head,
        at: checkpoint.at,
        closed: checkpoint.closed,
        signature: checkpoint.signature,
        signed_by: checkpoint.key_id,
    }
}

pub(super) fn to_checkpoint(row: &AuditCheckpointRow) -> AuditCheckpoint {
    AuditCheckpoint {
        chain: row.chain,
        size: row.size.unsigned_abs(),
        root: row.root,
        head: row.head,
        at: row.at,
        closed: row.closed,
        signature: row.signature,
        key_id: row.signed_by,
    }
}

pub(super) fn chain_row(start: &ChainStart) -> AuditChainRow {
    AuditChainRow {
        chain: start.chain,
        number: i64::try_from(start.number).unwrap_or(i64::MAX),
        previous: start.previous,
        writer: start.writer.clone(),
        started_at: start.at,
        signature: start.signature,
        signed_by: start.key_id,
        pruned: None,
    }
}

pub(super) fn to_chain_start(row: &AuditChainRow) -> ChainStart {
    ChainStart {
        chain: row.chain,
        number: row.number.unsigned_abs(),
        previous: row.previous,
        at: row.started_at,
        writer: row.writer.clone(),
        signature: row.signature,
        key_id: row.signed_by,
    }
}

pub(crate) fn to_audit_view(row: AuditRow) -> AuditView {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    AuditView {
        chain_id: ChainId::from_uuid(row.chain_id).to_string(),
        seq: row.seq,
        at: row.recorded_at,
        call_id: CallId::from_uuid(row.call_id),
        phase: row.phase,
        decision: row.decision,
        reason: row.reason,
        rules: row.rules,
        shadow: row.shadow_rules,
        outcome: row.outcome,
        // A privileged event has no agent.
        agent_token_id: row.agent_token_id.filter(|id| !id.is_nil()).map(AgentTokenId::from_uuid),
        agent_kind: row.agent_kind,
        agent_role: row.agent_role,
        profile: row.profile,
        user_id: row.user_id.map(UserId::from_uuid),
        project_id: row.project_id.map(ProjectId::from_uuid),
        task_id: row.task_id.map(TaskId::from_uuid),
        run_id: row.run_id.map(RunId::from_uuid),
        job_id: row.job_id.map(JobId::from_uuid),
        method: row.method,
        tool: row.tool,
        server_id: row.server_id.map(ServerId::from_uuid),
        policy_hash: hex(&row.policy_hash),
        trace_id: row.trace_id,
        arguments_digest: row.arguments_digest.as_deref().map(hex),
        arguments_size: row.arguments_size,
        result_size: row.result_size,
        duration_us: row.duration_us,
        hash: hex(&row.hash),
    }
}
