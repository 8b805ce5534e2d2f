use cynode_db::platform::schema;
use cynode_testkit_db::TestDb;
use time::macros::datetime;

const PARTITIONS: &str = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass ORDER BY 1";

#[tokio::test]
async fn there_is_a_place_for_events_from_last_month_to_three_months_ahead() {
    let db = TestDb::new().await;
    let expected =
        ["events_2026_10", "events_2026_11", "events_2026_12", "events_2027_01", "events_2027_02"];
    assert_eq!(db.texts(PARTITIONS).await, expected);
}

#[tokio::test]
async fn two_processes_that_make_partitions_at_once_do_not_disturb_each_other() {
    let db = TestDb::new().await;
    let later = datetime!(2030-12-31 23:59 UTC);
    let (mut left, mut right) = (db.conn().await, db.conn().await);
    let (left, right) = tokio::join!(
        schema::ensure_partitions(&mut left, later),
        schema::ensure_partitions(&mut right, later),
    );
    left.unwrap();
    right.unwrap();
    let mut missing = Vec::new();
    for month in [later, datetime!(2031-03-01 0:00 UTC), datetime!(2031-04-01 0:00 UTC)] {
        missing.push(
            schema::tables_without_partition(&mut *db.conn().await, month).await.unwrap().len(),
        );
    }
    assert_eq!(missing, [0, 0, 6]);
}
