//! Which tools each role may use, as data. What is not here is refused.

use cynode_core::agents::AgentRole;

use crate::tool_names::{ToolName, ToolPattern};

/// One line of an allowlist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowlistEntry {
    /// The tools that are meant.
    pub tools: ToolPattern,
    /// What else must hold.
    pub only_if: AllowlistCondition,
}

/// What must hold for a line to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowlistCondition {
    /// Nothing more.
    Always,
    /// The system setting of that name is `true`. A line without condition that means the same tool does not help.
    Setting(AllowlistSwitch),
}

/// A system setting that widens or narrows an allowlist. Only people write settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowlistSwitch {
    /// Whether the project manager may see and add sandbox images.
    PmAllowedImages,
}

impl AllowlistSwitch {
    /// Every switch.
    pub const ALL: [Self; 1] = [Self::PmAllowedImages];

    /// The key of the system setting.
    pub const fn setting_key(self) -> &'static str {
        match self {
            Self::PmAllowedImages => {
                cynode_core::settings::registry::GATEWAY_PM_ALLOWED_IMAGES_SETTING
            }
        }
    }
}

/// The switches that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EnabledSwitches {
    /// [`AllowlistSwitch::PmAllowedImages`].
    pub pm_allowed_images: bool,
}

impl EnabledSwitches {
    const fn is_enabled(self, switch: AllowlistSwitch) -> bool {
        match switch {
            AllowlistSwitch::PmAllowedImages => self.pm_allowed_images,
        }
    }
}

/// What an allowlist says of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowlistVerdict {
    /// The role may use it.
    Yes,
    /// The role may not.
    No,
    /// The role may only when this setting is on.
    Off(AllowlistSwitch),
}

const fn allow_always(pattern: &'static str) -> AllowlistEntry {
    AllowlistEntry { tools: ToolPattern(pattern), only_if: AllowlistCondition::Always }
}

const fn allow_when(pattern: &'static str, switch: AllowlistSwitch) -> AllowlistEntry {
    AllowlistEntry { tools: ToolPattern(pattern), only_if: AllowlistCondition::Setting(switch) }
}

/// The list of the project manager.
const PROJECT_MANAGER_ALLOWLIST: &[AllowlistEntry] = &[
    allow_when("sandbox.allowed_images.*", AllowlistSwitch::PmAllowedImages),
    allow_always("db.*"),
    allow_always("node.*"),
    allow_always("sandbox.*"),
    allow_always("artifact.*"),
    allow_always("model.*"),
    allow_always("connector.*"),
    allow_always("web.fetch"),
    allow_always("web.search"),
    allow_always("api.call"),
    allow_always("git.*"),
    allow_always("help.*"),
    allow_always("memory.*"),
    allow_always("skills.*"),
    allow_always("schedule.*"),
    allow_always("workflow.start"),
    allow_always("verification.record"),
    allow_always("pm.instruct"),
    allow_always("agent.get_context"),
];

/// The list of an analyst: it reads, and says what it found.
const PROJECT_ANALYST_ALLOWLIST: &[AllowlistEntry] = &[
    allow_always("db.task.get"),
    allow_always("db.task.result"),
    allow_always("db.task.logs"),
    allow_always("db.work_unit.get"),
    allow_always("db.work_unit.list"),
    allow_always("db.job.get"),
    allow_always("db.job.list"),
    allow_always("db.project.get"),
    allow_always("db.preference.get"),
    allow_always("db.preference.effective"),
    allow_always("artifact.*"),
    allow_always("web.fetch"),
    allow_always("web.search"),
    allow_always("api.call"),
    allow_always("help.*"),
    allow_always("memory.*"),
    allow_always("skills.list"),
    allow_always("skills.get"),
    allow_always("verification.record"),
    allow_always("pm.report"),
    allow_always("agent.*"),
];

/// The list of whoever works in a sandbox.
const SANDBOX_ALLOWLIST: &[AllowlistEntry] = &[
    allow_always("artifact.*"),
    allow_always("model.list"),
    allow_always("model.ask"),
    allow_always("web.fetch"),
    allow_always("web.search"),
    allow_always("api.call"),
    allow_always("help.*"),
    allow_always("memory.*"),
    allow_always("skills.list"),
    allow_always("skills.get"),
    allow_always("pm.report"),
    allow_always("agent.*"),
];

/// The list of the program that drives tasks.
const RUNNER_ALLOWLIST: &[AllowlistEntry] = &[
    allow_always("workflow.*"),
    allow_always("db.task.get"),
    allow_always("db.task.update_status"),
    allow_always("db.work_unit.get"),
    allow_always("db.work_unit.list"),
    allow_always("db.job.get"),
    allow_always("db.job.list"),
    allow_always("verification.record"),
    allow_always("help.*"),
];

/// The list of the programs in which the manager and analysts run: they take work and bring it back. What the work itself needs
/// is called with the token of each handoff.
const HOST_ALLOWLIST: &[AllowlistEntry] =
    &[allow_always("handoff.*"), allow_always("think.*"), allow_always("help.*")];

