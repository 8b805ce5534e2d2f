use cynode_core::evidence::test_results::{MAX_REPORTED_TESTS, MAX_TEST_NAME_BYTES, TestCounts};

use super::*;

const PASSED: TestStatus = TestStatus::Passed;
const FAILED: TestStatus = TestStatus::Failed;
const SKIPPED: TestStatus = TestStatus::Skipped;

fn report(format: TestReportFormat, tests: &[(&str, TestStatus)]) -> TestReport {
    let tests = tests.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect();
    TestReport { tests, ..TestReport::new(format) }
}

fn read(output: &str) -> Option<TestReport> {
    let mut reader = ReportReader::new(None);
    reader.push(output.as_bytes());
    reader.finish()
}

#[test]
fn pytest_is_read_from_its_summary() {
    let output = "\
============================= test session starts ==============================
collected 9 items

test_a.py .FsxX                                                          [100%]

==================================== PASSES ====================================
PASSED this::is_what_a_test_wrote
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_p[one two]
PASSED tests/test_a.py::test_p[[x]]
SKIPPED [1] tests/test_a.py:4: not here
XFAIL tests/test_a.py::test_expected - a reason
XPASS tests/test_a.py::test_surprise
ERROR tests/test_a.py::test_fixture - ValueError: x
FAILED tests/test_a.py::test_bad - AssertionError: a - b
FAILED tests/test_a.py::test_p[a - b] - AssertionError: assert 'a - b'
==== 2 failed, 3 passed, 1 skipped, 1 xfailed, 1 xpassed, 2 warnings, 1 error in 0.05s (0:00:01) =====
";
    let expected = TestReport {
        unlisted: TestCounts { skipped: 1, ..TestCounts::default() },
        ..report(
            TestReportFormat::Pytest,
            &[
                ("tests/test_a.py::test_one", PASSED),
                ("tests/test_a.py::test_p[one two]", PASSED),
                ("tests/test_a.py::test_p[[x]]", PASSED),
                ("tests/test_a.py::test_expected", SKIPPED),
                ("tests/test_a.py::test_surprise", PASSED),
                ("tests/test_a.py::test_fixture", FAILED),
                ("tests/test_a.py::test_bad", FAILED),
                ("tests/test_a.py::test_p[a - b]", FAILED),
            ],
        )
    };
    assert_eq!(read(output), Some(expected));
}

#[test]
fn pytest_is_read_from_verbose_lines_and_a_broken_file_leaves_it_incomplete() {
    let output = "\
============================= test session starts ==============================
test_a.py::test_one PASSED                                               [  8%]
test_a.py::test_p[a PASSED b] FAILED                                     [ 16%]
test_a.py::test_skip SKIPPED (no)                                        [ 25%]
[gw0] [ 50%] PASSED test_a.py::test_far
=========================== short test summary info ============================
FAILED test_a.py::test_p[a PASSED b] - assert 0
ERROR test_b.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=========== 1 failed, 2 passed, 1 skipped, 1 error in 0.26s ============
";
    let expected = TestReport {
        incomplete: true,
        ..report(
            TestReportFormat::Pytest,
            &[
                ("test_a.py::test_one", PASSED),
                ("test_a.py::test_p[a PASSED b]", FAILED),
                ("test_a.py::test_skip", SKIPPED),
                ("test_a.py::test_far", PASSED),
                ("test_b.py", FAILED),
            ],
        )
    };
    assert_eq!(read(output), Some(expected));
}

#[test]
fn a_quiet_pytest_is_counted_where_it_names_nothing() {
    let output = "..F                                     [100%]\n\
        =========================== short test summary info ============================\n\
        FAILED test_a.py::test_bad - assert 0\n1 failed, 2 passed in 0.03s\n";
    let expected = TestReport {
        unlisted: TestCounts { passed: 2, ..TestCounts::default() },
        ..report(TestReportFormat::Pytest, &[("test_a.py::test_bad", FAILED)])
    };
    assert_eq!(read(output), Some(expected));
    let cut = "============================= test session starts ==============================\n\
        test_a.py::test_one PASSED [ 8%]\n";
    let expected = TestReport {
        incomplete: true,
        ..report(TestReportFormat::Pytest, &[("test_a.py::test_one", PASSED)])
    };
    assert_eq!(read(cut), Some(expected));
}

