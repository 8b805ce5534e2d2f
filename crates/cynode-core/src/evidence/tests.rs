use proptest::prelude::*;

use super::*;

fn check(words: &[&str]) -> EvidenceCheck {
    EvidenceCheck::new(words.iter().map(|&word| word.to_owned()).collect())
}

fn touched(path: &str, how: FileChangeKind, before: &str, after: &str) -> TouchedFile {
    let read = !before.is_empty() && !after.is_empty();
    let (path, is) = (path.to_owned(), String::new());
    TouchedFile {
        path,
        how,
        is,
        compared: read.then(|| TestComparison::compare_versions(before, after)),
    }
}

#[test]
fn a_check_holds_only_with_its_exit_code_and_its_words() {
    let plain = check(&["true"]);
    assert!(plain.is_satisfied_by(Some(0), "", None));
    assert!(!plain.is_satisfied_by(Some(1), "", None) && !plain.is_satisfied_by(None, "", None));
    let picky = EvidenceCheck { expect_exit: 2, expect_output: Some("3 passed".into()), ..plain };
    assert!(picky.is_satisfied_by(Some(2), "… 3 passed …", None));
    assert!(
        !picky.is_satisfied_by(Some(0), "3 passed", None)
            && !picky.is_satisfied_by(Some(2), "2 passed", None)
    );
    // Whoever saw all of what it wrote knows better than the end that was kept.
    assert!(picky.is_satisfied_by(Some(2), "the end", Some(true)));
    assert!(!picky.is_satisfied_by(Some(2), "3 passed", Some(false)));
    assert!(!picky.is_satisfied_by(Some(0), "the end", Some(true)));
}

#[test]
fn an_exit_code_that_may_be_a_signal_is_told_as_both() {
    let told = [1, 128, 137, 192, 193].map(describe_exit_code);
    assert_eq!(
        told,
        [
            "exit code 1",
            "exit code 128",
            "exit code 137 (or killed by signal 9)",
            "exit code 192 (or killed by signal 64)",
            "exit code 193"
        ]
    );
}

#[test]
fn a_test_that_nobody_could_look_at_is_not_taken_for_good() {
    let changed = |path: &str, before: &str| touched(path, FileChangeKind::Changed, before, "");
    let files = [changed("tests/large.py", "assert a"), changed("src/large.py", "")];
    let reason = "it is too large, one of too many, or no text".to_owned();
    let unseen = ChangeAnomaly::Unseen { path: "tests/large.py".into(), reason };
    assert_eq!(find_anomalies(&files, &[], &[], &[]), [unseen]);
    assert_eq!(find_anomalies(&files, &[], &[], &["tests/large.py".to_owned()]), []);
}

#[test]
fn a_test_that_cannot_be_put_back_has_to_be_answered_for() {
    let long = format!("tests/{}.py", "a".repeat(300));
    let paths =
        ["__tests__/[id].test.ts", "tests/a$b.py", "-/tests/a.py", "tests/\u{fffd}.py", &long];
    let files = paths.map(|path| touched(path, FileChangeKind::Changed, "assert a", "assert b"));
    let reason = "a test of such a name cannot be put back for the checks".to_owned();
    let unseen =
        paths.map(|path| ChangeAnomaly::Unseen { path: path.to_owned(), reason: reason.clone() });
    assert_eq!(
        (find_anomalies(&files, &[], &[], &[]), tests_to_restore(&files, &[])),
        (unseen.to_vec(), Vec::new())
    );
    assert_eq!(find_anomalies(&files, &[], &[], &paths.map(str::to_owned)), []);
    // A new one changes nothing that was there.
    let new = paths.map(|path| touched(path, FileChangeKind::Added, "", "assert b"));
    assert_eq!(find_anomalies(&new, &[], &[], &[]), []);
}

#[test]
fn twice_no_is_a_no_and_a_yes_after_a_no_needs_another() {
    let table: [(&[bool], CheckTally); 8] = [
        (&[], CheckTally::Again),
        (&[true], CheckTally::Passed),
        (&[false], CheckTally::Again),
        (&[false, false], CheckTally::Failed),
        (&[false, true], CheckTally::Again),
        (&[false, true, true], CheckTally::Flaky),
        (&[false, true, false], CheckTally::Failed),
        (&[false, false, true], CheckTally::Failed),
    ];
    for (rounds, meant) in table {
        assert_eq!(tally_rounds(rounds), meant, "{rounds:?}");
    }
}

