//! Search: BM25 over the index of a partition, then rescoring.
//!
//! The rarest lexemes of a query are read first, until `MAX_POSTINGS` postings are read. What is left are words that most records have.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use cynode_core::{
    ids::TaskId,
    memory::{
        AcceptanceRule, CHARS_PER_TOKEN, MAX_HITS, MAX_QUERY_CHARS, MemoryKind, MemoryScope,
        PromptMemory, estimate_tokens,
    },
    roles::UserRole,
};
use cynode_db::{
    Conn,
    memory::{
        partitions::{self, EntryMode, Partition},
        postings::unpack_postings,
        records::{self, Memory},
        search::{self, HitFilter, IndexedTerm, WantedBlocks},
    },
};
use cynode_memory::{
    bm25::{self, Posting, TermPostings},
    embedders::Embedder,
    lexemes,
    rescore::{Candidate, MAX_CANDIDATES, rescore},
};

use crate::{
    App, Error, OperationRequest,
    memory::records::{MAX_LEXEME_BYTES, acceptance_rule, require_memory_role},
    platform::operation,
};

/// Maximum number of postings that a search reads.
const MAX_POSTINGS: usize = 120_000;

/// Minimum number of postings of a block that was never changed.
const MIN_BLOCK_POSTINGS: usize = 256;

/// Maximum number of different lexemes of a query.
const MAX_QUERY_LEXEMES: usize = 200;

/// How many of the best records are filtered at first. If too few of them are admitted, more are.
const FIRST_FILTERED: usize = 500;

/// Maximum number of a task's own proposals that a search looks at.
const MAX_OWN_PROPOSALS: i64 = 200;

/// Minimum score of a record that is given in a prompt.
const MIN_PROMPT_SCORE: f64 = 0.3;

/// Number of words of a text up to which one of them in a record is enough for a prompt.
const FEW_WORDS: usize = 6;

/// Minimum length of a word of Latin script that says what a text is about.
const MIN_WORD_CHARS: usize = 4;

/// Maximum number of records that are given in a prompt.
const MAX_PROMPT_RECORDS: usize = 12;

/// Minimum number of tokens for which a record is cut to fit.
const MIN_CUT_TOKENS: usize = 64;

/// What is searched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryQuery {
    /// The text.
    pub text: String,
    /// Of these kinds only; empty: of any.
    pub kinds: Vec<MemoryKind>,
    /// Whose path begins so.
    pub path_prefix: Option<String>,
    /// Maximum number of hits, up to 50.
    pub limit: u16,
    /// The task whose own proposals are found, too.
    pub task: Option<TaskId>,
}

/// A record that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryHit {
    /// The record.
    pub memory: Memory,
    /// How well it fits, from 0 to 1; higher is better.
    pub score: f64,
}

/// Searches the memory of a project under a profile. The best hit is first, and hits with equal scores are ordered by id.
#[tracing::instrument(name = "app.memory.search_memories", skip_all)]
#[operation]
pub async fn search_memories(
    app: &App,
    request: &OperationRequest,
    scope: &MemoryScope,
    query: MemoryQuery,
) -> Result<Vec<MemoryHit>, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    require_memory_role(&mut ctx, scope, UserRole::Viewer).await?;
    let mut query = query;
    if query.task.is_some() && acceptance_rule(ctx.conn()).await? == AcceptanceRule::Person {
        query.task = None;
    }
    let candidates = find_candidates(ctx.conn(), scope, &query).await?;
    ctx.rollback().await?;
    let limit = usize::from(query.limit.clamp(1, MAX_HITS));
    rank_candidates(app, query.text, candidates, limit).await
}

/// Returns the best records for a prompt about a text: accepted ones with a minimum score, cut to a budget of tokens. The caller must not
/// have an open transaction, and has decided that the agent may read this scope.
#[tracing::instrument(name = "app.memory.best_for_prompt", skip_all)]
#[operation]
pub async fn best_for_prompt(
    app: &App,
    scope: &MemoryScope,
    text: &str,
    max_tokens: u32,
) -> Result<Vec<PromptMemory>, Error> {
    let budget = usize::try_from(max_tokens).unwrap_or_default();
    if budget == 0 {
        return Ok(Vec::new());
    }
    let query = MemoryQuery { text: text.to_owned(), ..MemoryQuery::default() };
    let mut tx = app.begin().await?;
    let candidates = find_candidates(&mut tx, scope, &query).await?;
    tx.rollback().await.map_err(cynode_db::DbError::from)?;
    let words = significant_lexemes(&query.text);
    let mut hits = rank_candidates(app, query.text, candidates, MAX_PROMPT_RECORDS).await?;
    hits.retain(|hit| shares_words(&words, &hit.memory));
    Ok(fit_to_budget(hits, budget))
}

