//! What holds in every sandbox, whichever backend makes it.

use std::{fs, os::unix::fs::MetadataExt, process::Stdio, sync::Arc, time::Duration};

use cynode_node::sandbox::{
    Backend, BubblewrapBackend, CleanupStats, ExitReason, HostEnv, PodmanBackend, SandboxError,
    SandboxOptions,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixListener,
};

use crate::world::{Kind, World, backend, command_lines_with, done, options, shell, until};

/// The same test for both backends.
macro_rules! in_both {
    ($($name:ident)*) => {
        mod bubblewrap {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::World::new(super::Kind::Bubblewrap)).await; })*
        }
        mod podman {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::World::new(super::Kind::Podman)).await; })*
        }
    };
}

in_both! {
    a_command_reads_writes_and_gives_its_exit_code
    the_environment_is_the_one_that_was_given_and_nothing_else
    nobody_on_the_machine_reads_a_secret_from_a_command_line
    the_process_has_no_privilege_and_cannot_gain_one
    there_is_no_network_but_loopback
    an_internet_socket_is_tcp_or_udp
    the_host_is_not_there_but_for_what_was_bound
    what_a_job_writes_belongs_to_a_user_of_its_own
    a_socket_of_the_node_is_at_its_port_and_at_its_path
    a_signal_that_ends_the_command_is_told
    a_command_that_is_not_there_gives_127
    too_much_memory_ends_the_command
    too_much_time_ends_the_run
    too_much_on_disk_ends_the_run
    too_much_in_files_that_are_only_mapped_ends_the_run
    a_file_that_is_too_large_is_cut_off
    too_many_processes_are_refused_to_the_job_alone
    to_kill_is_to_kill_all_of_it
    to_drop_is_to_kill
    nothing_stays_when_the_command_ends
    ending_a_job_ends_its_runs_and_no_others
    a_sweep_ends_what_belongs_to_no_kept_job
    when_the_node_is_killed_its_sandboxes_are_gone
    it_can_be_probed
}

async fn a_command_reads_writes_and_gives_its_exit_code(world: World) {
    let mut running = shell("read -r word; echo got $word; echo complaint >&2; exit 7")
        .start(&world)
        .await
        .unwrap();
    let mut stdin = running.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    let done = done(running).await;
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("got hello\n", "complaint\n"));
    assert_eq!(
        (done.ended.exit_code, done.ended.signal, done.ended.why),
        (Some(7), None, ExitReason::Exited)
    );
    assert!(done.ended.peak_memory > 100_000 && done.ended.cpu > Duration::ZERO, "{done:?}");
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

async fn the_environment_is_the_one_that_was_given_and_nothing_else(world: World) {
    let mut job = shell("");
    job.argv = vec!["/usr/bin/env".into()];
    job.env.insert("TOKEN".into(), "line one\nline two".into());
    assert_eq!(job.done(&world).await.stdout, "PATH=/usr/bin:/bin\nTOKEN=line one\nline two\n");
}

async fn nobody_on_the_machine_reads_a_secret_from_a_command_line(world: World) {
    let secret = format!("secret-{}", std::process::id());
    let mut job = shell("echo started; read -r _");
    job.env.insert("TOKEN".into(), secret.clone());
    let mut running = job.start(&world).await.unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    assert_eq!(command_lines_with(&secret), Vec::<String>::new());
    running.kill();
    running.wait_for_exit().await;
}

async fn the_process_has_no_privilege_and_cannot_gain_one(world: World) {
    let done = shell(
        "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status",
    )
    .done(&world)
    .await;
    let nothing = "0000000000000000";
    let expected = format!(
        "CapInh:\t{nothing}\nCapPrm:\t{nothing}\nCapEff:\t{nothing}\nCapBnd:\t{nothing}\nCapAmb:\t{nothing}\nNoNewPrivs:\t1\nSeccomp:\t2\n"
    );
    assert_eq!(done.stdout, expected);
}

async fn there_is_no_network_but_loopback(world: World) {
    let done = shell("sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '").done(&world).await;
    assert_eq!(done.stdout, "lo\n");
}