#[test]
fn only_what_was_no_better_before_the_change_is_excused() {
    let ran = |code: i32| CheckRunResult { holds: code == 0, exit_code: Some(code) };
    let must = check(&["true"]);
    let own = EvidenceCheck { unless_before: true, ..must.clone() };
    let planned = EvidenceCheck { if_runnable: true, ..must.clone() };
    let twice = |code: i32| [ran(code), ran(code)];
    let table = [
        (&must, None, twice(1), CheckTally::Failed),
        (&must, Some(ran(1)), twice(1), CheckTally::Failed),
        (&own, None, twice(1), CheckTally::Again),
        (&own, Some(ran(2)), twice(1), CheckTally::Before),
        (&own, Some(ran(0)), twice(1), CheckTally::Failed),
        (&planned, None, twice(1), CheckTally::Failed),
        (&planned, None, twice(127), CheckTally::Again),
        (&planned, Some(ran(127)), twice(127), CheckTally::Before),
        // A change that makes a program end as if it were not there.
        (&planned, Some(ran(1)), twice(127), CheckTally::Failed),
        (&planned, Some(ran(127)), twice(1), CheckTally::Failed),
    ];
    for (check, before, after, meant) in table {
        assert_eq!(evaluate_check(check, before, &after), meant, "{check:?} {before:?} {after:?}");
    }
}

#[test]
fn tests_that_broke_speak_against_a_change_whatever_the_exit_code() {
    use test_results::{TestReport, TestStatus, compare_reports};
    let ran = |code: i32| CheckRunResult { holds: code == 0, exit_code: Some(code) };
    let report = |tests: &[(&str, TestStatus)]| TestReport {
        tests: tests.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect(),
        ..TestReport::new(crate::environments::TestReportFormat::Tap)
    };
    let (good, bad) = (TestStatus::Passed, TestStatus::Failed);
    let before = report(&[("old", bad), ("one", good)]);
    let same = report(&[("old", bad), ("one", good)]);
    let broken = report(&[("old", bad), ("one", bad)]);
    let wrong = report(&[("old", bad), ("one", good), ("new", bad)]);
    let cut = TestReport { incomplete: true, ..report(&[("old", bad)]) };
    let must = check(&["true"]);
    let own = EvidenceCheck { unless_before: true, ..must.clone() };
    let table: [(&EvidenceCheck, i32, &[i32], &TestReport, CheckTally); 9] = [
        (&must, 0, &[0], &same, CheckTally::Passed),
        (&must, 0, &[0], &broken, CheckTally::Again),
        (&must, 0, &[0, 0], &broken, CheckTally::Failed),
        (&must, 0, &[0, 1], &same, CheckTally::Failed),
        (&must, 1, &[1, 1], &same, CheckTally::Failed),
        (&own, 1, &[1, 1], &same, CheckTally::Before),
        (&own, 1, &[1, 1], &broken, CheckTally::Failed),
        (&own, 1, &[1, 1], &wrong, CheckTally::Failed),
        (&own, 1, &[1, 1], &cut, CheckTally::Failed),
    ];
    for (check, was, codes, after, expected) in table {
        let rounds: Vec<CheckRunResult> = codes.iter().map(|code| ran(*code)).collect();
        let tests = compare_reports(Some(&before), &[after]);
        let tally = evaluate_check_with_tests(check, Some(ran(was)), &rounds, Some(&tests));
        assert_eq!(tally, expected, "{check:?} {codes:?} {tests:?}");
        let without = evaluate_check_with_tests(check, Some(ran(was)), &rounds[..1], None);
        assert_eq!(without, evaluate_check(check, Some(ran(was)), &rounds[..1]));
    }
}

