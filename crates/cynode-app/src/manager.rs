//! The project manager: handoffs, replays, reports, chat and skills.

pub mod chat;
pub mod conversations;
pub(crate) mod given_context;
pub mod handoffs;
pub mod replays;
pub mod reports;
pub mod skills;
