//! Audit records as rows. Their meaning and their hash chain belong to `cynode-audit`.

use cynode_core::paging::RecordCursor;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the column of that name")]
pub struct AuditRow {
    pub chain_id: Uuid,
    pub seq: i64,
    pub recorded_at: OffsetDateTime,
    pub call_id: Uuid,
    pub phase: String,
    pub decision: String,
    pub reason: String,
    pub rules: Vec<String>,
    pub shadow_rules: Vec<String>,
    pub outcome: Option<String>,
    pub agent_token_id: Option<Uuid>,
    pub agent_kind: Option<String>,
    pub agent_role: Option<String>,
    pub user_id: Option<Uuid>,
    pub project_id: Option<Uuid>,
    pub task_id: Option<Uuid>,
    pub run_id: Option<Uuid>,
    pub job_id: Option<Uuid>,
    pub method: String,
    pub tool: Option<String>,
    pub definition_digest: Option<Vec<u8>>,
    pub server_id: Option<Uuid>,
    pub node_id: Option<Uuid>,
    pub policy_hash: Vec<u8>,
    pub catalogue_hash: Vec<u8>,
    pub trace_id: String,
    pub arguments_digest: Option<Vec<u8>>,
    pub arguments_size: i64,
    pub result_digest: Option<Vec<u8>>,
    pub result_size: i64,
    pub duration_us: i64,
    pub previous_hash: Vec<u8>,
    pub hash: Vec<u8>,
    pub profile: Option<String>,
}

/// The beginning of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChainRow {
    /// The chain.
    pub chain: Uuid,
    /// Its number.
    pub number: i64,
    /// The link of the chain before it.
    pub previous: [u8; 32],
    /// Who writes it.
    pub writer: String,
    /// When it began.
    pub started_at: OffsetDateTime,
    /// Our signature.
    pub signature: [u8; 64],
    /// The key that signed.
    pub signed_by: Uuid,
    /// When its records were removed, our signature under that, and the key that signed it.
    pub pruned: Option<(OffsetDateTime, [u8; 64], Uuid)>,
}

/// A signed head of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCheckpointRow {
    /// The chain.
    pub chain: Uuid,
    /// How many records are covered.
    pub size: i64,
    /// The root over them.
    pub root: [u8; 32],
    /// The hash of the last.
    pub head: [u8; 32],
    /// When.
    pub at: OffsetDateTime,
    /// Whether no record follows.
    pub closed: bool,
    /// Our signature.
    pub signature: [u8; 64],
    /// The key that signed.
    pub signed_by: Uuid,
}

/// Lets everything that is read in a transaction be as it is now; to be called first.
pub async fn set_repeatable_read(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .execute(conn)
        .await?;
    Ok(())
}

/// Those who begin chains do it one after the other, so that numbers have no gap.
pub async fn lock_chains(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('cynode.audit_chains'))")
        .fetch_one(conn)
        .await?;
    Ok(())
}

/// The chain of that id.
pub async fn get_chain(conn: &mut Conn, id: Uuid) -> Result<Option<AuditChainRow>, DbError> {
    Ok(select_chains(conn, Some(id), false).await?.pop())
}

/// The chain that was begun last.
pub async fn last_chain(conn: &mut Conn) -> Result<Option<AuditChainRow>, DbError> {
    Ok(select_chains(conn, None, true).await?.pop())
}

/// Every chain, in the order of their numbers.
#[tracing::instrument(name = "db.audit.list_chains", skip_all)]
pub async fn list_chains(conn: &mut Conn) -> Result<Vec<AuditChainRow>, DbError> {
    select_chains(conn, None, false).await
}

