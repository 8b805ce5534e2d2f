//! The project manager: handoffs, reports and skills.

pub mod handoffs;
pub mod reports;
pub mod skills;
