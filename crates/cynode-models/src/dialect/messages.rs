//! Anthropic Messages.

mod answer;
mod decode;
mod decode_stream;
mod encode;
mod encode_stream;

pub use self::{
    answer::{decode_response, encode_response},
    decode::decode_request,
    encode::encode_request,
};
pub(super) use self::{decode_stream::MessagesStreamDecoder, encode_stream::MessagesStreamEncoder};

/// The fewest tokens that a model may be given to think.
const MIN_THINKING_BUDGET_TOKENS: u64 = 1024;

/// The budget for thinking that an answer of at most `limit` tokens leaves, which must be smaller; `None` when that is too
/// little to think at all.
pub(crate) fn clamp_thinking_budget(budget: u64, limit: u64) -> Option<u64> {
    if budget < limit {
        return Some(budget);
    }
    Some(limit.saturating_sub(1)).filter(|left| *left >= MIN_THINKING_BUDGET_TOKENS)
}