async fn select_chains(
    conn: &mut Conn,
    id: Option<Uuid>,
    last: bool,
) -> Result<Vec<AuditChainRow>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT chain_id, number, previous_hash, writer, started_at, signature, signed_by, pruned_at, prune_signature, prune_signed_by
        FROM audit_chains
        WHERE ($1::uuid IS NULL OR chain_id = $1)
            AND (NOT $2::boolean OR number = (SELECT max(number) FROM audit_chains))
        ORDER BY number
        ",
        id,
        last,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let signature =
                row.signature.try_into().map_err(corrupt_column("audit_chains", "signature"));
            let pruned = match (row.pruned_at, row.prune_signature, row.prune_signed_by) {
                (Some(at), Some(signature), Some(key)) => Some((
                    at,
                    signature
                        .try_into()
                        .map_err(corrupt_column("audit_chains", "prune_signature"))?,
                    key,
                )),
                (None, None, None) => None,
                // Somebody took half of it away.
                _ => {
                    let column = "prune_signature";
                    return Err(DbError::Corrupt { table: "audit_chains", column });
                }
            };
            Ok(AuditChainRow {
                chain: row.chain_id,
                number: row.number,
                previous: row
                    .previous_hash
                    .try_into()
                    .map_err(corrupt_column("audit_chains", "previous_hash"))?,
                writer: row.writer,
                started_at: row.started_at,
                signature: signature?,
                signed_by: row.signed_by,
                pruned,
            })
        })
        .collect()
}

