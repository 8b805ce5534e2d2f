pub mod chat;
pub mod conversations;
pub mod handoffs;
pub mod reports;
pub mod skills;
