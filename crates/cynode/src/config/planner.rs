use cynode_core::tuning::{MODEL_TEMPERATURE, PLANNER_MAX_STEPS};

use super::reader::Reader;

/// The bounds of planning.
#[derive(Debug)]
pub(crate) struct Planner {
    /// How many steps a plan may have, 1 to 50.
    pub(crate) max_steps: i64,
    /// How freely a model may choose its words, 0 to 2.
    pub(crate) temperature: f64,
}

impl Planner {
    pub(super) fn read(reader: &mut Reader) -> Self {
        Self {
            max_steps: reader.integer("planner.max_steps", PLANNER_MAX_STEPS),
            temperature: reader.float("planner.temperature", MODEL_TEMPERATURE),
        }
    }
}
