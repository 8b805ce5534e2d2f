use std::{collections::HashSet, fs, path::Path, time::Duration};

use cynode_audit::{Outcome, Phase, SegmentCondition};
use uuid::Uuid;

use crate::support::{Memory, Place, decision, denial, end, files, outcome, while_shipping};

#[tokio::test]
async fn every_record_taken_is_found_again_after_a_crash() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    for call in 1..=20 {
        writer.append_entry(decision(call)).unwrap();
        if call % 2 == 0 {
            writer.append_entry(outcome(call)).unwrap();
        }
    }
    drop(writer);

    let (writer, recovered) = place.open();
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0].condition, SegmentCondition::Good);
    assert_eq!(recovered[0].records, 40);
    let odd: Vec<_> = (1..=20).step_by(2).map(Uuid::from_u128).collect();
    assert_eq!(recovered[0].cut_off, odd);
    end(&writer, &store).await.unwrap();

    for call in 1..=20 {
        let how = if call % 2 == 0 { Outcome::Success } else { Outcome::Unknown };
        assert_eq!(store.outcomes(call), [how], "{call}");
    }
    let verified = store.verify();
    assert_eq!(verified.len(), 1);
    assert_eq!((verified[0].records, verified[0].closed), (40, true));
    assert!(files(&place.path()).is_empty());
}

#[tokio::test]
async fn what_was_stored_before_the_crash_is_not_stored_twice() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    writer.append_entry(denial(2)).unwrap();
    drop(writer);
    assert_eq!(store.said().len(), 1);

    let (writer, _) = place.open();
    while_shipping(&writer, &store, writer.wait_flushed()).await.unwrap();
    let said = [(1, Phase::Decision), (2, Phase::Decision), (1, Phase::Outcome)];
    assert_eq!(store.said(), said);
    assert_eq!(store.verify()[0].records, 3);
}

#[tokio::test]
async fn a_record_cut_short_is_dropped_and_all_before_it_kept() {
    let place = Place::new();
    let (writer, _) = place.open();
    let mut ends = vec![fs::metadata(&files(&place.path())[0]).unwrap().len()];
    for call in 1..=3 {
        writer.append_entry(denial(call)).unwrap();
        ends.push(fs::metadata(&files(&place.path())[0]).unwrap().len());
    }
    for length in (ends[0]..=ends[3]).step_by(53).chain(ends.clone()) {
        let copy = place.snapshot();
        truncate(&files(&copy)[0], length);
        let store = Memory::new();
        let (writer, recovered) = place.open_in(&copy);
        let whole = ends.iter().filter(|end| **end <= length).count() - 1;
        let torn = length - ends[whole];
        if whole > 0 {
            assert_eq!((recovered[0].records, recovered[0].torn), (whole as u64, torn), "{length}");
        }
        end(&writer, &store).await.unwrap();
        assert_eq!(store.said().len(), whole, "{length}");
        assert!(store.verify().iter().all(|chain| chain.closed));
        assert!(files(&copy).is_empty());
    }
}

#[tokio::test]
async fn a_tail_of_zeros_is_dropped() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(denial(1)).unwrap();
    let copy = place.snapshot();
    let file = &files(&copy)[0];
    let mut bytes = fs::read(file).unwrap();
    bytes.extend([0; 4096]);
    fs::write(file, bytes).unwrap();
    let (writer, recovered) = place.open_in(&copy);
    assert_eq!((recovered[0].condition, recovered[0].torn), (SegmentCondition::Good, 4096));
    end(&writer, &store).await.unwrap();
    assert_eq!(store.said().len(), 1);
}

#[tokio::test]
async fn a_file_damaged_in_the_middle_is_kept_and_its_good_part_shipped() {
    let place = Place::new();
    let (writer, _) = place.open();
    let mut ends = Vec::new();
    for call in 1..=4 {
        ends.push(fs::metadata(&files(&place.path())[0]).unwrap().len());
        writer.append_entry(decision(call)).unwrap();
    }
    // The length, the checksum, the kind, the place, the hashes and the entry of the third record.
    for offset in [0, 1, 3, 5, 8, 12, 30, 60, 100, 200] {
        let (copy, store) = (place.snapshot(), Memory::new());
        let file = files(&copy)[0].clone();
        let mut bytes = fs::read(&file).unwrap();
        bytes[usize::try_from(ends[2]).unwrap() + offset] ^= 0x41;
        fs::write(&file, &bytes).unwrap();

        let (writer, recovered) = place.open_in(&copy);
        assert_eq!(recovered[0].condition, SegmentCondition::Damaged, "{offset}");
        assert_eq!((recovered[0].records, &recovered[0].cut_off[..]), (2, &[][..]));
        writer.append_entry(denial(9)).unwrap();
        end(&writer, &store).await.unwrap();

        assert_eq!(store.said().len(), 3);
        let verified = store.verify();
        assert_eq!((verified[0].records, verified[0].covered, verified[0].closed), (2, 2, false));
        assert_eq!((verified[1].records, verified[1].closed), (1, true));
        assert_eq!(fs::read(file.with_extension("damaged")).unwrap(), bytes);
        drop(writer);
        assert_eq!(place.open_in(&copy).1, [], "it is looked at once");
    }
}

