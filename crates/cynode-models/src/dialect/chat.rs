//! `OpenAI` Chat Completions.
//!
//! Beside the official fields it knows `reasoning_content`, with which local servers and some providers tell thoughts.

mod answer;
mod reading;
mod stream_in;
mod stream_out;
mod writing;

pub(super) use self::{
    answer::response_id,
    reading::{empty_parameter_schema, parse_file_source, parse_image_source},
    stream_in::ChatStreamDecoder,
    stream_out::ChatStreamEncoder,
    writing::{encode_schema_fields, foreign_choice_error, foreign_part_error, resolve_effort},
};
pub use self::{
    answer::{decode_response, encode_response},
    reading::decode_request,
    writing::encode_request,
};
