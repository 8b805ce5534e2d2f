//! `cynork sample`: a sample project for a first task without a model.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations,
    sample::{self, SampleRepository},
    terminal::TextStyle,
};

/// Create a repository, its project, and a script in place of a model and agents.
#[derive(Args)]
#[command(after_help = "Example: cynork sample slug")]
pub(crate) struct SampleArgs {
    /// New directory for the repository; its name becomes the project's name.
    directory: PathBuf,
}

impl SampleArgs {
    pub(crate) async fn run(self, context: &mut CliContext) -> Result<()> {
        if self.directory.exists() {
            let what = format!("{} is there already", self.directory.display());
            return Err(CliError::new(CliErrorKind::Conflict, what)
                .with_fix("name a directory that is not there"));
        }
        // Check the server and the session before anything is created.
        context.send_request(&ApiRequest::for_operation(operations::ME)).await?;
        let slug = self.directory.file_name().and_then(|name| name.to_str()).unwrap_or("slug");
        let repository = SampleRepository::create_at(self.directory.clone())?;
        let project = sample::set_up(&context.client, &repository, slug).await?;
        repository.run_git(&["config", "cynork.project", &project])?;
        let path = self.directory.display().to_string();
        let (criterion, check) = sample::ACCEPTANCE_CRITERION;
        let next = format!(
            "cd {path} && cynork run \"{}\" --criterion \"{}\" --check \"{}\" --budget 0.50",
            sample::TASK_DESCRIPTION,
            criterion.replace('`', "'"),
            check.join(" ")
        );
        let value = json!({ "path": path, "project_id": project, "words": sample::TASK_DESCRIPTION, "next": next });
        context.out.print_answer(
            &value,
            |_| vec![path.clone()],
            |_, paint| {
                let done = paint.apply_style(TextStyle::Green, "✓");
                format!(
                    "{done} {path} is a small repository, project `{slug}`, with a script in place of a model\n  next: {next}"
                )
            },
        )?;
        Ok(())
    }
}
