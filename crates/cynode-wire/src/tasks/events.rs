//! Events on the wire: what a stream carries.

/// The kind of the last event of a stream that a failure ended. Its data is a problem.
pub const STREAM_FAILED_KIND: &str = "stream.failed";

/// The kind of an event of a job in the stream of its log. Its data is the event.
pub const JOB_EVENT_KIND: &str = "job.event";

/// The kind of the last event in the log of a job that has ended. Its data is the state of the job.
pub const JOB_ENDED_KIND: &str = "job.ended";
