use cynode_audit::{
    AgentFacts, AuditEntry, AuditRecord, BadEntry, KeyedDigest, Outcome, Phase, Verdict,
    decode_entry, encode_entry, truncate_to_micros,
};
use proptest::{option, prelude::*, sample::select};
use time::{Duration, OffsetDateTime, macros::datetime};
use uuid::Uuid;

use crate::support::{decision, denial, outcome};

fn id() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn code() -> impl Strategy<Value = String> {
    "[a-z0-9_.:-]{1,64}"
}

fn at() -> impl Strategy<Value = OffsetDateTime> {
    (0_i64..4_000_000_000_000_000)
        .prop_map(|micros| OffsetDateTime::UNIX_EPOCH + Duration::microseconds(micros))
}

fn agent() -> impl Strategy<Value = AgentFacts> {
    let whose = (option::of(id()), option::of(id()), option::of(id()));
    let work = (option::of(id()), option::of(id()), option::of("[a-z][a-z0-9-]{0,62}"));
    (id(), code(), code(), whose, work).prop_map(
        |(token, kind, role, (user, project, task), (run, job, profile))| AgentFacts {
            token,
            kind,
            role,
            user,
            project,
            task,
            run,
            job,
            profile,
        },
    )
}

prop_compose! {
    fn what()(
        call in id(),
        at in at(),
        reason in code(),
        rules in prop::collection::vec(code(), 0..17),
        shadow in prop::collection::vec(code(), 0..3),
        outcome in option::of(select(Outcome::ALL)),
        phase in select(Phase::ALL),
        decision in select(Verdict::ALL),
        agent in option::of(agent()),
    ) -> AuditEntry {
        AuditEntry { call, at, reason, rules, shadow, outcome, phase, decision, agent, ..denial(1) }
    }
}

prop_compose! {
    fn entry()(
        entry in what(),
        method in "[a-z/_]{1,40}",
        tool in option::of("[A-Za-z0-9._-]{1,128}"),
        definition in option::of(any::<[u8; 32]>()),
        server in option::of(id()),
        node in option::of(id()),
        policy in any::<[u8; 32]>(),
        trace in "[0-9a-f]{32}",
        arguments in option::of(any::<[u8; 32]>().prop_map(KeyedDigest)),
        result in option::of(any::<[u8; 32]>().prop_map(KeyedDigest)),
        sizes in any::<(u32, u32, u64)>(),
    ) -> AuditEntry {
        let (arguments_size, result_size, duration_us) = sizes;
        AuditEntry {
            method, tool, definition, server, node, policy, trace,
            arguments, arguments_size, result, result_size, duration_us,
            ..entry
        }
    }
}

proptest! {
    #[test]
    fn an_entry_is_read_back_as_it_was_written(entry in entry()) {
        prop_assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry));
    }

    #[test]
    fn two_entries_that_differ_have_different_bytes(left in entry(), right in entry()) {
        prop_assert_eq!(left == right, encode_entry(&left) == encode_entry(&right));
    }

    #[test]
    fn bytes_have_one_reading_and_an_entry_one_spelling(
        entry in entry(), place in any::<prop::sample::Index>(), flip in 1_u8..,
    ) {
        let mut bytes = encode_entry(&entry);
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        if let Ok(other) = decode_entry(&bytes) {
            prop_assert_ne!(&other, &entry);
            prop_assert_eq!(encode_entry(&other), bytes);
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = decode_entry(&bytes);
        for version in [1, 2] {
            let mut versioned = vec![version];
            versioned.extend(&bytes);
            let _ = decode_entry(&versioned);
        }
    }

    #[test]
    fn a_record_goes_through_json_unchanged(entry in entry(), seq in any::<u64>()) {
        let record =
            AuditRecord { chain: Uuid::from_u128(9), seq, entry, prev: [4; 32], hash: [5; 32] };
        let json = serde_json::to_string(&record).unwrap();
        prop_assert_eq!(serde_json::from_str::<AuditRecord>(&json).unwrap(), record);
    }
}

#[test]
fn an_entry_without_a_profile_has_the_bytes_of_the_first_version() {
    let mut entry = decision(1);
    let agent = entry.agent.as_mut().unwrap();
    let named = agent.profile.take();
    assert_eq!(encode_entry(&entry).first(), Some(&1));
    entry.agent.as_mut().unwrap().profile = named.or_else(|| Some("careful".to_owned()));
    assert_eq!(encode_entry(&entry).first(), Some(&2));
    assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry));
}

#[test]
fn an_entry_cut_short_or_followed_by_more_is_none() {
    let bytes = encode_entry(&decision(1));
    for length in 0..bytes.len() {
        assert!(decode_entry(&bytes[..length]).is_err(), "{length}");
    }
    assert!(decode_entry(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn an_entry_with_what_could_be_a_payload_is_refused() {
    let long = "a".repeat(65);
    let seventeen = vec!["rule".to_owned(); 17];
    let text = |text: &str| text.to_owned();
    for (entry, error) in [
        (AuditEntry { reason: text(""), ..decision(1) }, BadEntry::Text("reason")),
        (AuditEntry { reason: text("No Rule"), ..decision(1) }, BadEntry::Text("reason")),
        (AuditEntry { reason: long.clone(), ..decision(1) }, BadEntry::Text("reason")),
        (AuditEntry { rules: vec![long], ..decision(1) }, BadEntry::Text("rules")),
        (AuditEntry { rules: seventeen.clone(), ..decision(1) }, BadEntry::Rules("rules")),
        (AuditEntry { shadow: seventeen, ..decision(1) }, BadEntry::Rules("shadow")),
        (AuditEntry { method: text("tools/call {}"), ..decision(1) }, BadEntry::Text("method")),
        (AuditEntry { tool: Some(text("rm -rf")), ..decision(1) }, BadEntry::Text("tool")),
        (AuditEntry { tool: Some(text("lösche")), ..decision(1) }, BadEntry::Text("tool")),
        (AuditEntry { trace: text("4bf9"), ..decision(1) }, BadEntry::Text("trace")),
        (AuditEntry { outcome: None, ..outcome(1) }, BadEntry::OutcomeMissing),
        (AuditEntry { outcome: Some(Outcome::Success), ..denial(1) }, BadEntry::OutcomeOfRefused),
    ] {
        assert_eq!(entry.validate_fields(), Err(error));
    }
    let mut entry = decision(1);
    entry.agent.as_mut().unwrap().role = "Ada's helper".to_owned();
    assert_eq!(entry.validate_fields(), Err(BadEntry::Text("agent.role")));
    assert_eq!(decision(1).validate_fields(), Ok(()));
    assert_eq!(outcome(1).validate_fields(), Ok(()));
    assert_eq!(denial(1).validate_fields(), Ok(()));
}

#[test]
fn a_moment_has_whole_microseconds() {
    let at = datetime!(2026-11-15 12:00:00.123456789 UTC);
    assert_eq!(truncate_to_micros(at), datetime!(2026-11-15 12:00:00.123456 UTC));
    assert_eq!(AuditEntry { at, ..decision(1) }.validate_fields(), Err(BadEntry::Time));
}

#[test]
fn a_word_reads_back_what_it_wrote() {
    for outcome in Outcome::ALL {
        assert_eq!(outcome.as_str().parse(), Ok(*outcome));
        assert_eq!(serde_json::to_string(outcome).unwrap(), format!("\"{}\"", outcome.as_str()));
    }
}
