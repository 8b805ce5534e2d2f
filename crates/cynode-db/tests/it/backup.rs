use cynode_core::{
    events::{EventKind, EventPosition},
    ids::{ChannelId, NotificationId, ProjectId, TaskId},
};
use cynode_db::{notifications, platform::backup, tasks::events::NewEvent};
use cynode_testkit_db::{NOW, TestDb};
use serde_json::json;
use uuid::Uuid;

#[tokio::test]
async fn one_backup_runs_at_a_time_and_no_files_are_removed_meanwhile() {
    let db = TestDb::new().await;
    let running = backup::lock_backups(&db.pool()).await.unwrap().unwrap();
    assert!(backup::lock_backups(&db.pool()).await.unwrap().is_none());
    assert!(backup::permit_removal(&db.pool()).await.unwrap().is_none());
    drop(running);
    // The connection closes in the background.
    let permit = loop {
        if let Some(permit) = backup::permit_removal(&db.pool()).await.unwrap() {
            break permit;
        }
    };
    let second = backup::permit_removal(&db.pool()).await.unwrap();
    assert!(second.is_some(), "several processes may remove files at once");
    assert!(backup::lock_backups(&db.pool()).await.unwrap().is_none());
    drop((permit, second));
}

#[tokio::test]
async fn the_write_ahead_log_is_kept_for_a_backup_until_it_ends() {
    let db = TestDb::new().await;
    let slots =
        "SELECT count(*) FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
        WHERE temporary AND restart_lsn IS NOT NULL AND datname = current_database()";
    let kept = backup::reserve_wal(&db.pool()).await.unwrap();
    assert_eq!(db.number(slots).await, 1);
    drop(kept);
    // The connection closes in the background.
    while db.number(slots).await != 0 {}
}

#[tokio::test]
async fn a_fence_gives_way_to_a_writer_and_keeps_the_next_one_out() {
    let db = TestDb::new().await;
    let mut writer = db.begin().await;
    sqlx::query("UPDATE tasks SET name = name").execute(&mut *writer).await.unwrap();
    let mut fence = db.begin().await;
    assert!(!backup::raise_fence(&mut fence).await.unwrap());
    fence.rollback().await.unwrap();
    writer.commit().await.unwrap();

    let mut fence = db.begin().await;
    assert!(backup::raise_fence(&mut fence).await.unwrap());
    let mut late = db.begin().await;
    sqlx::query("SET LOCAL lock_timeout = 50").execute(&mut *late).await.unwrap();
    let refused = sqlx::query("UPDATE tasks SET name = name").execute(&mut *late).await;
    assert!(refused.is_err());
    // The files of the master key are read now: no other key may come into the database.
    let mut rotation = db.begin().await;
    sqlx::query("SET LOCAL lock_timeout = 50").execute(&mut *rotation).await.unwrap();
    let rewrapped = "UPDATE installation_keys SET wrapped_by = wrapped_by";
    assert!(sqlx::query(rewrapped).execute(&mut *rotation).await.is_err());
    let mut reader = db.conn().await;
    let counts = backup::count_fenced_rows(&mut reader).await.unwrap();
    assert_eq!((counts.tasks, counts.audit_head.as_str()), (0, ""));
}

