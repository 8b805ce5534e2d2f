//! The project manager: handoffs, reports, chat and skills.

pub mod chat;
pub mod conversations;
pub mod handoffs;
pub mod reports;
pub mod skills;
