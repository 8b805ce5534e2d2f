//! Measures retrieval on a labelled set that `prove/support/retrieval_set.py` makes, and cuts its files into chunks.
//!
//! Each question has one chunk as its evidence, so recall@10 is the share of questions whose chunk is among the first ten. A line of JSON per
//! retriever has recall@10 and nDCG@10 in percent.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
    io::{BufRead, stdin},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, ValueEnum};

use cynode_memory::{
    bm25::{Posting, TermPostings, average_length, idf, score_postings},
    chunks::{ChunkKind, chunk_file},
    embedders::{Embedder, Hashing64, Hashing4096},
    lexemes::{record_term_counts, term_counts},
    rescore::{Candidate, MAX_CANDIDATES, WEIGHTS, Weights, rescore_with},
    whole_words,
};
use serde::Deserialize;
use uuid::Uuid;

const TOP: usize = 10;

#[derive(Deserialize)]
struct Chunk {
    title: String,
    text: String,
}

#[derive(Deserialize)]
struct Question {
    #[serde(rename = "question")]
    text: String,
    kind: String,
    evidence: usize,
    half: String,
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn id(number: usize) -> Uuid {
    Uuid::from_u128(number.try_into().unwrap_or_default())
}

fn number(id: Uuid) -> usize {
    id.as_u128().try_into().unwrap_or_default()
}

/// The terms of the chunks, scored as the product scores them.
struct Index {
    terms: HashMap<String, TermPostings>,
    average: f64,
}

impl Index {
    fn new(chunks: &[Chunk]) -> Self {
        let mut terms: HashMap<String, Vec<Posting>> = HashMap::new();
        let mut total: u64 = 0;
        for (record, chunk) in (0..).zip(chunks) {
            let counts = record_term_counts(&chunk.title, &chunk.text);
            let len: u32 = counts.values().sum();
            total += u64::from(len);
            for (term, tf) in counts {
                terms.entry(term).or_default().push(Posting { record, tf, len });
            }
        }
        let records = count(chunks);
        let weigh = |(term, postings): (String, Vec<Posting>)| {
            (term, TermPostings { idf: idf(records, count(&postings)), postings })
        };
        let terms = terms.into_iter().map(weigh).collect();
        Self { terms, average: average_length(records, total) }
    }

    fn search(&self, query: &str, top: usize) -> Vec<(usize, f64)> {
        let wanted = term_counts(query);
        let terms: Vec<TermPostings> =
            wanted.keys().filter_map(|term| self.terms.get(term)).cloned().collect();
        let found = score_postings(&terms, self.average, top).into_iter();
        found.filter_map(|(record, score)| Some((usize::try_from(record).ok()?, score))).collect()
    }
}

struct Evaluation {
    chunks: Vec<Chunk>,
    questions: Vec<Question>,
    index: Index,
}

impl Evaluation {
    fn default_search(&self, weights: &Weights, max: usize, query: &str) -> (Vec<usize>, Duration) {
        let found = self.index.search(query, max);
        let candidate = |(number, bm25): &(usize, f64)| {
            let chunk = self.chunks.get(*number)?;
            Some(Candidate { id: id(*number), title: &chunk.title, text: &chunk.text, bm25: *bm25 })
        };
        let candidates: Vec<_> = found.iter().filter_map(candidate).collect();
        let start = Instant::now();
        let scored = rescore_with(weights, query, &candidates, None);
        (scored.iter().take(TOP).map(|hit| number(hit.id)).collect(), start.elapsed())
    }

    /// Returns recall and nDCG in percent by kind of question and, as `all`, over all.
    fn score(&self, mut search: impl FnMut(&str) -> Vec<usize>) -> BTreeMap<&str, (f64, f64)> {
        let mut sums: BTreeMap<&str, (f64, f64, f64)> = BTreeMap::new();
        for question in &self.questions {
            let found = search(&question.text);
            let rank = found.iter().take(TOP).position(|number| *number == question.evidence);
            let gain = rank.map_or(0.0, |rank| (float(rank) + 2.0).log2().recip());
            for kind in ["all", &question.kind] {
                let sum = sums.entry(kind).or_default();
                *sum = (sum.0 + 1.0, sum.1 + f64::from(u8::from(rank.is_some())), sum.2 + gain);
            }
        }
        let percent = |(count, recall, gain)| (100.0 * recall / count, 100.0 * gain / count);
        sums.into_iter().map(|(kind, sum)| (kind, percent(sum))).collect()
    }

