use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::workflow::jobs::SandboxNeeds;

fn spec(value: serde_json::Value) -> ProfileSpec {
    let spec: ProfileSpec = serde_json::from_value(value).unwrap();
    spec.validate().unwrap();
    spec
}

fn shipped(name: &str) -> ProfileSpec {
    shipped_profile(&name.parse().unwrap()).unwrap()
}

#[test]
fn what_a_profile_does_not_name_is_not_there() {
    let empty = spec(json!({}));
    assert!(!empty.has_network(), "S001-10");
    assert!(!empty.allows_tool("help.overview"), "S001-10");
    assert!(!empty.allows_request("GET", "docs.rs"), "S001-10");
    assert!(!empty.allows_variable("CI"), "S001-10");
    assert!(!empty.allows_read("README.md") && !empty.allows_write("README.md"), "S001-10");
    assert!(!empty.reads_everything());
    assert!(!empty.allows_model("any"), "S001-10");
    assert!(!empty.reads_memory() && !empty.writes_memory(), "S001-10");
}

#[test]
fn a_group_of_tools_is_what_is_inside_it() {
    let profile = spec(json!({ "tools": ["memory.*", "web.fetch"] }));
    for name in ["memory.search", "memory.a.b", "web.fetch"] {
        assert!(profile.allows_tool(name), "{name}");
    }
    for name in ["memory", "memoryx.search", "web.search", "web.fetch.more", "", "*"] {
        assert!(!profile.allows_tool(name), "{name}");
    }
    let all = spec(json!({ "tools": ["*"] }));
    assert!(all.allows_tool("anything.at.all") && !all.names_tool("anything.at.all"));
    assert!(profile.names_tool("memory.search"));
}

#[test]
fn a_request_needs_a_rule_for_its_host_and_its_method() {
    let profile = spec(json!({ "network": [
        { "domain": "docs.rs", "methods": ["GET"] },
        { "domain": "*.example.org", "methods": ["*"] },
    ] }));
    for (method, host) in
        [("GET", "docs.rs"), ("POST", "a.example.org"), ("GET", "b.a.example.org")]
    {
        assert!(profile.allows_request(method, host), "{method} {host}");
    }
    for (method, host) in [
        ("POST", "docs.rs"),
        ("get", "docs.rs"),
        ("GET", "www.docs.rs"),
        ("GET", "docs.rs."),
        ("GET", "example.org"),
        ("GET", ".example.org"),
        ("GET", "badexample.org"),
        ("GET", ""),
    ] {
        assert!(!profile.allows_request(method, host), "{method} {host}");
    }
}

#[test]
fn names_and_prefixes_mean_variables_and_models() {
    let profile = spec(json!({ "variables": ["CI", "CARGO_*"], "models": ["gpt-*", "local"] }));
    assert!(profile.allows_variable("CI") && profile.allows_variable("CARGO_HOME"));
    assert!(!profile.allows_variable("CIX") && !profile.allows_variable("XCARGO_HOME"));
    assert!(profile.allows_model("gpt-5") && profile.allows_model("local"));
    assert!(!profile.allows_model("local-2") && !profile.allows_model("xgpt-5"));
}

#[test]
fn globs_mean_paths_below_the_repository() {
    let profile =
        spec(json!({ "paths": { "write": ["docs/**", "src/*.rs", "**/test_*.py", "LICENSE"] } }));
    for path in ["docs/a.md", "docs/b/c.md", "src/lib.rs", "test_a.py", "x/y/test_b.py", "LICENSE"]
    {
        assert!(profile.allows_write(path), "{path}");
    }
    for path in [
        "docs",
        "docs/",
        "docs2/a.md",
        "src/a/b.rs",
        "src/lib.rs.bak",
        "a/LICENSE",
        "docs/../secret",
        "./docs/a.md",
        "/docs/a.md",
        "docs//a.md",
        "",
    ] {
        assert!(!profile.allows_write(path), "{path}");
    }
    let all = shipped("default");
    assert!(all.reads_everything() && all.allows_read("a/b/.hidden"));
    assert!(!all.allows_read("../outside") && !all.allows_read("/etc/passwd"));
}

#[test]
fn a_sandbox_is_never_larger_than_the_profile_says() {
    let profile = spec(json!({ "sandbox": { "memory_mib": 1024, "processes": 10 } }));
    let needs =
        SandboxNeeds { memory_mib: Some(4096), disk_mib: Some(7), ..SandboxNeeds::plain_sandbox() };
    let limited = needs.limit_to(profile.sandbox);
    assert_eq!(limited.memory_mib, Some(1024));
    assert_eq!(limited.processes, Some(10), "a job without a number gets the maximum");
    assert_eq!(limited.disk_mib, Some(7));
    assert_eq!(limited.cpu_percent, None);
}

