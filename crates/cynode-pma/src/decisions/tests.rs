//! Whole handoffs, with scripted answers of models and tools.

mod environments;
mod judging;
mod planning;
mod rest;
mod story;
mod support;
