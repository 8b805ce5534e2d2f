//! Repositories, evidence, deliveries, pull requests and forges.

pub mod deliveries;
pub mod evidence;
pub mod forges;
pub mod pull_requests;
pub mod repositories;
