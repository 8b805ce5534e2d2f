//! Tools, tool servers, agent tokens, approvals, artifacts and the audit log.

pub mod agent_tokens;
pub mod approvals;
pub mod artifacts;
pub mod audit;
pub mod call_validation;
pub mod catalogue;
pub mod profile_checks;
pub mod profiles;
pub mod tool_servers;
pub mod web_search;
