pub mod handoffs;
pub mod reports;
pub mod skills;
