use cynode_core::tuning::{MODEL_TEMPERATURE, PLANNER_MAX_STEPS};

use super::reader::ConfigReader;

/// The limits of planning.
#[derive(Debug)]
pub(crate) struct PlannerConfig {
    /// Maximum number of steps of a plan, 1 to 50.
    pub(crate) max_steps: i64,
    /// Sampling temperature of the model, 0 to 2.
    pub(crate) temperature: f64,
}

impl PlannerConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self {
            max_steps: reader.bounded_integer("planner.max_steps", PLANNER_MAX_STEPS),
            temperature: reader.bounded_float("planner.temperature", MODEL_TEMPERATURE),
        }
    }
}
