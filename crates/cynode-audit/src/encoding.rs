//! The one byte string an entry has: what is hashed, and what the file holds.

use uuid::Uuid;

use crate::{
    AgentFacts, Digest, Entry, Outcome, Phase, Verdict,
    bytes::{Malformed, Put, Take},
};

/// The first byte of every encoded entry. A new field means a new version; old ones stay readable.
const VERSION: u8 = 1;

/// Why bytes are not an encoded entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not an entry of version {VERSION}")]
pub struct DecodeError;

impl From<Malformed> for DecodeError {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// The bytes of an entry. Two entries that passed [`Entry::check`] and differ have different bytes.
pub fn encode(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.byte(VERSION);
    out.uuid(entry.call);
    out.time(entry.at);
    out.byte(entry.phase.code());
    out.byte(entry.decision.code());
    out.text(&entry.reason);
    put_list(&mut out, &entry.rules);
    put_list(&mut out, &entry.shadow);
    out.option(entry.outcome, |out, outcome| out.byte(outcome.code()));
    out.option(entry.agent.as_ref(), put_agent);
    out.text(&entry.method);
    out.option(entry.tool.as_deref(), Put::text);
    out.option(entry.definition, |out, digest| out.bytes(&digest));
    out.option(entry.server, Put::uuid);
    out.option(entry.node, Put::uuid);
    out.bytes(&entry.policy);
    out.bytes(&entry.catalogue);
    out.text(&entry.trace);
    out.option(entry.arguments, |out, digest| out.bytes(&digest.0));
    out.u32(entry.arguments_size);
    out.option(entry.result, |out, digest| out.bytes(&digest.0));
    out.u32(entry.result_size);
    out.u64(entry.duration_us);
    out
}

/// The entry these bytes are of; exactly what [`encode`] writes is accepted.
pub fn decode(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let mut from = Take(bytes);
    if from.byte()? != VERSION {
        return Err(DecodeError);
    }
    // The order of the fields here is the order of the bytes.
    let entry = Entry {
        call: from.uuid()?,
        at: from.time()?,
        phase: Phase::from_code(from.byte()?).ok_or(DecodeError)?,
        decision: Verdict::from_code(from.byte()?).ok_or(DecodeError)?,
        reason: from.text()?,
        rules: take_list(&mut from)?,
        shadow: take_list(&mut from)?,
        outcome: from
            .option(|from| from.byte().and_then(|c| Outcome::from_code(c).ok_or(Malformed)))?,
        agent: from.option(take_agent)?,
        method: from.text()?,
        tool: from.option(Take::text)?,
        definition: from.option(Take::array)?,
        server: from.option(Take::uuid)?,
        node: from.option(Take::uuid)?,
        policy: from.array()?,
        catalogue: from.array()?,
        trace: from.text()?,
        arguments: from.option(Take::array)?.map(Digest),
        arguments_size: from.u32()?,
        result: from.option(Take::array)?.map(Digest),
        result_size: from.u32()?,
        duration_us: from.u64()?,
    };
    from.end()?;
    Ok(entry)
}

fn put_list(out: &mut Vec<u8>, texts: &[String]) {
    out.length(texts.len());
    for text in texts {
        out.text(text);
    }
}

fn take_list(from: &mut Take<'_>) -> Result<Vec<String>, Malformed> {
    let length = from.length()?;
    // Grows with what is really there, never with what a damaged length claims.
    let mut texts = Vec::new();
    for _ in 0..length {
        texts.push(from.text()?);
    }
    Ok(texts)
}

fn put_agent(out: &mut Vec<u8>, agent: &AgentFacts) {
    out.uuid(agent.token);
    out.text(&agent.kind);
    out.text(&agent.role);
    for id in [agent.user, agent.project, agent.task, agent.run, agent.job] {
        out.option(id, Put::uuid);
    }
}

fn take_agent(from: &mut Take<'_>) -> Result<AgentFacts, Malformed> {
    let id = |from: &mut Take<'_>| -> Result<Option<Uuid>, Malformed> { from.option(Take::uuid) };
    Ok(AgentFacts {
        token: from.uuid()?,
        kind: from.text()?,
        role: from.text()?,
        user: id(from)?,
        project: id(from)?,
        task: id(from)?,
        run: id(from)?,
        job: id(from)?,
    })
}
