//! Vocabulary of models: dialects, capabilities, locations, budgets.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{ProjectId, TaskId, UserId};

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$item_doc])* #[serde(rename = $text)] $item,)+
        }

        impl $name {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$item,)+];

            /// The name on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$item => $text,)+ }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == name)
            }
        }
    )+};
}

words! {
    /// How a model is spoken to.
    Dialect {
        /// `OpenAI` Chat Completions.
        Chat = "chat",
        /// `OpenAI` Responses.
        Responses = "responses",
        /// Anthropic Messages.
        Messages = "messages",
    }

    /// How much thought a question is worth.
    Tier {
        /// Quick and cheap.
        Fast = "fast",
        /// For most work.
        Standard = "standard",
        /// For the hardest.
        Deep = "deep",
    }

    /// What kind of place models are at.
    ProviderKind {
        /// Any server that speaks one of the dialects: Ollama, vLLM, llama.cpp and others.
        Compatible = "compatible",
        /// `OpenAI`.
        OpenAi = "openai",
        /// Anthropic.
        Anthropic = "anthropic",
        /// A script of answers, always the same.
        Scripted = "scripted",
        /// Another provider, whose answers are kept.
        Record = "record",
        /// Answers that were kept.
        Replay = "replay",
    }

    /// Over which time a ceiling holds.
    Period {
        /// For ever.
        Total = "total",
        /// Each day, in UTC.
        Day = "day",
        /// Each month, in UTC.
        Month = "month",
    }

    /// How a call of a model ended.
    CallOutcome {
        /// With an answer.
        Answered = "answered",
        /// The provider failed or refused.
        Failed = "failed",
        /// Whoever asked went away.
        GivenUp = "given_up",
        /// The process that made it died.
        Lost = "lost",
    }

    /// What the numbers of a call rest on.
    Basis {
        /// The provider said so.
        Reported = "reported",
        /// The provider did not say; it cannot have been more.
        Bounded = "bounded",
        /// Nothing is known; the worst is assumed.
        WorstCase = "worst_case",
        /// Nothing was used.
        Free = "free",
    }

    /// What calls are put together by.
    UsageBy {
        /// The model's id.
        Model = "model",
        /// The provider's name.
        Provider = "provider",
        /// The user.
        User = "user",
        /// The project.
        Project = "project",
        /// The task.
        Task = "task",
        /// The agent's role.
        Role = "role",
        /// The day, in UTC.
        Day = "day",
    }

    /// Length of one step of a series.
    UsageStep {
        /// An hour.
        Hour = "hour",
        /// A day, in UTC.
        Day = "day",
    }

    /// Why a task may not think now.
    ParkKind {
        /// A provider's quota is used up.
        Quota = "quota",
        /// The same question over and over.
        Repeats = "repeats",
        /// Many calls and no step forward.
        NoProgress = "no_progress",
        /// Too much was spent too quickly.
        SpendRate = "spend_rate",
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Chat => "Chat Completions",
            Self::Responses => "Responses",
            Self::Messages => "Messages",
        })
    }
}

/// The id under which the project manager is chatted with.
pub const PROJECT_MANAGER_MODEL_ID: &str = "cynodeai.pm";

/// What ids of our own start with; no model may be called so.
pub const OWN_MODEL_PREFIX: &str = "cynodeai.";

impl Tier {
    /// The id by which clients ask for a tier instead of a model.
    pub fn tier_model_id(self) -> String {
        format!("{OWN_MODEL_PREFIX}{}", self.as_str())
    }

    /// The tiers in the order in which one stands in for another that no model is of, itself first.
    pub const fn fallback_order(self) -> [Self; 3] {
        match self {
            Self::Fast => [Self::Fast, Self::Standard, Self::Deep],
            Self::Standard => [Self::Standard, Self::Deep, Self::Fast],
            Self::Deep => [Self::Deep, Self::Standard, Self::Fast],
        }
    }

    /// The tier that an id asks for.
    pub fn from_model_id(id: &str) -> Option<Self> {
        id.strip_prefix(OWN_MODEL_PREFIX).and_then(Self::from_name)
    }
}

