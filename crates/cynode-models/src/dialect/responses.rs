//! `OpenAI` Responses.
//!
//! Everything here is stateless: what refers to a stored response is refused, and nothing is asked to be stored.

mod answer;
mod reading;
mod stream_in;
mod stream_out;
mod writing;

pub(super) use self::{
    answer::echo_request_fields, stream_in::ResponsesStreamDecoder,
    stream_out::ResponsesStreamEncoder,
};
pub use self::{
    answer::{decode_response, encode_response},
    reading::decode_request,
    writing::encode_request,
};
