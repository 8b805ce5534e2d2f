//! Layers of sandboxes: directories that many runs share and none can change.
//!
//! A run sees a layer through an overlay (overlayfs). Its changes are in a directory of its own, and the layer stays as it is. A
//! layer is made by programs that nobody trusts, so [`sanitize_layer`] removes what the kernel or another run could take for more
//! than a file. The files of a layer then belong to the node and everyone may read and write them: the directory above the layer
//! must admit the node only, so that a run reaches the layer through its overlay and in no other way.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, Metadata, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cynode_sandbox_init::{EnterSpec, LayerMount, UpperLayer, encode_launch_spec};
use rustix::{
    fs::{CWD, FileType, Mode, llistxattr, llistxattr_query, lremovexattr, mknodat},
    io::Errno,
    process::{getegid, geteuid},
};

use super::{SandboxLimits, bubblewrap::process_limits};

/// Attributes that the kernel reads from the layers of an overlay.
const OVERLAY_ATTRIBUTE_PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// Attributes that give rights beyond the mode of a file.
const PRIVILEGE_ATTRIBUTES: [&[u8]; 3] =
    [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];
/// End of the name of the attribute of a directory that hides everything in the directories below it.
const OPAQUE_ATTRIBUTE_SUFFIX: &[u8] = b".overlay.opaque";
/// Mode of a layer's directories and programs.
const LAYER_PROGRAM_MODE: u32 = 0o777;
/// Mode of a layer's other files.
const LAYER_FILE_MODE: u32 = 0o666;
/// Writes through an overlay, as a run does.
const PROBE_SCRIPT: &str = "test -e \"$1/below\" && : >\"$1/above\"";