/// Begins a chain.
#[tracing::instrument(name = "db.audit.insert_chain", skip_all)]
pub async fn insert_chain(conn: &mut Conn, chain: &AuditChainRow) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO audit_chains (chain_id, number, previous_hash, writer, started_at, signature, signed_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ",
        chain.chain,
        chain.number,
        &chain.previous as &[u8],
        chain.writer,
        chain.started_at,
        &chain.signature as &[u8],
        chain.signed_by,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes back the start of the last chain, which has no records. Returns whether it was there.
#[tracing::instrument(name = "db.audit.delete_last_chain", skip_all)]
pub async fn delete_last_chain(conn: &mut Conn, chain: Uuid) -> Result<bool, DbError> {
    let deleted = sqlx::query!(
        "
        DELETE FROM audit_chains c
        WHERE c.chain_id = $1 AND c.number = (SELECT max(number) FROM audit_chains)
            AND NOT EXISTS (SELECT FROM audit_records r WHERE r.chain_id = c.chain_id)
            AND NOT EXISTS (SELECT FROM audit_checkpoints p WHERE p.chain_id = c.chain_id)
        ",
        chain,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected() == 1)
}

/// Stores records that are not there yet. Gives the hashes of those that were there, by place.
#[tracing::instrument(name = "db.audit.insert_audit_records", skip_all, fields(records = rows.len()))]
pub async fn insert_audit_records(
    conn: &mut Conn,
    rows: &[AuditRow],
) -> Result<Vec<(i64, Vec<u8>)>, DbError> {
    macro_rules! column {
        ($field:ident) => {
            &rows.iter().map(|row| row.$field.clone()).collect::<Vec<_>>() as &[_]
        };
    }
    // Lists of lists cannot be unnested one by one: their elements are joined by a character that no rule's name has.
    let join = |lists: fn(&AuditRow) -> &[String]| -> Vec<String> {
        rows.iter().map(|row| lists(row).join(" ")).collect()
    };
    let (rules, shadow) = (join(|row| &row.rules), join(|row| &row.shadow_rules));
    let there = sqlx::query!(
        r#"
        WITH given AS (
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::uuid[], $5::text[], $6::text[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::uuid[], $12::text[], $13::text[], $14::uuid[], $15::uuid[],
                $16::uuid[], $17::uuid[], $18::uuid[], $19::text[], $20::text[], $21::bytea[], $22::uuid[], $23::uuid[],
                $24::bytea[], $25::bytea[], $26::text[], $27::bytea[], $28::bigint[], $29::bytea[], $30::bigint[],
                $31::bigint[], $32::bytea[], $33::bytea[], $34::text[])
            AS g (chain_id, seq, recorded_at, call_id, phase, decision, reason, rules, shadow_rules, outcome, agent_token_id, agent_kind,
                agent_role, user_id, project_id, task_id, run_id, job_id, method, tool, definition_digest, server_id, node_id,
                policy_hash, catalogue_hash, trace_id, arguments_digest, arguments_size, result_digest, result_size,
                duration_us, previous_hash, hash, profile)
        ), stored AS (
            INSERT INTO audit_records (chain_id, seq, recorded_at, call_id, phase, decision, reason, rules, shadow_rules, outcome,
                agent_token_id, agent_kind, agent_role, user_id, project_id, task_id, run_id, job_id, method, tool,
                definition_digest, server_id, node_id, policy_hash, catalogue_hash, trace_id, arguments_digest, arguments_size,
                result_digest, result_size, duration_us, previous_hash, hash, profile)
            SELECT chain_id, seq, recorded_at, call_id, phase, decision, reason,
                array_remove(string_to_array(rules, ' '), ''), array_remove(string_to_array(shadow_rules, ' '), ''), outcome,
                agent_token_id, agent_kind, agent_role, user_id, project_id, task_id, run_id, job_id, method, tool,
                definition_digest, server_id, node_id, policy_hash, catalogue_hash, trace_id, arguments_digest, arguments_size,
                result_digest, result_size, duration_us, previous_hash, hash, profile
            FROM given
            ON CONFLICT DO NOTHING
            RETURNING chain_id, seq
        )
        SELECT r.seq, r.hash FROM given g
        JOIN audit_records r ON r.chain_id = g.chain_id AND r.seq = g.seq
        WHERE NOT EXISTS (SELECT FROM stored s WHERE s.chain_id = g.chain_id AND s.seq = g.seq)
        "#,
        column!(chain_id) as &[Uuid],
        column!(seq) as &[i64],
        column!(recorded_at) as &[OffsetDateTime],
        column!(call_id) as &[Uuid],
        column!(phase) as &[String],
        column!(decision) as &[String],
        column!(reason) as &[String],
        &rules as &[String],
        &shadow as &[String],
        column!(outcome) as &[Option<String>],
        column!(agent_token_id) as &[Option<Uuid>],
        column!(agent_kind) as &[Option<String>],
        column!(agent_role) as &[Option<String>],
        column!(user_id) as &[Option<Uuid>],
        column!(project_id) as &[Option<Uuid>],
        column!(task_id) as &[Option<Uuid>],
        column!(run_id) as &[Option<Uuid>],
        column!(job_id) as &[Option<Uuid>],
        column!(method) as &[String],
        column!(tool) as &[Option<String>],
        column!(definition_digest) as &[Option<Vec<u8>>],
        column!(server_id) as &[Option<Uuid>],
        column!(node_id) as &[Option<Uuid>],
        column!(policy_hash) as &[Vec<u8>],
        column!(catalogue_hash) as &[Vec<u8>],
        column!(trace_id) as &[String],
        column!(arguments_digest) as &[Option<Vec<u8>>],
        column!(arguments_size) as &[i64],
        column!(result_digest) as &[Option<Vec<u8>>],
        column!(result_size) as &[i64],
        column!(duration_us) as &[i64],
        column!(previous_hash) as &[Vec<u8>],
        column!(hash) as &[Vec<u8>],
        column!(profile) as &[Option<String>],
    )
    .fetch_all(conn)
    .await?;
    Ok(there.into_iter().map(|row| (row.seq, row.hash)).collect())
}

/// Keeps a signed head; one of the same size may be there already.
#[tracing::instrument(name = "db.audit.insert_audit_checkpoint", skip_all)]
pub async fn insert_audit_checkpoint(
    conn: &mut Conn,
    row: &AuditCheckpointRow,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO audit_checkpoints (chain_id, size, root, head, signed_at, closed, signature, signed_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
        ",
        row.chain,
        row.size,
        &row.root as &[u8],
        &row.head as &[u8],
        row.at,
        row.closed,
        &row.signature as &[u8],
        row.signed_by,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The signed heads of a chain, smallest first.
#[tracing::instrument(name = "db.audit.list_audit_checkpoints", skip_all)]
pub async fn list_audit_checkpoints(
    conn: &mut Conn,
    chain: Uuid,
) -> Result<Vec<AuditCheckpointRow>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT chain_id, size, root, head, signed_at, closed, signature, signed_by FROM audit_checkpoints
        WHERE chain_id = $1 ORDER BY size, closed
        ",
        chain,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| corrupt_column("audit_checkpoints", column);
            Ok(AuditCheckpointRow {
                chain: row.chain_id,
                size: row.size,
                root: row.root.try_into().map_err(wrong("root"))?,
                head: row.head.try_into().map_err(wrong("head"))?,
                at: row.signed_at,
                closed: row.closed,
                signature: row.signature.try_into().map_err(wrong("signature"))?,
                signed_by: row.signed_by,
            })
        })
        .collect()
}