/// The lexemes of a text that say what it is about: short words of Latin script are in every text.
fn significant_lexemes(text: &str) -> Vec<String> {
    let mut found = query_lexemes(text);
    found.retain(|lexeme| !lexeme.is_ascii() || lexeme.len() >= MIN_WORD_CHARS);
    found
}

/// Returns whether a record has enough words of a text. The score alone does not say so: the best candidate has a good one if all are bad.
fn shares_words(words: &[String], memory: &Memory) -> bool {
    let text = &memory.text;
    let counts = lexemes::record_term_counts(&text.title, &text.searchable_body());
    let shared = words.iter().filter(|word| counts.contains_key(*word)).count();
    shared >= if words.len() > FEW_WORDS { 2 } else { 1 }
}

/// Takes hits as long as they fit into a budget of tokens. The last one is cut.
pub(super) fn fit_to_budget(hits: Vec<MemoryHit>, budget: usize) -> Vec<PromptMemory> {
    let (mut left, mut fitting) = (budget, Vec::new());
    for hit in hits.into_iter().filter(|hit| hit.score >= MIN_PROMPT_SCORE) {
        let mut given = to_prompt_memory(hit);
        let room = left.saturating_sub(estimate_tokens(&given.title));
        if estimate_tokens(&given.text) > room {
            if room < MIN_CUT_TOKENS {
                break;
            }
            given.text = given.text.chars().take(room * CHARS_PER_TOKEN).collect();
        }
        left = left.saturating_sub(given.estimated_tokens());
        fitting.push(given);
    }
    fitting
}

fn to_prompt_memory(hit: MemoryHit) -> PromptMemory {
    let MemoryHit { memory, score } = hit;
    let text = memory.text;
    let source = match text.path.or(text.url) {
        Some(place) if !text.source.contains(&place) => format!("{}: {place}", text.source),
        _ => text.source,
    };
    PromptMemory {
        memory_id: memory.id,
        kind: memory.kind,
        source,
        title: text.title,
        text: text.content,
        score,
        untrusted: memory.origin.untrusted,
    }
}

/// A record that may match, with its BM25 score.
struct RankedCandidate {
    memory: Memory,
    bm25: f64,
}

/// Finds the candidates of a query in the partition of a scope, the best BM25 score first.
async fn find_candidates(
    conn: &mut Conn,
    scope: &MemoryScope,
    query: &MemoryQuery,
) -> Result<Vec<RankedCandidate>, Error> {
    let entered = partitions::enter_partition(conn, scope, EntryMode::Read).await?;
    let terms = query_lexemes(&query.text);
    let Some(partition) = entered.filter(|_| !terms.is_empty()) else { return Ok(Vec::new()) };
    let found = search::find_terms(conn, &partition, &terms).await?;
    let statistics = Statistics::of(&partition, &found);
    let filter = HitFilter { kinds: query.kinds.clone(), path_prefix: query.path_prefix.clone() };
    let top = if filter.admits_all() { MAX_CANDIDATES } else { usize::MAX };
    let ranked = rank_index(conn, &partition, found, top).await?;
    let ranked = admit(conn, &partition, ranked, &filter).await?;
    let mut candidates = read_candidates(conn, &partition, ranked).await?;
    if let Some(task) = query.task {
        let own = records::list_task_proposals(conn, &partition, task, MAX_OWN_PROPOSALS).await?;
        candidates.extend(statistics.score_proposals(own, &filter, &terms));
    }
    candidates.sort_by(|one, other| {
        other.bm25.total_cmp(&one.bm25).then_with(|| one.memory.id.cmp(&other.memory.id))
    });
    candidates.truncate(MAX_CANDIDATES);
    Ok(candidates)
}

/// The lexemes of a query, each once and by name.
fn query_lexemes(text: &str) -> Vec<String> {
    let text: String = text.chars().take(MAX_QUERY_CHARS).collect();
    let mut found = BTreeSet::new();
    for lexeme in lexemes::lexemes(&text) {
        if found.len() == MAX_QUERY_LEXEMES {
            break;
        }
        if lexeme.len() <= MAX_LEXEME_BYTES {
            found.insert(lexeme);
        }
    }
    found.into_iter().collect()
}

/// What BM25 needs to know of a partition.
struct Statistics {
    records: u64,
    average_length: f64,
    df: BTreeMap<String, u64>,
}