#[test]
fn findings_name_the_tests_and_name_them_once() {
    use crate::workflow::{
        evidence::{CheckResult, Evidence},
        findings::FindingSeverity,
    };
    use test_results::{TestCounts, TestNames, TestRunComparison};
    let names = |name: &str| TestNames { total: 1, names: [name.to_owned()].into() };
    let result = CheckResult {
        check: EvidenceCheck::from_shell_line("pytest"),
        tally: CheckTally::Failed,
        rounds: 2,
        exit_code: Some(0),
        sha256: String::new(),
        excerpt: "words".to_owned(),
        milliseconds: 1,
        repeated: false,
        tests: Some(TestRunComparison {
            before: Some(TestCounts { passed: 2, skipped: 0, failed: 1 }),
            after: TestCounts { passed: 0, skipped: 0, failed: 2 },
            pass_to_fail: names("one"),
            fail_to_fail: names("old"),
            vanished: names("gone"),
            ..TestRunComparison::default()
        }),
    };
    assert_eq!(
        result.describe_tests().as_deref(),
        Some("pytest: 0 passed, 2 failed, 1 failed before already, 1 vanished, 1 broken")
    );
    let evidence = Evidence { checks: vec![result], ..Evidence::default() };
    let found: Vec<(FindingSeverity, String)> =
        evidence.to_findings().into_iter().map(|it| (it.severity, it.text)).collect();
    let texts = [
        (
            FindingSeverity::Critical,
            "the check `pytest` does not hold (tests that passed before fail now):\nPassed before the change and fails now: one\nwords",
        ),
        (
            FindingSeverity::Major,
            "tests of `pytest` ran before the change and do not run now: gone",
        ),
        (FindingSeverity::Note, "tests of `pytest` failed before the change already: old"),
    ];
    assert_eq!(found, texts.map(|(severity, text)| (severity, text.to_owned())));
}

#[test]
fn what_a_check_names_is_pinned_and_what_cannot_be_a_file_is_not() {
    let line =
        EvidenceCheck::from_shell_line("./check.sh --fast && python tools/run.py | tee $OUT");
    assert_eq!(line.pinned_paths(), ["check.sh", "tools/run.py"]);
    let mut named = check(&["sh", "ci/run.sh", "/etc/passwd", "../up.sh", "-x.y", "a*.b"]);
    named.pins.push("Makefile".into());
    assert_eq!(named.pinned_paths(), ["Makefile", "ci/run.sh"]);
    assert_eq!(check(&["cargo", "test"]).pinned_paths(), [""; 0]);
}

#[test]
fn a_check_that_git_or_a_person_could_misread_is_refused() {
    assert_eq!(check(&["make", "test"]).validation_error(), None);
    for bad in [
        check(&[]),
        check(&[""]),
        check(&["a\0b"]),
        EvidenceCheck { time_limit_seconds: Some(0), ..check(&["a"]) },
        EvidenceCheck { pins: vec!["--upload-pack=x".into()], ..check(&["a"]) },
        EvidenceCheck { pins: vec!["a/../b".into()], ..check(&["a"]) },
    ] {
        assert!(bad.validation_error().is_some(), "{bad:?}");
    }
}

#[test]
fn tests_are_known_by_the_customs_of_languages() {
    for path in [
        "tests/it/main.rs",
        "src/a_test.go",
        "web/app.test.ts",
        "test_sum.py",
        "spec/a_spec.rb",
        "src/test/java/SumTest.java",
        "test/sum_test.dart",
        "tests/helper.h",
        "tests/sum.lua",
        "e2e/Sum.vue",
    ] {
        assert!(is_test_file(path), "{path}");
    }
    for path in
        ["src/latest.rs", "tests/data.json", "README.md", "src/contest.py", "docs/testing.md"]
    {
        assert!(!is_test_file(path), "{path}");
    }
}