const CARGO_STDERR: &str = "    Finished `test` profile\n     Running unittests src/lib.rs (target/debug/deps/nom-0123456789abcdef)\n     \
    Running tests/issues.rs (target/debug/deps/issues-0123456789abcdef)\n   Doc-tests nom\n";

const CARGO_STDOUT: &str = "
running 3 tests
test bits::shifts ... ok
test bits::panics - should panic ... ok
test slow ... ignored, takes long

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s


running 2 tests
test issue_1 ... FAILED
test issue_2 ... ok

failures:

---- issue_1 stdout ----
test that ... ok

failures:
    issue_1

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s


running 2 tests
test src/lib.rs - many0 (line 12) ... ok
test src/lib.rs - many0 (line 20) - compile ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s

";

#[test]
fn cargo_tests_are_named_by_their_binary_in_whatever_order_the_streams_come() {
    let stderr = format!(
        "{CARGO_STDERR}error: test failed, to rerun pass `--test issues`\nerror: 1 target failed:\n    `--test issues`\n"
    );
    let expected = report(
        TestReportFormat::Cargo,
        &[
            ("nom::bits::shifts", PASSED),
            ("nom::bits::panics", PASSED),
            ("nom::slow", SKIPPED),
            ("issues::issue_1", FAILED),
            ("issues::issue_2", PASSED),
            ("nom::src/lib.rs - many0", PASSED),
            ("nom::src/lib.rs - many0 #2", PASSED),
        ],
    );
    for stderr_first in [true, false] {
        let mut reader = ReportReader::new(None);
        if stderr_first {
            reader.push_stderr(stderr.as_bytes());
            reader.push(CARGO_STDOUT.as_bytes());
        } else {
            reader.push(CARGO_STDOUT.as_bytes());
            reader.push_stderr(stderr.as_bytes());
        }
        assert_eq!(reader.finish().as_ref(), Some(&expected), "{stderr_first}");
    }
}

#[test]
fn cargo_that_stops_at_the_first_failure_or_breaks_off_is_incomplete() {
    let mut reader = ReportReader::new(None);
    reader.push(b"running 1 test\ntest a ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n");
    reader.push_stderr(b"error: test failed, to rerun pass `--lib`\n");
    let expected =
        TestReport { incomplete: true, ..report(TestReportFormat::Cargo, &[("a", FAILED)]) };
    assert_eq!(reader.finish(), Some(expected));
    let aborted = read("running 2 tests\ntest a ... ok\n");
    let expected =
        TestReport { incomplete: true, ..report(TestReportFormat::Cargo, &[("a", PASSED)]) };
    assert_eq!(aborted, Some(expected));
    assert_eq!(read("error[E0308]: mismatched types\nerror: could not compile `a`\n"), None);
    let quiet = "running 3 tests\n.F.\nfailures:\n\n---- a::bad stdout ----\nit panicked\n\n\
        test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let expected = TestReport {
        unlisted: TestCounts { passed: 2, ..TestCounts::default() },
        ..report(TestReportFormat::Cargo, &[("a::bad", FAILED)])
    };
    assert_eq!(read(quiet), Some(expected));
}

#[test]
fn nextest_is_read_and_its_last_try_counts() {
    let output = "    Starting 4 tests across 2 binaries\n        \
        PASS [   0.004s] (1/4) nom bits::shifts\n  \
        TRY 1 FAIL [   0.004s] nom::issues shaky\n  \
        TRY 2 PASS [   0.004s] nom::issues shaky\n     \
        SIGABRT [   0.004s] nom::issues crashes\n        \
        FAIL [   0.004s] nom::issues issue_1\n     \
        Summary [   0.010s] 4 tests run: 2 passed (1 flaky), 2 failed, 3 skipped\n        \
        FAIL [   0.004s] nom::issues issue_1\n";
    let expected = TestReport {
        unlisted: TestCounts { skipped: 3, ..TestCounts::default() },
        ..report(
            TestReportFormat::Nextest,
            &[
                ("nom bits::shifts", PASSED),
                ("nom::issues shaky", PASSED),
                ("nom::issues crashes", FAILED),
                ("nom::issues issue_1", FAILED),
            ],
        )
    };
    assert_eq!(read(output), Some(expected));
}

