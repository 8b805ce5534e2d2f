//! `cynode config` as a person runs it.

use std::process::{Command, Stdio};

use crate::up::cynode;

fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn config_check_prints_what_holds_with_its_source_and_masks_secrets() {
    let mut command = cynode();
    command.args(["config", "check", "--set", "server.listen=127.0.0.1:7777"]);
    command
        .env("DATABASE_URL", "postgres://cynode:hunter2@db/cynode?sslmode=verify-full")
        .env("PLANNER_MAX_STEPS", "99");
    let (code, stdout, _) = run(&mut command);
    assert_eq!(code, 0);
    let warning = "warning: PLANNER_MAX_STEPS is 99, which is outside 1 to 50: using 50";
    assert!(stdout.lines().any(|line| line == warning), "S001-64: {stdout}");
    insta::assert_snapshot!(stdout, @r#"
    server.listen                       127.0.0.1:7777  (flag)
    server.internal_listen              127.0.0.1:12082  (default)
    server.public_url                   (not set)  (default)
    server.body_limit_bytes             1048576  (default)
    server.request_timeout_seconds      30  (default)
    server.requests_per_second          50  (default)
    server.request_burst                200  (default)
    server.policy_changes_per_minute    20  (default)
    server.shutdown_grace_seconds       10  (default)
    server.header_timeout_seconds       10  (default)
    server.max_connections              4096  (default)
    server.max_connections_per_source   512  (default)
    server.trusted_proxies              (not set)  (default)
    server.behind_proxy                 false  (default)
    tls.certificate_file                (not set)  (default)
    tls.key_file                        (not set)  (default)
    tls.acme_domains                    (not set)  (default)
    tls.acme_contact                    (not set)  (default)
    tls.acme_directory_url              https://acme-v02.api.letsencrypt.org/directory  (default)
    tls.acme_root_file                  (not set)  (default)
    tls.directory                       (not set)  (default)
    tls.names                           (not set)  (default)
    tls.loopback                        false  (default)
    tls.insecure                        false  (default)
    database.url_file                   (not set)  (default)
    database.url                        [redacted]  (environment)
    database.owner_url_file             (not set)  (default)
    database.owner_url                  (not set)  (default)
    database.wal_archive                (not set)  (default)
    database.max_connections            16  (default)
    database.statement_timeout_seconds  20  (default)
    engine.ingress_url                  (not set)  (default)
    engine.admin_url                    (not set)  (default)
    engine.runner_url                   (not set)  (default)
    engine.runner_listen                127.0.0.1:12084  (default)
    engine.reconcile_interval_ms        1000  (default)
    engine.redispatch_after_ms          5000  (default)
    storage.directory                   (not set)  (default)
    storage.master_key_file             (not set)  (default)
    master_key.source                   file  (default)
    master_key.credential               cynode-master-key  (default)
    master_key.previous_file            (not set)  (default)
    master_key.vault_address            (not set)  (default)
    master_key.vault_mount              transit  (default)
    master_key.vault_key                cynode  (default)
    master_key.vault_token_file         (not set)  (default)
    master_key.vault_namespace          (not set)  (default)
    master_key.vault_ca_file            (not set)  (default)
    gateway.allowed_hosts               (not set)  (default)
    gateway.public_url                  (not set)  (default)
    gateway.max_message_bytes           6291456  (default)
    egress.allow_private                (not set)  (default)
    audit.retention_days                365  (default)
    transcripts.retention_days          90  (default)
    manager.url                         (not set)  (default)
    manager.credential_file             (not set)  (default)
    manager.ca_file                     (not set)  (default)
    manager.instructions                (not set)  (default)
    manager.listen                      127.0.0.1:12088  (default)
    manager.analyst_listen              127.0.0.1:12089  (default)
    mail.server                         (not set)  (default)
    mail.from                           (not set)  (default)
    mail.user                           (not set)  (default)
    mail.password_file                  (not set)  (default)
    mail.password                       (not set)  (default)
    telemetry.log                       info  (default)
    telemetry.otlp_endpoint             (not set)  (default)
    telemetry.otlp_allow_plain_http     false  (default)
    auth.session_hours                  12  (default)
    auth.idempotency_hours              24  (default)
    auth.private_issuers                (not set)  (default)
    auth.identity_providers_file        (not set)  (default)
    planner.max_steps                   50  (environment)
    planner.temperature                 0.2  (default)
    memory.backend                      postgres  (default)
    memory.embedder_file                (not set)  (default)
    memory.embedder_sha256              (not set)  (default)
    warning: PLANNER_MAX_STEPS is 99, which is outside 1 to 50: using 50
    "#);
}

#[test]
fn a_broken_configuration_is_refused_with_every_problem_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cynode.toml");
    std::fs::write(&file, "[server]\nlisten = 'nowhere'\n[sever]\nx = 1\n").unwrap();
    let mut command = cynode();
    command
        .args(["serve", "--config"])
        .arg(&file)
        .args(["--set", "database.url=postgres://a:hunter2@b/c"]);
    let (code, stdout, stderr) = run(&mut command);
    assert_eq!((code, stdout.as_str()), (1, ""));
    insta::assert_snapshot!(stderr, @r"
    cynode: the configuration is wrong:
      - server.listen (from file): invalid socket address syntax
      - database.url: a flag can be read by everybody on this machine; use --set database.url_file=FILE
      - sever.x (from file): there is no such key
    `cynode config default` prints every key with its meaning
    ");
}

#[test]
fn without_a_database_serve_says_what_to_do() {
    let (code, _, stderr) = run(cynode().args(["serve", "--set", "server.listen=127.0.0.1:0"]));
    assert_eq!(code, 1);
    assert!(
        stderr.contains("set DATABASE_URL or database.url_file, or run `cynode up`"),
        "{stderr}"
    );
}

#[test]
fn the_committed_openapi_document_is_what_the_program_prints() {
    let (code, stdout, _) = run(cynode().arg("openapi"));
    assert_eq!(code, 0);
    assert!(stdout.trim() == crate::source::read("docs/openapi.json").trim(), "run `just gen`");
    let (code, stdout, _) = run(cynode().args(["openapi", "--internal"]));
    assert_eq!(code, 0);
    let committed = crate::source::read("docs/openapi-internal.json");
    assert!(stdout.trim() == committed.trim(), "run `just gen`");
}

#[test]
fn doctor_names_each_check_and_gives_json_to_programs() {
    let (_, stdout, _) =
        run(cynode().args(["doctor", "--json", "--set", "server.listen=127.0.0.1:0"]));
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let names: Vec<_> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].clone()).collect();
    let expected = [
        "postgresql",
        "restate-server",
        "programs",
        "user namespaces",
        "cgroups",
        "bubblewrap",
        "git",
        "disk",
        "port",
        "internal port",
        "runner port",
        "manager port",
        "analyst port",
    ];
    assert_eq!(names, expected);
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(check["status"] == "ok", check.get("fix").is_none(), "{check}");
    }
}

#[test]
fn doctor_says_who_has_a_port_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, stdout, _) =
        run(cynode().arg("doctor").arg("--set").arg(format!("server.listen={address}")));
    assert_eq!(code, 1);
    let fix = format!("fix: see who has it with `ss -ltnp 'sport = :{}'`", address.port());
    assert!(stdout.contains(&fix), "{stdout}");
}

#[test]
fn what_could_not_be_written_is_told_and_ends_with_1() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, _, stderr) = run(cynode().args(["config", "default"]).stdout(full));
    assert_eq!(
        (code, stderr.as_str()),
        (1, "cynode: standard output cannot be written: No space left on device (os error 28)\n")
    );
}

#[test]
fn whoever_wants_no_colours_gets_none() {
    let coloured = |no: &str| {
        let line = format!("{} doctor", env!("CARGO_BIN_EXE_cynode"));
        // A terminal for it to write to.
        let mut command = Command::new("script");
        command.args(["--quiet", "--command", &line, "/dev/null"]).stdin(Stdio::null());
        let output = command.env_remove("DATABASE_URL").env("NO_COLOR", no).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("bubblewrap"), "{text}");
        text.contains("\u{1b}[")
    };
    assert_eq!([coloured(""), coloured("1")], [true, false]);
}
