pub mod budgets;
pub mod registry;
pub mod usage;
