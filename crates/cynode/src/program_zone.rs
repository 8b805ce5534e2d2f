//! Trust zones of the programs that `cynode up` supervises: each has a Unix user of its own if `up` runs as root, and an environment with
//! nothing but what it needs. None of them sees the password of the database, even if it is in the environment of `up`.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    process::{Gid, Uid},
};
use tokio::process::Command;

use crate::config;

/// First of the users without an entry in `/etc/passwd`. They follow those of nodes and of tool servers.
const FIRST_PROGRAM_USER: u32 = 1_912_000_000;
/// Number of disjoint ranges of users on one machine, and of users in each.
const USER_RANGE_COUNT: u32 = 200;
const USERS_PER_RANGE: u32 = 10;
/// Directory of the installation with programs whose users cannot reach them elsewhere.
const PROGRAM_DIRECTORY: &str = "programs";

/// Kind of a supervised program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Engine,
    Runner,
    Manager,
    Analyst,
    Node,
}

/// Whether programs have users of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserSeparation {
    /// If this process is root. Otherwise it cannot give them any.
    WherePossible,
    /// A person asked for one user for all.
    None,
}

impl ProgramKind {
    /// Returns the name of the user that packages create, and its number in a range. A node needs root for the users of its jobs, if it
    /// has root at all; the users of jobs are separate from each other and from it.
    const fn account(self) -> Option<(&'static str, u32)> {
        match self {
            Self::Engine => Some(("cynode-engine", 0)),
            Self::Runner => Some(("cynode-runner", 1)),
            Self::Manager => Some(("cynode-manager", 2)),
            Self::Analyst => Some(("cynode-analyst", 3)),
            Self::Node => None,
        }
    }

    /// Returns whether a program gets a variable of the environment of `up`.
    fn receives_variable(self, name: &str) -> bool {
        match self {
            Self::Engine | Self::Runner => false,
            Self::Manager | Self::Analyst => {
                name.starts_with("PMA_")
                    || ["PLANNER_MAX_STEPS", "MODEL_TEMPERATURE"].contains(&name)
            }
            // Its package proxy takes the registries of the machine from the variables of package clients.
            Self::Node => {
                let clients = ["CYNODE_NODE_", "PIP_", "UV_", "NPM_", "npm_config_", "CARGO_"];
                let names = [
                    "HOME",
                    "HTTPS_PROXY",
                    "NODE_EXTRA_CA_CERTS",
                    "NO_PROXY",
                    "SSL_CERT_FILE",
                    "https_proxy",
                    "no_proxy",
                ];
                clients.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
            }
        }
    }
}

/// User of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProgramUser {
    user: u32,
    group: u32,
}

/// How a directory is opened whose content is given away: never through a link.
const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl ProgramUser {
    fn uid(self) -> Uid {
        Uid::from_raw(self.user)
    }

    fn gid(self) -> Gid {
        Gid::from_raw(self.group)
    }

    /// Gives what is in a directory to this user. Every name is looked up in its open directory: a process of this user that was left over
    /// could exchange a directory for a link to one of the system.
    fn own_entries(self, directory: &OwnedFd) -> rustix::io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if is_directory {
                let below = rustix::fs::openat(directory, name, DIRECTORY_FLAGS, Mode::empty())?;
                self.own_entries(&below)?;
            }
            // A file with a second name may be one of somebody else, whose name the user of the program put here.
            let is_shared = !is_directory && found.st_nlink > 1;
            if found.st_uid != self.user && !is_shared {
                let (owner, group) = (Some(self.uid()), Some(self.gid()));
                rustix::fs::chownat(directory, name, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(())
    }
}

/// Trust zone of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramZone {
    user: Option<ProgramUser>,
    environment: Vec<(OsString, OsString)>,
}

