use std::{collections::BTreeMap, path::Path};

use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn load(
    flags: &[(&str, &str)],
    file: &str,
    environment: &[(&str, &str)],
) -> Result<LoadedConfig, ConfigProblems> {
    let file = ConfigSources::parse_file(file).unwrap();
    CynodeConfig::load_from(ConfigSources {
        flags: map(flags),
        file,
        environment: map(environment),
    })
}

fn shown(loaded: &LoadedConfig, key: &str) -> (String, &'static str) {
    let found = loaded.effective.iter().find(|effective| effective.key == key).unwrap();
    (found.value.clone(), found.source.as_str())
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_environment() {
    let environment = [("CYNODE_SERVER_LISTEN", "127.0.0.1:3")];
    let file = "[server]\nlisten = '127.0.0.1:2'";
    let key = "server.listen";
    let all = load(&[(key, "127.0.0.1:1")], file, &environment).unwrap();
    assert_eq!(shown(&all, key), ("127.0.0.1:1".into(), "flag"));
    let two = load(&[], file, &environment).unwrap();
    assert_eq!(shown(&two, key), ("127.0.0.1:2".into(), "file"));
    let one = load(&[], "", &environment).unwrap();
    assert_eq!(shown(&one, key), ("127.0.0.1:3".into(), "environment"));
    let none = load(&[], "", &[]).unwrap();
    assert_eq!(shown(&none, key), ("127.0.0.1:12080".into(), "default"));
}

#[test]
fn every_problem_is_reported_at_once() {
    let problems = load(
        &[("server.listn", "x"), ("database.url", "postgres://a:hunter2@b/c")],
        "[server]\nlisten = 'nowhere'\n[sever]\nlisten = 'x'",
        &[("CYNODE_SEVER_LISTEN", "x")],
    )
    .unwrap_err();
    assert_eq!(
        problems.0,
        [
            "server.listen (from file): invalid socket address syntax",
            "database.url: a flag can be read by everybody on this machine; \
             use --set database.url_file=FILE",
            "server.listn (from flag): there is no such key",
            "sever.listen (from file): there is no such key",
            "CYNODE_SEVER_LISTEN (from environment): there is no such variable",
        ],
        "S001-11: a wrong value of a file, a flag or the environment is refused"
    );
}

#[test]
fn the_commented_default_file_is_the_default() {
    let written = load(&[], DEFAULT_CONFIG_TOML, &[]).unwrap();
    let built_in = load(&[], "", &[]).unwrap();
    let values = |loaded: &LoadedConfig| -> Vec<(&str, String)> {
        loaded.effective.iter().map(|e| (e.key, e.value.clone())).collect()
    };
    assert_eq!(values(&written), values(&built_in), "S001-65: the file has the same defaults");
    // Keys without a default stand in it as comments.
    for EffectiveSetting { key, .. } in &built_in.effective {
        let name = key.split_once('.').unwrap().1;
        let given = |line: &&str| line.trim_start_matches("# ").starts_with(&format!("{name} ="));
        assert!(
            DEFAULT_CONFIG_TOML.lines().any(|line| given(&line)),
            "S001-65: {key} is missing in config.default.toml"
        );
        assert!(key_meaning(key).is_some(), "S001-65: {key} has no comment in config.default.toml");
    }
}

#[test]
fn a_secret_is_masked_wherever_it_came_from() {
    for loaded in [
        load(&[], "[database]\nurl = 'postgres://a:hunter2@b/c?sslmode=verify-full'", &[]).unwrap(),
        load(&[], "", &[("DATABASE_URL", "postgres://a:hunter2@b/c?sslmode=verify-full")]).unwrap(),
    ] {
        assert_eq!(shown(&loaded, "database.url").0, crate::redact::MASK);
        assert!(!format!("{loaded:?}").contains("hunter2"));
        let url = loaded.config.database.pool_options().unwrap().url;
        assert_eq!(url, "postgres://a:hunter2@b/c?sslmode=verify-full");
    }
}

#[test]
fn a_file_that_is_not_toml_is_not_quoted() {
    let error = ConfigSources::parse_file("[database]\nurl = hunter2").unwrap_err().to_string();
    assert_eq!(error, "line 2 is not TOML");
}

#[test]
fn numbers_outside_their_bounds_are_clamped_and_said() {
    let loaded =
        load(&[], "", &[("PLANNER_MAX_STEPS", "400"), ("MODEL_TEMPERATURE", "warm")]).unwrap();
    assert_eq!(loaded.config.planner.max_steps, 50, "S001-62, S001-81");
    assert_eq!(loaded.config.planner.temperature, 0.2, "S001-64, S001-81");
    let none = load(&[], "", &[]).unwrap().config.planner;
    assert_eq!((none.max_steps, none.temperature), (20, 0.2), "S001-61, S001-81: nothing given");
    let notes: Vec<_> = loaded.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "PLANNER_MAX_STEPS is 400, which is outside 1 to 50: using 50",
            "MODEL_TEMPERATURE is not a number (4 characters): using 0.2",
        ],
        "S001-64"
    );
}

