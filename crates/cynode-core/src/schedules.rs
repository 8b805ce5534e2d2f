//! Schedules.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{
    budget::Budget,
    ids::{ProjectId, ScheduleId, UserId},
    names::{ProfileName, Prose, TaskName},
    tasks::Criterion,
};

/// When a schedule is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleTrigger {
    /// Again and again.
    Cron {
        /// Minute, hour, day of the month, month, day of the week.
        expression: String,
        /// The time zone whose clock it goes by, as `Europe/Berlin`.
        #[serde(default = "default_timezone")]
        timezone: String,
    },
    /// One time.
    Once {
        /// When.
        #[serde(with = "time::serde::rfc3339")]
        at: OffsetDateTime,
    },
}

fn default_timezone() -> String {
    "UTC".to_owned()
}

/// What a schedule asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleAction {
    /// Words, which the project manager makes tasks of each time.
    Words {
        /// What is wanted.
        text: Prose,
    },
    /// The same task each time.
    Task(TaskTemplate),
}

/// A task but for its name, which the schedule and the time give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    /// What is to be done.
    pub description: Prose,
    /// What must be shown for it to be done.
    #[serde(default)]
    pub acceptance_criteria: Vec<Criterion>,
    /// What each may spend.
    #[serde(default)]
    pub budget: Budget,
}

/// What is done about times at which nobody was there to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// Nothing.
    Skip,
    /// It is done once, however many they were.
    Once,
}

impl MissedPolicy {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::Skip, Self::Once];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
        }
    }

    /// The way of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missed| missed.as_str() == name)
    }
}

/// Why a schedule fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiringCause {
    /// Its time had come.
    Due,
    /// A person did not wait for it.
    Asked,
}

impl FiringCause {
    /// Every cause.
    pub const ALL: [Self; 2] = [Self::Due, Self::Asked];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Asked => "asked",
        }
    }

    /// The cause of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }
}

/// A schedule of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Its id.
    pub id: ScheduleId,
    /// Where its work lives.
    pub project: ProjectId,
    /// Its name, unique in the project.
    pub name: TaskName,
    /// When it is due.
    pub trigger: ScheduleTrigger,
    /// What it asks for.
    pub action: ScheduleAction,
    /// The profile that its work is done under, by the project manager and in tasks; that of the preferences when it names none.
    pub profile: Option<ProfileName>,
    /// What is done about times that were missed.
    pub missed_policy: MissedPolicy,
    /// Whether it is switched on.
    pub enabled: bool,
    /// When it is due next; nothing when it is switched off or over.
    pub next_at: Option<OffsetDateTime>,
    /// How often it fired.
    pub firings: i64,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has looked at it.
    pub unreviewed: bool,
    /// In whose name it acts: of whoever wrote it last.
    pub acts_for: UserId,
    /// Who made it.
    pub created_by: UserId,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it was written last.
    pub updated_at: OffsetDateTime,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_is_of_one_kind_and_says_nothing_of_the_other() {
        let cron: ScheduleTrigger =
            serde_json::from_value(json!({ "kind": "cron", "expression": "0 9 * * mon" })).unwrap();
        let told = json!({ "kind": "cron", "expression": "0 9 * * mon", "timezone": "UTC" });
        assert_eq!(serde_json::to_value(cron).unwrap(), told);
        for wrong in [
            json!({ "kind": "cron", "expression": "0 9 * * mon", "at": "2026-11-16T09:00:00Z" }),
            json!({ "kind": "once" }),
            json!({ "expression": "0 9 * * mon" }),
        ] {
            assert!(serde_json::from_value::<ScheduleTrigger>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_schedule_asks_for_words_or_for_a_whole_task() {
        let words: ScheduleAction =
            serde_json::from_value(json!({ "kind": "words", "text": "Look." })).unwrap();
        assert_eq!(words, ScheduleAction::Words { text: "Look.".parse().unwrap() });
        let task: ScheduleAction =
            serde_json::from_value(json!({ "kind": "task", "description": "Build." })).unwrap();
        let ScheduleAction::Task(template) = task else { panic!("{task:?}") };
        assert_eq!(template.acceptance_criteria, []);
        for wrong in [
            json!({ "kind": "task", "description": "Build.", "text": "Look." }),
            json!({ "kind": "words", "text": "Look.", "description": "Build." }),
            json!({ "kind": "words", "text": "" }),
        ] {
            assert!(serde_json::from_value::<ScheduleAction>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
