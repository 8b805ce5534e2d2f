//! Vector backends: where vectors are kept and searched.
//!
//! A backend is validated where it is constructed: [`backend_of_name`] refuses a name that it does not know, and one that this program cannot
//! use, so that no search finds out. Memory itself is in PostgreSQL; [`LocalBackend`] is for small sets that fit into the process.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::{
    Hit, by_score_then_id,
    embedders::{Embedder, Hashing4096},
};

/// The names that are known, the default first.
pub const KNOWN_BACKENDS: [&str; 4] = ["local", "faiss", "chroma", "qdrant"];

/// A record to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorRecord {
    /// The record.
    pub id: Uuid,
    /// Its text.
    pub text: String,
}

/// Stores the vectors of records and searches them.
pub trait VectorBackend: Send {
    /// Makes the backend ready. It may be repeated.
    fn connect(&mut self) -> Result<(), VectorBackendError>;

    /// Stores records. A record whose id is there is replaced.
    fn upsert(&mut self, records: &[VectorRecord]) -> Result<(), VectorBackendError>;

    /// Returns the best `top_k` records: the best score first, and ids ascending among equal scores.
    fn search(&self, query: &str, top_k: usize) -> Result<Vec<Hit>, VectorBackendError>;
}

/// Why a backend did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorBackendError {
    /// It was not connected.
    #[error("the vector backend is not connected")]
    NotConnected,
}

/// Why there is no backend of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBackend {
    /// No backend has this name.
    #[error("there is no vector backend `{0}`: use `local`")]
    Name(String),
    /// The backend is a program or a service of its own, and this program has no client of it.
    #[error("the vector backend `{0}` is not part of this program: use `local`")]
    NotBuiltIn(String),
}

/// Constructs and connects the backend of a name.
pub fn backend_of_name(name: &str) -> Result<Box<dyn VectorBackend>, UnknownBackend> {
    match name {
        "local" => Ok(Box::new(LocalBackend::connected(Box::new(Hashing4096)))),
        _ if KNOWN_BACKENDS.contains(&name) => Err(UnknownBackend::NotBuiltIn(name.to_owned())),
        _ => Err(UnknownBackend::Name(name.to_owned())),
    }
}

/// Turns a distance into a score: `1 / (1 + d)`, so that 0 becomes 1, and higher is better. What is no distance has the score 0.
pub fn score_of_distance(distance: f64) -> f64 {
    if distance >= 0.0 { 1.0 / (1.0 + distance) } else { 0.0 }
}

/// Vectors in the memory of the process.
///
/// The score of a record is [`score_of_distance`] of the Euclidean distance of its vector to the query's. A record whose vector shares no dimension
/// with the query's is no hit.
pub struct LocalBackend {
    embedder: Box<dyn Embedder>,
    vectors: BTreeMap<Uuid, Vec<f32>>,
    connected: bool,
}

impl LocalBackend {
    /// Makes an empty backend that is not connected.
    pub fn new(embedder: Box<dyn Embedder>) -> Self {
        Self { embedder, vectors: BTreeMap::new(), connected: false }
    }

    fn connected(embedder: Box<dyn Embedder>) -> Self {
        Self { connected: true, ..Self::new(embedder) }
    }

    const fn check(&self) -> Result<(), VectorBackendError> {
        if self.connected { Ok(()) } else { Err(VectorBackendError::NotConnected) }
    }
}

impl VectorBackend for LocalBackend {
    fn connect(&mut self) -> Result<(), VectorBackendError> {
        self.connected = true;
        Ok(())
    }

    fn upsert(&mut self, records: &[VectorRecord]) -> Result<(), VectorBackendError> {
        self.check()?;
        let embedder = &self.embedder;
        self.vectors.extend(records.iter().map(|record| (record.id, embedder.embed(&record.text))));
        Ok(())
    }

    fn search(&self, query: &str, top_k: usize) -> Result<Vec<Hit>, VectorBackendError> {
        self.check()?;
        let wanted = self.embedder.embed(query);
        let mut hits: Vec<Hit> = self
            .vectors
            .iter()
            .filter_map(|(id, vector)| {
                let (product, distance) = compare(&wanted, vector);
                (product > 0.0).then(|| Hit { id: *id, score: score_of_distance(distance) })
            })
            .collect();
        hits.sort_by(by_score_then_id);
        hits.truncate(top_k);
        Ok(hits)
    }
}

/// The product and the Euclidean distance of two vectors.
fn compare(one: &[f32], other: &[f32]) -> (f64, f64) {
    let (mut product, mut squares) = (0.0, 0.0);
    for (left, right) in one.iter().zip(other) {
        let (left, right) = (f64::from(*left), f64::from(*right));
        product += left * right;
        squares += (left - right) * (left - right);
    }
    (product, squares.sqrt())
}
