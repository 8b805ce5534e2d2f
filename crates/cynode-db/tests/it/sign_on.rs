use cynode_core::{
    accounts::LoginMethod,
    ids::{ExternalIdentityId, GroupId, IdentityProviderId, ProviderGrantId, SessionId, UserId},
};
use cynode_db::{
    Conn, DbError,
    identity::{
        accounts, authentication, groups,
        identity_providers::{self, ExternalIdentity, IdentityProviderRecord, RequiredClaims},
        provider_grants::{
            self, EndedGrants, GrantCheckState, GrantCredential, NewGrant, SessionOrigin,
        },
    },
    platform::keyring::{FIRST_TOKEN_KEY, TokenHash},
};
use cynode_testkit_db::{NOW, TestDb};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

const USER: UserId = UserId::from_uuid(Uuid::from_u128(1));
const PROVIDER: IdentityProviderId = IdentityProviderId::from_uuid(Uuid::from_u128(20));
const GRANT: ProviderGrantId = ProviderGrantId::from_uuid(Uuid::from_u128(22));
const TOKEN: [u8; 32] = [7; 32];
const VALID: Duration = Duration::seconds(45);

/// A database with a provider and a session of it that was just confirmed.
async fn with_session() -> TestDb {
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    let mut conn = db.conn().await;
    let provider = IdentityProviderRecord {
        id: PROVIDER,
        name: "company".into(),
        display_name: "Company".parse().unwrap(),
        issuer: "https://id.example".into(),
        client_id: "cynode".into(),
        sealed_secret: None,
        scopes: vec!["profile".into()],
        groups_claim: "groups".into(),
        create_accounts: true,
        mapped_groups_only: false,
        required_claims: RequiredClaims::new(),
        links_directory: false,
        directory_claim: "sub".into(),
        second_factor_contexts: Vec::new(),
        enabled: true,
        from_file: false,
        created_at: NOW,
        updated_at: NOW,
    };
    identity_providers::set_identity_provider(&mut conn, &provider).await.unwrap();
    let identity = ExternalIdentity {
        id: ExternalIdentityId::from_uuid(Uuid::from_u128(21)),
        provider: PROVIDER,
        subject: "7".into(),
        user: USER,
        linked_at: NOW,
    };
    identity_providers::insert_external_identity(&mut conn, &identity).await.unwrap();
    let grant = NewGrant {
        id: GRANT,
        identity: identity.id,
        provider_session: Some("s".into()),
        sealed_tokens: vec![1],
        created_at: NOW,
        valid_until: NOW + VALID,
    };
    provider_grants::insert_grant(&mut conn, &grant).await.unwrap();
    let session = SessionId::from_uuid(Uuid::from_u128(23));
    let expires_at = NOW + Duration::HOUR;
    let stored = TokenHash { key: FIRST_TOKEN_KEY, hash: TOKEN };
    accounts::insert_session(&mut conn, session, USER, &stored, NOW, expires_at).await.unwrap();
    let origin = SessionOrigin {
        method: LoginMethod::Provider,
        device: None,
        source: "127.0.0.1".into(),
        grant: Some(GRANT),
        second_factor: false,
    };
    provider_grants::set_session_origin(&mut conn, session, &origin).await.unwrap();
    db
}

async fn claim_check_of_session(
    conn: &mut Conn,
    now: OffsetDateTime,
) -> Result<Option<GrantCheckState>, DbError> {
    let credential = GrantCredential::Session(&[TOKEN]);
    provider_grants::claim_grant_check(conn, credential, now, Duration::seconds(20)).await
}

#[tokio::test]
async fn a_session_works_until_its_check_is_due_and_one_of_many_has_to_check() {
    let db = with_session().await;
    let (mut first, mut second) = (db.conn().await, db.conn().await);
    let due = NOW + VALID;
    let works = async |at: OffsetDateTime| {
        let mut conn = db.conn().await;
        authentication::find_session_callers(&mut conn, &[TOKEN], at).await.unwrap().len()
    };
    assert_eq!((works(due - Duration::SECOND).await, works(due).await), (1, 0));
    let before = due - Duration::SECOND;
    let early = claim_check_of_session(&mut first, before).await;
    assert_eq!(early.unwrap(), Some(GrantCheckState::Confirmed));
    let (one, other) = tokio::join!(
        claim_check_of_session(&mut first, due),
        claim_check_of_session(&mut second, due),
    );
    let states = [one.unwrap().unwrap(), other.unwrap().unwrap()];
    let claimed: Vec<_> =
        states.iter().filter(|state| matches!(state, GrantCheckState::Due(_))).collect();
    assert_eq!(claimed.len(), 1, "{states:?}");
    assert!(states.contains(&GrantCheckState::Claimed), "{states:?}");
    let GrantCheckState::Due(grant) = claimed[0].clone() else { panic!("it is due") };
    assert_eq!((grant.subject.as_str(), grant.user, grant.check_number), ("7", USER, 1));

    // Its claim has ended, and somebody else took over: the late answer changes nothing.
    let late = due + Duration::seconds(21);
    db.execute("UPDATE provider_grants SET claimed_until = clock_timestamp()").await;
    let taken = claim_check_of_session(&mut second, late).await;
    let Some(GrantCheckState::Due(newer)) = taken.unwrap() else { panic!("it is due again") };
    assert_eq!(newer.check_number, 2);
    let stale = provider_grants::confirm_grant(&mut first, &grant, &[2], late, late + VALID).await;
    assert!(!stale.unwrap());
    assert!(!provider_grants::store_grant_tokens(&mut first, &grant, &[2]).await.unwrap());
    let refused = EndedGrants::Refused(&grant);
    assert!(provider_grants::end_grants(&mut first, refused, late).await.unwrap().is_empty());
    let fresh = provider_grants::confirm_grant(&mut second, &newer, &[3], late, late + VALID).await;
    assert!(fresh.unwrap());
    assert_eq!(works(late).await, 1);
}

