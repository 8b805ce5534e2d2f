//! Models, providers, budgets, usage, and inference itself.

pub mod budgets;
pub mod inference;
pub mod registry;
pub mod usage;
