use std::path::PathBuf;

use super::reader::ConfigReader;

/// Files of the server.
#[derive(Debug)]
pub(crate) struct StorageConfig {
    /// The directory of the master key, the buffered audit records, the artifacts and the repositories.
    pub(crate) directory: Option<PathBuf>,
    /// The master key, if it is elsewhere.
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