impl Statistics {
    fn of(partition: &Partition, found: &[IndexedTerm]) -> Self {
        let df = found.iter().map(|term| (term.term.clone(), to_count(i64::from(term.df))));
        Self {
            records: to_count(partition.records),
            average_length: average_length(partition),
            df: df.collect(),
        }
    }

    /// Scores proposals, which are in no index, as if they were.
    fn score_proposals(
        &self,
        proposals: Vec<Memory>,
        filter: &HitFilter,
        terms: &[String],
    ) -> Vec<RankedCandidate> {
        let admitted = proposals.into_iter().filter(|memory| admits(filter, memory));
        let scored = admitted.map(|memory| {
            let text = &memory.text;
            let counts = lexemes::record_term_counts(&text.title, &text.searchable_body());
            let length = counts.values().copied().fold(0, u32::saturating_add);
            let scores = terms.iter().filter_map(|term| {
                let df = self.df.get(term).copied().unwrap_or_default().max(1);
                let idf = bm25::idf(self.records.max(1), df);
                let average = self.average_length.max(1.0);
                Some(bm25::term_score(*counts.get(term)?, length, average, idf))
            });
            RankedCandidate { bm25: scores.sum(), memory }
        });
        scored.filter(|candidate| candidate.bm25 > 0.0).collect()
    }
}

/// Returns whether a filter admits a record that is no candidate of the index.
fn admits(filter: &HitFilter, memory: &Memory) -> bool {
    let path = memory.text.path.as_deref();
    (filter.kinds.is_empty() || filter.kinds.contains(&memory.kind))
        && filter
            .path_prefix
            .as_ref()
            .is_none_or(|prefix| path.is_some_and(|path| path.starts_with(prefix)))
}

fn to_count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn average_length(partition: &Partition) -> f64 {
    bm25::average_length(to_count(partition.records), to_count(partition.total_length))
}

/// Chooses the lexemes whose postings are read, the rarest first; the others are in too many records. Of a lexeme that alone has too many
/// postings, the newest are read.
fn choose_terms(mut found: Vec<IndexedTerm>) -> Vec<(IndexedTerm, WantedBlocks)> {
    found.sort_by(|one, other| one.df.cmp(&other.df).then_with(|| one.term.cmp(&other.term)));
    let (mut total, mut chosen) = (0_usize, Vec::new());
    for term in found {
        let df = usize::try_from(term.df).unwrap_or_default();
        total = total.saturating_add(df);
        if total > MAX_POSTINGS && !chosen.is_empty() {
            break;
        }
        let newest = i32::try_from(MAX_POSTINGS / MIN_BLOCK_POSTINGS).unwrap_or(i32::MAX);
        let from = term.blocks.saturating_sub(newest).max(0);
        let wanted = WantedBlocks { term: term.term.clone(), from, to: term.blocks };
        chosen.push((term, wanted));
    }
    // In a fixed order, so that equal sums are equal to the last bit.
    chosen.sort_by(|(one, _), (other, _)| one.term.cmp(&other.term));
    chosen
}

/// Ranks the records that have lexemes of the query: their numbers with their scores, best first.
async fn rank_index(
    conn: &mut Conn,
    partition: &Partition,
    found: Vec<IndexedTerm>,
    top: usize,
) -> Result<Vec<(i32, f64)>, Error> {
    let chosen = choose_terms(found);
    let has_blocks = chosen.iter().filter(|(_, wanted)| wanted.to > wanted.from);
    let wanted: Vec<WantedBlocks> = has_blocks.map(|(_, wanted)| wanted.clone()).collect();
    let mut packed: HashMap<String, Vec<u8>> = HashMap::new();
    for block in search::read_blocks(conn, partition, &wanted).await? {
        packed.entry(block.term).or_default().extend(block.packed);
    }
    let (records, average) = (to_count(partition.records), average_length(partition));
    let score = move || {
        let mut terms = Vec::with_capacity(chosen.len());
        for (term, _) in chosen {
            let mut bytes = packed.remove(&term.term).unwrap_or_default();
            bytes.extend(&term.tail);
            let idf = bm25::idf(records, to_count(i64::from(term.df)));
            terms.push(TermPostings { idf, postings: to_postings(&bytes) });
        }
        bm25::score_postings(&terms, average, top)
    };
    let scored = tokio::task::spawn_blocking(score).await;
    let scored = scored.map_err(|error| Error::Internal(error.into()))?;
    let number = |record| i32::try_from(record).unwrap_or_default();
    Ok(scored.into_iter().map(|(record, score)| (number(record), score)).collect())
}

fn to_postings(packed: &[u8]) -> Vec<Posting> {
    let found = unpack_postings(packed).map(|posting| Posting {
        record: i64::from(posting.record_no),
        tf: u32::from(posting.count),
        len: u32::from(posting.length),
    });
    found.collect()
}