#[test]
fn assertions_of_tape_are_named_by_their_test() {
    let output = "TAP version 13\n# first\nok 1 should be equal\nok 2 should be equal\nnot ok 3 own words\n  ---\n    operator: equal\n  \
        ...\nok 4 named # hash\n# TODO later\nnot ok 5 later # TODO\n\n1..5\n# tests 5\n# pass  4\n# fail  1\n";
    let expected = report(
        TestReportFormat::Tap,
        &[
            ("first > should be equal", PASSED),
            ("first > should be equal #2", PASSED),
            ("first > own words", FAILED),
            ("first > named # hash", PASSED),
            ("later > later", SKIPPED),
        ],
    );
    assert_eq!(read(output), Some(expected));
    let thrown = "TAP version 13\n# first\nok 1 should be equal\n/work/a.js:2\nTypeError: x\n";
    let expected = TestReport {
        incomplete: true,
        ..report(TestReportFormat::Tap, &[("first > should be equal", PASSED)])
    };
    assert_eq!(read(thrown), Some(expected));
}

#[test]
fn nested_subtests_have_a_path_and_suites_are_no_tests() {
    let output = "TAP version 13
# Subtest: suite
    # Subtest: one
    ok 1 - one
      ---
      duration_ms: 0.5
      ...
    # Subtest: deep
        # Subtest: x
        ok 1 - x # SKIP why
        # Subtest: bad
        not ok 2 - bad
        1..2
    not ok 2 - deep
      ---
      type: 'suite'
      ...
    1..2
not ok 1 - suite
  ---
  type: 'suite'
  ...
# Subtest: top
    # Subtest: sub
    ok 1 - sub
    1..1
ok 2 - top
1..2
# tests 5
";
    let expected = report(
        TestReportFormat::Tap,
        &[
            ("suite > one", PASSED),
            ("suite > deep > x", SKIPPED),
            ("suite > deep > bad", FAILED),
            ("top > sub", PASSED),
            ("top", PASSED),
        ],
    );
    assert_eq!(read(output), Some(expected));
    let bailed = read("1..3\nok 1 - a\nBail out! no database\n").map(|it| it.incomplete);
    assert_eq!(bailed, Some(true));
}

#[test]
fn the_spec_reporter_of_node_is_read_once() {
    let output = "▶ suite\n  ✔ one (0.5ms)\n  ✖ two bad (0.8ms)\n    AssertionError: 1 == 2\n\n  ▶ deep\n    ﹣ x (0.1ms) # SKIP\n  ✔ deep (0.3ms)\n\
        ✖ suite (2.6ms)\nℹ tests 3\nℹ suites 2\nℹ pass 1\nℹ fail 1\nℹ skipped 1\n\n✖ failing tests:\n\n✖ two bad (0.8ms)\n";
    let expected = report(
        TestReportFormat::Tap,
        &[("suite > one", PASSED), ("suite > two bad", FAILED), ("suite > deep > x", SKIPPED)],
    );
    assert_eq!(read(output), Some(expected));
}

#[test]
fn ava_is_read() {
    let output = "\n  - [skip] sk\n  ✔ one\n  ✘ [fail]: two bad\n  ─\n\n  two bad\n\n  - 1\n  + 2\n\n  ─\n\n  1 test failed\n  1 test skipped\n";
    let expected =
        report(TestReportFormat::Tap, &[("sk", SKIPPED), ("one", PASSED), ("two bad", FAILED)]);
    assert_eq!(read(output), Some(expected));
}

#[test]
fn jest_is_read_from_json_in_the_output_and_in_a_file() {
    let document = r#"{"numFailedTests":1,"testResults":[{"name":"/work/a.test.js","status":"failed","assertionResults":[
        {"ancestorTitles":["suite"],"title":"one","status":"passed"},
        {"ancestorTitles":["suite"],"title":"one","status":"failed"},
        {"ancestorTitles":[],"title":"later","status":"todo"}]}]}"#;
    let expected = report(
        TestReportFormat::Jest,
        &[
            ("a.test.js > suite > one", PASSED),
            ("a.test.js > suite > one #2", FAILED),
            ("a.test.js > later", SKIPPED),
        ],
    );
    assert_eq!(
        read_report_file(TestReportFormat::Jest, document.as_bytes()),
        Some(expected.clone())
    );
    let line = document.replace('\n', " ");
    assert_eq!(read(&format!("> test\n{line}\n")), Some(expected));
    for broken in ["{", "[]", "{\"num\":1}", "{\"testResults\":[]} x", "{\"testResults\":1}"] {
        assert_eq!(read_report_file(TestReportFormat::Jest, broken.as_bytes()), None, "{broken}");
    }
}

