//! The OpenAPI document: the operations of the routes, and the parts that all operations share.

use cynode_wire::platform::problem::{PROBLEM_JSON, ProblemDetails};
use utoipa::{
    OpenApi, ToSchema,
    openapi::{
        self, Content, Ref, RefOr, Required, ResponseBuilder,
        path::{Operation, ParameterBuilder, ParameterIn, PathItem},
        schema::{ObjectBuilder, SchemaType, Type},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

/// Endpoints that are public. Every other endpoint needs a credential. The files of the console and the page of the setup link are
/// public, too: they have no data.
pub const PUBLIC_ENDPOINTS: [(&str, &str); 16] = [
    ("get", "/"),
    ("get", "/answer/{token}"),
    ("post", "/answer/{token}"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/v1/openapi.json"),
    ("post", "/v1/bootstrap"),
    ("post", "/v1/break-glass"),
    ("post", "/v1/sessions"),
    ("post", "/v1/hooks/{project}/{forge}"),
    ("get", "/v1/login-options"),
    ("get", "/v1/sso/{provider}/login"),
    ("get", "/v1/sso/{provider}/callback"),
    ("post", "/v1/sso/{provider}/backchannel-logout"),
    ("post", "/v1/device-logins"),
    ("post", "/v1/device-logins/token"),
];

/// Mutations that need no `Idempotency-Key`.
///
/// - A login is safe to repeat, and its answer is a secret that must not be stored. A break-glass link works once.
/// - A code of a second factor counts once, so that a repeat needs another code.
/// - Commits are content-addressed, and fetching them changes nothing.
/// - A merge takes effect once, and an answer link works once.
/// - The delivery of a forge is deduplicated by its content.
/// - A logout token works once. The codes of a device, the session that it gets and the address that links an account are secrets
///   that must not be stored. A test of a provider changes nothing.
pub const IDEMPOTENCY_EXEMPT_ENDPOINTS: [(&str, &str); 15] = [
    ("post", "/v1/sessions"),
    ("post", "/v1/break-glass"),
    ("post", "/v1/me/second-factor/delete"),
    ("post", "/v1/me/second-factor/recovery-codes"),
    ("post", "/v1/me/second-factor/verify"),
    ("put", "/v1/projects/{project}/repository"),
    ("post", "/v1/projects/{project}/git/git-upload-pack"),
    ("post", "/v1/pull-requests/{pull_request}/merge"),
    ("post", "/answer/{token}"),
    ("post", "/v1/hooks/{project}/{forge}"),
    ("post", "/v1/sso/{provider}/backchannel-logout"),
    ("post", "/v1/device-logins"),
    ("post", "/v1/device-logins/token"),
    ("post", "/v1/me/identities"),
    ("post", "/v1/identity-providers/{name}/test"),
];

/// Endpoints of the internal port by which a machine joins as a node and proves its identity.
pub const NODE_JOIN_ENDPOINTS: [(&str, &str); 5] = [
    ("post", "/v1/nodes/join"),
    ("post", "/v1/nodes/challenge"),
    ("post", "/v1/nodes/token"),
    ("post", "/v1/nodes/verify"),
    ("post", "/v1/nodes/certificate"),
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "CyNode",
        description = "The control plane's HTTP interface. Failures are RFC 9457 problem+json.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(),
    ),
    components(schemas(ProblemDetails)),
    tags(
        (name = "accounts", description = "People, their sessions and keys, groups"),
        (name = "single-sign-on", description = "Identity providers, linked accounts, sessions, logins of devices"),
        (name = "projects", description = "Projects and their members"),
        (name = "settings", description = "System settings and preferences"),
        (name = "tasks", description = "Work"),
        (name = "schedules", description = "Work that is asked for at its time"),
        (name = "events", description = "What happens"),
        (name = "gate", description = "Agents, tools, rules, approvals, records"),
        (name = "memory", description = "What agents of a project know: records, search, ingests"),
        (name = "skills", description = "Instructions that agents may be given"),
        (name = "models", description = "Providers, models, ceilings, usage. Models are asked at `/v1/chat/completions`, \
            `/v1/responses` and `/v1/messages`, as their vendors describe them"),
        (name = "nodes", description = "Machines that run jobs in sandboxes"),
        (name = "delivery", description = "Pull requests"),
        (name = "notifications", description = "What people are told: by webhook, mail, ntfy or web push, with links that answer once"),
        (name = "operation", description = "Health and numbers"),
    ),
)]
pub(crate) struct PublicDocument;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "CyNode, internal",
        description = "The contract with runners and workers, in any language. Every call is safe to repeat as it is. \
            Failures are RFC 9457 problem+json.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(),
    ),
    components(schemas(ProblemDetails)),
    tags(
        (name = "workflow", description = "Driving tasks; with a runner's token"),
        (name = "jobs", description = "Working on jobs; with a worker's token"),
        (name = "nodes", description = "Running jobs in sandboxes; with a node's token"),
        (name = "operation", description = "Health"),
    ),
)]
pub(crate) struct InternalDocument;

/// Adds to each operation the parts that all operations share: the credential, the idempotency key, and the problem
/// response.
pub(crate) fn complete_document(document: openapi::OpenApi) -> openapi::OpenApi {
    finish_document(
        document,
        "A session token or an API key. A browser sends the cookie of its session instead",
        IdempotencyKeyUse::Taken,
    )
}

/// Does the same for the internal port, whose operations need no idempotency key.
pub(crate) fn complete_internal(document: openapi::OpenApi) -> openapi::OpenApi {
    finish_document(
        document,
        "A token of the service, from `cynode admin token`",
        IdempotencyKeyUse::NotNeeded,
    )
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IdempotencyKeyUse {
    Taken,
    NotNeeded,
}

fn finish_document(
    mut document: openapi::OpenApi,
    credential: &str,
    keys: IdempotencyKeyUse,
) -> openapi::OpenApi {
    let bearer =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(credential)).build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in path_operations(item) {
            let endpoint = (method, path.as_str());
            let public =
                PUBLIC_ENDPOINTS.contains(&endpoint) || NODE_JOIN_ENDPOINTS.contains(&endpoint);
            if !public {
                let needed = SecurityRequirement::new("bearer", Vec::<String>::new());
                operation.security = Some(vec![needed]);
            }
            if keys == IdempotencyKeyUse::Taken
                && method != "get"
                && !IDEMPOTENCY_EXEMPT_ENDPOINTS.contains(&endpoint)
            {
                operation
                    .parameters
                    .get_or_insert_default()
                    .push(RefOr::T(idempotency_key_parameter()));
            }
            if !public || method != "get" {
                add_failure_response(operation);
            }
        }
    }
    document
}

/// Returns the operations of a path, with the method in lower case.
pub fn path_operations(item: &mut PathItem) -> Vec<(&'static str, &mut Operation)> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    let all = [("get", get), ("put", put), ("post", post), ("delete", delete), ("patch", patch)];
    all.into_iter()
        .filter_map(|(method, found)| found.as_mut().map(|found| (method, found)))
        .collect()
}

fn idempotency_key_parameter() -> openapi::path::Parameter {
    let text =
        ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).max_length(Some(200));
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Names this attempt: sent again with it, the request has no second effect",
        ))
        .schema(Some(text.build()))
        .build()
}

fn add_failure_response(operation: &mut Operation) {
    let content = Content::new(Some(Ref::from_schema_name(ProblemDetails::name())));
    let failure = ResponseBuilder::new()
        .description("Why it was not done, and what to do next")
        .content(PROBLEM_JSON, content)
        .build();
    operation.responses.responses.insert("default".into(), RefOr::T(failure));
}
