#!/usr/bin/env python3
"""Compares what a profile permits at every place that enforces it. See prove/security/profiles.

    profile_table.py CYNODE WORK

`cynode-proof profiles decide` asks the functions of the product's core. The gateway is asked by real calls of agents, the egress by a site that counts what
reaches it, the models by real requests, and the node by real jobs in sandboxes. Each row of the table must be the same at both places.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
import review_world  # noqa: E402
from knowledge_world import KnowledgeWorld  # noqa: E402
from review_world import Listener, parallel, until  # noqa: E402

PAGE = "A page about retries that nobody could guess: 4711."
# What can do everything: a refusal of it comes from somewhere else, and the row says nothing about profiles.
EVERYTHING = {"tools": ["*"], "network": [{"domain": "*", "methods": ["*"]}], "variables": ["*"], "paths": {"read": ["**"], "write": ["**"]}, "models": ["*"],
              "memory": "write"}  # fmt: skip
OWN = {
    "everything": EVERYTHING,
    "nothing": EVERYTHING | {"tools": [], "network": [], "variables": [], "models": [], "memory": "none", "paths": {"read": ["**"], "write": []}},
    "pages": EVERYTHING | {"tools": ["web.fetch", "memory.search", "help.*"], "network": [{"domain": "localhost", "methods": ["GET"]}], "memory": "read"},
    "poster": EVERYTHING | {"tools": ["api.call", "agent.*"], "network": [{"domain": "127.0.0.1", "methods": ["POST"]}], "memory": "none"},
    "docs": EVERYTHING | {"network": [], "variables": ["CARGO_*", "LANG_ONE"], "paths": {"read": ["**"], "write": ["docs/**", "*.md"]},
                          "models": ["local-*", "cloud"]},
}  # fmt: skip
SHIPPED = ("default", "offline", "research", "builder", "reviewer")
# Tools of a developer, with arguments that are good enough to be carried out or to fail for another reason than a profile.
TOOLS = {
    "help.overview": {},
    "artifact.list": {"task_id": "TASK"},
    "agent.heartbeat": {"task_id": "TASK"},
    "agent.get_context": {"task_id": "TASK"},
    "skills.list": {},
    "memory.search": {"query": "retries"},
    "memory.remember": {"kind": "fact", "title": "A fact", "text": "Retries are three."},
}
METHODS = ("GET", "POST", "DELETE")
HOSTS = ("localhost", "127.0.0.1")
VARIABLES = {"CARGO_HOME_X": "1", "CARGO": "1", "LANG_ONE": "1", "LANG_TWO": "1", "TOKENISH": "1"}
PATHS = ("docs/deep/a.md", "README.md", "src/a.md", "src/main.rs")
MODELS = ("local-one", "cloud", "cloud-2", "other")


class Site(Listener):
    """A site of pages. It counts what reaches it."""

    def __init__(self):
        super().__init__(lambda asked: (200, {"content-type": "text/plain"}, PAGE.encode()))

    def address(self, host, name):
        return f"http://{host}:{self.port}/{name}"

    def saw(self, name):
        return [asked for asked in self.requests if asked.path == f"/{name}"]


class ProfileWorld(KnowledgeWorld):
    def __init__(self, cynode, work):
        self.site = Site()
        opened = ",".join(f"{host}:{self.site.port}" for host in HOSTS)
        super().__init__(cynode, work, {"egress.allow_private": opened})
        self.area = self.create_project("area")
        self.import_repository(self.area, {"README.md": "# A page\n", "docs/deep/a.md": "a\n", "src/a.md": "a\n", "src/main.rs": "fn main() {}\n"})
        for name, spec in OWN.items():
            self.expect(201, "POST", "/v1/profiles", {"name": name, "spec": spec})
        self.profiles = {name: self.expect(200, "GET", f"/v1/profiles/{name}")["spec"] for name in (*OWN, *SHIPPED)}
        for setting in ("gateway.calls_per_second", "gateway.max_identical_calls", "gateway.calls_per_task_hour"):
            self.expect(None, "PUT", f"/v1/settings/{setting}", {"value": 1000000, "expected_version": 0})
        self.expect(None, "PUT", "/v1/providers/scripted", {"kind": "scripted", "script": {"rules": [{"answer": {"text": "Done."}}]}})
        for model in MODELS:
            self.set_model(model, "scripted")
        # Nobody works on the task meanwhile: its agents are the proof's.
        self.runner_pid = self.program_pid("cynode-runner")
        os.kill(self.runner_pid, signal.SIGSTOP)
        self.task = self.create_task(self.area)

    def paused_runner(self):
        return contextlib.nullcontext()

    def stop(self):
        with contextlib.suppress(AttributeError, ProcessLookupError):
            os.kill(self.runner_pid, signal.SIGCONT)
        super().stop()

    def core(self, questions):
        """What the core says to each question."""
        table = json.dumps({"profiles": self.profiles, "questions": questions})
        command = [self.cynode.with_name("cynode-proof"), "profiles", "decide"]
        done = subprocess.run(command, input=table, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def agent(self, profile, **more):
        body = {"role": "developer", "project_id": self.area, "task_id": self.task, "profile": profile, "expires_in_seconds": 3600}
        return self.expect(201, "POST", "/v1/agent-tokens", body | more)["token"]

    def verdict(self, token, tool, arguments):
        filled = {name: self.task if value == "TASK" else value for name, value in arguments.items()}
        return self.mcp_verdict(token, tool, filled)


def is_refused(verdict):
    return verdict.startswith("refused")


class Comparison:
    """Rows of the table, each with what the core and a place of enforcement said."""

    def __init__(self, world):
        self.world, self.rows = world, []

    def add(self, place, profile, asked, allowed, said, **question):
        self.rows.append((place, {"profile": profile, "asked": asked} | question, allowed, said))

    def differences(self):
        core = self.world.core([question for _, question, _, _ in self.rows])
        return [f"{place}: {question} is {'allowed' if allowed else 'refused'} ({said}), the core says {'allowed' if decided else 'refused'}"
                for (place, question, allowed, said), decided in zip(self.rows, core, strict=True) if decided != allowed]  # fmt: skip


def compare_tools(world, table):
    """Tools at the gateway. A tool of memory also needs the memory of the profile."""
    reference = world.agent("everything")
    for tool, arguments in TOOLS.items():
        first = world.verdict(reference, tool, arguments)
        assert not is_refused(first), f"{tool} is refused by something else: {first}"
    for profile in world.profiles:
        token = world.agent(profile)
        listed = {tool["name"] for tool in world.mcp_message(token, "tools/list", {})[1]["tools"]}
        for tool, arguments in TOOLS.items():
            said = world.verdict(token, tool, arguments)
            spec = world.profiles[profile]
            if tool.startswith("memory."):
                needed = ("read", "write") if tool == "memory.search" else ("write",)
                if spec["memory"] not in needed:
                    assert is_refused(said), f"S001-14: {profile} has memory {spec['memory']}, and {tool} is {said}"
                    continue
            table.add("gateway", profile, "tool", not is_refused(said), said, name=tool)
            shown = tool.replace(".", "__") in listed
            table.add("list of tools", profile, "tool", shown, "listed" if shown else "not listed", name=tool)


def compare_requests(world, table):
    """Requests at the gateway and at the egress: what the site saw is what was let out."""
    for profile in world.profiles:
        token, spec = world.agent(profile), world.profiles[profile]
        for host in HOSTS:
            for method in METHODS:
                tool = "web.fetch" if method == "GET" else "api.call"
                name = f"{profile}-{method}-{host}"
                arguments = {"url": world.site.address(host, name)} | ({"method": method} if tool == "api.call" else {})
                said = world.verdict(token, tool, arguments)
                reached = bool(world.site.saw(name))
                assert reached == (said == "ok"), f"S001-40: {name} is {said} and reached the site: {reached}"
                if not any(pattern in ("*", tool, f"{tool.split('.')[0]}.*") for pattern in spec["tools"]):
                    assert is_refused(said), f"S001-10: {profile} does not name {tool}, which is {said}"
                    continue
                table.add("egress", profile, "request", reached, said, method=method, host=host)


def compare_models(world, table):
    for profile in world.profiles:
        token = world.agent(profile, models=list(MODELS))
        for model in MODELS:
            status, answer, _ = world.ask_model(token, model)
            assert status in (200, 403, 404), f"{profile} {model}: {status} {answer}"
            table.add("models", profile, "model", status == 200, str(status), id=model)


def set_environment(world):
    """Variables of the project's environment, which an admin accepts."""
    spec = {"variables": VARIABLES}
    found = world.expect(None, "POST", f"/v1/projects/{world.area}/environments", {"spec": spec})
    accepted = world.expect(None, "POST", f"/v1/projects/{world.area}/environments/{found['version']}/accept", {})
    world.reference = {name: accepted[name] for name in ("version", "digest")}


