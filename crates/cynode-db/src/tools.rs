//! Policy, tool servers, agents' tokens, approvals, artifacts and audit records.

pub mod agent_tokens;
pub mod approvals;
pub mod artifacts;
pub mod audit;
pub mod audit_export;
pub mod policy;
pub mod profiles;
pub mod tool_servers;