#[tokio::test]
async fn a_restored_installation_begins_an_epoch_once_and_sends_nothing_twice() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    assert_eq!(backup::get_epoch(&mut conn).await.unwrap().epoch, 1);
    let user = "INSERT INTO users (user_id, handle, display_name, state, created_at, updated_at)
        VALUES ('00000000-0000-0000-0000-000000000001', 'ada', 'Ada', 'active', now(), now())";
    db.execute(user).await;
    let channel = "INSERT INTO notification_channels (channel_id, scope, name, kind, address, event_kinds, min_gap_seconds, enabled, created_by,
            created_at, updated_at)
        VALUES ('00000000-0000-0000-0000-000000000002', 'installation', 'hook', 'webhook', 'https://example.org', '{task.created}', 0, true,
            '00000000-0000-0000-0000-000000000001', now(), now())";
    db.execute(channel).await;
    let pending = "INSERT INTO notifications (notification_id, channel_id, kind, trace_id, data, occurred_at, state, queued_at, due_at, attempts,
            total_attempts)
        SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000002', 'task.created', repeat('a', 32), '{}', now(), 'pending', now(), now(),
            0, 0 FROM generate_series(1, 3)";
    db.execute(pending).await;
    let id = Uuid::from_u128(9);
    let begun = backup::begin_restored_epoch(&mut conn, id, NOW, NOW).await.unwrap().unwrap();
    assert_eq!((begun.epoch, begun.held_notifications, begun.ended_sessions), (2, 3, 0));
    let due = "SELECT count(*) FROM notifications WHERE state = 'pending'";
    assert_eq!(db.number(due).await, 0);
    // An interrupted restore does it again.
    assert_eq!(backup::begin_restored_epoch(&mut conn, id, NOW, NOW).await.unwrap(), None);
    let epoch = backup::get_epoch(&mut conn).await.unwrap();
    assert_eq!((epoch.epoch, epoch.backup_taken_at), (2, Some(NOW)));
}

#[tokio::test]
async fn what_a_restored_task_reaches_again_is_not_told_again_and_its_questions_are() {
    let db = TestDb::new().await;
    for statement in [
        "INSERT INTO users (user_id, handle, display_name, state, created_at, updated_at)
            VALUES ('00000000-0000-0000-0000-000000000001', 'ada', 'Ada', 'active', now(), now())",
        "INSERT INTO projects (project_id, slug, title, created_by, created_at, updated_at)
            VALUES ('00000000-0000-0000-0000-000000000002', 'web', 'Web', '00000000-0000-0000-0000-000000000001', now(), now())",
        "INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, created_by, created_at, updated_at)
            SELECT id::uuid, '00000000-0000-0000-0000-000000000002', name, 'x', '[]', 'queued', '00000000-0000-0000-0000-000000000001',
                now() - age::interval, now()
            FROM (VALUES ('00000000-0000-0000-0000-000000000004', 'old', '2 hours'), ('00000000-0000-0000-0000-000000000005', 'new', '0'))
                AS t (id, name, age)",
        "INSERT INTO notification_channels (channel_id, scope, name, kind, address, event_kinds, min_gap_seconds, enabled, created_by,
                created_at, updated_at)
            VALUES ('00000000-0000-0000-0000-000000000003', 'installation', 'hook', 'webhook', 'https://example.org',
                '{task.completed,task.waiting}', 0, true, '00000000-0000-0000-0000-000000000001', now(), now())",
        "INSERT INTO installation_epochs (epoch, reason, began_at, backup_id, backup_taken_at)
            VALUES (2, 'restored', now() - interval '1 minute', gen_random_uuid(), now() - interval '1 hour')",
    ] {
        db.execute(statement).await;
    }
    let mut conn = db.conn().await;
    let events =
        [(4, EventKind::TaskCompleted), (4, EventKind::TaskWaiting), (5, EventKind::TaskCompleted)];
    for (number, (task, kind)) in (10..).zip(events) {
        let event = NewEvent {
            kind,
            actor: None,
            subject: None,
            project: Some(ProjectId::from_uuid(Uuid::from_u128(2))),
            task: Some(TaskId::from_uuid(Uuid::from_u128(task))),
            data: json!({}),
        };
        let id = NotificationId::from_uuid(Uuid::from_u128(number));
        let channel = ChannelId::from_uuid(Uuid::from_u128(3));
        let place = EventPosition { xact: i64::try_from(number).unwrap(), seq: 1 };
        let trace = "0af7651916cd43dd8448eb211c80319c".parse().unwrap();
        notifications::queue_notification(&mut conn, id, channel, &event, place, trace, NOW)
            .await
            .unwrap();
    }
    let told = "SELECT kind || ' ' || right(task_id::text, 1) || ' ' || state FROM notifications ORDER BY notification_id";
    assert_eq!(
        db.texts(told).await,
        ["task.completed 4 failed", "task.waiting 4 pending", "task.completed 5 pending"]
    );
}

