//! Profiles of jobs: resolved when a job is assigned, and applied to what its node is told. A change of a profile reaches the next job.

use cynode_core::{
    ids::ProjectId,
    profiles::{ProfileName, ProfileSandbox, ProfileSpec, ProfileVersion},
    workflow::jobs::{JobSpec, SandboxNeeds},
};
use cynode_db::{
    Conn,
    nodes::{self, ClaimedNodeJob},
};
use cynode_wire::nodes::AssignedProfile;

use crate::{Ctx, Error, tasks::profiles::find_profile, tools::profiles};

/// Resolves the profile of a job, limits the job by it, and notes it. Returns `Invalid` when the job cannot be done under it, or not by this
/// node. Checks and merges are done without a profile where it is gone.
pub(super) async fn assign_profile(
    ctx: &mut Ctx,
    job: &ClaimedNodeJob,
    work: &mut JobSpec,
    applies_profiles: bool,
) -> Result<Option<Box<AssignedProfile>>, Error> {
    let (user, project, task) = (job.user, job.project, Some(job.task));
    let profile = profiles::profile_of_agent(ctx, work.role, user, project, task).await?;
    limit_job(work, &profile)?;
    if !applies_profiles {
        require_nothing_to_apply(work, &profile)?;
    }
    if !profile.is_known() {
        return Ok(None);
    }
    nodes::set_job_profile(ctx.conn(), job.job, &profile.name, profile.version).await?;
    let ProfileVersion { name, version, spec } = profile;
    Ok(Some(Box::new(AssignedProfile { name, version, spec: ProfileSpec::clone(&spec) })))
}

/// Limits the size that a job asks for to that of the profile which its task names, so that it waits for no larger node than it needs. A
/// profile that is gone is left to the assignment.
pub(super) async fn limit_needs(
    conn: &mut Conn,
    project: ProjectId,
    profile: Option<String>,
    work: Option<JobSpec>,
) -> Result<Option<JobSpec>, Error> {
    let Some(name) = profile.and_then(|name| ProfileName::try_from(name).ok()) else {
        return Ok(work);
    };
    let Some(mut work) = work else { return Ok(None) };
    if work.worker.is_agent_work()
        && let Some(profile) = find_profile(conn, Some(project), &name).await?
    {
        work.sandbox = lower_asked_size(work.sandbox, profile.spec.sandbox);
    }
    Ok(Some(work))
}

/// Lowers what a job asks for to the maximum of its profile. A job that asks for no size takes any node, whose own limits then hold, too.
fn lower_asked_size(asked: SandboxNeeds, max: ProfileSandbox) -> SandboxNeeds {
    let limited = asked.clone().limit_to(max);
    SandboxNeeds {
        memory_mib: asked.memory_mib.and(limited.memory_mib),
        cpu_percent: asked.cpu_percent.and(limited.cpu_percent),
        processes: asked.processes.and(limited.processes),
        disk_mib: asked.disk_mib.and(limited.disk_mib),
        ..asked
    }
}

/// Rejects work of an agent at a node of an earlier release, which would give it every variable and take every change of a file.
fn require_nothing_to_apply(work: &JobSpec, profile: &ProfileVersion) -> Result<(), Error> {
    if !work.worker.is_agent_work() || profile.spec.leaves_nodes_nothing_to_do() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the node is of an earlier release and cannot apply the profile `{}`: upgrade it",
        profile.name
    )))
}

/// Limits what an agent is given to what its profile declares. Checks and merges are work of the installation and of no agent: of their needs,
/// only the hosts are limited.
fn limit_job(work: &mut JobSpec, profile: &ProfileVersion) -> Result<(), Error> {
    limit_hosts(work, profile);
    if !work.worker.is_agent_work() {
        return Ok(());
    }
    let ProfileVersion { name, spec, .. } = profile;
    if !profile.is_known() {
        return Err(Error::Invalid(format!(
            "the profile `{name}` that the task or a preference names does not exist: create it, or start the work anew under another one"
        )));
    }
    if !spec.reads_everything() {
        return Err(Error::Invalid(format!(
            "the profile `{name}` does not read every file of the repository, and a working copy cannot hide files: name a profile whose \
             `paths.read` has `**`"
        )));
    }
    let has_models = !work.models.is_empty();
    work.models.retain(|id| spec.allows_model(id));
    if has_models && work.models.is_empty() {
        return Err(Error::Invalid(format!(
            "the profile `{name}` allows none of the models that the plan names"
        )));
    }
    work.sandbox = std::mem::take(&mut work.sandbox).limit_to(spec.sandbox);
    Ok(())
}