proptest! {
    #[test]
    fn no_environment_can_make_the_tuned_numbers_leave_their_bounds(
        steps in ".{0,30}|-?[0-9]{1,30}",
        temperature in ".{0,30}|-?[0-9]{1,30}(\\.[0-9]*)?",
        timeout in ".{0,30}|-?[0-9]{1,30}",
    ) {
        let environment = [
            ("PLANNER_MAX_STEPS", steps.as_str()),
            ("MODEL_TEMPERATURE", &temperature),
            ("CYNODE_SERVER_REQUEST_TIMEOUT_SECONDS", &timeout),
        ];
        let config = load(&[], "", &environment).expect("S001-61, S001-81").config;
        let planner = config.planner;
        prop_assert!((1..=50).contains(&planner.max_steps), "S001-29, S001-61, S001-81");
        prop_assert!(
            (0.0..=2.0).contains(&planner.temperature),
            "S001-30, S001-61, S001-63, S001-81"
        );
        prop_assert!((1..=600).contains(&config.server.limits.time.as_secs()));
    }
}

#[test]
fn traces_leave_the_machine_in_clear_text_only_if_the_configuration_says_so() {
    let key = "telemetry.otlp_endpoint";
    let problem = |endpoint: &str, file: &str| {
        load(&[(key, endpoint)], file, &[]).err().map(|problems| problems.0.join("\n"))
    };
    for endpoint in [
        "http://127.0.0.1:4318",
        "http://[::1]:4318",
        "http://localhost:4318",
        "https://collector.example",
    ] {
        assert_eq!(problem(endpoint, ""), None, "{endpoint}");
    }
    for endpoint in
        ["http://collector.example:4318", "http://10.0.0.7:4318", "http://127.0.0.1.example"]
    {
        let refused = problem(endpoint, "").unwrap();
        assert!(refused.contains("in clear text: use https"), "{endpoint}: {refused}");
        let allowed = problem(endpoint, "[telemetry]\notlp_allow_plain_http = true");
        assert_eq!(allowed, None, "{endpoint}");
    }
    assert!(problem("ftp://collector.example", "").is_some());
    assert!(problem("nowhere", "").is_some());
}

#[test]
fn a_connection_leaves_the_machine_in_clear_text_only_if_the_configuration_says_so() {
    let problems = |flags: &[(&str, &str)], environment: &[(&str, &str)]| {
        load(flags, "", environment).err().map(|problems| problems.0).unwrap_or_default()
    };
    let database = [("DATABASE_URL", "postgres://a:hunter2@db.example/c")];
    assert_eq!(
        problems(
            &[
                ("engine.ingress_url", "http://10.0.0.7:8080"),
                ("manager.url", "http://me:hunter2@pm.example")
            ],
            &database
        ),
        [
            "engine.ingress_url: http://10.0.0.7:8080 is not encrypted, and not on this machine: use https, or set tls.insecure = true",
            "manager.url: http://pm.example is not encrypted, and not on this machine: use https, or set tls.insecure = true",
            "database.url: the database is not on this machine, and its name is not verified: add `?sslmode=verify-full` (and \
             `&sslrootcert=FILE` for an authority of your own), or set tls.insecure = true",
        ]
    );
    let loaded = load(&[("tls.insecure", "true")], "", &database).unwrap();
    assert_eq!(loaded.clear_text, ["database.url"], "each start warns of it");
    let local = [
        "http://127.0.0.1:8080",
        "http://localhost:8080",
        "https://engine.example",
        "unix:/run/engine/ingress.sock",
    ];
    for local in local {
        assert_eq!(problems(&[("engine.ingress_url", local)], &[]), Vec::<String>::new());
    }
    assert_eq!(
        problems(&[("engine.ingress_url", "unix:ingress.sock")], &[]),
        ["engine.ingress_url: `unix:ingress.sock` has no absolute path of a socket"]
    );
    assert_eq!(problems(&[("manager.url", "unix:/run/manager.sock")], &[]).len(), 1);
}

