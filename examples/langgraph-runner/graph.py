"""The graph of docs/explanation/workflow.md in LangGraph: each node decides from what it is given, and says what is to be stored."""

import json
import time
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from contract import Drive

# What a preference says when nobody set it.
DEFAULTS = {
    "max_parallel_units": 4,
    "max_step_retries": 3,
    "max_node_retries": 3,
    "retry_budget": 30,
    "node_timeouts.collect_result": 600,
}

# Where each verdict of a node leads.
EDGES = {
    name: {"wait": name, "fail": "mark_failed"} | edges
    for name, edges in {
        "load_task_context": {"pass": "plan_steps"},
        "plan_steps": {"pass": "dispatch_step"},
        "dispatch_step": {"pass": "collect_result", "done": "finalize_summary"},
        "collect_result": {"pass": "verify_step_result", "done": "dispatch_step", "redo": "dispatch_step"},
        "verify_step_result": {"pass": "dispatch_step", "redo": "dispatch_step"},
        "finalize_summary": {"pass": END},
        "mark_failed": {"pass": END, "fail": END},
    }.items()
}


class State(TypedDict):
    """The readable state of a run, and two fields that the graph needs."""

    acceptance_criteria: list
    preferences_effective: dict
    plan: dict | None
    current_step_index: int
    attempts_by_step: dict
    last_result: dict | None
    verification: dict | None
    feedback: list
    node_failures: int
    failure: str | None
    summary: str | None
    # What the last node did: the part of its checkpoint that is not state.
    step: dict
    # The node that follows.
    next: str


def step(verdict, *, effects=(), wait=None, unit=None, note=None, **changes):
    """What a node found, does and changes."""
    told = {"verdict": verdict, "effects": list(effects), "wait": wait, "unit": unit, "note": note}
    return {"node_failures": 0} | changes | {"step": told}


def give_up(why, **more):
    return step("fail", note=why, failure=why, **more)


def limit(state, name):
    value = state["preferences_effective"].get(f"workflow.{name}")
    return value if type(value) is int and value > 0 else DEFAULTS[name]


def may_retry(state, drive, attempts, most):
    return attempts < limit(state, most) and drive.position["retries_used"] < limit(state, "retry_budget")


def retry_unit(state, drive, unit, attempt, findings, why, **changes):
    """Tries a unit again, or gives the task up."""
    about = {"unit": unit, "attempt": attempt, "findings": findings}
    if may_retry(state, drive, attempt, "max_step_retries"):
        return step("redo", unit=unit, note=why, effects=[{"effect": "retry_unit"} | about], **changes)
    return give_up(f"unit `{unit}`: {why}", unit=unit, effects=[{"effect": "fail_unit"} | about], **changes)


def load_task_context(state, drive):
    task = drive.task
    return step(
        "pass", acceptance_criteria=task["acceptance_criteria"], preferences_effective=task["preferences"]
    )


def plan_steps(state, drive):
    ended = drive.position.get("ended_wait") or {}
    said = ended.get("resolution") if ended.get("reason") == "approval" else None
    if said == "approved" and state["plan"]:
        return step("pass")
    if said == "expired":
        return give_up("nobody approved the plan in time")
    feedback = state["feedback"]
    if said == "rejected":
        feedback = [*feedback, {"kind": "revise", "text": ended.get("answer") or "no"}]
    plan = drive.mind.plan(drive.task, feedback)
    done = {"plan": plan, "feedback": feedback, "effects": [{"effect": "plan_units", "units": plan["steps"]}]}
    # Whatever is not a clear no is a yes: to ask once too often does no harm.
    if state["preferences_effective"].get("workflow.approve_plan", True) is not False:
        units = len(plan["steps"])
        question = f"May the plan of {units} {'unit' if units == 1 else 'units'} be carried out?"
        return step("wait", wait={"reason": "approval", "question": question}, **done)
    return step("pass", **done)


