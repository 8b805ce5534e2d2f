#!/usr/bin/env python3
"""Has tasks planned, kills the project manager meanwhile, and compares what the traces say with the records of the gateway.

    planner_trace.py ROOT TOKEN PROJECT EMPTY UP-PID DATABASE [--plans N] [--kills K] [--any-stop]

PROJECT has a repository, EMPTY has none. DATABASE is only looked at. `--any-stop` plans without orders for the model, for a real one.
"""

import argparse
import collections
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("token")
parser.add_argument("project")
parser.add_argument("empty")
parser.add_argument("up", type=int)
parser.add_argument("database")
parser.add_argument("--plans", type=int, default=100)
parser.add_argument("--kills", type=int, default=5)
parser.add_argument("--any-stop", action="store_true")
parser.add_argument("--seconds", type=int, default=300)
options = parser.parse_args()

GOALS = ["List the tasks of the project LOOK ONCE", "Mend the pager", "Show the machines and nodes that run jobs", "Read the preferences LOOK ONCE"]
STEP_KINDS = {"plan:tools": 0, "plan:call": 0, "plan:observe": 1, "plan:reason": 2, "plan:act": 3}


def call(method, path, body=None):
    headers = {"Authorization": f"Bearer {options.token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(options.root + path, data, headers, method=method)
    try:
        return json.load(urllib.request.urlopen(request, timeout=30))
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None


def query(text):
    done = subprocess.run(["psql", "-XAtq", options.database, "-c", text], check=True, capture_output=True, text=True)
    return [line.split("|") for line in done.stdout.splitlines()]


def submit(number, description, project=None, **more):
    body = {"project_id": project or options.project, "name": f"z{number}", "description": description, **more}
    return call("POST", "/v1/tasks", body)["id"]


def handoffs_of(task, project):
    return [item for item in call("GET", f"/v1/projects/{project}/handoffs?task_id={task}")["items"] if item["kind"] == "plan"]


def wait_until_planned(tasks, project, seconds):
    """Waits until each task's plan was made or refused."""
    until, left = time.monotonic() + seconds, set(tasks)
    while left:
        for task in list(left):
            found = handoffs_of(task, project)
            if found and found[0]["state"] in ("done", "failed", "cancelled"):
                left.discard(task)
        assert time.monotonic() < until, f"{len(left)} tasks are not planned after {seconds} s"
        time.sleep(0.2)


def managers():
    """The processes of the project manager below `cynode up`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[1]
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if int(parent) == options.up and words[0].endswith(b"cynode-pma") and b"project_manager" in b" ".join(words):
            found.append(int(entry))
    return found


def audited_calls(task):
    """The tools that were called for a task, by the token of each claim, in the order of their times."""
    calls, cursor = collections.defaultdict(list), None
    while True:
        page = call("GET", f"/v1/audit?task_id={task}&limit=200" + (f"&cursor={cursor}" if cursor else ""))
        for record in page["items"]:
            if record["phase"] == "decision" and record["method"] == "tools/call" and record["agent_role"] == "project_manager":
                at = datetime.datetime.fromisoformat(record["at"])
                calls[record["agent_token_id"]].append((at, record["tool"]))
        cursor = page.get("next_cursor")
        if not cursor:
            break
    return {token: [tool for _, tool in sorted(made)] for token, made in calls.items()}


def check_claim(events, where):
    """One claim of a handoff: no gap, no double, times in order, and observe, reason, act in every step."""
    numbers = [event["number"] for event in events]
    assert numbers == list(range(1, len(events) + 1)), f"S001-23: {where}: gap or double: {numbers}"
    times = [datetime.datetime.fromisoformat(event["recorded_at"]) for event in events]
    assert times == sorted(times), f"S001-23: {where}: the times are not in order"
    assert events[0]["event"] == "plan:start", f"S001-31: {where}"
    steps = collections.defaultdict(list)
    for event in events:
        if event["step"]:
            steps[event["step"]].append(event["event"])
    assert list(steps) == list(range(1, len(steps) + 1)), f"{where}: steps {list(steps)}"
    for number, kinds in steps.items():
        # The last step may end with calls that act, such as the refinement of the task.
        head = kinds[: kinds.index("plan:act")] if "plan:act" in kinds else kinds
        order = [STEP_KINDS[kind] for kind in head]
        assert order == sorted(order), f"S001-23: {where}, step {number}: {kinds}"
        if "plan:act" in kinds:
            assert head.count("plan:observe") == head.count("plan:reason") == 1, f"S001-23: {where}, step {number}: {kinds}"
    return [event["data"]["tool"] for event in events if event["event"] == "plan:call"]


def check_task(task, project, seconds=15):
    """Compares the traces of a task with the audit, as soon as its records have arrived where they are read."""
    until = time.monotonic() + seconds
    while True:
        try:
            return compare_task(task, project)
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def compare_task(task, project):
    """Compares the traces of a task with the audit. Returns the stops, the number of calls and of claims that were cut off."""
    audited, stops, traced, cut = audited_calls(task), [], [], 0
    for handoff in reversed(handoffs_of(task, project)):
        claims = collections.defaultdict(list)
        for event in call("GET", f"/v1/handoffs/{handoff['handoff_id']}").get("planning", []):
            claims[event["fencing_token"]].append(event)
        for claim in sorted(claims):
            events = claims[claim]
            called = check_claim(events, f"{task}, claim {claim}")
            stop = [event["data"]["condition"] for event in events if event["event"] == "plan:stop"]
            assert len(stop) <= 1, f"S001-34: {task}: {stop}"
            stops += stop
            cut += not stop
            traced.append((called, bool(stop)))
    # Each claim has a token of its own. A claim that was cut off may have recorded one call that never reached the gateway.
    recorded = sorted(audited.values(), key=len)
    for called, whole in sorted(traced, key=lambda one: len(one[0])):
        if called in recorded:
            recorded.remove(called)
        elif not whole and called[:-1] in recorded:
            recorded.remove(called[:-1])
        else:
            assert not called or (not whole and len(called) == 1), f"S001-33: {task}: the trace says {called}, the gateway has {recorded}"
    assert recorded == [], f"S001-33: {task}: the gateway has calls that no trace tells of: {recorded}"
    return stops, sum(len(called) for called, _ in traced), cut


def kill_while_planning():
    """Kills the project manager while it has recorded some events of plans that it has not ended."""
    wanted, until = random.randint(1, 25), time.monotonic() + 60
    begun = """SELECT count(*) FROM planning_events e JOIN handoffs h ON h.handoff_id = e.handoff_id AND h.fencing_token = e.fencing_token
               WHERE h.state = 'claimed'"""
    while int(query(begun)[0][0]) < wanted:
        assert time.monotonic() < until, "nothing is being planned"
    for process in managers():
        os.kill(process, signal.SIGKILL)


def main():
    random.seed(7)
    wanted, numbers = collections.Counter(), iter(range(10**6))
    if options.any_stop:
        tasks = [submit(f"real-{next(numbers)}", "Add a function that adds two prices") for _ in range(options.plans)]
        wait_until_planned(tasks, options.project, options.seconds)
    else:
        tasks = []
        for number in range(options.plans):
            tasks.append(submit(next(numbers), GOALS[number % len(GOALS)]))
        for _ in range(options.kills):
            kill_while_planning()
        wait_until_planned(tasks, options.project, options.seconds)
    calls = cut = 0
    for task in tasks:
        stops, made, ended = check_task(task, options.project)
        assert stops, f"S001-34: {task} has no stop"
        wanted.update(stops)
        calls, cut = calls + made, cut + ended
    print(f"{len(tasks)} plans, {calls} calls of tools, {cut} claims cut off, stops {dict(wanted)}: the traces and the records are the same")
    if options.any_stop:
        return
    assert not options.kills or cut, "no kill hit a plan in the making"

    # Every reason to stop, once.
    provoked = {}
    for stop, words, more in [("question", "ASK which one", {}), ("max_steps", "LOOK ALWAYS", {}), ("nothing_new", "LOOK EMPTY", {})]:
        provoked[stop] = (submit(next(numbers), words, **more), options.project)
    provoked["no_relevant_tool"] = (submit(next(numbers), "Zebra", options.empty), options.empty)
    for task, project in provoked.values():
        wait_until_planned([task], project, 120)
    call("PUT", "/v1/tools/git.tree", {"enabled": False})
    task = submit(next(numbers), "Mend the pager")
    provoked["tool_failure"] = (task, options.project)
    until = time.monotonic() + 60
    while not check_task(task, options.project)[0]:
        assert time.monotonic() < until, "no stop was recorded"
        time.sleep(0.2)
    call("PUT", "/v1/tools/git.tree", {"enabled": True})
    poor = submit(next(numbers), "Mend the pager", budget={"max_cost_micros": 1})
    provoked["budget"] = (poor, options.project)
    while not check_task(poor, options.project)[0]:
        assert time.monotonic() < until + 60, "no stop was recorded"
        time.sleep(0.2)
    for stop, (task, project) in provoked.items():
        stops = check_task(task, project)[0]
        told = [call("GET", f"/v1/handoffs/{handoff['handoff_id']}").get("planning") for handoff in handoffs_of(task, project)]
        assert stop in stops, f"S001-24, S001-25, S001-26, S001-34: {stop} was provoked, the trace says {stops}: {json.dumps(told)[-1500:]}"
    print(f"each reason to stop was provoked: goal_met, {', '.join(sorted(provoked))}")


try:
    main()
except AssertionError as error:
    sys.exit(f"NOT SO: {error}")