    /// Prints how a retriever does.
    fn measure(&self, name: &str, search: impl FnMut(&str) -> Vec<usize>) {
        let start = Instant::now();
        let scores = self.score(search);
        let milliseconds = start.elapsed().as_secs_f64() * 1e3 / float(self.questions.len());
        let (recall, gain) = scores.get("all").copied().unwrap_or_default();
        let by_kind: BTreeMap<&str, f64> = scores
            .iter()
            .filter(|(kind, _)| **kind != "all")
            .map(|(kind, (recall, _))| (*kind, round(*recall)))
            .collect();
        print(&serde_json::json!({
            "retriever": name, "recall_at_10": round(recall), "ndcg_at_10": round(gain),
            "questions": self.questions.len(), "chunks": self.chunks.len(),
            "milliseconds": round(milliseconds), "recall_by_kind": by_kind,
        }));
    }

    fn hashing(&self, embedder: &dyn Embedder) {
        let embed = |chunk: &Chunk| embedder.embed(&format!("{} {}", chunk.title, chunk.text));
        let vectors: Vec<_> = self.chunks.iter().map(embed).collect();
        self.measure(embedder.id(), |query| {
            let wanted = embedder.embed(query);
            let product = |vector: &Vec<f32>| {
                vector.iter().zip(&wanted).map(|(one, other)| f64::from(one * other)).sum::<f64>()
            };
            best(vectors.iter().map(product))
        });
    }

    fn baselines(&self, all: bool) {
        self.measure("bm25", |query| {
            self.index.search(query, TOP).into_iter().map(|(number, _)| number).collect()
        });
        let text = |chunk: &Chunk| format!("{} {}", chunk.title, chunk.text);
        let texts: Vec<String> = self.chunks.iter().map(text).collect();
        let records: Vec<(Uuid, &str)> =
            texts.iter().enumerate().map(|(number, text)| (id(number), text.as_str())).collect();
        if all {
            self.measure("whole-words", |query| {
                whole_words::search(query, &records, TOP).iter().map(|hit| number(hit.id)).collect()
            });
            self.hashing(&Hashing4096);
        }
        let lower: Vec<String> = texts.iter().map(|text| text.to_lowercase()).collect();
        self.measure("grep", |query| {
            let query = query.to_lowercase();
            let words: BTreeSet<&str> = query
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .filter(|word| word.len() > 2)
                .collect();
            let matches = |text: &String| words.iter().map(|word| text.matches(word).count()).sum();
            best(lower.iter().map(|text| float(matches(text))))
        });
        self.hashing(&Hashing64);
    }

    fn default_and_time(&self, max: usize) {
        let mut times = Vec::new();
        let name =
            if max == MAX_CANDIDATES { "default".to_owned() } else { format!("default-{max}") };
        self.measure(&name, |query| {
            let (found, time) = self.default_search(&WEIGHTS, max, query);
            times.push(time);
            found
        });
        times.sort_unstable();
        let at = |part: usize| {
            round(
                times.get(times.len() * part / 100).copied().unwrap_or_default().as_secs_f64()
                    * 1e3,
            )
        };
        print(&serde_json::json!({"rescored": max, "p50_ms": at(50), "p99_ms": at(99)}));
    }

