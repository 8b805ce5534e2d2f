//! Events on the wire: what a stream carries.

/// The kind of the last event of a stream that a failure ended. Its data is a problem.
pub const STREAM_FAILED_KIND: &str = "stream.failed";
