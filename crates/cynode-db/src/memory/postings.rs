//! The index: which records of a partition have which lexemes.
//!
//! A posting is 8 bytes, so that new ones are appended without reading the old ones. Callers hold the lock of the partition.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Conn, DbError, memory::partitions::Partition};

/// Bytes of one posting.
const POSTING_BYTES: usize = 8;

/// Bytes from which on a tail becomes a block.
const BLOCK_BYTES: i32 = 2048;

/// One record that has a lexeme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexPosting {
    /// The number of the record.
    pub record_no: i32,
    /// How often the record has the lexeme.
    pub count: u16,
    /// How many lexemes the record has.
    pub length: u16,
}

impl IndexPosting {
    fn to_bytes(self) -> [u8; POSTING_BYTES] {
        let mut bytes = [0; POSTING_BYTES];
        bytes[..4].copy_from_slice(&self.record_no.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.count.to_be_bytes());
        bytes[6..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (length, _) = rest.split_first_chunk()?;
        Some(Self {
            record_no: i32::from_be_bytes(*number),
            count: u16::from_be_bytes(*count),
            length: u16::from_be_bytes(*length),
        })
    }
}

/// The postings of packed bytes, by the numbers of their records.
pub fn unpack_postings(packed: &[u8]) -> impl Iterator<Item = IndexPosting> + '_ {
    packed.chunks_exact(POSTING_BYTES).filter_map(IndexPosting::from_bytes)
}

/// A record that the index gets or loses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its number.
    pub record_no: i32,
    /// Its lexemes with their counts.
    pub lexemes: Vec<(String, u32)>,
    /// How many lexemes it has.
    pub length: i32,
}

impl IndexEntry {
    fn posting(&self, count: u32) -> IndexPosting {
        IndexPosting {
            record_no: self.record_no,
            count: u16::try_from(count).unwrap_or(u16::MAX),
            length: u16::try_from(self.length).unwrap_or(u16::MAX),
        }
    }
}

/// Adds records to the index. Their numbers ascend, and are above those of all records before.
pub(crate) async fn add_entries(
    conn: &mut Conn,
    partition: &mut Partition,
    entries: &[IndexEntry],
) -> Result<(), DbError> {
    let Some(last) = entries.last() else { return Ok(()) };
    let mut tails: BTreeMap<&str, (i32, Vec<u8>)> = BTreeMap::new();
    for entry in entries {
        for (lexeme, count) in &entry.lexemes {
            let (df, tail) = tails.entry(lexeme.as_str()).or_default();
            *df += 1;
            tail.extend(entry.posting(*count).to_bytes());
        }
    }
    append_tails(conn, partition, tails).await?;
    partition.last_record_no = last.record_no;
    add_totals(conn, partition, entries, 1).await
}

