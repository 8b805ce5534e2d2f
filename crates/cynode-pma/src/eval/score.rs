//! Scores answers: accuracy, valid schemas, cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rows::{EvalTable, RowHalf};

/// Method by which a row was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskMethod {
    /// The project manager's method: a typed answer that is validated and requested again if invalid.
    Structured,
    /// One plain sentence.
    Plain,
}

impl AskMethod {
    /// Both methods.
    pub const ALL: [Self; 2] = [Self::Structured, Self::Plain];

    /// Returns the name of the method.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Structured => "structured",
            Self::Plain => "plain",
        }
    }
}

/// Outcome of one row by one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalAnswer {
    /// Id of the row.
    pub id: String,
    /// Table of the row.
    pub table: EvalTable,
    /// Half of the row.
    pub half: RowHalf,
    /// Method by which it was asked.
    pub way: AskMethod,
    /// Correct answer.
    pub truth: String,
    /// Given answer, if one could be parsed.
    pub said: Option<String>,
    /// Number of attempts.
    pub attempts: u32,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Duration in milliseconds.
    pub latency_ms: u64,
}

/// Requirement on the results of every table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EvalRequirement {
    /// Every structured answer matches the schema in the end.
    Valid,
    /// Structured answers are correct at least as often as plain ones.
    NotWorse,
}

/// Prices of tokens, per million.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenPrices {
    /// Price of input tokens.
    pub input: f64,
    /// Price of output tokens.
    pub output: f64,
}

/// Metrics of one method over a set of rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EvalMetrics {
    /// Number of rows.
    pub asked: u32,
    /// Number of correct answers.
    pub right: u32,
    /// Number of answers that could be parsed in the end; for the structured method, that matched the schema.
    pub valid: u32,
    /// Number of answers that could be parsed at the first attempt.
    pub valid_first: u32,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Cost, if prices are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Median latency.
    pub latency_p50_ms: u64,
    /// 95th percentile of the latency.
    pub latency_p95_ms: u64,
    /// Confusion matrix: by correct answer, then by given answer; `none` if it could not be parsed.
    pub confusion: BTreeMap<String, BTreeMap<String, u32>>,
}

impl EvalMetrics {
    /// Returns the share of correct answers, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        ratio_of(self.right, self.asked)
    }

    /// Returns the share of answers that could be parsed in the end.
    pub fn validity(&self) -> f64 {
        ratio_of(self.valid, self.asked)
    }

    /// Returns the share of answers that could be parsed at the first attempt.
    pub fn first_attempt_validity(&self) -> f64 {
        ratio_of(self.valid_first, self.asked)
    }

    /// Computes the metrics of answers.
    pub fn from_answers<'a>(
        answers: impl IntoIterator<Item = &'a EvalAnswer>,
        prices: Option<TokenPrices>,
    ) -> Self {
        let mut figures = Self::default();
        let mut latencies = Vec::new();
        for answer in answers {
            figures.asked += 1;
            figures.right += u32::from(answer.said.as_deref() == Some(&*answer.truth));
            figures.valid += u32::from(answer.said.is_some());
            figures.valid_first += u32::from(answer.said.is_some() && answer.attempts == 1);
            figures.input_tokens += answer.input_tokens;
            figures.output_tokens += answer.output_tokens;
            let said = answer.said.clone().unwrap_or_else(|| "none".to_owned());
            *figures.confusion.entry(answer.truth.clone()).or_default().entry(said).or_default() +=
                1;
            latencies.push(answer.latency_ms);
        }
        latencies.sort_unstable();
        figures.latency_p50_ms = latency_quantile(&latencies, 50);
        figures.latency_p95_ms = latency_quantile(&latencies, 95);
        figures.cost = prices.map(|TokenPrices { input, output }| {
            (to_float(figures.input_tokens) * input + to_float(figures.output_tokens) * output)
                / 1e6
        });
        figures
    }
}

/// Metrics of one table by both methods.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableMetrics {
    /// The table.
    pub table: EvalTable,
    /// Metrics of all rows, by method.
    pub all: BTreeMap<AskMethod, EvalMetrics>,
    /// Metrics of the tuning half.
    pub tuning: BTreeMap<AskMethod, EvalMetrics>,
    /// Metrics of the held-out half.
    pub held_out: BTreeMap<AskMethod, EvalMetrics>,
}

/// Report of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalReport {
    /// Name of the model.
    pub model: String,
    /// Metrics per table.
    pub tables: Vec<TableMetrics>,
    /// Metrics of all tables together.
    pub total: BTreeMap<AskMethod, EvalMetrics>,
}

impl EvalReport {
    /// Computes the report from all answers of a model.
    pub fn from_answers(model: &str, answers: &[EvalAnswer], prices: Option<TokenPrices>) -> Self {
        let figures = |keep: &dyn Fn(&EvalAnswer) -> bool| {
            AskMethod::ALL
                .into_iter()
                .map(|way| {
                    (
                        way,
                        EvalMetrics::from_answers(
                            answers.iter().filter(|a| a.way == way && keep(a)),
                            prices,
                        ),
                    )
                })
                .filter(|(_, figures)| figures.asked > 0)
                .collect::<BTreeMap<_, _>>()
        };
        let tables = EvalTable::ALL
            .into_iter()
            .map(|table| TableMetrics {
                table,
                all: figures(&|a| a.table == table),
                tuning: figures(&|a| a.table == table && a.half == RowHalf::Tuning),
                held_out: figures(&|a| a.table == table && a.half == RowHalf::HeldOut),
            })
            .filter(|table| !table.all.is_empty())
            .collect();
        Self { model: model.to_owned(), tables, total: figures(&|_| true) }
    }

