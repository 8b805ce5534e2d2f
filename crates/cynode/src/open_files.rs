//! The limit of open files. A connection is an open file, and so is an audit record on its way to the disk.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit. Returns the limit in force.
pub(crate) fn raise_open_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(
                event = "open_files.limit_unchanged",
                %error,
                "the limit of open files could not be raised"
            );
        }
    }
    let current = getrlimit(Resource::Nofile).current;
    current.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_that_the_process_may_open_can_be_opened() {
        raise_open_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
