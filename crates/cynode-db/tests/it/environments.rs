use cynode_core::{
    environments::{
        EnvironmentOrigin, EnvironmentSpec, EnvironmentState, PackageFetch, PackageSource,
    },
    ids::{JobId, ProjectId, TaskId, UserId},
};
use cynode_db::{
    Conn,
    delivery::environments::{
        self, EnvironmentDecision, EnvironmentRecord, NewEnvironment, PackageFetchFilter,
        SealedSecret,
    },
};
use cynode_testkit_db::{NOW, TestDb};
use time::Duration;
use uuid::Uuid;

const fn ada() -> UserId {
    UserId::from_uuid(Uuid::from_u128(1))
}

const fn web() -> ProjectId {
    ProjectId::from_uuid(Uuid::from_u128(2))
}

fn spec(command: &str) -> EnvironmentSpec {
    EnvironmentSpec { setup: vec![command.to_owned()], ..EnvironmentSpec::default() }
}

/// Proposes an environment whose digest is one digit, repeated.
async fn propose(conn: &mut Conn, digit: &str, origin: EnvironmentOrigin) -> u32 {
    let (digest, spec) = (digit.repeat(64), spec(digit));
    let new = NewEnvironment {
        digest: &digest,
        spec: &spec,
        origin,
        source_commit: None,
        reasons: &[],
        warnings: &[],
        proposed_by: Some(ada()),
    };
    environments::insert_proposal(conn, web(), &new, NOW).await.unwrap()
}

async fn decide(conn: &mut Conn, version: u32, accepted: bool) -> bool {
    let decision = EnvironmentDecision { accepted, decided_by: ada(), note: None };
    environments::decide_environment(conn, web(), version, &decision, NOW).await.unwrap()
}

async fn states(conn: &mut Conn) -> Vec<(u32, EnvironmentState)> {
    let all = environments::list_environments(conn, web()).await.unwrap();
    all.iter().map(|it| (it.version, it.state)).collect()
}

#[tokio::test]
async fn one_version_is_accepted_and_an_open_proposal_gives_way_to_one_of_the_same_origin() {
    use EnvironmentState::{Accepted, Proposed, Rejected, Superseded};
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    let mut pooled = db.conn().await;
    let conn = &mut *pooled;
    assert_eq!(propose(conn, "1", EnvironmentOrigin::Detected).await, 1);
    assert_eq!(propose(conn, "2", EnvironmentOrigin::Repository).await, 2);
    assert_eq!(propose(conn, "3", EnvironmentOrigin::Detected).await, 3);
    assert_eq!(states(conn).await, [(3, Proposed), (2, Proposed), (1, Superseded)]);
    assert!(decide(conn, 2, true).await);
    assert!(!decide(conn, 2, true).await, "it is accepted already");
    assert!(decide(conn, 3, true).await);
    assert_eq!(states(conn).await, [(3, Accepted), (2, Superseded), (1, Superseded)]);
    let versions = environments::list_environments(conn, web()).await.unwrap();
    let accepted: Vec<bool> = versions.iter().map(EnvironmentRecord::was_accepted).collect();
    assert_eq!(accepted, [true, true, false], "the first one was never accepted");
    assert!(decide(conn, 3, false).await);
    assert_eq!(states(conn).await[0], (3, Rejected));
    assert_eq!(environments::get_accepted_environment(conn, web()).await.unwrap(), None);
    let found = environments::get_environment(conn, web(), 2).await.unwrap().unwrap();
    assert_eq!((found.spec, found.digest), (spec("2"), "2".repeat(64)));
}

