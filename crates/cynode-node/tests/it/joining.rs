use std::os::unix::fs::PermissionsExt;

use cynode_core::ids::NodeId;
use cynode_wire::workflow::jobs::JobOutcome;
use uuid::Uuid;

use crate::{
    fake::{Fake, Fault},
    program::{Machine, job, repository, say, shell, sleep_forever, some_process},
};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_joins_with_its_key_and_says_what_it_measured() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let output = machine.join("welcome\n");
    assert!(output.status.success(), "{}", stderr(&output));
    let joins = std::mem::take(&mut fake.world().joins);
    let [join] = joins.as_slice() else { panic!("{joins:?}") };
    assert_eq!(join.name, "here");
    assert!(join.report.cores > 0 && join.report.memory_mib > 0 && join.report.slots > 0);
    assert!(!join.report.backends.is_empty());
    assert!(["v1", "v2"].contains(&join.report.facts["cgroups"].as_str()));
    let key = machine.state().join("node.key").metadata().unwrap().permissions().mode();
    assert_eq!(key & 0o777, 0o600);
    assert_eq!(machine.state().metadata().unwrap().permissions().mode() & 0o777, 0o711);
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_again_after_a_lost_answer_gives_the_same_node() {
    let fake = Fake::start().await;
    fake.fault("/join", Fault::LoseAnswer, 1);
    fake.fault("/join", Fault::Fail, 1);
    let machine = Machine::new(&fake);
    let output = machine.join("welcome");
    assert!(output.status.success(), "{}", stderr(&output));
    let world = fake.world();
    assert_eq!(world.joins.len(), 2);
    let only = NodeId::from_uuid(Uuid::from_u128(1));
    assert_eq!(world.keys.keys().copied().collect::<Vec<_>>(), [only]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(&only.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_told_and_leaves_no_node_behind() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let output = machine.join("wrong");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("401"), "{}", stderr(&output));
    let run = machine.command().arg("run").output().unwrap();
    assert!(!run.status.success());
    assert!(stderr(&run).contains("no node yet"), "{}", stderr(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens_it_says_which_setting_of_the_server_to_look_at() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = machine.dir.path().join("token");
    std::fs::write(&file, "welcome").unwrap();
    let mut command = machine.command();
    command.args(["join", "--url", &format!("http://{nobody}"), "--token-file"]).arg(file);
    let output = command.output().unwrap();
    let told =
        format!("no answer from http://{nobody}: does `server.internal_listen` listen there");
    let told = stderr(&output).contains(&told);
    assert_eq!((output.status.success(), told), (false, true), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_stays_with_its_installation() {
    let (first, second) = (Fake::start().await, Fake::start().await);
    let machine = Machine::joined(&first);
    let file = machine.dir.path().join("token");
    let mut command = machine.command();
    command.args(["join", "--url", &second.url, "--token-file"]).arg(file);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("already"), "{}", stderr(&output));
    assert!(second.world().joins.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_programs_never_share_a_state_directory() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let _first = machine.start();
    fake.until("it is heard", |world| (world.heartbeats > 0).then_some(())).await;
    let second = machine.command().arg("run").output().unwrap();
    assert!(!second.status.success());
    assert!(stderr(&second).contains("another node has"), "{}", stderr(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_what_is_missing_and_what_to_do() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let before = machine.command().arg("doctor").output().unwrap();
    assert!(!before.status.success());
    let said = stderr(&before);
    assert!(said.ends_with("cynode-node: this machine cannot take jobs like this\n"), "{said}");
    assert!(!machine.state().exists(), "whoever only looks leaves nothing behind");
    assert!(String::from_utf8_lossy(&before.stdout).contains("cynode-node join"));
    let machine = Machine::joined(&fake);
    let output = machine.command().args(["doctor", "--min-free-disk-mib", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", stderr(&output));
    for word in ["git", "bubblewrap", "orchestrator", &fake.url] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_takes_no_token_and_the_node_that_runs_goes_on_claiming() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake).with(&["--slots", "2"]);
    let _node = machine.start();
    let first = job(vec![say("before"), sleep_forever("86401")]);
    fake.give(first.clone());
    some_process("sleep 86401").await;
    let (tokens, generation) = {
        let world = fake.world();
        (world.tokens.clone(), world.generation)
    };
    let looked = machine.command().args(["doctor", "--min-free-disk-mib", "1"]).output().unwrap();
    assert!(looked.status.success(), "{}", stderr(&looked));
    {
        let world = fake.world();
        assert_eq!((&world.tokens, world.generation, world.verified), (&tokens, generation, 1));
    }
    // What is given after the look is claimed, though the node has a job already.
    let origin = tempfile::tempdir().unwrap();
    let mut assignment = job(vec![shell("echo line >> lines"), say("added")]);
    assignment.base = Some(repository(origin.path()));
    fake.serve_repository(origin.path());
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    assert_eq!(fake.world().generation, generation, "no other process took over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_node_was_taken_over_by_another_says_so_and_ends() {
    let fake = Fake::start().await;
    let machine = Machine::joined(&fake);
    let node = machine.start();
    fake.until("it is heard", |world| (world.heartbeats > 0).then_some(())).await;
    // Another process with the same key, on a copy of the state directory.
    {
        let mut world = fake.world();
        world.generation += 1;
        world.tokens.clear();
    }
    let status = node.ended().await;
    assert!(!status.success());
    let log = machine.log();
    assert!(log.contains("\"event\":\"node.superseded\""), "{log}");
    let told = "cynode-node: another process of this node started later and has taken over its jobs, so this one ends";
    assert!(log.contains(told), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_to_show_that_cannot_be_read_is_named_and_left_out_and_the_node_works() {
    let fake = Fake::start().await;
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
    let gone = closed.path().with_file_name("there-is-no-such-directory");
    let machine = Machine::joined(&fake);
    let file = format!("show = [{:?}, {:?}]\n", closed.path(), gone);
    std::fs::write(machine.state().join("node.toml"), file).unwrap();
    let _node = machine.start();
    let assignment = job(vec![say("works")]);
    fake.give(assignment.clone());
    let result = fake.result(assignment.job_id).await;
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{result:?}");
    let report = fake.until("it is reported", |world| world.report.clone()).await;
    let told = [
        format!(
            "`show` names {0}, which sandboxes cannot read: it is left out; copy it to a place that everybody can read \
             (such as /opt) and name that place, or open it with `chmod o+rx {0}`",
            closed.path().display()
        ),
        format!(
            "`show` names {}, which does not exist: it is left out; make it, or take it out of node.toml",
            gone.display()
        ),
    ];
    assert_eq!(report.warnings, told);
    let log = machine.log();
    assert_eq!(log.matches("\"event\":\"host_path.skipped\"").count(), 2, "{log}");
    let looked = machine.command().args(["doctor", "--min-free-disk-mib", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(looked.status.success(), "{said}{}", stderr(&looked));
    for sentence in &told {
        assert!(said.contains(&format!("! show          {sentence}\n")), "{said}");
    }
    assert!(!said.contains("namespaces") && !said.contains("install bubblewrap"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clear_text_beyond_this_machine_is_refused_before_anything_is_sent() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let file = machine.dir.path().join("token");
    std::fs::write(&file, "welcome").unwrap();
    let mut command = machine.command();
    command.args(["join", "--url", "http://192.0.2.7:12082", "--token-file"]).arg(&file);
    let output = command.output().unwrap();
    let told = stderr(&output);
    let refused = "http://192.0.2.7:12082 is not encrypted, and not on this machine";
    assert!(!output.status.success() && told.contains(refused), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_a_malformed_pin_is_refused_and_one_with_a_pin_is_sent_without_it() {
    let fake = Fake::start().await;
    let machine = Machine::new(&fake);
    let cut = machine.join("welcome.sha256:00");
    assert!(
        stderr(&cut).contains("a pin is `sha256:` and 64 hexadecimal digits"),
        "{}",
        stderr(&cut)
    );
    let pinned = machine.join(&format!("welcome.sha256:{}", "0".repeat(64)));
    assert!(pinned.status.success(), "{}", stderr(&pinned));
    let joins = std::mem::take(&mut fake.world().joins);
    let tokens: Vec<_> = joins.iter().map(|join| join.join_token.0.clone()).collect();
    assert_eq!(tokens, ["welcome"]);
}
