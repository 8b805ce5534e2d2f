//! Secrets are planted and must be gone; ordinary text must stay.

mod json;
mod known;
mod ordinary;
mod planted;
mod streams;
mod support;
