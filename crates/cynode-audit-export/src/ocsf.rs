//! Audit records as events of the Open Cybersecurity Schema Framework. The whole record is in `unmapped`, so that a receiver can verify
//! its hash.

use cynode_audit::{AgentFacts, AuditCheckpoint, AuditEntry, AuditRecord, Outcome, Verdict};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use crate::EventDetail;

/// Version of the schema.
pub const OCSF_VERSION: &str = "1.5.0";

/// Class of an event: its number, and the number of what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EventClass {
    class: u32,
    activity: u32,
}

impl EventClass {
    const ACCOUNT_CHANGE: u32 = 3001;
    const AUTHENTICATION: u32 = 3002;
    const BASE_EVENT: Self = Self { class: 0, activity: 99 };
    /// A call of a tool: API Activity, other.
    const API_CALL: Self = Self { class: 6003, activity: 99 };

    /// Returns the class of a privileged event: Authentication, Account Change or Entity Management.
    fn of_event(kind: &str) -> Self {
        let (subject, change) = kind.split_once('.').unwrap_or((kind, ""));
        match (subject, change) {
            ("session", "started") | ("login" | "provider_login", _) | ("break_glass", "used") => {
                Self { class: 3002, activity: 1 }
            }
            ("session", "ended") => Self { class: 3002, activity: 2 },
            ("user", "created") => Self { class: 3001, activity: 1 },
            ("user", _) => Self { class: 3001, activity: 99 },
            // MFA Factor Enable and MFA Factor Disable.
            ("second_factor", "enrolled") => Self { class: 3001, activity: 10 },
            ("second_factor", "deleted") => Self { class: 3001, activity: 11 },
            (_, "created" | "issued" | "installed" | "joined" | "bootstrapped") => {
                Self { class: 3004, activity: 1 }
            }
            (_, "deleted" | "removed" | "revoked" | "member_removed" | "retired") => {
                Self { class: 3004, activity: 4 }
            }
            _ => Self { class: 3004, activity: 3 },
        }
    }

    /// Returns the fields that every event has.
    fn to_fields(self, uid: &str, at: OffsetDateTime) -> Map<String, Value> {
        let Self { class, activity } = self;
        let mut fields = Map::new();
        fields.insert("class_uid".into(), class.into());
        fields.insert("category_uid".into(), (class / 1000).into());
        fields.insert("activity_id".into(), activity.into());
        fields.insert("type_uid".into(), (class * 100 + activity).into());
        let millis = i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX);
        fields.insert("time".into(), millis.into());
        let metadata = json!({
            "version": OCSF_VERSION,
            "uid": uid,
            "log_name": "audit",
            "product": {
                "name": "CyNode",
                "vendor_name": "CyNode",
                "version": env!("CARGO_PKG_VERSION"),
            },
        });
        fields.insert("metadata".into(), metadata);
        fields
    }
}

/// Returns the event of a record.
pub fn record_event(record: &AuditRecord, detail: Option<&EventDetail>) -> Value {
    let entry = &record.entry;
    let class = if entry.method.starts_with("events/") {
        EventClass::of_event(&entry.reason)
    } else {
        EventClass::API_CALL
    };
    let uid = format!("{}/{}", record.chain, record.seq);
    let mut fields = class.to_fields(&uid, entry.at);
    let (severity, name) =
        if entry.decision == Verdict::Allow { (1, "Informational") } else { (3, "Medium") };
    fields.insert("severity_id".into(), severity.into());
    fields.insert("severity".into(), name.into());
    let (status_id, status) = status_of(entry);
    fields.insert("status_id".into(), status_id.into());
    fields.insert("status".into(), status.into());
    fields.insert("status_code".into(), entry.reason.clone().into());
    fields.insert("message".into(), describe_entry(entry).into());
    if let Some(agent) = &entry.agent {
        fields.insert("actor".into(), to_actor(agent));
    }
    if class == EventClass::API_CALL {
        let operation = entry.tool.as_deref().unwrap_or(&entry.method);
        let api = json!({
            "operation": operation,
            "request": { "uid": entry.call },
            "service": { "name": "cynode-gateway", "uid": entry.server },
        });
        fields.insert("api".into(), api);
        fields.insert("src_endpoint".into(), json!({ "uid": entry.node, "name": "agent" }));
        fields.insert("duration".into(), (entry.duration_us / 1000).into());
    } else {
        let entity = json!({ "type": entry.reason.split('.').next(), "uid": entry.call });
        fields.insert("entity".into(), entity);
        if matches!(class.class, EventClass::ACCOUNT_CHANGE | EventClass::AUTHENTICATION) {
            insert_account_fields(&mut fields, entry, detail, class);
        }
    }
    fields.insert("unmapped".into(), json!({ "record": record }));
    Value::Object(fields)
}

/// Inserts the fields that the classes of accounts and logins require: the user whose account changes or who logs in, the service, and
/// where a login came from. A record has the actor only; a login has none.
fn insert_account_fields(
    fields: &mut Map<String, Value>,
    entry: &AuditEntry,
    detail: Option<&EventDetail>,
    class: EventClass,
) {
    let actor = entry.agent.as_ref().and_then(|agent| agent.user);
    let user = match detail.and_then(|detail| detail.subject).or(actor) {
        Some(user) => json!({ "uid": user, "type_id": 1, "type": "User" }),
        None => json!({ "name": "unknown", "type_id": 0, "type": "Unknown" }),
    };
    fields.insert("user".into(), user);
    if class.class == EventClass::AUTHENTICATION {
        fields.insert("service".into(), json!({ "name": "cynode" }));
        if let Some(source) = detail.and_then(|detail| detail.source) {
            fields.insert("src_endpoint".into(), json!({ "ip": source }));
        }
    }
}

