use proptest::prelude::*;

use super::*;

fn role_from(text: Option<&str>) -> SettingsLayer {
    SettingsLayer { role: text.map(str::to_owned), ..SettingsLayer::default() }
}

fn environment(values: &[(&str, &str)]) -> PmaEnvironment {
    PmaEnvironment::from_values(
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// Settles with a token file, which every process needs.
fn settle(
    flags: SettingsLayer,
    file: SettingsLayer,
    environment: &PmaEnvironment,
) -> Result<(PmaConfig, Vec<String>), String> {
    let flags = SettingsLayer { token_file: Some("token".into()), ..flags };
    PmaConfig::resolve_layers(flags, file, environment)
        .map(|(config, notes)| (config, notes.iter().map(ToString::to_string).collect()))
        .map_err(|error| error.to_string())
}

const MANAGER: &str = "project_manager";
const ANALYST: &str = "project_analyst";

#[test]
fn the_flag_beats_the_file_and_the_file_beats_the_environment_in_all_eight_combinations() {
    for present in 0..8u8 {
        let given = |bit: u8, role| (present & (1 << bit) != 0).then_some(role);
        for (a, b) in [(MANAGER, ANALYST), (ANALYST, MANAGER)] {
            // Whoever is stronger says the one, everybody weaker says the other.
            for strongest in 0..3 {
                let role = |place| if place == strongest { a } else { b };
                let sources = [given(0, role(0)), given(1, role(1)), given(2, role(2))];
                let environment = match sources[2] {
                    Some(role) => environment(&[("PMA_ROLE", role)]),
                    None => PmaEnvironment::default(),
                };
                let settled = settle(role_from(sources[0]), role_from(sources[1]), &environment);
                let winner = sources.into_iter().flatten().next();
                match winner {
                    Some(winner) => {
                        let role = settled.unwrap().0.role;
                        assert_eq!(
                            role.as_str(),
                            winner,
                            "S000-038, S000-045, S000-046, S000-102, CYNAI.PMAGNT.RoleModes: {sources:?}"
                        );
                    }
                    None => assert!(
                        settled.unwrap_err().starts_with("no role was given"),
                        "S000-043, S000-102: a role is required: {sources:?}"
                    ),
                }
            }
        }
    }
}

#[test]
fn a_role_that_does_not_exist_stops_the_start_wherever_it_was_said() {
    for bad in [
        "",
        "pm",
        "Project_Manager",
        "project_manager ",
        "architect",
        "project-manager",
        "workflow_runner",
    ] {
        let told =
            settle(role_from(Some(bad)), role_from(Some(MANAGER)), &PmaEnvironment::default());
        assert_eq!(
            told.unwrap_err(),
            "the role from the command line is neither project_manager nor project_analyst",
            "S000-044: {bad}"
        );
        let told =
            settle(role_from(None), role_from(Some(bad)), &environment(&[("PMA_ROLE", MANAGER)]));
        assert_eq!(
            told.unwrap_err(),
            "the role from the configuration file is neither project_manager nor project_analyst"
        );
    }
    let told = settle(role_from(None), role_from(None), &environment(&[("PMA_ROLE", "boss")]));
    assert_eq!(
        told.unwrap_err(),
        "the role from the environment is neither project_manager nor project_analyst"
    );
    let told = settle(role_from(None), role_from(None), &environment(&[("PMA_ROLE", "")]));
    assert!(told.unwrap_err().starts_with("no role was given"));
}

#[test]
fn a_process_that_is_told_its_role_and_token_has_defaults_for_everything_else() {
    let (config, notes) =
        settle(role_from(Some(MANAGER)), SettingsLayer::default(), &PmaEnvironment::default())
            .unwrap();
    let tuning = RoleTuning { max_steps: 20, temperature: 0.2, patience: Duration::from_mins(1) };
    assert_eq!(config.places, InstructionPaths::default(), "S000-103: the documented defaults");
    assert_eq!(
        config,
        PmaConfig {
            role: PmaRole::ProjectManager,
            places: InstructionPaths::default(),
            orchestrator: "http://127.0.0.1:12082".into(),
            ca_file: None,
            identity_files: None,
            insecure: false,
            token_file: "token".into(),
            listen: "127.0.0.1:12088".parse().unwrap(),
            credential_file: None,
            concurrency: 4,
            lease: Duration::from_secs(20),
            tuning,
            log: "info".into(),
        },
        "S004-163: a model has 60 seconds by default"
    );
    assert_eq!(notes, Vec::<String>::new());
    let (analyst, _) =
        settle(role_from(Some(ANALYST)), SettingsLayer::default(), &PmaEnvironment::default())
            .unwrap();
    assert_eq!(analyst.listen, "127.0.0.1:12089".parse().unwrap());
    let told = PmaConfig::resolve_layers(
        role_from(Some(MANAGER)),
        SettingsLayer::default(),
        &PmaEnvironment::default(),
    )
    .unwrap_err();
    assert_eq!(told.to_string(), "`token-file` is missing");
}

#[test]
fn root_and_paths_of_instructions_come_from_flag_file_or_environment() {
    let flags = SettingsLayer { instructions: Some("f".into()), ..role_from(Some(MANAGER)) };
    let file = SettingsLayer::parse_file("instructions = 'x'\nproject-manager-instructions = 'pm'")
        .unwrap();
    let environment = environment(&[
        ("PMA_INSTRUCTIONS", "e"),
        ("PMA_PROJECT_MANAGER_INSTRUCTIONS", "no"),
        ("PMA_PROJECT_ANALYST_INSTRUCTIONS", "pa"),
    ]);
    let (config, _) = settle(flags, file, &environment).unwrap();
    let expected = InstructionPaths {
        root: "f".into(),
        project_manager: Some("pm".into()),
        project_analyst: Some("pa".into()),
    };
    assert_eq!(
        config.places, expected,
        "S000-054, S000-056: from the flag, the file and the environment"
    );
}

#[test]
fn a_bad_number_is_told_and_does_not_stop_the_start() {
    let environment = environment(&[
        ("PLANNER_MAX_STEPS", "many"),
        ("MODEL_TEMPERATURE", "7"),
        ("PMA_CONCURRENCY", "0"),
        ("PMA_THINK_SECONDS", ""),
    ]);
    let (config, notes) =
        settle(role_from(Some(MANAGER)), SettingsLayer::default(), &environment).unwrap();
    assert_eq!(
        (config.tuning.max_steps, config.tuning.temperature, config.concurrency),
        (20, 2.0, 1)
    );
    assert_eq!(
        notes,
        [
            "PLANNER_MAX_STEPS is not a number (4 characters): using 20",
            "concurrency is 0, which is outside 1 to 64: using 1",
            "MODEL_TEMPERATURE is 7, which is outside 0 to 2: using 2",
        ]
    );
    let file = SettingsLayer::parse_file("planner-max-steps = 7\nmodel-temperature = 0.5").unwrap();
    let (config, notes) = settle(role_from(Some(MANAGER)), file, &environment).unwrap();
    assert_eq!((config.tuning.max_steps, config.tuning.temperature, notes.len()), (7, 0.5, 1));
}

#[test]
fn an_address_that_cannot_be_used_stops_the_start_with_a_reason() {
    for (name, value) in [
        ("PMA_ORCHESTRATOR", "nowhere"),
        ("PMA_ORCHESTRATOR", "file:///etc/passwd"),
        ("PMA_ORCHESTRATOR", "http://user:secret@127.0.0.1"),
        ("PMA_LISTEN", "12085"),
    ] {
        let told = settle(
            role_from(Some(MANAGER)),
            SettingsLayer::default(),
            &environment(&[(name, value)]),
        )
        .unwrap_err();
        assert!(
            told.contains("from the environment cannot be used") && !told.contains("secret"),
            "{told}"
        );
    }
}

#[test]
fn no_setting_can_hold_a_key_of_a_provider() {
    // Every setting there is. A new one that could hold a secret is to be seen here.
    let all = "role = 'a'\ninstructions = 'a'\nproject-manager-instructions = 'a'\nproject-analyst-instructions = 'a'\n\
        orchestrator = 'a'\nca-file = 'a'\ncertificate-file = 'a'\nkey-file = 'a'\ninsecure = 'a'\ntoken-file = 'a'\nlisten = 'a'\ncredential-file = 'a'\nconcurrency = 'a'\nthink-seconds = 'a'\nlease-seconds = 'a'\n\
        planner-max-steps = 'a'\nmodel-temperature = 'a'\nlog = 'a'\n";
    let full = SettingsLayer::parse_file(all).unwrap();
    let a = || Some("a".to_owned());
    let expected = SettingsLayer {
        role: a(),
        instructions: a(),
        project_manager_instructions: a(),
        project_analyst_instructions: a(),
        orchestrator: a(),
        ca_file: a(),
        certificate_file: a(),
        key_file: a(),
        insecure: a(),
        token_file: a(),
        listen: a(),
        credential_file: a(),
        concurrency: a(),
        think_seconds: a(),
        lease_seconds: a(),
        planner_max_steps: a(),
        model_temperature: a(),
        log: a(),
    };
    assert_eq!(full, expected, "S000-080: these are all settings");
    for foreign in [
        "api-key",
        "openai-api-key",
        "anthropic-api-key",
        "provider",
        "database-url",
        "token",
        "credential",
    ] {
        let told =
            SettingsLayer::parse_file(&format!("{foreign} = 'sk-secret'")).unwrap_err().to_string();
        assert!(
            told.contains("unknown field") && !told.contains("sk-secret"),
            "S000-078, S000-080: no setting holds a database's address or a provider's key: {told}"
        );
    }
    let key = ["KEY", "SECRET", "PASSWORD", "DATABASE", "OPENAI", "ANTHROPIC"];
    assert!(
        ENVIRONMENT_VARIABLES
            .iter()
            // A variable that names a file holds no key itself.
            .filter(|name| !name.ends_with("_FILE"))
            .all(|name| key.iter().all(|word| !name.contains(word))),
        "S000-078, S000-080: no variable holds a database's address or a provider's key"
    );
}

fn source() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(prop_oneof![
        Just(MANAGER.to_owned()),
        Just(ANALYST.to_owned()),
        "[a-z_]{0,12}"
    ])
}

proptest! {
    #[test]
    fn the_same_sources_always_give_the_same_role_and_it_is_that_of_the_strongest(flag in source(), file in source(), variable in source()) {
        let environment = environment(&variable.iter().map(|role| ("PMA_ROLE", role.as_str())).collect::<Vec<_>>());
        let settled = || settle(role_from(flag.as_deref()), role_from(file.as_deref()), &environment);
        prop_assert_eq!(settled(), settled(), "S000-047");
        let variable = variable.clone().filter(|role| !role.is_empty());
        let strongest = flag.clone().or(file.clone()).or(variable);
        let expected = strongest.as_deref().and_then(PmaRole::from_name);
        prop_assert_eq!(settled().ok().map(|(config, _)| config.role), expected, "S000-047");
    }

    #[test]
    fn no_environment_makes_the_numbers_leave_their_bounds(steps in "\\PC{0,12}|-?[0-9]{0,20}", temperature in "\\PC{0,12}|-?[0-9]{0,9}\\.?[0-9]{0,9}") {
        let environment = environment(&[("PLANNER_MAX_STEPS", &steps), ("MODEL_TEMPERATURE", &temperature)]);
        let (config, _) = settle(role_from(Some(MANAGER)), SettingsLayer::default(), &environment).unwrap();
        prop_assert!((1..=50).contains(&config.tuning.max_steps));
        prop_assert!((0.0..=2.0).contains(&config.tuning.temperature));
    }
}

#[test]
fn clear_text_leaves_the_machine_only_if_it_is_allowed() {
    let role = SettingsLayer { role: Some("project_manager".into()), ..SettingsLayer::default() };
    let read = |flags: SettingsLayer| {
        let flags = SettingsLayer { token_file: Some("token".into()), ..flags };
        PmaConfig::resolve_layers(flags, SettingsLayer::default(), &PmaEnvironment::default())
            .map(|(config, _)| config.insecure)
            .map_err(|error| error.to_string())
    };
    let far = SettingsLayer { orchestrator: Some("http://10.0.0.7:12082".into()), ..role.clone() };
    assert!(read(far.clone()).unwrap_err().contains("is not encrypted"));
    assert_eq!(read(SettingsLayer { insecure: Some("true".into()), ..far }), Ok(true));
    let open = SettingsLayer { listen: Some("0.0.0.0:12088".into()), ..role.clone() };
    assert!(read(open).unwrap_err().contains("chats are not encrypted"));
    let half = SettingsLayer { certificate_file: Some("c.pem".into()), ..role };
    assert_eq!(read(half), Err("`key-file` is missing".to_owned()));
}
