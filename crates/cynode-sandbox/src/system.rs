//! System directories and `/etc` of bubblewrap sandboxes: those of the host, layers over them, or another root.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    IoContext, SandboxError, SystemLayers,
    bubblewrap::bind_arguments,
    host_env::{create_traversable_dir, write_atomically},
    layers::{MountPlan, is_real_dir},
};

/// System directories below the root; `usr` comes first. A directory that is a symlink there is a symlink in the sandbox.
const SYSTEM_DIRS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files of the host's `/etc` that programs need and that contain no private data.
const SHARED_ETC_FILES: [&str; 9] = [
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
];
/// Files of `/etc` that are generated for the sandbox.
const GENERATED_ETC_FILES: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("hostname", "sandbox\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("resolv.conf", ""),
];

/// System of the sandboxes of a node.
pub(super) struct SystemView {
    /// Generated `/etc` over the host's system, with a mount point for each shared file.
    host_etc: PathBuf,
    /// Arguments that show the shared files of the host's `/etc`.
    shared_files: Vec<String>,
    /// Generated `/etc` over another root, which has the other files itself.
    other_etc: PathBuf,
}

impl SystemView {
    /// Creates the generated files below the node's directory.
    pub(super) fn prepare_view(directory: &Path) -> Result<Self, SandboxError> {
        let [host_etc, other_etc] = ["etc", "etc-other"].map(|name| directory.join(name));
        prepare_etc(&host_etc)?;
        prepare_etc(&other_etc)?;
        let shared_files = prepare_shared_files(&host_etc)?;
        Ok(Self { host_etc, shared_files, other_etc })
    }

    /// Builds the arguments that show the system. Directories made of layers are added to `plan`.
    pub(super) fn mount_arguments(
        &self,
        system: &SystemLayers,
        plan: &mut MountPlan,
    ) -> Vec<String> {
        let mut all = Vec::new();
        for name in SYSTEM_DIRS {
            all.extend(directory_arguments(system, name, plan));
        }
        all.extend(opt_arguments(system, plan));
        let etc = match &system.root {
            None => layers_of(system, "etc", Some(self.host_etc.as_path()), Position::Top),
            Some(root) => {
                let mut etc =
                    layers_of(system, "etc", Some(self.other_etc.as_path()), Position::Top);
                etc.extend(Some(root.join("etc")).filter(|path| is_real_dir(path)));
                etc
            }
        };
        all.extend(layer_arguments(system, etc, Path::new("/etc"), plan));
        if system.root.is_none() {
            all.extend(self.shared_files.iter().cloned());
        }
        all
    }
}

/// Returns whether a path of the host can be shown in a sandbox: another root must have the directory in which it is mounted,
/// since nothing can be created in a system directory.
pub(super) fn has_mount_point(system: &SystemLayers, path: &Path) -> bool {
    let Some(root) = &system.root else { return true };
    let Ok(below) = path.strip_prefix("/") else { return false };
    let in_system = SYSTEM_DIRS.iter().any(|name| below.starts_with(name));
    !in_system || system.over.iter().chain([root]).any(|root| root.join(below).exists())
}

/// Place of a base directory among the layers over it.
#[derive(Clone, Copy)]
enum Position {
    Top,
    Bottom,
}

/// Returns the directories of a name in the layers, and the base. A symlink is no layer: it would choose a directory of the host.
fn layers_of(
    system: &SystemLayers,
    name: &str,
    base: Option<&Path>,
    position: Position,
) -> Vec<PathBuf> {
    let over = system.over.iter().map(|root| root.join(name));
    let base = base.map(Path::to_owned);
    let all: Vec<PathBuf> = match position {
        Position::Top => base.into_iter().chain(over).collect(),
        Position::Bottom => over.chain(base).collect(),
    };
    all.into_iter().filter(|path| is_real_dir(path)).collect()
}

/// Shows a directory read-only. A layer is below a directory that the job's user cannot enter, so it is bound from a mount point.
fn layer_arguments(
    system: &SystemLayers,
    lower: Vec<PathBuf>,
    inside: &Path,
    plan: &mut MountPlan,
) -> Vec<String> {
    let is_layer =
        |path: &Path| system.root.iter().chain(&system.over).any(|root| path.starts_with(root));
    match lower.as_slice() {
        [] => Vec::new(),
        [only] if !is_layer(only) => bind_arguments("--ro-bind", only, inside).to_vec(),
        _ => bind_arguments("--ro-bind", &plan.add_mount(lower, None), inside).to_vec(),
    }
}