#[tokio::test]
async fn two_restores_of_one_backup_have_different_generations() {
    let node = "INSERT INTO nodes (node_id, name, public_key, state, labels, report, slots, joined_at, last_seen_at, generation)
        VALUES ('00000000-0000-0000-0000-000000000001', 'one', decode(repeat('11', 32), 'hex'), 'active', '{}', '{}', 1, now(), now(), 7)";
    let join_token = "INSERT INTO node_join_tokens (token_hash, labels, issued_at, expires_at)
        VALUES (decode(repeat('22', 32), 'hex'), '{}', now(), now() + interval '1 hour')";
    let mut generations = Vec::new();
    for hours in [0, 1] {
        // Each restore begins with what the backup has.
        let db = TestDb::new().await;
        db.execute(node).await;
        db.execute(join_token).await;
        let mut conn = db.conn().await;
        let now = NOW + time::Duration::hours(hours);
        backup::begin_restored_epoch(&mut conn, Uuid::from_u128(9), NOW, now).await.unwrap();
        generations.push(db.number("SELECT generation FROM nodes").await);
        // The lost installation may have let a machine join with it.
        assert_eq!(db.number("SELECT count(*) FROM node_join_tokens").await, 0);
    }
    assert_eq!(generations[1] - generations[0], 3_600_000);
    assert!(generations[0] > 1_000_000_000_000);
}

#[tokio::test]
async fn the_last_backup_is_the_newest_and_its_verification_is_kept() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    let record = |number: u128, hours: i64| backup::BackupRecord {
        id: Uuid::from_u128(number),
        taken_at: NOW + time::Duration::hours(hours),
        completed_at: NOW + time::Duration::hours(hours),
        location: format!("/backups/{number}"),
        program_version: "0.1.0".to_owned(),
        bytes: 7,
        verified_at: None,
        problems: Vec::new(),
        recipients: vec!["age1reader".to_owned()],
    };
    for backup in [record(1, 2), record(2, 1)] {
        backup::record_backup(&mut conn, &backup).await.unwrap();
    }
    let verified = backup::BackupRecord {
        verified_at: Some(NOW),
        problems: vec!["1 task is missing".to_owned()],
        ..record(1, 2)
    };
    backup::record_backup(&mut conn, &verified).await.unwrap();
    assert_eq!(backup::list_backups(&mut conn, 1).await.unwrap(), std::slice::from_ref(&verified));
    // A copy that says less, or something earlier, takes nothing back; where it is now counts.
    let moved = "/mnt/backups/1".to_owned();
    let earlier =
        backup::BackupRecord { verified_at: Some(NOW - time::Duration::HOUR), ..record(1, 2) };
    for known in [earlier, backup::BackupRecord { location: moved.clone(), ..record(1, 2) }] {
        backup::record_backup(&mut conn, &known).await.unwrap();
    }
    let expected = backup::BackupRecord { location: moved, ..verified };
    assert_eq!(backup::list_backups(&mut conn, 1).await.unwrap(), std::slice::from_ref(&expected));
    backup::delete_backup_records(&mut conn, &[expected.id]).await.unwrap();
    assert_eq!(backup::list_backups(&mut conn, 9).await.unwrap(), [record(2, 1)]);
}

#[tokio::test]
async fn programs_that_are_connected_are_counted_and_others_are_not() {
    let db = TestDb::new().await;
    let (mut own, mut other) = (db.conn().await, db.conn().await);
    let counted = [("SET application_name = 'psql'", 0), ("SET application_name = 'cynode'", 1)];
    for (statement, expected) in counted {
        sqlx::query(statement).execute(&mut *other).await.unwrap();
        assert_eq!(backup::count_program_connections(&mut own).await.unwrap(), expected);
    }
}
