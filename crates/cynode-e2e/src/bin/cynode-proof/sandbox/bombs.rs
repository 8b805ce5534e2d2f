//! Jobs that exhaust resources or refuse to end.

use std::{fs, os::unix::net::UnixListener, time::Duration};

use cynode_sandbox::{ExitReason, SocketForward};

use super::{
    layout::{Done, NodeLayout, Wish, processes_with},
    targets::unix,
};

/// Disk quota of a job, unless it has a smaller one.
const DISK: u64 = 96 << 20;

/// A job, and the conditions on its end.
struct Bomb {
    name: &'static str,
    script: &'static str,
    wall: u64,
    /// Disk quota in bytes.
    disk: u64,
    good: fn(&Done) -> bool,
}

const BOMBS: &[Bomb] = &[
    Bomb {
        name: "a fork bomb",
        script: "bomb() { bomb | bomb & }; bomb; sleep 1000",
        wall: 4,
        disk: DISK,
        good: |done| matches!(done.ended.why, ExitReason::WallClock | ExitReason::Exited),
    },
    Bomb {
        name: "a bomb of threads",
        script: "python: import threading, time\ntry:\n while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nexcept RuntimeError: print('refused', flush=True)\ntime.sleep(1000)",
        wall: 4,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text() == "refused\n",
    },
    Bomb {
        name: "more memory than allowed",
        script: "python: b = [bytearray(16 << 20) for _ in range(1000)]",
        wall: 30,
        disk: DISK,
        good: |done| {
            done.ended.why == ExitReason::OutOfMemory && done.ended.peak_memory <= 256 << 20
        },
    },
    Bomb {
        name: "more memory than allowed, in many processes",
        script: "for i in 1 2 3 4 5 6 7 8 9; do python3 -c 'b = bytearray(90 << 20); import time; time.sleep(1000)' & done; wait -n; echo one was killed; sleep 1000",
        wall: 8,
        disk: DISK,
        good: |done| done.ended.peak_memory <= 256 << 20 && done.ended.out_of_memory,
    },
    Bomb {
        name: "memory that is a file in /tmp",
        script: "head -c 60000000 /dev/zero >/tmp/a; stat -c %s /tmp/a",
        wall: 30,
        disk: DISK,
        good: |done| {
            done.stdout.to_lossy_text().trim().parse::<u64>().is_ok_and(|size| size <= 32 << 20)
        },
    },
    Bomb {
        name: "memory that is a file in /dev/shm",
        script: "head -c 60000000 /dev/zero >/dev/shm/a; stat -c %s /dev/shm/a",
        wall: 30,
        disk: DISK,
        good: |done| {
            done.stdout.to_lossy_text().trim().parse::<u64>().is_ok_and(|size| size <= 32 << 20)
        },
    },
    Bomb {
        name: "memory that is a nameless file",
        script: "python: import os\nf = os.memfd_create('x')\nfor _ in range(60): os.write(f, bytes(10 << 20))",
        wall: 30,
        disk: DISK,
        good: |done| done.ended.exit_code != Some(0) && done.ended.peak_memory <= 256 << 20,
    },
    Bomb {
        name: "one file that is too large",
        script: "head -c 90000000 /dev/zero >/work/large; stat -c %s /work/large",
        wall: 30,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text().trim() == (64 << 20).to_string(),
    },
    Bomb {
        name: "a hole that is too large",
        script: "python: import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nf = open('/work/hole', 'wb')\ntry:\n os.ftruncate(f.fileno(), 1 << 40)\nexcept OSError as e: print(e.errno)",
        wall: 30,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text() == "27\n",
    },
    Bomb {
        name: "many files",
        script: "i=0; while :; do i=$((i + 1)); head -c 4000000 /dev/zero >/work/$i; done",
        wall: 60,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::Disk,
    },
    Bomb {
        name: "many files in the home of the job, as links of one another",
        script: "i=0; while :; do i=$((i + 1)); head -c 4000000 /dev/zero >/home/agent/$i; ln /home/agent/$i /work/$i 2>/dev/null; done",
        wall: 60,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::Disk,
    },
    Bomb {
        name: "files that have lost their names",
        script: "python: import os, time\nkept = []\nfor i in range(40):\n f = open('/work/x', 'wb'); os.unlink('/work/x'); f.write(bytes(6 << 20)); f.flush(); kept.append(f)\ntime.sleep(1000)",
        wall: 60,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::Disk,
    },
    Bomb {
        name: "empty files without end",
        script: "python: import os\ni = 0\nwhile True:\n os.makedirs(f'/work/{i}')\n for j in range(1000): os.close(os.open(f'/work/{i}/{j}', os.O_CREAT | os.O_WRONLY))\n i += 1",
        wall: 90,
        disk: 16 << 20,
        good: |done| done.ended.why == ExitReason::Disk,
    },
    Bomb {
        name: "directories too deep to count",
        script: "python: import os, time\nos.chdir('/work')\nfor _ in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)\nopen('f', 'wb').write(bytes(20 << 20))\ntime.sleep(1000)",
        wall: 60,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::Disk,
    },
    Bomb {
        name: "a flood of words",
        script: "head -c 400000000 /dev/zero; echo end",
        wall: 60,
        disk: DISK,
        good: |done| done.stdout.dropped > 300_000_000 && done.stdout.bytes.ends_with(b"end\n"),
    },
    Bomb {
        name: "a flood of complaints without a line",
        script: "head -c 100000000 /dev/zero >&2; echo end >&2",
        wall: 60,
        disk: DISK,
        good: |done| done.stderr.dropped > 90_000_000 && done.stderr.bytes.ends_with(b"end\n"),
    },
    Bomb {
        name: "open files without end",
        script: "python: import os\ntry:\n while True: os.open('/dev/null', os.O_RDONLY)\nexcept OSError as e: print(e.errno)",
        wall: 30,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text() == "24\n",
    },
    Bomb {
        name: "all of the processor",
        script: "for i in 1 2 3 4; do while :; do :; done & done; sleep 1000",
        wall: 5,
        disk: DISK,
        good: |done| {
            done.ended.why == ExitReason::WallClock && done.ended.cpu < Duration::from_millis(6500)
        },
    },
    Bomb {
        name: "a command that does not want to end",
        script: "trap '' TERM INT HUP QUIT USR1 USR2; while :; do sleep 1; done",
        wall: 2,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::WallClock && done.took < Duration::from_secs(8),
    },
    Bomb {
        name: "children that outlive the command",
        script: "for i in 1 2 3; do setsid bash -c 'trap \"\" TERM HUP; (exec -a MARK sleep 1000) & (exec -a MARK sleep 1000) & disown -a' & done; \
                 until [ $(grep -l MARK /proc/[0-9]*/cmdline 2>/dev/null | wc -l) -ge 6 ]; do sleep 0.05; done; echo left",
        wall: 30,
        disk: DISK,
        good: |done| {
            done.stdout.to_lossy_text() == "left\n" && done.ended.why == ExitReason::Exited
        },
    },
    Bomb {
        name: "a daemon of a daemon",
        script: "python: import os, sys\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  os.setsid() if os.getsid(0) == os.getpid() else None\n  os.execv('/bin/sleep', ['MARK', '1000'])\n os._exit(0)",
        wall: 30,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::Exited,
    },
    Bomb {
        name: "the first process stopped",
        script: "kill -STOP 1; kill -TSTP 1; (exec -a MARK sleep 1000) & sleep 1000",
        wall: 3,
        disk: DISK,
        good: |done| done.ended.why == ExitReason::WallClock && done.took < Duration::from_secs(10),
    },
    Bomb {
        name: "the first process killed",
        script: "kill -KILL 1; kill -TERM 1; (exec -a MARK sleep 1000) & sleep 1; echo alive",
        wall: 10,
        disk: DISK,
        good: |done| matches!(done.ended.why, ExitReason::Exited | ExitReason::WallClock),
    },
    Bomb {
        name: "everything killed",
        script: "(exec -a MARK sleep 1000) & kill -KILL -1; kill -KILL $$; sleep 1000",
        wall: 10,
        disk: DISK,
        good: |done| done.took < Duration::from_secs(15),
    },
    Bomb {
        name: "connections to the node without end",
        script: "python: import socket, time\nkept = []\nfor i in range(900):\n try:\n  s = socket.create_connection(('127.0.0.1', 4001), 2); kept.append(s)\n except OSError: pass\nprint('done', flush=True)\ntime.sleep(1)",
        wall: 30,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text() == "done\n",
    },
    Bomb {
        name: "connections to the node's socket itself without end",
        script: "python: import socket, time\nkept = []\nfor i in range(900):\n try:\n  s = socket.socket(socket.AF_UNIX); s.settimeout(0.01); s.connect('/run/cynode/llm.sock'); kept.append(s)\n except OSError: pass\nprint('done', flush=True)",
        wall: 30,
        disk: DISK,
        good: |done| done.stdout.to_lossy_text() == "done\n",
    },
    Bomb {
        name: "pipes that hold memory",
        script: "python: import os, fcntl\nkept = []\ntry:\n while True:\n  r, w = os.pipe(); kept += [r, w]\n  try: fcntl.fcntl(w, 1031, 1 << 20)\n  except OSError: pass\n  os.set_blocking(w, False)\n  try: os.write(w, bytes(1 << 20))\n  except OSError: pass\nexcept OSError as e: print(e.errno)",
        wall: 30,
        disk: DISK,
        good: |done| done.ended.peak_memory <= 256 << 20,
    },
];

