//! `OpenAI` Responses.
//!
//! This implementation is stateless: references to a stored response are rejected, and no response is stored.

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
