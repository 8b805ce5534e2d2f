//! Background work: the reconciler, maintenance and health checks.

pub mod doctor;
pub mod health;
pub mod key_rotation;
pub mod maintenance;
pub mod memory_ingests;
pub mod processes;
pub mod reconciler;
pub mod task_memories;
