//! The way to models: three dialects in, three dialects out, one set of words between them; providers, routing, redaction.
//!
//! [`talk`] has the words. [`dialect`] reads and writes them as Chat Completions and Responses of `OpenAI` and as Anthropic's
//! Messages, whole and piece by piece. [`tools`] gives a client its own
//! kinds of tools back when the provider knows only functions. [`observe`] watches an answer that is passed on unchanged,
//! [`relay`] passes it on. [`upstream`], [`script`] and [`cassette`] are where answers come from; [`routing`]
//! chooses among them; [`bound`] says what a question can cost at most, [`shape`] prepares it. [`redact`] takes secrets out.
//!
//! **Invariant**: only [`upstream`] speaks to a network and only [`cassette`] to a disk; no input makes the rest panic. What
//! a dialect cannot say is refused in words, or is one of the few things that the readme of the golden corpus lists.

pub mod cassette;
pub mod cost_bound;
pub mod dialect;
pub mod redact;
pub mod relay;
pub mod request_rewrite;
pub mod routing;
pub mod script;
pub mod stream_observer;
pub mod tools;
pub mod upstream;
