//! The program itself: one file, two roles.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::fake::{self, Fake, Reply, TOKEN};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program, with nothing of this environment.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cynode-pma"));
    command.env_clear().current_dir(root());
    command
}

fn refused(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn token(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, format!("cyn_svc_token_of_{name}\n")).unwrap();
    path
}

/// What a process says about itself.
async fn health(listen: SocketAddr) -> Value {
    let answer = reqwest::get(format!("http://{listen}/healthz")).await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

#[test]
fn a_process_without_a_role_does_not_start_and_says_so() {
    let told = refused(&mut program());
    assert!(told.contains("no role was given: use --role"), "S000-043, S000-102: {told}");
    let told = refused(program().arg("--role=architect"));
    assert!(
        told.contains("the role from the command line is neither"),
        "S000-044, S000-102: {told}"
    );
    for role in ["project_manager", "project_analyst"] {
        // The role is accepted: the next thing that is missing is named.
        let told = refused(program().arg(format!("--role={role}")));
        assert!(told.contains("`token-file` is missing"), "S000-044, {role}: {told}");
    }
    let told = refused(program().env("PMA_ROLE", "boss"));
    assert!(told.contains("the role from the environment is neither"), "S000-102: {told}");
}

#[test]
fn a_process_without_instructions_or_token_does_not_start_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let told = refused(program().arg("--role=project_manager"));
    assert!(told.contains("`token-file` is missing"), "{told}");
    let token = token(dir.path(), "manager");
    let with = |role: &str| {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0", "--role", role]).arg("--token-file").arg(&token);
        command
    };
    // There are words for the manager only, and the analyst does not take them.
    let only = dir.path().join("instructions");
    let copied = only.join("project_manager");
    std::fs::create_dir_all(&copied).unwrap();
    for entry in std::fs::read_dir(root().join("instructions/project_manager")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copied.join(entry.file_name())).unwrap();
    }
    let told = refused(with("project_analyst").arg("--instructions").arg(&only));
    let unread = "the instructions of project_analyst cannot be read";
    assert!(
        told.contains(unread),
        "S000-050, S000-053, S000-103: CYNAI.PMAGNT.InstructionsLoading: {told}; a bundle is required: {told}"
    );
    let told = refused(
        with("project_analyst")
            .arg("--instructions")
            .arg(&only)
            .arg("--project-analyst-instructions")
            .arg(&copied),
    );
    assert!(told.contains("both roles would read"), "{told}");
    let short = dir.path().join("short");
    std::fs::write(&short, "x\n").unwrap();
    let told =
        refused(program().args(["--role", "project_manager"]).arg("--token-file").arg(&short));
    assert!(told.contains("holds no secret"), "{told}");
}

#[tokio::test]
async fn both_roles_of_one_program_run_side_by_side_and_keep_their_role_until_they_are_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start().await;
    let mut running = Vec::new();
    for role in ["project_manager", "project_analyst"] {
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = dir.path().join(format!("{role}.toml"));
        // The role comes from the file; the environment says the other, and is weaker.
        std::fs::write(&config, format!("role = '{role}'\nlisten = '{listen}'\n")).unwrap();
        let other = if role == "project_manager" { "project_analyst" } else { "project_manager" };
        let child = program()
            .env("PMA_ROLE", other)
            .args(["--orchestrator", &fake.base, "--log", "off"])
            .arg("--config")
            .arg(&config)
            .arg("--token-file")
            .arg(token(dir.path(), role))
            .spawn()
            .unwrap();
        running.push((role, listen, Running(child)));
    }
    let claims = fake.until("handoff.claim", 2).await;
    let mut tokens: Vec<&str> = claims.iter().map(|claim| claim.token.as_str()).collect();
    tokens.sort_unstable();
    let expected = ["cyn_svc_token_of_project_analyst", "cyn_svc_token_of_project_manager"];
    assert_eq!(tokens, expected, "S000-048: each comes with its own token");
    for (role, listen, _) in &running {
        let expected = json!({ "status": "ok", "role": role });
        assert_eq!(
            health(*listen).await,
            expected,
            "S000-001, S000-038, S000-048, CYNAI.PMAGNT.Doc.CyNodePma"
        );
        // Another role in its file, or in a message to it, changes nothing.
        let other = if *role == "project_manager" { "project_analyst" } else { "project_manager" };
        let config = dir.path().join(format!("{role}.toml"));
        std::fs::write(&config, format!("role = '{other}'\nlisten = '{listen}'\n")).unwrap();
        let message = json!({ "role": other }).to_string();
        let url = format!("http://{listen}/healthz");
        reqwest::Client::new().post(url).body(message).send().await.unwrap();
        assert_eq!(health(*listen).await, expected, "S000-049");
    }
    // Idle, they ask nobody anything.
    assert_eq!(fake.seen(), []);
    for (role, _, running) in &mut running {
        let pid = running.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(running.0.wait().unwrap().success(), "{role}");
    }
}

#[tokio::test]
async fn logs_hold_no_secret_and_nothing_of_what_was_asked_or_answered() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start().await;
    let mut handoff = fake::handoff(&json!({ "kind": "summarise", "units": [] }));
    handoff["context"]["task"]["description"] = json!("ASKED-FOR-THIS");
    fake.hand(&handoff);
    fake.reply("model", Reply::Text("no JSON but ANSWERED-THAT".into()));
    fake.reply("model", Reply::Text("{\"summary\":\"ANSWERED-THAT\"}".into()));
    let mut child = program()
        .args([
            "--role",
            "project_manager",
            "--listen",
            "127.0.0.1:0",
            "--orchestrator",
            &fake.base,
        ])
        .args(["--log", "trace", "--planner-max-steps", "hunter2"])
        .arg("--token-file")
        .arg(token(dir.path(), "manager"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let running = Running(child);
    let completed = fake.until("handoff.complete", 1).await;
    assert_eq!(
        completed[0].body["answer"],
        json!({ "answer": "summarised", "summary": "ANSWERED-THAT" })
    );
    drop(running);
    let text = read.join().unwrap().unwrap();
    assert!(text.contains("\"event\":\"think_call.completed\""), "{text}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    for secret in ["cyn_svc_token_of_manager", TOKEN, "ASKED-FOR-THIS", "ANSWERED-THAT", "hunter2"]
    {
        assert!(!text.contains(secret), "S000-080, X-16: {secret}: {text}");
    }
}
