//! What a task may spend.

use serde::{Deserialize, Serialize};

/// A ceiling in money and in tokens; a part that is absent is limited by the level above only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Most money, in millionths of the installation's currency.
    pub max_cost_micros: Option<Amount>,
    /// Most model tokens, in and out together.
    pub max_tokens: Option<Amount>,
}

/// A whole amount that fits PostgreSQL's `bigint` and is never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Amount(i64);

/// The amount is larger than can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an amount is at most {}", i64::MAX)]
pub struct AmountError;

impl Amount {
    /// The amount as PostgreSQL stores it.
    pub const fn as_i64(self) -> i64 {
        self.0
    }
}

impl TryFrom<u64> for Amount {
    type Error = AmountError;

    fn try_from(amount: u64) -> Result<Self, AmountError> {
        i64::try_from(amount).map(Self).map_err(|_| AmountError)
    }
}

impl TryFrom<i64> for Amount {
    type Error = AmountError;

    fn try_from(amount: i64) -> Result<Self, AmountError> {
        if amount < 0 { Err(AmountError) } else { Ok(Self(amount)) }
    }
}

impl From<Amount> for u64 {
    fn from(amount: Amount) -> Self {
        amount.0.unsigned_abs()
    }
}
