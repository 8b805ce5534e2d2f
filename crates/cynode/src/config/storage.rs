use std::path::PathBuf;

use super::reader::ConfigReader;

/// What the server keeps on disk.
#[derive(Debug)]
pub(crate) struct StorageConfig {
    /// Where the master key, the audit records on their way, the artifacts and the repositories are kept.
    pub(crate) directory: Option<PathBuf>,
    /// The master key, when it is elsewhere.
    pub(crate) master_key_file: Option<PathBuf>,
}

impl StorageConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self {
            directory: reader.optional_text("storage.directory").map(PathBuf::from),
            master_key_file: reader.optional_text("storage.master_key_file").map(PathBuf::from),
        }
    }
}
