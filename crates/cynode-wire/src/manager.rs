//! The project manager: handoffs and skills.

pub mod handoffs;
pub mod skills;
