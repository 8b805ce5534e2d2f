//! Layers of sandboxes: directories that many runs share and none can change.
//!
//! A run sees a layer through an overlay (overlayfs). Its changes are in a directory of its own, and the layer stays as it is. A
//! layer is made by programs that nobody trusts, so [`sanitize_layer`] removes what the kernel or another run could take for more
//! than a file. The files of a layer then belong to the node and everyone may read and write them: the directory above the layer
//! must admit the node only, so that a run reaches the layer through its overlay and in no other way.

use std::{
    collections::HashMap,
    fs::{self, Metadata, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cynode_sandbox_init::{EnterSpec, LayerMount, UpperLayer, encode_launch_spec};
use rustix::{
    fs::{llistxattr, llistxattr_query, lremovexattr},
    io::Errno,
    process::{getegid, geteuid},
};

use super::{SandboxLimits, bubblewrap::process_limits};

/// Attributes that the kernel reads from the layers of an overlay.
const OVERLAY_ATTRIBUTE_PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// Attributes that give rights beyond the mode of a file.
const PRIVILEGE_ATTRIBUTES: [&[u8]; 3] =
    [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];
/// Mode of a layer's directories and programs.
const LAYER_PROGRAM_MODE: u32 = 0o777;
/// Mode of a layer's other files.
const LAYER_FILE_MODE: u32 = 0o666;
/// Writes through an overlay, as a run does.
const PROBE_SCRIPT: &str = "test -e \"$1/below\" && : >\"$1/above\"";

/// Directory of a sandbox that is put together from layers (overlayfs). At most one run uses an `upper` at a time. Files of the
/// lower layers can be read, changed, replaced and removed. Where the node is root they belong to nobody in the sandbox: their mode
/// and an earlier time cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayMount {
    /// Read-only layers, the topmost first.
    pub lower: Vec<PathBuf>,
    /// Layer that takes the changes. It belongs to the job's user from the first run on.
    pub upper: PathBuf,
    /// Empty directory for the kernel, on the same file system as `upper`.
    pub scratch: PathBuf,
    /// Path inside the sandbox.
    pub inside: PathBuf,
}

/// System below a sandbox. By default it is that of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemLayers {
    /// Root directory whose `usr`, `bin`, `lib`, … replace those of the host.
    pub root: Option<PathBuf>,
    /// Roots whose `usr` and `opt` are laid over the base, the topmost first, and whose further entries of `etc` are added.
    pub over: Vec<PathBuf>,
}

/// Size of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerStats {
    /// Disk usage. A file with several names counts once.
    pub bytes: u64,
    /// Number of files, directories and symlinks, without the layer's own directory.
    pub entries: u64,
    /// Number of devices, sockets and pipes that were removed.
    pub removed: u64,
}

/// Makes a directory tree fit to be a layer. It follows no symlink and removes attributes of overlays, capabilities, access control
/// lists, bits for another user or group, devices, sockets and pipes. Files then belong to this process and everyone may read and
/// write them. A file that has another name outside the tree is refused, and nothing is changed but the modes of directories. Modification
/// times stay. No process that can write to the tree may be alive.
pub fn sanitize_layer(path: &Path) -> io::Result<LayerStats> {
    let tree = LayerTree::read_tree(path)?;
    tree.check_links()?;
    let mut stats = LayerStats::default();
    for (path, meta) in &tree.entries {
        let kind = meta.file_type();
        if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
            fs::remove_file(path).map_err(at_path(path))?;
            stats.removed += 1;
            continue;
        }
        sanitize_entry(path, meta).map_err(at_path(path))?;
        stats.entries += 1;
        if kind.is_dir() || tree.is_first_name(path, meta) {
            stats.bytes += meta.blocks() * 512;
        }
    }
    sanitize_entry(path, &tree.root).map_err(at_path(path))?;
    Ok(stats)
}

/// Removes the marks of deleted files (whiteouts) from the upper layer of an overlay, and returns their number. A program that
/// reads the layer by itself takes them for devices: git refuses to add one. No run may use the layer. Below another overlay mount
/// the deleted files of the lower layers come back.
pub fn remove_whiteouts(upper: &Path) -> io::Result<u64> {
    let mut removed = 0;
    for (path, meta) in LayerTree::read_tree(upper)?.entries {
        if meta.file_type().is_char_device() && meta.rdev() == 0 {
            fs::remove_file(&path).map_err(at_path(&path))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Mounts that are made for a run before its sandbox, and their mount points.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) directory: PathBuf,
    pub(super) mounts: Vec<LayerMount>,
}

impl MountPlan {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), mounts: Vec::new() }
    }

    /// Adds a directory made of layers, and returns its mount point.
    pub(super) fn add_mount(&mut self, lower: Vec<PathBuf>, upper: Option<UpperLayer>) -> PathBuf {
        let point = self.directory.join(self.mounts.len().to_string());
        self.mounts.push(LayerMount { lower, upper, point: point.clone() });
        point
    }

    /// Adds an overlay of a run, and returns its mount point.
    pub(super) fn add_overlay(&mut self, overlay: &OverlayMount) -> PathBuf {
        let upper = UpperLayer { changes: overlay.upper.clone(), scratch: overlay.scratch.clone() };
        self.add_mount(overlay.lower.clone(), Some(upper))
    }
}

