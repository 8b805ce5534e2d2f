//! Models, providers, budgets, usage and inference.

pub mod budgets;
pub mod inference;
pub mod registry;
pub mod usage;