async fn an_internet_socket_is_tcp_or_udp(world: World) {
    // SCTP, DCCP and MPTCP would load or exercise modules of the kernel, whether the type names them or the protocol.
    let script = r"
import socket
made = []
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for protocol in [*range(0, 256), 262]:
            try:
                socket.socket(family, kind, protocol).close()
                made.append((family.name, kind, protocol))
            except PermissionError:
                pass
            except OSError as error:
                if (kind, protocol) not in ((1, 17), (2, 6)):
                    made.append((family.name, kind, protocol, error.errno))
print(made)
";
    let mut job = shell("");
    job.argv = ["python3", "-c", script].map(str::to_owned).to_vec();
    let done = job.done(&world).await;
    let expected = "[('AF_INET', 1, 0), ('AF_INET', 1, 6), ('AF_INET', 2, 0), ('AF_INET', 2, 17), \
                    ('AF_INET6', 1, 0), ('AF_INET6', 1, 6), ('AF_INET6', 2, 0), ('AF_INET6', 2, 17)]\n";
    assert_eq!(done.stdout, expected, "{}", done.stderr);
}

async fn the_host_is_not_there_but_for_what_was_bound(world: World) {
    let secret = world.path("secret");
    fs::write(&secret, "a secret of the host").unwrap();
    let mut job = shell(&format!(
        "cat {0} /proc/1/root{0}; touch /usr/x /etc/x /x /run/x /dev/x; echo more >>/given/file; cat /given/file; ls /root",
        secret.display()
    ));
    let mut given = world.workspace("given");
    fs::write(given.host.join("file"), "given\n").unwrap();
    (given.inside, given.writable) = ("/given".into(), false);
    fs::set_permissions(&given.host, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    job.binds = vec![given];
    let done = job.done(&world).await;
    assert_eq!(done.stdout, "given\n", "{}", done.stderr);
    assert!(!done.stderr.contains("secret of the host"), "{}", done.stderr);
    assert_eq!(fs::read_to_string(world.path("given/file")).unwrap(), "given\n");
}

async fn what_a_job_writes_belongs_to_a_user_of_its_own(world: World) {
    let owner = async |job: &str, id: &str| {
        let mut run = shell(
            "echo made >/work/made-$ID && mkdir -p /work/below && mv /work/made-$ID /work/below/",
        );
        run.env.insert("ID".into(), id.into());
        (run.job, run.id) = (job.into(), id.into());
        run.binds = vec![world.workspace(job)];
        let done = run.done(&world).await;
        assert_eq!(done.ended.exit_code, Some(0), "{}", done.stderr);
        let meta = fs::metadata(world.path(job).join("below").join(format!("made-{id}"))).unwrap();
        (meta.uid(), meta.gid())
    };
    let (one, again, two) =
        (owner("one", "a").await, owner("one", "b").await, owner("two", "a").await);
    let range = options(world.place.path()).users;
    assert!(range.contains(&one.0) && range.contains(&two.0) && one.0 == one.1, "{one:?} {two:?}");
    assert_eq!(one, again);
    assert_ne!(one, two);
    assert_eq!(fs::metadata(world.path("one")).unwrap().mode() & 0o777, 0o700);
}

async fn a_socket_of_the_node_is_at_its_port_and_at_its_path(world: World) {
    let path = world.path("llm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut job = shell(
        "exec 3<>/dev/tcp/127.0.0.1/4001; echo by port >&3; head -n 1 <&3; exec 3>&-; \
         python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"/run/cynode/llm.sock\"); s.sendall(b\"by path\\n\"); print(s.recv(99).decode(), end=\"\")'",
    );
    job.sockets =
        vec![cynode_node::sandbox::SocketForward { host: path, port: 4001, name: "llm".into() }];
    let answers = async {
        let () = loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            stream.write_all(format!("heard {line}").as_bytes()).await.unwrap();
        };
    };
    let done = tokio::select! { done = job.done(&world) => done, () = answers => unreachable!() };
    assert_eq!(done.stdout, "heard by port\nheard by path\n", "{}", done.stderr);
}

