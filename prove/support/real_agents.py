#!/usr/bin/env python3
"""Lets real coding agents with a real model work in the environments of real projects. See prove/journeys/real-agent.

    real_agents.py CYNODE WORK --agents DIR --url URL --model NAME [--agent NAME...] [--only ID...] [--attempts N] [--seconds N]

Each agent gets the fault of each repository as a task. It must run the test command of the environment inside its sandbox, which the transcript
shows, and the task must end in a result that was judged, or in a question to a person. Whether a small model can mend the fault is printed and has no
bar; what is completed has evidence. Plans and judgements are a script's.
"""

import argparse
import json
import pathlib
import shutil
import signal
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
import real_repositories  # noqa: E402
from real_repositories import DATA, Journey, RealWorld, Skipped  # noqa: E402
from review_world import until  # noqa: E402

AGENTS = ("goose", "opencode")
REPOSITORIES = ("py-humanize", "rs-dotenvy")
PROVIDER = "real"
ENDED = ("completed", "failed", "cancelled")
# Tokens that an agent's own instructions and tools take, with as much again for the work. A server that holds fewer refuses every request.
LEAST_CONTEXT = {"goose": 4096, "opencode": 20480}


def read_context(url):
    """The tokens that a llama.cpp server holds per request; None where a server does not say."""
    try:
        with urllib.request.urlopen(url.rstrip("/").removesuffix("/v1") + "/props", timeout=30) as answer:
            return json.load(answer)["default_generation_settings"]["n_ctx"]
    except (OSError, ValueError, KeyError):
        return None


def test_words(spec):
    """The part of each test command that is in a transcript however an agent quotes it."""
    words = []
    for check in spec["checks"]:
        if check["kind"] == "test":
            known = [word for word in ("pytest", "cargo test", "npm test", "ctest", "make check") if word in check["command"]]
            words.append(known[0] if known else check["command"])
    assert words, f"the environment has no test command: {spec['checks']}"
    return words


def find_use(events, words):
    """The first use of a tool, or a command, that has one of the words."""
    for event in events:
        if event["event"] == "tool":
            text = json.dumps([event["data"].get("title", ""), event["data"].get("input")])
            if any(word in text for word in words):
                return text
    return None


class AgentJourney(Journey):
    """A repository whose developer is a real agent."""

    def __init__(self, world, task, folder, options):
        super().__init__(world, task, folder)
        self.options = options

    def set_models(self):
        super().set_models()
        asks = "agents.{}.model_routing.allowed_external_providers"
        for role, provider in (("project_manager", f"script-{self.name}"), ("project_analyst", f"script-{self.name}"), ("sandbox_agent", PROVIDER)):
            self.set_preference(asks.format(role), [provider])
        self.set_preference("agents.project_manager.review.max_review_iterations", 1)
        self.set_preference("workflow.max_step_retries", 1)
        self.set_preference("workflow.approve_plan", False)

    def timeline(self, task):
        return self.world.expect(200, "GET", f"/v1/tasks/{task}/timeline")

    def settled(self, task):
        """How the task ended, or the question that a person is asked."""
        seen = self.timeline(task)
        if seen["state"] in ENDED:
            found = self.world.expect(200, "GET", f"/v1/tasks/{task}")
            return seen["state"], str(found.get("failure") or seen.get("summary") or "")
        for wait in seen["waits"]:
            if wait["owner"] == "person" and not wait.get("resolved_at"):
                return "asks", wait.get("question") or wait["reason"]
        return None

    def transcript(self, task):
        events = []
        for job in self.timeline(task)["jobs"]:
            begin = 0
            while True:
                page = self.world.expect(200, "GET", f"/v1/jobs/{job['job_id']}/events?from={begin}&limit=500")["items"]
                events += page
                if len(page) < 500:
                    break
                begin = page[-1]["number"] + 1
        return events

    def work_with(self, agent, attempt):
        """One task for an agent: how it ended, what it said, and the use of the test command in its transcript."""
        worker = {"kind": "acp", "agent": agent}
        for role in ("developer", "fixer"):
            self.set_preference(f"agents.project_manager.workers.{role}", worker)
        review = {"kind": "scripted", "moves": real_repositories.review_moves()}
        self.set_preference("agents.project_manager.workers.reviewer", review)
        commands = [check["command"] for check in self.spec["checks"] if check["kind"] == "test"]
        words = f"{self.task['issue']}\nRun `{commands[0]}` before you change anything, and again at the end."
        task = self.world.create_task(self.project, name=f"{agent}-{attempt}", description=words)
        end = time.monotonic() + self.options.seconds
        settled = None
        while settled is None and time.monotonic() < end:
            time.sleep(1)
            settled = self.settled(task)
        use = find_use(self.transcript(task), test_words(self.spec))
        if settled is None or settled[0] == "asks":
            self.world.api("POST", f"/v1/tasks/{task}/cancel", {})
        return settled or ("late", ""), use

    def check_agent(self, agent):
        """Tries until the agent has run the tests; every attempt must end in something that a person can read."""
        rows = []
        for attempt in range(1, self.options.attempts + 1):
            began = time.monotonic()
            (state, said), use = self.work_with(agent, attempt)
            said = " ".join(said.split())
            took = time.monotonic() - began
            rows.append(f"{self.name:<14}{agent:<10}{attempt:>3} {state:<10}{'tests run' if use else '-':<10}{took:>7.0f} s  {said[:110]}")
            print(rows[-1], flush=True)
            assert state != "late", f"{agent} in {self.name} neither ended nor asked in {self.options.seconds} s"
            assert state == "completed" or said, f"{agent} in {self.name} ended as {state} and nobody is told why"
            if use:
                return attempt
        raise AssertionError(f"{agent} in {self.name} never ran the test command in {self.options.attempts} attempts")