#[test]
fn jest_names_a_file_after_its_tests_and_passes_over_what_is_large() {
    let message = "x".repeat(1 << 20);
    let titles = vec!["\"t\""; 100_000].join(",");
    let document = format!(
        r#"{{"numTotalTests":2,"snapshot":{{"a":[[{{}}]]}},"testResults":[
            {{"assertionResults":[{{"failureMessages":["{message}"],"status":"failed","title":"one","ancestorTitles":null,"duration":1}}],"name":"/work/a.js"}},
            {{"assertionResults":[{{"status":"passed","title":"{message}","ancestorTitles":[{titles}]}}],"name":"/work/b.js","status":"passed"}},
            {{"assertionResults":[],"name":"/work/c.js","status":"failed","message":"no such module"}}]}}"#
    );
    let read = read_report_file(TestReportFormat::Jest, document.as_bytes()).unwrap();
    let statuses: Vec<_> = read.tests.values().copied().collect();
    assert_eq!(statuses, [FAILED, PASSED, FAILED]);
    assert!(read.incomplete);
    let names: Vec<_> = read.tests.keys().collect();
    assert_eq!((names[0].as_str(), names[2].as_str()), ("a.js > one", "c.js"));
    assert!(names[1].starts_with("b.js > t > t > t") && names[1].len() <= MAX_TEST_NAME_BYTES);
}

#[test]
fn jest_text_names_what_it_lists_and_counts_the_rest() {
    let verbose = "FAIL je/a.test.js\n  ✓ top (1 ms)\n  suite\n    ✓ one (1 ms)\n    ✕ two bad (2 ms)\n    ○ skipped skp\n    deep\n      ✓ one\n\n  \
        ● suite › two bad\n\n    expect(1).toBe(2)\n\n  console.log\n    ✓ fake\n\nTest Suites: 1 failed, 1 total\nTests:       1 failed, 1 skipped, 3 passed, 5 total\n";
    let tests = [
        ("je/a.test.js > top", PASSED),
        ("je/a.test.js > suite > one", PASSED),
        ("je/a.test.js > suite > two bad", FAILED),
        ("je/a.test.js > suite > skp", SKIPPED),
        ("je/a.test.js > suite > deep > one", PASSED),
    ];
    assert_eq!(read(verbose), Some(report(TestReportFormat::Jest, &tests)));
    let plain = "FAIL je/a.test.js (5.1 s)\n  ● suite › two bad\n\n    x\n\nPASS je/b.test.js\n  ● Console\n\nTests:       1 failed, 1 skipped, 3 passed, 5 total\n";
    let expected = TestReport {
        unlisted: TestCounts { passed: 3, skipped: 1, failed: 0 },
        ..report(TestReportFormat::Jest, &tests[2..3])
    };
    assert_eq!(read(plain), Some(expected));
}

#[test]
fn vitest_text_names_what_it_lists_and_counts_the_rest() {
    let verbose = "\n RUN  v4.1.12 /work\n\n ✓ a.test.js > suite > one 1ms\n × a.test.js > suite > two bad 6ms\n   → expected\n ↓ a.test.js > suite > skp\n\n \
        FAIL  a.test.js > suite > two bad\nAssertionError\n\n Test Files  1 failed (1)\n      Tests  1 failed | 1 passed | 1 skipped (3)\n";
    let tests = [
        ("a.test.js > suite > one", PASSED),
        ("a.test.js > suite > two bad", FAILED),
        ("a.test.js > suite > skp", SKIPPED),
    ];
    assert_eq!(read(verbose), Some(report(TestReportFormat::Jest, &tests)));
    let plain = "\n RUN  v4.1.12 /work\n\n ❯ a.test.js (3 tests | 1 failed) 7ms\n     ✓ one 1ms\n     × two bad 4ms\n ✓ b.test.js (2 tests) 2ms\n\n \
        FAIL  a.test.js > suite > two bad\n\n      Tests  1 failed | 4 passed (5)\n";
    let expected = TestReport {
        unlisted: TestCounts { passed: 4, ..TestCounts::default() },
        ..report(TestReportFormat::Jest, &tests[1..2])
    };
    assert_eq!(read(plain), Some(expected));
}

