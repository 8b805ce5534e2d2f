//! Test double of the decision context, with scripted models and tools.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use cynode_core::{
    agents::AgentRole,
    ids::{HandoffId, ProjectId, TaskId},
    models::Tier,
    tasks::Criterion,
    workflow::{
        handoffs::{
            HandoffAnswer, HandoffRequest, PlanAnswer, ResultVerification, TraceEvent, VerifyAnswer,
        },
        reports::{ReportKind, ReportView},
        waits::{EndedWait, WaitReason, WaitResolution},
    },
};
use cynode_wire::{
    identity::accounts::SecretText,
    manager::handoffs::{HandoffAssignment, HandoffContext, ProjectFacts, TaskFacts},
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use super::super::{HandoffOutcome, process_handoff};
use crate::decision_context::{
    BoxedFuture, DecisionBackend, DecisionContext, DecisionError, DecisionKind, DecisionRequest,
    OfferedTool, ToolClient, TraceRecorder,
};

pub(super) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

pub(super) fn task_id() -> TaskId {
    TaskId::from_uuid(Uuid::from_u128(1))
}

/// Models that answer from a script, and note what they were asked.
#[derive(Default)]
pub(super) struct Script {
    answers: Mutex<BTreeMap<DecisionKind, VecDeque<Value>>>,
    pub(super) asked: Mutex<Vec<DecisionRequest>>,
}

impl Script {
    pub(super) fn of(answers: &[(DecisionKind, Value)]) -> Self {
        let script = Self::default();
        for (kind, answer) in answers {
            script.answers.lock().unwrap().entry(*kind).or_default().push_back(answer.clone());
        }
        script
    }

    pub(super) fn kinds(&self) -> Vec<DecisionKind> {
        self.asked.lock().unwrap().iter().map(|ask| ask.kind).collect()
    }

    pub(super) fn tiers(&self) -> Vec<Tier> {
        self.asked.lock().unwrap().iter().map(|ask| ask.tier).collect()
    }

    pub(super) fn questions(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|ask| ask.user.clone()).collect()
    }
}

impl DecisionBackend for Script {
    fn request_decision<'a>(
        &'a self,
        ask: DecisionRequest,
        check: &'a (dyn Fn(&Value) -> Result<(), String> + Send + Sync),
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        Box::pin(async move {
            let kind = ask.kind;
            let valid = jsonschema::validator_for(&ask.schema).unwrap();
            self.asked.lock().unwrap().push(ask);
            let answer = self.answers.lock().unwrap().get_mut(&kind).and_then(VecDeque::pop_front);
            let Some(answer) = answer else {
                return Err(DecisionError::Transient(format!("no answer to {kind:?}")));
            };
            if let Err(wrong) = valid.validate(&answer) {
                return Err(DecisionError::Permanent(format!("{kind:?}: {wrong}")));
            }
            check(&answer).map_err(DecisionError::Permanent)?;
            Ok(answer)
        })
    }
}

/// Tools that answer from a table, and note what they were called with.
#[derive(Default)]
pub(super) struct Tools {
    files: BTreeMap<String, String>,
    answers: BTreeMap<String, Result<Value, DecisionError>>,
    offered: Vec<OfferedTool>,
    pub(super) called: Mutex<Vec<(String, Value)>>,
    /// The events of planning, as they were stored.
    stored: Mutex<Vec<TraceEvent>>,
}

impl Tools {
    pub(super) fn with_files(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self { files: files.iter().map(own).collect(), ..Self::default() }
    }

    pub(super) fn answering(mut self, tool: &str, answer: Result<Value, DecisionError>) -> Self {
        self.answers.insert(tool.to_owned(), answer);
        self
    }

    /// The same tools, with one more that the gateway offers.
    pub(super) fn offering(
        mut self,
        name: &str,
        description: &str,
        required: &[&str],
        read_only: bool,
    ) -> Self {
        self.offered.push(OfferedTool {
            name: name.to_owned(),
            description: description.to_owned(),
            input: json!({ "type": "object", "required": required }),
            read_only,
        });
        self
    }

    /// The events of planning, in the order in which they were stored.
    pub(super) fn trace(&self) -> Vec<TraceEvent> {
        self.stored.lock().unwrap().clone()
    }

