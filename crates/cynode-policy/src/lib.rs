//! Policy decisions, pure: which agent may call which tool with which arguments, and why not.
//!
//! **Invariant**: nothing here reads a clock, a file, a network or a database. [`decision::decide`] is the one function that says yes; its order of questions is fixed and no setting leaves
//! one out. Rules of people ([`rules`]) are asked last and can only refuse.
//!
//! To add a native tool, describe it as a [`catalogue::McpToolDefinition`] inside one of the [`tool_names::NATIVE_NAMESPACES`] namespaces; to give a
//! role more tools, change [`allowlists`], which is data and is compared by a golden table.

pub mod agents;
pub mod allowlists;
pub mod catalogue;
pub mod decision;
pub mod digest;
pub mod reasons;
pub mod rules;
pub mod schema;
mod schema_cost;
pub mod tool_names;

#[cfg(test)]
mod fixtures;
