//! The environment of a project in plans and in the work of units.

use std::collections::BTreeMap;

use cynode_core::{
    environments::{EnvironmentRef, EnvironmentSpec},
    workflow::{
        environments::{EnvironmentBrief, EnvironmentFacts},
        handoffs::{HandoffAnswer, HandoffRequest, ReadyUnit},
        jobs::SandboxNeeds,
    },
};
use serde_json::{Value, json};

use super::support::{
    Script, Tools, answer, class, handoff, plan_of, planned, planning, run, scope, unit,
};
use crate::decision_context::DecisionKind;

fn reference() -> EnvironmentRef {
    EnvironmentRef { version: 2, digest: "d".repeat(64) }
}

fn facts() -> EnvironmentFacts {
    let spec: EnvironmentSpec = serde_json::from_value(json!({
        "setup": ["npm ci"],
        "checks": [
            { "kind": "test", "command": "npm test", "report": { "format": "tap" }, "timeout_seconds": 900 },
            { "kind": "lint", "command": "npx eslint ." },
        ],
        "limits": { "memory_mib": 2048, "cpu_percent": 200, "processes": 300, "disk_mib": 4096 },
    }))
    .unwrap();
    let accepted = Some(EnvironmentBrief::new(reference(), &spec));
    EnvironmentFacts { accepted, proposed: None }
}

#[tokio::test]
async fn the_checks_of_the_environment_come_before_those_that_files_name_and_after_the_units_own() {
    let mut only = unit("Add it");
    only["checks"] = json!([{ "argv": ["node", "added.js"] }]);
    let script = Script::of(&[
        class("feature_request"),
        scope("small"),
        (DecisionKind::Plan, plan_of(&[only])),
    ]);
    let words =
        ("AGENTS.md", "# Shop\n\nPages.\n\n## Build\n\n```sh\nnpm test\nnpm run build\n```\n");
    let mut handoff = handoff("Do something", planning());
    handoff.context.environment = Some(facts());
    let planned = planned(run(&handoff, &script, &Tools::with_files(&[words])).await);
    assert_eq!(
        planned.plan.planned_units()[0].payload["checks"],
        json!([
            { "argv": ["node", "added.js"], "if_runnable": true },
            {
                "argv": ["sh", "-c", "npm test"], "time_limit_seconds": 900, "unless_before": true,
                "report": { "format": "tap" },
            },
            { "argv": ["sh", "-c", "npx eslint ."], "unless_before": true },
            { "argv": ["sh", "-c", "npm run build"], "unless_before": true },
        ])
    );
    assert_eq!(
        planned.project.build_commands,
        ["npm test", "npx eslint .", "npm run build"],
        "agents are told the same commands"
    );
}

/// Sends a unit with that payload. Returns its sandbox.
async fn sandbox_of(payload: Value, environment: Option<EnvironmentFacts>) -> SandboxNeeds {
    let unit = ReadyUnit {
        unit: "add-it".parse().unwrap(),
        title: "Add it".to_owned(),
        payload,
        attempt: 1,
        findings: Vec::new(),
        results: BTreeMap::new(),
    };
    let mut handoff = handoff("Do something", HandoffRequest::Dispatch { units: vec![unit] });
    handoff.context.environment = environment;
    match answer(run(&handoff, &Script::default(), &Tools::default()).await) {
        HandoffAnswer::Assigned { assignments } => {
            assignments.into_iter().next().unwrap().work.sandbox
        }
        other => panic!("nobody was sent: {other:?}"),
    }
}

#[tokio::test]
async fn a_unit_runs_in_the_environment_with_its_resources_and_what_it_needs_beyond_them() {
    let payload =
        |kind: &str, needs: Value| json!({ "kind": kind, "scope": "small", "needs": needs });
    let own = SandboxNeeds {
        memory_mib: Some(2048),
        cpu_percent: Some(200),
        processes: Some(300),
        disk_mib: Some(4096),
        environment: Some(reference()),
        ..SandboxNeeds::plain_sandbox()
    };
    assert_eq!(
        sandbox_of(payload("implementation", Value::Null), Some(facts())).await,
        own,
        "S000-022, B001-17"
    );
    let more = json!({ "memory_mib": 8192, "disk_mib": 1024, "minutes": 30 });
    let larger = SandboxNeeds { memory_mib: Some(8192), ..own.clone() };
    assert_eq!(sandbox_of(payload("review", more.clone()), Some(facts())).await, larger);
    // A merge runs git only, and a project without an environment has a plain sandbox.
    let plain = SandboxNeeds::plain_sandbox();
    assert_eq!(sandbox_of(payload("integration", Value::Null), Some(facts())).await, plain);
    assert_eq!(sandbox_of(payload("fix", Value::Null), None).await, plain);
    let alone = SandboxNeeds { memory_mib: Some(8192), disk_mib: Some(1024), ..plain };
    assert_eq!(sandbox_of(payload("fix", more), None).await, alone);
}
