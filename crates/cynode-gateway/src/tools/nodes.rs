//! `node.*`: lists nodes for planning. Only the orchestrator places jobs; a plan may ask for a node.

use cynode_app::nodes;
use cynode_core::{agents::ToolScope, ids::NodeId, tools::ToolAnnotations};
use cynode_policy::catalogue::IdBinding;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{NativeTool, ToolError, ToolInvocation, ToolSpec};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ListNodesArgs {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GetNodeArgs {
    /// The node.
    #[schema(value_type = String)]
    node_id: NodeId,
}

pub(super) fn node_tools() -> Vec<NativeTool> {
    let about = |name, title, description| ToolSpec {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: IdBinding::NONE,
        annotations: ToolAnnotations::READ_ONLY,
    };
    let listed = "The machines that run jobs: whether they are alive, their labels, what they can do, how busy they are.";
    vec![
        about("node.list", "List nodes", listed).with_handler(list_nodes),
        about("node.get", "Read a node", "One machine that runs jobs.").with_handler(get_node),
    ]
}

async fn list_nodes(call: ToolInvocation, _: ListNodesArgs) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| nodes::list_nodes(ctx)).await?;
    Ok(json!({ "nodes": found }))
}

async fn get_node(call: ToolInvocation, body: GetNodeArgs) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| nodes::get_node(ctx, body.node_id));
    Ok(json!(found.await?))
}
