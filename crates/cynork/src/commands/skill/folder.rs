//! Folders of skills on this machine: read for an import, written by an export.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cynode_core::skills::{
    MAX_SKILL_FILE_BYTES, MAX_SKILL_FILES, SKILL_FILE_NAME, SkillFile, is_safe_skill_path,
};

use crate::failure::{CliError, CliErrorKind, Result};

/// Maximum depth of the folder.
const MAX_DEPTH: usize = 8;

/// Mode bits of a file that somebody can run.
const EXECUTABLE_BITS: u32 = 0o111;

/// Reads the files of a folder, in a fixed order. Hidden files are left out, and links are refused: what they lead to is not part of the
/// folder.
pub(super) fn read_folder(folder: &Path) -> Result<Vec<SkillFile>> {
    let mut files = Vec::new();
    read_below(folder, "", 0, &mut files)?;
    if files.iter().all(|file| file.path != SKILL_FILE_NAME) {
        let what = format!("{} has no {SKILL_FILE_NAME}", folder.display());
        return Err(CliError::invalid_input(what)
            .with_fix("name the folder of one skill, with its SKILL.md in it"));
    }
    Ok(files)
}

fn read_below(folder: &Path, below: &str, depth: usize, files: &mut Vec<SkillFile>) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| CliError::invalid_input(format!("{path} cannot be read: {error}"))
    };
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let mut entries: Vec<fs::DirEntry> =
        entries.collect::<io::Result<_>>().map_err(failed(folder))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let relative = if below.is_empty() { name } else { format!("{below}/{name}") };
        // Of the entry itself: a link is not followed.
        let about = entry.metadata().map_err(failed(&path))?;
        if about.is_dir() && depth < MAX_DEPTH {
            read_below(&path, &relative, depth + 1, files)?;
        } else if about.is_file() {
            if files.len() > MAX_SKILL_FILES || about.len() > max_file_bytes(&relative) {
                return Err(CliError::invalid_input(format!(
                    "{} is more than a skill has: {MAX_SKILL_FILES} files of {MAX_SKILL_FILE_BYTES} bytes",
                    path.display()
                )));
            }
            let text = fs::read_to_string(&path).map_err(failed(&path))?;
            let executable = about.permissions().mode() & EXECUTABLE_BITS != 0;
            files.push(SkillFile { path: relative, text, executable });
        } else {
            let what = format!("{} is no file: a skill has files only", path.display());
            return Err(CliError::invalid_input(what));
        }
    }
    Ok(())
}

/// The document has its front matter besides its instructions.
fn max_file_bytes(path: &str) -> u64 {
    let most =
        if path == SKILL_FILE_NAME { 2 * MAX_SKILL_FILE_BYTES } else { MAX_SKILL_FILE_BYTES };
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// Writes the files of a skill into a new folder below `parent`. Nothing outside of that folder is written, whatever the server says.
pub(super) fn write_folder(parent: &Path, name: &str, files: &[SkillFile]) -> Result<PathBuf> {
    let failed =
        |error: io::Error| CliError::invalid_input(format!("{name} cannot be written: {error}"));
    if !is_safe_skill_path(name) || name.contains('/') {
        return Err(CliError::internal_error(format!("{name:?} is no name of a folder")));
    }
    let folder = parent.join(name);
    if folder.exists() {
        let what = format!("{} is there already", folder.display());
        return Err(CliError::new(CliErrorKind::Conflict, what)
            .with_fix("remove it, or name another place with --to"));
    }
    for file in files {
        if file.path != SKILL_FILE_NAME && !is_safe_skill_path(&file.path) {
            return Err(CliError::internal_error(format!("{:?} is no file of a skill", file.path)));
        }
        let path = folder.join(&file.path);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        fs::write(&path, &file.text).map_err(failed)?;
        if file.executable {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str, executable: bool) -> SkillFile {
        SkillFile { path: path.into(), text: text.into(), executable }
    }

    #[test]
    fn a_folder_is_written_and_read_again_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let files = [file("SKILL.md", "x", false), file("scripts/a.sh", "y", true)];
        let folder = write_folder(place.path(), "run-the-tests", &files).unwrap();
        fs::write(folder.join(".hidden"), "z").unwrap();
        assert_eq!(read_folder(&folder).unwrap(), files);
        let again = write_folder(place.path(), "run-the-tests", &files).unwrap_err();
        assert_eq!(again.kind, CliErrorKind::Conflict);
    }

    #[test]
    fn what_is_no_folder_of_a_skill_is_refused() {
        let place = tempfile::tempdir().unwrap();
        assert!(read_folder(place.path()).unwrap_err().detail.contains("has no SKILL.md"));
        fs::write(place.path().join("SKILL.md"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).unwrap();
        assert!(read_folder(place.path()).unwrap_err().detail.contains("is no file"));
        fs::remove_file(place.path().join("link")).unwrap();
        fs::write(place.path().join("large"), vec![b'x'; MAX_SKILL_FILE_BYTES + 1]).unwrap();
        assert!(read_folder(place.path()).unwrap_err().detail.contains("more than a skill has"));
    }

    #[test]
    fn nothing_is_written_outside_of_the_folder_whatever_the_server_says() {
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("in");
        for (name, path) in [("../out", "SKILL.md"), ("a", "../../out"), ("a", "/tmp/out")] {
            assert!(write_folder(&parent, name, &[file(path, "x", false)]).is_err(), "{path}");
        }
        assert!(!place.path().join("out").exists());
    }
}
