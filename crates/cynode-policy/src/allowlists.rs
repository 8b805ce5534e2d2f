//! Which tools each role may use, as data. What is not here is refused.

use cynode_core::agents::AgentRole;

use crate::names::{Pattern, ToolName};

/// One line of an allowlist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The tools that are meant.
    pub tools: Pattern,
    /// What else must hold.
    pub only_if: Condition,
}

/// What must hold for a line to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing more.
    Always,
    /// The system setting of that name is `true`. A line without condition that means the same tool does not help.
    Setting(Switch),
}

/// A system setting that widens or narrows an allowlist. Only people write settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Whether the project manager may see and add sandbox images.
    PmAllowedImages,
}

impl Switch {
    /// Every switch.
    pub const ALL: [Self; 1] = [Self::PmAllowedImages];

    /// The key of the system setting.
    pub const fn key(self) -> &'static str {
        match self {
            Self::PmAllowedImages => "gate.pm_allowed_images",
        }
    }
}

/// The switches that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Switches {
    /// [`Switch::PmAllowedImages`].
    pub pm_allowed_images: bool,
}

impl Switches {
    const fn on(self, switch: Switch) -> bool {
        match switch {
            Switch::PmAllowedImages => self.pm_allowed_images,
        }
    }
}

/// What an allowlist says of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The role may use it.
    Yes,
    /// The role may not.
    No,
    /// The role may only when this setting is on.
    Off(Switch),
}

const fn always(pattern: &'static str) -> Line {
    Line { tools: Pattern(pattern), only_if: Condition::Always }
}

const fn when(pattern: &'static str, switch: Switch) -> Line {
    Line { tools: Pattern(pattern), only_if: Condition::Setting(switch) }
}

/// The list of the project manager.
const PROJECT_MANAGER: &[Line] = &[
    when("sandbox.allowed_images.*", Switch::PmAllowedImages),
    always("db.*"),
    always("node.*"),
    always("sandbox.*"),
    always("artifact.*"),
    always("model.*"),
    always("connector.*"),
    always("web.fetch"),
    always("web.search"),
    always("api.call"),
    always("git.*"),
    always("help.*"),
    always("skills.*"),
    always("schedule.*"),
    always("workflow.start"),
    always("verification.record"),
    always("pm.instruct"),
    always("agent.get_context"),
];

/// The list of an analyst: it reads, and says what it found.
const PROJECT_ANALYST: &[Line] = &[
    always("db.task.get"),
    always("db.task.result"),
    always("db.task.logs"),
    always("db.work_unit.get"),
    always("db.work_unit.list"),
    always("db.job.get"),
    always("db.job.list"),
    always("db.project.get"),
    always("db.preference.get"),
    always("db.preference.effective"),
    always("artifact.*"),
    always("web.fetch"),
    always("web.search"),
    always("api.call"),
    always("help.*"),
    always("skills.list"),
    always("skills.get"),
    always("verification.record"),
    always("pm.report"),
    always("agent.*"),
];

/// The list of whoever works in a sandbox.
const SANDBOX: &[Line] = &[
    always("artifact.*"),
    always("web.fetch"),
    always("web.search"),
    always("api.call"),
    always("help.*"),
    always("skills.list"),
    always("skills.get"),
    always("pm.report"),
    always("agent.*"),
];

/// The list of the program that drives tasks.
const RUNNER: &[Line] = &[
    always("workflow.*"),
    always("db.task.get"),
    always("db.task.update_status"),
    always("db.work_unit.get"),
    always("db.work_unit.list"),
    always("db.job.get"),
    always("db.job.list"),
    always("verification.record"),
    always("help.*"),
];

/// The list of the programs in which the manager and analysts run: they take work and bring it back. What the work itself needs
/// is called with the token of each handoff.
const HOST: &[Line] = &[always("handoff.*"), always("think.*"), always("help.*")];

/// The list of a role. It speaks of the product's own tools; those that people install carry their own scope.
pub const fn of(role: AgentRole) -> &'static [Line] {
    match role {
        AgentRole::ProjectManager => PROJECT_MANAGER,
        AgentRole::ProjectAnalyst => PROJECT_ANALYST,
        AgentRole::Architect
        | AgentRole::Designer
        | AgentRole::Developer
        | AgentRole::Reviewer
        | AgentRole::Tester
        | AgentRole::Fixer => SANDBOX,
        AgentRole::WorkflowRunner => RUNNER,
        AgentRole::ManagerHost | AgentRole::AnalystHost => HOST,
    }
}

/// What the list of `role` says of a tool. The first line that means it decides, so that a condition cannot be walked
/// around by a wider line below it.
pub fn listed(role: AgentRole, name: &ToolName, switches: Switches) -> Listed {
    match of(role).iter().find(|line| line.tools.matches(name)).map(|line| line.only_if) {
        None => Listed::No,
        Some(Condition::Always) => Listed::Yes,
        Some(Condition::Setting(switch)) if switches.on(switch) => Listed::Yes,
        Some(Condition::Setting(switch)) => Listed::Off(switch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(role: AgentRole, name: &str, switches: Switches) -> Listed {
        listed(role, &name.parse().unwrap(), switches)
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
            "skills.create",
        ] {
            assert_eq!(
                says(AgentRole::ProjectManager, name, Switches::default()),
                Listed::Yes,
                "{name}"
            );
        }
    }

    #[test]
    fn images_are_the_managers_only_when_a_person_switched_that_on() {
        for name in ["sandbox.allowed_images.list", "sandbox.allowed_images.add"] {
            let says =
                |on| says(AgentRole::ProjectManager, name, Switches { pm_allowed_images: on });
            assert_eq!(says(false), Listed::Off(Switch::PmAllowedImages));
            assert_eq!(says(true), Listed::Yes);
        }
    }

    #[test]
    fn an_analyst_reads_and_reports_and_nothing_else() {
        for name in ["artifact.get", "web.fetch", "web.search", "api.call", "help.x", "db.task.get"]
        {
            assert_eq!(
                says(AgentRole::ProjectAnalyst, name, Switches::default()),
                Listed::Yes,
                "{name}"
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
                says(AgentRole::ProjectAnalyst, name, Switches::default()),
                Listed::No,
                "{name}"
            );
        }
    }

    #[test]
    fn whoever_works_in_a_sandbox_has_no_way_to_the_database_or_to_sandboxes() {
        for role in AgentRole::ALL
            .into_iter()
            .filter(|role| role.kind() == cynode_core::agents::AgentKind::Sandbox)
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
                    says(role, name, Switches { pm_allowed_images: true }),
                    Listed::No,
                    "{name}"
                );
            }
        }
    }
}
