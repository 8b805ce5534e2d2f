//! Sandboxes over layers: what set-up left behind is seen and changed by many jobs, and stays as it is.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use cynode_node::sandbox::{
    ExitReason, OverlayMount, SandboxError, SystemLayers, remove_whiteouts, sanitize_layer,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::world::{Kind, Wish, World, shell};

/// Files of a layer that stands for a large one.
const LARGE_LAYER_FILES: usize = 20_000;
/// Starts of each kind whose median is taken.
const MEASURED_STARTS: usize = 15;

/// A directory of layers that only the node can enter.
fn layer_dir(world: &World) -> PathBuf {
    let closed = world.path("layers");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    closed
}

fn write_files(root: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A layer with files, as the node keeps it.
fn layer(world: &World, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let root = layer_dir(world).join(name);
    write_files(&root, files);
    sanitize_layer(&root).unwrap();
    root
}

/// The directory /work of a job over layers.
fn overlay(world: &World, job: &str, lower: &[&Path]) -> OverlayMount {
    let upper = world.path(&format!("{job}-upper"));
    fs::create_dir_all(&upper).unwrap();
    OverlayMount {
        lower: lower.iter().map(|path| path.to_path_buf()).collect(),
        upper,
        scratch: world.path(&format!("{job}-scratch")),
        inside: "/work".into(),
    }
}

fn over_layer(world: &World, job: &str, lower: &[&Path], script: &str) -> Wish {
    let mut run = shell(script);
    run.job = job.into();
    run.overlays = vec![overlay(world, job, lower)];
    run
}

/// All that can be known of a tree: mode, owner, modification time and content of each entry.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, u32, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_file() {
            content = fs::read(&path).unwrap();
        }
        all.insert(path, (meta.mode(), meta.uid(), meta.mtime_nsec(), content));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_land_above_and_the_layer_stays_as_it_is() {
    let world = World::new(Kind::Bubblewrap);
    assert!(world.backend.supports_overlays());
    let files = [("below/file", "text\n"), ("below/gone", "x"), ("kept", "y")];
    let below = layer(&world, "layer", &files);
    let before = snapshot(&below);
    let change = "cat /work/below/file && echo more >>/work/below/file && rm /work/below/gone && \
                  echo new >/work/new && mkdir /work/below/deep && mv /work/below/file /work/below/deep/ && ls /work/below";
    let done = over_layer(&world, "job", &[&below], change).done(&world).await;
    assert_eq!((done.stdout.as_str(), done.ended.exit_code), ("text\ndeep\n", Some(0)), "{done:?}");
    assert_eq!(snapshot(&below), before);

    let look = "cat /work/below/deep/file /work/new /work/kept && ls /work/below";
    let mut again = over_layer(&world, "job", &[&below], look);
    again.id = "again".into();
    let done = again.done(&world).await;
    assert_eq!(done.stdout, "text\nmore\nnew\nydeep\n", "{}", done.stderr);
    let upper = world.path("job-upper");
    assert_eq!(fs::read_to_string(upper.join("below/deep/file")).unwrap(), "text\nmore\n");
    assert!(!upper.join("kept").exists());
    // The two names that are no longer there.
    assert_eq!(remove_whiteouts(&upper).unwrap(), 2);
    assert_eq!(snapshot(&below), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_a_layer_are_the_jobs_own() {
    let world = World::new(Kind::Bubblewrap);
    let below = layer(&world, "layer", &[("below/file", "text\n")]);
    let before = snapshot(&below);
    let change = "cd /work/below && stat -c %u:%g:%a file && chmod 700 file && touch -d 2001-01-01 file && stat -c %u:%a:%Y file";
    let mut run = over_layer(&world, "job", &[&below], change);
    run.env.insert("TZ".into(), "UTC".into());
    let done = run.done(&world).await;
    assert_eq!(done.stdout, "1000:1000:666\n1000:700:978307200\n", "{}", done.stderr);
    assert_eq!(snapshot(&below), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_jobs_over_one_layer_do_not_see_each_other() {
    let world = World::new(Kind::Bubblewrap);
    let below = layer(&world, "layer", &[("shared", "of both\n")]);
    let script = "echo $JOB >>/work/shared; : >/work/$JOB; echo ready; read -r _; cat /work/shared; ls /work";
    let mut running = Vec::new();
    for job in ["one", "two"] {
        let mut run = over_layer(&world, job, &[&below], script);
        run.env.insert("JOB".into(), job.into());
        let mut process = run.start(&world).await.unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(stdout.next_line().await.unwrap().as_deref(), Some("ready"));
        running.push((job, process, stdout));
    }
    for (job, mut process, mut stdout) in running {
        process.stdin.take().unwrap().write_all(b"go\n").await.unwrap();
        let mut lines = Vec::new();
        while let Some(line) = stdout.next_line().await.unwrap() {
            lines.push(line);
        }
        let mut expected = ["of both", job, job, "shared"];
        expected[2..].sort_unstable();
        assert_eq!(lines, expected);
        process.wait_for_exit().await;
    }
    assert_eq!(fs::read_to_string(below.join("shared")).unwrap(), "of both\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_over_a_layer_counts_to_the_quota() {
    let world = World::new(Kind::Bubblewrap);
    let below = layer(&world, "layer", &[("below/file", "x")]);
    let fill =
        "for i in $(seq 1 1000); do head -c 1000000 /dev/zero >/work/below/$i; done; sleep 60";
    let done = over_layer(&world, "job", &[&below], fill).done(&world).await;
    assert_eq!(done.ended.why, ExitReason::Disk, "{done:?}");
    assert_eq!(snapshot(&below).len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packages_of_a_layer_are_in_the_system_and_the_hosts_are_still_there() {
    let world = World::new(Kind::Bubblewrap);
    let files = [
        ("usr/bin/of-the-layer", "#!/bin/sh\necho program\n"),
        ("lib/of-the-layer", "library\n"),
        ("opt/tool/file", "tool\n"),
        ("etc/tool.conf", "setting\n"),
        ("etc/passwd", "not the sandbox's\n"),
    ];
    let root = layer_dir(&world).join("root");
    write_files(&root, &files);
    let program = root.join("usr/bin/of-the-layer");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    sanitize_layer(&root).unwrap();
    let mut run = shell(
        "of-the-layer; cat /lib/of-the-layer /opt/tool/file /etc/tool.conf; head -c 5 /etc/passwd; \
         for place in /usr/bin /opt/tool /etc; do touch $place/of-an-escape 2>/dev/null && echo written; done; echo; env true && echo host",
    );
    run.system.over = vec![root.clone()];
    let before = snapshot(&root);
    let done = run.done(&world).await;
    let expected = "program\nlibrary\ntool\nsetting\nroot:\nhost\n";
    assert_eq!(done.stdout, expected, "{}", done.stderr);
    assert_eq!(snapshot(&root), before);
}

/// Copies a program of the host and its libraries into a root directory of its own. As extracted packages, it has no link into `usr`
/// but one.
fn copy_program(program: &str, root: &Path) {
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    let libraries = Command::new("ldd").arg(program).output().unwrap().stdout;
    let libraries = String::from_utf8(libraries).unwrap();
    let words = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for path in words.chain([program]) {
        let below = path.trim_start_matches('/').trim_start_matches("usr/");
        let copy = root.join("usr").join(below);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(path, copy).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_root_replaces_the_system_of_the_host() {
    let world = World::new(Kind::Bubblewrap);
    let root = layer_dir(&world).join("root");
    copy_program("/bin/bash", &root);
    write_files(&root, &[("etc/name", "another root"), ("etc/passwd", "x")]);
    sanitize_layer(&root).unwrap();
    let mut run = shell(
        "echo $(</etc/name); read -r line </etc/passwd; echo ${line%%:*}; \
         for file in /usr/bin/env /etc/ssl /usr/share; do [ -e $file ] && echo $file of the host; done; echo done",
    );
    run.system.root = Some(root);
    let done = run.done(&world).await;
    assert_eq!(done.stdout, "another root\nroot\ndone\n", "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_layer_does_no_harm() {
    let world = World::new(Kind::Bubblewrap);
    let secret = world.path("secret");
    write_files(&secret, &[("file", "a secret of the host")]);
    // A layer that was not sanitized: a link to the host, a program that becomes root, and attributes of an overlay.
    let hostile = layer_dir(&world).join("hostile");
    write_files(&hostile, &[("directory/file", "x")]);
    symlink(&secret, hostile.join("link")).unwrap();
    fs::copy("/bin/bash", hostile.join("su")).unwrap();
    fs::set_permissions(hostile.join("su"), fs::Permissions::from_mode(0o4755)).unwrap();
    let attribute = Command::new("python3")
        .args(["-c", "import os, sys; os.setxattr(sys.argv[1], 'user.overlay.redirect', sys.argv[2].encode())"])
        .args([hostile.join("directory"), secret.clone()])
        .status();
    assert!(attribute.unwrap().success());
    // A root whose directories are links to the host's.
    let links = layer_dir(&world).join("links");
    fs::create_dir(&links).unwrap();
    for name in ["usr", "opt", "etc"] {
        symlink(&secret, links.join(name)).unwrap();
    }
    let script = format!(
        "cat /work/link/file /work/directory/file {0}/file /opt/file /etc/file /usr/file {1}/su; /work/su -p -c 'echo $EUID'",
        secret.display(),
        hostile.display()
    );
    let mut run = over_layer(&world, "job", &[&hostile], &script);
    run.system.over = vec![links];
    let done = run.done(&world).await;
    assert_eq!(done.stdout, "x1000\n", "{}", done.stderr);
    assert!(!done.stderr.contains("secret of the host"), "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_is_a_link_starts_nothing() {
    let world = World::new(Kind::Bubblewrap);
    let link = layer_dir(&world).join("link");
    symlink("/etc", &link).unwrap();
    let refused = over_layer(&world, "job", &[&link], "ls /work").start(&world).await;
    assert!(
        matches!(&refused, Err(SandboxError::Start(said)) if said.contains("is no directory")),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_mounted_is_refused_before_anything_starts() {
    let world = World::new(Kind::Bubblewrap);
    let (below, other) = (layer(&world, "one", &[("x", "")]), layer(&world, "two", &[("y", "")]));
    let odd = layer(&world, "a:b", &[("x", "")]);
    for lower in [vec![], vec![odd.as_path()]] {
        let refused = over_layer(&world, "job", &lower, "true").start(&world).await;
        assert!(matches!(refused, Err(SandboxError::Refused(_))), "{refused:?}");
    }
    let done = over_layer(&world, "job", &[&below, &other], "ls /work").done(&world).await;
    assert_eq!(done.stdout, "x\ny\n", "{}", done.stderr);
    let podman = World::new(Kind::Podman);
    assert!(!podman.backend.supports_overlays());
    let refused = over_layer(&podman, "job", &[&below], "true").start(&podman).await;
    assert!(
        matches!(&refused, Err(SandboxError::Refused(why)) if why.contains("copy the layer")),
        "{refused:?}"
    );
    let mut run = shell("true");
    run.system = SystemLayers { root: None, over: vec![below] };
    let refused = run.start(&podman).await;
    assert!(
        matches!(&refused, Err(SandboxError::Refused(why)) if why.contains("its own system")),
        "{refused:?}"
    );
    assert_eq!(podman.left(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_over_a_large_layer_is_as_quick_as_a_plain_one() {
    let world = World::new(Kind::Bubblewrap);
    let root = layer_dir(&world).join("large");
    for number in 0..LARGE_LAYER_FILES {
        let directory = root.join((number / 200).to_string());
        if number % 200 == 0 {
            fs::create_dir_all(&directory).unwrap();
        }
        fs::write(directory.join(number.to_string()), "x").unwrap();
    }
    assert!(sanitize_layer(&root).unwrap().entries > LARGE_LAYER_FILES as u64);
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    // In turns, so that other load of the machine affects both.
    for _ in 0..MEASURED_STARTS {
        let mut plain = shell("true");
        plain.binds = vec![world.workspace("plain")];
        let layered = over_layer(&world, "layered", &[&root], "true");
        for (run, times) in [plain, layered].iter().zip(&mut times) {
            let began = Instant::now();
            assert_eq!(run.done(&world).await.ended.exit_code, Some(0));
            times.push(began.elapsed());
        }
    }
    let [plain, layered] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    assert!(layered < plain * 3, "{layered:?} over a layer, {plain:?} without");
}
