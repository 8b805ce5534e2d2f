//! Layers of a sandbox: overlays and bind mounts in a mount namespace that ends with the sandbox. Nothing of them is left on the
//! host, however the sandbox ends.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use anyhow::{Context, bail, ensure};
use cynode_sandbox_init::LayerMount;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd,
};

use crate::owner_map::OwnerMap;

/// Options of every overlay. No attribute of a file in a layer leads anywhere else: a renamed directory is not redirected
/// (`redirect_dir`; programs get EXDEV and copy), a file's data is not taken from another file (`metacopy`), and no file handle that
/// is stored in a layer is decoded (`index`).
const OVERLAY_OPTIONS: &str = "redirect_dir=nofollow,metacopy=off,index=off";
/// Additional option in a user namespace, where the kernel reads the overlay's attributes as `user.overlay.*`.
const USER_NAMESPACE_OPTION: &str = ",userxattr";
/// Options of the file system with the mount points.
const MOUNT_DIR_OPTIONS: &str = "size=64k,mode=0711";
/// Bytes that separate paths and options of an overlay.
const SEPARATOR_BYTES: &[u8] = b":,\\";

/// Mounts the layers. Afterwards this process is in a mount namespace of its own, and without root in a user namespace in which its
/// user is the same. The files of layers that a job may change are shown as those of `user`.
pub(crate) fn mount_layers(
    mount_dir: &Path,
    mounts: &[LayerMount],
    user: Option<u32>,
) -> anyhow::Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let privileged = unistd::geteuid().is_root();
    if privileged {
        unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace")?;
    } else {
        unshare_user()?;
    }
    // Private: a mount neither leaves this namespace nor enters it.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("no private mounts")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), mount_dir, Some("tmpfs"), flags, Some(MOUNT_DIR_OPTIONS))
        .with_context(|| format!("no mount points in {}", mount_dir.display()))?;
    let changeable = mounts.iter().any(|layers| layers.upper.is_some());
    // An older kernel has no idmapped mounts: the files are then nobody's.
    let owner = user.filter(|_| changeable).and_then(|user| OwnerMap::create_map(user).ok());
    for layers in mounts {
        mount_layer(mount_dir, layers, privileged, owner.as_ref())
            .with_context(|| format!("no mount of {:?}", layers.lower))?;
    }
    Ok(())
}

/// Enters a user and a mount namespace. The user and the group keep their numbers, so that the next program has no capability.
fn unshare_user() -> anyhow::Result<()> {
    let (user, group) = (unistd::geteuid(), unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context("no user namespace")?;
    fs::write("/proc/self/setgroups", "deny").context("cannot give up groups")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("cannot map the user")?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("cannot map the group")
}

fn mount_layer(
    mount_dir: &Path,
    layers: &LayerMount,
    privileged: bool,
    owner: Option<&OwnerMap>,
) -> anyhow::Result<()> {
    ensure!(
        layers.point.parent() == Some(mount_dir),
        "{} is no mount point",
        layers.point.display()
    );
    fs::create_dir(&layers.point)?;
    for lower in &layers.lower {
        check_directory(lower)?;
    }
    match (layers.lower.as_slice(), &layers.upper) {
        ([], _) => bail!("there is no layer"),
        // Bubblewrap makes it read-only when it binds it again.
        ([only], None) => {
            mount(Some(only), &layers.point, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            Ok(())
        }
        (_, None) => mount_overlay(layers, privileged),
        (lower, Some(upper)) => {
            check_directory(&upper.changes)?;
            check_directory(&upper.scratch)?;
            let mapped = owner.and_then(|owner| owner.mount_mapped(lower, &layers.point).ok());
            if let Some(lower) = mapped
                && mount_overlay(&LayerMount { lower, ..layers.clone() }, privileged).is_ok()
            {
                return Ok(());
            }
            mount_overlay(layers, privileged)
        }
    }
}

fn mount_overlay(layers: &LayerMount, privileged: bool) -> anyhow::Result<()> {
    let write = if layers.upper.is_some() { MsFlags::empty() } else { MsFlags::MS_RDONLY };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | write;
    let options = build_overlay_options(layers, privileged)?;
    let options = Some(options.as_os_str());
    mount(Some("overlay"), &layers.point, Some("overlay"), flags, options)?;
    Ok(())
}

/// Builds the options of an overlay mount. The newer calls (`fsconfig`) need no separators, and cut a value off at 256 bytes.
fn build_overlay_options(layers: &LayerMount, privileged: bool) -> anyhow::Result<OsString> {
    let mut options = OsString::from(OVERLAY_OPTIONS);
    if !privileged {
        options.push(USER_NAMESPACE_OPTION);
    }
    for (number, lower) in layers.lower.iter().enumerate() {
        options.push(if number == 0 { ",lowerdir=" } else { ":" });
        options.push(check_separators(lower)?);
    }
    if let Some(upper) = &layers.upper {
        options.push(",upperdir=");
        options.push(check_separators(&upper.changes)?);
        options.push(",workdir=");
        options.push(check_separators(&upper.scratch)?);
    }
    Ok(options)
}

fn check_separators(path: &Path) -> anyhow::Result<&OsStr> {
    let plain = !path.as_os_str().as_bytes().iter().any(|byte| SEPARATOR_BYTES.contains(byte));
    ensure!(path.is_absolute() && plain, "{} cannot be a layer", path.display());
    Ok(path.as_os_str())
}

/// Checks that a layer is a directory and not a symlink to one: what set-up left behind chooses no directory of the host.
fn check_directory(path: &Path) -> anyhow::Result<()> {
    let meta = fs::symlink_metadata(path).with_context(|| format!("no {}", path.display()))?;
    ensure!(meta.is_dir(), "{} is no directory", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use cynode_sandbox_init::UpperLayer;

    use super::*;

    fn layers(lower: &[&str]) -> LayerMount {
        LayerMount {
            lower: lower.iter().map(PathBuf::from).collect(),
            upper: Some(UpperLayer { changes: "/u".into(), scratch: "/s".into() }),
            point: "/m/0".into(),
        }
    }

    #[test]
    fn the_topmost_layer_comes_first_and_nothing_is_redirected() {
        let options = build_overlay_options(&layers(&["/a b", "/c"]), true).unwrap();
        assert_eq!(
            options,
            "redirect_dir=nofollow,metacopy=off,index=off,lowerdir=/a b:/c,upperdir=/u,workdir=/s"
        );
        let read_only = LayerMount { upper: None, ..layers(&["/a", "/c"]) };
        assert_eq!(
            build_overlay_options(&read_only, false).unwrap(),
            "redirect_dir=nofollow,metacopy=off,index=off,userxattr,lowerdir=/a:/c"
        );
    }

    #[test]
    fn a_path_cannot_add_a_layer_or_an_option() {
        for path in ["/a:/etc", "/a,upperdir=/etc", "/a\\", "a"] {
            assert!(build_overlay_options(&layers(&[path]), true).is_err(), "{path}");
        }
    }

    #[test]
    fn a_layer_is_no_link_to_a_directory() {
        assert!(check_directory(Path::new("/proc/self/cwd")).is_err());
        assert!(check_directory(Path::new("/proc")).is_ok());
    }
}