    /// Walks from the weights of the crate to better ones, one step at a time.
    fn tune(&self) {
        let sum = |weights: &Weights| {
            let scores = self.score(|query| self.default_search(weights, MAX_CANDIDATES, query).0);
            scores.get("all").map_or(0.0, |(recall, gain)| recall + gain)
        };
        let mut weights = WEIGHTS;
        let mut best = sum(&weights);
        for round_number in 0..4 {
            let before = best;
            for place in PLACES {
                for step in [-0.1, -0.05, 0.05, 0.1, 0.2] {
                    let mut other = weights;
                    *place(&mut other) = (*place(&mut other) + step).max(0.0);
                    let score = sum(&other);
                    if score > best + 0.01 {
                        (best, weights) = (score, other);
                    }
                }
            }
            print(
                &serde_json::json!({"round": round_number, "sum": best, "weights": format!("{weights:?}")}),
            );
            if best <= before {
                break;
            }
        }
    }
}

/// The weights that are tuned.
const PLACES: [fn(&mut Weights) -> &mut f64; 5] = [
    |it| &mut it.bm25,
    |it| &mut it.title,
    |it| &mut it.words,
    |it| &mut it.pairs,
    |it| &mut it.grams,
];

fn count<T>(things: &[T]) -> u64 {
    u64::try_from(things.len()).unwrap_or(u64::MAX)
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The numbers of the best scores above zero: the best first, lower numbers first among equal ones.
fn best(scores: impl Iterator<Item = f64>) -> Vec<usize> {
    let mut scores: Vec<(usize, f64)> =
        scores.enumerate().filter(|(_, score)| *score > 0.0).collect();
    scores.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    scores.into_iter().take(TOP).map(|(number, _)| number).collect()
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn print(line: &serde_json::Value) {
    println!("{line}");
}

/// Which questions are asked: weights are chosen on one half and reported on the other.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Half {
    Tune,
    Report,
}

impl Half {
    fn has(self, question: &Question) -> bool {
        question.half == if self == Self::Tune { "tune" } else { "report" }
    }
}

#[derive(Args)]
pub(crate) struct Evaluate {
    /// The folder with `chunks.jsonl` and `questions.jsonl`.
    folder: PathBuf,
    /// Asks the questions of one half only.
    #[arg(long)]
    half: Option<Half>,
    /// Also measures the retrievers that take long.
    #[arg(long)]
    all: bool,
    /// Looks for better weights.
    #[arg(long, group = "what")]
    tune: bool,
    /// Compares numbers of candidates.
    #[arg(long, group = "what")]
    sizes: bool,
    /// Writes the ten best chunks of each question into a file.
    #[arg(long, group = "what")]
    rankings: Option<PathBuf>,
}

pub(crate) fn run(options: &Evaluate) -> anyhow::Result<bool> {
    let chunks: Vec<Chunk> = read(&options.folder.join("chunks.jsonl"))?;
    let mut questions: Vec<Question> = read(&options.folder.join("questions.jsonl"))?;
    questions.retain(|question| options.half.is_none_or(|half| half.has(question)));
    let index = Index::new(&chunks);
    let evaluation = Evaluation { chunks, questions, index };
    if options.tune {
        evaluation.tune();
    } else if options.sizes {
        for max in [50, 75, 100, 150, 200, 300] {
            evaluation.default_and_time(max);
        }
    } else if let Some(file) = &options.rankings {
        let mut lines = String::new();
        for question in &evaluation.questions {
            let (found, _) = evaluation.default_search(&WEIGHTS, MAX_CANDIDATES, &question.text);
            writeln!(lines, "{found:?}")?;
        }
        std::fs::write(file, lines)?;
    } else {
        evaluation.default_and_time(MAX_CANDIDATES);
        evaluation.baselines(options.all);
    }
    Ok(true)
}

#[derive(Args)]
pub(crate) struct Chunks {
    /// The folder of the files, whose paths below it are read from standard input.
    root: PathBuf,
}

/// Cuts files into chunks, a line of JSON each.
pub(crate) fn cut(options: &Chunks) -> anyhow::Result<bool> {
    for path in stdin().lock().lines() {
        let path = path?;
        let Ok(text) = std::fs::read_to_string(options.root.join(&path)) else { continue };
        for chunk in chunk_file(&path, &text) {
            print(&serde_json::json!({
                "path": path,
                "title": chunk.title,
                "text": chunk.text,
                "start_line": chunk.start_line,
                "end_line": chunk.end_line,
                "kind": if chunk.kind == ChunkKind::Code { "code" } else { "document" },
            }));
        }
    }
    Ok(true)
}
