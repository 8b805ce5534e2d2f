//! `OpenAI` Chat Completions.
//!
//! Beside the official fields it supports `reasoning_content`, in which local servers and some providers send reasoning.

mod answer;
mod decode;
mod decode_stream;
mod encode;
mod encode_stream;

pub(super) use self::{
    answer::response_id,
    decode::{empty_parameter_schema, parse_file_source, parse_image_source},
    decode_stream::ChatStreamDecoder,
    encode::{encode_schema_fields, foreign_choice_error, foreign_part_error, resolve_effort},
    encode_stream::ChatStreamEncoder,
};
pub use self::{
    answer::{decode_response, encode_response},
    decode::decode_request,
    encode::encode_request,
};
