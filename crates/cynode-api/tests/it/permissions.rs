//! Who may do what: every endpoint of the OpenAPI document is called by nobody and by somebody too weak.

use std::collections::BTreeSet;

use cynode_api::document::{
    IDEMPOTENCY_EXEMPT_ENDPOINTS, NODE_JOIN_ENDPOINTS, PUBLIC_ENDPOINTS, path_operations,
};
use cynode_app::{
    identity::service_tokens::ServiceKind,
    tools::approvals::{self, ApprovalOutcome, ApprovalRequest},
};
use cynode_core::{
    ids::{CallId, ProjectId},
    roles::UserRole,
};
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

/// Who is just too weak for an endpoint, and what that caller is told.
enum Weak {
    /// A user without any role is refused.
    WithoutRole(u16),
    /// A viewer of the installation is refused.
    Viewer,
    /// An operator of the installation is refused.
    Operator,
    /// Every user may, for themselves; `a_list_of_ones_own_holds_nothing_of_others` and the tests of
    /// accounts say that it ends there.
    OwnOnly,
}

struct Case {
    method: &'static str,
    /// The path in the document.
    path: &'static str,
    /// The path to call; `{user}`, `{group}` and `{task}` are filled in.
    call: &'static str,
    body: Value,
    weak: Weak,
}

/// A node that is not there: who may not look is not told so.
const NODE: &str = "/v1/nodes/nod_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

/// A pull request, as the document names it.
const PULL_REQUEST: &str = "/v1/pull-requests/{pull_request}";
/// A profile of the installation.
const PROFILE: &str = "/v1/profiles/{name}";
/// An ingest that is not there: who may not look is not told so. `memory_ingests` has a viewer cancel one that is.
const INGEST: &str = "/v1/memory-ingests/ing_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
/// A schedule of the project.
const SCHEDULE: &str = "/v1/schedules/{schedule}";
/// A channel of the admin.
const CHANNEL: &str = "/v1/notification-channels/{channel}";
const MEMORY: &str = "/v1/memories/{memory}";

