//! Owner of layers. A layer belongs to root and many jobs share it; in a sandbox its files shall be the job's own, so that programs
//! may set their mode and time. An idmapped mount shows them as the job's user without a change on disk.

use std::{
    fs::{self, File},
    io::{Read, Write, stdin, stdout},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use anyhow::Context;
use composefs_ioctls::mount::mount_setattr_idmap;
use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

/// Command of this program that holds a user namespace open.
pub(crate) const NAMESPACE_COMMAND: &str = "namespace";

/// User namespace that maps root to the user of a job. The kernel keeps it as long as the file is open.
pub(crate) struct OwnerMap {
    namespace: File,
}

impl OwnerMap {
    /// Creates the namespace, by a process that enters it and ends when it is open here.
    pub(crate) fn create_map(user: u32) -> anyhow::Result<Self> {
        let mut holder = Command::new("/proc/self/exe")
            .arg(NAMESPACE_COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a process for a namespace")?;
        let namespace = open_namespace(&mut holder, user);
        // It ends when its standard input does.
        drop(holder.stdin.take());
        holder.wait()?;
        Ok(Self { namespace: namespace? })
    }

    /// Mounts the layers with the job's user as their owner beside a mount point. Returns their new paths.
    pub(crate) fn mount_mapped(
        &self,
        lower: &[PathBuf],
        point: &Path,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut mapped = Vec::new();
        for (number, layer) in lower.iter().enumerate() {
            let path = PathBuf::from(format!("{}-{number}", point.display()));
            self.mount_one(layer, &path)?;
            mapped.push(path);
        }
        Ok(mapped)
    }

    fn mount_one(&self, layer: &Path, path: &Path) -> anyhow::Result<()> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = open_tree(CWD, layer, flags)?;
        mount_setattr_idmap(&tree, &self.namespace)?;
        fs::create_dir(path)?;
        move_mount(&tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(())
    }
}

fn open_namespace(holder: &mut Child, user: u32) -> anyhow::Result<File> {
    let mut ready = [0];
    holder.stdout.as_mut().context("no standard output")?.read_exact(&mut ready)?;
    let process = format!("/proc/{}", holder.id());
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("{process}/{map}"), format!("0 {user} 1"))?;
    }
    Ok(File::open(format!("{process}/ns/user"))?)
}

/// Enters a user namespace, says so, and stays in it until standard input ends.
pub(crate) fn hold_namespace() -> anyhow::Result<ExitCode> {
    unshare(CloneFlags::CLONE_NEWUSER).context("no user namespace")?;
    stdout().write_all(b"+")?;
    stdout().flush()?;
    stdin().read_to_end(&mut Vec::new())?;
    Ok(ExitCode::SUCCESS)
}