#[tokio::test]
async fn a_record_that_was_rewritten_with_a_good_checksum_is_found() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    let start = fs::metadata(&files(&place.path())[0]).unwrap().len();
    writer.append_entry(denial(1)).unwrap();
    writer.append_entry(denial(2)).unwrap();
    let copy = place.snapshot();
    let file = files(&copy)[0].clone();
    let mut bytes = fs::read(&file).unwrap();
    let start = usize::try_from(start).unwrap();
    let length = u32::from_be_bytes(bytes[start..start + 4].try_into().unwrap()) as usize;
    let payload = start + 8..start + 8 + length;
    // The last byte of the entry is the end of its duration.
    bytes[payload.end - 1] ^= 1;
    let checksum = crc32fast::hash(&bytes[payload]);
    bytes[start + 4..start + 8].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&file, &bytes).unwrap();

    let (writer, recovered) = place.open_in(&copy);
    assert_eq!((recovered[0].condition, recovered[0].records), (SegmentCondition::Damaged, 0));
    end(&writer, &store).await.unwrap();
    assert!(store.said().is_empty());
    assert!(file.with_extension("damaged").exists());
}

#[tokio::test]
async fn a_file_that_tells_nothing_is_kept_and_does_not_stop_the_start() {
    let place = Place::new();
    let (writer, _) = place.open();
    drop(writer);
    let strange = place.path().join("00000000000000000000000000000000.wal");
    fs::write(&strange, b"this is not a file of ours").unwrap();
    fs::write(place.path().join("00000000000000000000000000000001.wal"), b"").unwrap();
    let (_writer, recovered) = place.open();
    assert_eq!(recovered.len(), 1);
    assert_eq!((recovered[0].condition, recovered[0].chain), (SegmentCondition::Damaged, None));
    assert!(strange.with_extension("damaged").exists());
}

#[tokio::test]
async fn dying_anywhere_in_a_recovery_leaves_the_same_to_the_next_one() {
    let place = Place::new();
    let (writer, _) = place.open();
    for call in 1..=3 {
        writer.append_entry(decision(call)).unwrap();
    }
    let before = place.snapshot();
    let file = files(&before)[0].clone();
    let from = fs::metadata(&file).unwrap().len();
    // A recovery that runs to its end, and dies before it ships anything.
    drop(place.open_in(&before));
    let to = fs::metadata(&file).unwrap().len();
    assert!(to > from);
    let finished = fs::read(&file).unwrap();
    for length in (from..=to).step_by(111).chain([to]) {
        // The same recovery, dead after so many bytes.
        fs::write(&file, &finished[..usize::try_from(length).unwrap()]).unwrap();
        let store = Memory::new();
        let (writer, _) = place.open_in(&before);
        end(&writer, &store).await.unwrap();
        assert_eq!(store.said().len(), 6, "{length}");
        for call in 1..=3 {
            assert_eq!(store.outcomes(call), [Outcome::Unknown], "{length}");
        }
        assert!(store.verify().iter().all(|chain| chain.closed && chain.covered == 6));
    }
}

#[tokio::test]
async fn a_recovery_that_died_while_shipping_is_repeated_without_a_second_record() {
    let (place, store) = (Place::new(), Memory::new());
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    drop(writer);
    for _ in 0..3 {
        let copy = place.snapshot();
        let (writer, _) = place.open_in(&copy);
        drop(writer);
        // The files as they were between the shipping and the removal.
        let kept = fs::read(&files(&copy)[0]).unwrap();
        let (writer, _) = place.open_in(&copy);
        end(&writer, &store).await.unwrap();
        drop(writer);
        fs::write(&files(&place.path())[0], kept).unwrap();
    }
    assert_eq!(store.said(), [(1, Phase::Decision), (1, Phase::Outcome)]);
    assert!(store.verify()[0].closed);
}

#[tokio::test]
async fn a_full_chain_is_closed_and_its_open_calls_go_on_in_the_next() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_records = 3;
    let (writer, _) = place.open();
    for call in 1..=4 {
        writer.append_entry(decision(call)).unwrap();
    }
    for call in 1..=4 {
        writer.append_entry(outcome(call)).unwrap();
    }
    end(&writer, &store).await.unwrap();
    let verified = store.verify();
    let sizes: Vec<_> = verified.iter().map(|chain| (chain.records, chain.closed)).collect();
    assert_eq!(sizes, [(3, true), (3, true), (2, true)]);
    for call in 1..=4 {
        assert_eq!(store.outcomes(call), [Outcome::Success]);
    }
}

