//! What a search reads of the index.

use cynode_core::memory::MemoryKind;

use crate::{Conn, DbError, memory::partitions::Partition};

/// A lexeme of a query that records of the partition have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedTerm {
    /// The lexeme.
    pub term: String,
    /// How many records have it.
    pub df: i32,
    /// How many blocks of postings there are before the tail.
    pub blocks: i32,
    /// The newest postings, packed.
    pub tail: Vec<u8>,
}

/// The lexemes among `terms` that records have, by name.
#[tracing::instrument(name = "db.memory.find_terms", skip_all)]
pub async fn find_terms(
    conn: &mut Conn,
    partition: &Partition,
    terms: &[String],
) -> Result<Vec<IndexedTerm>, DbError> {
    let found = sqlx::query_as!(
        IndexedTerm,
        r#"SELECT term, df, blocks, tail FROM memory_lexemes WHERE partition_no = $1 AND term = ANY ($2) ORDER BY term COLLATE "C""#,
        partition.number,
        terms,
    );
    Ok(found.fetch_all(conn).await?)
}

/// Blocks of postings that are wanted of a lexeme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedBlocks {
    /// The lexeme.
    pub term: String,
    /// The first block.
    pub from: i32,
    /// The block after the last: what was the tail when the lexemes were read is not read twice.
    pub to: i32,
}

/// A block of packed postings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostingBlock {
    /// The lexeme.
    pub term: String,
    /// Its place among the blocks of the lexeme.
    pub block_no: i32,
    /// The postings, packed.
    pub packed: Vec<u8>,
}

/// Blocks of postings, by lexeme and by the numbers of their records.
#[tracing::instrument(name = "db.memory.read_blocks", skip_all)]
pub async fn read_blocks(
    conn: &mut Conn,
    partition: &Partition,
    wanted: &[WantedBlocks],
) -> Result<Vec<PostingBlock>, DbError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (mut terms, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for blocks in wanted {
        terms.push(blocks.term.clone());
        from.push(blocks.from);
        to.push(blocks.to);
    }
    // A loop over the lexemes, each with its part of the index: the planner must not scan the blocks of other lexemes.
    let found = sqlx::query_as!(
        PostingBlock,
        r#"
        SELECT p.term AS "term!", p.block_no AS "block_no!", p.packed AS "packed!"
        FROM unnest($2::text[], $3::integer[], $4::integer[]) AS wanted (term, first_block, end_block)
        CROSS JOIN LATERAL (
            SELECT b.term, b.block_no, b.packed FROM memory_postings b
            WHERE b.partition_no = $1 AND b.term = wanted.term AND b.block_no >= wanted.first_block AND b.block_no < wanted.end_block
            ORDER BY b.block_no LIMIT 100000
        ) p
        "#,
        partition.number,
        &terms,
        &from,
        &to,
    );
    let mut blocks = found.fetch_all(conn).await?;
    blocks.sort_by(|one, other| (&one.term, one.block_no).cmp(&(&other.term, other.block_no)));
    Ok(blocks)
}

/// What a search finds only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitFilter {
    /// Of these kinds; empty: of any.
    pub kinds: Vec<MemoryKind>,
    /// Whose path begins so.
    pub path_prefix: Option<String>,
}

impl HitFilter {
    /// Returns whether it admits every record.
    pub const fn admits_all(&self) -> bool {
        self.kinds.is_empty() && self.path_prefix.is_none()
    }
}

/// Those of the records that a filter admits, in no order.
#[tracing::instrument(name = "db.memory.filter_records", skip_all)]
pub async fn filter_records(
    conn: &mut Conn,
    partition: &Partition,
    numbers: &[i32],
    filter: &HitFilter,
) -> Result<Vec<i32>, DbError> {
    let kinds: Vec<String> = filter.kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
    let admitted = sqlx::query_scalar!(
        r#"
        SELECT record_no AS "record_no!" FROM memories
        WHERE partition_no = $1 AND record_no = ANY ($2) AND (cardinality($3::text[]) = 0 OR kind = ANY ($3))
            AND ($4::text IS NULL OR starts_with(path, $4))
        "#,
        partition.number,
        numbers,
        &kinds,
        filter.path_prefix.as_deref(),
    );
    Ok(admitted.fetch_all(conn).await?)
}
