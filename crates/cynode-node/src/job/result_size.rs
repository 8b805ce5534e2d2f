//! Truncates a result so that it fits one request.

use cynode_core::{
    evidence::test_results::{TestReport, TestStatus},
    nodes::CommandOutcome,
};

/// Maximum size, JSON-encoded, of the output of all commands of a job. The orchestrator's default request limit is 1 MiB.
const MAX_STEP_OUTPUT_BYTES: usize = 640 * 1024;

/// Maximum size, JSON-encoded, of the results per test of all commands of a job.
const MAX_TEST_REPORT_BYTES: usize = 256 * 1024;

/// Truncates the output of each command to its share and keeps the tail. Truncates its results per test to their share, too.
pub(super) fn truncate_step_outputs(steps: &mut [CommandOutcome]) {
    let reports = steps.iter().filter(|step| step.tests.is_some()).count();
    for report in steps.iter_mut().filter_map(|step| step.tests.as_mut()) {
        truncate_report(report, MAX_TEST_REPORT_BYTES / reports.max(1));
    }
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

/// Removes names from a report until it fits: first of passed tests, then of skipped ones, then of failed ones. They stay counted.
fn truncate_report(report: &mut TestReport, share: usize) {
    const ENTRY_BYTES: usize = "\"\":\"skipped\",".len();
    let encoded = |name: &str| name.chars().map(json_encoded_len).sum::<usize>() + ENTRY_BYTES;
    let mut bytes: usize = report.tests.keys().map(|name| encoded(name)).sum();
    for status in [TestStatus::Passed, TestStatus::Skipped, TestStatus::Failed] {
        if bytes <= share {
            return;
        }
        let unlisted = &mut report.unlisted;
        report.tests.retain(|name, known| {
            // Half a list of passed tests would look as if the others had vanished.
            if *known != status || (status == TestStatus::Failed && bytes <= share) {
                return true;
            }
            bytes -= encoded(name);
            unlisted.add_result(status);
            false
        });
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
    use cynode_core::environments::TestReportFormat;

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
    fn names_of_passed_tests_go_first_when_a_report_is_too_large() {
        let mut report = TestReport::new(TestReportFormat::Tap);
        for at in 0..10_000 {
            report.record_result(&format!("a test of some length {at}"), TestStatus::Passed);
        }
        report.record_result("bad", TestStatus::Failed);
        let counts = report.counts();
        let small = TestReport::new(TestReportFormat::Pytest);
        let mut steps = vec![step(String::new()), step(String::new()), step(String::new())];
        steps[0].tests = Some(report);
        steps[2].tests = Some(small.clone());
        truncate_step_outputs(&mut steps);
        let report = steps[0].tests.clone().unwrap();
        let names: Vec<&str> = report.tests.keys().map(String::as_str).collect();
        assert_eq!((names, report.counts(), report.incomplete), (vec!["bad"], counts, false));
        assert_eq!((&steps[1].tests, &steps[2].tests), (&None, &Some(small)));
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let all = vec![step("x".repeat(32 * 1024)); 20];
        let mut fitting = all.clone();
        truncate_step_outputs(&mut fitting);
        assert_eq!(fitting, all);
    }
}
