//! Ingests: what makes records of memory from files, a repository at a commit, or a page.
//!
//! An ingest is incremental: a file whose digest is the one of the last ingest of its source is not read again, and the records of files
//! that are gone are removed. What is ingested is untrusted: only what a person writes into memory is trusted.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    ids::{IngestId, ProjectId, UserId},
    memory::is_hidden_character,
    profiles::ProfileName,
    trace::TraceId,
};

/// Maximum bytes of the text of one ingested file. A larger file is skipped.
pub const MAX_INGEST_FILE_BYTES: usize = 256 * 1024;

/// Maximum number of files of one ingest.
pub const MAX_INGEST_FILES: usize = 50_000;

/// Maximum number of files that a client sends at once.
pub const MAX_UPLOAD_FILES: usize = 200;

/// Maximum number of characters of the path of a file.
pub const MAX_INGEST_PATH_CHARS: usize = 1000;

/// What an ingest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IngestKind {
    /// Files that the client sends.
    Files,
    /// The project's repository at a commit.
    Repository,
    /// A page, by its address.
    Page,
}

impl IngestKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Files, Self::Repository, Self::Page];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Repository => "repository",
            Self::Page => "page",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The state of an ingest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IngestState {
    /// It waits for the client's last file, or for a worker.
    Queued,
    /// A worker reads it.
    Running,
    /// Everything was read.
    Done,
    /// It was given up.
    Failed,
    /// A person stopped it. What was read until then stays.
    Cancelled,
}

impl IngestState {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing changes any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// How far an ingest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IngestProgress {
    /// Files that were found, or sent until now.
    pub files: u64,
    /// Files that were read and stored.
    pub read: u64,
    /// Files that are as they were at the last ingest of the source.
    pub unchanged: u64,
    /// Files that were passed over: binary, empty or too large.
    pub skipped: u64,
    /// Files whose records were removed, because the files are gone.
    pub removed: u64,
    /// Records that were stored.
    pub records: u64,
}

/// One ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// Its id.
    pub id: IngestId,
    /// Project of its records.
    pub project: ProjectId,
    /// Profile of its records.
    pub profile: ProfileName,
    /// What it reads.
    pub kind: IngestKind,
    /// Source of its records: `files:NAME`, `repository` or `page:URL`.
    pub source: String,
    /// Commit of the repository.
    pub commit: Option<String>,
    /// Where it stands.
    pub state: IngestState,
    /// When the client had sent the last file. Repositories and pages have it from the start.
    pub uploaded_at: Option<OffsetDateTime>,
    /// How far it is.
    pub progress: IngestProgress,
    /// Why it failed, or what keeps it waiting.
    pub error: Option<String>,
    /// Who asked for it.
    pub requested_by: UserId,
    /// Trace of the request.
    pub trace: TraceId,
    /// When it was asked for.
    pub created_at: OffsetDateTime,
    /// When it ended.
    pub finished_at: Option<OffsetDateTime>,
}

impl Ingest {
    /// Address of the page.
    pub fn page_url(&self) -> Option<&str> {
        self.source.strip_prefix("page:").filter(|_| self.kind == IngestKind::Page)
    }
}

/// Returns the path of an uploaded file in its one form, or `None` if it is absolute, climbs, hides characters or is too long.
pub fn normalize_ingest_path(path: &str) -> Option<String> {
    let unified = path.replace('\\', "/");
    let parts: Vec<&str> =
        unified.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let climbs = parts.contains(&"..");
    let hides = unified.chars().any(|c| c.is_control() || is_hidden_character(c));
    let is_plain = !unified.starts_with('/') && !hides;
    let normal = parts.join("/");
    let fits = (1..=MAX_INGEST_PATH_CHARS).contains(&normal.chars().count());
    (is_plain && fits && !climbs).then_some(normal)
}

/// Returns the text of a file, or `None` if it is empty, too large or binary.
pub fn ingestible_text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_INGEST_FILE_BYTES || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok().filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form_and_none_that_climbs_or_hides() {
        for (given, normal) in [
            ("docs/a.md", "docs/a.md"),
            ("./docs//a.md", "docs/a.md"),
            ("docs\\a.md", "docs/a.md"),
            ("größe.md", "größe.md"),
        ] {
            assert_eq!(normalize_ingest_path(given).as_deref(), Some(normal), "S001-48: {given}");
        }
        let long = "x/".repeat(MAX_INGEST_PATH_CHARS);
        for refused in
            ["", ".", "/etc/passwd", "../a", "a/../../b", "a\u{0}b", "a\nb", "a\u{200b}b", &long]
        {
            assert_eq!(normalize_ingest_path(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn what_is_binary_empty_or_too_large_is_no_text() {
        assert_eq!(ingestible_text(b"# Title\n"), Some("# Title\n"));
        let large = vec![b'x'; MAX_INGEST_FILE_BYTES + 1];
        for refused in [b"".as_slice(), b" \n", b"a\0b", b"\xff\xfe", &large] {
            assert_eq!(ingestible_text(refused), None);
        }
    }

    #[test]
    fn states_and_kinds_have_names_and_three_states_are_final() {
        for state in IngestState::ALL {
            assert_eq!(IngestState::from_name(state.as_str()), Some(state));
        }
        for kind in IngestKind::ALL {
            assert_eq!(IngestKind::from_name(kind.as_str()), Some(kind));
        }
        let last = IngestState::ALL.into_iter().filter(|state| state.is_final()).count();
        assert_eq!(last, 3);
    }
}