impl ProgramZone {
    /// Returns the zone of a program of the installation in `data_dir`.
    pub(crate) fn for_program(
        kind: ProgramKind,
        data_dir: &Path,
        separation: UserSeparation,
    ) -> anyhow::Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let user = match (kind.account(), separation) {
            (Some(account), UserSeparation::WherePossible) if is_root => {
                Some(find_user(account, data_dir)?)
            }
            _ => None,
        };
        let mut environment = config::inherited_variables(|name| kind.receives_variable(name));
        environment.push(("LC_ALL".into(), "C.UTF-8".into()));
        environment.push(("PATH".into(), program_path()));
        Ok(Self { user, environment })
    }

    /// Returns the zone with one more variable.
    pub(crate) fn with_variable(&self, name: &str, value: impl Into<OsString>) -> Self {
        let mut zone = self.clone();
        zone.environment.push((name.into(), value.into()));
        zone
    }

    /// Lets a command, which is `setpriv`, run in this zone.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(ProgramUser { user, group }) = self.user {
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
            command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
            command.arg("--no-new-privs");
        }
    }

    /// Gives a file that we wrote to the user of the program. Its directory is ours, so that the user cannot exchange it.
    pub(crate) fn own_file(&self, path: &Path) -> anyhow::Result<()> {
        match self.user {
            Some(ProgramUser { user, group }) => lchown(path, Some(user), Some(group))
                .with_context(|| format!("cannot give away {}", path.display())),
            None => Ok(()),
        }
    }

    /// Gives a directory and what is in it to the user of the program.
    pub(crate) fn own_tree(&self, path: &Path) -> anyhow::Result<()> {
        let Some(user) = self.user else { return Ok(()) };
        let given = || -> rustix::io::Result<()> {
            let directory = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty())?;
            user.own_entries(&directory)?;
            rustix::fs::fchown(&directory, Some(user.uid()), Some(user.gid()))
        };
        given().with_context(|| format!("cannot give away {}", path.display()))
    }

    /// Returns the mode of a directory of ours that the program must traverse.
    pub(crate) const fn directory_mode(&self) -> u32 {
        if self.user.is_some() { 0o711 } else { 0o700 }
    }

    /// Returns where the user of the program can run it: where it is, or in the installation's directory if it is closed to others there,
    /// as in the home of root. It is put there anew at every start, because it may have been upgraded.
    pub(crate) fn place_program(&self, program: &Path, data_dir: &Path) -> anyhow::Result<PathBuf> {
        if self.ensure_reachable(program).is_ok() {
            return Ok(program.to_owned());
        }
        self.ensure_reachable(data_dir)?;
        let program = fs::canonicalize(program)
            .with_context(|| format!("cannot find {}", program.display()))?;
        let name = program.file_name().context("a program has no name")?;
        let folder = data_dir.join(PROGRAM_DIRECTORY);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
        let new = folder.join("new");
        let _ = fs::remove_file(&new);
        if fs::hard_link(&program, &new).is_err() {
            fs::copy(&program, &new)
                .with_context(|| format!("cannot copy {}", program.display()))?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        }
        let placed = folder.join(name);
        fs::rename(&new, &placed)?;
        self.ensure_reachable(&placed)?;
        Ok(placed)
    }

    /// Refuses a program or a directory that the user of the program cannot reach, with what to do.
    pub(crate) fn ensure_reachable(&self, path: &Path) -> anyhow::Result<()> {
        if self.user.is_none() {
            return Ok(());
        }
        let path =
            fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
        for ancestor in path.ancestors() {
            let mode = fs::metadata(ancestor)?.mode();
            ensure!(
                mode & 0o001 != 0,
                "each program has a user of its own, who cannot reach {}: {} is closed to others; install the programs where everybody can \
                 read them, open that directory with `chmod o+x`, or run all programs as root with --one-user",
                path.display(),
                ancestor.display()
            );
        }
        Ok(())
    }
}

/// Returns the search path of programs.
fn program_path() -> OsString {
    let own = std::env::join_paths(config::search_path()).unwrap_or_default();
    if own.is_empty() {
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()
    } else {
        own
    }
}

