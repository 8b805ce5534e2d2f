//! `OpenAI` Chat Completions.
//!
//! Beside the official fields it knows `reasoning_content`, with which local servers and some providers tell thoughts.

mod answer;
mod reading;
mod stream_in;
mod stream_out;
mod writing;

pub(super) use self::{
    answer::answer_id,
    reading::{file_source, image_source, no_parameters},
    stream_in::Reader,
    stream_out::Writer,
    writing::{effort, foreign_choice, schema_fields, unknown_part},
};
pub use self::{
    answer::{read_answer, write_answer},
    reading::read_request,
    writing::write_request,
};