#[tokio::test]
async fn an_old_chain_is_closed_with_the_next_record_however_few_it_has() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_age = Duration::ZERO;
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    writer.append_entry(denial(2)).unwrap();
    writer.append_entry(outcome(1)).unwrap();
    end(&writer, &store).await.unwrap();
    // One that has no record yet is not followed by another.
    let sizes: Vec<_> = store.verify().iter().map(|chain| (chain.records, chain.closed)).collect();
    assert_eq!(sizes, [(1, true), (1, true), (1, true)]);
    assert_eq!(store.outcomes(1), [Outcome::Success]);
}

#[tokio::test]
async fn a_call_carried_over_chains_ends_once_after_a_crash() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_records = 2;
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    writer.append_entry(decision(2)).unwrap();
    writer.append_entry(denial(3)).unwrap();
    writer.append_entry(denial(4)).unwrap();
    writer.append_entry(outcome(2)).unwrap();
    drop(writer);
    assert_eq!(files(&place.path()).len(), 3);

    let (writer, recovered) = place.open();
    let cut_off: Vec<_> = recovered.iter().map(|file| file.cut_off.len()).collect();
    assert_eq!(cut_off, [0, 0, 1]);
    end(&writer, &store).await.unwrap();
    assert_eq!(store.outcomes(1), [Outcome::Unknown]);
    assert_eq!(store.outcomes(2), [Outcome::Success]);
    assert!(store.verify().iter().all(|chain| chain.closed));
}

#[tokio::test]
async fn a_crash_between_the_new_file_and_the_close_of_the_old_is_no_double_end() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_records = 2;
    let (writer, _) = place.open();
    writer.append_entry(decision(1)).unwrap();
    writer.append_entry(decision(2)).unwrap();
    writer.append_entry(denial(3)).unwrap();
    let copy = place.snapshot();
    // Without its last frame, the mark that it is closed, the first file is as it was before.
    let first = &files(&copy)[0];
    truncate(first, fs::metadata(first).unwrap().len() - 9);
    let (writer, recovered) = place.open_in(&copy);
    assert_eq!(recovered.iter().map(|file| file.cut_off.len()).sum::<usize>(), 2);
    end(&writer, &store).await.unwrap();
    assert_eq!(store.outcomes(1), [Outcome::Unknown]);
    assert_eq!(store.outcomes(2), [Outcome::Unknown]);
    assert!(store.verify().iter().all(|chain| chain.closed));
}

#[tokio::test]
async fn nothing_is_added_to_a_closed_chain() {
    let (mut place, store) = (Place::new(), Memory::new());
    place.options.chain_records = 2;
    let (writer, _) = place.open();
    for call in 1..=3 {
        writer.append_entry(decision(call)).unwrap();
    }
    // The chain that the open calls went on in is not here, and yet they are not this one's.
    let copy = place.snapshot();
    let (first, second) = (files(&copy)[0].clone(), files(&copy)[1].clone());
    fs::remove_file(second).unwrap();
    let before = fs::read(&first).unwrap();
    for _ in 0..2 {
        let (_writer, recovered) = place.open_in(&copy);
        assert_eq!((recovered[0].condition, recovered[0].records), (SegmentCondition::Good, 2));
        assert_eq!(fs::read(&first).unwrap(), before);
    }
    let (writer, _) = place.open_in(&copy);
    end(&writer, &store).await.unwrap();
    assert_eq!(store.said(), [(1, Phase::Decision), (2, Phase::Decision)]);
}

#[tokio::test]
async fn a_file_of_a_living_process_is_left_alone() {
    let (place, store) = (Place::new(), Memory::new());
    let (first, _) = place.open();
    first.append_entry(decision(1)).unwrap();
    let (second, recovered) = place.open();
    assert_eq!(recovered, []);
    first.append_entry(outcome(1)).unwrap();
    second.append_entry(denial(2)).unwrap();
    end(&second, &store).await.unwrap();
    end(&first, &store).await.unwrap();
    assert_eq!(store.outcomes(1), [Outcome::Success]);
    assert_eq!(store.verify().len(), 2);
}

#[tokio::test]
async fn of_two_who_open_at_once_one_takes_a_file_over() {
    let mut place = Place::new();
    place.options.chain_records = 1;
    for _ in 0..10 {
        let (writer, _) = place.open();
        for call in 1..=8 {
            writer.append_entry(denial(call)).unwrap();
        }
        drop(writer);
        let opened: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| place.open())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let chains: Vec<_> =
            opened.iter().flat_map(|(_, recovered)| recovered).map(|file| file.chain).collect();
        assert_eq!(chains.len(), 8);
        assert_eq!(chains.iter().collect::<HashSet<_>>().len(), 8);
        let store = Memory::new();
        for (writer, _) in &opened {
            end(writer, &store).await.unwrap();
        }
        assert_eq!(store.said().len(), 8);
        assert!(files(&place.path()).is_empty());
    }
}

fn truncate(file: &Path, length: u64) {
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}