#[tokio::test]
async fn what_a_repository_brought_is_known_and_its_commit_is_read_once() {
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    let mut pooled = db.conn().await;
    let conn = &mut *pooled;
    propose(conn, "a", EnvironmentOrigin::Detected).await;
    let known = environments::has_repository_version(conn, web(), &"a".repeat(64)).await.unwrap();
    assert!(!known, "detection found it");
    propose(conn, "a", EnvironmentOrigin::Repository).await;
    let known = environments::has_repository_version(conn, web(), &"a".repeat(64)).await.unwrap();
    assert!(known);
    db.execute(
        "INSERT INTO repositories (project_id, default_branch, head, imported_by, imported_at)
         VALUES ('00000000-0000-0000-0000-000000000002', 'main', repeat('b', 40), '00000000-0000-0000-0000-000000000001', now())",
    )
    .await;
    let head = "b".repeat(40);
    let unread = environments::list_unread_repositories(conn, 10).await.unwrap();
    assert_eq!(unread, [(web(), head.clone())]);
    assert!(environments::mark_repository_read(conn, web(), &head).await.unwrap());
    assert!(!environments::mark_repository_read(conn, web(), &head).await.unwrap());
    assert!(environments::list_unread_repositories(conn, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn secrets_are_replaced_by_name_and_listed_without_values() {
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    let mut pooled = db.conn().await;
    let conn = &mut *pooled;
    for sealed in [vec![1], vec![2, 3]] {
        let secret = SealedSecret { project: web(), name: "token".to_owned(), sealed };
        environments::set_secret(conn, &secret, ada(), NOW).await.unwrap();
    }
    let listed = environments::list_secrets(conn, web()).await.unwrap();
    assert_eq!(listed.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["token"]);
    let sealed = environments::list_sealed_secrets(conn, Some(web())).await.unwrap();
    assert_eq!(sealed.iter().map(|it| it.sealed.clone()).collect::<Vec<_>>(), [vec![2, 3]]);
    assert_eq!(environments::list_sealed_secrets(conn, None).await.unwrap(), sealed);
    assert!(environments::delete_secret(conn, web(), "token").await.unwrap());
    assert!(!environments::delete_secret(conn, web(), "token").await.unwrap());
}

#[tokio::test]
async fn fetches_are_listed_newest_first_by_task_and_pruned_by_age() {
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    db.execute(
        "INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, created_by, created_at, updated_at)
         VALUES ('00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000002', 'mend', 'Mend it', '[]', 'queued',
                 '00000000-0000-0000-0000-000000000001', now(), now())",
    )
    .await;
    let mut pooled = db.conn().await;
    let conn = &mut *pooled;
    let task = TaskId::from_uuid(Uuid::from_u128(3));
    let job = JobId::from_uuid(Uuid::from_u128(4));
    let good = PackageFetch {
        source: PackageSource::Npm,
        package: "left-pad".to_owned(),
        version: "1.3.0".to_owned(),
        sha256: "c".repeat(64),
        bytes: 700,
        cached: true,
        refused: None,
    };
    let bad = PackageFetch {
        sha256: String::new(),
        bytes: 0,
        cached: false,
        refused: Some("it is too young".to_owned()),
        ..good.clone()
    };
    let fetches = [good.clone(), bad.clone()];
    environments::insert_package_fetches(conn, web(), task, job, &fetches, NOW).await.unwrap();
    let all = PackageFetchFilter::default();
    let listed = environments::list_package_fetches(conn, web(), all).await.unwrap();
    let listed: Vec<PackageFetch> = listed.into_iter().map(|it| it.fetch).collect();
    assert_eq!(listed, [bad.clone(), good]);
    let refused = PackageFetchFilter { task: Some(task), refused: true };
    let listed = environments::list_package_fetches(conn, web(), refused).await.unwrap();
    assert_eq!(listed.into_iter().map(|it| it.fetch).collect::<Vec<_>>(), [bad]);
    let other = TaskId::from_uuid(Uuid::from_u128(9));
    let other = PackageFetchFilter { task: Some(other), refused: false };
    assert!(environments::list_package_fetches(conn, web(), other).await.unwrap().is_empty());
    assert_eq!(environments::prune_package_fetches(conn, NOW, 10).await.unwrap(), 0);
    let later = NOW + Duration::seconds(1);
    assert_eq!(environments::prune_package_fetches(conn, later, 1).await.unwrap(), 1);
    assert_eq!(environments::prune_package_fetches(conn, later, 10).await.unwrap(), 1);
}
