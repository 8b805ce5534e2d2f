//! The project manager and the analyst: one program, one role per process.
//!
//! **Invariant**: no way to the database, no provider's key, no shell. All work comes from the orchestrator as handoffs; every tool
//! call goes through the gate and every question to a model through the egress, with the token of the handoff. Nothing is kept
//! in the head: killed at any moment, the next process finds what was thought and goes on.

mod backoff;
pub mod brain;
pub mod chat;
pub mod cli;
pub mod compose;
pub mod config;
pub mod desk;
pub mod eval;
pub mod gate;
pub mod instructions;
pub mod judge;
pub mod office;
pub mod role;
pub mod service;
