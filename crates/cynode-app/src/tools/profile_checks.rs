//! What a profile permits, for people who write one. It asks the same functions as gateway, egress and nodes do.

use cynode_core::{ids::ProjectId, profiles::ProfileSpec};
use cynode_wire::tools::profile_checks::{
    CheckProfile, ProfileDecision, ProfileDecisions, ProfileQuestion,
};

use crate::{Ctx, Error, platform::operation, tools::profiles};

/// Maximum number of questions of one request.
const MAX_QUESTIONS: usize = 200;

/// Returns what a profile permits. Nothing is called and nothing is recorded.
#[tracing::instrument(name = "app.profiles.check_profile", skip_all, fields(profile.name = name))]
#[operation]
pub async fn check_profile(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    name: &str,
    body: CheckProfile,
) -> Result<ProfileDecisions, Error> {
    let profile = profiles::get_profile(ctx, project, name).await?;
    if !(1..=MAX_QUESTIONS).contains(&body.questions.len()) {
        return Err(Error::Invalid(format!("ask 1 to {MAX_QUESTIONS} questions at once")));
    }
    let decide = |question: ProfileQuestion| {
        let allowed = decide_question(&profile.spec, &question);
        ProfileDecision { question, allowed }
    };
    let decisions = body.questions.into_iter().map(decide).collect();
    Ok(ProfileDecisions { name: profile.name, version: profile.version, decisions })
}

/// Returns whether a profile permits something.
fn decide_question(spec: &ProfileSpec, question: &ProfileQuestion) -> bool {
    match question {
        ProfileQuestion::Tool { name } => spec.allows_tool(name),
        ProfileQuestion::Request { method, host } => {
            spec.allows_request(&method.to_ascii_uppercase(), &host.to_ascii_lowercase())
        }
        ProfileQuestion::Variable { name } => spec.allows_variable(name),
        ProfileQuestion::Read { path } => spec.allows_read(path),
        ProfileQuestion::Write { path } => spec.allows_write(path),
        ProfileQuestion::Model { id } => spec.allows_model(id),
    }
}
