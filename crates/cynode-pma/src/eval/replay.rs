//! Replays a recording without a model: the same answers must give the same decisions.

use super::{
    plain,
    recording::{EvalRecording, RecordedCall},
    score::AskMethod,
    think::{self, RecordedBackend},
};
use crate::llm;

/// Returns every difference between the recorded decisions and those that the same answers give now. There must be none.
pub async fn find_differences(recording: &EvalRecording) -> Vec<String> {
    let mut found = Vec::new();
    for call in &recording.calls {
        let difference = match call.outcome.way {
            AskMethod::Structured => replay_structured(recording, call).await,
            AskMethod::Plain => replay_plain(call),
        };
        let named = |what| format!("{}, {}: {what}", call.outcome.id, call.outcome.way.as_str());
        found.extend(difference.err().map(named));
    }
    found
}

async fn replay_structured(recording: &EvalRecording, call: &RecordedCall) -> Result<(), String> {
    let table = call.outcome.table;
    let system = call.system.as_deref().and_then(|digest| recording.text_of_digest(digest));
    let system = system.ok_or("its system message is not in the recording")?;
    let brain = RecordedBackend::new(&call.answers);
    let decision = think::decide_row(&brain, table, system, &call.user).await.ok();
    let (ask, heard) = brain.take_request().ok_or("its form cannot be asked for")?;
    if call.digest.as_deref() != Some(&llm::request_digest(&ask)) {
        return Err("it is another question now: its words or its form have changed".into());
    }
    if decision != call.decision {
        return Err(format!(
            "decided {}, and now {}",
            render_decision(call.decision.as_ref()),
            render_decision(decision.as_ref())
        ));
    }
    if heard != call.answers.len() {
        return Err(format!("answer {heard} of {} is taken now", call.answers.len()));
    }
    compare_label(
        call,
        decision.and_then(|decision| think::label_of_decision(table, &decision)).as_deref(),
    )
}

fn replay_plain(call: &RecordedCall) -> Result<(), String> {
    let answer = call.answers.first().ok_or("it has no answer")?;
    compare_label(call, plain::parse_label(call.outcome.table, answer))
}

fn compare_label(call: &RecordedCall, said: Option<&str>) -> Result<(), String> {
    if said == call.outcome.said.as_deref() {
        return Ok(());
    }
    Err(format!("read as {:?}, and now as {said:?}", call.outcome.said))
}

fn render_decision(decision: Option<&serde_json::Value>) -> String {
    decision.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}
