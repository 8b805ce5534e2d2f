use cynode_core::{
    ids::{ProjectId, ThreadId, UserId},
    workflow::handoffs::{ChatMessageState, ChatRole},
};
use cynode_db::manager::conversations::{self, ChatMessageRecord, ChatThread};
use cynode_testkit_db::{NOW, TestDb};
use uuid::Uuid;

#[tokio::test]
async fn two_who_speak_at_once_in_one_conversation_are_both_heard() {
    let db = TestDb::new().await;
    crate::schema::populate(&db).await;
    let thread = ChatThread {
        id: ThreadId::from_uuid(Uuid::from_u128(3)),
        user: UserId::from_uuid(Uuid::from_u128(1)),
        project: ProjectId::from_uuid(Uuid::from_u128(2)),
        title: "hello".into(),
        profile: None,
        created_at: NOW,
        updated_at: NOW,
    };
    let mut conn = db.conn().await;
    conversations::insert_thread(&mut conn, &thread).await.unwrap();
    let (mut first, mut second) = (db.begin().await, db.begin().await);
    let (role, state) = (ChatRole::User, ChatMessageState::Whole);
    conversations::append_message(&mut first, thread.id, role, "one", state, NOW).await.unwrap();
    let later = async {
        conversations::append_message(&mut second, thread.id, role, "two", state, NOW)
            .await
            .unwrap();
        second.commit().await.unwrap();
    };
    let earlier = async {
        // The other one waits for this one, and has looked at what was said already.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while db.number(waits).await == 0 {}
        first.commit().await.unwrap();
    };
    tokio::join!(later, earlier);
    let said = |number: i64, content: &str| ChatMessageRecord {
        number,
        role,
        content: content.into(),
        state,
        created_at: NOW,
    };
    let messages = conversations::list_thread_messages(&mut conn, thread.id).await.unwrap();
    assert_eq!(messages, [said(1, "one"), said(2, "two")]);
}