/// The best records that a filter admits.
async fn admit(
    conn: &mut Conn,
    partition: &Partition,
    ranked: Vec<(i32, f64)>,
    filter: &HitFilter,
) -> Result<Vec<(i32, f64)>, Error> {
    if filter.admits_all() {
        return Ok(ranked);
    }
    let (mut left, mut size, mut admitted) = (ranked.as_slice(), FIRST_FILTERED, Vec::new());
    while admitted.len() < MAX_CANDIDATES && !left.is_empty() {
        let (now, later) = left.split_at(size.min(left.len()));
        let numbers: Vec<i32> = now.iter().map(|(number, _)| *number).collect();
        let allowed = search::filter_records(conn, partition, &numbers, filter).await?;
        let allowed: HashSet<i32> = allowed.into_iter().collect();
        admitted.extend(now.iter().filter(|(number, _)| allowed.contains(number)).copied());
        (left, size) = (later, size * 4);
    }
    admitted.truncate(MAX_CANDIDATES);
    Ok(admitted)
}

/// Reads the records of a ranking.
async fn read_candidates(
    conn: &mut Conn,
    partition: &Partition,
    ranked: Vec<(i32, f64)>,
) -> Result<Vec<RankedCandidate>, Error> {
    if ranked.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<i32> = ranked.iter().map(|(number, _)| *number).collect();
    let scores: HashMap<i32, f64> = ranked.into_iter().collect();
    let found = records::list_indexed_records(conn, partition, &numbers).await?;
    let candidates = found.into_iter().filter_map(|memory| {
        let bm25 = *scores.get(&memory.record_no?)?;
        Some(RankedCandidate { memory, bm25 })
    });
    Ok(candidates.collect())
}

/// Rescores candidates off the async workers, and returns the best hits.
async fn rank_candidates(
    app: &App,
    text: String,
    candidates: Vec<RankedCandidate>,
    limit: usize,
) -> Result<Vec<MemoryHit>, Error> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let embedder = app.embedder.clone();
    let rank = move || rank_texts(&text, candidates, embedder.as_ref(), limit);
    let hits = tokio::task::spawn_blocking(rank).await;
    hits.map_err(|error| Error::Internal(error.into()))
}

fn rank_texts(
    text: &str,
    candidates: Vec<RankedCandidate>,
    embedder: Option<&Arc<dyn Embedder>>,
    limit: usize,
) -> Vec<MemoryHit> {
    let compared: Vec<Candidate<'_>> = candidates
        .iter()
        .map(|candidate| Candidate {
            id: candidate.memory.id.as_uuid(),
            title: &candidate.memory.text.title,
            text: &candidate.memory.text.content,
            bm25: candidate.bm25,
        })
        .collect();
    let scored = rescore(text, &compared, embedder.map(|embedder| &**embedder));
    let mut by_id: HashMap<_, _> = candidates
        .into_iter()
        .map(|candidate| (candidate.memory.id.as_uuid(), candidate.memory))
        .collect();
    let hits = scored
        .into_iter()
        .filter_map(|hit| Some(MemoryHit { memory: by_id.remove(&hit.id)?, score: hit.score }));
    hits.take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(name: &str, df: i32, blocks: i32) -> IndexedTerm {
        IndexedTerm { term: name.to_owned(), df, blocks, tail: Vec::new() }
    }

    #[test]
    fn the_rarest_lexemes_are_read_until_the_bound() {
        let found = vec![term("the", 110_000, 300), term("zebra", 3, 0), term("retry", 20_000, 60)];
        let chosen: Vec<String> =
            choose_terms(found).into_iter().map(|(term, _)| term.term).collect();
        assert_eq!(chosen, ["retry", "zebra"]);
    }

    #[test]
    fn of_a_single_common_lexeme_the_newest_postings_are_read() {
        let chosen = choose_terms(vec![term("the", 500_000, 1000)]);
        let (_, wanted) = chosen.first().unwrap();
        assert_eq!((wanted.from, wanted.to), (532, 1000));
    }

    #[test]
    fn a_query_has_each_lexeme_once_and_is_bounded() {
        let found = query_lexemes("retry the retry");
        assert!(found.len() <= 2, "{found:?}");
        assert!(query_lexemes(&"word ".repeat(100_000)).len() < 5);
        let repeated = format!("{}zebra", "word ".repeat(300));
        let zebra = query_lexemes("zebra");
        assert!(query_lexemes(&repeated).contains(&zebra[0]), "repeats take no room");
    }
}