/// Creates the kernel's directory of an overlay. It is the node's, whoever the upper layer belongs to.
pub(super) fn create_scratch_dir(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(at_path(path)),
    }
}

/// Returns whether a path is a directory and no symlink to one: a layer chooses no directory of the host.
pub(super) fn is_real_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Mounts an overlay in `directory` as a run would, and writes through it. The error says why that is not possible.
pub(super) fn probe_overlay_mount(
    init: &Path,
    mount_dir: &Path,
    directory: &Path,
) -> io::Result<()> {
    let [lower, upper, scratch] = ["lower", "upper", "scratch"].map(|name| directory.join(name));
    for path in [&lower, &upper, &scratch] {
        fs::create_dir_all(path)?;
    }
    fs::write(lower.join("below"), "")?;
    let mut plan = MountPlan::new(mount_dir);
    let point = plan.add_mount(vec![lower], Some(UpperLayer { changes: upper, scratch }));
    let spec = EnterSpec {
        parent: std::process::id(),
        cgroups: Vec::new(),
        user: None,
        limits: process_limits(&SandboxLimits::default()),
        mount_dir: plan.directory,
        mounts: plan.mounts,
        program: "/bin/sh".into(),
        arguments: ["-c", PROBE_SCRIPT, "sh"]
            .into_iter()
            .map(str::to_owned)
            .chain([point.display().to_string()])
            .collect(),
    };
    let spec = encode_launch_spec(&spec).map_err(io::Error::other)?;
    let mut child = Command::new(init)
        .arg("enter")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // A program that has exited already says why on standard error.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&spec));
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Entries of a directory tree, each directory before its entries.
struct LayerTree {
    root: Metadata,
    entries: Vec<(PathBuf, Metadata)>,
    /// Files with several names: their number of names, those that are in the tree, and the first of them.
    links: HashMap<(u64, u64), FileLinks>,
}

struct FileLinks {
    names: u64,
    inside: u64,
    first: PathBuf,
}

impl LayerTree {
    /// Reads a tree. Directories are opened for this process: a node that is not root cannot read one that a job has closed.
    fn read_tree(path: &Path) -> io::Result<Self> {
        let root = fs::symlink_metadata(path).map_err(at_path(path))?;
        if !root.is_dir() {
            return Err(at_path(path)(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let mut tree = Self { root, entries: Vec::new(), links: HashMap::new() };
        let mut open = vec![path.to_owned()];
        while let Some(directory) = open.pop() {
            for entry in read_directory(&directory).map_err(at_path(&directory))? {
                let path = entry.map_err(at_path(&directory))?.path();
                let meta = fs::symlink_metadata(&path).map_err(at_path(&path))?;
                if meta.is_dir() {
                    open.push(path.clone());
                } else if meta.is_file() && meta.nlink() > 1 {
                    let links = tree.links.entry((meta.dev(), meta.ino())).or_insert_with(|| {
                        FileLinks { names: meta.nlink(), inside: 0, first: path.clone() }
                    });
                    links.inside += 1;
                }
                tree.entries.push((path, meta));
            }
        }
        Ok(tree)
    }

    /// Refuses a file that has another name outside the tree: a change here would be one there.
    fn check_links(&self) -> io::Result<()> {
        match self.links.values().find(|links| links.inside < links.names) {
            Some(links) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} has another name elsewhere (a hard link)", links.first.display()),
            )),
            None => Ok(()),
        }
    }

    fn is_first_name(&self, path: &Path, meta: &Metadata) -> bool {
        self.links.get(&(meta.dev(), meta.ino())).is_none_or(|links| links.first == path)
    }
}

fn read_directory(path: &Path) -> io::Result<fs::ReadDir> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            fs::read_dir(path)
        }
        read => read,
    }
}

fn sanitize_entry(path: &Path, meta: &Metadata) -> io::Result<()> {
    let program = meta.is_dir() || meta.mode() & 0o111 != 0;
    let mode = if program { LAYER_PROGRAM_MODE } else { LAYER_FILE_MODE };
    // Ownership first: it takes the bits for another user away, too.
    lchown(path, Some(geteuid().as_raw()), Some(getegid().as_raw()))?;
    if meta.is_symlink() {
        return remove_attributes(path).map(drop);
    }
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if remove_attributes(path)? {
        // An access control list that was there has changed what the mode means.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Removes attributes that mean something to the kernel. Returns whether there were any.
fn remove_attributes(path: &Path) -> io::Result<bool> {
    let bytes = match llistxattr_query(path) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(false),
        Ok(bytes) => bytes,
        Err(error) => return Err(error.into()),
    };
    let mut list = vec![0_u8; bytes];
    let read = llistxattr(path, list.as_mut_slice())?;
    list.truncate(read);
    let mut removed = false;
    for name in list.split(|byte| *byte == 0).filter(|name| is_kernel_attribute(name)) {
        match lremovexattr(path, name) {
            Ok(()) | Err(Errno::NODATA) => removed = true,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(removed)
}

fn is_kernel_attribute(name: &[u8]) -> bool {
    OVERLAY_ATTRIBUTE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || PRIVILEGE_ATTRIBUTES.contains(&name)
}

/// Adds the path to an error.
fn at_path(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