#[test]
fn mocha_is_read_up_to_its_summary() {
    let output = "\n\n  ✔ top\n  suite\n    ✔ one\nwhat a test wrote\n    1) two bad\n    ✔ slow (91ms)\n    - skp\n    deep\n      ✔ one\n      2) 3 bad\n\n\n  \
        4 passing (96ms)\n  1 pending\n  2 failing\n\n  1) suite\n       two bad:\n     Error\n";
    let expected = report(
        TestReportFormat::Mocha,
        &[
            ("top", PASSED),
            ("suite > one", PASSED),
            ("suite > two bad", FAILED),
            ("suite > slow", PASSED),
            ("suite > skp", SKIPPED),
            ("suite > deep > one", PASSED),
            ("suite > deep > 3 bad", FAILED),
        ],
    );
    assert_eq!(read(output), Some(expected));
}

#[test]
fn go_is_read_as_text_and_as_events() {
    let text = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestA/sub_one (0.00s)\n--- SKIP: TestB (0.00s)\nFAIL\nFAIL\texample.org/a\t0.01s\nok  \texample.org/b\t0.01s\n";
    let expected = report(
        TestReportFormat::Go,
        &[
            ("example.org/a::TestA", PASSED),
            ("example.org/a::TestA/sub_one", FAILED),
            ("example.org/a::TestB", SKIPPED),
        ],
    );
    assert_eq!(read(text), Some(expected.clone()));
    let event = |action: &str, test: &str| {
        format!("{{\"Action\":\"{action}\",\"Package\":\"example.org/a\",\"Test\":\"{test}\"}}\n")
    };
    let events = [
        event("run", "TestA"),
        event("output", "TestA"),
        event("pass", "TestA"),
        event("fail", "TestA/sub_one"),
        event("skip", "TestB"),
        "{\"Action\":\"fail\",\"Package\":\"example.org/a\"}\n".to_owned(),
    ];
    assert_eq!(read(&events.concat()), Some(expected));
    let unbuilt = read("--- PASS: TestA (0.00s)\nok  \tp\t0.01s\nFAIL\tq [build failed]\n");
    assert_eq!(unbuilt.map(|it| it.incomplete), Some(true));
}

#[test]
fn ctest_is_read() {
    let output = "      Start  1: parse_number\n 1/4 Test  #1: parse_number .....................   Passed    0.01 sec\n \
        2/4 Test  #2: misc tests .......................***Failed    0.00 sec\n \
        3/4 Test  #3: crash ............................***Exception: SegFault  0.10 sec\n \
        4/4 Test  #4: off ..............................***Not Run (Disabled)   0.00 sec\n\n50% tests passed, 2 tests failed out of 4\n";
    let expected = report(
        TestReportFormat::Ctest,
        &[("parse_number", PASSED), ("misc tests", FAILED), ("crash", FAILED), ("off", SKIPPED)],
    );
    assert_eq!(read(output), Some(expected));
}

#[test]
fn automake_is_read() {
    let output = "PASS: one\nFAIL: two\nXFAIL: three\nSKIP: four\nERROR: five\n# TOTAL: 5\n# PASS:  1\n# SKIP:  1\n# XFAIL: 1\n# FAIL:  1\n# XPASS: 0\n# ERROR: 1\n";
    let expected = report(
        TestReportFormat::Automake,
        &[
            ("one", PASSED),
            ("two", FAILED),
            ("three", SKIPPED),
            ("four", SKIPPED),
            ("five", FAILED),
        ],
    );
    assert_eq!(read(output), Some(expected));
}