/// Appends postings to the tails of their lexemes, and makes blocks of the tails that are full.
async fn append_tails(
    conn: &mut Conn,
    partition: &Partition,
    tails: BTreeMap<&str, (i32, Vec<u8>)>,
) -> Result<(), DbError> {
    let (mut terms, mut counts, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    for (term, (df, tail)) in tails {
        terms.push(term.to_owned());
        counts.push(df);
        packed.push(tail);
    }
    let written = sqlx::query!(
        r#"
        INSERT INTO memory_lexemes AS l (partition_no, term, df, tail)
        SELECT $1, new.term, new.df, new.tail
        FROM unnest($2::text[], $3::integer[], $4::bytea[]) AS new (term, df, tail)
        ON CONFLICT (partition_no, term) DO UPDATE SET df = l.df + excluded.df, tail = l.tail || excluded.tail
        RETURNING l.term AS "term!", octet_length(l.tail) AS "bytes!"
        "#,
        partition.number,
        &terms,
        &counts,
        &packed,
    )
    .fetch_all(&mut *conn)
    .await?;
    let is_full = written.into_iter().filter(|row| row.bytes >= BLOCK_BYTES);
    let full: Vec<String> = is_full.map(|row| row.term).collect();
    if full.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "
        WITH moved AS (
            INSERT INTO memory_postings (partition_no, term, block_no, first_no, last_no, packed)
            SELECT partition_no, term, blocks, ('x' || encode(substring(tail FOR 4), 'hex'))::bit(32)::integer,
                ('x' || encode(substring(tail FROM octet_length(tail) - 7 FOR 4), 'hex'))::bit(32)::integer, tail
            FROM memory_lexemes WHERE partition_no = $1 AND term = ANY ($2)
        )
        UPDATE memory_lexemes SET tail = '', blocks = blocks + 1 WHERE partition_no = $1 AND term = ANY ($2)
        ",
        partition.number,
        &full,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes records from the index. Nothing of them is left in it.
pub(crate) async fn remove_entries(
    conn: &mut Conn,
    partition: &mut Partition,
    entries: &[IndexEntry],
) -> Result<(), DbError> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut gone: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for entry in entries {
        for (lexeme, _) in &entry.lexemes {
            gone.entry(lexeme.clone()).or_default().insert(entry.record_no);
        }
    }
    remove_from_blocks(conn, partition, &gone).await?;
    remove_from_tails(conn, partition, &gone).await?;
    add_totals(conn, partition, entries, -1).await
}

/// The packed postings without those of some records.
fn without_records(packed: &[u8], gone: &BTreeSet<i32>) -> Vec<u8> {
    let left = unpack_postings(packed).filter(|posting| !gone.contains(&posting.record_no));
    left.flat_map(IndexPosting::to_bytes).collect()
}

async fn remove_from_blocks(
    conn: &mut Conn,
    partition: &Partition,
    gone: &BTreeMap<String, BTreeSet<i32>>,
) -> Result<(), DbError> {
    let (mut terms, mut lows, mut highs) = (Vec::new(), Vec::new(), Vec::new());
    for (term, numbers) in gone {
        terms.push(term.clone());
        lows.push(numbers.first().copied().unwrap_or_default());
        highs.push(numbers.last().copied().unwrap_or_default());
    }
    let blocks = sqlx::query!(
        r#"
        SELECT p.term AS "term!", p.block_no AS "block_no!", p.packed AS "packed!"
        FROM unnest($2::text[], $3::integer[], $4::integer[]) AS gone (term, low, high)
        JOIN memory_postings p ON p.partition_no = $1 AND p.term = gone.term AND p.last_no >= gone.low AND p.first_no <= gone.high
        "#,
        partition.number,
        &terms,
        &lows,
        &highs,
    )
    .fetch_all(&mut *conn)
    .await?;
    let (mut terms, mut numbers, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        let Some(records) = gone.get(&block.term) else { continue };
        let left = without_records(&block.packed, records);
        if left.len() != block.packed.len() {
            terms.push(block.term);
            numbers.push(block.block_no);
            packed.push(left);
        }
    }
    write_blocks(conn, partition, &terms, &numbers, &packed).await
}

/// Writes changed blocks. An empty one is deleted.
async fn write_blocks(
    conn: &mut Conn,
    partition: &Partition,
    terms: &[String],
    numbers: &[i32],
    packed: &[Vec<u8>],
) -> Result<(), DbError> {
    if terms.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "
        DELETE FROM memory_postings p
        USING unnest($2::text[], $3::integer[], $4::bytea[]) AS new (term, block_no, packed)
        WHERE p.partition_no = $1 AND p.term = new.term AND p.block_no = new.block_no AND octet_length(new.packed) = 0
        ",
        partition.number,
        terms,
        numbers,
        packed,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        UPDATE memory_postings p SET packed = new.packed
        FROM unnest($2::text[], $3::integer[], $4::bytea[]) AS new (term, block_no, packed)
        WHERE p.partition_no = $1 AND p.term = new.term AND p.block_no = new.block_no AND octet_length(new.packed) > 0
        ",
        partition.number,
        terms,
        numbers,
        packed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn remove_from_tails(
    conn: &mut Conn,
    partition: &Partition,
    gone: &BTreeMap<String, BTreeSet<i32>>,
) -> Result<(), DbError> {
    let wanted: Vec<String> = gone.keys().cloned().collect();
    let tails = sqlx::query!(
        "SELECT term, tail FROM memory_lexemes WHERE partition_no = $1 AND term = ANY ($2)",
        partition.number,
        &wanted,
    )
    .fetch_all(&mut *conn)
    .await?;
    let (mut terms, mut counts, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    for row in tails {
        let Some(records) = gone.get(&row.term) else { continue };
        counts.push(i32::try_from(records.len()).unwrap_or(i32::MAX));
        packed.push(without_records(&row.tail, records));
        terms.push(row.term);
    }
    // A lexeme that no record has any more goes, before its count would be 0.
    sqlx::query!(
        "
        DELETE FROM memory_lexemes l USING unnest($2::text[], $3::integer[]) AS gone (term, df)
        WHERE l.partition_no = $1 AND l.term = gone.term AND l.df <= gone.df
        ",
        partition.number,
        &terms,
        &counts,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        UPDATE memory_lexemes l SET df = l.df - gone.df, tail = gone.tail
        FROM unnest($2::text[], $3::integer[], $4::bytea[]) AS gone (term, df, tail)
        WHERE l.partition_no = $1 AND l.term = gone.term
        ",
        partition.number,
        &terms,
        &counts,
        &packed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Writes what the partition holds after records were added or removed.
async fn add_totals(
    conn: &mut Conn,
    partition: &mut Partition,
    entries: &[IndexEntry],
    sign: i64,
) -> Result<(), DbError> {
    let length: i64 = entries.iter().map(|entry| i64::from(entry.length)).sum();
    partition.records += sign * i64::try_from(entries.len()).unwrap_or_default();
    partition.total_length += sign * length;
    sqlx::query!(
        "UPDATE memory_partitions SET records = $2, total_length = $3, last_record_no = $4 WHERE partition_no = $1",
        partition.number,
        partition.records,
        partition.total_length,
        partition.last_record_no,
    )
    .execute(conn)
    .await?;
    Ok(())
}