class AgentWorld(RealWorld):
    def install_agents(self, installed):
        """Gives the node copies of the agents that were fetched before: sandboxes cannot enter a person's cache."""
        place = self.data / "node" / "agents"
        until(place.parent.exists, 60)
        self.end_process()
        for agent in AGENTS:
            shutil.copytree(pathlib.Path(installed) / agent, place / agent, symlinks=True)
        self.start()

    def add_model(self, url, model, context):
        address = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.expect(None, "PUT", f"/v1/providers/{PROVIDER}", {"kind": "compatible", "base_url": address, "local": False})
        routes = [{"provider": PROVIDER, "upstream": model}]
        body = {"context_tokens": context or 32768, "max_output_tokens": 512, "tools": True, "tier": "fast", "routes": routes}
        self.expect(None, "PUT", f"/v1/model-registry/{PROVIDER}", body)
        # A small model reads little: all tools of the gateway but the report are left to the manager.
        listed = self.expect(200, "GET", "/v1/tools")
        tools = listed["items"] if isinstance(listed, dict) else listed
        for tool in tools:
            if tool["name"] != "pm.report":
                self.expect(None, "PUT", f"/v1/tools/{tool['name']}", {"scope": "pm"})


def has_agents(node, names):
    return node["started"] and set(names) <= {agent["agent"] for agent in node["report"]["agents"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cynode")
    parser.add_argument("work")
    parser.add_argument("--agents", required=True, help="directory of installed agents")
    parser.add_argument("--url", required=True, help="where the model is")
    parser.add_argument("--model", required=True, help="what the model is called there")
    parser.add_argument("--agent", nargs="*", default=AGENTS)
    parser.add_argument("--only", nargs="*", default=REPOSITORIES)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=900)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    context = read_context(options.url)
    for agent in options.agent:
        if context and context < LEAST_CONTEXT[agent]:
            sys.exit(f"{agent} needs {LEAST_CONTEXT[agent]} tokens and the model holds {context}: serve it with more, and name it by CYNODE_LIVE_MODEL_URL")
    tasks = [task for task in json.loads((DATA / "tasks.json").read_text()) if task["id"] in options.only]
    work = pathlib.Path(options.work)
    world = AgentWorld(options.cynode, work / "world", quick=False, whole=True)
    bad, tested = [], 0
    try:
        # A start makes a new link for the first admin.
        world.set_up(people=False)
        world.install_agents(options.agents)
        world.add_model(options.url, options.model, context)
        until(lambda: any(has_agents(node, options.agent) for node in world.expect(200, "GET", "/v1/nodes")["items"]), 120, what="the node has not the agents")
        for task in tasks:
            folder = work / task["id"]
            folder.mkdir(parents=True)
            journey = AgentJourney(world, task, folder, options)
            try:
                journey.prepare()
                journey.accept_environment()
                journey.try_environment()
            except Skipped as why:
                print(f"{task['id']:<14}skipped: {why}")
                continue
            for agent in options.agent:
                try:
                    journey.check_agent(agent)
                    tested += 1
                except AssertionError as error:
                    bad.append(f"{task['id']} with {agent}")
                    print(error, flush=True)
    finally:
        world.stop()
    print(f"{tested} of {len(tasks) * len(options.agent)} pairs of agent and repository ran the tests inside and ended in a result or a question")
    if bad or tested == 0:
        print(f"FAILED: {', '.join(bad) or 'nothing was tried'}")
        sys.exit(1)


if __name__ == "__main__":
    main()
