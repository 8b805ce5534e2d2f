//! Truncates a result so that it fits one request.

use cynode_core::nodes::CommandOutcome;

/// Maximum size, JSON-encoded, of the output of all commands of a job. The orchestrator's default request limit is 1 MiB.
const MAX_STEP_OUTPUT_BYTES: usize = 640 * 1024;

/// Truncates the output of each command to its share and keeps the tail.
pub(super) fn truncate_step_outputs(steps: &mut [CommandOutcome]) {
    let share = MAX_STEP_OUTPUT_BYTES / steps.len().max(1);
    for step in steps {
        let mut room = share;
        let mut from = step.output.len();
        for (at, one) in step.output.char_indices().rev() {
            let Some(left) = room.checked_sub(json_encoded_len(one)) else { break };
            (room, from) = (left, at);
        }
        if from > 0 {
            step.output.drain(..from);
            step.truncated = true;
        }
    }
}

/// Returns the JSON-encoded size of a character in bytes.
const fn json_encoded_len(one: char) -> usize {
    match one {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => one.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(output: String) -> CommandOutcome {
        CommandOutcome {
            argv: Vec::new(),
            exit_code: Some(0),
            output,
            expected: None,
            sha256: String::new(),
            truncated: false,
            milliseconds: 0,
            tests: None,
        }
    }

    #[test]
    fn what_many_commands_wrote_fits_into_one_request() {
        let odd: String = "\0\"é\u{fffd}\n".repeat(4000);
        let all = vec![step(odd); 40];
        let mut fitting = all.clone();
        truncate_step_outputs(&mut fitting);
        let bytes = serde_json::to_vec(&fitting).unwrap().len();
        assert!((600 * 1024..700 * 1024).contains(&bytes), "{bytes}");
        for (before, after) in all.iter().zip(&fitting) {
            assert!(before.output.ends_with(&after.output) && after.truncated);
        }
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let all = vec![step("x".repeat(32 * 1024)); 20];
        let mut fitting = all.clone();
        truncate_step_outputs(&mut fitting);
        assert_eq!(fitting, all);
    }
}