#[expect(clippy::too_many_lines, reason = "one row for each endpoint")]
fn cases() -> Vec<Case> {
    use Weak::{Operator, OwnOnly, Viewer, WithoutRole};
    let case = |method, path, call, body, weak| Case { method, path, call, body, weak };
    let value = json!({ "value": "x", "expected_version": 0 });
    let key = "/v1/preferences/{key}";
    vec![
        case("get", "/metrics", "/metrics", json!(null), WithoutRole(403)),
        case("delete", "/v1/sessions/current", "/v1/sessions/current", json!(null), OwnOnly),
        case("get", "/v1/me", "/v1/me", json!(null), OwnOnly),
        case(
            "put",
            "/v1/me/password",
            "/v1/me/password",
            json!({ "old_password": "x", "new_password": "long enough!" }),
            OwnOnly,
        ),
        case("get", "/v1/me/second-factor", "/v1/me/second-factor", json!(null), OwnOnly),
        case("post", "/v1/me/second-factor", "/v1/me/second-factor", json!({}), OwnOnly),
        case(
            "post",
            "/v1/me/second-factor/confirm",
            "/v1/me/second-factor/confirm",
            json!({ "code": "000000" }),
            OwnOnly,
        ),
        case(
            "post",
            "/v1/me/second-factor/verify",
            "/v1/me/second-factor/verify",
            json!({ "code": "000000" }),
            OwnOnly,
        ),
        case(
            "post",
            "/v1/me/second-factor/recovery-codes",
            "/v1/me/second-factor/recovery-codes",
            json!({ "code": "000000" }),
            OwnOnly,
        ),
        case(
            "post",
            "/v1/me/second-factor/delete",
            "/v1/me/second-factor/delete",
            json!({ "code": "000000" }),
            OwnOnly,
        ),
        case("post", "/v1/scim-tokens", "/v1/scim-tokens", json!({ "name": "x" }), Operator),
        case("get", "/v1/scim-tokens", "/v1/scim-tokens", json!(null), Operator),
        case(
            "delete",
            "/v1/scim-tokens/{scim_token}",
            "/v1/scim-tokens/sct_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            Operator,
        ),
        case("get", "/v1/sessions", "/v1/sessions?user_id={user}", json!(null), Operator),
        case(
            "delete",
            "/v1/sessions/{session}",
            "/v1/sessions/ses_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/sessions/current/provider-logout",
            "/v1/sessions/current/provider-logout",
            json!(null),
            OwnOnly,
        ),
        case("get", "/v1/me/identities", "/v1/me/identities", json!(null), OwnOnly),
        case(
            "post",
            "/v1/me/identities",
            "/v1/me/identities",
            json!({ "provider": "company" }),
            OwnOnly,
        ),
        case(
            "delete",
            "/v1/me/identities/{identity}",
            "/v1/me/identities/xid_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/users/{user}/identities",
            "/v1/users/{user}/identities",
            json!(null),
            Operator,
        ),
        case(
            "delete",
            "/v1/users/{user}/identities/{identity}",
            "/v1/users/{user}/identities/xid_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            Operator,
        ),
        case("get", "/v1/identity-providers", "/v1/identity-providers", json!(null), Operator),
        case(
            "put",
            "/v1/identity-providers/{name}",
            "/v1/identity-providers/company",
            json!({ "display_name": "x", "issuer": "https://id.example.com", "client_id": "x" }),
            Operator,
        ),
        case(
            "delete",
            "/v1/identity-providers/{name}",
            "/v1/identity-providers/company",
            json!(null),
            Operator,
        ),
        case(
            "post",
            "/v1/identity-providers/{name}/test",
            "/v1/identity-providers/company/test",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/device-logins/{code}",
            "/v1/device-logins/BCDF-GHJK",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/device-logins/{code}",
            "/v1/device-logins/BCDF-GHJK",
            json!({ "approved": true }),
            WithoutRole(404),
        ),
        case("post", "/v1/api-keys", "/v1/api-keys", json!({ "name": "ci" }), OwnOnly),
        case("get", "/v1/api-keys", "/v1/api-keys", json!(null), OwnOnly),
        case(
            "delete",
            "/v1/api-keys/{api_key}",
            "/v1/api-keys/{api_key}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/users",
            "/v1/users",
            json!({ "handle": "x", "display_name": "x", "password": "long enough!" }),
            Operator,
        ),
        case("get", "/v1/users", "/v1/users", json!(null), WithoutRole(403)),
        case("get", "/v1/users/{user}", "/v1/users/{user}", json!(null), WithoutRole(403)),
        case("patch", "/v1/users/{user}", "/v1/users/{user}", json!({ "active": false }), Operator),
        case("post", "/v1/groups", "/v1/groups", json!({ "name": "x" }), Operator),
        case("get", "/v1/groups", "/v1/groups", json!(null), WithoutRole(403)),
        case(
            "patch",
            "/v1/groups/{group}",
            "/v1/groups/{group}",
            json!({ "role": "admin" }),
            Operator,
        ),
        case("post", "/v1/projects", "/v1/projects", json!({ "slug": "x", "title": "x" }), Viewer),
        case("get", "/v1/projects", "/v1/projects", json!(null), OwnOnly),
        case("get", "/v1/projects/{project}", "/v1/projects/web", json!(null), WithoutRole(404)),
        case(
            "patch",
            "/v1/projects/{project}",
            "/v1/projects/web",
            json!({ "title": "x" }),
            Operator,
        ),
        case("delete", "/v1/projects/{project}", "/v1/projects/web", json!(null), Operator),
        case(
            "post",
            "/v1/projects/{project}/archive",
            "/v1/projects/web/archive",
            json!(null),
            Operator,
        ),
        case(
            "post",
            "/v1/projects/{project}/unarchive",
            "/v1/projects/web/unarchive",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/projects/{project}/members",
            "/v1/projects/web/members",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "put",
            "/v1/projects/{project}/members/{user}",
            "/v1/projects/web/members/{user}",
            json!({ "role": "admin" }),
            Operator,
        ),
        case(
            "delete",
            "/v1/projects/{project}/members/{user}",
            "/v1/projects/web/members/{user}",
            json!(null),
            Operator,
        ),
        case(
            "put",
            "/v1/projects/{project}/groups/{group}",
            "/v1/projects/web/groups/{group}",
            json!({ "role": "admin" }),
            Operator,
        ),
        case("get", "/v1/settings", "/v1/settings", json!(null), WithoutRole(403)),
        case(
            "get",
            "/v1/settings/{key}",
            "/v1/settings/models.default",
            json!(null),
            WithoutRole(403),
        ),
        case("put", "/v1/settings/{key}", "/v1/settings/models.default", value.clone(), Operator),
        case(
            "delete",
            "/v1/settings/{key}",
            "/v1/settings/models.default?expected_version=1",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/settings/{key}/history",
            "/v1/settings/models.default/history",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "get",
            "/v1/preferences",
            "/v1/preferences?scope_type=system",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "get",
            key,
            "/v1/preferences/standards.b?scope_type=system",
            json!(null),
            WithoutRole(403),
        ),
        case("put", key, "/v1/preferences/standards.b?scope_type=system", value, Operator),
        case(
            "delete",
            key,
            "/v1/preferences/standards.b?scope_type=system&expected_version=1",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/preferences/{key}/history",
            "/v1/preferences/standards.b/history?scope_type=system",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "get",
            "/v1/effective-preferences",
            "/v1/effective-preferences?task_id={task}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/policies",
            "/v1/policies?scope_type=system",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "put",
            "/v1/policies/{key}",
            "/v1/policies/workflow.approve_plan?scope_type=system",
            json!({ "value": true }),
            Operator,
        ),
        case(
            "delete",
            "/v1/policies/{key}",
            "/v1/policies/workflow.approve_plan?scope_type=system",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/effective-policies",
            "/v1/effective-policies?task_id={task}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/tasks",
            "/v1/tasks",
            json!({ "project_id": "{project}", "description": "x" }),
            Viewer,
        ),
        case("get", "/v1/tasks", "/v1/tasks?project=web", json!(null), WithoutRole(404)),
        case("get", "/v1/tasks/{task}", "/v1/tasks/{task}", json!(null), WithoutRole(404)),
        case("post", "/v1/tasks/{task}/cancel", "/v1/tasks/{task}/cancel", json!(null), Viewer),
        case(
            "post",
            "/v1/tasks/{task}/instructions",
            "/v1/tasks/{task}/instructions",
            json!({ "kind": "pause" }),
            Viewer,
        ),
        case(
            "post",
            "/v1/tasks/{task}/approve",
            "/v1/tasks/{task}/approve",
            json!({ "approved": true }),
            Viewer,
        ),
        case(
            "post",
            "/v1/tasks/{task}/answer",
            "/v1/tasks/{task}/answer",
            json!({ "text": "yes" }),
            Viewer,
        ),
        case(
            "get",
            "/v1/tasks/{task}/timeline",
            "/v1/tasks/{task}/timeline",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/tasks/{task}/diff",
            "/v1/tasks/{task}/diff",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/tasks/{task}/retry",
            "/v1/tasks/{task}/retry",
            json!({ "project_id": "{project}", "description": "x" }),
            Viewer,
        ),
        case(
            "get",
            "/v1/tasks/{task}/evidence",
            "/v1/tasks/{task}/evidence",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/schedules",
            "/v1/schedules",
            json!({ "project_id": "{project}", "name": "x", "trigger": { "kind": "cron", "expression": "0 9 * * *" },
                "action": { "kind": "words", "text": "x" } }),
            Viewer,
        ),
        case("get", "/v1/schedules", "/v1/schedules?project=web", json!(null), WithoutRole(404)),
        case("get", SCHEDULE, SCHEDULE, json!(null), WithoutRole(404)),
        case(
            "patch",
            SCHEDULE,
            SCHEDULE,
            json!({ "expected_version": 1, "enabled": false }),
            Viewer,
        ),
        case(
            "post",
            "/v1/schedules/{schedule}/run",
            "/v1/schedules/{schedule}/run",
            json!(null),
            Viewer,
        ),
        case("delete", SCHEDULE, SCHEDULE, json!(null), Viewer),
        case("get", "/v1/events", "/v1/events?task_id={task}", json!(null), WithoutRole(404)),
        case(
            "post",
            "/v1/agent-tokens",
            "/v1/agent-tokens",
            json!({ "role": "developer", "project_id": "{project}", "task_id": "{task}" }),
            Viewer,
        ),
        case(
            "get",
            "/v1/agent-tokens",
            "/v1/agent-tokens?project_id={project}",
            json!(null),
            Viewer,
        ),
        case("delete", "/v1/agent-tokens/{token}", "/v1/agent-tokens/{agent}", json!(null), Viewer),
        case("get", "/v1/tools", "/v1/tools", json!(null), OwnOnly),
        case("get", "/v1/tool-stats", "/v1/tool-stats", json!(null), OwnOnly),
        case(
            "put",
            "/v1/tools/{name}",
            "/v1/tools/db.task.get",
            json!({ "enabled": false }),
            Operator,
        ),
        case("get", "/v1/allowlists", "/v1/allowlists", json!(null), OwnOnly),
        case("get", "/v1/providers", "/v1/providers", json!(null), WithoutRole(403)),
        case(
            "put",
            "/v1/providers/{name}",
            "/v1/providers/tape",
            json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" }),
            Operator,
        ),
        case("delete", "/v1/providers/{name}", "/v1/providers/tape", json!(null), Operator),
        case(
            "post",
            "/v1/providers/{name}/keys",
            "/v1/providers/tape/keys",
            json!({ "label": "second", "key": "k" }),
            Operator,
        ),
        case(
            "delete",
            "/v1/providers/{name}/keys/{key}",
            "/v1/providers/tape/keys/{provider_key}",
            json!(null),
            Operator,
        ),
        case("get", "/v1/model-registry", "/v1/model-registry", json!(null), OwnOnly),
        case(
            "get",
            "/v1/model-choices",
            "/v1/model-choices?task_id={task}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "put",
            "/v1/model-registry/{id}",
            "/v1/model-registry/small",
            json!({ "context_tokens": 1, "max_output_tokens": 1, "routes": [{ "provider": "tape", "upstream": "m" }] }),
            Operator,
        ),
        case(
            "delete",
            "/v1/model-registry/{id}",
            "/v1/model-registry/small",
            json!(null),
            Operator,
        ),
        case("get", "/v1/budgets", "/v1/budgets", json!(null), Operator),
        case(
            "put",
            "/v1/budgets",
            "/v1/budgets",
            json!({ "scope_type": "installation", "period": "day", "max_tokens": 1 }),
            Operator,
        ),
        case("delete", "/v1/budgets/{budget}", "/v1/budgets/{budget}", json!(null), Operator),
        case(
            "get",
            "/v1/tasks/{task}/park",
            "/v1/tasks/{task}/park",
            json!(null),
            WithoutRole(404),
        ),
        case("delete", "/v1/tasks/{task}/park", "/v1/tasks/{task}/park", json!(null), Viewer),
        case("get", "/v1/usage", "/v1/usage", json!(null), OwnOnly),
        case("get", "/v1/usage/series", "/v1/usage/series", json!(null), OwnOnly),
        case("post", "/v1/nodes/join-tokens", "/v1/nodes/join-tokens", json!({}), Operator),
        case("get", "/v1/nodes", "/v1/nodes", json!(null), WithoutRole(403)),
        case("get", "/v1/readiness", "/v1/readiness", json!(null), WithoutRole(403)),
        case("get", "/v1/doctor", "/v1/doctor", json!(null), Operator),
        case("get", "/v1/certificates", "/v1/certificates", json!(null), Operator),
        case("get", "/v1/processes", "/v1/processes", json!(null), Operator),
        case("get", "/v1/backups", "/v1/backups", json!(null), Operator),
        case(
            "get",
            "/v1/tasks/{task}/artifacts",
            "/v1/tasks/{task}/artifacts",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/artifacts/{artifact}",
            "/v1/artifacts/art_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/tasks/{task}/evidence/rerun",
            "/v1/tasks/{task}/evidence/rerun",
            json!(null),
            Viewer,
        ),
        case(
            "post",
            "/v1/task-estimates",
            "/v1/task-estimates",
            json!({ "project_id": "{project}", "description": "x" }),
            Viewer,
        ),
        case(
            "put",
            "/v1/inbox/{item}/presence",
            "/v1/inbox/{task}/presence",
            json!({}),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/jobs/{job}/events/stream",
            "/v1/jobs/job_0192d5c8b6f07cc1a1a3c2b4d5e6f708/events/stream",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/nodes/{node}", NODE, json!(null), WithoutRole(403)),
        case("patch", "/v1/nodes/{node}", NODE, json!({ "draining": true }), Operator),
        case("delete", "/v1/nodes/{node}", NODE, json!(null), Operator),
        case(
            "get",
            "/v1/jobs/{job}/events",
            "/v1/jobs/job_0192d5c8b6f07cc1a1a3c2b4d5e6f708/events",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/projects/{project}/environments",
            "/v1/projects/web/environments",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/projects/{project}/environments",
            "/v1/projects/web/environments",
            json!({ "spec": { "setup": ["make"] } }),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/environments/accepted",
            "/v1/projects/web/environments/accepted",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/projects/{project}/environments/detect",
            "/v1/projects/web/environments/detect",
            json!({}),
            Viewer,
        ),
        case(
            "post",
            "/v1/projects/{project}/environments/try",
            "/v1/projects/web/environments/try",
            json!({}),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/environments/{version}",
            "/v1/projects/web/environments/1",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/projects/{project}/environments/{version}/accept",
            "/v1/projects/web/environments/1/accept",
            json!({}),
            Operator,
        ),
        case(
            "post",
            "/v1/projects/{project}/environments/{version}/reject",
            "/v1/projects/web/environments/1/reject",
            json!({}),
            Operator,
        ),
        case(
            "get",
            "/v1/projects/{project}/secrets",
            "/v1/projects/web/secrets",
            json!(null),
            Operator,
        ),
        case(
            "put",
            "/v1/projects/{project}/secrets/{secret}",
            "/v1/projects/web/secrets/token",
            json!({ "value": "long enough" }),
            Operator,
        ),
        case(
            "delete",
            "/v1/projects/{project}/secrets/{secret}",
            "/v1/projects/web/secrets/token",
            json!(null),
            Operator,
        ),
        case(
            "post",
            "/v1/projects/{project}/memories",
            "/v1/projects/web/memories",
            json!({ "kind": "fact", "title": "x", "content": "x" }),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/memories",
            "/v1/projects/web/memories",
            json!(null),
            WithoutRole(404),
        ),
        case("get", MEMORY, MEMORY, json!(null), WithoutRole(404)),
        case("patch", MEMORY, MEMORY, json!({ "pinned": true }), Viewer),
        case("delete", MEMORY, MEMORY, json!(null), Viewer),
        case(
            "post",
            "/v1/memories/{memory}/accept",
            "/v1/memories/{memory}/accept",
            json!(null),
            Viewer,
        ),
        case(
            "post",
            "/v1/memories/{memory}/reject",
            "/v1/memories/{memory}/reject",
            json!(null),
            Viewer,
        ),
        case(
            "post",
            "/v1/projects/{project}/memories/search",
            "/v1/projects/web/memories/search",
            json!({ "query": "x" }),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/projects/{project}/memories/forget",
            "/v1/projects/web/memories/forget",
            json!({ "all": true }),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/memories/export",
            "/v1/projects/web/memories/export",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/projects/{project}/packages",
            "/v1/projects/web/packages",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/projects/{project}/remote",
            "/v1/projects/web/remote",
            json!(null),
            Operator,
        ),
        case(
            "put",
            "/v1/projects/{project}/remote",
            "/v1/projects/web/remote",
            json!({ "forge": "github", "url": "https://forge.example/a/b", "repository": "a/b", "default_branch": "main",
                "credential": "token" }),
            Operator,
        ),
        case(
            "delete",
            "/v1/projects/{project}/remote",
            "/v1/projects/web/remote",
            json!(null),
            Operator,
        ),
        case(
            "get",
            "/v1/projects/{project}/remote/issues",
            "/v1/projects/web/remote/issues",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/projects/{project}/repository",
            "/v1/projects/web/repository",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "put",
            "/v1/projects/{project}/repository",
            "/v1/projects/web/repository",
            json!(null),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/git/info/refs",
            "/v1/projects/web/git/info/refs?service=git-upload-pack",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/projects/{project}/git/git-upload-pack",
            "/v1/projects/web/git/git-upload-pack",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/usage/calls", "/v1/usage/calls", json!(null), OwnOnly),
        case(
            "get",
            "/v1/projects/{project}/pull-requests",
            "/v1/projects/web/pull-requests",
            json!(null),
            WithoutRole(404),
        ),
        case("get", PULL_REQUEST, PULL_REQUEST, json!(null), WithoutRole(404)),
        case(
            "get",
            "/v1/pull-requests/{pull_request}/diff",
            "/v1/pull-requests/{pull_request}/diff",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/pull-requests/{pull_request}/files",
            "/v1/pull-requests/{pull_request}/files",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/pull-requests/{pull_request}/comments",
            "/v1/pull-requests/{pull_request}/comments",
            json!({ "body": "Hm." }),
            Viewer,
        ),
        case(
            "post",
            "/v1/pull-requests/{pull_request}/reviews",
            "/v1/pull-requests/{pull_request}/reviews",
            json!({ "verdict": "approve" }),
            Viewer,
        ),
        case(
            "post",
            "/v1/pull-requests/{pull_request}/merge",
            "/v1/pull-requests/{pull_request}/merge",
            json!(null),
            Viewer,
        ),
        case(
            "post",
            "/v1/pull-requests/{pull_request}/close",
            "/v1/pull-requests/{pull_request}/close",
            json!(null),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/handoffs",
            "/v1/projects/web/handoffs",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/handoffs/{handoff}",
            "/v1/handoffs/hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/handoffs/{handoff}/decisions/{step}/prompt",
            "/v1/handoffs/hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708/decisions/0/prompt",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/handoffs/{handoff}/decisions/{step}/replays",
            "/v1/handoffs/hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708/decisions/0/replays",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/handoffs/{handoff}/decisions/{step}/replays",
            "/v1/handoffs/hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708/decisions/0/replays",
            json!({}),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/tasks/{task}/reports",
            "/v1/tasks/{task}/reports",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/chat/threads", "/v1/chat/threads", json!(null), OwnOnly),
        case(
            "get",
            "/v1/chat/threads/{thread}/messages",
            "/v1/chat/threads/thr_0192d5c8b6f07cc1a1a3c2b4d5e6f708/messages",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/skills",
            "/v1/skills",
            json!({ "project_id": "{project}", "name": "x", "description": "x", "body": "x" }),
            Viewer,
        ),
        case(
            "post",
            "/v1/projects/{project}/memory-ingests",
            "/v1/projects/web/memory-ingests",
            json!({ "kind": "files", "name": "docs", "files": [{ "path": "a.md", "text": "x" }] }),
            Viewer,
        ),
        case(
            "get",
            "/v1/projects/{project}/memory-ingests",
            "/v1/projects/web/memory-ingests",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/memory-ingests/{ingest}", INGEST, json!(null), WithoutRole(404)),
        case(
            "post",
            "/v1/memory-ingests/{ingest}/cancel",
            "/v1/memory-ingests/ing_0192d5c8b6f07cc1a1a3c2b4d5e6f708/cancel",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/profiles", "/v1/profiles", json!(null), WithoutRole(403)),
        case(
            "post",
            "/v1/profiles",
            "/v1/profiles",
            json!({ "name": "other", "spec": {} }),
            Operator,
        ),
        case("get", PROFILE, "/v1/profiles/own", json!(null), WithoutRole(403)),
        case(
            "put",
            PROFILE,
            "/v1/profiles/own",
            json!({ "expected_version": 1, "spec": { "tools": ["*"] } }),
            Operator,
        ),
        case("delete", PROFILE, "/v1/profiles/own", json!(null), Operator),
        case(
            "get",
            "/v1/profiles/{name}/versions",
            "/v1/profiles/own/versions",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "post",
            "/v1/profiles/{name}/check",
            "/v1/profiles/own/check",
            json!({ "questions": [{ "kind": "tool", "name": "web.fetch" }] }),
            WithoutRole(403),
        ),
        case("get", "/v1/skills", "/v1/skills?project=web", json!(null), WithoutRole(404)),
        case("get", "/v1/skills/{skill}", "/v1/skills/{skill}", json!(null), WithoutRole(404)),
        case(
            "put",
            "/v1/skills/{skill}",
            "/v1/skills/{skill}",
            json!({ "expected_version": 1, "description": "x", "body": "x" }),
            Viewer,
        ),
        case("delete", "/v1/skills/{skill}", "/v1/skills/{skill}", json!(null), Viewer),
        case(
            "post",
            "/v1/skills/import",
            "/v1/skills/import",
            json!({ "project_id": "{project}",
                "files": [{ "path": "SKILL.md", "text": "---\nname: x\ndescription: x\n---\nx" }] }),
            Viewer,
        ),
        case(
            "get",
            "/v1/skills/{skill}/export",
            "/v1/skills/{skill}/export",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/skills/{skill}/versions",
            "/v1/skills/{skill}/versions",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "get",
            "/v1/skills/{skill}/versions/{version}",
            "/v1/skills/{skill}/versions/1",
            json!(null),
            WithoutRole(404),
        ),
        case("post", "/v1/reviews", "/v1/reviews", json!({ "skill_id": "{skill}" }), Viewer),
        case("get", "/v1/audit/verify", "/v1/audit/verify", json!(null), Operator),
        case(
            "get",
            "/v1/audit/{call}/proof",
            "/v1/audit/cal_0192d5c8b6f07cc1a1a3c2b4d5e6f708/proof",
            json!(null),
            WithoutRole(404),
        ),
        case("get", "/v1/audit/head", "/v1/audit/head", json!(null), WithoutRole(403)),
        case("get", "/v1/audit/sinks", "/v1/audit/sinks", json!(null), Operator),
        case(
            "put",
            "/v1/audit/sinks/{name}",
            "/v1/audit/sinks/siem",
            json!({ "target": { "kind": "syslog", "transport": "unix", "address": "/dev/log" } }),
            Operator,
        ),
        case("delete", "/v1/audit/sinks/{name}", "/v1/audit/sinks/some", json!(null), Operator),
        case("get", "/v1/keyring", "/v1/keyring", json!(null), Operator),
        case(
            "get",
            "/v1/audit/consistency",
            "/v1/audit/consistency?chain=chn_0192d5c8b6f07cc1a1a3c2b4d5e6f708&from=1",
            json!(null),
            WithoutRole(403),
        ),
        case("get", "/v1/audit/export", "/v1/audit/export", json!(null), WithoutRole(403)),
        case("get", "/v1/rules", "/v1/rules", json!(null), WithoutRole(403)),
        case(
            "post",
            "/v1/rules/backtest",
            "/v1/rules/backtest",
            json!({ "mode": "refuse", "text": "forbid (principal, action, resource);" }),
            WithoutRole(403),
        ),
        case(
            "post",
            "/v1/rules/check",
            "/v1/rules/check",
            json!({ "mode": "refuse", "text": "forbid (principal, action, resource);" }),
            WithoutRole(403),
        ),
        case("get", "/v1/rules/vocabulary", "/v1/rules/vocabulary", json!(null), WithoutRole(403)),
        case(
            "get",
            "/v1/rules/{name}/history",
            "/v1/rules/some/history",
            json!(null),
            WithoutRole(403),
        ),
        case(
            "put",
            "/v1/rules/{name}",
            "/v1/rules/none",
            json!({ "mode": "refuse", "text": "forbid (principal, action, resource);" }),
            Operator,
        ),
        case("delete", "/v1/rules/{name}", "/v1/rules/some", json!(null), Operator),
        case(
            "post",
            "/v1/policy/explain",
            "/v1/policy/explain",
            json!({ "agent_token_id": "{agent}", "tool": "help.overview" }),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/policy/explain-call",
            "/v1/policy/explain-call",
            json!({ "call_id": "cal_0192d5c8b6f07cc1a1a3c2b4d5e6f708" }),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/tool-servers",
            "/v1/tool-servers",
            json!({ "name": "inside", "scope": "both", "transport": { "type": "http", "url": "http://127.0.0.1:9/mcp" } }),
            Operator,
        ),
        case("get", "/v1/tool-servers", "/v1/tool-servers", json!(null), OwnOnly),
        case(
            "get",
            "/v1/tool-servers/{server}",
            "/v1/tool-servers/{server}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "patch",
            "/v1/tool-servers/{server}",
            "/v1/tool-servers/{server}",
            json!({ "enabled": false }),
            Operator,
        ),
        case(
            "delete",
            "/v1/tool-servers/{server}",
            "/v1/tool-servers/{server}",
            json!(null),
            Operator,
        ),
        case(
            "post",
            "/v1/tool-servers/{server}/refresh",
            "/v1/tool-servers/{server}/refresh",
            json!(null),
            Operator,
        ),
        case(
            "post",
            "/v1/tool-servers/{server}/accept",
            "/v1/tool-servers/{server}/accept",
            json!({ "tools": {} }),
            Operator,
        ),
        case(
            "put",
            "/v1/tool-servers/{server}/tools/{tool}/annotations",
            "/v1/tool-servers/{server}/tools/x/annotations",
            json!({ "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false }),
            Operator,
        ),
        case("get", "/v1/approvals", "/v1/approvals", json!(null), OwnOnly),
        case("get", "/v1/inbox", "/v1/inbox", json!(null), OwnOnly),
        case(
            "get",
            "/v1/approvals/{approval}",
            "/v1/approvals/{approval}",
            json!(null),
            WithoutRole(404),
        ),
        case(
            "post",
            "/v1/approvals/{approval}",
            "/v1/approvals/{approval}",
            json!({ "approved": true }),
            Viewer,
        ),
        case(
            "post",
            "/v1/approvals/{approval}/draft-rule",
            "/v1/approvals/{approval}/draft-rule",
            json!({ "approved": false }),
            WithoutRole(404),
        ),
        case("get", "/v1/audit", "/v1/audit", json!(null), WithoutRole(403)),
        case("get", "/v1/allowed-images", "/v1/allowed-images", json!(null), OwnOnly),
        case(
            "post",
            "/v1/allowed-images",
            "/v1/allowed-images",
            json!({ "image": "a:1" }),
            Operator,
        ),
        case("delete", "/v1/allowed-images", "/v1/allowed-images?image=a:1", json!(null), Operator),
        case(
            "post",
            "/v1/notification-channels",
            "/v1/notification-channels",
            json!({ "scope": "installation", "name": "x", "kind": "ntfy", "address": "https://ntfy.sh/x" }),
            Operator,
        ),
        case(
            "get",
            "/v1/notification-channels",
            "/v1/notification-channels?all=true",
            json!(null),
            Operator,
        ),
        case("get", CHANNEL, CHANNEL, json!(null), WithoutRole(404)),
        case("patch", CHANNEL, CHANNEL, json!({ "enabled": false }), WithoutRole(404)),
        case(
            "post",
            "/v1/notification-channels/{channel}/test",
            "/v1/notification-channels/{channel}/test",
            json!(null),
            WithoutRole(404),
        ),
        case("delete", CHANNEL, CHANNEL, json!(null), WithoutRole(404)),
        case("get", "/v1/web-push/key", "/v1/web-push/key", json!(null), OwnOnly),
        case(
            "post",
            "/v1/web-push/subscriptions",
            "/v1/web-push/subscriptions",
            json!({
                "name": "x", "endpoint": "https://push.example.com/x", "auth": "BTBZMqHH6r4Tts7J_aSIgg",
                "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            }),
            OwnOnly,
        ),
        case("get", "/v1/notifications", "/v1/notifications?all=true", json!(null), Operator),
        case(
            "post",
            "/v1/notifications/{notification}/replay",
            "/v1/notifications/ntf_0192d5c8b6f07cc1a1a3c2b4d5e6f708/replay",
            json!(null),
            WithoutRole(404),
        ),
    ]
}

/// A call of that agent that waits for a person.
async fn asked(app: &TestApp, project: ProjectId, agent: &str) -> String {
    let asked = ApprovalRequest {
        agent: agent.parse().unwrap(),
        project: Some(project),
        task: None,
        tool: "git.push".into(),
        arguments: [1; 32],
        policy: [2; 32],
        rules: vec!["some".into()],
    };
    let trace = app.app.environment().new_trace_id();
    let request = cynode_app::OperationRequest { caller: None, trace, attempt: None };
    let call: CallId = "cal_00000000000000000000000000000001".parse().unwrap();
    match approvals::obtain_approval(&app.app, &request, &asked, "{}", call).await.unwrap() {
        ApprovalOutcome::Waiting(approval) => approval.id.to_string(),
        other => panic!("{other:?}"),
    }
}

struct World {
    app: TestApp,
    admin: Client,
    fill: Vec<(&'static str, String)>,
}

impl World {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let project = app.project(&admin, "web").await;
        let task = json!({ "project_id": project, "description": "x" });
        let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
        let group =
            admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201).text("id");
        let key = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).json();
        let agent = json!({ "role": "developer", "project_id": project, "task_id": task });
        let agent = admin.post("/v1/agent-tokens", agent).await.expect(201).text("agent_token_id");
        let rule = json!({ "mode": "shadow", "text": "forbid (principal, action, resource);" });
        admin.put("/v1/rules/some", rule).await.expect(200);
        let sink =
            json!({ "target": { "kind": "syslog", "transport": "unix", "address": "/dev/log" } });
        admin.put("/v1/audit/sinks/some", sink).await.expect(200);
        let provider = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
        admin.put("/v1/providers/tape", provider).await.expect(200);
        let added = json!({ "label": "first", "key": "k" });
        let added = admin.post("/v1/providers/tape/keys", added).await.expect(201).text("key_id");
        let model = json!({ "context_tokens": 9, "max_output_tokens": 9, "routes": [{ "provider": "tape", "upstream": "m" }] });
        admin.put("/v1/model-registry/small", model).await.expect(200);
        let budget = json!({ "scope_type": "installation", "period": "total", "max_tokens": 9 });
        let budget = admin.put("/v1/budgets", budget).await.expect(200).text("budget_id");
        let server = json!({ "name": "own", "scope": "both", "allow_private": true,
            "transport": { "type": "http", "url": "http://127.0.0.1:9/mcp" } });
        let server = admin.post("/v1/tool-servers", server).await.expect(201).text("server_id");
        let approval = asked(&app, project, &agent).await;
        let offered = "
            INSERT INTO pull_requests (pull_request_id, project_id, task_id, number, forge, branch, base_branch, base_commit, head_commit,
                tree, title, body, state, opened_at, created_at, updated_at)
            SELECT '00000000-0000-0000-0000-000000000005', project_id, task_id, 1, 'local', 'cynode/x', 'main', repeat('a', 40),
                repeat('b', 40), repeat('c', 40), 'x', '', 'open', created_at, created_at, created_at
            FROM tasks";
        assert_eq!(app.db.execute(offered).await, 1);
        let channel = json!({ "name": "x", "kind": "ntfy", "address": "https://ntfy.sh/x" });
        let channel = admin.post("/v1/notification-channels", channel).await.expect(201).json();
        let channel = channel["channel"]["channel_id"].as_str().unwrap().to_owned();
        let skill =
            json!({ "project_id": project, "name": "own", "description": "x", "body": "x" });
        let skill = admin.post("/v1/skills", skill).await.expect(201).text("skill_id");
        let memory = json!({ "kind": "fact", "title": "own", "content": "x" });
        let memory = admin.post("/v1/projects/web/memories", memory).await.expect(201);
        let memory = memory.text("memory_id");
        let profile = json!({ "name": "own", "spec": {} });
        admin.post("/v1/profiles", profile).await.expect(201);
        let schedule = json!({ "project_id": project, "name": "own",
            "trigger": { "kind": "cron", "expression": "0 9 * * *" }, "action": { "kind": "words", "text": "x" } });
        let schedule = admin.post("/v1/schedules", schedule).await.expect(201).text("schedule_id");
        let fill = vec![
            ("{schedule}", schedule),
            ("{skill}", skill),
            ("{memory}", memory),
            ("{pull_request}", format!("pul_{:032}", 5)),
            ("{agent}", agent),
            ("{provider_key}", added),
            ("{budget}", budget),
            ("{server}", server),
            ("{approval}", approval),
            ("{channel}", channel),
            ("{project}", project.to_string()),
            ("{task}", task),
            ("{group}", group),
            ("{user}", admin.user.unwrap().to_string()),
            ("{api_key}", key["api_key"]["id"].as_str().unwrap().to_owned()),
        ];
        Self { app, admin, fill }
    }

    async fn call(&self, client: &Client, case: &Case) -> u16 {
        let fill = |text: &str| {
            self.fill.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
        };
        let body = (!case.body.is_null()).then(|| fill(&case.body.to_string()));
        let method = case.method.to_uppercase().parse().unwrap();
        // Some endpoints need to know the address that the client uses.
        let client = client.with_header("host", "localhost:12080");
        client.raw(method, &fill(case.call), body).await.status().as_u16()
    }

    /// What the whole database looks like, to see that a refused call changed nothing.
    async fn fingerprint(&self) -> i64 {
        self.app
            .db
            .number(
                "SELECT hashtextextended(concat(
                    (SELECT json_agg(t ORDER BY task_id) FROM tasks t),
                    (SELECT json_agg(p ORDER BY project_id) FROM projects p),
                    (SELECT json_agg(u ORDER BY user_id) FROM users u),
                    (SELECT json_agg(k ORDER BY api_key_id) FROM api_keys k),
                    (SELECT json_agg(t ORDER BY scim_token_id) FROM scim_tokens t),
                    (SELECT json_agg(t ORDER BY user_id) FROM totp_credentials t),
                    (SELECT json_agg(i ORDER BY name) FROM identity_providers i),
                    (SELECT count(*) FROM external_identities),
                    (SELECT count(*) FROM device_authorizations),
                    (SELECT json_agg(b ORDER BY bound_at, role) FROM role_bindings b),
                    (SELECT json_agg(m ORDER BY user_id) FROM project_members m),
                    (SELECT json_agg(s ORDER BY key) FROM system_settings s),
                    (SELECT json_agg(f ORDER BY key) FROM preferences f),
                    (SELECT json_agg(m ORDER BY key) FROM mandatory_policies m),
                    (SELECT json_agg(r ORDER BY task_id) FROM workflow_runs r),
                    (SELECT json_agg(l ORDER BY task_id) FROM workflow_leases l),
                    (SELECT json_agg(j ORDER BY job_id) FROM jobs j),
                    (SELECT json_agg(a ORDER BY agent_token_id) FROM agent_tokens a),
                    (SELECT json_agg(t ORDER BY name) FROM tool_overrides t),
                    (SELECT json_agg(g ORDER BY name) FROM policy_rules g),
                    (SELECT count(*) FROM policy_rule_versions),
                    (SELECT json_agg(s ORDER BY name) FROM tool_servers s),
                    (SELECT json_agg(a ORDER BY approval_id) FROM approvals a),
                    (SELECT json_agg(i ORDER BY image) FROM allowed_images i),
                    (SELECT json_agg(s ORDER BY name) FROM skills s),
                    (SELECT json_agg(m ORDER BY memory_id) FROM memories m),
                    (SELECT json_agg(p ORDER BY name) FROM profiles p),
                    (SELECT count(*) FROM profile_versions),
                    (SELECT json_agg(s ORDER BY name) FROM schedules s),
                    (SELECT count(*) FROM schedule_firings),
                    (SELECT count(*) FROM handoffs),
                    (SELECT epoch FROM policy_epoch),
                    (SELECT json_agg(p ORDER BY name) FROM model_providers p),
                    (SELECT json_agg(k ORDER BY label) FROM provider_keys k),
                    (SELECT json_agg(m ORDER BY model_id) FROM models m),
                    (SELECT json_agg(b ORDER BY budget_id) FROM budgets b),
                    (SELECT json_agg(p ORDER BY task_id) FROM task_parks p),
                    (SELECT epoch FROM routing_epoch),
                    (SELECT json_agg(p ORDER BY number) FROM pull_requests p),
                    (SELECT count(*) FROM pull_request_comments),
                    (SELECT count(*) FROM pull_request_reviews),
                    (SELECT json_agg(c ORDER BY channel_id) FROM notification_channels c),
                    (SELECT json_agg(n ORDER BY notification_id) FROM notifications n),
                    (SELECT count(*) FROM web_push_keys),
                    (SELECT count(*) FROM events)), 0)",
            )
            .await
    }
}

#[tokio::test]
async fn every_endpoint_has_an_anonymous_and_a_too_weak_caller() {
    let mut document = cynode_api::public_openapi();
    let mut documented = BTreeSet::new();
    for (path, item) in &mut document.paths.paths {
        for (method, _) in path_operations(item) {
            if !PUBLIC_ENDPOINTS.contains(&(method, path.as_str())) {
                documented.insert((method.to_owned(), path.clone()));
            }
        }
    }
    let tested: BTreeSet<_> =
        cases().iter().map(|case| (case.method.to_owned(), case.path.to_owned())).collect();
    assert_eq!(tested, documented, "add the endpoint to `cases`, with a caller who is too weak");
}

#[tokio::test]
async fn an_anonymous_caller_gets_nowhere_and_changes_nothing() {
    let world = World::new().await;
    let before = world.fingerprint().await;
    let strangers = [
        world.app.anonymous(),
        world.app.anonymous().with_token("hunter2"),
        world.app.anonymous().with_token(""),
        // Well-formed, and of nobody.
        world.app.anonymous().with_token(&{
            let environment = cynode_app::AppEnvironment::from_system();
            cynode_app::platform::tokens::issue_token(
                cynode_app::platform::tokens::TokenKind::Session,
                &environment,
            )
            .0
            .0
        }),
    ];
    for case in cases() {
        for stranger in &strangers {
            assert_eq!(world.call(stranger, &case).await, 401, "{} {}", case.method, case.call);
        }
    }
    assert_eq!(world.fingerprint().await, before);
}

#[tokio::test]
async fn a_caller_who_is_too_weak_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let without = world.app.user("without", None).await;
    let viewer = world.app.user("viewer", Some(UserRole::Viewer)).await;
    let operator = world.app.user("operator", Some(UserRole::Operator)).await;
    let before = world.fingerprint().await;
    for case in cases() {
        let (caller, expected) = match case.weak {
            Weak::WithoutRole(status) => (&without, status),
            Weak::Viewer => (&viewer, 403),
            Weak::Operator => (&operator, 403),
            Weak::OwnOnly => continue,
        };
        assert_eq!(world.call(caller, &case).await, expected, "{} {}", case.method, case.call);
    }
    assert_eq!(world.fingerprint().await, before);
}

#[tokio::test]
async fn an_admin_is_refused_nothing() {
    let world = World::new().await;
    for case in cases() {
        let ends_itself =
            ["/v1/sessions/current", "/v1/sessions/current/provider-logout", "/v1/events"]
                .contains(&case.path);
        if !ends_itself {
            let status = world.call(&world.admin, &case).await;
            assert!(![401, 403].contains(&status), "{status} for {} {}", case.method, case.call);
        }
    }
}

#[tokio::test]
async fn a_list_of_ones_own_holds_nothing_of_others() {
    let world = World::new().await;
    let without = world.app.user("without", None).await;
    for path in ["/v1/api-keys", "/v1/projects", "/v1/tasks"] {
        let own = without.get(path).await.expect(200).json();
        assert_eq!(own, json!({ "items": [] }), "{path}");
        let all = world.admin.get(path).await.expect(200).json();
        assert_eq!(all["items"].as_array().unwrap().len(), 1, "{path}");
    }
}

#[tokio::test]
async fn every_mutation_takes_an_idempotency_key() {
    let mut document = cynode_api::public_openapi();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in path_operations(item) {
            let described = serde_json::to_value(&operation).unwrap();
            let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
            let takes = parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key");
            let should =
                method != "get" && !IDEMPOTENCY_EXEMPT_ENDPOINTS.contains(&(method, path.as_str()));
            assert_eq!(takes, should, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_internal_port_knows_only_the_right_kind_of_service() {
    let world = World::new().await;
    let runner = world.app.service(ServiceKind::Runner, "runner").await;
    let worker = world.app.service(ServiceKind::Worker, "worker").await;
    let revoked = world.app.service(ServiceKind::Runner, "old").await;
    world.app.service(ServiceKind::Runner, "old").await;
    let admin = world.app.at_internal_port().with_token(&world.admin.token().unwrap());
    let before = world.fingerprint().await;
    let mut document = cynode_api::internal_openapi();
    let mut tried = 0;
    for (path, item) in &mut document.paths.paths {
        let closed = |method: &str| {
            method != "get" && !NODE_JOIN_ENDPOINTS.contains(&(method, path.as_str()))
        };
        for (method, _) in path_operations(item).into_iter().filter(|(method, _)| closed(method)) {
            let (path, wrong) = if path.contains("/jobs/") {
                (path.replace("{job}", "job_0192d5c8b6f07cc1a1a3c2b4d5e6f708"), &runner)
            } else {
                (path.clone(), &worker)
            };
            let stranger = world.app.at_internal_port();
            for caller in [&stranger, &stranger.with_token("hunter2"), &admin, wrong, &revoked] {
                let method = method.to_uppercase().parse().unwrap();
                let status = caller.send(method, &path, Some(json!({}))).await.status;
                assert_eq!(status, 401, "{path}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 16 * 5);
    assert_eq!(world.fingerprint().await, before);
    // And a service's token opens nothing for people.
    let posing = world.app.anonymous().with_token(&runner.token().unwrap());
    posing.get("/v1/me").await.expect(401);
}