#[test]
fn what_cannot_be_meant_is_refused_when_it_is_written() {
    for (value, field) in [
        (json!({ "tools": ["db*"] }), "tools"),
        (json!({ "tools": [""] }), "tools"),
        (json!({ "network": [{ "domain": "Docs.rs", "methods": ["GET"] }] }), "network.domain"),
        (json!({ "network": [{ "domain": "a.*.org", "methods": ["GET"] }] }), "network.domain"),
        (json!({ "network": [{ "domain": "docs.rs", "methods": [] }] }), "network.methods"),
        (json!({ "network": [{ "domain": "docs.rs", "methods": ["get"] }] }), "network.methods"),
        (json!({ "variables": ["*_TOKEN"] }), "variables"),
        (json!({ "paths": { "read": ["/etc"] } }), "paths.read"),
        (json!({ "paths": { "write": ["a/../b"] } }), "paths.write"),
        (json!({ "paths": { "write": ["a**"] } }), "paths.write"),
        (json!({ "models": ["*-mini"] }), "models"),
        (json!({ "budget_micros": 0 }), "budget_micros"),
        (json!({ "sandbox": { "processes": 0 } }), "sandbox.processes"),
        (json!({ "description": "\u{1b}[2J" }), "description"),
        (json!({ "tools": vec!["a"; MAX_PROFILE_ENTRIES + 1] }), "tools"),
    ] {
        let profile: ProfileSpec = serde_json::from_value(value.clone()).unwrap();
        let error = profile.validate().unwrap_err();
        assert!(error.contains(&format!("`{field}`")), "{value}: {error}");
    }
    assert!(serde_json::from_value::<ProfileSpec>(json!({ "tool": ["*"] })).is_err());
}

#[test]
fn shipped_profiles_are_valid_and_say_what_their_names_promise() {
    for name in SHIPPED_PROFILES {
        shipped(name).validate().unwrap();
    }
    assert!(shipped_profile(&"mine".parse().unwrap()).is_none());
    for name in ["default", "offline", "builder", "reviewer"] {
        assert!(!shipped(name).has_network(), "S001-40: {name}");
    }
    assert!(!shipped("offline").allows_tool("web.fetch"));
    assert!(!shipped("offline").allows_tool("api.call"));
    assert!(shipped("offline").allows_tool("memory.search"));
    let research = shipped("research");
    assert!(research.allows_request("GET", "a.b") && !research.allows_request("POST", "a.b"));
    assert!(research.allows_tool("web.fetch") && research.allows_tool("memory.search"));
    assert!(!research.allows_tool("ext.todo.add"), "S001-40: a server sends what it likes");
    assert!(!research.allows_variable("TOKEN"), "S001-10: no secret goes where pages are read");
    assert!(!shipped("reviewer").allows_write("a") && shipped("reviewer").allows_read("a"));
    assert!(shipped("reviewer").reads_memory() && !shipped("reviewer").writes_memory());
    assert_eq!(ProfileName::default().as_str(), "default");
}

/// The meaning of a glob, written without regard to time.
fn means(parts: &[&str], names: &[&str]) -> bool {
    match (parts.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), None) => means(rest, names),
        (Some((&"**", rest)), Some((_, later))) => means(rest, names) || means(parts, later),
        (Some((part, rest)), Some((name, later))) => {
            (*part == "*" || part == name) && means(rest, later)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

proptest! {
    #[test]
    fn no_text_is_an_accident(text in ".{0,80}", other in ".{0,80}") {
        let profile = ProfileSpec {
            tools: vec![text.clone()],
            network: vec![NetworkRule { domain: text.clone(), methods: vec![other.clone()] }],
            variables: vec![text.clone()],
            paths: ProfilePaths { read: vec![text.clone()], write: vec![other.clone()] },
            models: vec![text.clone()],
            ..ProfileSpec::default()
        };
        let _ = profile.validate();
        let _ = profile.allows_tool(&other);
        let _ = profile.allows_request(&other, &text);
        let _ = profile.allows_variable(&other);
        let _ = profile.allows_model(&other);
        let (above, absolute) = (format!("../{other}"), format!("/{text}"));
        prop_assert!(!profile.allows_read(&above) && !profile.allows_write(&absolute));
    }

    #[test]
    fn a_glob_means_what_its_definition_says(
        parts in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "**"]), 1..7),
        names in prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..7),
    ) {
        let mut definition = parts.clone();
        if definition.last() == Some(&"**") {
            definition.push("*");
        }
        let profile = ProfileSpec {
            paths: ProfilePaths { read: vec![parts.join("/")], write: Vec::new() },
            ..ProfileSpec::default()
        };
        prop_assert_eq!(profile.allows_read(&names.join("/")), means(&definition, &names));
    }
}
