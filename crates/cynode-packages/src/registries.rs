//! The four registries: paths, indexes and files of each.

pub(crate) mod crates;
pub(crate) mod debian;
pub(crate) mod npm;
pub(crate) mod pypi;
mod simple_index;