def run_job(world, profile, commands, **more):
    """A job under a profile on the installation's own node; its result."""
    steps = [{"argv": ["sh", "-c", command], "on_failure": "continue"} for command in commands]
    spec = {"worker": {"kind": "command", "steps": steps}} | more
    task = world.create_jobs(["a"], world.area, work=spec, profile=profile)
    job = until(lambda: finished(world.job_results(task)["a"]), 90, 0.1, lambda: f"{profile}: {world.job_results(task)} {world.tail()[-500:]}")
    world.api("POST", f"/v1/tasks/{task}/cancel", {})
    return job


def finished(job):
    return job if job["state"] in ("succeeded", "failed", "cancelled") else None


def run_jobs(world, function, arguments):
    """Several jobs at a time; their results in order."""
    results = parallel(function, arguments, threads=4)
    for result in results:
        if isinstance(result, Exception):
            raise AssertionError(f"a job failed: {result}")
    return results


def compare_variables(world, table):
    names = list(world.profiles)
    jobs = run_jobs(world, lambda name: run_job(world, name, ["env"], commit="never", sandbox={"environment": world.reference}), names)
    for profile, job in zip(names, jobs, strict=True):
        assert job["result"] and job["result"].get("steps"), f"{profile}: {job}"
        output = job["result"]["steps"][0]["output"]
        for name in VARIABLES:
            seen = f"\n{name}=" in f"\n{output}"
            table.add("node", profile, "variable", seen, "set" if seen else "not set", name=name)