    /// Returns the requirements that are not met, with an explanation.
    pub fn find_shortfalls(&self) -> Vec<(EvalRequirement, String)> {
        let mut found = Vec::new();
        for TableMetrics { table, all, .. } in &self.tables {
            let name = table.as_str();
            let Some(structured) = all.get(&AskMethod::Structured) else { continue };
            if structured.valid < structured.asked {
                let (bad, asked) = (structured.asked - structured.valid, structured.asked);
                let told =
                    format!("{name}: {bad} of {asked} structured answers do not have the form");
                found.push((EvalRequirement::Valid, told));
            }
            if let Some(plain) = all.get(&AskMethod::Plain)
                && structured.accuracy() < plain.accuracy()
            {
                let (one, other) = (structured.accuracy(), plain.accuracy());
                let told = format!(
                    "{name}: structured answers are right in {one:.2}, plain ones in {other:.2}"
                );
                found.push((EvalRequirement::NotWorse, told));
            }
        }
        found
    }
}

fn ratio_of(some: u32, all: u32) -> f64 {
    if all == 0 { 0.0 } else { f64::from(some) / f64::from(all) }
}

#[expect(clippy::cast_precision_loss, reason = "money is shown with a few digits")]
fn to_float(tokens: u64) -> f64 {
    tokens as f64
}

/// Returns a percentile of a sorted list.
fn latency_quantile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(
        id: u32,
        way: AskMethod,
        truth: &str,
        said: Option<&str>,
        attempts: u32,
    ) -> EvalAnswer {
        EvalAnswer {
            id: id.to_string(),
            table: EvalTable::Failure,
            half: if id.is_multiple_of(2) { RowHalf::Tuning } else { RowHalf::HeldOut },
            way,
            truth: truth.to_owned(),
            said: said.map(str::to_owned),
            attempts,
            input_tokens: 100,
            output_tokens: 10,
            latency_ms: u64::from(id) * 10,
        }
    }

    #[test]
    fn figures_count_right_answers_forms_tokens_and_time() {
        let answers = [
            answer(1, AskMethod::Structured, "retry", Some("retry"), 1),
            answer(2, AskMethod::Structured, "retry", Some("escalate"), 2),
            answer(3, AskMethod::Structured, "escalate", Some("escalate"), 3),
            answer(4, AskMethod::Structured, "escalate", None, 3),
        ];
        let expected = EvalMetrics {
            asked: 4,
            right: 2,
            valid: 3,
            valid_first: 1,
            input_tokens: 400,
            output_tokens: 40,
            cost: Some(0.0006),
            latency_p50_ms: 20,
            latency_p95_ms: 40,
            confusion: BTreeMap::from([
                (
                    "retry".to_owned(),
                    BTreeMap::from([("retry".to_owned(), 1), ("escalate".to_owned(), 1)]),
                ),
                (
                    "escalate".to_owned(),
                    BTreeMap::from([("escalate".to_owned(), 1), ("none".to_owned(), 1)]),
                ),
            ]),
        };
        assert_eq!(
            EvalMetrics::from_answers(&answers, Some(TokenPrices { input: 1.0, output: 5.0 })),
            expected
        );
        assert_eq!(
            (expected.accuracy(), expected.validity(), expected.first_attempt_validity()),
            (0.5, 0.75, 0.25)
        );
    }

    #[test]
    fn a_report_says_where_the_structured_way_falls_short() {
        let good = [
            answer(1, AskMethod::Structured, "retry", Some("retry"), 1),
            answer(1, AskMethod::Plain, "retry", Some("retry"), 1),
        ];
        assert_eq!(EvalReport::from_answers("m", &good, None).find_shortfalls(), []);
        let bad = [
            answer(1, AskMethod::Structured, "retry", None, 3),
            answer(1, AskMethod::Plain, "retry", Some("retry"), 1),
        ];
        assert_eq!(
            EvalReport::from_answers("m", &bad, None).find_shortfalls(),
            [
                (
                    EvalRequirement::Valid,
                    "failure: 1 of 1 structured answers do not have the form".to_owned()
                ),
                (
                    EvalRequirement::NotWorse,
                    "failure: structured answers are right in 0.00, plain ones in 1.00".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn halves_are_counted_apart() {
        let answers = [
            answer(1, AskMethod::Structured, "retry", Some("retry"), 1),
            answer(2, AskMethod::Structured, "retry", Some("escalate"), 1),
        ];
        let report = EvalReport::from_answers("m", &answers, None);
        let [table] = &report.tables[..] else { panic!("one table") };
        assert_eq!(table.tuning[&AskMethod::Structured].accuracy(), 0.0);
        assert_eq!(table.held_out[&AskMethod::Structured].accuracy(), 1.0);
    }

    #[test]
    fn a_quantile_is_a_value_that_was_seen() {
        assert_eq!(
            (
                latency_quantile(&[], 50),
                latency_quantile(&[7], 95),
                latency_quantile(&[1, 2, 3, 4], 50)
            ),
            (0, 7, 2)
        );
    }
}