/// What an admin types to offer a model, with a local provider as the example.
pub const OFFER_COMMANDS: [&str; 2] = [
    "cynork provider set local --kind compatible --base-url http://127.0.0.1:11434/v1",
    "cynork model set coder --route local=qwen2.5-coder --context 32768 --max-output 4096 --tools --tier standard",
];

/// What is said where no model may be asked.
pub fn no_model_message() -> String {
    let [provider, model] = OFFER_COMMANDS;
    format!(
        "no model is offered to this project; an admin offers one with `{provider}` and `{model}`"
    )
}

/// Whose spending a ceiling is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetScope {
    /// Everybody's.
    Installation,
    /// One user's.
    User(UserId),
    /// One project's.
    Project(ProjectId),
    /// One task's.
    Task(TaskId),
}

/// What a million tokens cost, in millionths of the installation's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrices {
    /// Tokens that are read.
    pub input: u64,
    /// Tokens that the provider had kept.
    pub cached: u64,
    /// Tokens that the provider keeps.
    pub cache_write: u64,
    /// Tokens that are written.
    pub output: u64,
}

/// How many tokens a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// All that were read, those from and into the provider's cache included.
    pub input: u64,
    /// Of these, read from the cache.
    pub cached: u64,
    /// Of these, written into the cache.
    pub cache_write: u64,
    /// All that were written.
    pub output: u64,
    /// Of these, spent on reasoning.
    pub reasoning: u64,
}

impl TokenCounts {
    /// In and out together, as ceilings count them.
    pub const fn total_tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl ModelPrices {
    /// What the tokens cost, rounded up: a ceiling is never passed by rounding.
    pub fn cost_micros(&self, tokens: &TokenCounts) -> u64 {
        let kept = tokens.cached.saturating_add(tokens.cache_write);
        let parts = [
            (tokens.input.saturating_sub(kept), self.input),
            (tokens.cached, self.cached),
            (tokens.cache_write, self.cache_write),
            (tokens.output, self.output),
        ];
        let sum: u128 = parts.iter().map(|(n, price)| u128::from(*n) * u128::from(*price)).sum();
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The most that so many tokens can cost, whatever the cache did.
    pub fn worst_case_micros(&self, input: u64, output: u64) -> u64 {
        let dearest = self.input.max(self.cached).max(self.cache_write);
        let worst = Self { input: dearest, ..*self };
        worst.cost_micros(&TokenCounts { input, output, ..TokenCounts::default() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_call_costs_what_each_kind_of_token_costs_rounded_up_once() {
        let prices = ModelPrices {
            input: 3_000_000,
            cached: 300_000,
            cache_write: 3_750_000,
            output: 15_000_000,
        };
        let tokens =
            TokenCounts { input: 1000, cached: 600, cache_write: 100, output: 50, reasoning: 20 };
        // 300 * 3 + 600 * 0.3 + 100 * 3.75 + 50 * 15
        assert_eq!(prices.cost_micros(&tokens), 2205);
        let one = TokenCounts { input: 1, ..TokenCounts::default() };
        assert_eq!(ModelPrices { input: 1, ..ModelPrices::default() }.cost_micros(&one), 1);
        assert_eq!(ModelPrices::default().cost_micros(&tokens), 0);
    }

    #[test]
    fn only_the_exact_name_of_a_tier_is_one() {
        assert_eq!(Tier::from_model_id("cynodeai.fast"), Some(Tier::Fast));
        for other in ["cynodeai.Fast", "fast", "cynodeai.pm", "cynodeai.fast ", " cynodeai.fast"] {
            assert_eq!(Tier::from_model_id(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_call_costs_more_than_its_worst_case(
            price in proptest::array::uniform4(0u64..100_000_000),
            input in 0u64..2_000_000, cached in 0u64..2_000_000, written in 0u64..2_000_000, output in 0u64..200_000,
        ) {
            let prices = ModelPrices { input: price[0], cached: price[1], cache_write: price[2], output: price[3] };
            let cached = cached.min(input);
            let cache_write = written.min(input - cached);
            let tokens = TokenCounts { input, cached, cache_write, output, reasoning: 0 };
            prop_assert!(prices.cost_micros(&tokens) <= prices.worst_case_micros(input, output));
        }
    }
}