#[test]
fn a_change_answers_for_tests_that_are_gone_or_weaker_and_for_what_decides_the_checks() {
    let files = [
        touched("tests/sum.py", FileChangeKind::Removed, "assert 1", ""),
        touched("tests/mul.py", FileChangeKind::Changed, "assert a\nassert b", "assert a"),
        touched("tests/div.py", FileChangeKind::Changed, "assert a", "@pytest.mark.skip\nassert a"),
        touched("tests/new.py", FileChangeKind::Added, "", "assert c"),
        touched("Makefile", FileChangeKind::Changed, "test:\n\tpytest", "test:\n\ttrue"),
        touched("check.sh", FileChangeKind::Changed, "exit 1", "exit 0"),
        touched(
            "src/a.py",
            FileChangeKind::Changed,
            "x",
            "<<<<<<< ours\nx\n=======\ny\n>>>>>>> theirs",
        ),
    ];
    let checks = [check(&["make", "test"]), check(&["sh", "./check.sh"])];
    let found = find_anomalies(&files, &checks, &[], &[]);
    let gone = |path: &str| ChangeAnomaly::TestRemoved { path: path.into() };
    let weak = |path: &str, detail: &str| ChangeAnomaly::TestWeakened {
        path: path.into(),
        detail: detail.into(),
    };
    let own = |path: &str| ChangeAnomaly::CheckTouched { path: path.into() };
    assert_eq!(
        found,
        [
            gone("tests/sum.py"),
            weak("tests/mul.py", "it had 2 lines that show something and has 1"),
            weak("tests/div.py", "something in it is skipped now"),
            own("Makefile"),
            own("check.sh"),
            ChangeAnomaly::MergeMarks { path: "src/a.py".into(), line: 1 },
        ]
    );
    let asked: Vec<String> =
        ["tests/sum.py", "tests/mul.py", "tests/div.py", "Makefile", "check.sh"]
            .map(str::to_owned)
            .to_vec();
    assert_eq!(
        find_anomalies(&files, &checks, &[], &asked),
        [ChangeAnomaly::MergeMarks { path: "src/a.py".into(), line: 1 }]
    );
}

#[test]
fn a_change_answers_for_files_that_take_a_check_over_and_for_what_stands_behind_it() {
    let table: [(&[&str], &str, FileChangeKind, bool); 12] = [
        (&["make", "test"], "GNUmakefile", FileChangeKind::Added, true),
        (&["make", "test"], "Makefile", FileChangeKind::Added, false),
        (&["make", "test"], "check.sh", FileChangeKind::Changed, true),
        (&["make", "test"], "check.sh", FileChangeKind::Added, false),
        (&["npm", "test"], ".npmrc", FileChangeKind::Added, true),
        (&["pytest"], "tests/unit/conftest.py", FileChangeKind::Added, true),
        (&["python3", "-m", "unittest"], "unittest/__init__.py", FileChangeKind::Added, true),
        (&["python3", "-m", "unittest"], "src/__init__.py", FileChangeKind::Added, false),
        (&["cargo", "test"], ".cargo/config.toml", FileChangeKind::Added, true),
        (&["cargo", "test"], "app/config.toml", FileChangeKind::Added, false),
        (&["sh", "-c", "cargo test"], ".config/nextest.toml", FileChangeKind::Changed, true),
        (&["true"], "src/a.rs", FileChangeKind::Changed, false),
    ];
    for (words, path, how, meant) in table {
        let files = [touched(path, how, "", "")];
        let found = find_anomalies(&files, &[check(words)], &["check.sh".to_owned()], &[]);
        let own = vec![ChangeAnomaly::CheckTouched { path: path.into() }];
        assert_eq!(found, if meant { own } else { Vec::new() }, "{words:?} {path}");
        assert_eq!(
            find_anomalies(&files, &[check(words)], &[], &[path.to_owned()]),
            [],
            "{words:?} {path}"
        );
    }
}

#[test]
fn a_change_answers_for_what_tests_expect_unless_it_is_new_or_asked_for() {
    let paths = [
        "tests/data.json",
        "tests/it/snapshots/it__sum.snap",
        "src/__snapshots__/app.test.tsx.snap",
        "web/golden/page.html",
        "pkg/testdata/out.txt",
        "e2e/expected",
        "src/sum.snap",
    ];
    let how = |how: FileChangeKind| paths.map(|path| touched(path, how, "1", "2")).to_vec();
    let own = paths.map(|path| ChangeAnomaly::CheckTouched { path: path.into() });
    assert_eq!(find_anomalies(&how(FileChangeKind::Changed), &[], &[], &[]), own);
    assert_eq!(find_anomalies(&how(FileChangeKind::Removed), &[], &[], &[]), own);
    assert_eq!(find_anomalies(&how(FileChangeKind::Added), &[], &[], &[]), []);
    assert_eq!(
        find_anomalies(&how(FileChangeKind::Changed), &[], &[], &paths.map(str::to_owned)),
        []
    );
    assert_eq!(tests_to_restore(&how(FileChangeKind::Changed), &[]), [""; 0]);
    let others =
        ["tests/sum.py", "spec/api.yaml", "docs/testing.md", "src/contest/a.json", "tests"];
    assert_eq!(others.map(is_test_expectation), [false; 5]);
}

