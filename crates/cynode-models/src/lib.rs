//! Access to models: three dialects in, three dialects out, one canonical form between them; providers, routing, redaction.
//!
//! [`dialect::canonical`] defines the canonical form. [`dialect`] decodes and encodes it as Chat Completions and Responses of `OpenAI` and
//! as Anthropic's Messages, complete and streamed. [`tools`] restores a client's own kinds of tools when the provider supports only
//! functions. [`stream_observer`] observes a response that is relayed unchanged, and [`relay`] relays it. [`upstream`], [`script`] and
//! [`cassette`] are the sources of responses. [`routing`] chooses among them. [`cost_bound`] computes the maximum input of a request,
//! [`request_rewrite`] prepares the request, [`content_guard`] keeps a provider from fetching anything for it. [`redact`] redacts secrets.
//!
//! **Invariant**: only [`upstream`] accesses a network and only [`cassette`] a disk; no input makes the rest panic. If a dialect cannot
//! express something, the request is rejected with a message, or the loss is one of the few that the readme of the golden corpus lists.

pub mod cassette;
pub mod content_guard;
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
