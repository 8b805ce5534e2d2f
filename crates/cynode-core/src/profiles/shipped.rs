//! Profiles that come with the product. Nobody can change or shadow them.

use super::{MemoryAccess, NetworkRule, ProfileName, ProfilePaths, ProfileSandbox, ProfileSpec};

/// Names of the profiles that come with the product.
pub const SHIPPED_PROFILES: [&str; 5] = ["default", "offline", "research", "builder", "reviewer"];

/// The product's tools that reach the web.
const WEB_TOOLS: [&str; 2] = ["api.*", "web.*"];

/// Namespaces of the product's tools that reach nothing outside.
const OFFLINE_TOOLS: [&str; 17] = [
    "agent.*",
    "artifact.*",
    "connector.*",
    "db.*",
    "git.*",
    "handoff.*",
    "help.*",
    "memory.*",
    "model.*",
    "node.*",
    "pm.*",
    "sandbox.*",
    "schedule.*",
    "skills.*",
    "think.*",
    "verification.*",
    "workflow.*",
];

/// Returns the profile of that name that comes with the product.
pub fn shipped_profile(name: &ProfileName) -> Option<ProfileSpec> {
    match name.as_str() {
        "default" => Some(default_profile()),
        "offline" => Some(ProfileSpec {
            description: "Everything but the network: no web and API tools and no tool servers."
                .into(),
            tools: OFFLINE_TOOLS.map(str::to_owned).into(),
            ..default_profile()
        }),
        // Pages that an agent reads may ask it for what it knows: it gets no secrets. Tools of servers send what they like to where they
        // like, so that it gets none of them either.
        "research" => Some(ProfileSpec {
            description:
                "Reads the web. Gets no variables of the project's environment and no tool servers."
                    .into(),
            tools: OFFLINE_TOOLS.into_iter().chain(WEB_TOOLS).map(str::to_owned).collect(),
            network: vec![NetworkRule {
                domain: "*".into(),
                methods: vec!["GET".into(), "HEAD".into()],
            }],
            variables: Vec::new(),
            ..default_profile()
        }),
        "builder" => Some(ProfileSpec {
            description: "Builds and tests in a sandbox of limited size, without network.".into(),
            sandbox: ProfileSandbox {
                memory_mib: Some(8192),
                cpu_percent: Some(400),
                processes: Some(1024),
                disk_mib: Some(20_480),
            },
            ..default_profile()
        }),
        "reviewer" => Some(ProfileSpec {
            description: "Reads and judges: changes no file and remembers nothing.".into(),
            paths: ProfilePaths { read: every_path(), write: Vec::new() },
            memory: MemoryAccess::Read,
            ..default_profile()
        }),
        _ => None,
    }
}

fn default_profile() -> ProfileSpec {
    ProfileSpec {
        description: "Agents that were given no other profile: everything but the network.".into(),
        tools: vec!["*".into()],
        network: Vec::new(),
        variables: vec!["*".into()],
        paths: ProfilePaths { read: every_path(), write: every_path() },
        models: vec!["*".into()],
        budget_micros: None,
        memory: MemoryAccess::Write,
        sandbox: ProfileSandbox::default(),
    }
}

fn every_path() -> Vec<String> {
    vec!["**".into()]
}
