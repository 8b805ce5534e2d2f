//! Anthropic Messages.

mod answer;
mod reading;
mod stream_in;
mod stream_out;
mod writing;

pub use self::{
    answer::{read_answer, write_answer},
    reading::read_request,
    writing::write_request,
};
pub(super) use self::{stream_in::Reader, stream_out::Writer};
