//! Models, providers, budgets and usage.

pub mod budgets;
pub mod registry;
pub mod usage;
