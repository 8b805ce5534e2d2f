//! The project manager: handoffs, reports, conversations and skills.

pub mod conversations;
pub mod handoffs;
pub mod reports;
pub mod skills;
