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

/// Minimum thinking budget, in tokens.
const MIN_THINKING_BUDGET_TOKENS: u64 = 1024;

/// Returns the thinking budget for an output limit of `limit` tokens. The budget must be smaller than the limit. Returns `None` if the
/// limit leaves less than the minimum.
pub(crate) fn clamp_thinking_budget(budget: u64, limit: u64) -> Option<u64> {
    if budget < limit {
        return Some(budget);
    }
    Some(limit.saturating_sub(1)).filter(|left| *left >= MIN_THINKING_BUDGET_TOKENS)
}
