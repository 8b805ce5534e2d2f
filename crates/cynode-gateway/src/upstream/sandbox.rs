//! Sandbox of an upstream server that runs as a process.
//!
//! It uses bubblewrap: separate namespaces, no capabilities, a read-only system. No setting runs a server without it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use secrecy::{ExposeSecret, SecretString};
use tokio::process::Command;

use super::UpstreamError;

/// Value of `PATH` inside the sandbox.
const SANDBOX_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The only writable folder besides `/tmp`; both are removed with the sandbox.
const SANDBOX_HOME: &str = "/home/tool";

/// Paths in `/etc` that are needed to load libraries. None of them names users or holds secrets.
const SYSTEM_ETC_PATHS: [&str; 6] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/mime.types",
];
/// Paths in `/etc` that are needed to use the network.
const NETWORK_ETC_PATHS: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
];

/// Program that runs in the sandbox, with its environment and files.
#[derive(Debug)]
pub(super) struct SandboxProgram<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [String],
    pub(super) env: &'a [(String, SecretString)],
    pub(super) files: &'a [PathBuf],
    pub(super) network: bool,
}

/// Builds the command that runs `program` in a sandbox made by `bubblewrap`.
pub(super) fn build_command(
    bubblewrap: &Path,
    program: &SandboxProgram<'_>,
) -> Result<Command, UpstreamError> {
    if program.name.is_empty() {
        return Err(UpstreamError::Misconfigured("no program"));
    }
    if program.files.iter().any(|file| !file.is_absolute() || file.parent().is_none()) {
        return Err(UpstreamError::Misconfigured("files are given by absolute path, and not all"));
    }
    let mut command = Command::new(bubblewrap);
    add_namespace_args(&mut command, program.network);
    add_filesystem_args(&mut command, program);
    command.arg("--").arg(program.name).args(program.args);
    set_environment(&mut command, program.env)?;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .kill_on_drop(true);
    Ok(command)
}

fn add_namespace_args(command: &mut Command, network: bool) {
    command.args(["--unshare-all", "--unshare-user", "--disable-userns"]);
    if network {
        command.arg("--share-net");
    }
    // The server's first process dies with bubblewrap, bubblewrap with the thread that started it, and all other processes with the first
    // one, because they live in its PID namespace. That thread is one of the runtime's workers, which live as long as the runtime, unless
    // code in this program uses `block_in_place`.
    command.args(["--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
    command.args(["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]);
}

fn add_filesystem_args(command: &mut Command, program: &SandboxProgram<'_>) {
    command.args(["--ro-bind", "/usr", "/usr"]);
    for folder in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
        // On most systems these are links into `/usr`; as links they need no bind mount.
        match std::fs::read_link(folder) {
            Ok(target) => command.arg("--symlink").arg(target).arg(folder),
            Err(_) => command.args(["--ro-bind-try", folder, folder]),
        };
    }
    let system =
        SYSTEM_ETC_PATHS.iter().chain(NETWORK_ETC_PATHS.iter().filter(|_| program.network));
    for path in system {
        command.args(["--ro-bind-try", path, path]);
    }
    command.args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", SANDBOX_HOME]);
    for file in program.files {
        command.args([OsStr::new("--ro-bind"), file.as_os_str(), file.as_os_str()]);
    }
    // The folders that bubblewrap created for the mounts above are in memory and would be writable.
    command.args(["--remount-ro", "/", "--chdir", SANDBOX_HOME]);
}

/// Sets the environment on bubblewrap itself, which passes it on unchanged: on its command line, where `--setenv` would put it, every user
/// of the machine could read the secrets in it.
fn set_environment(
    command: &mut Command,
    env: &[(String, SecretString)],
) -> Result<(), UpstreamError> {
    command.env_clear().env("PATH", SANDBOX_PATH).env("HOME", SANDBOX_HOME).env("LANG", "C.UTF-8");
    for (name, value) in env {
        let value = value.expose_secret();
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(UpstreamError::Misconfigured("a variable of the environment"));
        }
        // These would already affect bubblewrap itself, outside of the sandbox.
        if name.starts_with("LD_") || name == "GLIBC_TUNABLES" {
            return Err(UpstreamError::Misconfigured("a variable that the loader obeys"));
        }
        command.env(name, value);
    }
    Ok(())
}

/// Kills the first process inside the sandbox, the child of bubblewrap's process `outside`, and with it all other processes inside.
pub(super) fn kill_sandbox(outside: u32) {
    for inside in child_pids(outside) {
        let Some(pid) = Pid::from_raw(inside) else { continue };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // A PID may be reused for another process at any time; the handle stays with its process. If the PID is still that of a child now,
        // the handle was opened for that child.
        if child_pids(outside).contains(&inside) {
            let sent = pidfd_send_signal(handle, Signal::KILL);
            tracing::debug!(ok = sent.is_ok(), "a sandbox was killed");
        }
    }
}

fn child_pids(pid: u32) -> Vec<i32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(env: &[(String, SecretString)]) -> SandboxProgram<'_> {
        SandboxProgram { name: "server", args: &[], env, files: &[], network: false }
    }

    fn line(command: &Command) -> Vec<String> {
        command.as_std().get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_network_is_shared_only_when_it_is_wanted() {
        let without = build_command(Path::new("bwrap"), &program(&[])).unwrap();
        assert!(!line(&without).contains(&"--share-net".to_owned()));
        assert!(!line(&without).contains(&"/etc/resolv.conf".to_owned()));
        let with =
            build_command(Path::new("bwrap"), &SandboxProgram { network: true, ..program(&[]) })
                .unwrap();
        assert!(line(&with).contains(&"--share-net".to_owned()));
    }

    #[test]
    fn secrets_are_not_on_the_command_line() {
        let env = [("TOKEN".to_owned(), SecretString::from("s3cret"))];
        let command = build_command(Path::new("bwrap"), &program(&env)).unwrap();
        assert!(!line(&command).iter().any(|arg| arg.contains("s3cret")));
        assert!(command.as_std().get_envs().any(|(name, _)| name == "TOKEN"));
    }

    #[test]
    fn what_would_act_outside_the_sandbox_is_refused() {
        for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "", "A=B"] {
            let env = [(name.to_owned(), SecretString::from("x"))];
            assert!(build_command(Path::new("bwrap"), &program(&env)).is_err(), "{name}");
        }
        for file in ["relative", "/"] {
            let files = [PathBuf::from(file)];
            let program = SandboxProgram { files: &files, ..program(&[]) };
            assert!(build_command(Path::new("bwrap"), &program).is_err(), "{file}");
        }
    }
}
