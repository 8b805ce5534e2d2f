//! Computes when a schedule is due. It is pure and reads no clock.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use cynode_core::schedules::{MissedPolicy, ScheduleTrigger};
use jiff::{
    Timestamp, Zoned,
    tz::{TimeZone, TimeZoneDatabase},
};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::Error;

/// Maximum delay of a firing that still counts as on time. A restart takes less.
const MISSED_GRACE_PERIOD: Duration = Duration::minutes(5);

/// Maximum number of missed firings that are counted.
const MAX_COUNTED_MISSES: u32 = 1000;

/// Maximum number of characters of an expression or a time zone.
const MAX_EXPRESSION_CHARS: usize = 100;

/// Validated timetable of a schedule.
#[derive(Debug)]
pub(crate) enum Timetable {
    /// Recurring, by a cron expression in a time zone.
    Cron(Box<Cron>, TimeZone),
    /// Once, at a time.
    Once(OffsetDateTime),
}

/// Decision about a due schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FiringDecision {
    /// Latest due time that has passed.
    pub(crate) due: OffsetDateTime,
    /// Whether it fires now. Otherwise it was missed and is skipped.
    pub(crate) done: bool,
    /// Number of missed firings.
    pub(crate) missed_count: u32,
    /// Next due time.
    pub(crate) next: Option<OffsetDateTime>,
}

impl Timetable {
    /// Parses a trigger.
    pub(crate) fn parse_trigger(trigger: &ScheduleTrigger) -> Result<Self, Error> {
        let (expression, timezone) = match trigger {
            ScheduleTrigger::Once { at } => return Ok(Self::Once(*at)),
            ScheduleTrigger::Cron { expression, timezone } => (expression, timezone),
        };
        let invalid = |why: String| Error::Invalid(why);
        if expression.len() > MAX_EXPRESSION_CHARS || !expression.is_ascii() {
            let rule = format!(
                "a cron expression has five fields and at most {MAX_EXPRESSION_CHARS} characters, such as `0 9 * * mon`"
            );
            return Err(invalid(rule));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let cron = parser.build().parse(expression).map_err(|error| {
            invalid(format!(
                "`{expression}` is no cron expression of five fields, such as `0 9 * * mon`: {error}"
            ))
        })?;
        // The time zone database is part of the binary, so all replicas use the same one.
        let known = TimeZoneDatabase::bundled().get(timezone).map_err(|_| {
            invalid(format!("there is no time zone `{timezone}`: name one such as `Europe/Berlin`"))
        })?;
        Ok(Self::Cron(Box::new(cron), known))
    }

    /// Returns the first due time after a moment.
    pub(crate) fn next_after(&self, moment: OffsetDateTime) -> Option<OffsetDateTime> {
        match self {
            Self::Once(at) => (*at > moment).then_some(*at),
            Self::Cron(cron, zone) => {
                let from = to_zoned_time(moment, zone)?;
                cron.find_next_occurrence(&from, false)
                    .ok()
                    .and_then(|found| to_offset_time(&found))
            }
        }
    }

    /// Returns the last due time up to a moment.
    fn last_until(&self, moment: OffsetDateTime) -> Option<OffsetDateTime> {
        match self {
            Self::Once(at) => (*at <= moment).then_some(*at),
            Self::Cron(cron, zone) => {
                let from = to_zoned_time(moment, zone)?;
                cron.find_previous_occurrence(&from, true)
                    .ok()
                    .and_then(|found| to_offset_time(&found))
            }
        }
    }

    /// Describes the timetable and a due time for a reader.
    pub(crate) fn describe_due_time(&self, due: OffsetDateTime) -> String {
        match self {
            Self::Once(_) => format!("due once, at {}", due.format(&Rfc3339).unwrap_or_default()),
            Self::Cron(cron, zone) => {
                let at = to_zoned_time(due, zone)
                    .map(|at| at.strftime("%A %Y-%m-%d %H:%M %:z").to_string())
                    .unwrap_or_default();
                let expression = cron.pattern.to_string();
                let zone = zone.iana_name().unwrap_or("UTC");
                format!("due at `{expression}` by the clock of {zone}; this time {at}")
            }
        }
    }

    /// Decides about a schedule that has been due since `since`.
    pub(crate) fn decide_firing(
        &self,
        since: OffsetDateTime,
        now: OffsetDateTime,
        missed_policy: MissedPolicy,
    ) -> FiringDecision {
        // After a change the timetable may have no due time since then, but the earlier due time still counts.
        let due = self.last_until(now).map_or(since, |last| last.max(since));
        let done = match missed_policy {
            MissedPolicy::Once => true,
            MissedPolicy::Skip => now - due <= MISSED_GRACE_PERIOD,
        };
        let mut times = 1;
        let mut at = since;
        while at < due && times <= MAX_COUNTED_MISSES {
            let Some(next) = self.next_after(at).filter(|next| *next <= due) else { break };
            at = next;
            times += 1;
        }
        let missed_count = (times - u32::from(done)).min(MAX_COUNTED_MISSES);
        FiringDecision { due, done, missed_count, next: self.next_after(now.max(due)) }
    }
}

/// Converts a moment to a time zone, in whole seconds. No due time lies between seconds.
fn to_zoned_time(moment: OffsetDateTime, zone: &TimeZone) -> Option<Zoned> {
    Timestamp::from_second(moment.unix_timestamp()).ok().map(|at| at.to_zoned(zone.clone()))
}

fn to_offset_time(zoned: &Zoned) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(zoned.timestamp().as_second()).ok()
}

#[cfg(test)]
mod tests;