#[tokio::test]
async fn a_grant_that_ends_takes_its_sessions_and_its_tokens_with_it() {
    let db = with_session().await;
    let mut conn = db.conn().await;
    let other = EndedGrants::Logout { provider: PROVIDER, subject: Some("7"), session: Some("x") };
    assert!(provider_grants::end_grants(&mut conn, other, NOW).await.unwrap().is_empty());
    let own = EndedGrants::Logout { provider: PROVIDER, subject: None, session: Some("s") };
    let ended = provider_grants::end_grants(&mut conn, own, NOW).await.unwrap();
    assert_eq!(ended, [(SessionId::from_uuid(Uuid::from_u128(23)), USER)]);
    let left = "SELECT octet_length(sealed_tokens)::bigint FROM provider_grants";
    assert_eq!(db.number(left).await, 0);
    let callers = authentication::find_session_callers(&mut conn, &[TOKEN], NOW).await.unwrap();
    assert!(callers.is_empty());
    let claim = claim_check_of_session(&mut conn, NOW + VALID).await;
    assert_eq!(claim.unwrap(), None);
}

#[tokio::test]
async fn a_logout_of_a_session_ends_the_grants_of_the_person_whose_session_is_unknown() {
    let db = with_session().await;
    let mut conn = db.conn().await;
    let unknown = NewGrant {
        id: ProviderGrantId::from_uuid(Uuid::from_u128(24)),
        identity: ExternalIdentityId::from_uuid(Uuid::from_u128(21)),
        provider_session: None,
        sealed_tokens: vec![1],
        created_at: NOW,
        valid_until: NOW + VALID,
    };
    provider_grants::insert_grant(&mut conn, &unknown).await.unwrap();
    let open = "SELECT count(*) FROM provider_grants WHERE ended_at IS NULL";
    // The session alone does not say whose it is.
    let nobody = EndedGrants::Logout { provider: PROVIDER, subject: None, session: Some("x") };
    provider_grants::end_grants(&mut conn, nobody, NOW).await.unwrap();
    assert_eq!(db.number(open).await, 2);
    let other = EndedGrants::Logout { provider: PROVIDER, subject: Some("7"), session: Some("x") };
    provider_grants::end_grants(&mut conn, other, NOW).await.unwrap();
    assert_eq!(db.number(open).await, 1, "that of another session goes on");
}

#[tokio::test]
async fn a_provider_takes_away_what_it_gave_and_nothing_else() {
    let db = with_session().await;
    let mut conn = db.conn().await;
    let ids = [30, 31].map(|id| GroupId::from_uuid(Uuid::from_u128(id)));
    for (id, name) in ids.iter().zip(["builders", "readers"]) {
        groups::insert_group(&mut conn, *id, &name.parse().unwrap(), NOW).await.unwrap();
    }
    let mappings = [("b".to_owned(), ids[0]), ("r".to_owned(), ids[1])];
    identity_providers::set_group_mappings(&mut conn, PROVIDER, &mappings).await.unwrap();
    let both = ["b".to_owned(), "r".to_owned(), "unknown".to_owned()];
    let sync = identity_providers::sync_group_members(&mut conn, PROVIDER, USER, &both, NOW).await;
    let (mut added, removed) = sync.unwrap();
    added.sort_unstable();
    assert_eq!((added.as_slice(), removed.as_slice()), (ids.as_slice(), [].as_slice()));
    // A person gives the second one too.
    groups::add_members(&mut conn, ids[1], &[USER], NOW).await.unwrap();
    let sync = identity_providers::sync_group_members(&mut conn, PROVIDER, USER, &[], NOW).await;
    assert_eq!(sync.unwrap(), (vec![], vec![ids[0]]));
    assert_eq!(groups::groups_of_user(&mut conn, USER).await.unwrap(), [ids[1]]);
}

#[tokio::test]
async fn a_value_of_a_login_is_used_once() {
    let db = TestDb::new().await;
    let (mut first, mut second) = (db.conn().await, db.conn().await);
    let (one, other) = tokio::join!(
        identity_providers::use_login_value(&mut first, &TOKEN, NOW),
        identity_providers::use_login_value(&mut second, &TOKEN, NOW),
    );
    assert_ne!(one.unwrap(), other.unwrap());
    let later = NOW + Duration::SECOND;
    assert_eq!(identity_providers::prune_login_values(&mut first, later, 10).await.unwrap(), 1);
}