/// The newest signed head of each of these chains.
#[tracing::instrument(name = "db.audit.list_newest_checkpoints", skip_all)]
pub async fn list_newest_checkpoints(
    conn: &mut Conn,
    chains: &[Uuid],
) -> Result<Vec<AuditCheckpointRow>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT DISTINCT ON (chain_id) chain_id, size, root, head, signed_at, closed, signature, signed_by
        FROM audit_checkpoints
        WHERE chain_id = ANY ($1) ORDER BY chain_id, size DESC, closed DESC
        ",
        chains,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| corrupt_column("audit_checkpoints", column);
            Ok(AuditCheckpointRow {
                chain: row.chain_id,
                size: row.size,
                root: row.root.try_into().map_err(wrong("root"))?,
                head: row.head.try_into().map_err(wrong("head"))?,
                at: row.signed_at,
                closed: row.closed,
                signature: row.signature.try_into().map_err(wrong("signature"))?,
                signed_by: row.signed_by,
            })
        })
        .collect()
}

/// The hashes of the next records of a chain, in order, with their places. `from` is the first place wanted.
#[tracing::instrument(name = "db.audit.list_record_hashes", skip_all)]
pub async fn list_record_hashes(
    conn: &mut Conn,
    chain: Uuid,
    from: i64,
    limit: i64,
) -> Result<Vec<(i64, [u8; 32])>, DbError> {
    let rows = sqlx::query!(
        "SELECT seq, hash FROM audit_records WHERE chain_id = $1 AND seq >= $2 ORDER BY seq, recorded_at LIMIT $3",
        chain,
        from,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let wrong = || DbError::Corrupt { table: "audit_records", column: "hash" };
    rows.into_iter().map(|row| Ok((row.seq, row.hash.try_into().map_err(|_| wrong())?))).collect()
}

/// Recorded decisions that are alike in all that a rule can see of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field but the last three is the column of that name")]
pub struct DecisionGroup {
    pub tool: Option<String>,
    pub agent_token_id: Option<Uuid>,
    pub agent_role: Option<String>,
    pub user_id: Option<Uuid>,
    pub project_id: Option<Uuid>,
    pub task_id: Option<Uuid>,
    pub decision: String,
    pub reason: String,
    pub rules: Vec<String>,
    /// How many calls there are.
    pub calls: i64,
    /// The newest of them.
    pub last_call: Uuid,
    /// When that was made.
    pub last_at: OffsetDateTime,
}

/// Decisions about calls of tools in that time, newest first, grouped; of up to `limit` calls.
#[tracing::instrument(name = "db.audit.group_decisions", skip_all)]
pub async fn group_decisions(
    conn: &mut Conn,
    project: Option<Uuid>,
    since: OffsetDateTime,
    until: OffsetDateTime,
    limit: i64,
) -> Result<Vec<DecisionGroup>, DbError> {
    Ok(sqlx::query_as!(
        DecisionGroup,
        r#"
        SELECT tool AS "tool?", agent_token_id AS "agent_token_id?", agent_role AS "agent_role?", user_id AS "user_id?",
            project_id AS "project_id?", task_id AS "task_id?", decision AS "decision!", reason AS "reason!", rules AS "rules!",
            count(*) AS "calls!", max(call_id::text)::uuid AS "last_call!", max(recorded_at) AS "last_at!"
        FROM (
            SELECT tool, agent_token_id, agent_role, user_id, project_id, task_id, decision, reason, rules, call_id, recorded_at
            FROM audit_records
            WHERE recorded_at >= $2 AND recorded_at < $3 AND phase = 'decision' AND method = 'tools/call'
                AND ($1::uuid IS NULL OR project_id = $1)
            LIMIT $4
        ) recent
        GROUP BY tool, agent_token_id, agent_role, user_id, project_id, task_id, decision, reason, rules
        ORDER BY max(recorded_at) DESC
        "#,
        project,
        since,
        until,
        limit,
    )
    .fetch_all(conn)
    .await?)
}

/// Which calls of tools are counted.
#[derive(Clone, Copy, Debug)]
pub struct ToolCallFilter {
    /// Only calls in this project.
    pub project: Option<Uuid>,
    /// Only calls in projects that this user has a role in.
    pub seen_by: Option<Uuid>,
    /// Only calls since this time.
    pub since: OffsetDateTime,
    /// Only calls before this time.
    pub until: OffsetDateTime,
}

/// Counts of the calls of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallCounts {
    /// Name of the tool.
    pub tool: String,
    /// Calls that the policy allowed.
    pub allowed: i64,
    /// Calls that the policy refused.
    pub refused: i64,
    /// Calls that needed the approval of a person.
    pub needs_approval: i64,
    /// Calls that were allowed and ended without a result.
    pub failed: i64,
    /// Median duration of the calls that were forwarded to the tool, in microseconds.
    pub p50_us: Option<i64>,
    /// 95th percentile of that duration.
    pub p95_us: Option<i64>,
    /// Time of the newest record.
    pub last_at: OffsetDateTime,
}

