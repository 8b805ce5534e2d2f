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

/// The fewest tokens that a model may be given to think.
const LEAST_BUDGET: u64 = 1024;

/// The budget for thinking that an answer of at most `limit` tokens leaves, which must be smaller; `None` when that is too
/// little to think at all.
pub(crate) fn budget_within(budget: u64, limit: u64) -> Option<u64> {
    if budget < limit {
        return Some(budget);
    }
    Some(limit.saturating_sub(1)).filter(|left| *left >= LEAST_BUDGET)
}
