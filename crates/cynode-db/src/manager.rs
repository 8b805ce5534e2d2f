//! The project manager: handoffs, replays, reports, conversations and skills.

pub mod conversations;
pub mod given_context;
pub mod handoffs;
pub mod replays;
pub mod reports;
pub mod skills;