#[test]
fn nobody_answers_for_code_of_the_product_and_for_what_is_around_tests() {
    let table = [
        ("src/snapshots/store.rs", false),
        ("src/snapshots/README.md", false),
        ("src/snapshots/page.html", true),
        ("pkg/golden/golden.go", false),
        ("pkg/testdata/src/a.go", true),
        ("src/__snapshots__/app.js", true),
        ("tests/README.md", false),
        ("tests/guide.md", false),
        ("tests/LICENSE", false),
        ("tests/README.txt", false),
        ("tests/out.txt", true),
        ("tests/CMakeLists.txt", false),
        ("tests/Makefile", false),
        ("test/BUILD.bazel", false),
        ("e2e/package.json", false),
        ("e2e/pnpm-lock.yaml", false),
        ("tests/fixtures/package.json", true),
        ("tests/snapshots/out.md", true),
        ("fixtures/package.json", false),
        ("web/golden/page.md", true),
        ("pkg/testdata/go.sum", true),
    ];
    for (path, meant) in table {
        let own = vec![ChangeAnomaly::CheckTouched { path: path.into() }];
        let found =
            find_anomalies(&[touched(path, FileChangeKind::Changed, "1", "2")], &[], &[], &[]);
        assert_eq!(found, if meant { own } else { Vec::new() }, "{path}");
    }
}

#[test]
fn a_test_in_any_usual_language_is_compared_and_a_person_is_asked_only_if_it_shows_less() {
    let table = [
        ("test/sum_test.dart", "expect(sum(1, 2), 3);"),
        ("tests/sum.cxx", "EXPECT_EQ(sum(1, 2), 3);"),
        ("tests/sum.hpp", "REQUIRE(sum(1, 2) == 3);"),
        ("tests/sum.zig", "try std.testing.expectEqual(3, sum(1, 2));"),
        ("test/runtests.jl", "@test sum(1, 2) == 3"),
        ("tests/SumTests.m", "XCTAssertEqual(sum(1, 2), 3);"),
    ];
    for (path, line) in table {
        let more = touched(path, FileChangeKind::Changed, line, &format!("{line}\n{line}"));
        assert_eq!(find_anomalies(&[more], &[], &[], &[]), [], "{path}");
        let less = touched(path, FileChangeKind::Changed, line, "nothing");
        let detail = "it had 1 lines that show something and has 0".to_owned();
        let weak = ChangeAnomaly::TestWeakened { path: path.into(), detail };
        assert_eq!(find_anomalies(&[less], &[], &[], &[]), [weak], "{path}");
    }
}

#[test]
fn programs_of_the_repository_are_found_in_what_runs_them() {
    let text = "test: build\n\t@sh ./check.sh && scripts/ci --fast\n\tgcc -o sum src/sum.c ../up.sh /bin/sh\n";
    assert_eq!(find_script_paths(text), ["check.sh", "scripts/ci"]);
}

#[test]
fn tests_that_nobody_asked_to_be_changed_are_put_back() {
    let files = [
        touched("tests/sum.py", FileChangeKind::Changed, "assert a", "assert a\nassert b"),
        touched("tests/mul.py", FileChangeKind::Removed, "assert a", ""),
        touched("tests/new.py", FileChangeKind::Added, "", "assert a"),
        touched("tests/asked.py", FileChangeKind::Changed, "assert a", "assert b"),
        touched("src/sum.py", FileChangeKind::Changed, "a", "b"),
    ];
    assert_eq!(
        tests_to_restore(&files, &["tests/asked.py".to_owned()]),
        ["tests/sum.py", "tests/mul.py"]
    );
}

proptest! {
    #[test]
    fn no_pin_can_leave_the_repository_or_be_an_option(words in prop::collection::vec(".{0,20}", 1..5)) {
        let check = EvidenceCheck::new(words);
        for pin in check.pinned_paths() {
            prop_assert!(!pin.starts_with(['-', '/']) && !pin.contains('\0'));
            prop_assert!(pin.split('/').all(|part| part != ".." && part != ".git" && !part.is_empty()));
        }
    }

    #[test]
    fn a_tally_is_reached_in_three_rounds(rounds in prop::collection::vec(any::<bool>(), 3..6)) {
        prop_assert_ne!(tally_rounds(&rounds), CheckTally::Again);
    }
}