/// Counts the calls of each tool, the most called first; at most 1000 tools. The index `audit_records_of_tools` has all that it reads.
#[tracing::instrument(name = "db.audit.count_tool_calls", skip_all)]
pub async fn count_tool_calls(
    conn: &mut Conn,
    filter: ToolCallFilter,
) -> Result<Vec<ToolCallCounts>, DbError> {
    Ok(sqlx::query_as!(
        ToolCallCounts,
        r#"
        SELECT tool AS "tool!",
            count(*) FILTER (WHERE phase = 'decision' AND decision = 'allow') AS "allowed!",
            count(*) FILTER (WHERE phase = 'decision' AND decision = 'deny') AS "refused!",
            count(*) FILTER (WHERE phase = 'decision' AND decision = 'needs_approval') AS "needs_approval!",
            count(*) FILTER (WHERE phase = 'outcome' AND outcome <> 'success') AS "failed!",
            percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_us)
                FILTER (WHERE phase = 'outcome' AND outcome NOT IN ('not_forwarded', 'unknown')) AS "p50_us?",
            percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_us)
                FILTER (WHERE phase = 'outcome' AND outcome NOT IN ('not_forwarded', 'unknown')) AS "p95_us?",
            max(recorded_at) AS "last_at!"
        FROM audit_records r
        WHERE recorded_at >= $3 AND recorded_at < $4 AND method = 'tools/call' AND tool IS NOT NULL
            AND ($1::uuid IS NULL OR project_id = $1)
            AND ($2::uuid IS NULL
                OR EXISTS (SELECT FROM project_members m WHERE m.project_id = r.project_id AND m.user_id = $2)
                OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id)
                    WHERE g.user_id = $2 AND b.project_id = r.project_id))
        GROUP BY tool ORDER BY 2 DESC, 1 LIMIT 1000
        "#,
        filter.project,
        filter.seen_by,
        filter.since,
        filter.until,
    )
    .fetch_all(conn)
    .await?)
}

/// Chains that records or heads name and that nobody began.
pub async fn find_orphan_chains(conn: &mut Conn) -> Result<Vec<Uuid>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT chain_id AS "chain_id!" FROM (
            SELECT DISTINCT chain_id FROM audit_records UNION SELECT DISTINCT chain_id FROM audit_checkpoints
        ) named
        WHERE NOT EXISTS (SELECT FROM audit_chains c WHERE c.chain_id = named.chain_id)
        "#
    );
    Ok(found.fetch_all(conn).await?)
}

/// The next records of a chain, in order. `from` is the first place wanted.
#[tracing::instrument(name = "db.audit.list_chain_records", skip_all)]
pub async fn list_chain_records(
    conn: &mut Conn,
    chain: Uuid,
    from: i64,
    limit: i64,
) -> Result<Vec<AuditRow>, DbError> {
    Ok(sqlx::query_as!(
        AuditRow,
        "
        SELECT chain_id, seq, recorded_at, call_id, phase, decision, reason, rules, shadow_rules, outcome, agent_token_id, agent_kind,
            agent_role, user_id, project_id, task_id, run_id, job_id, method, tool, definition_digest, server_id, node_id,
            policy_hash, catalogue_hash, trace_id, arguments_digest, arguments_size, result_digest, result_size,
            duration_us, previous_hash, hash, profile
        FROM audit_records WHERE chain_id = $1 AND seq >= $2 ORDER BY seq, recorded_at LIMIT $3
        ",
        chain,
        from,
        limit,
    )
    .fetch_all(conn)
    .await?)
}