/// The list of a role. It speaks of the product's own tools; those that people install carry their own scope.
pub const fn allowlist_of(role: AgentRole) -> &'static [AllowlistEntry] {
    match role {
        AgentRole::ProjectManager => PROJECT_MANAGER_ALLOWLIST,
        AgentRole::ProjectAnalyst => PROJECT_ANALYST_ALLOWLIST,
        AgentRole::Architect
        | AgentRole::Designer
        | AgentRole::Developer
        | AgentRole::Reviewer
        | AgentRole::Tester
        | AgentRole::Fixer => SANDBOX_ALLOWLIST,
        AgentRole::WorkflowRunner => RUNNER_ALLOWLIST,
        AgentRole::ManagerHost | AgentRole::AnalystHost => HOST_ALLOWLIST,
    }
}

/// What the list of `role` says of a tool. The first line that means it decides, so that a condition cannot be walked
/// around by a wider line below it.
pub fn check_allowlist(
    role: AgentRole,
    name: &ToolName,
    switches: EnabledSwitches,
) -> AllowlistVerdict {
    match allowlist_of(role)
        .iter()
        .find(|line| line.tools.matches_name(name))
        .map(|line| line.only_if)
    {
        None => AllowlistVerdict::No,
        Some(AllowlistCondition::Always) => AllowlistVerdict::Yes,
        Some(AllowlistCondition::Setting(switch)) if switches.is_enabled(switch) => {
            AllowlistVerdict::Yes
        }
        Some(AllowlistCondition::Setting(switch)) => AllowlistVerdict::Off(switch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(role: AgentRole, name: &str, switches: EnabledSwitches) -> AllowlistVerdict {
        check_allowlist(role, &name.parse().unwrap(), switches)
    }

    #[test]
    fn the_managers_list_holds_what_the_requirements_name() {
        for name in [
            "db.x",
            "node.x",
            "sandbox.x",
            "artifact.x",
            "model.x",
            "connector.x",
            "web.fetch",
            "web.search",
            "api.call",
            "git.x",
            "help.x",
            "memory.remember",
            "skills.create",
        ] {
            assert_eq!(
                says(AgentRole::ProjectManager, name, EnabledSwitches::default()),
                AllowlistVerdict::Yes,
                "S000-089: {name}"
            );
        }
    }

    #[test]
    fn images_are_the_managers_only_when_a_person_switched_that_on() {
        for name in ["sandbox.allowed_images.list", "sandbox.allowed_images.add"] {
            let says = |on| {
                says(AgentRole::ProjectManager, name, EnabledSwitches { pm_allowed_images: on })
            };
            let off = AllowlistVerdict::Off(AllowlistSwitch::PmAllowedImages);
            assert_eq!(says(false), off, "S000-090: {name}");
            assert_eq!(says(true), AllowlistVerdict::Yes, "S000-090: {name}");
        }
    }

    #[test]
    fn an_analyst_reads_and_reports_and_nothing_else() {
        for name in [
            "artifact.get",
            "web.fetch",
            "web.search",
            "api.call",
            "help.x",
            "memory.search",
            "db.task.get",
        ] {
            assert_eq!(
                says(AgentRole::ProjectAnalyst, name, EnabledSwitches::default()),
                AllowlistVerdict::Yes,
                "S000-092: {name}"
            );
        }
        for name in [
            "node.list",
            "sandbox.exec",
            "model.list",
            "connector.x",
            "git.push",
            "db.task.create",
            "db.task.cancel",
            "db.task.update",
            "db.preference.set",
            "workflow.start",
        ] {
            assert_eq!(
                says(AgentRole::ProjectAnalyst, name, EnabledSwitches::default()),
                AllowlistVerdict::No,
                "S000-092: {name}"
            );
        }
    }

    #[test]
    fn whoever_works_in_a_sandbox_has_no_way_to_the_database_or_to_sandboxes() {
        for role in AgentRole::ALL
            .into_iter()
            .filter(|role| role.agent_kind() == cynode_core::agents::AgentKind::Sandbox)
        {
            for name in [
                "db.task.get",
                "sandbox.exec",
                "node.list",
                "git.push",
                "workflow.start",
                "pm.instruct",
            ] {
                assert_eq!(
                    says(role, name, EnabledSwitches { pm_allowed_images: true }),
                    AllowlistVerdict::No,
                    "B023-12: {name}"
                );
            }
            for name in [
                "artifact.put",
                "skills.list",
                "skills.get",
                "web.fetch",
                "web.search",
                "api.call",
                "help.overview",
                "memory.search",
                "memory.remember",
                "memory.forget",
                "model.list",
                "model.ask",
            ] {
                let verdict = says(role, name, EnabledSwitches::default());
                assert_eq!(verdict, AllowlistVerdict::Yes, "B023-12: {name}");
            }
        }
    }
}