fn directory_arguments(system: &SystemLayers, name: &str, plan: &mut MountPlan) -> Vec<String> {
    let root = system.root.as_deref().unwrap_or(Path::new("/"));
    let (base, inside) = (root.join(name), Path::new("/").join(name));
    let Some(target) = fs::read_link(&base).ok().or_else(|| find_implied_link(root, name)) else {
        let lower = layers_of(system, name, Some(base.as_path()), Position::Bottom);
        return layer_arguments(system, lower, &inside, plan);
    };
    let mut all = bind_arguments("--symlink", &target, &inside).to_vec();
    // A package may have files in `/lib` while the base has `/lib` as a link into `/usr`.
    let merged = Path::new("usr").join(name);
    let apart = layers_of(system, name, None, Position::Bottom);
    if target.strip_prefix("/").unwrap_or(&target) == merged && !apart.is_empty() {
        let lower: Vec<PathBuf> = system
            .over
            .iter()
            .flat_map(|root| [root.join(name), root.join(&merged)])
            .chain([root.join(&merged)])
            .filter(|path| is_real_dir(path))
            .collect();
        all.extend(layer_arguments(system, lower, &Path::new("/").join(&merged), plan));
    }
    all
}

/// Returns the link into `/usr` that a root made of extracted packages lacks: no package brings it.
fn find_implied_link(root: &Path, name: &str) -> Option<PathBuf> {
    let merged = Path::new("usr").join(name);
    let implied =
        fs::symlink_metadata(root.join(name)).is_err() && is_real_dir(&root.join(&merged));
    implied.then_some(merged)
}

/// Shows the entries of the layers' `opt` one by one, so that other paths can be mounted beside them.
fn opt_arguments(system: &SystemLayers, plan: &mut MountPlan) -> Vec<String> {
    let base = system.root.as_ref().map(|root| root.join("opt"));
    let lower = layers_of(system, "opt", base.as_deref(), Position::Bottom);
    let mut entries = BTreeMap::new();
    // The topmost layer comes last, and its entry is the one that is seen.
    for layer in lower.iter().rev() {
        for entry in fs::read_dir(layer).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str() {
                entries.insert(name.to_owned(), fs::read_link(entry.path()).ok());
            }
        }
    }
    if entries.is_empty() {
        return Vec::new();
    }
    let point = plan.add_mount(lower, None);
    let opt = Path::new("/opt");
    entries
        .into_iter()
        .flat_map(|(name, link)| match link {
            Some(target) => bind_arguments("--symlink", &target, &opt.join(name)),
            None => bind_arguments("--ro-bind", &point.join(&name), &opt.join(name)),
        })
        .collect()
}

/// Creates a directory with the generated files of `/etc`.
fn prepare_etc(etc: &Path) -> Result<(), SandboxError> {
    create_traversable_dir(etc)?;
    make_dir_listable(etc)?;
    for (name, text) in GENERATED_ETC_FILES {
        write_atomically(&etc.join(name), text.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Creates a mount point for each file of the host's `/etc` that is shown in the sandbox's.
fn prepare_shared_files(etc: &Path) -> Result<Vec<String>, SandboxError> {
    let mut all = Vec::new();
    for name in SHARED_ETC_FILES {
        let (host, place) = (Path::new("/etc").join(name), etc.join(name));
        let Ok(meta) = fs::metadata(&host) else { continue };
        if let Some(above) = place.parent() {
            create_traversable_dir(above)?;
            make_dir_listable(above)?;
        }
        if meta.is_dir() {
            create_traversable_dir(&place)?;
        } else {
            write_atomically(&place, b"", 0o644)?;
        }
        all.extend(bind_arguments("--ro-bind", &host, &Path::new("/etc").join(name)));
    }
    Ok(all)
}

/// Makes a directory listable by other users.
fn make_dir_listable(path: &Path) -> Result<(), SandboxError> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_io_context(|| format!("cannot change the mode of {}", path.display()))
}