/// Runs them one after another. Returns their number, and the number of those that did not end as they must.
pub(crate) async fn run(place: &NodeLayout, mark: &str) -> anyhow::Result<(usize, usize)> {
    let mut failed = 0;
    let socket = place.path("bombs.sock");
    unix(UnixListener::bind(&socket)?, "fine".into());
    for (number, bomb) in BOMBS.iter().enumerate() {
        let mark = format!("{mark}-bomb-{number}");
        let script = bomb.script.replace("MARK", &mark);
        let argv = match script.strip_prefix("python: ") {
            Some(program) => vec!["python3", "-c", program],
            None => vec!["/bin/bash", "-c", &script],
        };
        let name = format!("bomb-{number}");
        let mut job = Wish::new(&name, &argv);
        job.limits.wall = Duration::from_secs(bomb.wall);
        job.limits.disk_bytes = bomb.disk;
        job.sockets = vec![SocketForward { host: socket.clone(), port: 4001, name: "llm".into() }];
        job.binds = vec![
            place.folder(&format!("{name}-work"), "/work", true),
            place.folder(&format!("{name}-home"), "/home/agent", true),
        ];
        let before = place.remaining_cgroups().len();
        let done = job.done(place).await?;
        let clean = processes_with(&mark).is_empty() && place.remaining_cgroups().len() == before;
        if !((bomb.good)(&done) && clean) {
            failed += 1;
            println!(
                "BOMB: {}: {:?} after {:?}, clean: {clean}, said {:?} {:?}",
                bomb.name,
                done.ended,
                done.took,
                done.stdout.to_lossy_text().chars().take(200).collect::<String>(),
                done.stderr.to_lossy_text().chars().take(200).collect::<String>(),
            );
        }
        for bind in &job.binds {
            let _ = fs::remove_dir_all(&bind.host);
        }
    }
    println!("{} bombs, {failed} not as they must", BOMBS.len());
    Ok((BOMBS.len(), failed))
}