    /// The reason why planning ended.
    pub(super) fn stop(&self) -> Option<String> {
        let trace = self.trace();
        let stop = trace.iter().find(|event| event.event == "plan:stop")?;
        Some(stop.data["condition"].as_str()?.to_owned())
    }

    pub(super) fn calls(&self) -> Vec<(String, Value)> {
        self.called.lock().unwrap().clone()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.calls()
            .into_iter()
            .map(|(tool, arguments)| match arguments["path"].as_str() {
                Some(path) => format!("{tool} {path}"),
                None => tool,
            })
            .collect()
    }
}

impl TraceRecorder for Tools {
    fn record_events<'a>(
        &'a self,
        events: &'a [TraceEvent],
    ) -> BoxedFuture<'a, Result<(), DecisionError>> {
        self.stored.lock().unwrap().extend_from_slice(events);
        Box::pin(async { Ok(()) })
    }
}

impl ToolClient for Tools {
    fn list_tools(&self) -> BoxedFuture<'_, Result<Vec<OfferedTool>, DecisionError>> {
        Box::pin(async { Ok(self.offered.clone()) })
    }

    fn call_tool<'a>(
        &'a self,
        tool: &'a str,
        arguments: Value,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        Box::pin(async move {
            self.called.lock().unwrap().push((tool.to_owned(), arguments.clone()));
            if let Some(answer) = self.answers.get(tool) {
                return answer.clone();
            }
            match tool {
                "git.tree" => {
                    let entries: Vec<_> = self
                        .files
                        .iter()
                        .map(|(path, text)| json!({"path": path, "kind": "file", "bytes": text.len()}))
                        .collect();
                    Ok(json!({"commit": "c0ffee", "entries": entries, "truncated": false}))
                }
                "git.read" => {
                    let path = arguments["path"].as_str().unwrap();
                    let text = self.files.get(path);
                    let missing = || {
                        DecisionError::Permanent(
                            "`git.read` failed (not_found): there is no such file".into(),
                        )
                    };
                    let text = text.ok_or_else(missing)?;
                    Ok(json!({"path": path, "text": text, "truncated": false}))
                }
                _ => Ok(json!({})),
            }
        })
    }
}

/// A handoff about a task of a project with a repository.
pub(super) fn handoff(description: &str, request: HandoffRequest) -> HandoffAssignment {
    HandoffAssignment {
        handoff_id: HandoffId::from_uuid(Uuid::from_u128(0xabc)),
        fencing_token: 1,
        attempt: 1,
        request,
        context: HandoffContext {
            trace_id: TRACE.to_owned(),
            project: Some(ProjectFacts {
                id: ProjectId::from_uuid(Uuid::from_u128(2)),
                name: "Shop".to_owned(),
                slug: "shop".to_owned(),
                description: "Sells things".to_owned(),
                head: Some("c0ffee".to_owned()),
            }),
            task: Some(TaskFacts {
                id: task_id(),
                name: "dark-mode".to_owned(),
                description: description.to_owned(),
                acceptance_criteria: vec![Criterion {
                    check: None,
                    text: "A switch on the page changes the colours".parse().unwrap(),
                }],
                status: "running".to_owned(),
            }),
            ..HandoffContext::default()
        },
        token: SecretText("secret".to_owned()),
        models: Vec::new(),
        tool_models: Vec::new(),
        think_seconds: BTreeMap::new(),
        decisions: Vec::new(),
        delegated: Vec::new(),
        expires_at: OffsetDateTime::UNIX_EPOCH,
    }
}

pub(super) fn planning() -> HandoffRequest {
    HandoffRequest::Plan {
        previous_plan: None,
        feedback: Vec::new(),
        answer: None,
        attempt: 1,
        started_units: Vec::new(),
    }
}

pub(super) fn prefer(handoff: &mut HandoffAssignment, key: &str, value: Value) {
    handoff.context.preferences.insert(key.parse().unwrap(), value);
}

pub(super) async fn run_within(
    max_steps: u32,
    handoff: &HandoffAssignment,
    script: &Script,
    tools: &Tools,
) -> Result<HandoffOutcome, DecisionError> {
    let desk = DecisionContext::new(handoff, "system".to_owned(), max_steps, script, tools, tools);
    process_handoff(&desk).await
}