/// Limits the hosts of a job to those of its profile. Checks run what the agent wrote, so that it would send through them what it cannot send
/// itself. Agents that were given no profile keep the hosts of their plan: `default` has no network, and plans had hosts before profiles.
fn limit_hosts(work: &mut JobSpec, profile: &ProfileVersion) {
    if profile.name == ProfileName::default() {
        return;
    }
    let reachable = |host: &String| profile.spec.allows_request("GET", &host.to_ascii_lowercase());
    work.sandbox.egress_hosts.retain(reachable);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cynode_core::profiles::shipped_profile;
    use serde_json::json;

    use super::*;

    fn job(worker: &serde_json::Value) -> JobSpec {
        serde_json::from_value(json!({
            "role": "developer", "worker": worker, "models": ["gpt-5", "local-model"],
            "sandbox": { "memory_mib": 65_536, "egress_hosts": ["Docs.rs", "crates.io"] },
        }))
        .unwrap()
    }

    fn shipped(name: &str) -> ProfileVersion {
        let name: ProfileName = name.parse().unwrap();
        let spec = Arc::new(shipped_profile(&name).unwrap());
        ProfileVersion { name, version: 1, spec }
    }

    fn own(change: impl FnOnce(&mut ProfileSpec)) -> ProfileVersion {
        let mut spec = shipped_profile(&ProfileName::default()).unwrap();
        change(&mut spec);
        ProfileVersion { name: "own".parse().unwrap(), version: 3, spec: Arc::new(spec) }
    }

    // B001-17, S001-10
    #[test]
    fn a_job_gets_the_size_and_the_hosts_of_its_profile_and_a_check_its_hosts() {
        let command = json!({ "kind": "command", "steps": [{ "argv": ["true"] }] });
        let mut work = job(&command);
        limit_job(&mut work, &shipped("builder")).unwrap();
        assert_eq!(work.sandbox.memory_mib, Some(8192));
        assert_eq!(work.sandbox.cpu_percent, Some(400));
        assert!(work.sandbox.egress_hosts.is_empty());

        let mut work = job(&command);
        limit_job(&mut work, &shipped("research")).unwrap();
        assert_eq!(work.sandbox.memory_mib, Some(65_536));
        assert_eq!(work.sandbox.egress_hosts, ["Docs.rs", "crates.io"]);

        let checks = json!({ "kind": "checks", "checks": [] });
        let gone = ProfileVersion::unknown("gone".parse().unwrap());
        for profile in [own(|spec| spec.paths.read.clear()), gone] {
            let mut work = job(&checks);
            limit_job(&mut work, &profile).unwrap();
            assert!(work.sandbox.egress_hosts.is_empty(), "checks run what the agent wrote");
            assert_eq!(work.sandbox.memory_mib, Some(65_536));
        }
        for worker in [&command, &checks] {
            let mut work = job(worker);
            limit_job(&mut work, &shipped("default")).unwrap();
            assert_eq!(work, job(worker), "agents without a profile have what they had before");
        }
    }

    #[test]
    fn a_node_of_an_earlier_release_gets_no_agent_whose_profile_it_would_have_to_apply() {
        let command = job(&json!({ "kind": "command", "steps": [{ "argv": ["true"] }] }));
        let variables = own(|spec| spec.variables = vec!["CI".into()]);
        let paths = own(|spec| spec.paths.write = vec!["docs/**".into()]);
        for profile in [&variables, &paths] {
            let refused = require_nothing_to_apply(&command, profile).unwrap_err();
            assert!(matches!(&refused, Error::Invalid(why) if why.contains("upgrade it")));
            let checks = job(&json!({ "kind": "checks", "checks": [] }));
            require_nothing_to_apply(&checks, profile).unwrap();
        }
        require_nothing_to_apply(&command, &shipped("default")).unwrap();
    }

    #[test]
    fn a_job_waits_for_no_larger_node_than_it_asks_for_itself() {
        let max =
            ProfileSandbox { memory_mib: Some(8192), disk_mib: Some(100), ..Default::default() };
        let asked = SandboxNeeds { disk_mib: Some(500), ..SandboxNeeds::plain_sandbox() };
        let expected = SandboxNeeds { disk_mib: Some(100), ..SandboxNeeds::plain_sandbox() };
        assert_eq!(lower_asked_size(asked, max), expected);
    }

    #[test]
    fn a_profile_that_is_gone_permits_no_job_of_an_agent() {
        let gone = ProfileVersion::unknown("gone".parse().unwrap());
        let command = json!({ "kind": "command", "steps": [{ "argv": ["true"] }] });
        let refused = limit_job(&mut job(&command), &gone).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("`gone`")));
        limit_job(&mut job(&json!({ "kind": "merge" })), &gone).unwrap();
    }

    #[test]
    fn a_profile_that_hides_files_or_has_no_model_for_the_plan_fails_the_job_with_the_reason() {
        let command = json!({ "kind": "command", "steps": [{ "argv": ["true"] }] });
        let hides = own(|spec| spec.paths.read = vec!["docs/**".into()]);
        let refused = limit_job(&mut job(&command), &hides).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("cannot hide files")));
        let mut work = job(&command);
        limit_job(&mut work, &own(|spec| spec.models = vec!["local-*".into()])).unwrap();
        assert_eq!(work.models, ["local-model"]);
        let none = own(|spec| spec.models.clear());
        let refused = limit_job(&mut job(&command), &none).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("none of the models")));
    }
}
