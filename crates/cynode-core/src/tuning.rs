//! Bounded numbers that people tune, with the limits of the planning protocol.
//!
//! A bad value never stops the system: it is clamped or replaced by the default, and the caller gets a [`TuningNote`]
//! to show as a warning.

use std::fmt;

/// A number with bounds and a default, known under one name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedNumber<T> {
    /// The name people write, `PLANNER_MAX_STEPS`.
    pub name: &'static str,
    /// Smallest value.
    pub min: T,
    /// Largest value.
    pub max: T,
    /// The value when nothing usable was given.
    pub default: T,
}

/// What was done to a value that could not be taken as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningNote(String);

impl TuningNote {
    /// Says what was done to a value.
    pub(crate) const fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for TuningNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How many steps a plan may have.
pub const PLANNER_MAX_STEPS: BoundedNumber<i64> =
    BoundedNumber { name: "PLANNER_MAX_STEPS", min: 1, max: 50, default: 20 };

/// How freely a model may choose its words.
pub const MODEL_TEMPERATURE: BoundedNumber<f64> =
    BoundedNumber { name: "MODEL_TEMPERATURE", min: 0.0, max: 2.0, default: 0.2 };

impl<T: Copy + PartialOrd + fmt::Display> BoundedNumber<T> {
    /// Brings `given` inside the bounds; what cannot be compared (NaN) becomes the default.
    pub fn clamp_value(&self, given: T) -> (T, Option<TuningNote>) {
        let taken = if given >= self.min && given <= self.max {
            return (given, None);
        } else if given < self.min {
            self.min
        } else if given > self.max {
            self.max
        } else {
            self.default
        };
        let Self { name, min, max, .. } = self;
        let note = format!("{name} is {given}, which is outside {min} to {max}: using {taken}");
        (taken, Some(TuningNote(note)))
    }

    /// The default, because `given` cannot be read at all.
    pub fn default_for_unreadable(&self, given: &str) -> (T, Option<TuningNote>) {
        // The text may be anything, a pasted secret too: say how long it was, not what it was.
        let note = format!(
            "{} is not a number ({} characters): using {}",
            self.name,
            given.chars().count(),
            self.default
        );
        (self.default, Some(TuningNote(note)))
    }
}

impl BoundedNumber<i64> {
    /// Reads a text of any kind; it cannot fail.
    pub fn parse_clamped(&self, text: &str) -> (i64, Option<TuningNote>) {
        let text = text.trim();
        match text.parse::<i128>() {
            Ok(wide) => match i64::try_from(wide) {
                Ok(value) => self.clamp_value(value),
                Err(_) => self.clamp_value(if wide < 0 { i64::MIN } else { i64::MAX }),
            },
            Err(_) => self.default_for_unreadable(text),
        }
    }
}

impl BoundedNumber<f64> {
    /// Reads a text of any kind; it cannot fail.
    pub fn parse_clamped(&self, text: &str) -> (f64, Option<TuningNote>) {
        let text = text.trim();
        text.parse::<f64>()
            .map_or_else(|_| self.default_for_unreadable(text), |value| self.clamp_value(value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_inside_the_bounds_is_taken_in_silence() {
        assert_eq!(PLANNER_MAX_STEPS.parse_clamped(" 7 "), (7, None));
        assert_eq!(MODEL_TEMPERATURE.parse_clamped("1.5"), (1.5, None));
    }

    #[test]
    fn a_value_outside_the_bounds_is_clamped_and_said() {
        let (steps, note) = PLANNER_MAX_STEPS.parse_clamped("0");
        assert_eq!(steps, 1, "S001-62");
        assert_eq!(
            note.unwrap().to_string(),
            "PLANNER_MAX_STEPS is 0, which is outside 1 to 50: using 1"
        );
        let steps = |text: &str| PLANNER_MAX_STEPS.parse_clamped(text).0;
        assert_eq!(steps("99999999999999999999999"), 50, "S001-61, S001-62");
        assert_eq!(steps("-99999999999999999999999"), 1, "S001-61, S001-62");
        let temperature = |text: &str| MODEL_TEMPERATURE.parse_clamped(text).0;
        assert_eq!(temperature("inf"), 2.0, "S001-61, S001-63");
        assert_eq!(temperature("-0.1"), 0.0, "S001-63");
    }

    #[test]
    fn what_is_no_number_becomes_the_default_and_is_not_repeated() {
        for text in ["", "abc", "NaN", "0x10", "1e999999x", "hunter2"] {
            let (value, note) = MODEL_TEMPERATURE.parse_clamped(text);
            assert_eq!(value, MODEL_TEMPERATURE.default, "S001-61, S001-64, B001-27: {text}");
            let note =
                note.expect("S001-64: a value that is no number gives a warning").to_string();
            assert!(!note.contains("hunter2"), "{note}");
        }
        assert_eq!(PLANNER_MAX_STEPS.parse_clamped("").0, PLANNER_MAX_STEPS.default, "S001-61");
    }

    proptest! {
        #[test]
        fn any_text_gives_a_value_inside_the_bounds(text in ".{0,40}|-?[0-9]{1,40}(\\.[0-9]{0,9})?") {
            let (steps, _) = PLANNER_MAX_STEPS.parse_clamped(&text);
            prop_assert!((1..=50).contains(&steps), "S001-29, S001-61: {}", steps);
            let (temperature, _) = MODEL_TEMPERATURE.parse_clamped(&text);
            prop_assert!((0.0..=2.0).contains(&temperature), "S001-30, S001-61: {}", temperature);
        }
    }
}
