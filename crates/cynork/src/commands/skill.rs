//! `cynork skill`: instructions that agents of a project may be given.

use clap::{Args, Subcommand};
use cynode_wire::skills::{SkillSummary, SkillView};
use serde_json::json;

use crate::{
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::Look,
    names::In,
    operations,
    output::record,
};

#[derive(Subcommand)]
pub(crate) enum Skill {
    /// Lists the skills of a project, without their instructions.
    #[command(after_help = "Example: cynork skill list --project web")]
    List {
        #[command(flatten)]
        place: In,
    },
    /// Shows a skill with its instructions.
    #[command(after_help = "Example: cynork skill show run-the-tests --project web")]
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Writes instructions that agents may be given. What looks malicious is refused.
    #[command(
        after_help = "Example: cynork skill create run-the-tests --about \"Before anything is called done\" --body @skill.md --project web"
    )]
    Create(Write),
    /// Writes a skill anew.
    #[command(
        after_help = "Example: cynork skill change run-the-tests --body @skill.md --project web"
    )]
    Change(Anew),
    /// Removes a skill.
    #[command(after_help = "Example: cynork skill remove run-the-tests --project web")]
    Remove {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Args)]
pub(crate) struct Which {
    /// Its id, or its name in the project.
    skill: String,
    #[command(flatten)]
    place: In,
}

#[derive(Args)]
pub(crate) struct Write {
    /// What it is called; unique in the project.
    name: String,
    /// When it is of use.
    #[arg(long)]
    about: String,
    /// The instructions; `@FILE` takes them from a file, `@-` from standard input.
    #[arg(long)]
    body: String,
    #[command(flatten)]
    place: In,
}

#[derive(Args)]
pub(crate) struct Anew {
    #[command(flatten)]
    which: Which,
    /// When it is of use; as it was when it is left out.
    #[arg(long)]
    about: Option<String>,
    /// The instructions; `@FILE` takes them from a file, `@-` from standard input. As they were when they are left out.
    #[arg(long)]
    body: Option<String>,
    /// The version that you looked at; else the present one.
    #[arg(long, value_name = "VERSION")]
    expect: Option<i64>,
}

impl Which {
    /// The id behind a name.
    async fn id(&self, context: &Context) -> Result<String> {
        if self.skill.starts_with("skl_") {
            return Ok(self.skill.clone());
        }
        let project = context.project(self.place.project.clone())?;
        let call = Call::of(operations::LIST_SKILLS).query("project", Some(&project));
        let listed = context.ask(&call).await?;
        let listed = listed["items"].as_array().into_iter().flatten();
        let mut found = listed.filter(|it| it["name"] == self.skill.as_str());
        let found = found.find_map(|it| it["skill_id"].as_str());
        found.map(str::to_owned).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("{project} has no skill {}", self.skill))
                .fix(format!("see `cynork skill list --project {project}`"))
        })
    }
}

impl Skill {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List { place } => {
                let project = context.project(place.project)?;
                let call = Call::of(operations::LIST_SKILLS).query("project", Some(project));
                let row = |it: &SkillSummary, look: &Look| {
                    [
                        look.bold(&it.name),
                        it.description.clone(),
                        it.version.to_string(),
                        look.when(it.updated_at),
                    ]
                };
                let heads = ["name", "of use", "version", "written"];
                context.list(&call, None, |it: &SkillSummary| it.name.clone(), heads, row).await
            }
            Self::Show { which } => {
                let call = Call::to(operations::GET_SKILL, [which.id(context).await?]);
                let value = context.ask(&call).await?;
                let name = |it: &SkillView| vec![it.summary.skill_id.to_string()];
                context.show(&value, name, |it: &SkillView, look| {
                    let sides = [
                        ("name", look.bold(&it.summary.name)),
                        ("id", it.summary.skill_id.to_string()),
                        ("of use", it.summary.description.clone()),
                        ("version", it.summary.version.to_string()),
                    ];
                    format!("{}\n{}", record(look.paint, &sides), it.body)
                })
            }
            Self::Create(write) => write.run(context).await,
            Self::Change(anew) => anew.run(context).await,
            Self::Remove { which } => {
                let id = which.id(context).await?;
                context.sure(&format!("Remove the skill {}?", which.skill))?;
                let call = Call::to(operations::DELETE_SKILL, [&id]);
                context.done(&call, &format!("{} is removed", which.skill)).await
            }
        }
    }
}

fn written(it: &SkillView, _: &Look) -> String {
    format!("{} is written, version {}", it.summary.name, it.summary.version)
}

impl Write {
    async fn run(self, context: &Context) -> Result<()> {
        let project = context.project_id(&context.project(self.place.project)?).await?;
        let body = json!({ "project_id": project, "name": self.name, "description": self.about,
            "body": given::words(&self.body)? });
        let call = Call::of(operations::CREATE_SKILL).body(&body);
        context.told(&call, |it: &SkillView| it.summary.skill_id.to_string(), written).await
    }
}

impl Anew {
    async fn run(self, context: &Context) -> Result<()> {
        let id = self.which.id(context).await?;
        let mut now = context.ask(&Call::to(operations::GET_SKILL, [&id])).await?;
        let version = self.expect.map_or_else(|| now["version"].take(), |it| json!(it));
        let about = self.about.map_or_else(|| now["description"].take(), |it| json!(it));
        let body = match self.body {
            Some(body) => json!(given::words(&body)?),
            None => now["body"].take(),
        };
        let body = json!({ "expected_version": version, "description": about, "body": body });
        let call = Call::to(operations::UPDATE_SKILL, [&id]).body(&body);
        context.told(&call, |it: &SkillView| it.summary.skill_id.to_string(), written).await
    }
}
