use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use cynode_audit::{AppendError, Phase};

use crate::support::{Memory, Place, decision, denial, end, files, outcome, while_shipping};

#[tokio::test]
async fn a_store_that_comes_back_gets_everything_once_and_in_order() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_records = 30;
    place.options.batch = 7;
    let (writer, _) = place.open();
    store.down.store(true, SeqCst);
    while_shipping(&writer, &store, async {
        for call in 0..50 {
            writer.append_entry(denial(call)).unwrap();
        }
        let waited = tokio::time::timeout(Duration::from_millis(50), writer.wait_flushed()).await;
        assert!(waited.is_err());
        assert_eq!(store.said(), []);
        assert_eq!(writer.writer_status().backlog, 50);
        store.forgetful.store(true, SeqCst);
        store.down.store(false, SeqCst);
        let waited = tokio::time::timeout(Duration::from_millis(50), writer.wait_flushed()).await;
        assert!(waited.is_err());
        store.forgetful.store(false, SeqCst);
        writer.wait_flushed().await.unwrap();
    })
    .await;
    assert_eq!(writer.writer_status().backlog, 0);
    assert_eq!(store.said(), (0..50).map(|call| (call, Phase::Decision)).collect::<Vec<_>>());
    end(&writer, &store).await.unwrap();
    let verified = store.verify();
    assert_eq!(verified.iter().map(|chain| chain.records).collect::<Vec<_>>(), [30, 20]);
    assert!(verified.iter().all(|chain| chain.closed));
}

#[tokio::test]
async fn a_shipper_given_up_halfway_loses_nothing() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.batch = 3;
    let (writer, _) = place.open();
    for call in 0..100 {
        writer.append_entry(denial(call)).unwrap();
        if call % 10 == 0 {
            store.forgetful.store(call % 20 == 0, SeqCst);
            let work = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>());
            let _ = while_shipping(&writer, &store, work).await;
        }
    }
    store.forgetful.store(false, SeqCst);
    end(&writer, &store).await.unwrap();
    assert_eq!(store.said(), (0..100).map(|call| (call, Phase::Decision)).collect::<Vec<_>>());
    assert!(store.verify()[0].closed);
}

#[tokio::test]
async fn records_go_in_batches() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.batch = 40;
    let (writer, _) = place.open();
    for call in 0..100 {
        writer.append_entry(denial(call)).unwrap();
    }
    end(&writer, &store).await.unwrap();
    assert_eq!(store.batches(), 3);
}

#[tokio::test]
async fn a_checkpoint_is_made_after_so_many_records_even_under_load() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.batch = 10;
    place.options.checkpoint_records = 30;
    let (writer, _) = place.open();
    for call in 0..100 {
        writer.append_entry(denial(call)).unwrap();
    }
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    let sizes: Vec<_> = store.checkpoints().iter().map(|made| (made.size, made.closed)).collect();
    assert_eq!(sizes, [(30, false), (60, false), (90, false)]);
    end(&writer, &store).await.unwrap();
    let last = store.checkpoints().pop().unwrap();
    assert_eq!((last.size, last.closed), (100, true));
    store.verify();
}

#[tokio::test]
async fn a_checkpoint_is_made_after_some_time_if_there_is_anything_new() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.checkpoint_every = Duration::from_millis(5);
    let (writer, _) = place.open();
    writer.append_entry(denial(1)).unwrap();
    let made = async {
        while store.checkpoints().is_empty() {
            tokio::task::yield_now().await;
        }
        // Nothing new comes, so no other one is made.
        let _ = tokio::time::timeout(Duration::from_millis(50), std::future::pending::<()>()).await;
    };
    while_shipping(&writer, &store, made).await;
    assert_eq!(store.checkpoints().len(), 1);
    assert_eq!(store.verify()[0].covered, 1);
}

#[tokio::test]
async fn the_end_does_not_wait_for_ever_and_the_next_writer_ships_the_rest() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.patience = Duration::from_millis(50);
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    store.down.store(true, SeqCst);
    assert_eq!(end(&writer, &store).await.unwrap_err().chains, 1);
    drop(writer);
    assert_eq!(files(&place.path()).len(), 1);

    store.down.store(false, SeqCst);
    let (writer, recovered) = place.open();
    assert_eq!(recovered[0].records, 2);
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    assert_eq!(store.said(), [(1, Phase::Decision), (1, Phase::Outcome)]);
}

#[tokio::test]
async fn a_store_that_never_answers_is_asked_again_and_does_not_hold_the_end_up() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.answer = Duration::from_millis(20);
    place.options.patience = Duration::from_millis(50);
    let (writer, _) = place.open();
    writer.append_entry(denial(1)).unwrap();
    store.silent.store(true, SeqCst);
    while_shipping(&writer, &store, async {
        let waited = tokio::time::timeout(Duration::from_millis(100), writer.wait_flushed()).await;
        assert!(waited.is_err());
        store.silent.store(false, SeqCst);
        writer.wait_flushed().await.unwrap();
    })
    .await;
    writer.append_entry(denial(2)).unwrap();
    store.silent.store(true, SeqCst);
    assert_eq!(end(&writer, &store).await.unwrap_err().chains, 1);
    assert_eq!(store.said(), [(1, Phase::Decision)]);
}

#[tokio::test]
async fn a_file_that_contradicts_the_store_is_kept_and_does_not_stop_the_others() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    let old = place.snapshot();
    writer.append_entry(outcome(1)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    drop(writer);

    // Somebody put an old copy of the directory back; there the call has no outcome yet.
    let (writer, recovered) = place.open_in(&old);
    assert_eq!(recovered[0].cut_off.len(), 1);
    writer.append_entry(denial(2)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    let said = [(1, Phase::Decision), (1, Phase::Outcome), (2, Phase::Decision)];
    assert_eq!(store.said(), said);
    let aside = |file: &std::path::PathBuf| file.extension().is_some_and(|end| end == "damaged");
    assert_eq!(files(&old).iter().filter(|file| aside(file)).count(), 1);
}

#[tokio::test]
async fn a_writer_whose_own_chain_is_contradicted_takes_nothing_more() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(denial(1)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    store.forge_next();
    writer.append_entry(denial(2)).unwrap();
    assert_eq!(
        while_shipping(&writer, &store, writer.wait_flushed()).await,
        Err(AppendError::Broken)
    );
    assert_eq!(writer.append_entry(denial(3)), Err(AppendError::Broken));
}