def compare_paths(world, table):
    pairs = [(profile, path) for profile in ("everything", "nothing", "docs", "default", "reviewer") for path in PATHS]
    jobs = run_jobs(world, lambda pair: run_job(world, pair[0], [f"echo changed >> {pair[1]}"], commit="if_changed"), pairs)
    for (profile, path), job in zip(pairs, jobs, strict=True):
        said = json.dumps(job["result"])
        committed = bool((job["result"] or {}).get("commit"))
        if not committed:
            assert path in said and profile in said, f"S001-10: the refusal does not name {path} and {profile}: {said[-600:]}"
        table.add("node", profile, "write", committed, job["state"], path=path)


def check_research_and_offline(world):
    url = world.site.address("localhost", "handbook")
    outcome, answer = world.mcp_call(world.agent("research"), "web.fetch", {"url": url})
    assert outcome == "result" and PAGE in json.dumps(answer), f"S001-40: research reads no page: {answer}"
    before = len(world.site.requests)
    outcome, answer = world.mcp_call(world.agent("offline"), "web.fetch", {"url": url})
    said = json.dumps(answer)
    assert outcome == "refused" and len(world.site.requests) == before, f"S001-40: offline: {outcome} {said}"
    assert "profile" in said and "offline" in said, f"S001-40: the refusal does not say why: {said}"
    return "research reads the page of a local site; offline is refused, the reason names the profile, and nothing reaches the site"


def check_explanation(world):
    path = "/v1/policy/explain"
    issued = world.issue_agent_token(world.area, task=world.task, profile="docs")
    status, answer, _ = world.api("POST", path, {"agent_token_id": issued["agent_token_id"], "tool": "web.fetch"})
    assert status == 200 and "docs" in json.dumps(answer), f"{path}: {status} {answer}"
    return "an explanation names the profile"


def check_change(world):
    """A change of a profile reaches tokens that exist."""
    world.expect(201, "POST", "/v1/profiles", {"name": "changing", "spec": EVERYTHING})
    token = world.agent("changing")
    assert world.verdict(token, "skills.list", {}) == "ok"
    version = world.expect(200, "GET", "/v1/profiles/changing")["version"]
    world.expect(None, "PUT", "/v1/profiles/changing", {"spec": EVERYTHING | {"tools": ["help.*"]}, "expected_version": version})
    until(lambda: is_refused(world.verdict(token, "skills.list", {})), 2, 0.02, "a token that exists keeps what its profile lost")
    world.expect(None, "DELETE", "/v1/profiles/changing")
    until(lambda: is_refused(world.verdict(token, "help.overview", {})), 2, 0.02, "a token outlives its profile")
    status, answer, _ = world.api("POST", "/v1/agent-tokens", {"role": "developer", "project_id": world.area, "task_id": world.task, "profile": "changing"})
    assert status in (404, 409, 422), f"X-13: a profile that is gone is accepted: {status} {answer}"
    return "a change and a deletion reach tokens that exist, and a profile that is gone is refused by name"


def check_shipped(world):
    command = [world.cynode.with_name("cynode-proof"), "profiles", "shipped"]
    shipped = json.loads(review_world.run_program(*command))
    for name in SHIPPED:
        assert world.profiles[name] == shipped[name], f"{name} differs from what comes with the product"
        status, answer, _ = world.api("PUT", f"/v1/profiles/{name}", {"spec": EVERYTHING, "expected_version": 1})
        assert status >= 400, f"{name} was changed: {answer}"
        status, answer, _ = world.api("POST", "/v1/profiles", {"name": name, "spec": EVERYTHING, "project_id": world.area})
        assert status >= 400, f"{name} was shadowed: {answer}"
    return f"{', '.join(SHIPPED)} are what the product ships, and nobody can change or shadow them"


def check_table(world, compare, table):
    def check():
        before = len(table.rows)
        compare(world, table)
        return f"{len(table.rows) - before} rows"

    return check


def main():
    cynode, work = sys.argv[1:]
    world = ProfileWorld(cynode, pathlib.Path(work))
    try:
        table = Comparison(world)
        set_environment(world)
        checks = [("shipped profiles", lambda: check_shipped(world)), ("research and offline", lambda: check_research_and_offline(world))]
        parts = (("tools", compare_tools), ("requests", compare_requests), ("models", compare_models), ("variables", compare_variables), ("paths", compare_paths))
        checks += [(name, check_table(world, compare, table)) for name, compare in parts]
        checks += [("a change", lambda: check_change(world)), ("an explanation", lambda: check_explanation(world))]
        good = world.report_checks(checks)
        differences = table.differences()
        for line in differences:
            print(f"NOT SO  S001-10, S001-40, B001-13, X-13: {line}")
        print(f"{len(table.rows)} rows, {len(differences)} differences")
        sys.exit(0 if good and not differences and table.rows else 1)
    finally:
        world.stop()


if __name__ == "__main__":
    main()