/// Directory of a sandbox that is put together from layers (overlayfs). At most one run uses an `upper` at a time. Files of the
/// lower layers are shown as the job's own. Where the node is root and the kernel has no idmapped mounts (before 5.19), they are
/// nobody's: they can be read, changed and removed, and their mode and an earlier time cannot be set.
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
    if !is_real_dir(upper) {
        return Err(at_path(upper)(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let mut removed = 0;
    // The job decides how many files there are, so they are not collected first.
    let mut open = vec![upper.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in read_directory(&directory).map_err(at_path(&directory))? {
            let path = entry.map_err(at_path(&directory))?.path();
            let meta = fs::symlink_metadata(&path).map_err(at_path(&path))?;
            if meta.is_dir() {
                open.push(path);
            } else if is_whiteout(&meta) {
                fs::remove_file(&path).map_err(at_path(&path))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// What the upper layer of an overlay hides of the layers below it. Paths are relative to its top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenPaths {
    /// Deleted files and directories.
    pub deleted: BTreeSet<PathBuf>,
    /// Directories that were made anew: they hide everything in the directories of the same name.
    pub opaque: BTreeSet<PathBuf>,
}

/// Finds what an upper layer hides. [`sanitize_layer`] removes the marks. No run may use the layer.
pub fn find_hidden_paths(upper: &Path) -> io::Result<HiddenPaths> {
    if !is_real_dir(upper) {
        return Err(at_path(upper)(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let mut hidden = HiddenPaths::default();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        let directory = upper.join(&relative);
        for entry in read_directory(&directory).map_err(at_path(&directory))? {
            let entry = entry.map_err(at_path(&directory))?;
            let (path, below) = (entry.path(), relative.join(entry.file_name()));
            let meta = fs::symlink_metadata(&path).map_err(at_path(&path))?;
            if meta.is_dir() {
                let names = list_attributes(&path).map_err(at_path(&path))?;
                if names.iter().any(|name| name.ends_with(OPAQUE_ATTRIBUTE_SUFFIX)) {
                    hidden.opaque.insert(below.clone());
                }
                open.push(below);
            } else if is_whiteout(&meta) {
                hidden.deleted.insert(below);
            }
        }
    }
    Ok(hidden)
}

/// Marks a file of the layers below as deleted.
pub fn create_whiteout(path: &Path) -> io::Result<()> {
    let made = mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0);
    made.map_err(|error| at_path(path)(error.into()))
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

/// Returns whether an entry of an upper layer marks a file of a lower layer as deleted.
pub fn is_whiteout(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
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

/// Returns the names of the attributes of a file.
fn list_attributes(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let bytes = match llistxattr_query(path) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(bytes) => bytes,
        Err(error) => return Err(error.into()),
    };
    let mut list = vec![0_u8; bytes];
    let read = llistxattr(path, list.as_mut_slice())?;
    list.truncate(read);
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Removes attributes that mean something to the kernel. Returns whether there were any.
fn remove_attributes(path: &Path) -> io::Result<bool> {
    let names = list_attributes(path)?;
    let mut removed = false;
    for name in names.iter().filter(|name| is_kernel_attribute(name)) {
        match lremovexattr(path, name.as_slice()) {
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

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use rustix::fs::{XattrFlags, lsetxattr};

    use super::*;

    fn set_attribute(path: &Path, name: &str) {
        lsetxattr(path, name, b"y", XattrFlags::empty()).unwrap();
    }

    /// The attributes of a file but for those of the machine's security module.
    fn attributes(path: &Path) -> Vec<String> {
        let mut list = vec![0_u8; llistxattr_query(path).unwrap() + 1];
        let read = llistxattr(path, list.as_mut_slice()).unwrap();
        list.truncate(read);
        let names = list.split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name));
        names
            .filter(|name| !name.is_empty() && *name != "security.selinux")
            .map(Into::into)
            .collect()
    }

    #[test]
    fn a_layer_has_nothing_that_means_more_than_a_file() {
        let place = tempfile::tempdir().unwrap();
        let layer = place.path().join("layer");
        fs::create_dir_all(layer.join("bin")).unwrap();
        let (program, data) = (layer.join("bin/program"), layer.join("data"));
        fs::write(&program, "x").unwrap();
        fs::write(&data, "y").unwrap();
        symlink("/etc/shadow", layer.join("link")).unwrap();
        for (path, mode) in [(&program, 0o6755), (&data, 0o600), (&layer.join("bin"), 0o1700)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        if geteuid().is_root() {
            set_attribute(&program, "trusted.overlay.redirect");
        }
        set_attribute(&data, "user.overlay.metacopy");
        set_attribute(&data, "user.own");
        set_attribute(&layer, "user.overlay.opaque");
        mknodat(CWD, layer.join("bin/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        mknodat(CWD, layer.join("whiteout"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        let _socket = UnixListener::bind(layer.join("socket")).unwrap();
        let time = fs::metadata(&data).unwrap().modified().unwrap();

        let stats = sanitize_layer(&layer).unwrap();

        assert_eq!((stats.entries, stats.removed), (4, 3));
        assert!((8192..1 << 20).contains(&stats.bytes), "{stats:?}");
        let modes = [&layer, &layer.join("bin"), &program, &data]
            .map(|path| fs::metadata(path).unwrap().mode() & 0o7777);
        assert_eq!(modes, [0o777, 0o777, 0o777, 0o666]);
        assert_eq!(attributes(&data), ["user.own"]);
        assert_eq!([&layer, &program].map(|path| attributes(path)), [Vec::<String>::new(), vec![]]);
        let left = ["bin/pipe", "whiteout", "socket"].map(|name| layer.join(name).exists());
        assert_eq!(left, [false; 3]);
        assert_eq!(fs::read_link(layer.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert_eq!(fs::metadata(&data).unwrap().modified().unwrap(), time);
    }

    #[test]
    fn a_file_with_another_name_outside_is_refused_and_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let (layer, outside) = (place.path().join("layer"), place.path().join("outside"));
        fs::create_dir(&layer).unwrap();
        fs::write(&outside, "x").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&outside, layer.join("inside")).unwrap();
        let refused = sanitize_layer(&layer).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_with_two_names_inside_counts_once() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("one"), vec![1; 100_000]).unwrap();
        fs::hard_link(place.path().join("one"), place.path().join("two")).unwrap();
        let stats = sanitize_layer(place.path()).unwrap();
        assert_eq!(stats.entries, 2);
        assert!((100_000..150_000).contains(&stats.bytes), "{stats:?}");
    }

    #[test]
    fn a_link_to_a_directory_is_no_layer() {
        let place = tempfile::tempdir().unwrap();
        symlink("/etc", place.path().join("link")).unwrap();
        let refused = sanitize_layer(&place.path().join("link")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn marks_of_deleted_files_are_removed_and_other_files_stay() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("below")).unwrap();
        fs::write(place.path().join("file"), "x").unwrap();
        let whiteout = place.path().join("below/whiteout");
        mknodat(CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        assert_eq!(remove_whiteouts(place.path()).unwrap(), 1);
        assert!(place.path().join("file").exists() && !whiteout.exists());
    }

    #[test]
    fn what_an_upper_layer_hides_is_found_and_marked_again() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("kept/anew")).unwrap();
        fs::write(place.path().join("kept/file"), "x").unwrap();
        set_attribute(&place.path().join("kept/anew"), "user.overlay.opaque");
        create_whiteout(&place.path().join("kept/gone")).unwrap();
        let paths = |path: &str| BTreeSet::from([PathBuf::from(path)]);
        let hidden = HiddenPaths { deleted: paths("kept/gone"), opaque: paths("kept/anew") };
        assert_eq!(find_hidden_paths(place.path()).unwrap(), hidden);
        sanitize_layer(place.path()).unwrap();
        assert_eq!(find_hidden_paths(place.path()).unwrap(), HiddenPaths::default());
    }
}
