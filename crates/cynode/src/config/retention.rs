use cynode_core::tuning::BoundedNumber;
use time::Duration;

use super::reader::ConfigReader;

/// Retention periods of records.
#[derive(Debug)]
pub(crate) struct RetentionConfig {
    /// Audit records of tool calls.
    pub(crate) audit: Duration,
    /// Transcripts of jobs and handoffs: messages and actions of agents.
    pub(crate) transcripts: Duration,
}

const AUDIT_RETENTION_DAYS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_AUDIT_RETENTION_DAYS", min: 1, max: 36_500, default: 365 };

const TRANSCRIPT_RETENTION_DAYS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_TRANSCRIPTS_RETENTION_DAYS", min: 1, max: 36_500, default: 90 };

impl RetentionConfig {
    pub(super) fn read_sections(reader: &mut ConfigReader) -> Self {
        let audit = reader.bounded_integer("audit.retention_days", AUDIT_RETENTION_DAYS);
        let transcripts =
            reader.bounded_integer("transcripts.retention_days", TRANSCRIPT_RETENTION_DAYS);
        Self { audit: Duration::days(audit), transcripts: Duration::days(transcripts) }
    }
}
