use time::{Time, macros::datetime};

use super::*;

fn cron(expression: &str, timezone: &str) -> ScheduleTrigger {
    ScheduleTrigger::Cron { expression: expression.into(), timezone: timezone.into() }
}

fn table(expression: &str, zone: &str) -> Timetable {
    Timetable::parse_trigger(&cron(expression, zone)).unwrap()
}

/// The next times after that moment, as they are written.
fn next(expression: &str, zone: &str, from: OffsetDateTime, count: usize) -> Vec<String> {
    let table = table(expression, zone);
    let mut at = from;
    let mut times = Vec::new();
    for _ in 0..count {
        at = table.next_after(at).unwrap();
        times.push(at.format(&Rfc3339).unwrap());
    }
    times
}

#[test]
fn a_time_of_the_day_goes_by_the_clock_of_its_zone() {
    let from = datetime!(2026-11-16 00:00 UTC);
    let mondays = ["2026-11-16T08:00:00Z", "2026-11-23T08:00:00Z"];
    assert_eq!(next("0 9 * * mon", "Europe/Berlin", from, 2), mondays);
    assert_eq!(next("0 9 * * MON", "Asia/Tokyo", from, 1), ["2026-11-23T00:00:00Z"]);
    assert_eq!(next("@daily", "UTC", from, 1), ["2026-11-17T00:00:00Z"]);
    assert_eq!(next("0 0 29 2 *", "UTC", from, 1), ["2028-02-29T00:00:00Z"]);
    // The last moment of a second is still in it.
    let late = datetime!(2026-11-16 08:00:00.999_999 UTC);
    assert_eq!(next("0 9 * * mon", "Europe/Berlin", late, 1), ["2026-11-23T08:00:00Z"]);
}

#[test]
fn when_the_clock_goes_forward_nothing_is_lost_and_nothing_comes_twice() {
    // In Berlin there is no 02:30 on 2027-03-28: at 01:00 UTC it becomes 03:00.
    let from = datetime!(2027-03-27 00:00 UTC);
    let times = ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"];
    assert_eq!(next("30 2 * * *", "Europe/Berlin", from, 3), times);
    let hours = [
        "2027-03-27T23:00:00Z",
        "2027-03-28T00:00:00Z",
        "2027-03-28T01:00:00Z",
        "2027-03-28T02:00:00Z",
    ];
    let from = datetime!(2027-03-27 22:30 UTC);
    assert_eq!(next("0 * * * *", "Europe/Berlin", from, 4), hours);
}

#[test]
fn when_the_clock_goes_back_a_time_of_the_day_comes_once_and_every_hour_comes() {
    // In Berlin 02:30 comes twice on 2026-10-25: at 01:00 UTC 03:00 becomes 02:00.
    let from = datetime!(2026-10-24 12:00 UTC);
    let times = ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    assert_eq!(next("30 2 * * *", "Europe/Berlin", from, 2), times);
    let from = datetime!(2026-10-24 23:30 UTC);
    let hours = ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"];
    assert_eq!(next("0 * * * *", "Europe/Berlin", from, 3), hours);
    // Looked at in the second of the two hours, the one that is over is not due again.
    let table = table("30 2 * * *", "Europe/Berlin");
    let turn = table.decide_firing(
        datetime!(2026-10-25 00:30 UTC),
        datetime!(2026-10-25 01:31 UTC),
        MissedPolicy::Once,
    );
    assert_eq!((turn.due, turn.missed_count), (datetime!(2026-10-25 00:30 UTC), 0));
    assert_eq!(turn.next, Some(datetime!(2026-10-26 01:30 UTC)));
}

#[test]
fn what_is_no_time_is_refused_with_what_to_write() {
    for wrong in [
        "",
        "0 9 * *",
        "0 0 9 * * mon",
        "0 0 9 * * mon 2027",
        "60 9 * * *",
        "0 9 * * someday",
        "0 9 * * mon; rm",
        "é 9 * * *",
        &"0,".repeat(60),
    ] {
        let Err(Error::Invalid(told)) = Timetable::parse_trigger(&cron(wrong, "UTC")) else {
            panic!("`{wrong}` was taken");
        };
        assert!(told.contains("0 9 * * mon"), "{told}");
    }
    for zone in ["", "Mars/Olympus", "../../etc/passwd", "Europe/Berlin\0"] {
        let Err(Error::Invalid(told)) = Timetable::parse_trigger(&cron("0 9 * * *", zone)) else {
            panic!("`{zone}` was taken");
        };
        assert!(told.contains("Europe/Berlin"), "{told}");
    }
}

#[test]
fn a_day_that_never_comes_has_no_next_time() {
    let table = table("0 0 30 2 *", "Europe/Berlin");
    let begun = std::time::Instant::now();
    assert_eq!(table.next_after(datetime!(2026-11-16 00:00 UTC)), None);
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn one_time_comes_once() {
    let at = datetime!(2026-12-01 09:00 UTC);
    let table = Timetable::parse_trigger(&ScheduleTrigger::Once { at }).unwrap();
    assert_eq!(table.next_after(datetime!(2026-11-16 00:00 UTC)), Some(at));
    assert_eq!(table.next_after(at), None);
    assert_eq!(table.describe_due_time(at), "due once, at 2026-12-01T09:00:00Z");
    let late = datetime!(2026-12-02 09:00 UTC);
    let turn = table.decide_firing(at, late, MissedPolicy::Once);
    assert_eq!(turn, FiringDecision { due: at, done: true, missed_count: 0, next: None });
    let turn = table.decide_firing(at, late, MissedPolicy::Skip);
    assert_eq!(turn, FiringDecision { due: at, done: false, missed_count: 1, next: None });
}

#[test]
fn what_was_missed_is_left_or_done_once() {
    let table = table("0 9 * * *", "UTC");
    let since = datetime!(2026-11-10 09:00 UTC);
    let turn = |now, missed| table.decide_firing(since, now, missed);
    // A little late is on time.
    let soon = datetime!(2026-11-10 09:04 UTC);
    let next = Some(datetime!(2026-11-11 09:00 UTC));
    for missed in MissedPolicy::ALL {
        assert_eq!(
            turn(soon, missed),
            FiringDecision { due: since, done: true, missed_count: 0, next }
        );
    }
    // Away from the 10th to the 13th.
    let back = datetime!(2026-11-13 17:00 UTC);
    let (due, next) = (datetime!(2026-11-13 09:00 UTC), Some(datetime!(2026-11-14 09:00 UTC)));
    assert_eq!(
        turn(back, MissedPolicy::Once),
        FiringDecision { due, done: true, missed_count: 3, next }
    );
    assert_eq!(
        turn(back, MissedPolicy::Skip),
        FiringDecision { due, done: false, missed_count: 4, next }
    );
    // Back just in time for the last of them.
    let back = datetime!(2026-11-13 09:01 UTC);
    assert_eq!(
        turn(back, MissedPolicy::Skip),
        FiringDecision { due, done: true, missed_count: 3, next }
    );
}

#[test]
fn a_year_of_minutes_is_counted_to_its_bound_and_quickly() {
    let table = table("* * * * *", "America/New_York");
    let since = datetime!(2025-11-16 00:00 UTC);
    let now = datetime!(2026-11-16 00:00:30 UTC);
    let begun = std::time::Instant::now();
    let turn = table.decide_firing(since, now, MissedPolicy::Once);
    assert_eq!(
        (turn.due, turn.missed_count),
        (now.replace_time(Time::MIDNIGHT), MAX_COUNTED_MISSES)
    );
    assert_eq!(turn.next, Some(datetime!(2026-11-16 00:01 UTC)));
    assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
}
