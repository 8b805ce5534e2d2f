//! Errors of the proxy itself, and refusals that a client sees.

use std::{io, path::PathBuf};

use hyper::StatusCode;

/// Error of the package proxy.
#[derive(Debug, thiserror::Error)]
pub enum PackageProxyError {
    /// A system operation failed.
    #[error("{what}")]
    Io {
        /// The attempted operation.
        what: String,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The advisory file is not valid.
    #[error("{} is no advisory file (OSV, a JSON array or one object per line): {reason}", path.display())]
    Advisories {
        /// Path of the file.
        path: PathBuf,
        /// The place and what is wrong.
        reason: String,
    },
    /// The HTTP client could not be set up.
    #[error(
        "the client of the registries could not be set up: check the certificate files and the proxy"
    )]
    Client(#[source] reqwest::Error),
    /// An archive of a cache is not valid. Nothing of it was taken over.
    #[error("nothing was imported: {0}")]
    Archive(String),
}

impl PackageProxyError {
    /// Adds the attempted operation to an I/O error.
    pub(crate) fn io(what: &str, source: io::Error) -> Self {
        Self::Io { what: what.to_owned(), source }
    }
}

/// A request that gets no file, with the reason that the client sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) reason: String,
}

impl Refusal {
    /// Refuses what is not allowed.
    pub(crate) fn forbidden(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, reason: reason.into() }
    }

    /// Says that there is no such thing.
    pub(crate) fn not_found(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, reason: reason.into() }
    }

    /// Says that the upstream failed or gave something wrong.
    pub(crate) fn upstream(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, reason: reason.into() }
    }

    /// Says that the node cannot do it now.
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, reason: reason.into() }
    }

    /// Logs a failure of the disk and hides its details from the client.
    pub(crate) fn disk(error: &io::Error) -> Self {
        tracing::warn!(event = "packages.disk_failed", %error, "the package cache cannot be used");
        Self::unavailable("the package cache of the node cannot be used: see the node's log")
    }
}