/// Returns the event of a signed head.
pub fn head_event(head: &AuditCheckpoint, registry_head: &str) -> Value {
    let uid = format!("{}/head/{}", head.chain, head.size);
    let mut fields = EventClass::BASE_EVENT.to_fields(&uid, head.at);
    fields.insert("severity_id".into(), 1.into());
    fields.insert("severity".into(), "Informational".into());
    fields.insert("status_id".into(), 1.into());
    fields.insert("status".into(), "Success".into());
    let message = format!("signed head of {} audit records of the chain {}", head.size, head.chain);
    fields.insert("message".into(), message.into());
    let unmapped = json!({ "checkpoint": head, "registry_head": registry_head });
    fields.insert("unmapped".into(), unmapped);
    Value::Object(fields)
}

fn status_of(entry: &AuditEntry) -> (u32, &'static str) {
    match (entry.decision, entry.outcome) {
        (Verdict::Deny, _) => (2, "Failure"),
        (Verdict::NeedsApproval, _) | (Verdict::Allow, None) => (99, "Other"),
        (Verdict::Allow, Some(Outcome::Success)) => (1, "Success"),
        (Verdict::Allow, Some(_)) => (2, "Failure"),
    }
}

fn describe_entry(entry: &AuditEntry) -> String {
    let what = entry.tool.as_deref().unwrap_or(&entry.method);
    let outcome = entry.outcome.map_or("pending", Outcome::as_str);
    format!("{what}: {} ({}), {outcome}", entry.decision.as_str(), entry.reason)
}

fn to_actor(agent: &AgentFacts) -> Value {
    let token = (!agent.token.is_nil()).then_some(agent.token);
    json!({
        "user": { "uid": agent.user, "type": agent.kind },
        "session": { "uid": token },
        "app_name": agent.role,
    })
}

#[cfg(test)]
mod tests {
    use cynode_audit::Phase;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn privileged_events_have_the_class_of_their_kind() {
        let class = |kind: &str| {
            let EventClass { class, activity } = EventClass::of_event(kind);
            (class, activity)
        };
        assert_eq!(class("session.started"), (3002, 1));
        assert_eq!(class("login.refused"), (3002, 1));
        assert_eq!(class("provider_login.refused"), (3002, 1));
        assert_eq!(class("break_glass.used"), (3002, 1));
        assert_eq!(class("break_glass.issued"), (3004, 1));
        assert_eq!(class("second_factor.enrolled"), (3001, 10));
        assert_eq!(class("second_factor.deleted"), (3001, 11));
        assert_eq!(class("session.ended"), (3002, 2));
        assert_eq!(class("user.created"), (3001, 1));
        assert_eq!(class("user.updated"), (3001, 99));
        assert_eq!(class("project.deleted"), (3004, 4));
        assert_eq!(class("api_key.created"), (3004, 1));
        assert_eq!(class("setting.set"), (3004, 3));
    }

    #[test]
    fn logins_and_changes_of_accounts_name_the_user_and_logins_their_source() {
        let (actor, subject) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let event = |kind: &str, by: Option<Uuid>, detail: Option<EventDetail>| {
            let record =
                AuditRecord::chain_entry(Uuid::nil(), 0, [0; 32], privileged_entry(kind, by));
            let event = record_event(&record, detail.as_ref());
            (event["user"]["uid"].clone(), event["src_endpoint"].clone())
        };
        let detail = EventDetail { subject: Some(subject), source: "192.0.2.7".parse().ok() };
        assert_eq!(
            event("session.started", None, Some(detail.clone())),
            (json!(subject), json!({ "ip": "192.0.2.7" }))
        );
        assert_eq!(event("user.updated", Some(actor), Some(detail)), (json!(subject), Value::Null));
        assert_eq!(event("user.updated", Some(actor), None), (json!(actor), Value::Null));
        assert_eq!(event("login.refused", None, None), (Value::Null, Value::Null));
        let nobody = AuditRecord::chain_entry(
            Uuid::nil(),
            0,
            [0; 32],
            privileged_entry("login.refused", None),
        );
        assert_eq!(record_event(&nobody, None)["user"]["name"], "unknown");
    }

    fn privileged_entry(kind: &str, user: Option<Uuid>) -> AuditEntry {
        AuditEntry {
            call: Uuid::nil(),
            at: OffsetDateTime::UNIX_EPOCH,
            phase: Phase::Decision,
            decision: Verdict::Allow,
            reason: kind.to_owned(),
            rules: Vec::new(),
            shadow: Vec::new(),
            outcome: Some(Outcome::Success),
            agent: Some(AgentFacts {
                token: Uuid::nil(),
                kind: "user".to_owned(),
                role: "user".to_owned(),
                user,
                project: None,
                task: None,
                run: None,
                job: None,
                profile: None,
            }),
            method: "events/privileged".to_owned(),
            tool: None,
            definition: None,
            server: None,
            node: None,
            policy: [0; 32],
            catalogue: [0; 32],
            trace: "0".repeat(32),
            arguments: None,
            arguments_size: 0,
            result: None,
            result_size: 0,
            duration_us: 0,
        }
    }
}
