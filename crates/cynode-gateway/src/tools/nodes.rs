//! `node.*`: the machines that run jobs, for whoever plans work. Which one gets a job is decided by the orchestrator alone;
//! a plan may ask for one.

use cynode_app::nodes;
use cynode_core::{agents::ToolScope, ids::NodeId};
use cynode_policy::catalogue::{Annotations, Binding};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{About, Invocation, Native, ToolError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct List {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct One {
    /// The node.
    #[schema(value_type = String)]
    node_id: NodeId,
}

pub(super) fn tools() -> Vec<Native> {
    let about = |name, title, description| About {
        name,
        title,
        description,
        scope: ToolScope::Pm,
        binding: Binding::NONE,
        annotations: Annotations::READS,
    };
    let listed = "The machines that run jobs: whether they are alive, their labels, what they can do, how busy they are.";
    vec![
        about("node.list", "List nodes", listed).does(list),
        about("node.get", "Read a node", "One machine that runs jobs.").does(get),
    ]
}

async fn list(call: Invocation, _: List) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::list(ctx))).await?;
    Ok(json!({ "nodes": found }))
}

async fn get(call: Invocation, body: One) -> Result<Value, ToolError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(nodes::get(ctx, body.node_id)));
    Ok(json!(found.await?))
}