/// Returns the user that a package created, or one without an entry that only this installation has.
fn find_user((name, number): (&str, u32), data_dir: &Path) -> anyhow::Result<ProgramUser> {
    let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    if let Some(user) = find_account(&accounts, name) {
        ensure!(user.user != 0, "the user `{name}` in /etc/passwd is root");
        return Ok(user);
    }
    let digest =
        ring::digest::digest(&ring::digest::SHA256, data_dir.as_os_str().as_encoded_bytes());
    let share = digest.as_ref().first().copied().map_or(0, u32::from) % USER_RANGE_COUNT;
    let id = FIRST_PROGRAM_USER + share * USERS_PER_RANGE + number;
    Ok(ProgramUser { user: id, group: id })
}

fn find_account(accounts: &str, name: &str) -> Option<ProgramUser> {
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let (user, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(ProgramUser { user, group })
}

#[cfg(test)]
impl ProgramZone {
    /// A zone for tests of the supervisor: this user, and the search path only.
    pub(crate) fn example() -> Self {
        Self { user: None, environment: vec![("PATH".into(), program_path())] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_gets_the_password_of_the_database_or_settings_of_the_server() {
        let kinds = [
            ProgramKind::Engine,
            ProgramKind::Runner,
            ProgramKind::Manager,
            ProgramKind::Analyst,
            ProgramKind::Node,
        ];
        for kind in kinds {
            for name in [
                "DATABASE_URL",
                "PGPASSWORD",
                "CYNODE_MAIL_PASSWORD",
                "CYNODE_CONFIG",
                "AWS_SECRET_ACCESS_KEY",
            ] {
                assert!(!kind.receives_variable(name), "{kind:?} {name}");
            }
        }
        assert!(ProgramKind::Node.receives_variable("CYNODE_NODE_SLOTS"));
        assert!(!ProgramKind::Manager.receives_variable("CYNODE_NODE_SLOTS"));
        assert!(ProgramKind::Analyst.receives_variable("PMA_LOG"));
    }

    #[test]
    fn an_account_of_a_package_is_used_and_no_other_line_is_taken_for_it() {
        let accounts = "root:x:0:0::/root:/bin/sh\nxcynode-runner:x:1:1::/:/bin/false\ncynode-runner:x:990:991::/:/bin/false\n";
        assert_eq!(
            find_account(accounts, "cynode-runner"),
            Some(ProgramUser { user: 990, group: 991 })
        );
        assert_eq!(find_account(accounts, "cynode-engine"), None);
    }

    #[test]
    fn a_link_in_a_directory_of_a_program_gives_nothing_else_away() {
        // Without root the files stay with this user; the walk is the same.
        let (user, group) =
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let user = if user == 0 {
            ProgramUser { user: FIRST_PROGRAM_USER, group: FIRST_PROGRAM_USER }
        } else {
            ProgramUser { user, group }
        };
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::create_dir_all(own.join("db")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(own.join("db/log"), "").unwrap();
        fs::write(other.join("secret"), "").unwrap();
        fs::hard_link(other.join("secret"), own.join("second-name")).unwrap();
        std::os::unix::fs::symlink(&other, own.join("link")).unwrap();
        let zone = ProgramZone { user: Some(user), environment: Vec::new() };
        let before = fs::metadata(&other).unwrap().uid();
        zone.own_tree(&own).unwrap();
        for path in [own.clone(), own.join("db"), own.join("db/log")] {
            assert_eq!(fs::metadata(&path).unwrap().uid(), user.user, "{}", path.display());
        }
        for path in [other.clone(), other.join("secret")] {
            assert_eq!(fs::metadata(&path).unwrap().uid(), before, "{}", path.display());
        }
        // The directory itself is never reached through a link.
        assert!(zone.own_tree(&own.join("link")).is_err());
    }

    #[test]
    fn programs_without_accounts_have_users_of_their_own() {
        let user = |account| find_user(account, Path::new("/srv/cynode")).unwrap().user;
        let engine = user(("no-such-account-1", 0));
        assert_eq!(user(("no-such-account-2", 1)), engine + 1);
        assert!((FIRST_PROGRAM_USER..FIRST_PROGRAM_USER + 2000).contains(&engine));
    }
}