/// What is searched for.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only of this project.
    pub project: Option<Uuid>,
    /// Only of this task.
    pub task: Option<Uuid>,
    /// Only of this call.
    pub call: Option<Uuid>,
    /// Only of this tool.
    pub tool: Option<String>,
    /// Only with this decision.
    pub decision: Option<String>,
    /// Only since then.
    pub since: Option<OffsetDateTime>,
    /// Only before.
    pub until: Option<OffsetDateTime>,
    /// Only what comes behind this one.
    pub behind: Option<RecordCursor>,
}

/// The records that were searched for, newest first.
#[tracing::instrument(name = "db.audit.search_audit_records", skip_all)]
pub async fn search_audit_records(
    conn: &mut Conn,
    search: &AuditFilter,
    limit: i64,
) -> Result<Vec<AuditRow>, DbError> {
    Ok(sqlx::query_as!(
        AuditRow,
        "
        SELECT chain_id, seq, recorded_at, call_id, phase, decision, reason, rules, shadow_rules, outcome, agent_token_id, agent_kind,
            agent_role, user_id, project_id, task_id, run_id, job_id, method, tool, definition_digest, server_id, node_id,
            policy_hash, catalogue_hash, trace_id, arguments_digest, arguments_size, result_digest, result_size,
            duration_us, previous_hash, hash, profile
        FROM audit_records
        WHERE ($1::uuid IS NULL OR project_id = $1) AND ($2::uuid IS NULL OR task_id = $2)
            AND ($3::uuid IS NULL OR call_id = $3) AND ($4::text IS NULL OR tool = $4)
            AND ($5::text IS NULL OR decision = $5)
            AND recorded_at >= coalesce($6::timestamptz, '-infinity') AND recorded_at < coalesce($7::timestamptz, 'infinity')
            AND ($8::timestamptz IS NULL OR (recorded_at, seq, chain_id) < ($8, $9::bigint, $10::uuid))
            AND recorded_at <= coalesce($8::timestamptz, 'infinity')
        ORDER BY recorded_at DESC, seq DESC, chain_id DESC LIMIT $11
        ",
        search.project,
        search.task,
        search.call,
        search.tool,
        search.decision,
        search.since,
        search.until,
        search.behind.map(RecordCursor::recorded_at),
        search.behind.map(|record| record.seq),
        search.behind.map(|record| record.chain),
        limit,
    )
    .fetch_all(conn)
    .await?)
}

/// Chains that were closed before `before` and still have their records, and that every enabled sink has received.
#[tracing::instrument(name = "db.audit.list_prunable_chains", skip_all)]
pub async fn list_prunable_chains(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<Vec<(Uuid, i64)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT c.chain_id, k.size FROM audit_chains c
        JOIN audit_checkpoints k ON k.chain_id = c.chain_id AND k.closed
        WHERE c.pruned_at IS NULL AND k.signed_at < $1
            AND NOT EXISTS (
                SELECT FROM audit_sinks s LEFT JOIN audit_sink_positions p ON p.sink_id = s.sink_id AND p.chain_id = c.chain_id
                WHERE s.enabled AND NOT coalesce(p.finished, false))
        ORDER BY c.number LIMIT $2
        ",
        before,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.chain_id, row.size)).collect())
}

/// Removes the records of a chain and keeps our signature under that.
#[tracing::instrument(name = "db.audit.prune_chain", skip_all)]
pub async fn prune_chain(
    conn: &mut Conn,
    chain: Uuid,
    at: OffsetDateTime,
    signature: &[u8; 64],
    key: Uuid,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE audit_chains SET pruned_at = $2, prune_signature = $3, prune_signed_by = $4 WHERE chain_id = $1",
        chain,
        at,
        signature as &[u8],
        key,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("DELETE FROM audit_records WHERE chain_id = $1", chain).execute(conn).await?;
    Ok(())
}
