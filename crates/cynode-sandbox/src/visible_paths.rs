//! Host directories that the node's admin lets sandboxes see. A path that cannot be shown, path traversal (`..`)
//! included, is reported and skipped: neither a job nor the node fails for it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{fs::Access, process::geteuid};

/// Paths that sandboxes can see, and a warning about each other entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisiblePaths {
    /// Directories that sandboxes can read.
    pub readable: Vec<PathBuf>,
    /// Reasons why the other entries are skipped, and how to fix that.
    pub warnings: Vec<String>,
}

impl VisiblePaths {
    /// Checks each entry of `show`.
    pub fn check_entries(entries: &[PathBuf]) -> Self {
        let mut checked = Self::default();
        for path in entries {
            match find_path_obstacle(path) {
                None => checked.readable.push(path.clone()),
                Some(why) => {
                    let warning = format!("`show` names {}, which {why}", path.display());
                    checked.warnings.push(warning);
                }
            }
        }
        checked
    }
}

/// Returns why sandboxes cannot see a path and how to fix that; `None` if they can.
fn find_path_obstacle(path: &Path) -> Option<String> {
    let plain = path.to_str().is_some_and(|text| !text.contains([':', ',', '\0']));
    let straight = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    if !path.is_absolute() || !plain || !straight {
        return Some(
            "is no plain absolute path: it is left out; write it from `/` on, without `..`, `:` and `,`"
                .to_owned(),
        );
    }
    if fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Some(
            "does not exist: it is left out; make it, or take it out of node.toml".to_owned(),
        );
    }
    let closed = find_unreadable_ancestor(path)?;
    let open = if closed == path { "o+rx" } else { "o+x" };
    Some(format!(
        "sandboxes cannot read: it is left out; copy it to a place that everybody can read (such as /opt) and name that place, \
         or open it with `chmod {open} {}`",
        closed.display()
    ))
}

/// Returns the ancestor directory that a sandbox user cannot traverse. Sandboxes of a root node run as users without groups.
fn find_unreadable_ancestor(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if !geteuid().is_root() {
        let wanted = Access::READ_OK | Access::EXEC_OK;
        let wanted = if real.is_dir() { wanted } else { Access::READ_OK };
        return rustix::fs::access(&real, wanted).is_err().then_some(real);
    }
    let mode = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.mode());
    let above = real.ancestors().skip(1).find(|above| mode(above) & 0o001 == 0);
    let wanted = if real.is_dir() { 0o005 } else { 0o004 };
    let own = (mode(&real) & wanted != wanted).then_some(real.as_path());
    above.or(own).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_can_be_read_is_shown_and_what_cannot_is_named() {
        let place = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(place.path(), 0o755);
        let (open, closed) = (place.path().join("open"), place.path().join("closed"));
        let below = closed.join("below");
        fs::create_dir_all(&below).unwrap();
        fs::create_dir(&open).unwrap();
        set(&open, 0o755);
        set(&below, 0o755);
        set(&closed, 0o000);
        let odd = PathBuf::from("not/absolute");
        let checked = VisiblePaths::check_entries(&[open.clone(), closed.clone(), odd]);
        assert_eq!(checked.readable, [open]);
        let told: Vec<_> = checked.warnings.iter().map(|text| text.split(": ").next()).collect();
        let named = format!("`show` names {}, which sandboxes cannot read", closed.display());
        let odd = "`show` names not/absolute, which is no plain absolute path";
        assert_eq!(told, [Some(named.as_str()), Some(odd)]);
        set(&closed, 0o755);
    }
}