pub(super) async fn run(
    handoff: &HandoffAssignment,
    script: &Script,
    tools: &Tools,
) -> Result<HandoffOutcome, DecisionError> {
    run_within(20, handoff, script, tools).await
}

pub(super) fn answer(outcome: Result<HandoffOutcome, DecisionError>) -> HandoffAnswer {
    match outcome.unwrap() {
        HandoffOutcome::Answer(answer) => *answer,
        HandoffOutcome::Delegate => panic!("it was delegated"),
    }
}

pub(super) fn planned(outcome: Result<HandoffOutcome, DecisionError>) -> PlanAnswer {
    match answer(outcome) {
        HandoffAnswer::Planned(planned) => planned,
        other => panic!("no plan: {other:?}"),
    }
}

pub(super) fn judged(outcome: Result<HandoffOutcome, DecisionError>) -> VerifyAnswer {
    match answer(outcome) {
        HandoffAnswer::Judged(judged) => judged,
        other => panic!("no judgement: {other:?}"),
    }
}

pub(super) fn asked(outcome: Result<HandoffOutcome, DecisionError>) -> String {
    match answer(outcome) {
        HandoffAnswer::Ask { question } => question,
        other => panic!("no question: {other:?}"),
    }
}

/// A unit as a model proposes it.
pub(super) fn unit(title: &str) -> Value {
    json!({
        "title": title, "kind": "implementation", "files_to_modify": [], "files_to_read_first": [],
        "pattern_reference": "", "constraints": [], "requirements": [format!("{title} holds")],
        "depends_on": [], "checks": [],
    })
}

pub(super) fn plan_of(units: &[Value]) -> Value {
    json!({"reason": "", "units": units, "leave_out": [], "assumptions": [], "question": ""})
}

pub(super) fn class(class: &str) -> (DecisionKind, Value) {
    (DecisionKind::Classify, json!({"reason": "it is so", "class": class}))
}

pub(super) fn scope(scope: &str) -> (DecisionKind, Value) {
    let answer =
        json!({"reason": "it is so", "components": [], "estimated_files": 1, "scope": scope});
    (DecisionKind::AssessScope, answer)
}

pub(super) fn plan(units: &[Value]) -> (DecisionKind, Value) {
    (DecisionKind::Plan, plan_of(units))
}

pub(super) fn tests(needed: bool) -> (DecisionKind, Value) {
    let answer = json!({
        "why": "a small change of looks, a look is enough",
        "commands": if needed { json!(["dotnet test"]) } else { json!([]) },
        "needed": needed,
    });
    (DecisionKind::ChooseTests, answer)
}

/// A plan as `key (kind) after keys`.
pub(super) fn shape(planned: &PlanAnswer) -> Vec<String> {
    planned
        .plan
        .planned_units()
        .iter()
        .map(|unit| {
            let after: Vec<_> = unit.depends_on.iter().map(|key| key.as_str()).collect();
            let after = if after.is_empty() { "nothing".to_owned() } else { after.join(", ") };
            format!("{} ({}) after {after}", unit.key, unit.payload["kind"].as_str().unwrap())
        })
        .collect()
}

/// A result of a unit of a plan, to be judged.
pub(super) fn judging(planned: &PlanAnswer, key: &str, output: Value) -> ResultVerification {
    let unit = planned.plan.planned_units().iter().find(|unit| unit.key.as_str() == key).unwrap();
    ResultVerification {
        evidence: None,
        unit: unit.key.clone(),
        title: unit.title.to_string(),
        payload: unit.payload.clone(),
        unit_attempt: 1,
        attempts_left: None,
        output,
        plan: Some(planned.plan.clone()),
        answer: None,
        attempt: 1,
    }
}

pub(super) fn report(role: AgentRole, unit: &str, kind: ReportKind, details: Value) -> ReportView {
    ReportView {
        report_id: Uuid::from_u128(9),
        agent_role: role,
        job_id: None,
        unit: Some(unit.to_owned()),
        kind,
        summary: "That is what I did.".to_owned(),
        details,
        reported_at: OffsetDateTime::UNIX_EPOCH,
    }
}

pub(super) fn said(words: &str) -> EndedWait {
    EndedWait {
        reason: WaitReason::HumanInput,
        resolution: WaitResolution::Answered,
        question: None,
        answer: Some(words.to_owned()),
    }
}
