//! Repositories, environments, evidence, deliveries, pull requests and forges.

pub mod deliveries;
pub mod environments;
pub mod evidence;
pub mod forges;
pub mod pull_requests;
pub mod repositories;