#[test]
fn keys_of_certificates_that_contradict_each_other_are_refused() {
    let problems = |flags: &[(&str, &str)]| {
        load(flags, "", &[]).err().map(|problems| problems.0.join("\n")).unwrap_or_default()
    };
    let file = ("tls.certificate_file", "/c.pem");
    assert_eq!(problems(&[file]), "tls.certificate_file and tls.key_file are given together");
    let both = [file, ("tls.key_file", "/c.key"), ("tls.acme_domains", "cynode.example")];
    assert_eq!(problems(&both), "give tls.certificate_file or tls.acme_domains, not both");
    assert_eq!(
        problems(&[("tls.acme_directory_url", "http://acme.example/dir")]),
        "tls.acme_directory_url begins with https://"
    );
    assert!(problems(&[("server.behind_proxy", "true")]).contains("server.trusted_proxies"));
    let named = [("server.behind_proxy", "true"), ("server.trusted_proxies", "10.0.0.1")];
    assert_eq!(problems(&named), "");
}

#[test]
fn the_file_of_the_host_is_read_where_nothing_else_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (host, named) = (dir.path().join("host.toml"), dir.path().join("named.toml"));
    let read =
        |file: Option<&Path>| ConfigSources::from_process(file, &[], Some(&host)).unwrap().file;
    assert_eq!(read(None), map(&[]), "a file that is not there is none");
    std::fs::write(&host, "[server]\nlisten = '127.0.0.1:1'").unwrap();
    std::fs::write(&named, "[server]\nlisten = '127.0.0.1:2'").unwrap();
    assert_eq!(read(None), map(&[("server.listen", "127.0.0.1:1")]));
    assert_eq!(read(Some(&named)), map(&[("server.listen", "127.0.0.1:2")]));
}

#[test]
fn the_url_of_the_owner_of_the_schema_is_verified_like_that_of_the_server() {
    let away = "postgres://owner@db.example/cynode";
    let problems = load(&[], &format!("[database]\nowner_url = '{away}'"), &[]).unwrap_err();
    assert_eq!(problems.0.len(), 1);
    assert!(problems.0[0].starts_with("database.owner_url: the database is not on this machine"));
    let verified = format!("[database]\nowner_url = '{away}?sslmode=verify-full'");
    let loaded = load(&[], &verified, &[]).unwrap();
    assert_eq!(shown(&loaded, "database.owner_url").0, crate::redact::MASK);
}

#[test]
fn an_unknown_memory_backend_and_half_an_embedder_are_refused_at_the_start() {
    let problems = |file: &str| load(&[], file, &[]).unwrap_err().0;
    assert_eq!(
        problems("[memory]\nbackend = 'qdrant'"),
        [
            "memory.backend (from file): there is no memory backend `qdrant`: use `postgres`, the database of the installation"
        ],
        "S001-51: refused where it is configured, and not at the first search"
    );
    let half = problems("[memory]\nembedder_file = '/vectors.txt'");
    assert!(half.len() == 1 && half[0].contains("memory.embedder_sha256"), "S001-51: {half:?}");
    let odd = problems("[memory]\nembedder_file = '/vectors.txt'\nembedder_sha256 = 'latest'");
    assert!(odd.len() == 1 && odd[0].contains("64 hexadecimal digits"), "S001-51: {odd:?}");

    let dir = tempfile::tempdir().unwrap();
    let vectors = dir.path().join("vectors.txt");
    std::fs::write(&vectors, "retry 1 0\nharbour 0 1\n").unwrap();
    let file = |sha256: &str| {
        format!("[memory]\nembedder_file = '{}'\nembedder_sha256 = '{sha256}'", vectors.display())
    };
    let other = load(&[], &file(&"0".repeat(64)), &[]).unwrap();
    let refused = other.config.memory.load_embedder().err().unwrap();
    assert!(refused.to_string().contains("memory.embedder_sha256"), "S001-51: {refused:#}");
    let none = load(&[], "", &[]).unwrap();
    assert!(none.config.memory.load_embedder().unwrap().is_none());
}
