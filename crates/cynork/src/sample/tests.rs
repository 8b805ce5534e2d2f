use cynode_core::workflow::jobs::WorkerChoice;

use super::*;

#[test]
fn every_worker_is_one_and_plays_something_else_when_told_what_was_wrong() {
    for (role, worker) in scripted_workers() {
        let WorkerChoice::Scripted { moves, revised } = serde_json::from_value(worker).unwrap()
        else {
            panic!("{role} plays no script");
        };
        assert!(!moves.is_empty(), "{role}");
        assert_eq!(revised.is_some_and(|revised| revised != moves), role == "developer");
    }
}

#[test]
fn the_model_has_an_answer_to_every_question_that_may_come() {
    let script = model_script().unwrap();
    let rules = script["rules"].as_array().unwrap();
    let answered = |question: &str| {
        let matches = |rule: &&Value| {
            let asked = rule["when"]["user_matches"].as_str().unwrap();
            regex::Regex::new(asked).unwrap().is_match(question)
        };
        rules.iter().filter(matches).count()
    };
    for question in [
        "Decide what kind of work a text asks for.",
        "Decide how much of the project has to be touched to do what a text asks for.",
        "Plan the task below.",
        "Judge whether a result does what was to be done.",
        "A unit of work came to nothing. Decide what follows.",
        "The change for the task below was reviewed and found good.",
        "Write a summary of the task below for whoever asked for it",
    ] {
        assert_eq!(answered(question), 1, "{question}");
    }
}

#[test]
fn the_models_of_a_sample_are_for_its_project_only() {
    let models = scripted_models("slug", "prj_1");
    let names: Vec<_> = models.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["sample-slug-fast", "sample-slug-standard", "sample-slug-deep"]);
    for (name, model) in &models {
        assert_eq!(model["project_id"], "prj_1", "{name}");
        assert!(name.ends_with(model["tier"].as_str().unwrap()), "{name}");
    }
}

/// What a test of the sample says of a program.
fn tried(repository: &SampleRepository, program: &str, test: &str) -> (bool, String) {
    fs::write(repository.path.join(PROGRAM_FILE), program).unwrap();
    let output = Command::new("sh").arg(test).current_dir(&repository.path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), said)
}

#[test]
fn the_first_attempt_has_a_bug_that_the_samples_own_test_finds_and_the_second_has_none() {
    let place = tempfile::tempdir().unwrap();
    let repository = SampleRepository::create_at(place.path().join("slug")).unwrap();
    let (names, max) = ("tests/names_test.sh", "tests/max_test.sh");
    assert!(tried(&repository, REPOSITORY_FILES[0].1, names).0);
    assert!(!tried(&repository, REPOSITORY_FILES[0].1, max).0);
    assert!(tried(&repository, FIRST_ATTEMPT_SOURCE, names).0);
    let (held, said) = tried(&repository, FIRST_ATTEMPT_SOURCE, max);
    let wrong: Vec<_> = said.lines().filter(|line| line.starts_with("NOT OK")).collect();
    assert!(!held);
    assert_eq!(
        wrong,
        [
            "NOT OK  slug --max 11 Hello, wide world! -> hello-wide-, but wanted: hello-wide",
            "NOT OK  slug --max 8 Hello, wide world! -> hello-wi, but wanted: hello",
        ]
    );
    assert!(tried(&repository, SECOND_ATTEMPT_SOURCE, names).0);
    assert!(tried(&repository, SECOND_ATTEMPT_SOURCE, max).0);
}

#[test]
fn the_sample_is_always_the_same_commit() {
    let place = tempfile::tempdir().unwrap();
    let commit = |name: &str| {
        let repository = SampleRepository::create_at(place.path().join(name)).unwrap();
        assert!(!repository.create_bundle().unwrap().is_empty());
        repository.run_git(&["rev-parse", "HEAD"]).unwrap()
    };
    assert_eq!(commit("a"), commit("b"));
}
