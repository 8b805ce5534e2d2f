//! The project manager and the analyst: one program, one role per process.
//!
//! **Invariant**: no access to the database, no provider key, no shell. All work comes from the orchestrator as
//! handoffs. Every tool call goes through the gateway and every model call through the inference endpoint, with the
//! token of the handoff. The process is stateless: after a kill the next one replays the recorded think calls and
//! continues.

pub mod chat;
pub mod cli;
pub mod config;
pub mod decision_context;
pub mod decisions;
pub mod eval;
pub mod instructions;
pub mod llm;
pub mod mcp_client;
pub mod prompt_composition;
pub mod role;
pub mod role_runtime;
pub mod service;
