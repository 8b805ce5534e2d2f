//! `enter`, outside of the sandbox: joins the cgroups, sets the limits, mounts the layers, switches the user and executes the
//! program.

use std::{
    convert::Infallible,
    fs,
    io::stdin,
    os::{fd::AsFd, unix::process::CommandExt},
    process::Command,
};

use anyhow::{Context, bail};
use cynode_sandbox_init::{EnterSpec, ProcessLimits, decode_launch_spec};
use nix::{
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::Signal,
    },
    unistd::{self, Gid, Uid},
};

use crate::layers::mount_layers;

/// Reads the launch spec from standard input, applies it, and replaces this process by its program.
pub(crate) fn enter_sandbox() -> anyhow::Result<Infallible> {
    close_inherited_fds()?;
    let spec: EnterSpec = read_launch_spec()?;
    for cgroup in &spec.cgroups {
        fs::write(cgroup, "0").with_context(|| format!("cannot join {}", cgroup.display()))?;
    }
    // If the machine runs out of memory, sandboxes are killed first.
    fs::write("/proc/self/oom_score_adj", "500").context("cannot set the score")?;
    set_resource_limits(&spec.limits)?;
    mount_layers(&spec.mount_dir, &spec.mounts, spec.user).context("cannot mount the layers")?;
    if let Some(user) = spec.user {
        switch_user(user).context("cannot become the sandbox's user")?;
    }
    // From here on the process dies with the node. A change of user clears this setting, so it comes last. The node may have exited
    // already, so the parent is checked afterwards.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if u32::try_from(unistd::getppid().as_raw()) != Ok(spec.parent) {
        bail!("the node is gone");
    }
    let mut command = Command::new(&spec.program);
    command.args(&spec.arguments).env_clear().current_dir("/");
    Err(command.exec()).with_context(|| format!("cannot start {}", spec.program.display()))
}

fn switch_user(number: u32) -> nix::Result<()> {
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    unistd::setgroups(&[])?;
    unistd::setresgid(group, group, group)?;
    unistd::setresuid(user, user, user)
}

/// Reads a launch spec from standard input, unbuffered.
pub(crate) fn read_launch_spec<T: serde::de::DeserializeOwned>() -> anyhow::Result<T> {
    Ok(decode_launch_spec(fs::File::from(stdin().as_fd().try_clone_to_owned()?))?)
}

/// Closes inherited file descriptors. The node's parent may have left files open; a sandbox gets only standard streams.
pub(crate) fn close_inherited_fds() -> anyhow::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in open {
        // One of the descriptors was the directory that was read.
        let _ = unistd::close(descriptor);
    }
    Ok(())
}

/// Sets the resource limits of this process and its descendants.
pub(crate) fn set_resource_limits(limits: &ProcessLimits) -> anyhow::Result<()> {
    let all = [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
    ];
    for (resource, most) in all {
        setrlimit(resource, most, most).with_context(|| format!("cannot set {resource:?}"))?;
    }
    Ok(())
}
