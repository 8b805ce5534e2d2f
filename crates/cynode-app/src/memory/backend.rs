//! The store of memory, and the optional embedder: both are checked when a process starts, and not at the first search.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

pub use cynode_memory::embedders::Embedder;
use cynode_memory::embedders::{EmbedderFileError, FileEmbedder};

/// Where records of memory are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryBackend {
    /// In the database of the installation.
    #[default]
    Postgres,
}

/// There is no backend of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory backend `{0}`: use `postgres`, the database of the installation")]
pub struct UnknownMemoryBackend(String);

impl FromStr for MemoryBackend {
    type Err = UnknownMemoryBackend;

    fn from_str(name: &str) -> Result<Self, UnknownMemoryBackend> {
        match name {
            "postgres" => Ok(Self::Postgres),
            _ => Err(UnknownMemoryBackend(name.to_owned())),
        }
    }
}

impl fmt::Display for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres => f.write_str("postgres"),
        }
    }
}

/// Loads an embedder from a local file whose SHA-256 is pinned. It blocks: call it when the process starts.
pub fn load_embedder(path: &Path, sha256: &str) -> Result<Arc<dyn Embedder>, EmbedderFileError> {
    Ok(Arc::new(FileEmbedder::load(path, sha256)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_backend_is_refused_where_it_is_named() {
        assert_eq!("postgres".parse(), Ok(MemoryBackend::Postgres));
        assert_eq!(MemoryBackend::default().to_string(), "postgres");
        for name in ["", "Postgres", "faiss", "qdrant", "chroma"] {
            let refused = name.parse::<MemoryBackend>().unwrap_err().to_string();
            assert!(refused.contains("use `postgres`"), "S001-51: {refused}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_no_embedder() {
        assert!(load_embedder(Path::new("/nonexistent/vectors.txt"), &"0".repeat(64)).is_err());
    }
}