#[test]
fn junit_is_read_and_a_type_definition_is_refused() {
    let document = r#"<?xml version="1.0"?>
<testsuites><testsuite name="outer">
  <testcase classname="a.B" name="x &lt; y" time="0.1"/>
  <testcase classname="a.B" name="bad"><failure message="no">text</failure></testcase>
  <testsuite name="inner"><testcase name="alone"><skipped/></testcase><testcase name="err"><error/></testcase></testsuite>
</testsuite></testsuites>"#;
    let expected = report(
        TestReportFormat::Junit,
        &[
            ("a.B::x < y", PASSED),
            ("a.B::bad", FAILED),
            ("inner::alone", SKIPPED),
            ("inner::err", FAILED),
        ],
    );
    let read_file = |text: &str| read_report_file(TestReportFormat::Junit, text.as_bytes());
    assert_eq!(read_file(document), Some(expected.clone()));
    let mut reader = ReportReader::new(Some(TestReportFormat::Junit));
    reader.push(format!("noise\n{document}\nmore\n").as_bytes());
    assert_eq!(reader.finish(), Some(expected));
    let hostile = r#"<!DOCTYPE x [<!ENTITY a "b">]><testsuite><testcase name="&a;"/></testsuite>"#;
    assert_eq!(read_file(hostile), None);
    assert_eq!(read_file("<html></html>"), None);
    let cut = read_file(r#"<testsuite><testcase name="a"/><testcase na"#);
    assert_eq!(cut.map(|it| (it.tests.len(), it.incomplete)), Some((1, true)));
    let deep = "<testsuite>".repeat(1000);
    assert_eq!(read_file(&deep), None);
}

#[test]
fn results_of_several_frameworks_join() {
    let output = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\nTAP version 13\n1..2\nok 1 - a\nok 2 - b\n";
    let expected = report(TestReportFormat::Tap, &[("a", PASSED), ("a #2", PASSED), ("b", PASSED)]);
    assert_eq!(read(output), Some(expected));
}

#[test]
fn what_is_no_test_run_is_no_report() {
    assert_eq!(read("hello\n✓ done\n  - a list\nok then\nPASS: it\nTests: none\n"), None);
    assert_eq!(read(""), None);
}

#[test]
fn more_tests_than_are_listed_are_counted_and_leave_the_report_incomplete() {
    let mut reader = ReportReader::new(Some(TestReportFormat::Tap));
    reader.push(b"TAP version 13\n");
    for at in 0..MAX_REPORTED_TESTS + 10 {
        reader.push(format!("ok {at} - test {at}\n").as_bytes());
    }
    let read = reader.finish().map(|it| (it.tests.len(), it.unlisted.passed, it.incomplete));
    assert_eq!(read, Some((MAX_REPORTED_TESTS, 10, true)));
}

/// Pieces of lines that formats are made of, so that parsers get far into hostile input.
const PIECES: [&str; 40] = [
    "\n",
    "\n",
    "\n",
    " ",
    "    ",
    "ok ",
    "not ok ",
    "1",
    "2 - a",
    "1..3",
    "# ",
    "# SKIP",
    "Subtest: ",
    "TAP version 13",
    "---",
    "...",
    "running 2 tests",
    "test ",
    " ... ",
    "FAILED",
    "test result: ok. ",
    "passed",
    "===",
    " short test summary info ",
    " in 0.1s",
    "::",
    "[",
    "]",
    "✓ ",
    "✔ ",
    "1) ",
    "- ",
    "(",
    " ms)",
    "PASS ",
    "Tests: ",
    "--- PASS: ",
    "{\"Action\":\"pass\"",
    "é\u{1b}[",
    "\t",
];

proptest::proptest! {
    #[test]
    fn no_input_is_too_strange_and_results_are_bounded(
        pieces in proptest::collection::vec(0..PIECES.len(), 0..200),
        raw in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        cut in 1usize..50,
    ) {
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|at| PIECES[*at].bytes()).collect();
        bytes.extend(raw);
        let formats = [
            None,
            Some(TestReportFormat::Tap),
            Some(TestReportFormat::Pytest),
            Some(TestReportFormat::Mocha),
            Some(TestReportFormat::Junit),
        ];
        for format in formats {
            let mut reader = ReportReader::new(format);
            for piece in bytes.chunks(cut) {
                reader.push(piece);
                reader.push_stderr(piece);
            }
            if let Some(report) = reader.finish() {
                let is_plain = |name: &String| {
                    name.len() <= 300 && !name.is_empty() && !name.contains(char::is_control)
                };
                let all_plain = report.tests.keys().all(is_plain);
                proptest::prop_assert!(all_plain);
            }
        }
        read_report_file(TestReportFormat::Junit, &bytes);
        read_report_file(TestReportFormat::Jest, &bytes);
    }

    #[test]
    fn output_reads_the_same_however_it_is_cut(cut in 1usize..40) {
        let mut reader = ReportReader::new(None);
        for piece in CARGO_STDOUT.as_bytes().chunks(cut) {
            reader.push(piece);
        }
        proptest::prop_assert_eq!(reader.finish(), read(CARGO_STDOUT));
    }
}
