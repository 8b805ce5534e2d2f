//! Budget of a task.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

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

/// The setting that names the installation's currency.
pub const CURRENCY_SETTING: &str = "budget.currency";

/// The setting that says what a task may cost that was asked for without a limit.
pub const TASK_DEFAULT_SETTING: &str = "budget.task_default";

/// What such a task may cost when nobody has set it, in millionths of the installation's currency.
pub const TASK_DEFAULT_MICROS: u64 = 5_000_000;

/// The setting that says what a new user may spend in a month.
pub const USER_DEFAULT_SETTING: &str = "budget.user_default";

/// What a new user may spend in a month when nobody has set it, in millionths of the installation's currency.
pub const USER_DEFAULT_MICROS: u64 = 20_000_000;

/// The word that switches the default limit off.
pub const NO_LIMIT: &str = "none";

/// The unit of all prices and limits of an installation: an ISO 4217 code. It is shown beside amounts; nothing is
/// converted by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Currency([u8; 3]);

/// A text that is no currency code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a currency is an ISO 4217 code: three capital letters such as `USD` or `EUR`")]
pub struct CurrencyError;

impl Currency {
    /// US dollars, which an installation counts in when nobody says otherwise.
    pub const USD: Self = Self(*b"USD");

    /// The code.
    pub fn as_str(&self) -> &str {
        // Only ASCII letters get in.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The currency that a stored setting names; US dollars when nobody has set it.
    pub fn from_setting(value: Option<&Value>) -> Self {
        value.and_then(Value::as_str).and_then(|code| code.parse().ok()).unwrap_or_default()
    }
}

impl Default for Currency {
    fn default() -> Self {
        Self::USD
    }
}

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(code: &str) -> Result<Self, CurrencyError> {
        match code.as_bytes() {
            [a, b, c] if code.bytes().all(|letter| letter.is_ascii_uppercase()) => {
                Ok(Self([*a, *b, *c]))
            }
            _ => Err(CurrencyError),
        }
    }
}

impl TryFrom<String> for Currency {
    type Error = CurrencyError;

    fn try_from(code: String) -> Result<Self, CurrencyError> {
        code.parse()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// The default limit of a task that a value of [`TASK_DEFAULT_SETTING`] means: an amount of money above 0 with at most six
/// decimals, or `none`. `Err` when it means nothing.
pub fn parse_task_default(value: &Value) -> Result<Option<Amount>, AmountError> {
    if value.as_str() == Some(NO_LIMIT) {
        return Ok(None);
    }
    let money = value.as_f64().filter(|money| *money > 0.0 && *money <= MAX_TASK_DEFAULT);
    let micros = money.ok_or(AmountError)? * 1_000_000.0;
    let whole = micros.round();
    // An amount with at most six decimals is a whole number of millionths, but for the last bits of a float.
    if (micros - whole).abs() > 0.001 || whole < 1.0 {
        return Err(AmountError);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, above 0 and small"
    )]
    Amount::try_from(whole as u64).map(Some)
}

/// The most that the default limit of a task can be.
const MAX_TASK_DEFAULT: f64 = 1_000_000.0;

/// The default limit of a task: what is set, else [`TASK_DEFAULT_MICROS`]. A stored value that means nothing is passed over.
pub fn default_task_limit(value: Option<&Value>) -> Option<Amount> {
    let set = value.and_then(|value| parse_task_default(value).ok());
    set.unwrap_or_else(|| Amount::try_from(TASK_DEFAULT_MICROS).ok())
}

/// The default limit of a user in a month: what is set, else [`USER_DEFAULT_MICROS`]. A stored value that means nothing is passed
/// over.
pub fn default_user_limit(value: Option<&Value>) -> Option<Amount> {
    let set = value.and_then(|value| parse_task_default(value).ok());
    set.unwrap_or_else(|| Amount::try_from(USER_DEFAULT_MICROS).ok())
}

impl Budget {
    /// Whether it limits anything.
    pub const fn is_limited(&self) -> bool {
        self.max_cost_micros.is_some() || self.max_tokens.is_some()
    }

    /// The same, or the default limit where nothing is limited.
    #[must_use]
    pub fn or_default_limit(self, default: Option<Amount>) -> Self {
        if self.is_limited() { self } else { Self { max_cost_micros: default, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_currency_is_three_capital_letters() {
        assert_eq!("EUR".parse::<Currency>().map(|it| it.to_string()), Ok("EUR".to_owned()));
        for wrong in ["", "eur", "EURO", "E1R", "€", "EU"] {
            assert_eq!(wrong.parse::<Currency>(), Err(CurrencyError), "{wrong}");
        }
        assert_eq!(Currency::from_setting(None).as_str(), "USD");
        assert_eq!(Currency::from_setting(Some(&json!("CHF"))).as_str(), "CHF");
    }

    #[test]
    fn a_default_limit_is_money_or_none_and_5_when_nobody_set_it() {
        let micros = |value: Value| parse_task_default(&value).map(|it| it.map(u64::from));
        assert_eq!(micros(json!(5)), Ok(Some(5_000_000)));
        assert_eq!(micros(json!(2.35)), Ok(Some(2_350_000)));
        assert_eq!(micros(json!(0.000_001)), Ok(Some(1)));
        assert_eq!(micros(json!("none")), Ok(None));
        for wrong in [json!(0), json!(-1), json!(0.000_000_4), json!("5"), json!(true), json!(1e9)]
        {
            assert_eq!(micros(wrong.clone()), Err(AmountError), "{wrong}");
        }
        assert_eq!(default_task_limit(None).map(u64::from), Some(TASK_DEFAULT_MICROS));
        assert_eq!(default_task_limit(Some(&json!("none"))), None);
    }

    #[test]
    fn only_a_task_without_any_limit_gets_the_default() {
        let amount = |number: u64| Amount::try_from(number).ok();
        let none = Budget::default();
        assert_eq!(none.or_default_limit(amount(7)), Budget { max_cost_micros: amount(7), ..none });
        let tokens = Budget { max_tokens: amount(100), ..none };
        assert_eq!(tokens.or_default_limit(amount(7)), tokens);
        let cheap = Budget { max_cost_micros: amount(1), ..none };
        assert_eq!(cheap.or_default_limit(amount(7)), cheap);
    }
}
