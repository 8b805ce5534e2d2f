use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use cynode_app::memory::backend::{Embedder, MemoryBackend, load_embedder};

use super::reader::ConfigReader;

/// Memory: its store, and an optional embedder.
#[derive(Debug)]
pub(crate) struct MemoryConfig {
    /// A file of word vectors with its SHA-256.
    embedder: Option<(PathBuf, String)>,
}

impl MemoryConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        // There is one backend: what matters is that another name is refused.
        let MemoryBackend::Postgres =
            reader.parse_value("memory.backend", MemoryBackend::default());
        let file = reader.optional_text("memory.embedder_file");
        let sha256 = reader.optional_text("memory.embedder_sha256");
        let is_digest =
            |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if sha256.as_ref().is_some_and(|text| !is_digest(text)) {
            let told = "memory.embedder_sha256: the SHA-256 of the file has 64 hexadecimal digits";
            reader.add_problem(told.to_owned());
        }
        if file.is_some() != sha256.is_some() {
            let told = "memory.embedder_file and memory.embedder_sha256 need each other: set both, or none";
            reader.add_problem(told.to_owned());
        }
        Self { embedder: file.map(PathBuf::from).zip(sha256) }
    }

    /// Loads the embedder, if there is one. A file with another digest is refused.
    pub(crate) fn load_embedder(&self) -> anyhow::Result<Option<Arc<dyn Embedder>>> {
        let Some((file, sha256)) = &self.embedder else { return Ok(None) };
        let embedder = load_embedder(file, sha256).with_context(|| {
            format!(
                "memory.embedder_file {} cannot be used: set memory.embedder_sha256 to the digest of the file that you trust, or remove both keys",
                file.display()
            )
        })?;
        tracing::info!(event = "memory.embedder_loaded", embedder = embedder.id(), "loaded");
        Ok(Some(embedder))
    }
}
