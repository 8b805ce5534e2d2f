//! What the directory is told about this server: its features, resource types and schemas (RFC 7643, 5 to 7).

use axum::{http::StatusCode, response::Response};
use cynode_app::{Error, identity::scim::MAX_SCIM_PAGE};
use cynode_core::scim::{GROUP_SCHEMA, LIST_SCHEMA, USER_SCHEMA};
use serde_json::{Value, json};

use super::{ScimCall, ScimError, scim_response};

/// Returns the features of the standard that there are.
pub(super) async fn get_provider_config(_call: ScimCall) -> Response {
    let config = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"],
        "patch": { "supported": true },
        "bulk": { "supported": false, "maxOperations": 0, "maxPayloadSize": 0 },
        "filter": { "supported": true, "maxResults": MAX_SCIM_PAGE },
        "changePassword": { "supported": false },
        "sort": { "supported": false },
        "etag": { "supported": true },
        "authenticationSchemes": [{
            "type": "oauthbearertoken",
            "name": "Bearer token",
            "description": "A token that `cynork scim-token create` issues",
            "primary": true,
        }],
        "meta": {
            "resourceType": "ServiceProviderConfig",
            "location": "/scim/v2/ServiceProviderConfig",
        },
    });
    scim_response(StatusCode::OK, &config)
}

fn resource_types() -> [Value; 2] {
    [("User", "/Users", USER_SCHEMA), ("Group", "/Groups", GROUP_SCHEMA)].map(
        |(name, endpoint, schema)| {
            json!({
                "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ResourceType"],
                "id": name,
                "name": name,
                "endpoint": endpoint,
                "schema": schema,
                "meta": {
                    "resourceType": "ResourceType",
                    "location": format!("/scim/v2/ResourceTypes/{name}"),
                },
            })
        },
    )
}

fn attribute(name: &str, kind: &str, required: bool, uniqueness: &str) -> Value {
    json!({
        "name": name, "type": kind, "multiValued": false, "required": required, "caseExact": false,
        "mutability": "readWrite", "returned": "default", "uniqueness": uniqueness,
    })
}

fn complex_attribute(name: &str, multi_valued: bool, parts: &[Value]) -> Value {
    json!({
        "name": name, "type": "complex", "multiValued": multi_valued, "required": false,
        "mutability": "readWrite", "returned": "default", "subAttributes": parts,
    })
}

fn schemas() -> [Value; 2] {
    let text = |name: &str| attribute(name, "string", false, "none");
    let user = vec![
        attribute("userName", "string", true, "server"),
        text("externalId"),
        text("displayName"),
        complex_attribute("name", false, &[text("formatted")]),
        complex_attribute("emails", true, &[text("value"), text("type")]),
        attribute("active", "boolean", false, "none"),
    ];
    let group = vec![
        attribute("displayName", "string", true, "server"),
        text("externalId"),
        complex_attribute("members", true, &[text("value"), text("type")]),
    ];
    [(USER_SCHEMA, "User", user), (GROUP_SCHEMA, "Group", group)].map(|(id, name, attributes)| {
        json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Schema"],
            "id": id,
            "name": name,
            "attributes": attributes,
            "meta": { "resourceType": "Schema", "location": format!("/scim/v2/Schemas/{id}") },
        })
    })
}

fn whole_list(resources: &[Value]) -> Response {
    let body = json!({
        "schemas": [LIST_SCHEMA],
        "totalResults": resources.len(),
        "startIndex": 1,
        "itemsPerPage": resources.len(),
        "Resources": resources,
    });
    scim_response(StatusCode::OK, &body)
}

fn find_by_id(resources: &[Value], what: &'static str, id: &str) -> Result<Response, ScimError> {
    let found = resources.iter().find(|resource| resource["id"].as_str() == Some(id));
    match found {
        Some(resource) => Ok(scim_response(StatusCode::OK, resource)),
        None => Err(Error::NotFound { what, id: id.to_owned(), near: None }.into()),
    }
}

/// Lists the types of resources.
pub(super) async fn list_resource_types(_call: ScimCall) -> Response {
    whole_list(&resource_types())
}

/// Returns one type of resources.
pub(super) async fn get_resource_type(call: ScimCall) -> Result<Response, ScimError> {
    find_by_id(&resource_types(), "resource type", &call.id)
}

/// Lists the schemas.
pub(super) async fn list_schemas(_call: ScimCall) -> Response {
    whole_list(&schemas())
}

/// Returns one schema.
pub(super) async fn get_schema(call: ScimCall) -> Result<Response, ScimError> {
    find_by_id(&schemas(), "schema", &call.id)
}
