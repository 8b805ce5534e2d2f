//! Goes through a recording again, without a model: the same answers must give the same decisions.

use super::{
    plain,
    recording::{Call, Recording},
    score::Way,
    think::{self, Rehearing},
};
use crate::brain;

/// Every difference between what was decided and what the same answers decide now, in words. None is the promise.
pub async fn differences(recording: &Recording) -> Vec<String> {
    let mut found = Vec::new();
    for call in &recording.calls {
        let difference = match call.outcome.way {
            Way::Structured => structured(recording, call).await,
            Way::Plain => plain(call),
        };
        let named = |what| format!("{}, {}: {what}", call.outcome.id, call.outcome.way.as_str());
        found.extend(difference.err().map(named));
    }
    found
}

async fn structured(recording: &Recording, call: &Call) -> Result<(), String> {
    let table = call.outcome.table;
    let system = call.system.as_deref().and_then(|digest| recording.text(digest));
    let system = system.ok_or("its system message is not in the recording")?;
    let brain = Rehearing::new(&call.answers);
    let decision = think::decide(&brain, table, system, &call.user).await.ok();
    let (ask, heard) = brain.taken().ok_or("its form cannot be asked for")?;
    if call.digest.as_deref() != Some(&brain::digest(&ask)) {
        return Err("it is another question now: its words or its form have changed".into());
    }
    if decision != call.decision {
        return Err(format!(
            "decided {}, and now {}",
            shown(call.decision.as_ref()),
            shown(decision.as_ref())
        ));
    }
    if heard != call.answers.len() {
        return Err(format!("answer {heard} of {} is taken now", call.answers.len()));
    }
    same(call, decision.and_then(|decision| think::label(table, &decision)).as_deref())
}

fn plain(call: &Call) -> Result<(), String> {
    let answer = call.answers.first().ok_or("it has no answer")?;
    same(call, plain::read(call.outcome.table, answer))
}

fn same(call: &Call, said: Option<&str>) -> Result<(), String> {
    if said == call.outcome.said.as_deref() {
        return Ok(());
    }
    Err(format!("read as {:?}, and now as {said:?}", call.outcome.said))
}

fn shown(decision: Option<&serde_json::Value>) -> String {
    decision.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}