async fn a_signal_that_ends_the_command_is_told(world: World) {
    // As shells say it; a command that gives such a code by itself cannot be told from it.
    for script in ["kill -TERM $$", "exit 143"] {
        let ended = shell(script).done(&world).await.ended;
        assert_eq!(
            (ended.exit_code, ended.signal, ended.why),
            (Some(143), Some(15), ExitReason::Exited)
        );
    }
}

async fn a_command_that_is_not_there_gives_127(world: World) {
    let mut job = shell("");
    job.argv = vec!["/no/such/program".into()];
    let done = job.done(&world).await;
    assert_eq!(done.ended.exit_code, Some(127));
    assert!(done.stderr.contains("/no/such/program"), "{}", done.stderr);
}

async fn too_much_memory_ends_the_command(world: World) {
    let mut job = shell("exec python3 -c 'b = bytearray(500 << 20); print(len(b))'");
    job.limits.memory_bytes = 64 << 20;
    let done = job.done(&world).await;
    assert_eq!(
        (done.ended.why, done.ended.signal, done.ended.out_of_memory),
        (ExitReason::OutOfMemory, Some(9), true)
    );
    assert!(done.ended.peak_memory <= 64 << 20, "{done:?}");
}

async fn too_much_time_ends_the_run(world: World) {
    let mut job = shell("trap '' TERM INT HUP; while :; do sleep 1; done");
    job.limits.wall = Duration::from_secs(1);
    assert_eq!(job.done(&world).await.ended.why, ExitReason::WallClock);
}

async fn too_much_on_disk_ends_the_run(world: World) {
    let mut job =
        shell("for i in $(seq 1 1000); do head -c 1000000 /dev/zero >/work/$i; done; sleep 60");
    job.binds = vec![world.workspace("job")];
    assert_eq!(job.done(&world).await.ended.why, ExitReason::Disk);
}

async fn too_much_in_files_that_are_only_mapped_ends_the_run(world: World) {
    let script = "
import ctypes, os, time
mmap = ctypes.CDLL(None).mmap
mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for _ in range(100):
    file = os.open('/work/file', os.O_RDWR | os.O_CREAT)
    os.write(file, b'x' * 1000000)
    mmap(None, 4096, 1, 1, file, 0)
    os.unlink('/work/file')
    os.close(file)
time.sleep(60)
";
    let mut job = shell("");
    job.argv = ["/usr/bin/python3", "-c", script].map(str::to_owned).to_vec();
    job.binds = vec![world.workspace("job")];
    assert_eq!(job.done(&world).await.ended.why, ExitReason::Disk);
}

async fn a_file_that_is_too_large_is_cut_off(world: World) {
    let mut job = shell("head -c 3000000 /dev/zero >/work/large");
    job.binds = vec![world.workspace("job")];
    job.limits.file_bytes = 1 << 20;
    let ended = job.done(&world).await.ended;
    assert_ne!(ended.exit_code, Some(0));
    assert_eq!(fs::metadata(world.path("job/large")).unwrap().len(), 1 << 20);
}

async fn too_many_processes_are_refused_to_the_job_alone(world: World) {
    let mut job =
        shell("for i in $(seq 1 300); do sleep 30 & done 2>/dev/null; ls -d /proc/[0-9]* | wc -l");
    job.limits.processes = 40;
    let running = job.start(&world).await.unwrap();
    let killer = running.kill_handle();
    let (done, beside) = tokio::join!(done(running), async {
        let mut beside = shell("echo fine");
        beside.job = "beside".into();
        let beside = beside.done(&world).await.stdout;
        let _ = tokio::time::timeout(Duration::from_secs(8), std::future::pending::<()>()).await;
        killer.kill();
        beside
    });
    assert_eq!(beside, "fine\n");
    // With what the sandbox itself needs it is 72, and the shell may not even count.
    assert!(done.stdout.trim().parse::<u32>().unwrap_or(0) <= 72, "{done:?}");
}

