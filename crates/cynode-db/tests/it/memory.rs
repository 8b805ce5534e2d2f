//! Memory: the row rules of partitions, and the index.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::{
    ids::{IngestId, MemoryId, ProjectId},
    memory::{MemoryAuthor, MemoryKind, MemoryScope, MemoryState, MemoryText},
    paging::PageRequest,
};
use cynode_db::{
    Conn,
    memory::{
        partitions::{self, EntryMode, Partition, enter_partition, open_partition},
        postings::unpack_postings,
        records::{
            self, ForgetFilter, MemoryDecision, MemoryOrigin, NewMemory, RecordFilter,
            insert_records,
        },
        search::{self, WantedBlocks},
    },
};
use cynode_testkit_db::{NOW, TestDb};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::{database_roles::become_runtime_role, schema::populate};

const ALL: PageRequest = PageRequest { after: None, limit: 200 };

fn scope(project: u128, profile: &str) -> MemoryScope {
    let project = ProjectId::from_uuid(Uuid::from_u128(project));
    MemoryScope { project, profile: profile.parse().unwrap() }
}

/// A record of the orchestrator. Equal numbers are equal records.
fn record(number: u32, lexemes: &[&str]) -> NewMemory {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&number.to_be_bytes());
    let lexemes: Vec<_> = lexemes.iter().map(|lexeme| ((*lexeme).to_owned(), 1)).collect();
    NewMemory {
        id: MemoryId::from_uuid(Uuid::from_u128(1_000_000 + u128::from(number))),
        kind: MemoryKind::Fact,
        state: MemoryState::Accepted,
        text: MemoryText {
            title: format!("title {number}"),
            content: "content".to_owned(),
            source: "note".to_owned(),
            path: None,
            url: None,
            commit: None,
        },
        origin: MemoryOrigin {
            author: MemoryAuthor::System,
            user: None,
            role: None,
            task: None,
            ingest: None,
            untrusted: false,
        },
        pinned: false,
        supersedes: None,
        digest,
        length: i32::try_from(lexemes.len()).unwrap(),
        lexemes,
        lexer_version: 1,
    }
}

/// The numbers of the records that have a lexeme, as the index has them.
async fn indexed(conn: &mut Conn, partition: &Partition, lexeme: &str) -> Vec<i32> {
    let found = search::find_terms(conn, partition, &[lexeme.to_owned()]).await.unwrap();
    let Some(term) = found.first() else { return Vec::new() };
    let wanted = WantedBlocks { term: term.term.clone(), from: 0, to: term.blocks };
    let mut packed = Vec::new();
    for block in search::read_blocks(conn, partition, &[wanted]).await.unwrap() {
        packed.extend(block.packed);
    }
    packed.extend(&term.tail);
    let numbers: Vec<i32> = unpack_postings(&packed).map(|posting| posting.record_no).collect();
    assert_eq!(i32::try_from(numbers.len()).unwrap(), term.df, "{lexeme}");
    numbers
}

