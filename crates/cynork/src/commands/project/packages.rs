//! `cynork project packages`: the packages that jobs of a project fetched or were refused.

use clap::Args;
use cynode_wire::delivery::environments::PackageFetchView;

use crate::{
    client::ApiRequest, context::CliContext, failure::Result, names::ProjectSelector, operations,
};

#[derive(Args)]
pub(crate) struct PackagesArgs {
    /// Only packages of this task, by name or id.
    #[arg(long)]
    task: Option<String>,
    /// Only packages that were refused.
    #[arg(long)]
    refused: bool,
    #[command(flatten)]
    place: ProjectSelector,
}

impl PackagesArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let project = context.require_project(self.place.project)?;
        let task = context.optional_task_id(self.task.as_deref(), Some(&project)).await?;
        let call = ApiRequest::with_path_params(operations::LIST_PACKAGES, [&project])
            .with_query("task", task)
            .with_query("refused", self.refused.then_some("true"));
        context
            .show_list(
                &call,
                None,
                |it: &PackageFetchView| format!("{}:{}", it.source.as_str(), it.package),
                ["package", "version", "from", "cached", "sha256", "task", "when", "refused"],
                |it, look| {
                    [
                        look.style_bold(&it.package),
                        it.version.clone(),
                        it.source.as_str().to_owned(),
                        look.format_yes_no(it.cached),
                        it.sha256.get(..12).unwrap_or(&it.sha256).to_owned(),
                        it.task_id.to_string(),
                        look.format_relative_time(it.fetched_at),
                        it.refused.clone().unwrap_or_default(),
                    ]
                },
            )
            .await
    }
}
