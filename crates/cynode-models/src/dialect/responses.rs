//! `OpenAI` Responses.
//!
//! Everything here is stateless: what refers to a stored response is refused, and nothing is asked to be stored.

mod answer;
mod reading;
mod stream_in;
mod stream_out;
mod writing;

pub(super) use self::{answer::echo, stream_in::Reader, stream_out::Writer};
pub use self::{
    answer::{read_answer, write_answer},
    reading::read_request,
    writing::write_request,
};
