//! Canonical encoding of an entry: the bytes that are hashed and that the file holds.

use uuid::Uuid;

use crate::{
    AgentFacts, AuditEntry, KeyedDigest, Outcome, Phase, Verdict,
    bytes::{BinaryDecoder, BinaryEncoder, MalformedBytes},
};

/// First byte of an encoded entry whose agent names no profile. A new field requires a new version. Old versions stay readable.
const FIRST_FORMAT_VERSION: u8 = 1;

/// First byte of an encoded entry whose agent names a profile.
const PROFILE_FORMAT_VERSION: u8 = 2;

/// Error: the bytes are not an encoded entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these bytes are not an entry of version {FIRST_FORMAT_VERSION} or {PROFILE_FORMAT_VERSION}"
)]
pub struct DecodeError;

impl From<MalformedBytes> for DecodeError {
    fn from(_: MalformedBytes) -> Self {
        Self
    }
}

/// Encodes an entry. Two different entries that passed [`AuditEntry::validate_fields`] have different bytes.
pub fn encode_entry(entry: &AuditEntry) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let profile = entry.agent.as_ref().and_then(|agent| agent.profile.as_deref());
    out.put_u8(match profile {
        None => FIRST_FORMAT_VERSION,
        Some(_) => PROFILE_FORMAT_VERSION,
    });
    out.put_uuid(entry.call);
    out.put_timestamp(entry.at);
    out.put_u8(entry.phase.code());
    out.put_u8(entry.decision.code());
    out.put_text(&entry.reason);
    put_list(&mut out, &entry.rules);
    put_list(&mut out, &entry.shadow);
    out.put_option(entry.outcome, |out, outcome| out.put_u8(outcome.code()));
    out.put_option(entry.agent.as_ref(), put_agent);
    out.put_text(&entry.method);
    out.put_option(entry.tool.as_deref(), BinaryEncoder::put_text);
    out.put_option(entry.definition, |out, digest| out.put_bytes(&digest));
    out.put_option(entry.server, BinaryEncoder::put_uuid);
    out.put_option(entry.node, BinaryEncoder::put_uuid);
    out.put_bytes(&entry.policy);
    out.put_bytes(&entry.catalogue);
    out.put_text(&entry.trace);
    out.put_option(entry.arguments, |out, digest| out.put_bytes(&digest.0));
    out.put_u32(entry.arguments_size);
    out.put_option(entry.result, |out, digest| out.put_bytes(&digest.0));
    out.put_u32(entry.result_size);
    out.put_u64(entry.duration_us);
    out
}

/// Decodes an entry. Accepts exactly the bytes that [`encode_entry`] writes.
pub fn decode_entry(bytes: &[u8]) -> Result<AuditEntry, DecodeError> {
    let mut from = BinaryDecoder(bytes);
    let has_profile = match from.take_u8()? {
        FIRST_FORMAT_VERSION => false,
        PROFILE_FORMAT_VERSION => true,
        _ => return Err(DecodeError),
    };
    // The order of the fields here is the order of the bytes.
    let entry = AuditEntry {
        call: from.take_uuid()?,
        at: from.take_timestamp()?,
        phase: Phase::from_code(from.take_u8()?).ok_or(DecodeError)?,
        decision: Verdict::from_code(from.take_u8()?).ok_or(DecodeError)?,
        reason: from.take_text()?,
        rules: take_list(&mut from)?,
        shadow: take_list(&mut from)?,
        outcome: from.take_option(|from| {
            from.take_u8().and_then(|c| Outcome::from_code(c).ok_or(MalformedBytes))
        })?,
        agent: from.take_option(|from| take_agent(from, has_profile))?,
        method: from.take_text()?,
        tool: from.take_option(BinaryDecoder::take_text)?,
        definition: from.take_option(BinaryDecoder::take_array)?,
        server: from.take_option(BinaryDecoder::take_uuid)?,
        node: from.take_option(BinaryDecoder::take_uuid)?,
        policy: from.take_array()?,
        catalogue: from.take_array()?,
        trace: from.take_text()?,
        arguments: from.take_option(BinaryDecoder::take_array)?.map(KeyedDigest),
        arguments_size: from.take_u32()?,
        result: from.take_option(BinaryDecoder::take_array)?.map(KeyedDigest),
        result_size: from.take_u32()?,
        duration_us: from.take_u64()?,
    };
    from.expect_end()?;
    if has_profile && entry.agent.is_none() {
        return Err(DecodeError);
    }
    Ok(entry)
}

fn put_list(out: &mut Vec<u8>, texts: &[String]) {
    out.put_length(texts.len());
    for text in texts {
        out.put_text(text);
    }
}

fn take_list(from: &mut BinaryDecoder<'_>) -> Result<Vec<String>, MalformedBytes> {
    let length = from.take_length()?;
    // The list grows with the texts that are really there. The length that is claimed may be damaged, so nothing is preallocated.
    let mut texts = Vec::new();
    for _ in 0..length {
        texts.push(from.take_text()?);
    }
    Ok(texts)
}

fn put_agent(out: &mut Vec<u8>, agent: &AgentFacts) {
    out.put_uuid(agent.token);
    out.put_text(&agent.kind);
    out.put_text(&agent.role);
    for id in [agent.user, agent.project, agent.task, agent.run, agent.job] {
        out.put_option(id, BinaryEncoder::put_uuid);
    }
    if let Some(profile) = &agent.profile {
        out.put_text(profile);
    }
}

fn take_agent(
    from: &mut BinaryDecoder<'_>,
    has_profile: bool,
) -> Result<AgentFacts, MalformedBytes> {
    let id = |from: &mut BinaryDecoder<'_>| -> Result<Option<Uuid>, MalformedBytes> {
        from.take_option(BinaryDecoder::take_uuid)
    };
    Ok(AgentFacts {
        token: from.take_uuid()?,
        kind: from.take_text()?,
        role: from.take_text()?,
        user: id(from)?,
        project: id(from)?,
        task: id(from)?,
        run: id(from)?,
        job: id(from)?,
        profile: if has_profile { Some(from.take_text()?) } else { None },
    })
}
