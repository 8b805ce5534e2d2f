//! Any schema of a tool is compiled or refused, and any value is validated by it or refused, within a time. The
//! answer is always the same.
#![no_main]

use std::time::{Duration, Instant};

use cynode_policy::schema::ToolSchema;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

/// Longest time to compile a schema: it may have 64 patterns, each up to the largest program.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time to validate a value. The cost bound allows some 25 ms; instrumented code is slower.
const VALIDATION_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a run that takes too long is tried: others may have the processor.
const MAX_ATTEMPTS: usize = 3;

fuzz_target!(|data: &[u8]| {
    // The first line is the schema, the rest is the value.
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (schema, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or(b"{}"));
    let Ok(mut schema) = serde_json::from_slice::<Value>(schema) else { return };
    let Ok(value) = serde_json::from_slice::<Value>(value) else { return };
    if let Value::Object(keywords) = &mut schema {
        keywords.insert("type".into(), json!("object"));
    }
    let compiled = run_within(COMPILE_TIMEOUT, || ToolSchema::compile_schema(&schema));
    let Ok(compiled) = compiled else { return };
    let violation = run_within(VALIDATION_TIMEOUT, || compiled.find_violation(&value));
    assert_eq!(violation, compiled.find_violation(&value));
    let again = ToolSchema::compile_schema(&schema).unwrap();
    assert_eq!(violation.is_some(), again.find_violation(&value).is_some());
    // A larger text is never cheaper.
    let bytes = value.to_string().len();
    assert!(compiled.is_cheap_for(bytes) || !compiled.is_cheap_for(bytes.saturating_mul(2)));
});

/// Runs a function until it ends within the time.
fn run_within<T>(timeout: Duration, run: impl Fn() -> T) -> T {
    for _ in 0..MAX_ATTEMPTS {
        let started = Instant::now();
        let result = run();
        if started.elapsed() <= timeout {
            return result;
        }
    }
    panic!("it takes longer than {timeout:?}");
}
