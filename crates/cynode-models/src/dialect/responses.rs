//! `OpenAI` Responses.
//!
//! Everything here is stateless: what refers to a stored response is refused, and nothing is asked to be stored.

mod answer;
mod decode;
mod decode_stream;
mod encode;
mod encode_stream;

pub(super) use self::{
    answer::echo_request_fields, decode_stream::ResponsesStreamDecoder,
    encode_stream::ResponsesStreamEncoder,
};
pub use self::{
    answer::{decode_response, encode_response},
    decode::decode_request,
    encode::encode_request,
};
