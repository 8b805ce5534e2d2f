//! What keeps the memory of git small, and how it says that a limit has ended it. The orchestrator and nodes run it under limits.

/// Settings that keep the memory of git small: one thread, small windows of packs, small caches of deltas, large files as streams, and
/// packs that are indexed instead of unpacked.
pub const GIT_MEMORY_SETTINGS: [(&str, &str); 9] = [
    ("pack.threads", "1"),
    ("index.threads", "1"),
    ("core.packedGitWindowSize", "16m"),
    ("core.packedGitLimit", "64m"),
    ("core.deltaBaseCacheLimit", "16m"),
    ("core.bigFileThreshold", "32m"),
    ("pack.windowMemory", "32m"),
    ("pack.deltaCacheSize", "16m"),
    ("fetch.unpackLimit", "1"),
];

/// Messages of git that mean that it, or a child of it, has hit a limit.
pub const GIT_OVER_LIMIT_MARKERS: [&str; 6] = [
    "Out of memory",
    "out of memory",
    "Cannot allocate memory",
    "File too large",
    "died of signal 24",
    "died of signal 25",
];
