//! Repositories, environments, evidence, pull requests and forges.

pub mod environments;
pub mod evidence;
pub mod forges;
pub mod pull_requests;
pub mod repositories;
pub(crate) mod task_environments;
