//! `cynork sample`: something to try a first task with, when there is no model yet.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    operations,
    sample::{self, Repository},
    terminal::Style,
};

/// Makes a repository, a project for it, and a script in place of a model and of agents.
#[derive(Args)]
#[command(after_help = "Example: cynork sample slug")]
pub(crate) struct Sample {
    /// Where the repository is made; a directory that is not there yet. Its name is the project's.
    directory: PathBuf,
}

impl Sample {
    pub(crate) async fn run(self, context: &mut Context) -> Result<()> {
        if self.directory.exists() {
            let what = format!("{} is there already", self.directory.display());
            return Err(
                Failure::new(Kind::Conflict, what).fix("name a directory that is not there")
            );
        }
        // Whether anybody is there, and knows who asks, is found out before anything is made.
        context.ask(&Call::of(operations::ME)).await?;
        let slug = self.directory.file_name().and_then(|name| name.to_str()).unwrap_or("slug");
        let repository = Repository::create(self.directory.clone())?;
        let project = sample::set_up(&context.client, &repository, slug).await?;
        repository.git(&["config", "cynork.project", &project])?;
        let path = self.directory.display().to_string();
        let (criterion, check) = sample::CRITERION;
        let next = format!(
            "cd {path} && cynork run \"{}\" --criterion \"{}\" --check \"{}\" --budget 0.50",
            sample::WORDS,
            criterion.replace('`', "'"),
            check.join(" ")
        );
        let value =
            json!({ "path": path, "project_id": project, "words": sample::WORDS, "next": next });
        context.out.show(
            &value,
            |_| vec![path.clone()],
            |_, paint| {
                let done = paint.dye(Style::Green, "✓");
                format!(
                    "{done} {path} is a small repository, project `{slug}`, with a script in place of a model\n  next: {next}"
                )
            },
        )?;
        Ok(())
    }
}
