use std::{
    os::unix::fs::PermissionsExt,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use cynode_audit::{AppendError, AuditEntry, BadEntry, DigestKey, Outcome, Phase};

use crate::support::{Memory, Place, decision, denial, end, files, outcome};

#[tokio::test]
async fn what_was_taken_is_stored_in_order_and_holds_together() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, recovered) = place.open();
    assert_eq!(recovered, []);
    for call in 1..=3 {
        writer.append_entry(decision(call)).unwrap();
        writer.append_entry(outcome(call)).unwrap();
    }
    writer.append_entry(denial(4)).unwrap();

    end(&writer, &store).await.unwrap();

    let both = |call| [(call, Phase::Decision), (call, Phase::Outcome)];
    let all = [&both(1)[..], &both(2), &both(3), &[(4, Phase::Decision)]].concat();
    assert_eq!(store.said(), all);
    let verified = store.verify();
    assert_eq!(verified.len(), 1);
    assert_eq!((verified[0].records, verified[0].covered, verified[0].closed), (7, 7, true));
    assert_eq!(files(&place.path()), <[std::path::PathBuf; 0]>::default());
}

#[tokio::test]
async fn a_call_has_one_decision_and_one_outcome() {
    let place = Place::new();
    let (writer, _) = place.open();
    assert_eq!(writer.append_entry(outcome(1)), Err(AppendError::NotOpen));
    writer.append_entry(decision(1)).unwrap();
    assert_eq!(writer.append_entry(decision(1)), Err(AppendError::AlreadyOpen));
    writer.append_entry(outcome(1)).unwrap();
    assert_eq!(writer.append_entry(outcome(1)), Err(AppendError::NotOpen));
    writer.append_entry(denial(2)).unwrap();
    assert_eq!(writer.append_entry(outcome(2)), Err(AppendError::NotOpen));
    assert_eq!(writer.writer_status().open_calls, 0);
}

#[tokio::test]
async fn an_entry_that_is_not_in_order_is_refused() {
    let place = Place::new();
    let (writer, _) = place.open();
    let entry = AuditEntry { reason: "because I say so".to_owned(), ..decision(1) };
    assert_eq!(writer.append_entry(entry), Err(AppendError::Entry(BadEntry::Text("reason"))));
    assert_eq!(writer.writer_status().written, 0);
}

#[tokio::test]
async fn a_full_backlog_refuses_new_calls_and_never_an_outcome() {
    let mut place = Place::new();
    place.options.max_backlog = 4;
    let (writer, store) = (place.open().0, Memory::new());
    writer.append_entry(decision(1)).unwrap();
    writer.append_entry(decision(2)).unwrap();
    assert_eq!(writer.append_entry(decision(3)), Err(AppendError::Full));
    assert_eq!(writer.append_entry(denial(3)), Err(AppendError::Full));
    writer.append_entry(outcome(1)).unwrap();
    writer.append_entry(outcome(2)).unwrap();
    assert_eq!(writer.append_entry(denial(3)), Err(AppendError::Full));

    crate::support::while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    writer.append_entry(decision(3)).unwrap();
}

#[tokio::test]
async fn a_stopped_writer_takes_nothing_more() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    end(&writer, &store).await.unwrap();
    assert_eq!(writer.append_entry(decision(1)), Err(AppendError::Closed));
    assert_eq!(store.starts(), []);
}

#[tokio::test]
async fn a_call_under_way_at_the_stop_ends_unknown() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    end(&writer, &store).await.unwrap();
    assert_eq!(store.outcomes(1), [Outcome::Unknown]);
    assert_eq!(store.records()[1].entry.reason, "cut_off");
    assert!(store.verify()[0].closed);
}

#[tokio::test]
async fn many_who_wait_for_the_disk_share_its_work() {
    let mut place = Place::new();
    // Nothing would come to the disk by itself within the test.
    place.options.lazy_sync = Duration::from_mins(10);
    let (writer, _) = place.open();
    let writer = Arc::new(writer);
    let tickets: Vec<_> =
        (0..64).map(|call| writer.append_entry(decision(call)).unwrap()).collect();
    assert_eq!(writer.writer_status().synced, 0);
    writer.wait_durable(tickets[0]).await.unwrap();
    // The first who waits brings everything to the disk that was written before.
    assert_eq!(writer.writer_status().synced, 64);
    for ticket in tickets {
        writer.wait_durable(ticket).await.unwrap();
    }
}

#[tokio::test]
async fn what_nobody_waits_for_comes_to_the_disk_soon() {
    let mut place = Place::new();
    place.options.lazy_sync = Duration::from_millis(10);
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    let since = Instant::now();
    while writer.writer_status().synced == 0 {
        assert!(since.elapsed() < Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn records_of_many_threads_are_one_chain() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8_u128 {
            let (writer, barrier) = (&writer, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for call in 0..50 {
                    writer.append_entry(decision(thread * 1_000 + call)).unwrap();
                    writer.append_entry(outcome(thread * 1_000 + call)).unwrap();
                }
            });
        }
    });
    end(&writer, &store).await.unwrap();
    assert_eq!(store.verify()[0].records, 800);
}

#[tokio::test]
async fn neither_the_file_nor_the_store_holds_anything_of_a_payload() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    let marker = b"PLANTED-SECRET-93b1";
    let digest = DigestKey::new([9; 32]).digest_bytes(marker);
    let with = |entry| AuditEntry { arguments: Some(digest), result: Some(digest), ..entry };
    writer.append_entry(with(decision(1))).unwrap();
    writer.append_entry(with(outcome(1))).unwrap();

    let bytes = std::fs::read(&files(&place.path())[0]).unwrap();
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|found| found == part);
    assert!(!holds(&bytes, marker));
    assert!(holds(&bytes, &digest.0));
    end(&writer, &store).await.unwrap();
    let json = serde_json::to_vec(&store.records()).unwrap();
    assert!(!holds(&json, marker));
    assert!(holds(&json, digest.to_string().as_bytes()));
}

#[tokio::test]
async fn nobody_else_may_read_the_files() {
    let place = Place::new();
    let (_writer, _) = place.open();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path()), 0o700);
    for item in std::fs::read_dir(place.path()).unwrap() {
        assert_eq!(mode(&item.unwrap().path()), 0o600);
    }
}
