//! The labelled inputs and the program that asks them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser as _;
use cynode_pma::eval::{
    EvalCommand, picture,
    recording::EvalRecording,
    replay,
    rows::{self, EvalRow, EvalTable, RowHalf, RowInput},
    run,
    score::{AskMethod, EvalAnswer, EvalReport},
    think,
};
use serde_json::{Value, json};

use crate::fake::{Fake, Reply};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval")
}

fn all() -> Vec<EvalRow> {
    EvalTable::ALL.into_iter().flat_map(|table| rows::load_rows(&data(), table).unwrap()).collect()
}

fn words(row: &EvalRow) -> String {
    let text = match &row.matter {
        RowInput::Classify { input, .. } | RowInput::Scope { input, .. } => input.clone(),
        RowInput::Route { work, .. } => work.clone(),
        RowInput::Review { result, .. } => result.clone(),
        RowInput::Failure { failure, .. } => failure.clone(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn every_table_has_its_rows_and_none_of_them_twice() {
    let least = BTreeMap::from([
        (EvalTable::Classify, 70),
        (EvalTable::Scope, 60),
        (EvalTable::Route, 25),
        (EvalTable::Review, 30),
        (EvalTable::Failure, 25),
    ]);
    for (table, least) in least {
        let rows = rows::load_rows(&data(), table).unwrap();
        assert!(
            rows.len() >= least,
            "{} has {} rows, {least} are wanted",
            table.as_str(),
            rows.len()
        );
        assert!(rows.iter().all(|row| row.id.starts_with(&format!("{}-", table.as_str()))));
    }
    let rows = all();
    assert!(rows.len() >= 210);
    let ids: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
    let texts: BTreeSet<_> = rows.iter().map(words).collect();
    assert_eq!((ids.len(), texts.len()), (rows.len(), rows.len()));
}

#[test]
fn no_label_is_rare_and_every_label_is_in_both_halves() {
    for table in EvalTable::ALL {
        let rows = rows::load_rows(&data(), table).unwrap();
        let even = rows.len() / table.answer_labels().len();
        for label in table.answer_labels() {
            let of_label: Vec<&EvalRow> = rows.iter().filter(|row| row.label == *label).collect();
            let share = of_label.len() * 100 / even;
            assert!((80..=125).contains(&share), "{label}: {} of {}", of_label.len(), rows.len());
            let halves: BTreeSet<RowHalf> = of_label.iter().map(|row| row.row_half()).collect();
            assert_eq!(halves, BTreeSet::from([RowHalf::Tuning, RowHalf::HeldOut]), "{label}");
        }
    }
}

#[test]
fn the_halves_are_of_like_size_and_some_rows_are_hostile_or_not_in_english() {
    for table in EvalTable::ALL {
        let rows = rows::load_rows(&data(), table).unwrap();
        let tuning = rows.iter().filter(|row| row.row_half() == RowHalf::Tuning).count();
        assert!((35..=65).contains(&(tuning * 100 / rows.len())), "{}: {tuning}", table.as_str());
    }
    let rows = all();
    let tagged = |tag: &str| rows.iter().filter(|row| row.tag.as_deref() == Some(tag)).count();
    assert!(tagged("hostile") >= 6 && tagged("ambiguous") >= 6);
    let languages: BTreeSet<_> = rows.iter().filter_map(|row| row.lang.as_deref()).collect();
    assert!(languages.len() >= 4, "{languages:?}");
}

#[test]
fn a_row_of_another_form_is_refused_with_its_line() {
    let wrong = |text: &str| rows::parse_rows(EvalTable::Classify, text).unwrap_err().to_string();
    let good = r#"{"id": "classify-001", "input": "x", "class": "quick_fix"}"#;
    assert_eq!(rows::parse_rows(EvalTable::Classify, good).unwrap().len(), 1);
    assert_eq!(
        wrong(&format!("{good}\n{good}")),
        "classify.jsonl, line 2: `classify-001` is there twice"
    );
    assert!(
        wrong(r#"{"id": "a", "input": "x", "class": "large"}"#).contains("unknown variant `large`")
    );
    assert!(
        wrong(r#"{"id": "a", "input": "x", "class": "quick_fix", "hint": 1}"#)
            .contains("unknown field")
    );
    assert!(wrong(r#"{"input": "x", "class": "quick_fix"}"#).ends_with("a row has an `id`"));
    assert!(
        wrong(r#"{"id": "a", "input": "x", "class": "quick_fix", "tag": "hostile"}"#)
            .ends_with("go together")
    );
    assert!(wrong("no JSON").contains("line 1"));
}

/// The arguments of the program.
#[derive(clap::Parser)]
struct Program {
    #[command(subcommand)]
    eval: EvalCommand,
}

async fn eval(arguments: &[&str]) -> String {
    let program = Program::try_parse_from([&["eval"], arguments].concat()).unwrap();
    match program.eval.run_command().await {
        Ok(code) if format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS) => "good".to_owned(),
        Ok(_) => "fell short".to_owned(),
        Err(error) => format!("{error:#}"),
    }
}

/// Four rows about failures, and a model that answers them.
struct World {
    model: Fake,
    folder: tempfile::TempDir,
}

impl World {
    /// The answers, in the order in which they are asked for: all of the structured way, then all plain ones.
    async fn with(answers: &[&str]) -> Self {
        let model = Fake::start().await;
        for answer in answers {
            model.reply("model", Reply::Text((*answer).to_owned()));
        }
        let folder = tempfile::tempdir().unwrap();
        let row = |id: &str, decision: &str| {
            let row = json!({"id": id, "title": "T", "attempt": 1, "attempts_left": 2, "failure": id, "decision": decision});
            format!("{row}\n")
        };
        let rows = row("failure-001", "retry") + &row("failure-002", "escalate");
        std::fs::write(folder.path().join("failure.jsonl"), rows).unwrap();
        Self { model, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    async fn run(&self, more: &[&str]) -> String {
        let instructions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../instructions");
        let (data, record) = (self.path(""), self.path("recording"));
        let mut arguments =
            vec!["run", "--url", &self.model.base, "--model", "m", "--tables", "failure"];
        arguments.extend(["--data", &data, "--instructions", instructions, "--record", &record]);
        eval(&[&arguments, more].concat()).await
    }

    async fn replay(&self, more: &[&str]) -> String {
        eval(&[&["replay", "--recording", &self.path("recording")], more].concat()).await
    }

    fn recording(&self) -> EvalRecording {
        EvalRecording::load_recording(Path::new(&self.path("recording"))).unwrap()
    }
}

const RETRY: &str = r#"{"reason": "r", "note": "n", "decision": "retry"}"#;
const ESCALATE: &str = r#"{"reason": "r", "note": "n", "decision": "escalate"}"#;

#[tokio::test]
async fn every_row_is_asked_with_a_form_and_plainly_and_the_answers_are_kept() {
    let world = World::with(&["I would retry.", RETRY, ESCALATE, "Escalate it.", "No idea."]).await;
    assert_eq!(world.run(&["--require", "valid,not-worse"]).await, "good");

    let questions: Vec<Value> = world.model.seen().into_iter().map(|seen| seen.body).collect();
    let forms: Vec<bool> =
        questions.iter().map(|question| question.get("response_format").is_some()).collect();
    assert_eq!(forms, [true, true, true, false, false]);
    let again = questions[1]["messages"][1]["content"].as_str().unwrap();
    assert!(again.contains("An answer to this was not taken: it is not JSON"));

    let calls = world.recording().calls;
    let kept: Vec<_> = calls
        .iter()
        .map(|call| {
            let outcome = &call.outcome;
            (
                &*outcome.id,
                outcome.way,
                outcome.said.as_deref(),
                outcome.attempts,
                call.answers.len(),
            )
        })
        .collect();
    assert_eq!(
        kept,
        [
            ("failure-001", AskMethod::Structured, Some("retry"), 2, 2),
            ("failure-002", AskMethod::Structured, Some("escalate"), 1, 1),
            ("failure-001", AskMethod::Plain, Some("escalate"), 1, 1),
            ("failure-002", AskMethod::Plain, None, 1, 1),
        ]
    );
    assert_eq!(world.replay(&["--require", "valid,not-worse"]).await, "good");
}

#[tokio::test]
async fn a_recording_that_decides_otherwise_now_is_an_error() {
    let world = World::with(&[RETRY, ESCALATE, "retry", "escalate"]).await;
    assert_eq!(world.run(&[]).await, "good");
    let file = world.path("recording/calls.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    for (from, to, what) in [
        (r#"\"n\", \"decision\": \"retry\""#, r#"\"n\", \"decision\": \"escalate\""#, "decided"),
        (r#"\"n\", \"decision\": \"retry\""#, r#"\"n\", \"decision\": \"give_up\""#, "decided"),
        (r#""],"decision""#, r#"","more"],"decision""#, "answer 1 of 2 is taken now"),
        ("A unit of work", "Some unit of work", "another question"),
    ] {
        assert!(text.contains(from), "{text}");
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let recording = world.recording();
        let found = replay::find_differences(&recording).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("failure-001, structured: ") && found[0].contains(what),
            "{found:?}"
        );
        assert_eq!(world.replay(&[]).await, "1 of 4 decisions are not the same");
    }
}

#[tokio::test]
async fn an_evaluation_that_falls_short_fails_only_where_more_is_required() {
    let bad = ["no", "no", "no", ESCALATE, "retry", "escalate"];
    let world = World::with(&bad).await;
    assert_eq!(world.run(&["--require", "valid,not-worse"]).await, "fell short");
    let world = World::with(&bad).await;
    let out = world.path("out");
    assert_eq!(world.run(&["--out", &out]).await, "good");
    let report: Value =
        serde_json::from_slice(&std::fs::read(format!("{out}/report.json")).unwrap()).unwrap();
    let figures = &report["tables"][0]["all"];
    assert_eq!(
        (&figures["structured"]["valid"], &figures["plain"]["right"]),
        (&json!(1), &json!(2))
    );
    assert!(
        std::fs::read_to_string(format!("{out}/report.txt"))
            .unwrap()
            .contains("failure   structured")
    );
    assert!(std::fs::read_to_string(format!("{out}/report.svg")).unwrap().starts_with("<svg"));
}

#[tokio::test]
async fn a_server_that_refuses_stops_the_evaluation_with_its_words() {
    let world = World::with(&[]).await;
    let refused = json!({"error": {"code": "invalid_api_key", "message": "who are you?"}});
    world.model.reply("model", Reply::Status(403, refused));
    assert_eq!(world.run(&[]).await, "failure-001, structured: who are you?");
}

#[test]
fn no_labelled_input_is_given_away_in_a_question_about_another() {
    for table in EvalTable::ALL {
        let rows = rows::load_rows(&data(), table).unwrap();
        let [first, rest @ ..] = &rows[..] else { panic!("{table} is empty") };
        let question = think::structured_question(first).to_lowercase();
        let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(question.contains(&words(first)), "{question}");
        for row in rest {
            assert!(!question.contains(&words(row)), "{}", row.id);
        }
    }
}

#[test]
fn a_limit_takes_as_many_of_each_label_and_a_seed_says_which() {
    let rows = rows::load_rows(&data(), EvalTable::Scope).unwrap();
    let chosen = |seed| run::sample_rows(rows.clone(), Some(8), seed);
    let of_label =
        |rows: &[EvalRow], label: &str| rows.iter().filter(|row| row.label == label).count();
    for seed in [None, Some(1), Some(2)] {
        let rows = chosen(seed);
        assert!(
            EvalTable::Scope.answer_labels().iter().all(|label| of_label(&rows, label) == 2),
            "{seed:?}"
        );
    }
    assert_eq!(chosen(Some(1)), chosen(Some(1)));
    assert_ne!(chosen(Some(1)), chosen(Some(2)));
    assert_eq!(run::sample_rows(rows.clone(), None, None), rows);
}

#[test]
fn a_picture_shows_names_as_text_whatever_they_are() {
    let answer = |way, said: &str| EvalAnswer {
        id: "failure-001".into(),
        table: EvalTable::Failure,
        half: RowHalf::Tuning,
        way,
        truth: "retry".into(),
        said: Some(said.to_owned()),
        attempts: 1,
        input_tokens: 1,
        output_tokens: 1,
        latency_ms: 1,
    };
    let answers = [answer(AskMethod::Structured, "retry"), answer(AskMethod::Plain, "escalate")];
    let drawn =
        picture::render_svg(&EvalReport::from_answers("<script>&\"", &answers, None)).unwrap();
    assert!(!drawn.contains("<script>") && drawn.contains("&lt;script&gt;&amp;"));
    assert!(
        drawn.contains("100.0 %")
            && drawn.contains("0.0 %")
            && drawn.trim_end().ends_with("</svg>")
    );
}
