//! `run`, inside the sandbox: the first process.

use std::{
    io::{Read, Write, stderr},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, ExitCode},
    thread,
};

use anyhow::Context;
use cynode_sandbox_init::{InitSpec, STARTED_MARKER};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        wait::{WaitStatus, wait},
    },
    unistd::{self, Pid},
};

use crate::{
    calls,
    enter::{close_inherited_fds, read_launch_spec, set_resource_limits},
    files,
    forward::PortListener,
};

/// Reads the launch spec from standard input and runs the command. Returns its exit code, or 128 plus the signal that ended it.
pub(crate) fn run_init() -> anyhow::Result<ExitCode> {
    close_inherited_fds()?;
    prctl::set_no_new_privs()?;
    // The command runs as the same user and must not inspect this process.
    prctl::set_dumpable(false)?;
    let spec: InitSpec = read_launch_spec()?;
    let life = spec.life.as_deref().map(connect_liveness_socket).transpose()?;
    if let Some(limits) = &spec.limits {
        set_resource_limits(limits)?;
    }
    let doors = spec
        .doors
        .iter()
        .map(|door| {
            PortListener::new(door.port, door.socket.clone())
                .with_context(|| format!("cannot listen on port {}", door.port))
        })
        .collect::<anyhow::Result<Vec<PortListener>>>()?;
    files::apply_landlock_ruleset(&spec.writable).context("cannot lock the files")?;
    calls::apply_seccomp_filters().context("cannot lock the system calls")?;
    stderr().write_all(STARTED_MARKER)?;
    if let Some(life) = life {
        thread::Builder::new().spawn(move || exit_on_disconnect(life))?;
    }
    for door in doors {
        door.serve_connections()?;
    }
    let child = match spawn_command(&spec) {
        Ok(child) => child,
        // Uses a shell's exit code: the sandbox works, and the command could not be started.
        Err(error) => {
            writeln!(stderr(), "cynode-sandbox-init: {error:#}")?;
            return Ok(ExitCode::from(127));
        }
    };
    // These streams belong to the command now: the node sees their end when the command closes them.
    let (_, _) = (unistd::close(0), unistd::close(1));
    Ok(ExitCode::from(reap_until_exit(child)))
}

fn spawn_command(spec: &InitSpec) -> anyhow::Result<Pid> {
    let (program, arguments) = spec.argv.split_first().context("no command")?;
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(&spec.env)
        .current_dir(&spec.cwd)
        .spawn()
        .with_context(|| format!("cannot run {program} in {}", spec.cwd.display()))?;
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}

/// Waits for the command and reaps other processes that exit meanwhile.
fn reap_until_exit(command: Pid) -> u8 {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => {
                return u8::try_from(code & 0xff).unwrap_or(u8::MAX);
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                return u8::try_from(128 + signal as i32).unwrap_or(u8::MAX);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return 125,
        }
    }
}

fn connect_liveness_socket(life: &Path) -> anyhow::Result<UnixStream> {
    UnixStream::connect(life).context("the node is gone")
}

/// Exits when the liveness connection closes. That happens when the node exits or wants the run to end; all other processes die
/// with the first one.
fn exit_on_disconnect(mut life: UnixStream) {
    let _ = life.read(&mut [0]);
    std::process::exit(137);
}