/// A script that leaves processes behind in every way, with a word to find them by.
fn leaver(word: &str) -> String {
    format!(
        "(exec -a {word}-1 sleep 1000) & setsid bash -c 'trap \"\" TERM HUP; (exec -a {word}-2 sleep 1000) & disown' & \
         python3 -c 'import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  os.execv(\"/usr/bin/sleep\", [\"{word}-3\", \"1000\"])' & \
         until [ $(grep -lE \"{word}-[123]\" /proc/[0-9]*/cmdline 2>/dev/null | wc -l) -ge 4 ]; do sleep 0.05; done; echo left"
    )
}

async fn started(word: &str, more: &str, world: &World) -> cynode_node::sandbox::SandboxProcess {
    let mut running = shell(&format!("{}; {more}", leaver(word))).start(world).await.unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(running.stdout.take().unwrap());
    stdout.read_line(&mut line).await.unwrap();
    assert_eq!(line, "left\n");
    running
}

async fn to_kill_is_to_kill_all_of_it(world: World) {
    let word = format!("killed-{}", std::process::id());
    let running = started(&word, "sleep 1000", &world).await;
    assert!(!command_lines_with(&word).is_empty());
    running.kill();
    assert_eq!(running.wait_for_exit().await.why, ExitReason::Killed);
    assert_eq!(command_lines_with(&word), Vec::<String>::new());
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

async fn to_drop_is_to_kill(world: World) {
    let word = format!("dropped-{}", std::process::id());
    drop(started(&word, "sleep 1000", &world).await);
    until("nothing is left", || command_lines_with(&word).is_empty() && world.left().is_empty())
        .await;
}

async fn nothing_stays_when_the_command_ends(world: World) {
    let word = format!("ended-{}", std::process::id());
    let running = started(&word, "exit 3", &world).await;
    let ended = running.wait_for_exit().await;
    assert_eq!((ended.exit_code, ended.why), (Some(3), ExitReason::Exited));
    assert_eq!(command_lines_with(&word), Vec::<String>::new());
}

async fn ending_a_job_ends_its_runs_and_no_others(world: World) {
    let mut jobs = Vec::new();
    for (job, id) in [("one", "a"), ("one", "b"), ("two", "a")] {
        let mut run = shell("sleep 1000");
        (run.job, run.id) = (job.into(), id.into());
        jobs.push(run.start(&world).await.unwrap());
    }
    world.backend.end_job("one").await;
    let two = jobs.pop().unwrap();
    for running in jobs {
        assert_eq!(running.wait_for_exit().await.why, ExitReason::Killed);
    }
    assert!(!world.left().is_empty());
    two.kill();
    two.wait_for_exit().await;
}

async fn a_sweep_ends_what_belongs_to_no_kept_job(world: World) {
    let mut runs = Vec::new();
    for job in ["kept", "other"] {
        let mut run = shell("sleep 1000");
        run.job = job.into();
        runs.push(run.start(&world).await.unwrap());
    }
    let swept = world.backend.cleanup_orphans(&["kept".into()]).await;
    assert_eq!(swept.ended, 1, "{swept:?}");
    let other = runs.pop().unwrap();
    assert_eq!(other.wait_for_exit().await.why, ExitReason::Killed);
    let kept = runs.pop().unwrap();
    kept.kill();
    kept.wait_for_exit().await;
    assert_eq!(world.backend.cleanup_orphans(&[]).await, CleanupStats::default());
}

async fn when_the_node_is_killed_its_sandboxes_are_gone(world: World) {
    let word = format!("orphan-{}", std::process::id());
    let kind = match world.backend.backend_kind() {
        cynode_core::workflow::jobs::SandboxBackend::Bubblewrap => "bubblewrap",
        cynode_core::workflow::jobs::SandboxBackend::Podman => "podman",
    };
    let mut node = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::a_node_that_is_killed", "--ignored", "--nocapture"])
        .envs([("STAND_IN_KIND", kind), ("STAND_IN_WORD", &word)])
        .env("STAND_IN_PLACE", world.place.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(node.stdout.take().unwrap()).lines();
    while said.next_line().await.unwrap().is_some_and(|line| line != "up") {}
    assert!(!command_lines_with(&word).is_empty());
    node.kill().await.unwrap();
    until("nothing is left of it", || command_lines_with(&word).is_empty()).await;
    // What is empty is swept by the next node.
    world.backend.cleanup_orphans(&[]).await;
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is started by another test and killed"]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it is a program of its own")]
async fn a_node_that_is_killed() {
    let of = |name| std::env::var(name).unwrap();
    let kind = if of("STAND_IN_KIND") == "podman" { Kind::Podman } else { Kind::Bubblewrap };
    let place = std::path::PathBuf::from(of("STAND_IN_PLACE"));
    let world =
        World { backend: backend(kind, options(&place)), place: tempfile::tempdir().unwrap() };
    let running = started(&of("STAND_IN_WORD"), "sleep 1000", &world).await;
    println!("up");
    running.wait_for_exit().await;
}

async fn it_can_be_probed(world: World) {
    let version = world.backend.probe_backend().await.unwrap();
    assert!(version.contains(|letter: char| letter.is_ascii_digit()), "{version}");
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_backend_that_is_missing_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let nowhere = SandboxOptions {
        bwrap: "/no/bwrap".into(),
        podman: "/no/podman".into(),
        ..options(place.path())
    };
    let ground: Arc<HostEnv> = HostEnv::prepare_env(nowhere).unwrap();
    let said = [
        BubblewrapBackend::new(&ground).unwrap().probe_backend().await.unwrap_err().to_string(),
        PodmanBackend::new(&ground).unwrap().probe_backend().await.unwrap_err().to_string(),
    ];
    assert!(said.iter().all(|said| said.contains("install")), "{said:?}");
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let world = World::new(Kind::Bubblewrap);
    let mut unnamed = shell("true");
    unnamed.job = "../job".into();
    assert!(matches!(unnamed.start(&world).await, Err(SandboxError::Refused(_))));
    let mut crooked = shell("true");
    crooked.binds = vec![world.workspace("a")];
    crooked.binds[0].inside = "/work/../etc".into();
    assert!(matches!(crooked.start(&world).await, Err(SandboxError::Refused(_))));
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_low_disk_ends_a_run_unless_it_saves_what_others_did() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let low = SandboxOptions { free_floor_bytes: u64::MAX, ..options(place.path()) };
    let world = World { backend: backend(Kind::Bubblewrap, low), place };
    // Long enough for somebody to look at the disk.
    let mut job = shell("sleep 2");
    job.binds = vec![world.workspace("job")];
    assert_eq!(job.done(&world).await.ended.why, ExitReason::Disk);
    job.limits.despite_low_disk = true;
    assert_eq!(job.done(&world).await.ended.why, ExitReason::Exited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_words_fills_no_memory_and_is_cut() {
    let world = World::new(Kind::Bubblewrap);
    let mut running = shell("head -c 300000000 /dev/zero; echo end").start(&world).await.unwrap();
    let stdout = running.stdout.take().unwrap();
    let (ended, captured) =
        tokio::join!(running.wait_for_exit(), cynode_node::sandbox::capture_tail(stdout, 4));
    assert_eq!((captured.bytes, captured.dropped), (b"end\n".to_vec(), 300_000_000));
    assert_eq!(ended.exit_code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_at_once_are_carried_whole() {
    let world = World::new(Kind::Bubblewrap);
    let path = world.path("llm.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut job = shell(
        "for i in $(seq 1 20); do (exec 3<>/dev/tcp/127.0.0.1/4001; printf '%s\\n' $i >&3; cat <&3 | wc -c) & done; wait",
    );
    job.sockets =
        vec![cynode_node::sandbox::SocketForward { host: path, port: 4001, name: "llm".into() }];
    let answers = async {
        let mut open = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (mut stream, _) = listener.accept().await.unwrap();
            open.spawn(async move {
                stream.read_u8().await.unwrap();
                stream.write_all(&vec![b'x'; 100_000]).await.unwrap();
            });
        }
        while open.join_next().await.is_some() {}
    };
    let (done, ()) = tokio::join!(job.done(&world), answers);
    assert_eq!(done.stdout, "100000\n".repeat(20), "{}", done.stderr);
}
