//! Landlock ruleset, a second barrier besides the mounts. Only the writable paths can be changed, and no process outside can be
//! signalled or reached by an abstract socket.

use std::path::PathBuf;

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

/// Newest Landlock ABI that is requested; an older kernel applies the subset that it supports.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Applies the ruleset to this process and its descendants. On a kernel without Landlock it does nothing; with Landlock it must
/// succeed.
pub(crate) fn apply_landlock_ruleset(writable: &[PathBuf]) -> anyhow::Result<()> {
    let all = AccessFs::from_all(LANDLOCK_ABI);
    let read = AccessFs::from_read(LANDLOCK_ABI);
    let devices = read | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
    let mut rules = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, read))?
        .add_rule(PathBeneath::new(PathFd::new("/dev")?, devices))?
        .add_rule(PathBeneath::new(PathFd::new("/proc")?, read | AccessFs::WriteFile))?;
    for place in writable {
        let place = PathFd::new(place).with_context(|| format!("no {}", place.display()))?;
        rules = rules.add_rule(PathBeneath::new(place, all))?;
    }
    let status = rules.restrict_self()?;
    match (status.landlock, status.ruleset) {
        (LandlockStatus::Available { .. }, RulesetStatus::NotEnforced) => {
            bail!("the kernel has Landlock and did not take the rules")
        }
        _ => Ok(()),
    }
}
