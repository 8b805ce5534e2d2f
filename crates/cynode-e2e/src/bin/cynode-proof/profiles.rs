//! What a profile permits, as `cynode-core` decides it. The proof `profiles` compares it with the gateway, the egress and the node.

use std::{collections::BTreeMap, io};

use anyhow::Context;
use clap::Subcommand;
use cynode_core::profiles::{ProfileSpec, SHIPPED_PROFILES, shipped_profile};
use serde::Deserialize;

/// What a profile permits.
#[derive(Subcommand)]
pub(crate) enum ProfilesCommand {
    /// Prints the profiles that come with the product, as JSON by name.
    Shipped,
    /// Reads profiles and questions from standard input, and prints a list of answers.
    Decide,
}

/// Profiles by name, and questions about them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileTable {
    profiles: BTreeMap<String, ProfileSpec>,
    questions: Vec<ProfileQuestion>,
}

/// One question about one profile.
#[derive(Deserialize)]
struct ProfileQuestion {
    profile: String,
    #[serde(flatten)]
    asked: ProfileSubject,
}

#[derive(Deserialize)]
#[serde(tag = "asked", rename_all = "snake_case")]
enum ProfileSubject {
    Tool { name: String },
    Request { method: String, host: String },
    Variable { name: String },
    Write { path: String },
    Model { id: String },
    ReadMemory,
    WriteMemory,
    Network,
}

pub(crate) fn run(command: &ProfilesCommand) -> anyhow::Result<bool> {
    match command {
        ProfilesCommand::Shipped => {
            let shipped: BTreeMap<_, _> = SHIPPED_PROFILES
                .iter()
                .filter_map(|name| Some((*name, shipped_profile(&name.parse().ok()?)?)))
                .collect();
            println!("{}", serde_json::to_string(&shipped)?);
        }
        ProfilesCommand::Decide => {
            let table: ProfileTable = serde_json::from_reader(io::stdin().lock())?;
            let answers: Vec<bool> =
                table.questions.iter().map(|it| decide(&table, it)).collect::<Result<_, _>>()?;
            println!("{}", serde_json::to_string(&answers)?);
        }
    }
    Ok(true)
}

/// Answers one question by the functions that every place of enforcement calls.
fn decide(table: &ProfileTable, question: &ProfileQuestion) -> anyhow::Result<bool> {
    let profile = table
        .profiles
        .get(&question.profile)
        .with_context(|| format!("there is no profile {}", question.profile))?;
    Ok(match &question.asked {
        ProfileSubject::Tool { name } => profile.allows_tool(name),
        ProfileSubject::Request { method, host } => profile.allows_request(method, host),
        ProfileSubject::Variable { name } => profile.allows_variable(name),
        ProfileSubject::Write { path } => profile.allows_write(path),
        ProfileSubject::Model { id } => profile.allows_model(id),
        ProfileSubject::ReadMemory => profile.reads_memory(),
        ProfileSubject::WriteMemory => profile.writes_memory(),
        ProfileSubject::Network => profile.has_network(),
    })
}