async fn count(conn: &mut Conn, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn the_schema_knows_the_kinds_states_and_authors_of_records() {
    let db = TestDb::new().await;
    populate(&db).await;
    let mut tx = db.begin().await;
    let mut partition = open_partition(&mut tx, &scope(2, "default")).await.unwrap();
    let kinds = MemoryKind::ALL
        .iter()
        .enumerate()
        .map(|(at, kind)| NewMemory { kind: *kind, ..record(u32::try_from(at).unwrap(), &["a"]) });
    let kinds: Vec<NewMemory> = kinds.collect();
    let stored = insert_records(&mut tx, &mut partition, &kinds, NOW).await.unwrap();
    assert_eq!(stored.len(), MemoryKind::ALL.len());
    let every = RecordFilter::default();
    let listed = records::list_records(&mut tx, &partition, &every, ALL);
    let listed: BTreeSet<_> = listed.await.unwrap().iter().map(|it| it.kind).collect();
    assert_eq!(listed, MemoryKind::ALL.iter().copied().collect());
    for state in MemoryState::ALL {
        let id = kinds[0].id;
        // A decision is never taken back to a proposal.
        if *state != MemoryState::Proposed {
            let decision = MemoryDecision { state: *state, by: None, at: NOW };
            records::decide_record(&mut tx, &mut partition, id, decision).await.unwrap();
            let read = records::get_record(&mut tx, &partition, id).await.unwrap().unwrap();
            assert_eq!(read.state, *state);
            assert_eq!(read.record_no.is_some(), *state == MemoryState::Accepted);
        }
    }
}

#[tokio::test]
async fn a_server_sees_nothing_outside_of_the_partition_that_it_entered() {
    let db = TestDb::new().await;
    populate(&db).await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    let (own, other) = (scope(2, "default"), scope(2, "research"));
    for (place, number) in [(&own, 1), (&other, 2)] {
        let mut tx = conn.begin().await.unwrap();
        let mut partition = open_partition(&mut tx, place).await.unwrap();
        let new = [record(number, &["secret"])];
        insert_records(&mut tx, &mut partition, &new, NOW).await.unwrap();
        tx.commit().await.unwrap();
    }
    let tables = [
        "SELECT count(*) FROM memories",
        "SELECT count(*) FROM memory_partitions",
        "SELECT count(*) FROM memory_lexemes",
    ];
    for table in tables {
        assert_eq!(count(&mut conn, table).await, 0, "S001-14: without a partition: {table}");
    }
    let mut tx = conn.begin().await.unwrap();
    let entered = enter_partition(&mut tx, &own, EntryMode::Read).await.unwrap().unwrap();
    for table in tables {
        assert_eq!(count(&mut tx, table).await, 1, "S001-14: one of two: {table}");
    }
    // A query that names another partition finds nothing, and a write into it is refused.
    let foreign = Partition { number: entered.number + 1, ..entered.clone() };
    assert_eq!(indexed(&mut tx, &foreign, "secret").await, [0; 0]);
    assert_eq!(indexed(&mut tx, &entered, "secret").await, [1]);
    let written = sqlx::query(
        "INSERT INTO memory_lexemes (partition_no, term, df, tail) VALUES ($1, 'x', 1, '')",
    )
    .bind(foreign.number)
    .execute(&mut *tx)
    .await
    .unwrap_err();
    let code = written.as_database_error().and_then(|error| error.code()).unwrap_or_default();
    assert_eq!(code, "42501", "S001-14: {written}");
    drop(tx);
    // The partition ends with the transaction, also with one that is rolled back.
    assert_eq!(count(&mut conn, tables[0]).await, 0);
    let mut tx = conn.begin().await.unwrap();
    assert!(
        enter_partition(&mut tx, &scope(2, "offline"), EntryMode::Read).await.unwrap().is_none()
    );
    assert_eq!(count(&mut tx, tables[0]).await, 0, "S001-14: a partition that is not there");
    let second = MemoryId::from_uuid(Uuid::from_u128(1_000_002));
    let found = partitions::find_scope(&mut tx, second).await.unwrap();
    assert_eq!(found, Some(other));
    assert_eq!(
        count(&mut tx, tables[0]).await,
        0,
        "S001-14: to know where a record is opens nothing"
    );
}

/// Pseudo-random numbers, the same in every run.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const WORDS: [&str; 6] = ["alpha", "beta", "gamma", "delta", "retry", "数据"];

/// What a partition holds, as the test believes: the words of each record.
type Model = BTreeMap<MemoryId, BTreeSet<&'static str>>;

async fn assert_partition_is(conn: &mut Conn, place: &MemoryScope, model: &Model) {
    let Some(partition) = enter_partition(conn, place, EntryMode::Read).await.unwrap() else {
        assert!(model.is_empty());
        return;
    };
    assert_eq!(usize::try_from(partition.records).unwrap(), model.len(), "B001-24: counted");
    let total: usize = model.values().map(BTreeSet::len).sum();
    assert_eq!(usize::try_from(partition.total_length).unwrap(), total, "B001-24: counted");
    for word in WORDS {
        let numbers = indexed(conn, &partition, word).await;
        let ascending = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(ascending, "{numbers:?}");
        let found = records::list_indexed_records(conn, &partition, &numbers).await.unwrap();
        let found: BTreeSet<MemoryId> = found.into_iter().map(|it| it.id).collect();
        let expected = model.iter().filter(|(_, words)| words.contains(word));
        let expected: BTreeSet<MemoryId> = expected.map(|(id, _)| *id).collect();
        assert_eq!(found, expected, "B001-24: {word} of {place:?}");
    }
}

#[tokio::test]
async fn random_writes_of_one_scope_never_show_in_another() {
    let db = TestDb::new().await;
    populate(&db).await;
    db.execute(
        "INSERT INTO projects (project_id, slug, title, created_by, created_at, updated_at)
         VALUES ('00000000-0000-0000-0000-000000000003', 'api', 'Api',
                 '00000000-0000-0000-0000-000000000001', now(), now())",
    )
    .await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    let scopes = [scope(2, "default"), scope(2, "research"), scope(3, "default")];
    let mut models = vec![Model::new(); scopes.len()];
    let mut random = Sequence(20_261_119);
    for number in 0..240_u32 {
        let at = usize::try_from(random.below(3)).unwrap();
        let (place, model) = (&scopes[at], &mut models[at]);
        let mut tx = conn.begin().await.unwrap();
        let mut partition = open_partition(&mut tx, place).await.unwrap();
        let some = model.keys().nth(usize::try_from(random.below(8)).unwrap()).copied();
        match (random.below(4), some) {
            (0, Some(id)) => {
                assert_eq!(
                    records::delete_records(&mut tx, &mut partition, &[id]).await.unwrap(),
                    1
                );
                model.remove(&id);
            }
            (1, Some(id)) => {
                let decision = MemoryDecision { state: MemoryState::Rejected, by: None, at: NOW };
                records::decide_record(&mut tx, &mut partition, id, decision).await.unwrap();
                model.remove(&id);
            }
            _ => {
                let words: BTreeSet<&str> =
                    (0..3).map(|_| WORDS[usize::try_from(random.below(6)).unwrap()]).collect();
                let list: Vec<&str> = words.iter().copied().collect();
                let new = [record(number, &list)];
                let stored = insert_records(&mut tx, &mut partition, &new, NOW).await.unwrap();
                assert_eq!(stored, [new[0].id]);
                model.insert(new[0].id, words);
            }
        }
        // A writer that gives up leaves nothing.
        if random.below(5) == 0 {
            let mut left = open_partition(&mut tx, place).await.unwrap();
            let mut nested = tx.begin().await.unwrap();
            let new = [record(10_000 + number, &["alpha"])];
            insert_records(&mut nested, &mut left, &new, NOW).await.unwrap();
            nested.rollback().await.unwrap();
        }
        tx.commit().await.unwrap();
        if number % 20 == 19 {
            for (place, model) in scopes.iter().zip(&models) {
                let mut tx = conn.begin().await.unwrap();
                assert_partition_is(&mut tx, place, model).await;
            }
        }
    }
}

#[tokio::test]
async fn full_tails_become_blocks_and_removed_records_leave_them() {
    let db = TestDb::new().await;
    populate(&db).await;
    let mut tx = db.begin().await;
    let place = scope(2, "default");
    let mut partition = open_partition(&mut tx, &place).await.unwrap();
    for start in (0..1500).step_by(300) {
        let batch: Vec<NewMemory> = (start..start + 300)
            .map(|number| {
                if number % 5 == 0 {
                    record(number, &["all", "fifth"])
                } else {
                    record(number, &["all"])
                }
            })
            .collect();
        let stored = insert_records(&mut tx, &mut partition, &batch, NOW).await.unwrap();
        assert_eq!(stored.len(), 300);
        // What is there already is left as it is.
        let again = insert_records(&mut tx, &mut partition, &batch[..10], NOW).await.unwrap();
        assert!(again.is_empty());
    }
    assert!(count(&mut tx, "SELECT count(*) FROM memory_postings WHERE term = 'all'").await >= 4);
    assert_eq!(indexed(&mut tx, &partition, "all").await.len(), 1500);
    assert_eq!(indexed(&mut tx, &partition, "fifth").await.len(), 300);
    let gone: Vec<MemoryId> = (0..1500).step_by(7).map(|number| record(number, &[]).id).collect();
    let deleted = records::delete_records(&mut tx, &mut partition, &gone).await.unwrap();
    assert_eq!(usize::try_from(deleted).unwrap(), gone.len());
    let left = 1500 - gone.len();
    assert_eq!(indexed(&mut tx, &partition, "all").await.len(), left);
    assert_eq!(usize::try_from(partition.records).unwrap(), left);
    loop {
        let filter = ForgetFilter { source: Some("note".to_owned()), ..ForgetFilter::default() };
        let ids = records::find_forgettable(&mut tx, &partition, &filter, 400).await.unwrap();
        if ids.is_empty() {
            break;
        }
        records::delete_records(&mut tx, &mut partition, &ids).await.unwrap();
    }
    assert_eq!((partition.records, partition.total_length), (0, 0));
    for table in ["SELECT count(*) FROM memory_lexemes", "SELECT count(*) FROM memory_postings"] {
        assert_eq!(
            count(&mut tx, table).await,
            0,
            "nothing of a forgotten record is left: {table}"
        );
    }
}

#[tokio::test]
async fn a_deleted_project_takes_its_memory_along_and_leaves_that_of_others() {
    let db = TestDb::new().await;
    populate(&db).await;
    db.execute(
        "INSERT INTO projects (project_id, slug, title, created_by, created_at, updated_at)
         VALUES ('00000000-0000-0000-0000-000000000003', 'api', 'Api',
                 '00000000-0000-0000-0000-000000000001', now(), now())",
    )
    .await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    for (number, place) in
        [(1, scope(2, "default")), (2, scope(2, "research")), (3, scope(3, "default"))]
    {
        let mut tx = conn.begin().await.unwrap();
        let mut partition = open_partition(&mut tx, &place).await.unwrap();
        insert_records(&mut tx, &mut partition, &[record(number, &["a"])], NOW).await.unwrap();
        tx.commit().await.unwrap();
    }
    let deleted = ProjectId::from_uuid(Uuid::from_u128(2));
    cynode_db::tasks::projects::delete_project(&mut conn, deleted, NOW).await.unwrap();
    for table in [
        "SELECT count(*) FROM memory_partitions",
        "SELECT count(*) FROM memories",
        "SELECT count(*) FROM memory_lexemes",
    ] {
        assert_eq!(db.number(table).await, 1, "{table}");
    }
}

#[tokio::test]
async fn proposals_that_nobody_decides_are_pruned_in_every_partition() {
    let db = TestDb::new().await;
    populate(&db).await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    for (number, profile) in [(1, "default"), (2, "research")] {
        let mut tx = conn.begin().await.unwrap();
        let mut partition = open_partition(&mut tx, &scope(2, profile)).await.unwrap();
        let proposal = NewMemory { state: MemoryState::Proposed, ..record(number, &["a"]) };
        let accepted = record(number + 10, &["a"]);
        insert_records(&mut tx, &mut partition, &[proposal, accepted], NOW).await.unwrap();
        tx.commit().await.unwrap();
    }
    let later = NOW + time::Duration::days(1);
    assert_eq!(partitions::prune_proposals(&mut conn, NOW, 10).await.unwrap(), 0);
    assert_eq!(partitions::prune_proposals(&mut conn, later, 10).await.unwrap(), 2);
    assert_eq!(db.texts("SELECT DISTINCT state FROM memories").await, ["accepted"]);
}

#[tokio::test]
async fn a_proposal_that_is_accepted_while_proposals_are_pruned_stays() {
    let db = TestDb::new().await;
    populate(&db).await;
    let place = scope(2, "default");
    let proposal = NewMemory { state: MemoryState::Proposed, ..record(1, &["a"]) };
    let mut tx = db.begin().await;
    let mut partition = open_partition(&mut tx, &place).await.unwrap();
    let new = [proposal.clone()];
    insert_records(&mut tx, &mut partition, &new, NOW).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await;
    let mut partition = open_partition(&mut tx, &place).await.unwrap();
    let decision = MemoryDecision { state: MemoryState::Accepted, by: None, at: NOW };
    records::decide_record(&mut tx, &mut partition, proposal.id, decision).await.unwrap();
    let mut conn = db.conn().await;
    let later = NOW + time::Duration::days(1);
    let prune = async { partitions::prune_proposals(&mut conn, later, 10).await.unwrap() };
    let accept = async {
        // The other one waits for this one, and has looked for proposals already.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while db.number(waits).await == 0 {}
        tx.commit().await.unwrap();
    };
    let (pruned, ()) = tokio::join!(prune, accept);
    assert_eq!(pruned, 0);
    assert_eq!(db.texts("SELECT state FROM memories").await, ["accepted"]);
}

#[tokio::test]
async fn of_a_file_only_what_an_ingest_made_and_searches_find_is_removed() {
    let db = TestDb::new().await;
    populate(&db).await;
    let mut tx = db.begin().await;
    let mut partition = open_partition(&mut tx, &scope(2, "default")).await.unwrap();
    let mut new: Vec<NewMemory> = (1..=4).map(|number| record(number, &["a"])).collect();
    for record in &mut new[..3] {
        record.origin.ingest = Some(IngestId::from_uuid(Uuid::from_u128(7)));
    }
    insert_records(&mut tx, &mut partition, &new, NOW).await.unwrap();
    let decision = MemoryDecision { state: MemoryState::Rejected, by: None, at: NOW };
    records::decide_record(&mut tx, &mut partition, new[1].id, decision).await.unwrap();
    records::supersede_record(&mut tx, &mut partition, new[2].id, new[3].id).await.unwrap();
    let filter = ForgetFilter { ingested_only: true, ..ForgetFilter::default() };
    let found = records::find_forgettable(&mut tx, &partition, &filter, 10).await.unwrap();
    assert_eq!(found, [new[0].id]);
    let all = ForgetFilter::default();
    let found = records::find_forgettable(&mut tx, &partition, &all, 10).await.unwrap();
    assert_eq!(found.len(), 4);
}