def dispatch_step(state, drive):
    units = drive.position["units"]
    done = {unit["key"] for unit in units if unit["state"] == "done"}
    out = [unit for unit in units if unit["state"] in ("dispatched", "collected")]
    ready = [unit for unit in units if unit["state"] == "pending" and done.issuperset(unit["depends_on"])]
    send = ready[: max(0, min(limit(state, "max_parallel_units"), 32) - len(out))]
    index = {"current_step_index": len(done)}
    if send:
        attempts = {unit["key"]: unit["attempts"] + 1 for unit in send}
        effects = [
            {
                "effect": "create_job",
                "unit": unit["key"],
                "attempt": attempts[unit["key"]],
                "remedy": {"findings": unit["findings"]},
                "timeout_seconds": limit(state, "node_timeouts.collect_result"),
            }
            for unit in send
        ]
        tried = state["attempts_by_step"] | attempts
        return step("pass", effects=effects, note=f"sent {', '.join(attempts)}", attempts_by_step=tried, **index)
    if out:
        return step("pass", **index)
    for unit in units:
        if unit["state"] not in ("done", "cancelled"):
            return give_up(f"unit `{unit['key']}` can never start: what it needs is not done", **index)
    return step("done", **index)


def collect_result(state, drive):
    out = [unit for unit in drive.position["units"] if unit["state"] == "dispatched"]
    for unit in out:
        key, job = unit["key"], unit.get("job")
        if not job or job["collected"]:
            continue
        attempt, output = job["attempt"], job.get("result")
        if job["state"] == "succeeded":
            effect = {"effect": "collect_job", "unit": key, "attempt": attempt}
            result = {"unit": key, "attempt": attempt, "output": output}
            return step("pass", unit=key, effects=[effect], last_result=result)
        if job["state"] in ("failed", "lost"):
            failed = f"the job failed: {json.dumps(output)}"
            why = failed if job["state"] == "failed" else "nothing was heard of the job any more"
            findings = [{"severity": "critical", "text": why}]
            return retry_unit(state, drive, key, attempt, findings, why)
    return step("wait", wait={"reason": "job"}) if out else step("done")


def verify_step_result(state, drive):
    result = state["last_result"]
    unit, attempt = result["unit"], result["attempt"]
    judged = drive.mind.verify(drive.task, unit, attempt, result["output"])
    verification, findings = {"unit": unit} | judged, judged["findings"]
    if judged["status"] == "pass":
        effect = {"effect": "accept_unit", "unit": unit, "attempt": attempt, "findings": findings}
        return step("pass", unit=unit, effects=[effect], verification=verification)
    why = "; ".join(finding["text"] for finding in findings) or "it was judged bad"
    return retry_unit(state, drive, unit, attempt, findings, why, verification=verification)


def finalize_summary(state, drive):
    units = drive.position["units"]
    done = [unit for unit in units if unit["state"] == "done"]
    lines = [f"- {u['title']}" + (f" ({u['attempts']} attempts)" if u["attempts"] > 1 else "") for u in done]
    noun = "unit" if len(done) == 1 else "units"
    summary = "\n".join([f"{len(done)} {noun} done:", *lines])
    return step("pass", current_step_index=len(units), summary=summary)


def mark_failed(state, drive):
    found = [finding["text"] for finding in (state["verification"] or {}).get("findings", [])]
    return step("pass", note=state["failure"] or (found or ["it was given up"])[-1])


def failed(state, drive, name, error):
    """What comes to nothing is a step too: a wait for the next attempt, or the end."""
    why, failures = f"{name}: {error!r}", state["node_failures"] + 1
    if not may_retry(state, drive, failures, "max_node_retries"):
        return give_up(why, node_failures=failures)
    wait = {"reason": "retry", "wake_in_ms": min(1000 * 2 ** (failures - 1), 30_000)}
    return step("wait", wait=wait, note=why, node_failures=failures)


def node(work):
    """The work of a node as LangGraph runs it."""
    name = work.__name__

    def run(state: State, runtime: Runtime[Drive]):
        drive, begun = runtime.context, time.monotonic()
        print("node", drive.task_id, drive.position["sequence"] + 1, name, flush=True)
        try:
            update = work(state, drive)
        except Exception as error:
            update = failed(state, drive, name, error)
        told = update["step"]
        told |= {"node": name, "attempt": state["node_failures"] + 1}
        told["duration_ms"] = round((time.monotonic() - begun) * 1000)
        return update | {"next": EDGES[name][told["verdict"]]}

    return run


def follow(state):
    return state["next"]


def build():
    """The graph, to be compiled with a saver."""
    graph = StateGraph(State, context_schema=Drive)
    # A run is entered at the node that the orchestrator names.
    graph.add_conditional_edges(START, follow, list(EDGES))
    for work in (
        load_task_context, plan_steps, dispatch_step, collect_result, verify_step_result, finalize_summary, mark_failed,
    ):
        name = work.__name__
        graph.add_node(name, node(work))
        graph.add_conditional_edges(name, follow, sorted(set(EDGES[name].values())))
    return graph
